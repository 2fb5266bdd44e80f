"""The command ``fplab memory``: from its arguments to a table, JSON and a figure."""

import argparse
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..columns import terminal_width
from ..errors import LabError
from ..words import say
from .calculator import NAMES, Estimate, estimate
from .models import Transformer, preset

SHAPE = ("layers", "hidden", "heads", "vocabulary")
PARTS = ("kv_heads", "ffn", "positions", "gated", "rms", "bias", "tied", "embedding_norm", "dropout")


def run(args: argparse.Namespace) -> int:
    """Estimate what the arguments describe, print it and draw it."""
    if args.theme is not None and args.out is None:
        raise LabError("--theme is of a figure; give --out FILE with it.")
    given = {name: getattr(args, name) for name in NAMES if getattr(args, name, None) is not None}
    model = chosen_model(args)
    result = estimate(model, **given)
    if args.out is not None:
        draw(args.out, args.theme or "light", result)
    columns = terminal_width() if sys.stdout.isatty() else None
    print(result.to_json() if args.json else result.table(columns))
    if args.out is not None:
        print(say("figure: {path}", path=args.out), file=sys.stderr if args.json else sys.stdout)
    return 0


def chosen_model(args: argparse.Namespace) -> Any:
    """A preset, a number of parameters, or a transformer of the given shape."""
    shape = {name: getattr(args, name) for name in SHAPE if getattr(args, name) is not None}
    extra = {name: getattr(args, name) for name in PARTS if getattr(args, name) is not None}
    ways = [args.preset is not None, args.parameters is not None, bool(shape)]
    if extra and not shape and any(ways):
        value, name = next(iter(extra.values())), next(iter(extra)).replace("_", "-")
        option = f"--no-{name}" if value is False else f"--{name}"
        other = " ".join(("--preset", args.preset) if ways[0] else ("--parameters", args.parameters))
        raise LabError(f"{option} is of a transformer with --layers, --hidden, ...; {other} has no such choice.")
    if sum(ways) + bool(extra and not any(ways)) != 1:
        raise LabError("say which model, in one way: --preset NAME, --parameters N, or --layers --hidden --heads ...")
    if args.preset is not None:
        return preset(args.preset)
    if args.parameters is not None:
        return counted(args.parameters)
    if lacking := [f"--{name}" for name in (*SHAPE, "sequence") if name not in shape and getattr(args, name) is None]:
        raise LabError(f"a transformer needs {', '.join(lacking)} too.")
    return Transformer("transformer", sequence=args.sequence, **shape, **extra)


def counted(text: str) -> int:
    """A number of parameters as people write it.

    >>> counted("1.3e9"), counted("7B"), counted("350M"), counted("124_439_808")
    (1300000000, 7000000000, 350000000, 124439808)
    """
    match = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?(?:e\+?\d\d?)?)([KMBT]?)", text, re.ASCII | re.IGNORECASE)
    number = Fraction(re.sub("[_,]", "", match[1])) * 1000 ** " KMBT".index(match[2].upper() or " ") if match else None
    if not number or number.denominator > 1:
        raise LabError(f"--parameters {text!r} is not possible; allowed: a whole number such as 7B, 350M or 1.3e9.")
    return int(number)


def draw(out: Path, theme: str, result: Estimate) -> None:
    """Write the figure of stacked bars as ``.svg`` or ``.png``."""
    from ..draw.memory import figure_of
    from ..draw.style import save, themed
    from ..storage import demand_writable
    from .report import bars

    if out.suffix.lower() not in (".svg", ".png"):
        raise LabError(f"--out {str(out)!r} is no figure; allowed: a name that ends in .svg or .png.")
    demand_writable(out.parent)
    with themed(theme):
        drawn = figure_of(*bars(result))
        save(drawn, out, theme)
