"""The figure: how two parts hold a number, what each product adds, and errors against K, added inside and outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from ...draw.style import Look, current, label_ends, look, new_figure
from ...hardware.cases import Arrays
from . import parts
from .methods import KINDS, SMALL, index, of_kind

if TYPE_CHECKING:
    from . import Params

DOTS = (0, (1, 1.5))
SHOWN = (  # method, and how the legend names it
    ("FP16", "FP16 (one product)"),
    ("2 products", "2 products"),
    ("3 products", "3 products, no scale, inside"),
    ("3 scaled, inside, A100", "3 products, scaled, inside"),
    ("3 scaled, outside, A100", "3 products, scaled, outside"),
    ("3 TF32 scaled, outside", "3 TF32 products, scaled, outside"),
    ("FP32 multiply-adds", "FP32 multiply-adds"),
)
LOOKS = (6, 7, 5, 1, 0, 2, 4)
BOUNDED = ("3 scaled, inside, A100", "3 scaled, outside, A100")
TITLES = {"random": "random signs", "positive": "all positive", "small": f"random signs times $2^{{{SMALL}}}$"}


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 12.5)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    rows = figure.add_gridspec(3, 1)
    first = rows[0].subgridspec(1, 3, width_ratios=[1.25, 1.15, 0.8])
    strips(figure.add_subplot(first[0]), arrays)
    binades(figure.add_subplot(first[1]), arrays)
    how_many(figure.add_subplot(first[2]), arrays)
    for row, kinds in ((rows[1], KINDS[:2]), (rows[2], KINDS[2:])):
        grid = row.subgridspec(1, 2)
        for i, kind in enumerate(kinds):
            errors(figure.add_subplot(grid[i]), arrays, kind, first=i == 0)
    figure.legend(handles=legend(), loc="outside lower center", ncols=4)
    return figure


def style(name: str) -> Look:
    """How a method is drawn."""
    return look(LOOKS[[shown for shown, _ in SHOWN].index(name)])


def strips(ax: Axes, arrays: Arrays) -> None:
    """The 24 bits of an FP32 significand and what the parts take of them."""
    theme = current()
    rows = (
        (3.0, 24, 0, theme.fraction, "FP32: 24 bits"),
        (2.0, 11, 0, theme.exponent, "high: rounded to 11"),
        (1.0, 11, 12, theme.sign, r"low, times $2^{11}$: 11, and a sign"),
    )
    for y, count, start, color, text in rows:
        for k in range(start, start + count):
            ax.add_patch(Rectangle((k, y), 1, 0.42, facecolor=color, edgecolor=theme.background, linewidth=1.2))
        ax.text(start, y + 0.5, text, fontsize=9.5)
    ax.add_patch(Rectangle((23, 1.0), 1, 0.42, facecolor="none", edgecolor=theme.ink, linewidth=1.2, linestyle=DOTS))
    ax.annotate("missing in 1 of 4", (23.5, 1.0), (23.9, 0.45), ha="right", fontsize=9,
                arrowprops={"arrowstyle": "-", "color": theme.ink, "lw": 0.8})  # fmt: skip
    share = arrays["lost"] / arrays["lost"].sum(axis=1, keepdims=True)
    text = f"numbers held exactly: {share[0, 0]:.0%} to nearest, {share[1, 0]:.0%} by truncation"
    ax.text(0, -0.15, text, fontsize=9.5)
    ax.set_xlim(-0.3, 24.3)
    ax.set_ylim(-0.4, 4.0)
    ax.set_axis_off()
    ax.set_title("A number as two parts")


def binades(ax: Axes, arrays: Arrays) -> None:
    """What the parts miss, by the number's magnitude."""
    exponents = np.arange(parts.LOWEST, parts.HIGHEST)
    colors = (style("FP16"), style("3 products"), style("3 scaled, outside, A100"), style("3 TF32 scaled, outside"))
    for own, worst in zip(colors, arrays["binades"], strict=True):
        ax.plot(exponents, worst, color=own.color, linestyle=own.linestyle, linewidth=1.8)
    places = ((-11, 1.5e-3, "FP16"), (-4, 1e-5, "no scale"), (-37, 3e-6, "scaled"), (-59, 2.2e-7, "TF32, scaled"))
    for (x, y, text), own in zip(places, colors, strict=True):
        ax.text(x, y, text, color=own.color, fontsize=9.5)
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(numticks=6))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlim(exponents[0], exponents[-1])
    ax.set_ylim(2e-8, 2)
    ax.set_xticks(range(-60, 21, 20), [f"$2^{{{e}}}$" for e in range(-60, 21, 20)])
    ax.set_xlabel("magnitude of the number")
    ax.set_ylabel("largest relative error of its parts")
    ax.set_title("The range of the parts")


def how_many(ax: Axes, arrays: Arrays) -> None:
    """The largest error of one to four products of parts, added exactly."""
    from ... import exact_products as whole

    one = of_kind(arrays, "random")
    error = whole.ratio(np.abs(one.partial - one.exact), one.magnitude).reshape(4, -1).max(axis=1)
    ax.bar(range(1, 5), error, color=style("3 scaled, outside, A100").color, width=0.62)
    ax.set_yscale("log")
    ax.set_ylim(1e-9, 1e-2)
    ax.yaxis.set_major_locator(LogLocator(numticks=5))
    ax.yaxis.set_minor_locator(NullLocator())
    for i, value in enumerate(error):
        ax.annotate(f"{value:.0e}", (i + 1, value), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    ax.set_xticks(range(1, 5), ["1", "2", "3", "4"])
    ax.grid(False, axis="x")
    ax.set_xlabel("products of parts, added exactly")
    ax.set_ylabel(r"largest $|error|\,/\,\Sigma|a_i b_i|$")
    ax.set_title("The fourth adds nothing")


def errors(ax: Axes, arrays: Arrays, kind: str, first: bool) -> None:
    """The largest error of every method against K, with the bounds of three scaled products."""
    one = of_kind(arrays, kind)
    ends = []
    for name, _ in SHOWN:
        own = style(name)
        _, most, bound = one.shares(index(name))
        ax.plot(one.lengths, most, **own.marked)
        if name in BOUNDED:
            ax.plot(one.lengths, bound, color=own.color, linewidth=1, linestyle=DOTS)
        ends.append((float(most[-1]), name.replace(", A100", "").replace("multiply-adds", ""), own.color))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlim(one.lengths[0], one.lengths[-1])
    few = [k for k in (16, 64, 256, 1024, 4096, 16384) if k <= one.lengths[-1]]
    ax.set_xticks(few, [f"{k // 1024}k" if k >= 1024 else str(k) for k in few])
    ax.yaxis.set_major_locator(LogLocator(numticks=6))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.set_ylim(2e-9, 1e-3 if kind in TITLES else 0.3)
    ax.set_xlabel("K")
    if first:
        ax.set_ylabel(r"largest $|error|\,/\,\Sigma|a_i b_i|$")
    ax.set_title(TITLES.get(kind, kind))
    label_ends(ax, ends)


def legend() -> list[Line2D]:
    """Methods and bounds."""
    found = [Line2D([], [], label=text, **style(name).marked) for name, text in SHOWN]
    found.append(Line2D([], [], color=current().ink, linewidth=1, linestyle=DOTS, label="proved bound"))
    return found
