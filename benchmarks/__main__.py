"""``python -m benchmarks``: all benchmarks, or those named; 1 where a goal is missed or a benchmark fails."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import traceback

import benchmarks

from .timing import GOALS, LIBRARIES, import_seconds, judged

NAMES = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_") and m.name != "timing"]


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
    package, libraries = import_seconds("import fplab", LIBRARIES)
    told = judged(f"import fplab, times {LIBRARIES}", package / libraries, 0.2)
    print(f"import fplab: {told} times {LIBRARIES} ({libraries:.2f} s)\n", flush=True)
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
