"""The command ``fplab memory``: from its arguments to a table, JSON and a figure."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from ..errors import LabError
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
    found = estimate(model, **given)
    if args.out is not None:
        draw(args.out, args.theme or "light", found)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(found.to_json() if args.json else found.table(columns))
    return 0


def chosen_model(args: argparse.Namespace) -> Any:
    """A preset, a number of parameters, or a transformer of the given shape."""
    shape = {name: getattr(args, name) for name in SHAPE if getattr(args, name) is not None}
    extra = {name: getattr(args, name) for name in PARTS if getattr(args, name) is not None}
    ways = [args.preset is not None, args.parameters is not None, bool(shape or extra)]
    if sum(ways) != 1:
        raise LabError("say which model, in one way: --preset NAME, --parameters N, or --layers --hidden --heads ...")
    if args.preset is not None:
        return preset(args.preset)
    if args.parameters is not None:
        return args.parameters
    if lacking := [f"--{name}" for name in (*SHAPE, "sequence") if name not in shape and getattr(args, name) is None]:
        raise LabError(f"a transformer needs {', '.join(lacking)} too.")
    return Transformer("transformer", sequence=args.sequence, **shape, **extra)


def draw(out: Path, theme: str, found: Estimate) -> None:
    """Write the figure of stacked bars as ``.svg`` or ``.png``."""
    from ..draw.memory import figure_of
    from ..draw.style import save, themed
    from ..storage import atomically, demand_writable
    from .report import bars

    if out.suffix.lower() not in (".svg", ".png"):
        raise LabError(f"--out {str(out)!r} is no figure; allowed: a name that ends in .svg or .png.")
    demand_writable(out.parent)
    with themed(theme):
        drawn = figure_of(*bars(found))
        with atomically(out) as part:
            save(drawn, part, theme)
