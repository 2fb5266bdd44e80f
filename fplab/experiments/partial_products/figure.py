"""The figure: running sums that stall and why, the errors of every accumulator, and how much of its bound each uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from ... import exact_products as whole
from ...draw.style import current, label_ends, look, new_figure
from ...hardware.cases import Arrays
from . import bounds, operands
from .accumulators import ACCUMULATORS, CORES, FATES, alike, index
from .exactly import Exactly, of_kind, shares_of
from .network import REAL
from .operands import SYNTHETIC

if TYPE_CHECKING:
    from . import Params

DOTS = (0, (1, 1.5))
DASHES = (0, (4, 1.5))
ABOVE: dict[str, Any] = {"y": 1.0}  # a title given its place is not laid out around the ticks at every drawing
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNITS = ("", *CORES)
NAMES = {"": "one by one", **{core: core for core in CORES}}
TITLES = {
    "random": "random signs",
    "positive": "all positive",
    "ill-conditioned": "ill-conditioned",
    "swamped": "its worst case",
    **{kind: kind for kind in REAL},
}


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels, each in its place: to find the places for so many would take as long as to draw them."""
    figure = new_figure(13, 15)
    figure.set_layout_engine("none")
    measured = {kind: of_kind(arrays, kind) for kind in (*SYNTHETIC, *REAL)}
    top = row(figure, 0.812, 0.98, gap=0.5, right=0.985)
    running(top[0], arrays)
    for ax, kind in zip(top[1:], ("positive", REAL[2]), strict=True):
        fates(ax, arrays, kind)
    for low, high, kinds in ((0.55, 0.756, SYNTHETIC[:3]), (0.288, 0.494, REAL)):
        for i, (ax, kind) in enumerate(zip(row(figure, low, high, gap=0.24, right=0.985), kinds, strict=True)):
            errors(ax, kind, measured[kind], first=i == 0)
    last = row(figure, 0.064, 0.232, gap=1.0, right=0.93)
    for ax, panel in zip(last, (tightness, crossing, truncation), strict=True):
        panel(ax, measured)
    figure.legend(handles=legend(), loc="lower center", ncols=7)
    return figure


def row(figure: Figure, low: float, high: float, gap: float, right: float) -> list[Axes]:
    """Three panels side by side, in shares of the figure; ``gap``: between them, in panels."""
    grid = figure.add_gridspec(1, 3, left=0.058, right=right, bottom=low, top=high, wspace=gap)
    return [figure.add_subplot(grid[i]) for i in range(3)]


def by_length(ax: Axes, lengths: np.ndarray, log: bool = True) -> None:
    """K along a logarithmic axis, and errors; few ticks, in plain text, drawn ten times as fast as mathematics."""
    ax.set_xscale("log", base=2)
    ax.set_xlim(lengths[0], lengths[-1])
    few = [k for k in (16, 64, 256, 1024, 4096, 16384, 65536) if k <= lengths[-1]]
    ax.set_xticks(few, [f"{k // 1024}k" if k >= 1024 else str(k) for k in few])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("K")
    if log:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=6))
        ax.yaxis.set_major_formatter(lambda y, _: "10" + str(round(np.log10(y))).translate(RAISED))
        ax.yaxis.set_minor_locator(NullLocator())


def style(i: int) -> dict[str, Any]:
    """How an accumulator is drawn: a colour and a marker for who adds, dashed and hollow for FP16."""
    one = ACCUMULATORS[i]
    own = look(UNITS.index(one.gpu))
    half = one.fmt == "fp16"
    return {
        "color": own.color, "marker": own.marker, "linestyle": DASHES if half else "-",
        "markerfacecolor": current().background if half else own.color, "linewidth": 1.5, "markersize": 4.5,
    }  # fmt: skip


def running(ax: Axes, arrays: Arrays) -> None:
    """The running sums of one all-positive product."""
    found = arrays["positive: trace"]
    k, exact = found[0], found[1]
    ax.plot(k, exact, color=current().muted, linewidth=4, alpha=0.5)
    ends = [(float(exact[-1]), "exact, FP32", current().muted)]
    for gpu in UNITS:
        i = index("fp16", gpu)
        own = style(i) | {"marker": "", "linewidth": 1.8}
        ax.plot(k, found[2 + i], **own)
        ends.append((float(found[2 + i][-1]), NAMES[gpu], own["color"]))
    fp32 = found[2 + index("fp32", "H100")]
    ax.plot(k, fp32, color=look(UNITS.index("H100")).color, linewidth=1.2)
    ax.set_xlim(0, k[-1])
    ax.set_ylim(0, None)
    ax.set_xticks([0, 1 << 14, 1 << 15, 3 << 14, 1 << 16], ["0", "16k", "32k", "48k", "64k"])
    ax.set_xlabel("products added")
    ax.set_ylabel("running sum")
    ax.set_title("FP16 sums of positive products stall", **ABOVE)
    label_ends(ax, ends)


