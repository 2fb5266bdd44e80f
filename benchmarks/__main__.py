"""``python -m benchmarks``: all benchmarks, or those named; 1 where a goal is missed or a benchmark fails."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import pkgutil
import platform
import sys
import time
import traceback
from pathlib import Path

import benchmarks
from fplab import num_threads
from fplab.columns import as_csv
from fplab.hardware.environment import cpu_name
from fplab.storage import write_text

from .timing import COMPARED, GOALS, LIBRARIES, Compared, import_seconds, judged

NAMES = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_") and m.name != "timing"]


def main(argv: list[str] | None = None) -> int:
    """Run them all, whatever fails; 0 where every goal is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of them, or those named: {', '.join(NAMES)}")
    parser.add_argument(
        "--toy", action="store_true", help="sizes that only show that everything runs; goals do not count"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where peers beside the lab go, as CSV: the site's page"
    )
    given = parser.parse_args(argv)
    began = time.perf_counter()
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
    if given.out:
        write(given.out, time.perf_counter() - began)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed or missed))


def write(path: Path, wall: float) -> None:
    """Peers beside the lab as CSV, below what the machine is: ``wall`` seconds were spent on all of it."""
    names = ("numpy", "numba", "torch", "ml_dtypes", "gfloat", "torchao")
    versions = {name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name)}
    used = sum(os.times()[:4]) / wall
    about = {
        "date": time.strftime("%Y-%m-%d"), "processor": cpu_name(), "cores": num_threads(), "cores used": f"{used:.2f}",
        "Python": platform.python_version(), **versions,
    }  # fmt: skip
    rows = [("machine", what, "", value) for what, value in about.items()]
    rows += [(*one[:3], f"{one.times:.3g}") for one in COMPARED]
    write_text(path, as_csv([Compared._fields, *rows]))


if __name__ == "__main__":
    sys.exit(main())
