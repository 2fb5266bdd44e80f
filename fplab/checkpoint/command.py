"""The command ``fplab checkpoint``."""

from __future__ import annotations

import argparse
import os

from ..errors import demand
from ..storage import demand_writable
from ..words import say
from .comparison import Comparison, compare
from .report import Survey
from .surveying import FORMATS, survey

WRITTEN = say("In {folder}: {files}")


def run(args: argparse.Namespace) -> int:
    """Print and write what a checkpoint loses in formats, or what it changed; 1 where tensors are left."""
    demand("jinja2", "scipy")
    demand_writable(args.out)
    found: Survey | Comparison
    if args.against is not None:
        found = compare(args.against, args.files)
    else:
        found = survey(args.files, args.formats or FORMATS, bits=args.bits, error=args.error, out=args.out)
    if getattr(found, "left", 0):  # another rank is last, and writes the report
        print(found.text)  # type: ignore[union-attr]
        return 0 if "WORLD_SIZE" in os.environ else 1
    found.save(args.out)
    print(found, "", sep="\n")
    print(WRITTEN.fill(folder=args.out, files=", ".join(f"{found.FILE}.{kind}" for kind in ("html", "json", "csv"))))
    return 0
