"""``python -m tests.prove``: the exhaustive proofs, resumable; ``--help`` says how."""

import argparse
import sys
from pathlib import Path

from fplab.errors import LabError
from fplab.storage import demand_writable
from fplab.threads import num_threads

from . import casts, fma, fp8, inferred, limits, matrix, pairs, scaled, silicon
from .runner import prove

PARTS = (casts.PART, pairs.PART, fp8.PART, fma.PART, matrix.PART, scaled.PART, silicon.PART, limits.PART, inferred.PART)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and prove; 0 if all agreed, 1 on a difference, 2 on a full disk, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove",
        description="Prove rounding and arithmetic bit by bit. Interrupt it at will: finished shares are remembered.",
        epilog="parts: " + "; ".join(f"{part.name} ({part.title})" for part in PARTS),
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--part", action="append", choices=names, help="only this part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a slice of everything, in seconds")
    parser.add_argument("--fresh", action="store_true", help="forget what is finished")
    parser.add_argument("--jobs", type=int, help="processes (default: the cores; with --quick 1)", metavar="N")
    parser.add_argument(
        "--state", type=Path, default=Path(".prove"), metavar="DIR", help="where finished shares are kept"
    )
    given = parser.parse_args(argv)
    if given.jobs is not None and given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: at least 1")
    jobs = given.jobs or (1 if given.quick else num_threads())
    parts = [part for part in PARTS if not given.part or part.name in given.part]
    try:
        demand_writable(given.state)
        return prove(parts, quick=given.quick, fresh=given.fresh, jobs=jobs, folder=given.state)
    except LabError as error:
        print(f"prove: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
