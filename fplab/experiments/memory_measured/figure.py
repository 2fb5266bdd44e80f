"""The experiment's figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...draw.memory import fill, kind_patches, plate, stacked_bytes
from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from ...memory.published import TORCHTITAN
from ...memory.stages import KINDS
from ...memory.units import GIB
from .checks import ACTIVATIONS, WEIGHTS
from .measure import HELD, MODELS, RECIPES, SHARED, TERMS, Params

EXTRA_LOOKS = {"statistics": 0, "causal masks": 3, "weight casts": 1, "FP32 values": 2, "copies": 5, "loss": 6}
HATCHES = {
    "statistics": "",
    "causal masks": "\\\\\\\\",
    "weight casts": "",
    "FP32 values": "////",
    "copies": "....",
    "loss": "",
}


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 14.5)
    grid = figure.add_gridspec(3, 1, height_ratios=[1.3, 0.85, 0.7])
    rows = [figure.add_subfigure(grid[i]) for i in range(3)]
    c = params.model
    rows[0].suptitle(
        f"One training step, every byte counted: a transformer of {c.parameters:,} parameters "
        f"({c.layers} layers, width {c.hidden}), {params.batch} × {c.sequence} tokens",
        x=0.01, ha="left", fontsize=10, color=current().muted,
    )  # fmt: skip
    left, right = rows[0].subplots(1, 2, width_ratios=[1.5, 1], sharey=True)
    recipes(left, arrays)
    extras(right, arrays)
    rows[0].legend(handles=legend(), loc="outside lower center", ncols=8)
    rows[1].suptitle("Shares of a step's memory: it is the batch that decides", x=0.01, ha="left", fontsize=11,
                     fontweight="bold")  # fmt: skip
    for i, ax in enumerate(rows[1].subplots(1, 3, sharey=True)):
        shares(ax, arrays, i)
    published(rows[2].subplots(), arrays)
    return figure


def legend() -> list[Any]:
    """Kinds, and the mark of the estimate."""
    mark = Line2D([], [], color=current().ink, marker="|", markersize=11, markeredgewidth=2, linestyle="none")
    mark.set_label("peak as estimated")
    return [*kind_patches(("parameters", "gradients", "master", "states", "activations", "temporary")), mark]


def recipes(ax: Axes, arrays: Arrays) -> None:
    """Measured bytes of every recipe, and where the estimate ends."""
    bars = {}
    for i, recipe in enumerate(RECIPES):
        one = dict(zip(HELD, arrays["held"][i].tolist(), strict=True))
        one["activations"] = int(arrays["activations"][i])
        one["temporary"] = max(0, int(arrays["peak"][i]) - sum(one.values()))
        bars[recipe.name] = one
    stacked_bytes(ax, bars, total=False)
    whole = (arrays["held"].sum(axis=1) + arrays["traced"] + arrays["temporary"]) / 1e6
    ax.plot(whole, range(len(RECIPES)), color=current().ink, marker="|", markersize=17, markeredgewidth=2,
            linestyle="none", zorder=4)  # fmt: skip
    for row, peak in enumerate(arrays["peak"].tolist()):
        end = max(peak / 1e6, whole[row])
        ax.annotate(f"{peak / 1e6:.3g} MB", (end, row), (7, 0), textcoords="offset points", va="center", fontsize=9,
                    fontweight="bold")  # fmt: skip
    ax.set_title("Peak of a step by kind, measured")
    ax.set_xlabel("MB")


def extras(ax: Axes, arrays: Arrays) -> None:
    """What autograd saves beyond the formula, as a share of it."""
    theme, formula = current(), arrays["terms"][:, 0]
    left = np.zeros(len(RECIPES))
    rows = np.arange(len(RECIPES))
    for k, name in enumerate(TERMS[1:], start=1):
        width = 100 * arrays["terms"][:, k] / formula
        if width.max() < 0.05:  # the loss's four bytes
            continue
        ax.barh(rows, width, left=left, height=0.68, color=theme.series[EXTRA_LOOKS[name]], alpha=0.75,
                hatch=HATCHES[name], edgecolor=theme.background, linewidth=0.8, label=name)  # fmt: skip
        left += width
    for row, end in enumerate(left):
        ax.annotate(f"+{end:.1f}%", (end, row), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    ax.set_xlim(0, 1.2 * left.max())
    ax.set_xlabel("of the formula (%)")
    ax.set_title("Activations beyond Korthikanti's formula")
    ax.tick_params(axis="y", labelleft=False)
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right")


def shares(ax: Axes, arrays: Arrays, model: int) -> None:
    """The kinds' shares against the batch, with the ranges that are often quoted."""
    theme, sizes = current(), arrays["batches"][model]
    part = 100 * arrays["shares"][model] / arrays["shares"][model].sum(axis=1, keepdims=True)
    bottom, x = np.zeros(len(sizes)), np.arange(len(sizes))
    for k, kind in enumerate(SHARED):
        ax.bar(x, part[:, k], bottom=bottom, width=0.82, **fill(kind))
        for at, (height, start) in enumerate(zip(part[:, k], bottom, strict=True)):
            if height > 7.5:
                ax.text(at, start + height / 2, f"{height:.0f}", ha="center", va="center", fontsize=8.5, bbox=plate())
        bottom += part[:, k]
    quoted = (part[:, 0] >= 100 * WEIGHTS[0]) & (part[:, 0] <= 100 * WEIGHTS[1])
    quoted &= (part[:, 4] >= 100 * ACTIVATIONS[0] - 0.5) & (part[:, 4] <= 100 * ACTIVATIONS[1] + 0.5)
    if quoted.any():
        first, last = (float(at) for at in np.flatnonzero(quoted)[[0, -1]])
        ax.plot([first - 0.4, last + 0.4], [102, 102], color=theme.ink, linewidth=1.5)
        ax.annotate("as often quoted", ((first + last) / 2, 102), (0, 3), textcoords="offset points", ha="center",
                    fontsize=9, fontweight="bold")  # fmt: skip
    ax.set_xticks(x, [str(size) for size in sizes])
    ax.set_ylim(0, 111)
    ax.set_yticks(range(0, 101, 20))
    ax.grid(visible=False)
    ax.set_xlabel("images" if model == 0 else "sequences")
    ax.set_ylabel("share (%)" if model == 0 else "")
    ax.set_title(MODELS[model], fontsize=10, pad=8)


