"""The experiment's figure: the catalogue as a matrix, the smallest examples, and two orders of summation."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...draw.style import current, look, new_figure
from ...draw.tree import sum_tree
from ...floats import decode
from ...hardware import elementwise
from ...hardware.cases import Arrays
from ...reveal import SumTree
from . import orders
from .catalogue import EACH, FIRST, FORMULAS, LAST, NARROW, ONCE, RIGHT, TWICE, rows
from .checks import NONE
from .data import OPERANDS, Params
from .examples import DISTINCTIONS, USED

NARROW_ALPHA = f"{EACH}, alpha narrow"
SHOWN = {  # the order in which formulas are tried, what a cell says, and its colour: the series' number, None is plain
    ONCE: ("rounded once", None),
    RIGHT: ("rounded once", None),
    TWICE: ("FP32's, rounded again", 0),
    EACH: ("two steps in FP32", None),
    LAST: ("fused", 1),
    FIRST: ("fused, value·x first", 1),
    NARROW_ALPHA: ("alpha in the format", 3),
    NARROW: ("every step in the format", 3),
}
TREES = ("torch.sum, FP32", "a column of torch.sum(0), FP32")


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 15)
    figure.suptitle(caption(), x=0.01, ha="left", fontsize=10, color=current().muted)
    grid = figure.add_gridspec(3, 1, height_ratios=[2.35, 0.95, 1.15])
    matrix(figure.add_subplot(grid[0]), arrays)
    told(figure.add_subplot(grid[1]), arrays)
    bottom = grid[2].subgridspec(1, 2)
    for i, name in enumerate(TREES):
        ax = figure.add_subplot(bottom[i])
        sizes = arrays["paths"][list(orders.SUMS).index(name)]
        sum_tree(ax, SumTree.from_sizes(sizes), style=look(i), labels=20)
        ax.set_title(f"{name}, {orders.N} terms")
    return figure


def caption() -> str:
    """One line on where the numbers come from."""
    import torch

    return (
        f"torch {torch.__version__} on a CPU with {torch.backends.cpu.get_cpu_capability()}; a long tensor: 14,744 "
        "operands, or every code of a half format; seven elements: an eighth of them and fewer. Wrong: of all results"
    )


def says(wrong: np.ndarray, output: str) -> tuple[str, int | None]:
    """A cell: the first formula that gives every bit, or by how many results the nearest one is off."""
    known = {name: int(wrong[FORMULAS.index(name)]) for name in SHOWN if wrong[FORMULAS.index(name)] >= 0}
    right = [name for name in SHOWN if known.get(name) == 0]
    if not right:
        return f"{min(known.values()):,} wrong", 5
    if output == "addcdiv" and EACH not in right:
        return "value·x first, not fused", 0
    if EACH in right and LAST in right:
        return "the same either way", None
    return SHOWN[right[0]]


def matrix(ax: Axes, arrays: Arrays) -> None:
    """Operations by formats and places."""
    theme = current()
    names = list(dict.fromkeys(r.output for r in rows() if not r.case.startswith("casts")))
    columns = [(fmt, place) for fmt in elementwise.FORMATS for place in (0, 1)]
    width, left = 1.0, 0.75
    for c, (fmt, place) in enumerate(columns):
        x = left + c * width
        text = f"{fmt.upper()}, {('long', 'seven elements')[place]}"
        ax.text(x + 0.04, -0.75, text, fontsize=9.5, fontweight="bold", va="center")
        for r, name in enumerate(names):
            at = [i for i, row in enumerate(rows()) if (row.output, row.fmt) == (name, fmt)]
            label, series = says(arrays["wrong"][place, at[0]], name)
            color = theme.ink if series is None else theme.series[series]
            if series is not None:
                box = Rectangle((x, r + 0.06), width - 0.03, 0.88, facecolor=color, alpha=0.16, linewidth=0)
                ax.add_patch(box)
            ax.text(x + 0.04, r + 0.5, label, fontsize=8.5, va="center", color=color)
    for r, name in enumerate(names):
        ax.text(0, r + 0.5, name, fontsize=9.5, va="center")
        ax.axhline(r, color=theme.grid, linewidth=0.5)
    ax.set_xlim(0, left + len(columns) * width)
    ax.set_ylim(len(names) + 0.1, -1.2)
    ax.set_axis_off()
    ax.set_title("Which formula gives every bit of torch on this CPU, in a long tensor and in one of seven elements")


def told(ax: Axes, arrays: Arrays) -> None:
    """The smallest examples as a table."""
    theme = current()
    ax.set_axis_off()
    ax.set_xlim(0, 1)
    ax.set_ylim(len(DISTINCTIONS) + 0.2, -1.1)
    ax.set_title(
        f"The smallest operands found that tell torch's formula from another one (alpha = {elementwise.ALPHA})"
    )
    places = (0.0, 0.16, 0.36, 0.55)
    for x, text in zip(places, ("operation", "torch does", "and not", "on"), strict=True):
        ax.text(x, -0.5, text, fontsize=9, color=theme.muted, va="center")
    for r, (one, codes) in enumerate(zip(DISTINCTIONS, arrays["codes"], strict=True)):
        fmt = "fp64" if one.case.startswith("casts") else one.fmt
        values = "no difference here"
        if not (codes == NONE).all():
            used = [(n, c) for n, c in zip(OPERANDS, codes, strict=True) if n in USED[one.output]]
            values = ", ".join(f"{n} = {float(decode(np.uint64(c), fmt, np.float64))!r}" for n, c in used)
        name = "FP64 to FP16" if fmt == "fp64" else f"{one.output}, {one.fmt.upper()}"
        torchs = "none of these" if one.torchs is None else words(one.torchs, one.output)
        for x, text in zip(places, (name, torchs, words(one.other, one.output), values), strict=True):
            ax.text(x, r + 0.3, text, fontsize=9, va="center")
        ax.axhline(r + 0.8, color=theme.grid, linewidth=0.5)


def words(formula: str, output: str) -> str:
    """A formula in the words of the matrix."""
    if output == "addcdiv":
        return "fused" if formula == LAST else "value·x first, not fused"
    return "fused" if formula == FIRST else SHOWN[formula][0]
