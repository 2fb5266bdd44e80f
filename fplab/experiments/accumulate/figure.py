"""The figure: running sums that stop, where each format stops, and the errors of every order beside their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...draw.style import current, label_ends, look, look_of_format, new_figure
from ...formats import get
from ...hardware.cases import Arrays
from . import bounds, series

if TYPE_CHECKING:
    from . import Params

PANELS = (("fp16", "harmonic"), ("bf16", "0.1"), ("fp32", "0.1"), ("e4m3", "0.1"))
TITLES = {"harmonic": r"$\Sigma\,1/k$", "ones": r"$\Sigma\,1$", "0.1": r"$\Sigma\,0.1$", "1e-4": r"$\Sigma\,10^{-4}$"}
DOTS = (0, (1, 1.5))
HOLLOW: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markersize": 4, "linestyle": "none"}
BAND: dict[str, Any] = {"alpha": 0.14, "linewidth": 0}


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 14.5)
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.12)
    rows = figure.add_gridspec(3, 1)
    sums = rows[0].subgridspec(1, 2, width_ratios=[1.35, 1])
    running(figure.add_subplot(sums[0]), arrays)
    stalls(figure.add_subplot(sums[1]), arrays)
    pairs = [rows[1].subgridspec(1, 2), rows[2].subgridspec(1, 2)]
    for i, (fmt, name) in enumerate(PANELS):
        order_errors(figure.add_subplot(pairs[i // 2][i % 2]), fmt, name, arrays, params)
    figure.legend(handles=legend(params), loc="outside lower center", ncols=5)
    return figure


def running(ax: Axes, arrays: Arrays) -> None:
    """The harmonic sum in every format, and where it stops."""
    from . import FORMATS

    n = arrays["reach"]
    i = series.SERIES.index("harmonic")
    ax.set_xscale("log", base=2)
    ax.plot(n, np.log(n) + np.euler_gamma + 0.5 / n, color=current().muted, linewidth=1, linestyle=DOTS)
    ends = [(float(np.log(n[-1]) + np.euler_gamma), "exact", current().muted)]
    for j, fmt in enumerate(FORMATS):
        style, last = look_of_format(fmt), int(arrays["stall_last"][i, j])
        value = float(arrays["stall_value"][i, j])
        ax.plot(n, arrays["partial"][i, j], **style.line)
        ax.plot([last], [value], marker=style.marker, color=style.color, markersize=8, linestyle="none")
        ends.append((value, f"{fmt.upper()}: {value:.6g}", style.color))
        place, ha = ((-12, 6), "right") if fmt == "fp32" else ((7, -11), "left")
        ax.annotate(f"last term that counts: {last:,}", (last, value), place, textcoords="offset points", ha=ha,
                    color=style.color, fontsize=9)  # fmt: skip
    ax.set_xlim(1, n[-1])
    ax.set_ylim(0, 17)
    ax.set_xlabel("number of terms $n$")
    ax.set_ylabel("sequential sum")
    ax.set_title(r"$\Sigma\,1/k$ diverges, but not in floating point")
    label_ends(ax, ends)


def stalls(ax: Axes, arrays: Arrays) -> None:
    """The first term without effect, by series and format."""
    from . import FORMATS

    ax.set_xscale("log", base=2)
    for j, fmt in enumerate(FORMATS):
        style = look_of_format(fmt)
        for i, _ in enumerate(series.SERIES):
            y = i + (j - 2) * 0.17
            first, value = int(arrays["stall_last"][i, j]) + 1, float(arrays["stall_value"][i, j])
            ax.plot([0.7, first], [y, y], color=style.color, linewidth=1.2, alpha=0.55)
            ax.plot([first], [y], marker=style.marker, color=style.color, linestyle="none")
            text, left = f"{fmt.upper()}: {first:,}  ({value:,.8g})", first < 1 << 16
            ax.annotate(text, (first, y), (8, 0) if left else (-8, 7), textcoords="offset points",
                        ha="left" if left else "right", va="center", fontsize=8, color=current().ink)  # fmt: skip
    ax.set_yticks(range(len(series.SERIES)), [TITLES[s] for s in series.SERIES])
    ax.set_ylim(len(series.SERIES) - 0.5, -0.5)
    ax.set_xlim(0.7, 2**27)
    ax.set_xticks([2.0**k for k in range(0, 27, 6)])
    ax.grid(False, axis="y")
    ax.set_xlabel("first term without effect  (the sum there)")
    ax.set_title("Where sequential sums stop")


def order_errors(ax: Axes, fmt: str, name: str, arrays: Arrays, params: Params) -> None:
    """Errors of every order in one format, with bounds; of the random sums the root mean square and the spread."""
    from . import ORDERS, errors

    p = get(fmt).significand_bits
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    n, _ = errors(arrays, name, fmt, "sequential")
    ax.plot(n, 2.0**-p * np.sqrt(n), color=current().muted, linewidth=1.2)
    least = 1.0
    for i, order in enumerate(ORDERS):
        m, error = (a[..., 2:] for a in errors(arrays, name, fmt, order))  # the first two sums are exact
        style = look(i)
        if order == "stochastic":
            low, high = error.min(axis=0), error.max(axis=0)
            error = np.sqrt((error**2).mean(axis=0))
            ax.fill_between(m, np.maximum(low, error / 10), high, color=style.color, **BAND)
        bound = [bounds.as_float(bounds.BOUNDS[order](k, p, params.block)) for k in m.tolist()]
        ax.plot(m, np.minimum(bound, 1e6), color=style.color, linewidth=1.2, linestyle=DOTS)
        shown = error > 0
        least = min(least, float(error[shown].min(initial=1.0)))
        ax.plot(m[shown], error[shown], **style.marked, markevery=2)
        edge = np.full(m[~shown].size, 0.02 + 0.018 * i)
        ax.plot(
            m[~shown],
            edge,
            transform=ax.get_xaxis_transform(),
            **HOLLOW | {"marker": style.marker, "color": style.color},
        )
    ax.set_xlim(n[2], n[-1])
    ax.set_ylim(least / 20, 4)
    ax.set_xlabel("number of terms $n$")
    ax.set_ylabel("relative error")
    ax.set_title(f"{TITLES[name]} in {fmt.upper()}:  $u = 2^{{-{p}}}$")


def legend(params: Params) -> list[Line2D | Patch]:
    """What the lines of the error panels are."""
    from . import ORDERS

    names = {"kahan": "Kahan", "blocked": f"blocked by {params.block}", "stochastic": "stochastic, r.m.s."}
    ink, muted = current().ink, current().muted
    return [
        *(Line2D([], [], label=names.get(order, order), **look(i).marked) for i, order in enumerate(ORDERS)),
        Line2D([], [], color=ink, linewidth=1.2, linestyle=DOTS, label="proven bound, in its order's colour"),
        Line2D([], [], color=muted, linewidth=1.2, label=r"$u\sqrt{n}$, expected of stochastic"),
        Patch(color=look(ORDERS.index("stochastic")).color, label=f"its range in {params.seeds} runs", **BAND),
        Line2D([], [], color=muted, label="no error at all", **HOLLOW),
    ]
