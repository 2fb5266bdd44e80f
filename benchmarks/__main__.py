"""``python -m benchmarks``: all benchmarks, or those named."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import benchmarks

NAMES = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_") and m.name != "timing"]


def import_time() -> float:
    """Seconds that ``import fplab`` takes, in a fresh interpreter, the interpreter's own start apart."""
    code = "import time; t = time.perf_counter(); import fplab; print(time.perf_counter() - t)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def main() -> int:
    """Run them; exit status 2 for an unknown name."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"usage: python -m benchmarks [NAME ...]\n\nall of them, or those named: {', '.join(NAMES)}")
        return 0
    wanted = sys.argv[1:] or NAMES
    if unknown := set(wanted) - set(NAMES):
        print(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    print(f"import fplab: {import_time() * 1000:.0f} ms (goal: under 800)\n")
    for name in wanted:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
