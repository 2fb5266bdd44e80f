"""Collectives step by step: which ranks' values every chunk of every rank's buffer contains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from .style import current


def draw_frames(
    ax: Axes, frames: Sequence[np.ndarray], written: Sequence[set[tuple[int, int]]], columns: int, title: str
) -> None:
    """Draw the frames side by side: a row a rank, a cell a chunk, darker with every rank in its sum.

    ``frames``: int64 (ranks, chunks), bit r where rank r's value is in it, at first and after every step. ``written``:
    the (rank, chunk) cells that each step wrote, which are outlined. ``columns``: how many frames there is room for.
    """
    theme, (ranks, chunks) = current(), frames[0].shape
    pitch = 5.0
    colour = to_rgb(theme.series[0])
    for number, frame in enumerate(frames):
        left = number * pitch
        fresh: set[tuple[int, int]] = written[number - 1] if number else set()
        for rank, chunk in np.ndindex(ranks, chunks):
            held, width = int(frame[rank, chunk]), 4.0 / chunks
            share = held.bit_count() / ranks
            ax.add_patch(Rectangle((left + chunk * width, rank + 0.06), width * 0.96, 0.88, zorder=1,
                                   facecolor=(*colour, 0.08 + 0.8 * share if held else 0.0),
                                   edgecolor=theme.grid, linewidth=0.5))  # fmt: skip
            if (rank, chunk) in fresh:
                ax.add_patch(Rectangle((left + chunk * width, rank + 0.06), width * 0.96, 0.88, zorder=3,
                                       facecolor="none", edgecolor=theme.series[1], linewidth=1.5))  # fmt: skip
            if held:
                text = names_of(held, ranks) if chunks == 1 else str(held.bit_count())
                ax.text(left + (chunk + 0.48) * width, rank + 0.52, text, ha="center", va="center", fontsize=7.5,
                        color=theme.background if share > 0.6 else theme.ink, zorder=4)  # fmt: skip
        ax.text(left + 2, -0.25, "before" if number == 0 else f"step {number}", ha="center", va="bottom", fontsize=8,
                color=theme.muted)  # fmt: skip
    ax.set_xlim(-0.1, columns * pitch - 0.8)
    ax.set_ylim(ranks + 0.1, -1.0)
    ax.set_yticks(np.arange(ranks) + 0.5, [f"rank {r}" for r in range(ranks)])
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_title(title)


def names_of(held: int, ranks: int) -> str:
    """The ranks in a sum: "0+2"."""
    members: Sequence[int] = [r for r in range(ranks) if held >> r & 1]
    return "+".join(map(str, members))
