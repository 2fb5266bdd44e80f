"""Histograms by binade: how a tensor's magnitudes lie against a format's range."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import formats
from ..errors import LabError
from ..formats import FormatLike
from .page import two_to
from .scene import GREY, Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Threshold = tuple[float, str]
WIDTH, HEIGHT, LEFT, TOP = 860, 210, 56, 18  # pixels
BINADE, PERCENT = 8, 8  # pixels: of a bar's width and of its height, where axes bring their own scale


class Layer(NamedTuple):
    """One layer of stacked bars. ``counts``: (B,); ``name``: its class; ``mark``: repeats what the colour says."""

    counts: np.ndarray
    hue: str
    name: str = "bar"
    mark: str = ""


def histogram_scene(layers: Sequence[Layer], first: int, edges: Sequence[tuple[int, str]], spoken: str) -> Scene:
    """Bars of stacked layers, the first at the foot, by binade from ``first`` on, and a format's three edges."""
    size = len(layers[0].counts)
    step, tallest = (WIDTH - LEFT - 10) / size, max(int(np.sum([layer.counts for layer in layers], axis=0).max()), 1)
    drawing, foot = Scene(WIDTH, HEIGHT + 62, spoken), HEIGHT + TOP
    _bars(drawing, layers, first, (LEFT, foot), (step, HEIGHT / tallest), gap=1)
    room = LEFT + 50.0  # where the first label must end at the earliest to stay inside, and the next may begin
    for (exponent, name), anchor in zip(edges, ("end", "start", "end"), strict=True):  # the first two may be close
        x = LEFT + (exponent - first) * step
        drawing.line(x, 14, x, HEIGHT + 40, stroke=GREY, stroke_dasharray="5 3")
        room = max(x, room)
        drawing.text(room, HEIGHT + 54, f"{name} {two_to(exponent)}", anchor, 11, class_="edge")
    every = 8 if size <= 120 else 16
    for exponent in range(first, first + size):
        if exponent % every == 0:
            drawing.text(LEFT + (exponent - first + 0.5) * step, HEIGHT + 34, two_to(exponent), "middle", 11)
    drawing.text(LEFT - 6, 28, f"{tallest:,}", "end", 11)
    drawing.line(LEFT, foot, WIDTH - 10, foot, stroke_opacity=0.6)
    return drawing


def _bars(
    drawing: Scene, layers: Sequence[Layer], first: int, corner: tuple[float, float], unit: tuple[float, float],
    gap: float = 0,
) -> None:  # fmt: skip
    """Stacked bars from a lower left ``corner`` on; ``unit``: pixels of a binade, and of one of what is counted."""
    step = unit[0]
    for column in range(len(layers[0].counts)):
        x, y = corner[0] + column * step, corner[1]
        for layer in layers:
            if not (n := layer.counts[column].item()):
                continue
            tall = n * unit[1]
            y -= tall
            drawing.rect(x, y, max(step - gap, 0.8), tall, layer.hue, fill_opacity=0.75, class_=f"bar {layer.name}",
                         data_n=n, data_binade=first + column)  # fmt: skip
            if layer.mark and tall > 12 and step > 7:
                drawing.text(x + step / 2, y + min(tall / 2 + 4, 14), layer.mark, "middle", 10)


def format_thresholds(fmt: FormatLike) -> tuple[Threshold, ...]:
    """The binade edges that matter for a format: smallest subnormal, smallest normal, first overflowing power of two.

    >>> format_thresholds("fp16")[0][0]
    -24.0
    """
    form = formats.get(fmt)
    lowest = form.emin - form.fraction_bits if form.zero else form.emin
    marks = [(float(lowest), f"smallest\nsubnormal $2^{{{lowest}}}$")] if lowest < form.emin else []
    marks.append((float(form.emin), f"smallest\nnormal $2^{{{form.emin}}}$"))
    marks.append((float(form.emax + 1), f"largest\n{form.max:.6g}"))
    return tuple(marks)


def shares(counts: np.ndarray, exponents: np.ndarray, thresholds: Sequence[Threshold]) -> tuple[float, ...]:
    """The share of all values in each region between thresholds."""
    total = max(int(counts.sum()), 1)
    edges = [-np.inf, *(t for t, _ in thresholds), np.inf]
    return tuple(
        float(counts[(exponents >= low) & (exponents < high)].sum()) / total for low, high in itertools.pairwise(edges)
    )


