"""The figure: errors against K, a sum that falls behind, what 2% is relative to, and how often to promote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ...draw.style import current, label_ends, look, new_figure
from ...hardware.cases import Arrays
from .checks import at, errors
from .operands import DEFINITIONS, DISTRIBUTIONS, SERIES, relative

if TYPE_CHECKING:
    from . import Params

TITLES = ("Normal", "Uniform on $(-1, 1)$", "Uniform on $(0, 1)$")
SHORT = {"H100": "H100, one chain", "H100, promoted every 128": "H100, promoted", "Ada": "Ada", "B200": "B200"}
LOOKS = {"H100": 1, "H100, promoted every 128": 0, "Ada": 5, "B200": 2}
REPORTED = 0.02
NEAR = (0.015, 0.025)


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 13.5)
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.12)
    rows = figure.add_gridspec(3, 1, height_ratios=[1, 0.95, 0.95])
    curves = rows[0].subgridspec(1, 3)
    for i in range(3):
        against_k(figure.add_subplot(curves[i]), arrays, i)
    middle = rows[1].subgridspec(1, 2, width_ratios=[1, 1])
    falls_behind(figure.add_subplot(middle[0]), arrays)
    intervals(figure.add_subplot(middle[1]), arrays)
    definitions(figure.add_subplot(rows[2]), arrays, params)
    return figure


def _percent(x: float, _: Any = None) -> str:
    return f"{100 * x:.8f}".rstrip("0").rstrip(".") + "%"


def _percent_axis(ax: Axes, low: float, high: float) -> None:
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    ticks = [10.0**e for e in range(-8, 1) if low <= 10.0**e <= high]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(_percent))


def _reported(ax: Axes, text: str = "2%") -> None:
    """The report's figure as a line."""
    ax.axhline(REPORTED, color=current().ink, linewidth=1, linestyle=(0, (3, 2)))
    ax.annotate(text, (0, REPORTED), (4, 3), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9)


def against_k(ax: Axes, arrays: Arrays, i: int) -> None:
    """Errors by K, a line an accumulator."""
    from . import K

    sizes = arrays["sizes"]
    ax.set_xscale("log", base=2)
    _percent_axis(ax, 5e-8, 1)
    ends = []
    for s, name in enumerate(SERIES):
        style, error = look(LOOKS[name]), errors(arrays, i, s)
        ax.plot(sizes, error, **style.marked)
        ends.append((float(error[-1]), SHORT[name], style.color))
    _reported(ax, "2%, of DeepSeek-V3's report" if i == 0 else "2%")
    ax.axvline(K, color=current().muted, linewidth=0.8, linestyle=(0, (1, 1.5)))
    ax.set_xlim(sizes[0], sizes[-1])
    ax.set_xticks([2.0**e for e in range(5, 15, 3)])
    ax.set_xlabel("K")
    if i == 0:
        ax.set_ylabel("largest error / r.m.s. result")
    ax.set_title(TITLES[i])
    if i == 2:
        label_ends(ax, ends)


def falls_behind(ax: Axes, arrays: Arrays) -> None:
    """One sum of positive products while it grows: its error after every 32 of them."""
    n = 32 * np.arange(1, arrays["running_exact"].shape[1] + 1)
    want = arrays["running_exact"][2]
    ends = []
    for j, name in enumerate(list(SERIES)[:2]):
        style = look(LOOKS[name])
        error = 100 * (arrays["running"][2, j].view(np.float32).astype(np.float64) - want) / want
        ax.plot(n, error, **style.line)
        ends.append((float(error[-1]), SHORT[name], style.color))
    total = arrays["running"][2, 0].view(np.float32).astype(np.float64)
    doubled = np.flatnonzero(np.diff(np.floor(np.log2(total)))) + 1
    for place in doubled[-4:]:
        ax.axvline(n[place], color=current().muted, linewidth=0.8, linestyle=(0, (1, 1.5)))
    ax.set_xlim(0, n[-1])
    ax.set_xticks(range(0, int(n[-1]) + 1, 1024), [f"{k:,}" for k in range(0, int(n[-1]) + 1, 1024)])
    ax.set_xlabel("products added  (dotted: the sum enters a new binade, and the grid doubles)")
    ax.set_ylabel("error of the sum (%)")
    ax.set_title("One positive sum falls behind")
    label_ends(ax, ends)