def published(ax: Axes, arrays: Arrays) -> None:
    """torchtitan's runs: the estimate by kind, and the memory that was reserved.

    Runs that differ in the degree of context parallelism alone are estimated alike; the first and the last are drawn.
    """
    drawn = [i for i, run in enumerate(TORCHTITAN) if "CP 2" not in run.name and "CP 4" not in run.name]
    bars = {
        TORCHTITAN[i].name: dict(zip(KINDS[:6], [size * 10**9 // GIB for size in row], strict=True))  # a unit is a GiB
        for i, row in zip(drawn, arrays["published"][drawn].tolist(), strict=True)
    }
    stacked_bytes(ax, bars, total=False)
    theme = current()
    for row, i in enumerate(drawn):
        peak, ours = arrays["published_gib"][i], arrays["published"][i].sum() / GIB
        ax.annotate("", (peak, row), (ours, row), arrowprops={"arrowstyle": "-", "color": theme.muted, "lw": 1.2})
        ax.plot(peak, row, color=look(4).color, marker="D", markersize=7, linestyle="none",
                label="reserved memory, as published" if row == 0 else None)  # fmt: skip
        ax.annotate(f"{peak:g}   (estimate {ours:.1f}, {ours / peak:.0%})", (peak, row), (9, 0),
                    textcoords="offset points", va="center", fontsize=9)  # fmt: skip
    ax.set_xlim(0, 1.3 * arrays["published_gib"].max())
    ax.set_xlabel("GiB on one H100")
    ax.set_title(
        "Published runs of Llama 3.1 (torchtitan): the memory that was reserved, and the estimate of what is held"
    )
    kinds = kind_patches(("parameters", "gradients", "states", "activations", "temporary"))
    ax.legend(handles=[*kinds, *ax.get_lines()[:1]], loc="upper center", bbox_to_anchor=(0.45, -0.14), ncols=6)