def fates(ax: Axes, arrays: Arrays, kind: str) -> None:
    """What becomes of the non-zero products, one by one in FP16, by place in the sum."""
    counts = arrays[f"{kind}: fates"][0][:, 1:].astype(np.float64)
    share = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    theme = current()
    edges = np.append(operands.FIRST // 2, operands.sizes(3 + len(share)))
    bottom = np.zeros(len(share))
    for j, (color, alpha) in enumerate(((theme.series[1], 1.0), (theme.series[6], 0.45), (theme.series[0], 0.85))):
        ax.bar(edges[:-1], share[:, j], np.diff(edges), bottom, align="edge", color=color, alpha=alpha,
               edgecolor=theme.background, linewidth=0.4)  # fmt: skip
        bottom += share[:, j]
    by_length(ax, edges, log=False)
    ax.set_ylim(0, 100)
    ax.grid(False)
    ax.set_xlabel("place of the product in the sum")
    ax.set_ylabel("of the non-zero products (%)")
    ax.set_title(f"FP16: {TITLES[kind]}", **ABOVE)
    inside: dict[str, Any] = {"fontsize": 10, "fontweight": "bold"}
    ax.text(2**4, 82, FATES[3], color=theme.background, **inside)
    ax.text(2**15.7, 30, FATES[2].replace(" ", "\n"), color=theme.ink, ha="right", **inside)
    if share[0, 0] > 5:
        ax.annotate(FATES[1], (2**3.6, share[0, 0] / 2), (2**4, 64), color=theme.background, **inside,
                    arrowprops={"arrowstyle": "->", "color": theme.background})  # fmt: skip


def errors(ax: Axes, kind: str, one: Exactly, first: bool) -> None:
    """The largest error of every accumulator against K, with its bound; relative to the result where it cancels."""
    cancels = kind == "ill-conditioned"
    by_length(ax, one.lengths)
    for i, _ in enumerate(ACCUMULATORS):
        own = style(i)
        error, bound, _ = shares_of(one, i)
        if cancels:
            error = whole.ratio(one.errors[i], np.abs(one.exact)).max(axis=(0, 1))
            bound = whole.ratio(one.bound(i), np.abs(one.exact)).max(axis=(0, 1))
        shown = error > 0
        ax.plot(one.lengths[shown], error[shown], **own)
        ax.plot(one.lengths, np.minimum(bound, 1e9), color=own["color"], linewidth=1, linestyle=DOTS)
    low, high = (1e-7, 1e6) if cancels else (1e-9, 30)
    ax.set_ylim(low, high)
    ax.set_title(TITLES[kind], **ABOVE)
    if cancels:
        ax.axhline(1, color=current().muted, linewidth=1)
        ax.set_ylabel("largest |error| / |exact|")
    elif first:
        ax.set_ylabel("largest |error| / Σ|a b|")


def tightness(ax: Axes, measured: dict[str, Exactly]) -> None:
    """How much of its bound by block H100's FP32 uses, by kind."""
    by_length(ax, measured["random"].lengths)
    ends = []
    for j, (kind, one) in enumerate(measured.items()):
        used = shares_of(one, index("fp32", "H100"))[2]
        own = look(j)
        shown = used > 0
        ax.plot(one.lengths[shown], used[shown], **own.marked, markersize=4, linewidth=1.4)
        ends.append((float(used[-1]), TITLES[kind], own.color))
    ax.axhline(1, color=current().ink, linewidth=1, linestyle=DOTS)
    ax.set_ylim(0.02, 1.5)
    ax.set_ylabel("largest error / bound")
    ax.set_title("H100 FP32: how tight its bound is", **ABOVE)
    label_ends(ax, ends)


def crossing(ax: Axes, measured: dict[str, Exactly]) -> None:
    """The worst case of each GPU against the published bound and the sharp one."""
    one = measured["swamped"]
    by_length(ax, one.lengths, log=False)
    ends = [(1.0, "K 2⁻²⁴", current().ink)]
    for row, gpu in enumerate(operands.TARGETS):
        i, own = index("fp32", gpu), look(UNITS.index(gpu))
        used = whole.ratio(one.errors[i][row], one.published()[row]).max(axis=0)
        rate = float(bounds.rate(ACCUMULATORS[i].model)) * 2**24
        ax.plot(one.lengths, used, **own.marked)
        ax.axhline(rate, color=own.color, linewidth=1, linestyle=DOTS)
        ends.append((rate, f"{gpu}: {rate:g}", own.color))
    ax.axhline(1, color=current().ink, linewidth=1.2)
    ax.set_ylim(0, 2.2)
    ax.set_ylabel("worst error / (K 2⁻²⁴ Σ|a b|)")
    ax.set_title("The bound for rounding, and truncation", **ABOVE)
    label_ends(ax, ends)


def truncation(ax: Axes, measured: dict[str, Exactly]) -> None:
    """The mean error of FP32 sums of positive products: truncation has a direction, rounding has none."""
    one = measured["positive"]
    by_length(ax, one.lengths)
    ends = []
    for gpu in UNITS:
        i, own = index("fp32", gpu), look(UNITS.index(gpu))
        mean = whole.ratio(one.errors[i], one.magnitude).mean(axis=(0, 1))
        ax.plot(one.lengths, mean, **own.marked)
        ends.append((float(mean[-1]), NAMES[gpu], own.color))
    ax.axhline(2.0**-11, color=current().muted, linewidth=1, linestyle=DOTS)
    ax.annotate("half a unit of FP16", (20, 2.0**-11), (0, 4), textcoords="offset points",
                color=current().muted, fontsize=9)  # fmt: skip
    ax.set_ylabel("mean relative error")
    ax.set_title("All positive, FP32: truncation drifts", **ABOVE)
    label_ends(ax, ends)


def legend() -> list[Line2D]:
    """Who adds, in which format, and the bounds."""
    ink = current().ink
    found: list[Line2D] = []
    for gpu in UNITS:
        own = look(UNITS.index(gpu))
        others = [g for g in alike().get(gpu, ()) if g != gpu]
        label = NAMES[gpu] + (f" (and {', '.join(others)})" if others else "")
        found.append(Line2D([], [], color=own.color, marker=own.marker, label=label))
    found.append(Line2D([], [], color=ink, linestyle="-", label="FP32 sums"))
    found.append(Line2D([], [], color=ink, linestyle=DASHES, marker="o", markerfacecolor="none", label="FP16 sums"))
    found.append(Line2D([], [], color=ink, linewidth=1, linestyle=DOTS, label="proved bound"))
    return found
