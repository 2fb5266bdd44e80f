"""The experiment's figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from .checks import sqrt_segment
from .steps import Params, peak_bytes, saved_bytes, shown

NAMES = {"none": "nothing again", "selective": "attention's core again", "segments of 1": "every layer by itself"}


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 9)
    grid = figure.add_gridspec(2, 1)
    top, bottom = (figure.add_subfigure(grid[i]) for i in range(2))
    c = params.model
    top.suptitle(
        f"Forward and backward pass of a transformer: {c.layers} layers of width {c.hidden}, "
        f"{params.batch} × {c.sequence} tokens, FP32, every byte counted",
        x=0.01, ha="left", fontsize=10, color=current().muted,
    )  # fmt: skip
    through_a_step(top.subplots(), arrays, params)
    left, middle, right = bottom.subplots(1, 3)
    by_segment(left, arrays, params)
    by_depth(middle, params)
    work_against_memory(right, arrays, params)
    return figure


def megabytes(axis: Axis) -> None:
    """Plain numbers, 1, 2 and 5 of each decade, on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def through_a_step(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Bytes alive beside parameters and gradients, operation by operation."""
    for i, way in enumerate(shown(params)):
        history = arrays[f"history: {way}"] / 1e6
        x = np.linspace(0, 1, len(history))
        style = look(i)
        ax.plot(x, history, color=style.color, linewidth=1.4, label=NAMES.get(way, way + " layers"))
        at = int(history.argmax())
        ax.annotate(f"{history[at]:.2f} MB", (x[at], history[at]), (-7, 0), textcoords="offset points", ha="right",
                    fontsize=9, fontweight="bold", color=style.color)  # fmt: skip
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.1 * max(arrays[f"history: {way}"].max() for way in shown(params)) / 1e6)
    ax.set_xticks([0, 1], ["the forward pass begins", "the backward pass ends"])
    first, last = ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    ax.set_ylabel("activations and temporaries (MB)")
    ax.set_title("Memory through a step: a saw tooth for each segment that runs again")
    ax.legend(loc="upper left")


def by_segment(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The peak by segment size: formula as lines, measured as marks."""
    sizes = np.array(params.segments)
    for i, (name, function) in enumerate((("peak", peak_bytes), ("saved", saved_bytes))):
        style = look(i)
        formula = [function(params, f"segments of {k}", 4) / 1e6 for k in params.segments]
        ax.plot(
            sizes, formula, **style.line, linewidth=1.2, label=f"{'after the forward pass' if i else 'peak'}, formula"
        )
        ax.plot(sizes, arrays[name][0, 2:] / 1e6, color=style.color, marker=style.marker, linestyle="none",
                label="measured")  # fmt: skip
    ax.axhline(arrays["peak"][0, 0] / 1e6, color=current().muted, linewidth=1, linestyle=(0, (3, 2)))
    ax.annotate("peak, nothing again", (sizes[0], arrays["peak"][0, 0] / 1e6), (0, -11), textcoords="offset points",
                fontsize=9, color=current().muted)  # fmt: skip
    ax.axvline(sqrt_segment(params), color=current().grid, linewidth=5, zorder=0)
    ax.annotate(r"$\sqrt{L}$", (sqrt_segment(params), 0), (6, 6), xycoords=ax.get_xaxis_transform(),
                textcoords="offset points", fontsize=10)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sizes, [str(k) for k in sizes])
    ax.set_xlabel("layers of a segment")
    ax.set_ylabel("MB")
    ax.set_title("Bytes by segment size")
    megabytes(ax.yaxis)
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.4), fontsize=8)


def by_depth(ax: Axes, params: Params) -> None:
    """The formula for deeper networks of the same layer: one line for each segment size."""
    depths = [2**i for i in range(3, 11)]
    for i, size in enumerate((1, 2, 4, 8)):
        deep = [Params(layers=d, batch=params.batch) for d in depths]
        peaks = [peak_bytes(p, f"segments of {size}", 4) / 1e6 for p in deep]
        ax.plot(depths, peaks, **look(i).line, label=f"segments of {size}")
    sqrt = [peak_bytes(p, f"segments of {sqrt_segment(p)}", 4) / 1e6 for p in deep]
    ax.plot(depths, sqrt, color=current().ink, linewidth=1.2, linestyle=(0, (1, 1.5)), label=r"segments of $\sqrt{L}$")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(depths, [str(d) for d in depths])
    ax.set_xlabel("layers of the network, L")
    ax.set_ylabel("peak by the formula (MB)")
    megabytes(ax.yaxis)
    ax.set_title("Longer segments pay in deep networks")
    ax.legend(loc="upper left", fontsize=8)


def work_against_memory(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Each way's operations, as a multiple of the plain one's, against its peak."""
    theme, peak, work = current(), arrays["peak"][0] / 1e6, arrays["work"] / arrays["work"][0]
    for i, way in enumerate(params.ways):
        style = look(0 if way.startswith("segments") else 1)
        ax.plot(peak[i], work[i], color=style.color, marker=style.marker, linestyle="none", markersize=7)
        segment = way.startswith("segments")
        ax.annotate(way.split()[-1] if segment else NAMES[way], (peak[i], work[i]), (9 if segment else -8, 0),
                    textcoords="offset points", fontsize=8.5, ha="left" if segment else "right", va="center",
                    color=style.color)  # fmt: skip
    ax.axhline(4 / 3, color=theme.muted, linewidth=1, linestyle=(0, (3, 2)), label="4/3: one more forward pass")
    ax.set_xlim(0, 1.12 * peak.max())
    ax.set_ylim(0.95, 1.45)
    ax.set_xlabel("peak (MB)")
    ax.set_ylabel("operations of products, of the plain step")
    ax.legend(loc="upper left", fontsize=8.5)
    ax.set_title("Work against memory (numbers: segment)")
