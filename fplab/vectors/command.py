"""What ``fplab vectors`` prints and writes."""

from __future__ import annotations

import argparse

from ..errors import LabError
from ..words import say
from .files import Vectors
from .operations import FIRST, conversions, corpus, coverage, products, quantisations


def run(args: argparse.Namespace) -> int:
    """Write vectors of one operation, or of all."""
    asked = [name for name in ("unit", "convert", "quantiser", "all") if getattr(args, name)]
    if len(asked) != 1:
        raise LabError("one of --unit, --convert, --quantiser and --all says what there shall be vectors of.")
    kinds = tuple(args.kinds)
    if args.all:
        digests = corpus(args.out, args.rows, args.seed, kinds, lambda _, name: print(name, flush=True))
        print(say("{n:,} files, with their digests in {manifest}", n=len(digests), manifest=args.out / "MANIFEST.json"))
        return 0
    vectors = _made(args)
    for path in vectors.save(args.out, kinds):
        print(path)
    if args.unit:
        shown = coverage(vectors)
        apart = sum(count > 0 for count in shown.values())
        line = say("{rows:,} rows; of {n} units that decide one thing otherwise {apart} differ in the first {first:,}.")
        print(line.fill(rows=len(vectors), n=len(shown), apart=apart, first=FIRST))
        if same := [name for name, count in shown.items() if not count]:
            print(say("No row tells these from it: {names}.", names=", ".join(same)))
    return 0


def _made(args: argparse.Namespace) -> Vectors:
    """The vectors that were asked for."""
    if args.unit:
        return products(args.unit, args.format, args.output, args.instruction, rows=args.rows, seed=args.seed)
    if args.convert:
        return conversions(*args.convert, rows=args.rows, seed=args.seed)
    return quantisations(args.quantiser, rule=args.rule, variant=args.variant, rows=args.rows, seed=args.seed)
