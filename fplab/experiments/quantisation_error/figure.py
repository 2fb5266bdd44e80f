"""The experiment's figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ... import formats
from ...codebooks import BOOKS
from ...draw.codebooks import Source, number_lines
from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from .data import BLOCKS, KINDS, SIGNED, STATE_PAIRS, Params, book_of

LOOKS = {"dynamic": 0, "linear": 1, "tree": 2, "quantile": 3, "dynamic unsigned": 5, "linear unsigned": 1}
DATA = {
    "normal": "normal data",
    "heavy": "heavy tails",
    "weight": "weights",
    "gradient": "gradients",
    "m": "first moment",
    "v": "second moment",
}


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 12.5)
    grid = figure.add_gridspec(3, 1, height_ratios=[1.15, 1, 1])
    rows = [figure.add_subfigure(grid[i]) for i in range(3)]
    left, right = rows[0].subplots(1, 2, sharey=True)
    lines(left, right, arrays)
    for ax, metric, kind in zip(rows[1].subplots(1, 3), (0, 1, 1), ("normal", "normal", "heavy"), strict=True):
        by_block(ax, arrays, kind, metric)
    handles, names = ax.get_legend_handles_labels()
    rows[1].legend(handles, names, loc="outside lower center", ncols=4)
    data, update, reach = rows[2].subplots(1, 3, width_ratios=[1.15, 0.9, 1.15])
    by_data(data, arrays)
    adam(update, arrays)
    outlier(reach, arrays, params)
    return figure


def lines(linear: Axes, logarithmic: Axes, arrays: Arrays) -> None:
    """Every codebook beside floats of 8 bits."""
    sources: dict[str, Source] = {
        "linear": BOOKS["linear"],
        "dynamic": BOOKS["dynamic"],
        "dynamic,\nunsigned": BOOKS["dynamic unsigned"],
        "tree": BOOKS["tree"],
        "quantile\n(normal data)": book_of("quantile", arrays["normal"], 2048),
        "NF4": BOOKS["NF4"],
        "E4M3 / 448": formats.get("e4m3"),
        "E5M2 / 57344": formats.get("e5m2"),
    }
    looks = [1, 0, 5, 2, 3, 7, 6, 6]
    number_lines(linear, sources, looks)
    number_lines(logarithmic, sources, looks, logarithmic=True)
    linear.set_title("Codebooks: up to 256 values in [-1, 1]")
    logarithmic.set_title("The positive ones, on a logarithmic axis")
    linear.set_xlabel("value, in units of the block's maximum")
    logarithmic.set_xlabel("value, in units of the block's maximum")


def plain_log(ax: Axes) -> None:
    """A logarithmic y axis with ticks at 1, 2 and 5 of each decade, written as plain numbers."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())


def by_block(ax: Axes, arrays: Arrays, kind: str, metric: int) -> None:
    """An error against the block size, for each codebook."""
    places = [*range(len(BLOCKS)), len(BLOCKS) + 0.6]
    for b, name in enumerate(SIGNED):
        values = arrays["errors"][KINDS.index(kind), b, :, metric] * (100 if metric else 1)
        style = look(LOOKS[name])
        ax.plot(places[:-1], values[:-1], **style.marked, label=name)
        ax.plot(places[-2:], values[-2:], color=style.color, linestyle=":", marker=style.marker)
    ax.set_xticks(places, labels=[str(b) for b in BLOCKS] + ["all"])
    ax.set_xlim(-0.2, places[-1] + 0.1)
    if kind == "heavy":
        plain_log(ax)
    else:
        ax.set_ylim(0, None)
    ax.set_xlabel("block size")
    ax.set_ylabel("mean relative error (%)" if metric else "mean absolute error")
    ax.set_title(f"{DATA[kind].capitalize()}: {'relative' if metric else 'absolute'} error")


def by_data(ax: Axes, arrays: Arrays) -> None:
    """The mean relative error of each kind of real data: in blocks of 2048, and with one scale."""
    kinds = KINDS[2:]
    blocks = (BLOCKS.index(2048), len(BLOCKS))
    for b, name in enumerate(SIGNED):
        style = look(LOOKS[name])
        for place, kind in enumerate(kinds):
            values = 100 * arrays["errors"][KINDS.index(kind), b, :, 1]
            x = place + 0.17 * (b - 1.5)
            ax.plot([x, x], values[list(blocks)], color=style.color, linewidth=1.2)
            ax.plot([x], values[blocks[:1]], color=style.color, marker=style.marker, linestyle="none")
            ax.plot([x], values[blocks[1:]], color=style.color, marker=style.marker, linestyle="none",
                    markerfacecolor=current().background)  # fmt: skip
    plain_log(ax)
    ax.set_xticks(range(len(kinds)), labels=[DATA[k].replace(" ", "\n") for k in kinds])
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("mean relative error (%)")
    ax.set_title("A transformer's tensors")
    texts = {"dynamic": "dynamic (second moment: unsigned)", "tree": "tree (second moment: dynamic, signed)"}
    handles = []
    for name in SIGNED:
        style = look(LOOKS[name])
        handles += ax.plot(
            [], [], color=style.color, marker=style.marker, linestyle="none", label=texts.get(name, name)
        )
    ax.legend(handles=handles, loc="upper left", title="filled: blocks of 2048; open: one scale", title_fontsize=9,
              fontsize=8)  # fmt: skip
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * 15)


def adam(ax: Axes, arrays: Arrays) -> None:
    """The median relative error of Adam's update with both states quantised."""
    places = [*range(len(BLOCKS)), len(BLOCKS) + 0.6]
    for i, names in enumerate(STATE_PAIRS):
        style = look((1, 3, 5, 0)[i])
        values = 100 * arrays["update_errors"][i, :, 1]
        text = "dynamic, v signed" if names == ("dynamic", "dynamic") else names[0]
        ax.plot(places[:-1], values[:-1], **style.marked, label=text)
        ax.plot(places[-2:], values[-2:], color=style.color, linestyle=":", marker=style.marker)
    plain_log(ax)
    ax.set_xticks(places, labels=[str(b) for b in BLOCKS] + ["all"])
    ax.set_xlim(-0.2, places[-1] + 0.1)
    ax.set_xlabel("block size")
    ax.set_ylabel("median relative error (%)")
    ax.set_ylim(None, ax.get_ylim()[1] * 5)
    ax.set_title(r"Adam's update $m/(\sqrt{v} + \epsilon)$")
    ax.legend(loc="upper left", ncols=2, fontsize=8)


def outlier(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The error along an array with one outlier, by block size."""
    found = arrays["outlier"][0]
    x = np.arange(found.shape[2] + 1) / 8
    for i, (name, style) in enumerate((("blocks of 256", 5), ("blocks of 2048", 0), ("one scale", 1))):
        chosen = look(style)
        ax.stairs(
            found[i, 1], x, color=chosen.color, linestyle=chosen.linestyle, linewidth=1.5, label=name, baseline=None
        )
    ax.stairs(found[1, 0], x, color=current().muted, linewidth=1, linestyle=":", label="blocks of 2048, no outlier",
              baseline=None)  # fmt: skip
    plain_log(ax)
    ax.set_xlim(0, x[-1])
    ax.set_ylim(None, found.max() * 6)
    ax.set_xlabel("place in the array, in blocks of 2048")
    ax.set_ylabel("mean absolute error of 256 elements")
    ax.set_title(f"One element of {params.outlier:g} σ, in block 20")
    ax.legend(loc="upper right", ncols=2, fontsize=8)
