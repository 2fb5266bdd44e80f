"""The figure: the conversions as staircases, errors against K with their bounds, and the published example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from ...draw.style import Look, current, label_ends, look, new_figure
from ...hardware.cases import Arrays
from .checks import PUBLISHED_ERROR
from .operands import CONVERSIONS, LOW
from .products import EXAMPLE_GPU, KINDS, index, of_kind

if TYPE_CHECKING:
    from . import Params

DOTS = (0, (1, 1.5))
TITLES = {"random": "random signs", "positive": "all positive"}
NAMES = {"truncate": "truncate", "rna": "nearest, ties away (rna)", "rne": "nearest, ties to even (rne)"}
FP32 = "FP32 multiply-adds"


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 11.5)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    rows = figure.add_gridspec(3, 1, height_ratios=[0.8, 1.15, 1])
    staircases(figure, rows[0].subgridspec(1, 3), arrays)
    middle = rows[1].subgridspec(1, 3)
    for i, kind in enumerate(KINDS):
        errors(figure.add_subplot(middle[i]), arrays, kind, first=i == 0)
    last = rows[2].subgridspec(1, 3)
    averaging(figure.add_subplot(last[0]), arrays)
    example(figure.add_subplot(last[1]), arrays)
    spread(figure.add_subplot(last[2]), arrays)
    figure.legend(handles=legend(), loc="outside lower center", ncols=5)
    return figure


def style(conversion: str) -> Look:
    """How a conversion is drawn everywhere; FP32 is the fourth."""
    return look(CONVERSIONS.index(conversion) if conversion else 4)


def staircases(figure: Figure, grid: Any, arrays: Arrays) -> None:
    """The error of each conversion over two steps of TF32, an even and an odd one, and its mean."""
    n = 1 << LOW
    first = None
    for i, conversion in enumerate(CONVERSIONS):
        ax = figure.add_subplot(grid[i], sharey=first)
        first = first or ax
        own, theme = style(conversion), current()
        error = np.ldexp(arrays["low bits"][i].astype(np.float64), -LOW)
        for parity in range(2):
            x = parity + np.arange(n) / n
            jump = int(np.argmax(np.diff(error[parity]) > 0.5)) + 1 if conversion != "truncate" else n
            for part in (slice(0, jump), slice(jump, n)):
                ax.plot(x[part][::16], error[parity][part][::16], color=own.color, linewidth=2)
            if jump < n:
                tie = error[parity][n // 2]
                for y, face in ((tie, own.color), (-tie, theme.background)):
                    ax.plot([parity + 0.5], [y], marker="o", markerfacecolor=face, color=own.color, markersize=6)
        mean = float(error.mean())
        ax.axhline(mean, color=theme.ink, linewidth=1, linestyle=DOTS)
        ax.axhline(0, color=theme.muted, linewidth=0.8)
        text = {"truncate": "mean $-\\frac{1}{2}$", "rna": "mean $+2^{-14}$", "rne": "mean 0"}[conversion]
        at = (1.02, -15) if conversion == "truncate" else (0.05, 5)
        ax.annotate(text, (at[0], mean), (0, at[1]), textcoords="offset points")
        ax.set_xlim(0, 2)
        ax.set_ylim(-1.1, 0.7)
        ax.set_xticks([0, 1, 2], ["even", "odd", "even"])
        ax.set_xlabel("operand between neighbours of TF32")
        ax.set_title(NAMES[conversion])
        if i == 0:
            ax.set_ylabel("error of the conversion\n(units in TF32's last place)")


def by_length(ax: Axes, lengths: np.ndarray) -> None:
    """Both axes logarithmic; few ticks, in plain text."""
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlim(lengths[0], lengths[-1])
    few = [k for k in (16, 64, 256, 1024, 4096, 16384, 65536) if k <= lengths[-1]]
    ax.set_xticks(few, [f"{k // 1024}k" if k >= 1024 else str(k) for k in few])
    ax.yaxis.set_major_locator(LogLocator(numticks=6))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.set_xlabel("K")


def errors(ax: Axes, arrays: Arrays, kind: str, first: bool) -> None:
    """The largest error of every conversion on A100, and of FP32, against K, with their bounds."""
    one = of_kind(arrays, kind)
    by_length(ax, one.lengths)
    for conversion in (*CONVERSIONS, ""):
        own = style(conversion)
        _, most, bound = one.shares(index(EXAMPLE_GPU if conversion else "", conversion))
        ax.plot(one.lengths, most, **own.marked)
        if conversion != "rna":  # its bound is rne's
            ax.plot(one.lengths, bound, color=own.color, linewidth=1, linestyle=DOTS)
    ax.set_ylim(1e-9, 1e-2)
    ax.set_title(TITLES.get(kind, kind))
    if first:
        ax.set_ylabel(r"largest $|error|\,/\,\Sigma|a_i b_i|$")


def averaging(ax: Axes, arrays: Arrays) -> None:
    """The mean error that the conversion alone makes, on positive operands."""
    from ... import exact_products as whole

    one = of_kind(arrays, "positive")
    by_length(ax, one.lengths)
    ends = []
    for i, conversion in enumerate(CONVERSIONS):
        own = style(conversion)
        mean = np.abs(whole.ratio(one.converted[i] - one.exact, one.exact)).mean(axis=(0, 1))
        ax.plot(one.lengths, mean, **own.marked)
        ends.append((float(mean[-1]), conversion, own.color))
    falling = 2.0**-11 / np.sqrt(one.lengths)
    ax.plot(one.lengths, falling, color=current().muted, linewidth=1)
    ends.append((float(falling[-1]), r"$2^{-11}/\sqrt{K}$", current().muted))
    ax.set_ylabel("mean relative error")
    ax.set_title("All positive: the conversion alone")
    label_ends(ax, ends)


def example(ax: Axes, arrays: Arrays) -> None:
    """Error against result in the published example: truncation shrinks, rounding does not."""
    exact, found = arrays["published: exact"].ravel(), arrays["published: errors"].reshape(len(CONVERSIONS), -1)
    theme = current()
    for conversion in ("truncate", "rna"):
        own = style(conversion)
        ax.plot(exact, found[CONVERSIONS.index(conversion)], linestyle="none", marker=own.marker, markersize=2.2,
                color=own.color, alpha=0.6, markeredgewidth=0)  # fmt: skip
    for sign in (-1, 1):
        ax.axhline(sign * PUBLISHED_ERROR, color=theme.ink, linewidth=1, linestyle=DOTS)
    ax.annotate("largest error published", (0.99, PUBLISHED_ERROR), (0, 4), ha="right",
                xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9)  # fmt: skip
    ax.set_xlabel("product of normal operands, K = 10,240")
    ax.set_ylabel("error")
    ax.set_ylim(-0.36, 0.36)
    ax.set_title("A100: truncated products shrink")


def spread(ax: Axes, arrays: Arrays) -> None:
    """The distribution of these errors."""
    found = arrays["published: errors"].reshape(len(CONVERSIONS), -1)
    edges = np.linspace(-0.36, 0.36, 73)
    highest = 0.0
    for conversion in ("truncate", "rna"):
        own = style(conversion)
        share = 100 * np.histogram(found[CONVERSIONS.index(conversion)], edges)[0] / found.shape[1]
        highest = max(highest, float(share.max()))
        ax.stairs(share, edges, color=own.color, linewidth=1.6, fill=True, alpha=0.25)
        ax.stairs(share, edges, color=own.color, linewidth=1.6)
    ax.set_ylim(0, 1.35 * highest)
    for sign in (-1, 1):
        ax.axvline(sign * PUBLISHED_ERROR, color=current().ink, linewidth=1, linestyle=DOTS)
    sigma = float(found[CONVERSIONS.index("rna")].std())
    text = f"rna: $\\sigma$ = {sigma:.4f}\n0.1747 = {PUBLISHED_ERROR / sigma:.1f} $\\sigma$"
    ax.annotate(text, (0.5, 0.97), xycoords="axes fraction", ha="center", va="top", color=style("rna").color)
    ax.set_xlim(-0.36, 0.36)
    ax.set_xlabel("error")
    ax.set_ylabel("of the products (%)")
    ax.set_title("Which conversion was it?")


def legend() -> list[Line2D]:
    """Conversions, FP32 and bounds."""
    found = [Line2D([], [], label=f"A100 TF32, {c}", **style(c).marked) for c in CONVERSIONS]
    found.append(Line2D([], [], label=FP32, **style("").marked))
    found.append(Line2D([], [], color=current().ink, linewidth=1, linestyle=DOTS, label="proved bound"))
    return found
