"""What a watched training run needs of its formats: histograms by layer, the loss scale, updates lost, and the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from ..formats import Format
from .style import current, look, look_of_format, new_figure

Array = np.ndarray[Any, Any]
MOST_LAYERS = 18  # rows of a panel; more are merged by the leading parts of their names
MOST_PANELS = 6


@dataclass(frozen=True)
class Picture:
    """What is drawn.

    ``histograms``: (layer, kind) -> (binades, counts), int64 (B,) both. ``formats``: the candidates. ``curves``: format
    -> shares of the gradients that vanish, are not normal, and overflow, at the loss scales 2**0, 2**1, ... ``scale``:
    format -> the base-2 logarithm of the scale recommended. ``lost``: layer -> (updates, format -> how many it would
    lose). ``largest``: kind -> (step, largest magnitude). ``broken``: the step of the first infinity or NaN, which
    ``first`` describes.
    """

    title: str
    histograms: Mapping[tuple[str, str], tuple[Array, Array]]
    formats: Sequence[Format]
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]
    scale: Mapping[str, int]
    lost: Mapping[str, tuple[int, Mapping[str, int]]]
    largest: Mapping[str, Sequence[tuple[int, float]]]
    first: str = ""
    broken: int | None = None


def draw(picture: Picture) -> Figure:
    """Every panel: a heat map for each kind, and below them the loss scale, the updates lost, the run."""
    kinds = list(dict.fromkeys(kind for _, kind in picture.histograms))
    kinds = kinds if len(kinds) <= MOST_PANELS else [*kinds[: MOST_PANELS - 1], kinds[-1]]
    panels = {kind: grouped({layer: h for (layer, k), h in picture.histograms.items() if k == kind}) for kind in kinds}
    lines = [max((len(panels[k]) for k in kinds[i : i + 3]), default=1) for i in range(0, len(kinds), 3)]
    heights = [1.15 + 0.2 * n for n in lines]
    figure = new_figure(14, 0.4 + sum(heights) + 3.6)
    figure.suptitle(picture.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    rows = figure.subfigures(len(heights) + 1, 1, height_ratios=[*heights, 3.6], squeeze=False)[:, 0]
    limits = binade_limits(picture)
    for i, row in enumerate(rows[:-1]):
        heat_maps(row, {kind: panels[kind] for kind in kinds[3 * i : 3 * i + 3]}, picture.formats, limits)
    scale, lost, run = rows[-1].subplots(1, 3)
    loss_scales(scale, picture)
    updates_lost(lost, picture)
    largest_by_step(run, picture)
    return figure


def grouped(histograms: Mapping[str, tuple[Array, Array]], most: int = MOST_LAYERS) -> dict[str, tuple[Array, Array]]:
    """At most ``most`` layers (or as few as first names leave): more are merged by the leading parts of their names."""
    depth = max((name.count(".") + 1 for name in histograms), default=1)
    while depth:
        merged: dict[str, list[tuple[Array, Array]]] = {}
        for name, h in histograms.items():
            merged.setdefault(short(name, depth), []).append(h)
        if len(merged) <= most or depth == 1:
            break
        depth -= 1
    return {name: _sum(parts) for name, parts in merged.items()} if histograms else {}


def short(name: str, depth: int) -> str:
    """The first ``depth`` parts of a name.

    >>> short("encoder.layers.0.linear1", 3)
    'encoder.layers.0'
    """
    return ".".join(name.split(".")[:depth])


def _sum(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    parts = [p for p in parts if p[0].size] or [(np.zeros(1, np.int64), np.zeros(1, np.int64))]
    low, high = min(int(e[0]) for e, _ in parts), max(int(e[-1]) for e, _ in parts)
    counts = np.zeros(high - low + 1, np.int64)
    for exponents, n in parts:
        counts[int(exponents[0]) - low :][: len(n)] += n
    return np.arange(low, high + 1), counts


def binade_limits(picture: Picture) -> tuple[int, int]:
    """The binades shown: where all but a thousandth of the values of every layer and kind lie, and FP16's range."""
    lows, highs = [-26], [17]
    for exponents, counts in picture.histograms.values():
        if counts.sum():
            share = np.cumsum(counts) / counts.sum()
            lows.append(int(exponents[int(np.searchsorted(share, 0.001))]))
            highs.append(int(exponents[-1]) + 1)
    return max(min(lows), -60), min(max(highs) + 1, 40)


