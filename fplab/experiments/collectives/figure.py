"""The experiment's figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.animation import Moving, animation
from ...draw.collectives import draw_frames
from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from ...parallel import collectives as c
from .data import CURVES, ON_GRADIENTS, Params, loss_scales, rank_counts
from .skipping import POLICIES

RANKS = 4


def draw(arrays: Arrays, params: Params) -> Figure:
    """Steps above, errors and consequences below."""
    figure = new_figure(13, 16.5)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.0, 1.15])
    top, bottom = parts
    top.suptitle(
        "What each collective does, step by step, on 4 ranks: the numbers say how many ranks' values are in a chunk "
        "(or which); framed: just written",
        x=0.01, ha="left", fontsize=10, color=current().muted,
    )  # fmt: skip
    steps(top)
    errors, real, average, apart = bottom.subplots(2, 2).ravel()
    simulated(errors, arrays, params)
    on_gradients(real, arrays, params)
    averaging(average, arrays, params)
    parting(apart, arrays)
    return figure


def shown() -> tuple[tuple[tuple[c.Collective, np.ndarray, int, str], ...], ...]:
    """The five collectives, and recursive doubling, in rows: what is there at first, columns of frames, titles."""
    bits = 1 << np.arange(RANKS)
    one, every = bits[:, None], np.repeat(bits[:, None], RANKS, axis=1)
    own = np.zeros((RANKS, RANKS), np.int64)
    for chunk in range(RANKS):
        own[(chunk - 1) % RANKS, chunk] = 1 << chunk
    return (
        ((c.broadcast(RANKS), np.array([[1], [0], [0], [0]]), 3, "broadcast: one to all"),
         (c.reduce(RANKS), one, 3, "reduce: the sum to one (tree)"),
         (c.all_reduce(RANKS, "doubling"), one, 3, "all-reduce by doubling")),
        ((c.reduce_scatter(RANKS), every, 4, "reduce-scatter: a piece of the sum to each (ring)"),
         (c.all_gather(RANKS), own, 4, "all-gather: everybody's piece to all (ring)")),
        ((c.all_reduce(RANKS), every, 7, "all-reduce by a ring: reduce-scatter, then all-gather"),),
    )  # fmt: skip


def moving() -> str:
    """The same as one animated SVG file."""
    panels = []
    for collective, given, _, title in (one for line in shown() for one in line):
        messages = [[(m.source, m.target, m.chunk) for m in step] for step in collective.steps]
        panels.append(Moving(title.partition(":")[0], c.contributions(collective, given), messages))
    return animation(panels)


def steps(figure: Any) -> None:
    """All of them, frame by frame."""
    rows: Any = figure.subfigures(3, 1)
    for row, line in zip(rows, shown(), strict=True):
        axes = np.atleast_1d(row.subplots(1, len(line)))
        for ax, (collective, given, columns, title) in zip(axes, line, strict=True):
            written = [{(m.target, m.chunk) for m in step} for step in collective.steps]
            draw_frames(ax, c.contributions(collective, given), written, columns, title)


def simulated(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Error against ranks."""
    for i, curve in enumerate(CURVES):
        shown = np.where(arrays["errors"][i] > 0, arrays["errors"][i], np.nan)
        hollow: dict[str, Any] = {"markerfacecolor": current().background} if i >= 8 else {}
        ax.plot(params.ranks, shown, **look(i).marked, **hollow, markersize=4, linewidth=1.4, label=curve.name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(top=1e3)
    ax.set_xlabel("ranks")
    ax.set_ylabel("relative error of the sum")
    ax.set_title("Values with a common part, simulated")
    ax.legend(ncols=2, loc="upper left", fontsize=8)


def on_gradients(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The same on real gradients."""
    for i, curve in enumerate(ON_GRADIENTS):
        ax.plot(rank_counts(params), arrays["gradient_errors"][0][i], **look(i).marked, markersize=4, linewidth=1.4,
                label=curve.name)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(top=200)
    ax.set_xlabel(f"ranks that share {params.shares * params.images} images")
    ax.set_ylabel("relative error of the sum")
    ax.set_title("Real gradients of a perceptron on digits")
    ax.legend(ncols=2, loc="upper left", fontsize=8)


def averaging(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Infinite and zero sums against the loss scale."""
    n = arrays["gradients"][0].shape[1]
    x = list(loss_scales(params))
    for way, name in enumerate(("divided before the sum", "divided after it")):
        for fate, what in enumerate(("infinite", "zero")):
            style = look(fate)
            ax.plot(x, 100 * arrays["fates"][0][way, :, fate] / n, color=style.color, marker=style.marker, markersize=4,
                    linestyle="-" if way else (0, (3, 2)), label=f"{what}, {name}")  # fmt: skip
    ax.set_xticks(x[::4], [f"$2^{{{e}}}$" for e in x[::4]])
    ax.set_xlabel("loss scale")
    ax.set_ylabel("of all gradients (%)")
    ax.set_title(f"FP16 ring over {params.shares} ranks: average before or after?")
    ax.legend(loc="upper center", fontsize=8)


def parting(ax: Axes, arrays: Arrays) -> None:
    """How far apart the replicas are."""
    for i, policy in enumerate(POLICIES):
        ax.plot(np.arange(1, arrays["apart"][0].shape[1] + 1), arrays["apart"][0][i], **look(i).line,
                label=f"a rank that overflows skips {policy}" if i else "all ranks skip together")  # fmt: skip
    ax.set_xlabel("training step")
    ax.set_ylabel("largest difference between replicas' weights")
    ax.set_title("Four replicas under loss scaling")
    ax.legend(loc="upper left")