def intervals(ax: Axes, arrays: Arrays) -> None:
    """Errors at K = 4096 by how often the sum is promoted."""
    from . import INTERVALS, K

    ax.set_xscale("log", base=2)
    _percent_axis(ax, 1e-5, 0.3)
    ends = []
    for i, title in enumerate(TITLES):
        style = look((3, 4, 7)[i])
        error = [relative(bits, arrays["exact"][i, at(arrays, K)]) for bits in arrays["promoted"][i]]
        ax.plot(INTERVALS, error, **style.marked)
        ends.append((error[-1], title.lower(), style.color))
    _reported(ax)
    ax.axvline(128, color=current().muted, linewidth=0.8, linestyle=(0, (1, 1.5)))
    ax.annotate("DeepSeek-V3:\nevery 128", (128, 0.13), (5, 0), textcoords="offset points", fontsize=9, va="center",
                color=current().muted)  # fmt: skip
    ax.set_xlim(INTERVALS[0], INTERVALS[-1])
    ax.set_xticks(INTERVALS, [f"{n:,}" for n in INTERVALS])
    ax.set_xlabel("products between promotions to FP32")
    ax.set_ylabel("largest error / r.m.s. result")
    ax.set_title(f"How often to promote, H100, K = {K:,}")
    label_ends(ax, ends)


def definitions(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Relative errors at K = 4096 by what they are relative to; framed where they are about 2%."""
    from . import K

    theme = current()
    columns = [(i, j) for i in range(len(DISTRIBUTIONS)) for j in range(len(params.sides))]
    gap = 0.35
    x = {(i, j): i * (len(params.sides) + gap) + j for i, j in columns}
    right = x[columns[-1]] + 1
    left = 4.1 * right / 10
    ax.set_xlim(-left, right)
    ax.set_ylim(len(DEFINITIONS), -1.1)
    ax.axis("off")
    for i, title in enumerate(TITLES):
        middle = x[i, 0] + len(params.sides) / 2
        ax.text(middle, -0.72, title, ha="center", va="center", fontweight="bold")
    for i, j in columns:
        side = params.sides[j]
        ax.text(x[i, j] + 0.5, -0.25, f"${side}^2$", ha="center", va="center", fontsize=9, color=theme.muted)
    ax.text(-left, -0.25, "of so many results", va="center", fontsize=9, color=theme.muted)
    ax.text(-left, -0.72, "small: promoted every 128", va="center", fontsize=7.5, color=theme.muted)
    for d, name in enumerate(DEFINITIONS):
        ax.text(-left, d + 0.5, name, va="center")
        for i, j in columns:
            chain, promoted = arrays["defined"][i, j, :, d]
            near = NEAR[0] < chain < NEAR[1]
            ax.add_patch(Rectangle(
                (x[i, j] + 0.03, d + 0.06), 0.94, 0.88, facecolor=theme.exponent if near else theme.grid,
                alpha=1 if near else 0.5, linewidth=1.5 if near else 0, edgecolor=theme.ink,
            ))  # fmt: skip
            ax.text(x[i, j] + 0.5, d + 0.36, _rounded(chain), ha="center", va="center",
                    fontweight="bold" if near else "normal")  # fmt: skip
            ax.text(x[i, j] + 0.5, d + 0.7, _rounded(promoted), ha="center", va="center", fontsize=7.5,
                    color=theme.ink if near else theme.muted)  # fmt: skip
    ax.set_title(f"One chain on H100, K = {K:,}: which relative error is nearly 2%?")


def _rounded(x: float) -> str:
    """A share with two digits, thousands of percent as such."""
    return f"{100 * x:.2g}%" if x < 1 else f"{100 * float(f'{x:.2g}'):,.0f}%"