def heat_maps(
    row: SubFigure, panels: Mapping[str, Mapping[str, tuple[Array, Array]]], candidates: Sequence[Format],
    limits: tuple[int, int],
) -> None:  # fmt: skip
    """Three kinds side by side: above each the candidates' ranges, below a row of cells for each layer."""
    most = max(len(p) for p in panels.values())
    axes = row.subplots(2, 3, height_ratios=[0.16 * len(candidates), 0.2 * most], squeeze=False)
    for ax in axes.flat:
        ax.set_visible(False)
    for i, (kind, layers) in enumerate(panels.items()):
        ranges, cells = axes[0, i], axes[1, i]
        format_ranges(ranges, candidates, limits)
        ranges.set_title(kind)
        heat_map(cells, layers, limits, most)


def format_ranges(ax: Axes, candidates: Sequence[Format], limits: tuple[int, int]) -> None:
    """A bar for each format: thick where it is normal, thin where subnormal."""
    ax.set_visible(True)
    for i, form in enumerate(candidates):
        style, y = look_of_format(form.name), -i
        lowest, top = form.emin - form.fraction_bits, form.emax + 1
        ax.plot([lowest, form.emin], [y, y], color=style.color, linewidth=1.2, solid_capstyle="butt")
        ax.plot([form.emin, top], [y, y], color=style.color, linewidth=5, solid_capstyle="butt")
        at = min(max(form.emin, limits[0]) + 0.4, limits[1] - 8)
        ax.annotate(form.name, (at, y), (0, 0), textcoords="offset points", va="center", fontsize=7.5,
                    color=current().background, fontweight="bold", annotation_clip=True,
                    bbox={"boxstyle": "round,pad=0.12", "fc": style.color, "ec": "none"})  # fmt: skip
    ax.set_xlim(*limits)
    ax.set_ylim(-len(candidates) + 0.4, 0.6)
    ax.set_axis_off()


