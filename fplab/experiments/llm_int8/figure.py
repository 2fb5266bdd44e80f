"""The experiment's figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import integers
from ...draw.style import Look, current, look, new_figure
from ...hardware.cases import Arrays
from .data import DECOMPOSED, NAMES, Params
from .planting import GAIN, outlier_dimensions
from .published import BASELINE, LEAST_MAGNITUDE, POSITIONS_67B, SIZES, TABLE1

SHORT = {
    "absmax": "absmax",
    "zeropoint": "zero-point",
    "rowwise": "row-wise",
    "vectorwise": "vector-wise",
    "zeropoint_vectorwise": "zero-point vector-wise",
    "rowwise_decomposed": "row-wise + FP16 outliers",
    "llm_int8": "LLM.int8()",
    "zeropoint_llm_int8": "zero-point LLM.int8()",
}
DRAWN = dict(zip(SHORT, (4, 6, 1, 0, 2, 5, 3, 7), strict=True))  # series numbers: the two of the story stand out


def draw(arrays: Arrays, params: Params) -> Figure:
    """Features, errors and predictions by outlier dimensions; threshold, the paper's table and INT4 weights."""
    figure = new_figure(14, 14)
    grid = figure.add_gridspec(3, 1, height_ratios=[0.85, 1.15, 1.0])
    rows = [figure.add_subfigure(grid[i]) for i in range(3)]
    rows[0].suptitle(caption(arrays, params), x=0.01, ha="left", fontsize=10, color=current().muted)
    features(rows[0].subplots(), arrays, params)
    error, divergence = rows[1].subplots(1, 2)
    against_outliers(error, arrays | {"errors": 100 * arrays["errors"]}, "errors", "relative error (%)")
    error.set_yticks([0.3, 0.5, 1, 2, 5], ["0.3", "0.5", "1", "2", "5"])
    error.set_title("Error of the INT8 products")
    against_outliers(divergence, arrays, "divergences", "divergence from FP32's predictions (nats)")
    divergence.set_title("Predictions of the model")
    rows[1].legend(*error.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    threshold, table, four = rows[2].subplots(1, 3, gridspec_kw={"wspace": 0.1})
    by_threshold(threshold, arrays, params)
    published(table, arrays["published"])
    int4(four, arrays)
    return figure


def caption(arrays: Arrays, params: Params) -> str:
    """One line on where the numbers come from."""
    magnitude = np.abs(arrays["inputs"])[..., outlier_dimensions(params.width, params.planted)]
    share = (magnitude >= LEAST_MAGNITUDE).mean()
    return (
        f"A character transformer trained here: {params.layers} blocks of width {params.width}. Outliers are planted: "
        f"norm outputs × {GAIN:g}, the weights that read them / {GAIN:g}; in FP32 the same bits.\n"
        f"{share:.0%} of their values are 6 or more; in the paper's model of 6.7 billion parameters outliers appear in "
        f"{POSITIONS_67B:.0%} of the positions."
    )


def features(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The largest magnitude of each feature dimension, in each layer that reads a norm."""
    theme = current()
    magnitude = np.abs(arrays["inputs"]).max(axis=1)
    at = outlier_dimensions(params.width, params.planted)
    every = np.arange(params.width)
    for layer, row in enumerate(magnitude):
        offset = (layer - (len(magnitude) - 1) / 2) * 0.2
        colours = [theme.series[1] if i in at else theme.series[0] for i in every]
        ax.vlines(every + offset, 0.5, row, colors=colours, linewidth=1.8)
    ax.axhline(LEAST_MAGNITUDE, color=theme.ink, linewidth=1.0, linestyle=(0, (4, 2)))
    ax.annotate("threshold 6: from here a dimension goes to FP16", (params.width - 0.4, LEAST_MAGNITUDE), (0, 3),
                textcoords="offset points", ha="right", va="bottom", fontsize=9,
                bbox={"boxstyle": "round,pad=0.15", "fc": theme.background, "ec": "none"})  # fmt: skip
    ax.set_yscale("log", base=2)
    ax.set_ylim(0.5, 2 ** np.ceil(np.log2(magnitude.max()) + 0.3))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xlim(-0.7, params.width - 0.3)
    ax.set_xlabel("feature dimension (bars side by side: the layers)")
    ax.set_ylabel("largest magnitude")
    ax.set_title(f"Inputs of the products that read a layer norm, {params.planted} outlier dimensions planted")
    ax.grid(visible=False, axis="x")


def style(name: str) -> Look:
    """The look of a method."""
    return look(DRAWN[name])


def against_outliers(ax: Axes, arrays: Arrays, name: str, label: str) -> None:
    """One quantity by method against the number of outlier dimensions."""
    for i, method in enumerate(NAMES):
        plain = not integers.METHODS[i].decompose
        ax.plot(arrays["dimensions"], arrays[name][i], **style(method).marked, label=SHORT[method],
                linewidth=1.3 if plain else 2.0, markersize=5 if plain else 6, clip_on=False)  # fmt: skip
    ax.set_yscale("log")
    ax.yaxis.set_minor_formatter("")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("outlier dimensions")
    ax.set_ylabel(label)


def by_threshold(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Errors of the methods that have a threshold, and the share of dimensions in FP16, against it."""
    theme, x = current(), np.arange(len(arrays["thresholds"]))
    apart = 100 * (1 - arrays["int8_shares"])
    ax.bar(x, apart, width=0.9, color=theme.grid, edgecolor=theme.background)
    ax.set_ylim(0, 105)
    ax.set_ylabel("dimensions in FP16 (%), bars")
    ax.grid(visible=False)
    twin = ax.twinx()
    twin.spines["right"].set_visible(True)
    for name, errors in zip(DECOMPOSED, arrays["threshold_errors"], strict=True):
        twin.plot(x, 100 * errors, **style(name).marked, linewidth=2.0, clip_on=False)
    twin.set_yscale("log")
    twin.yaxis.set_major_formatter("{x:g}")
    twin.set_ylabel("error of the products (%), lines")
    twin.grid(visible=False)
    ax.set_xticks(x, [f"{t:g}" for t in arrays["thresholds"]])
    six = int(np.flatnonzero(arrays["thresholds"] == LEAST_MAGNITUDE)[0])
    ax.axvline(six, color=theme.ink, linewidth=1.0, linestyle=(0, (4, 2)), ymax=0.88)
    ax.text(six, 95, "the paper's", ha="center", va="bottom", fontsize=9)
    ax.set_xlabel("threshold")
    ax.set_title(f"By threshold ({params.planted} outlier dimensions)")


def published(ax: Axes, table: np.ndarray) -> None:
    """The paper's Table 1 (method, size): how much perplexity a method adds, by size of the model."""
    lines, x = dict(zip(TABLE1, table, strict=True)), np.arange(len(SIZES))
    for name in NAMES:
        more = 100 * (lines[name] / lines[BASELINE] - 1)
        plain = not integers.METHODS[NAMES.index(name)].decompose
        ax.plot(x, more, **style(name).marked, linewidth=1.3 if plain else 2.0, clip_on=False)
    ax.set_yscale("symlog", linthresh=1)
    ax.set_yticks([-1, 0, 1, 10, 100], ["−1", "0", "1", "10", "100"])
    ax.set_ylim(-1.2, 400)
    ax.axhline(0, color=current().ink, linewidth=0.8)
    ax.set_xticks(x, SIZES)
    ax.set_xlabel("parameters")
    ax.set_ylabel("perplexity above FP32's (%)")
    ax.set_title("The paper's Table 1, as published")


def int4(ax: Axes, arrays: Arrays) -> None:
    """Weights in INT4: the error of products, against the bits that a weight takes with its share of a scale."""
    bits, moved = 4 + 16 / arrays["groups"], 100 * arrays["int4_errors"]
    ax.plot(bits, moved, **look(2).marked, clip_on=False)
    for x, y, group in zip(bits, moved, arrays["groups"], strict=True):
        ax.annotate(f"{group}", (x, y), (0, 6), textcoords="offset points", fontsize=9, ha="center")
    eight = 100 * float(arrays["errors"][NAMES.index("vectorwise"), 0])
    ax.axhline(eight, **style("vectorwise").line, linewidth=1.2)
    ax.text(1, eight, "vector-wise INT8, no outliers", transform=ax.get_yaxis_transform(), ha="right", va="bottom",
            fontsize=9, color=style("vectorwise").color)  # fmt: skip
    ax.set_yscale("log")
    ax.set_ylim(eight / 3, 3 * moved.max())
    ax.set_xlabel("bits a weight, an FP16 scale a group counted")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_ylabel("error of the products (%)")
    ax.set_title("Weight-only INT4, by size of a group")
