"""The experiment's figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from ... import formats
from ...draw.histogram import binade_histogram, percent
from ...draw.shares import FATE_SERIES, fate_patches, fill, magnitude_map, stacked_shares
from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from .data import (
    FATES,
    FORMATS,
    HALVES,
    HIGHEST,
    LAYERS,
    LOST_IN_SUM,
    LOWEST,
    NO_UPDATE,
    UNDERFLOWS,
    Params,
)

BINADES = np.arange(LOWEST, HIGHEST + 1)
NAMES = {"zero": "zero", "subnormal": "subnormal", "normal": "normal", "overflow": "infinite (E4M3: NaN)"}


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels: gradients, their fate over the training, loss scales by format, the learning rate, the weights."""
    figure = new_figure(13, 14)
    grid = figure.add_gridspec(3, 1, height_ratios=[1.25, 0.9, 1.15])
    rows = [figure.add_subfigure(grid[i]) for i in range(3)]
    rows[0].suptitle(caption(arrays), x=0.01, ha="left", fontsize=10, color=current().muted)
    (whole, loss), (histogram, layers) = rows[0].subplots(2, 2, width_ratios=[1.7, 1], height_ratios=[1, 4.2])
    all_values(whole, arrays)
    gradients(histogram, arrays)
    losses(loss, arrays)
    by_layer(layers, arrays)
    rows[1].suptitle("Loss scaling: what a format makes of the non-zero activation gradients", x=0.01, ha="left",
                     fontsize=11, fontweight="bold")  # fmt: skip
    for ax, fmt in zip(rows[1].subplots(1, 4, sharey=True), FORMATS, strict=True):
        scales(ax, arrays, params, fmt)
    rows[1].legend(handles=fate_patches(NAMES), loc="outside lower center", ncols=4)
    product, *maps = rows[2].subplots(1, 3)
    learning_rate(product, arrays, params)
    for ax, fmt in zip(maps, HALVES, strict=True):
        lost_updates(ax, arrays, fmt)
    return figure


def caption(arrays: Arrays) -> str:
    """One line on where the numbers come from."""
    right, tested = arrays["right"]
    return (
        f"A convolutional net on the UCI digits, FP32, natural mean cross-entropy: {len(arrays['losses'])} steps, "
        f"{right / tested:.1%} of the test digits right; {len(arrays['steps'])} steps collected, all layers"
    )


