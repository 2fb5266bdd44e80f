"""``python -m benchmarks``: all benchmarks, or those named; 1 where a goal is missed or a benchmark fails."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import subprocess
import sys
import traceback

import benchmarks

from .timing import GOALS, judged

NAMES = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_") and m.name != "timing"]


def import_time() -> float:
    """Milliseconds that ``import fplab`` takes, in a fresh interpreter, the interpreter's own start apart."""
    code = "import time; t = time.perf_counter(); import fplab; print(time.perf_counter() - t)"
    return 1000 * min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def main(argv: list[str] | None = None) -> int:
    """Run them all, whatever fails; 0 where every goal is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of them, or those named: {', '.join(NAMES)}")
    parser.add_argument(
        "--toy", action="store_true", help="sizes that only show that everything runs; goals do not count"
    )
    given = parser.parse_args(argv)
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    if given.toy:
        os.environ["FPLAB_BENCHMARKS"] = "toy"
    print(f"import fplab: {judged('import fplab, ms', import_time(), 800, '.0f')} ms\n", flush=True)
    failed = []
    for name in given.names or NAMES:
        try:
            importlib.import_module(f"benchmarks.{name}").main()
        except Exception:  # the others are run all the same
            traceback.print_exc()
            failed.append(name)
        print(flush=True)
    missed = [] if given.toy else [goal for goal in GOALS if goal.missed]
    told = "not judged" if given.toy else f"{len(missed)} missed"
    print(f"{len(GOALS)} goals, {told}" + "".join(f"\n  {goal}" for goal in missed))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed or missed))


if __name__ == "__main__":
    sys.exit(main())
