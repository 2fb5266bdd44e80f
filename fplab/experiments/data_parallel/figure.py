"""The experiment's figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.memory import kind_patches, stacked_bytes
from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from .data import KINDS, Params


def draw(arrays: Arrays, params: Params) -> Figure:
    """Bytes on the left, messages and bits on the right."""
    figure = new_figure(13, 2.8 + 0.34 * len(params.strategies) * params.ranks)
    axes: Any = figure.subplots(1, 3, width_ratios=[1.6, 1, 1])
    held, sent, bits = axes
    bars = {
        f"{name}, rank {r}": dict(zip(KINDS, arrays["held"][s, r].tolist(), strict=True))
        for s, name in enumerate(params.strategies)
        for r in range(params.ranks)
    }
    stacked_bytes(held, bars)
    held.set_title("What every process holds")
    figure.legend(handles=kind_patches(KINDS), loc="outside lower left", ncols=3)
    messages(sent, arrays, params)
    differences(bits, arrays, params)
    return figure


def messages(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Bytes of the messages of a step; an all-reduce is a reduce-scatter and an all-gather of its message."""
    y, once, again = range(len(params.strategies)), arrays["sent"] / 1e3, arrays["reduced"] / 1e3
    color = look(0).color
    ax.barh(y, once, height=0.6, color=color, alpha=0.8, label="as rank 0 calls them")
    bars = ax.barh(
        y, again, height=0.6, left=once, color=color, alpha=0.35, label="again: the second half of an all-reduce"
    )
    ax.bar_label(bars, [f"{total:.1f}" for total in once + again], padding=4, fontsize=9)
    rows(ax, params)
    ax.set_xlim(0, 1.2 * (once + again).max())
    ax.set_xlabel("kB a step")
    ax.set_title("Messages")
    ax.legend(loc="lower right", facecolor=current().background, fontsize=8.5)


def differences(ax: Axes, arrays: Arrays, params: Params) -> None:
    """How many weights differ from those of one process."""
    y, total = np.arange(len(params.strategies)), int(arrays["weights"])
    series = (("whole", "whole batch at once"), ("same_order", "same order of additions"))
    for i, (name, label) in enumerate(series):
        share = 100 * arrays[name] / total
        bars = ax.barh(y + 0.3 * i - 0.15, share, height=0.28, color=look(1 - i).color, label=label)
        ax.bar_label(bars, [f"{n:,}" if n else "0: every bit" for n in arrays[name]], padding=4, fontsize=9)
    rows(ax, params)
    ax.tick_params(labelleft=False)
    ax.set_xlim(0, 1.6 * max(1.0, 100 * arrays["whole"].max() / total))
    ax.set_xlabel(f"weights that differ, of {total:,} (%)")
    ax.set_title("Bits against one process")
    ax.legend(loc="lower right", facecolor=current().background, fontsize=8.5)


def rows(ax: Axes, params: Params) -> None:
    """A row a strategy."""
    ax.set_yticks(range(len(params.strategies)), params.strategies)
    ax.set_ylim(len(params.strategies) + 0.3, -0.6)
    ax.grid(axis="y", visible=False)