def folded(counts: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts by binade and their binades from ``start`` up, with all smaller ones in the first; the empty top cut."""
    first = start - LOWEST
    kept = np.concatenate([[counts[: first + 1].sum()], counts[first + 1 :]])
    end = int(np.flatnonzero(kept)[-1]) + 1
    return kept[:end], BINADES[first : first + end]


def power_ticks(axis: Axis, exponents: range) -> None:
    """Ticks at these base-2 logarithms, labelled as powers of two."""
    axis.set_ticks(list(exponents), labels=[f"$2^{{{e}}}$" for e in exponents])


def all_values(ax: Axes, arrays: Arrays) -> None:
    """One bar of all activation gradients: zero already in FP32, and what FP16 makes of the others without a scale."""
    theme, zeros, counts = current(), int(arrays["zeros"][0]), arrays["counts"][0, 0, 0]
    total = zeros + counts.sum()
    parts: list[tuple[str, int, dict[str, Any]]] = [
        ("zero in FP32", zeros, {"facecolor": theme.grid, "hatch": "..", "edgecolor": theme.background})
    ]
    parts += [(NAMES[f], int(n), fill(f)) for f, n in zip(FATES, counts, strict=True) if n]
    left = 0.0
    for text, n, look_ in parts:
        width = 100 * n / total
        ax.barh([0], [width], left=left, height=1, **look_)
        ax.annotate(f"{text}\n{percent(n / total)}", (left + width / 2, 0.5), (0, 3), textcoords="offset points",
                    ha="center", va="bottom", fontsize=9)  # fmt: skip
        left += width
    ax.set_xlim(0, 100)
    ax.set_ylim(-0.5, 1.6)
    ax.set_axis_off()
    ax.set_title("Activation gradients: all values, as FP16 would hold them without a loss scale")


def gradients(ax: Axes, arrays: Arrays) -> None:
    """The non-zero activation gradients by binade, as in the paper's Figure 3."""
    counts, exponents = folded(arrays["binades"][0], -60)
    binade_histogram(ax, counts, exponents=exponents, thresholds="fp16")
    ax.set_ylabel("of the non-zero gradients (%)")
    ax.set_xlabel(f"magnitude, by binade (the lowest bar: all below $2^{{{exponents[0] + 1}}}$)")


def losses(ax: Axes, arrays: Arrays) -> None:
    """The training loss of every step."""
    ax.plot(arrays["losses"], color=current().muted, linewidth=1.2)
    ax.set_yscale("log")
    ax.set_xlim(0, 1.02 * arrays["steps"][-1])
    ax.tick_params(labelbottom=False)
    ax.set_ylabel("loss")
    ax.set_title("As the loss falls, so do the gradients")


def by_layer(ax: Axes, arrays: Arrays) -> None:
    """By layer and step: the share of the non-zero activation gradients that FP16 rounds to zero."""
    share = 100 * arrays["layer_underflows"] / np.maximum(arrays["activation_sizes"], 1)
    for i, name in enumerate(LAYERS):
        ax.plot(arrays["steps"], share[:, i], **look(i).marked, markersize=3.5, linewidth=1.4, label=name)
    ax.set_xlim(0, 1.02 * arrays["steps"][-1])
    ax.set_ylim(0, None)
    ax.set_xlabel("training step")
    ax.set_ylabel("rounded to zero by FP16,\nof the non-zero gradients (%)")
    ax.legend(loc="upper left")


def scales(ax: Axes, arrays: Arrays, params: Params, fmt: str) -> None:
    """What a format makes of the non-zero activation gradients, by loss scale."""
    counts = arrays["counts"][0, FORMATS.index(fmt)]
    share = counts / counts.sum(axis=1, keepdims=True)
    stacked_shares(ax, np.arange(params.scales + 1), {fate: share[:, i] for i, fate in enumerate(FATES)})
    power_ticks(ax.xaxis, range(0, params.scales + 1, 4))
    ax.set_xlabel("loss scale")
    ax.set_title(fmt.upper())
    if fmt == FORMATS[0]:
        ax.set_ylabel("of the non-zero gradients (%)")


def learning_rate(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The weight gradients by binade, and their product with the learning rate."""
    counts, exponents = folded(arrays["binades"][1], -44)
    form = formats.get("fp16")
    lowest = form.emin - form.fraction_bits
    marks = ((lowest, f"subnormal\nfrom $2^{{{lowest}}}$"), (form.emin, f"normal\nfrom $2^{{{form.emin}}}$"))
    binade_histogram(ax, counts, exponents=exponents, thresholds=marks, show_shares=False)
    after, low = folded(arrays["product_binades"], -44)
    style, total = look(1), counts.sum()
    ax.stairs(100 * after / total, np.append(low, low[-1] + 1), color=style.color, linewidth=1.8)
    cast, product = (int(x) for x in arrays["product_fates"][0, :2])
    notes = ((0.97, "$g$", cast, look(0).color), (0.80, rf"${params.lr}\,g$", cast + product, style.color))
    for y, name, lost, color in notes:
        note = f"{name}\nzero in FP16:\n{percent(lost / total)}"
        ax.text(0.02, y, note, transform=ax.transAxes, va="top", color=color)
    power_ticks(ax.xaxis, range(-40, 1, 8))
    ax.set_xlabel(f"magnitude, by binade (the lowest: all below $2^{{{exponents[0] + 1}}}$)")
    ax.set_ylabel("of the non-zero weight gradients (%)")
    ax.set_title("gradient × learning rate")


def lost_updates(ax: Axes, arrays: Arrays, fmt: str) -> None:
    """Update against weight, both as magnitudes: which sums return the weight unchanged."""
    fate = arrays["update_fates"][HALVES.index(fmt)]
    shown = (fate != NO_UPDATE) & (arrays["weights"] != 0)
    w, u = (np.log2(np.abs(arrays[x][shown].astype(np.float64))) for x in ("weights", "updates"))
    gone = np.isin(fate, (LOST_IN_SUM, UNDERFLOWS))
    left, right, bottom, top = extent = (-14.0, 0.0, -40.0, -4.0)
    magnitude_map(ax, w, u, gone[shown], extent, 0.125)
    form, theme = formats.get(fmt), current()
    p = form.significand_bits
    x = np.arange(left, right + 1)
    ax.step(x, x - p, where="post", color=theme.ink, linewidth=1.2, label=r"$|u| = \frac{1}{2}\,\mathrm{ulp}(w)$")
    ax.plot(x, x - p, color=theme.ink, linewidth=1.0, linestyle=(0, (3, 2)), label=f"$|u| = |w|/{2**p}$")
    smallest = form.emin - form.fraction_bits - 1
    if smallest > bottom:
        ax.axhline(smallest, color=theme.ink, linewidth=1.0, linestyle=(0, (1, 1.5)))
        ax.text(left + 0.2, smallest - 0.5, f"below $2^{{{smallest}}}$: $u$ itself is zero", fontsize=9, va="top",
                bbox={"boxstyle": "round,pad=0.1", "fc": theme.background, "ec": "none", "alpha": 0.7})  # fmt: skip
    moving = (fate != NO_UPDATE).sum()
    lost = gone.sum() / moving
    texts = ((0.97, "changes the weight", 1 - lost, "normal"), (0.04, "lost", lost, "zero"))
    for y, text, share, series in texts:
        ax.text(0.03, y, f"{text}: {percent(share)}", transform=ax.transAxes, va="top" if y > 0.5 else "bottom",
                fontweight="bold", color=theme.series[FATE_SERIES[series]],
                bbox={"boxstyle": "round,pad=0.2", "fc": theme.background, "ec": "none", "alpha": 0.85})  # fmt: skip
    power_ticks(ax.xaxis, range(int(left), int(right) + 1, 2))
    power_ticks(ax.yaxis, range(int(bottom), int(top) + 1, 4))
    ax.set_xlabel("weight $|w|$")
    ax.set_ylabel("update $|u|$")
    ax.set_title(f"weight + update in {fmt.upper()}", pad=26)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, borderaxespad=0, columnspacing=1.2)