def percent(share: float) -> str:
    """A share for a label; what is there never reads as nothing.

    >>> percent(0.00001), percent(0.314), percent(0.0)
    ('<0.1%', '31.4%', '0%')
    """
    if share == 0:
        return "0%"
    return "<0.1%" if share < 0.001 else f"{100 * share:.1f}%"


def binade_histogram(ax: Axes, counts: np.ndarray, exponents: np.ndarray, fmt: FormatLike) -> None:
    """Draw how many values lie in each binade, as a percentage of all values, against a format's thresholds.

    ``counts`` and ``exponents``: integers (B,), bar i counts ``2**exponents[i] <= |x| < 2**(exponents[i]+1)``. The
    share of the values in each region between thresholds is written at the top, the thresholds' names above the axes.
    """
    counts, exponents = np.asarray(counts), np.asarray(exponents)
    if counts.shape != exponents.shape or counts.ndim != 1:
        raise LabError(f"counts {counts.shape} and exponents {exponents.shape} must be 1-d and of one length.")
    from .style import current, look

    marks = format_thresholds(fmt)
    height, first = 100 * counts / max(int(counts.sum()), 1), int(exponents.min())
    columns = np.zeros(int(exponents.max()) - first + 1)
    columns[exponents - first] = height
    drawing = Scene(0, 0)
    _bars(drawing, [Layer(columns, look(0).color)], first, (first * BINADE, 0), (BINADE, PERCENT))
    drawing.onto(ax, (0, 0), (BINADE, -PERCENT))
    used = exponents[counts > 0]
    low, high = (int(used.min()), int(used.max()) + 1) if used.size else (-1, 1)
    low, high = min(low, *(int(t) for t, _ in marks)) - 4, max(high, *(int(t) for t, _ in marks)) + 4
    ax.set(xlim=(low, high), ylim=(0, 1.22 * max(float(height.max(initial=0)), 1e-9)))
    _exponent_ticks(ax, low, high)
    ax.set(xlabel=r"magnitude, by binade", ylabel="share of all values (%)")
    for at, _ in marks:
        ax.axvline(at, color=current().ink, linewidth=1.0, linestyle=(0, (3, 2)), zorder=3)
    _threshold_names(ax, marks, high - low)
    _region_shares(ax, marks, shares(counts, exponents, marks), (low, high))


def _exponent_ticks(ax: Axes, low: float, high: float) -> None:
    """Powers of two on the horizontal axis, none below ``low``."""
    step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256) if (high - low) / s <= 14)
    ticks = np.arange(-(-low // step) * step, high + 1, step)
    ax.set_xticks(ticks, [f"$2^{{{int(t)}}}$" for t in ticks])
    ax.grid(axis="x", visible=False)


def _threshold_names(ax: Axes, marks: Sequence[Threshold], width: float) -> None:
    """The thresholds' names as ticks of a top axis (so that a title keeps clear of them), pushed apart where close."""
    from .style import current

    theme = current()
    top = ax.secondary_xaxis("top")
    top.set_xticks([at for at, _ in marks], labels=[text for _, text in marks])
    top.tick_params(length=0, labelsize=8, labelcolor=theme.muted, pad=2)
    top.spines["top"].set_visible(False)
    close = 0.17 * width
    for i, tick in enumerate(top.get_xticklabels()):
        before = marks[i][0] - marks[i - 1][0] if i else np.inf
        after = marks[i + 1][0] - marks[i][0] if i + 1 < len(marks) else np.inf
        tick.set_horizontalalignment("right" if after < min(close, before) else "left" if before < close else "center")


def _region_shares(ax: Axes, marks: Sequence[Threshold], share: Sequence[float], limits: tuple[float, float]) -> None:
    """The share of the values in each region, at the top; a narrow region's is set lower, clear of its neighbours."""
    from .style import current

    theme = current()
    edges = [limits[0], *(t for t, _ in marks), limits[1]]
    span = ax.get_xlim()[1] - ax.get_xlim()[0]
    for low, high, part in zip(edges, edges[1:], share, strict=False):
        narrow = (high - low) / span < 0.08
        ax.text((low + high) / 2, 0.88 if narrow else 0.985, percent(part), transform=ax.get_xaxis_transform(),
                ha="center", va="top", fontsize=9, fontweight="bold", color=theme.ink, zorder=4,
                bbox={"boxstyle": "round,pad=0.15", "fc": theme.background, "ec": "none", "alpha": 0.85})  # fmt: skip
