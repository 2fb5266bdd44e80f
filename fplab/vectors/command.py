"""What ``fplab vectors`` prints and writes."""

from __future__ import annotations

import argparse
import json

from ..errors import LabError
from ..words import say
from . import under_test
from .conformance import conform as conforming
from .files import Vectors, read
from .operations import FIRST, conversions, corpus, coverage, model_of, products, quantisations, stored


def run(args: argparse.Namespace) -> int:
    """Write vectors of one operation, or of all."""
    asked = [name for name in ("unit", "convert", "quantiser", "stored", "all") if getattr(args, name)]
    if len(asked) != 1:
        raise LabError("one of --unit, --convert, --quantiser, --stored and --all says what there shall be vectors of.")
    kinds = tuple(args.kinds)
    if args.all:
        digests = corpus(args.out, args.rows, args.seed, kinds, lambda _, name: print(name, flush=True))
        print(say("{n:,} files, with their digests in {manifest}", n=len(digests), manifest=args.out / "MANIFEST.json"))
        return 0
    made = [make() for make in stored(args.stored, args.rows, args.seed)] if args.stored else [_made(args)]
    for path in (path for one in made for path in one.save(args.out, kinds)):
        print(path)
    if args.unit:
        (vectors,) = made
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


def conform(args: argparse.Namespace) -> int:
    """Put vectors to a unit under test and say what it does otherwise; 1 where it does."""
    if sum(map(bool, (args.command_line, args.library, args.python))) != 1:
        raise LabError("one of --library FILE, --python NAME and -- COMMAND says what is to be tested.")
    if bool(args.unit) == bool(args.vectors):
        raise LabError("one of --unit GPU and --vectors FILE says what it should compute.")
    vectors = read(args.vectors) if args.vectors else _made(args)
    if args.library:
        ask = under_test.library(args.library, args.function)
    elif args.python:
        ask = under_test.function(under_test.named(args.python), model_of(vectors))
    else:
        ask = under_test.program(args.command_line, args.limit)
    if args.single:
        ask = under_test.by_instruction(ask, model_of(vectors).k)
    found = conforming(ask, vectors)
    print(json.dumps(found.as_json(), indent=2) if args.json else found)
    return int(found.agreed < found.rows)