def heat_map(ax: Axes, layers: Mapping[str, tuple[Array, Array]], limits: tuple[int, int], rows: int) -> None:
    """A row for each layer, a cell for each binade, the darker the more of the layer's values lie in it."""
    ax.set_visible(True)
    theme = current()
    low, high = limits
    share = np.zeros((len(layers), high - low))
    for i, (exponents, counts) in enumerate(layers.values()):
        where = np.clip(exponents - low, 0, high - low - 1)
        np.add.at(share[i], where, counts / max(counts.sum(), 1))
    image = np.zeros((*share.shape, 4))
    image[..., :3] = to_rgb(theme.series[0])
    depth = np.sqrt(share / max(share.max(), 1e-9))
    image[..., 3] = np.where(share > 0, 0.08 + 0.92 * depth, 0)
    ax.imshow(image, extent=(low, high, len(layers) - 0.5, -0.5), aspect="auto", interpolation="nearest")
    for edge in (-24, -14, 16):
        ax.axvline(edge, color=look_of_format("fp16").color, linewidth=1.0, linestyle=(0, (3, 2)))
    ax.set_yticks(range(len(layers)), labels=[_clipped(name) for name in layers], fontsize=7.5)
    ax.set(xlim=(low, high), ylim=(rows - 0.5, -0.5))
    step = 8 if high - low <= 64 else 16
    ticks = range(-(-low // step) * step, high + 1, step)
    ax.set_xticks(list(ticks), labels=[f"$2^{{{t}}}$" for t in ticks])
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False)


def _clipped(name: str, most: int = 24) -> str:
    return name if len(name) <= most else "…" + name[1 - most :]


def loss_scales(ax: Axes, picture: Picture) -> None:
    """What each format makes of all gradients at each loss scale, and the scale recommended."""
    top = 0.0
    for form in picture.formats:
        if form.name not in picture.curves:
            continue
        style = look_of_format(form.name)
        vanish, low, overflow = (100 * np.array(c) for c in picture.curves[form.name])
        ax.plot(low, color=style.color, linewidth=0.9, alpha=0.7)
        ax.plot(vanish, color=style.color, linestyle=style.linestyle, marker=style.marker, markevery=4, label=form.name)
        if overflow.any():
            ax.plot(overflow, color=style.color, linewidth=1.2, linestyle=(0, (1, 1)))
        top = max(top, float(low.max()), float(overflow.max()))
    for name, log2 in picture.scale.items():
        if log2:
            ax.axvline(log2, color=look_of_format(name).color, linewidth=1.2)
            ax.annotate(f" use $2^{{{log2}}}$ in {name}", (log2, 0.97), xycoords=("data", "axes fraction"), va="top",
                        color=look_of_format(name).color, fontsize=9, fontweight="bold")  # fmt: skip
    ax.set(xlim=(0, max((len(c[0]) - 1 for c in picture.curves.values()), default=24)), ylim=(0, max(1.12 * top, 1e-3)))
    ax.set_xticks(range(0, 25, 4), labels=[f"$2^{{{s}}}$" for s in range(0, 25, 4)])
    ax.set(xlabel="loss scale   (thin: vanish or are subnormal; dots: overflow)",
           ylabel="of the non-zero gradients (%)", title="Gradients that vanish")  # fmt: skip
    if picture.curves:
        ax.legend(loc="upper right" if not picture.scale.get("fp16") else "center right")


def updates_lost(ax: Axes, picture: Picture) -> None:
    """The share of the updates that a weight held in each format would not notice, by layer."""
    layers = _grouped_losses(picture.lost)
    for i, form in enumerate(picture.formats):
        style = look_of_format(form.name)
        share = [100 * lost.get(form.name, 0) / max(moved, 1) for moved, lost in layers.values()]
        offset = (i - (len(picture.formats) - 1) / 2) * 0.16
        ax.plot(share, np.arange(len(layers)) + offset, linestyle="none", color=style.color, marker=style.marker,
                markersize=6, label=form.name, clip_on=False)  # fmt: skip
    ax.set_yticks(range(len(layers)), labels=[_clipped(name) for name in layers], fontsize=7.5)
    ax.set(ylim=(len(layers) - 0.5, -0.5), xlim=(0, 100), xlabel="of the non-zero updates (%)",
           title="Updates lost without an FP32 copy")  # fmt: skip


def _grouped_losses(lost: Mapping[str, tuple[int, Mapping[str, int]]]) -> dict[str, tuple[int, dict[str, int]]]:
    shown = grouped({name: (np.array([i]), np.array([1])) for i, name in enumerate(lost)})
    depth = max((name.count(".") + 1 for name in shown), default=1)
    groups: dict[str, tuple[int, dict[str, int]]] = {}
    for name, (moved, by_format) in lost.items():
        before, counts = groups.get(short(name, depth), (0, {}))
        groups[short(name, depth)] = before + moved, {f: counts.get(f, 0) + n for f, n in by_format.items()}
    return groups


def largest_by_step(ax: Axes, picture: Picture) -> None:
    """The largest magnitude of each kind by step, against FP16's largest value, and where the run broke."""
    theme = current()
    finite: list[float] = []
    for i, (kind, points) in enumerate(picture.largest.items()):
        shown = [(step, value) for step, value in points if 0 < value < np.inf]
        finite += [value for _, value in shown]
        if shown:
            ax.plot(*zip(*shown, strict=True), **(look(i).line if len(shown) > 8 else look(i).marked), label=kind)
    ax.set_yscale("log", base=2)
    if finite and max(finite) > 2**6:
        ax.axhline(65504, color=look_of_format("fp16").color, linewidth=1.0, linestyle=(0, (3, 2)))
        ax.annotate("largest FP16", (0.01, 65504), (0, 2), xycoords=("axes fraction", "data"), fontsize=8,
                    textcoords="offset points", color=look_of_format("fp16").color)  # fmt: skip
    last = max([step for points in picture.largest.values() for step, _ in points], default=0)
    ax.set_xlim(-0.5, last + 0.5)
    if picture.broken is not None:
        early = picture.broken < last / 2
        ax.axvline(picture.broken, color=theme.series[5], linewidth=1.4)
        ax.annotate(f" first infinity or NaN: step {picture.broken} ", (picture.broken, 0.03), fontsize=8.5,
                    color=theme.series[5], fontweight="bold", xycoords=("data", "axes fraction"),
                    ha="left" if early else "right")  # fmt: skip
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title("Largest magnitude of a step")
    if finite:
        ax.legend(loc="best")
