"""Collectives step by step: which ranks' values every chunk of every rank's buffer contains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .scene import BLUE, GREY, ORANGE, Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, WIDTH = 32, 210  # pixels of a rank's row, and of its chunks together
PITCH = 1.25  # from one frame to the next, in widths


def add_frame(drawing: Scene, frame: np.ndarray, written: Collection[tuple[int, int]], x: float, y: float) -> None:
    """Draw the buffers at a moment: a row a rank, a cell a chunk, the fuller the more ranks' values are in its sum.

    ``frame``: int64 (ranks, chunks), bit r where rank r's value is in it. ``written``: the (rank, chunk) cells that a
    message has just come to, which are framed. A number says how many ranks are in a chunk; of a single one, which.
    """
    ranks, chunks = frame.shape
    cell = WIDTH / chunks
    for rank, chunk in np.ndindex(ranks, chunks):
        held, left, top = int(frame[rank, chunk]), x + chunk * cell, y + rank * ROW
        share, box = held.bit_count() / ranks, (left + 1.5, top + 1.5, cell - 3, ROW - 3)
        drawing.rect(*box, BLUE, fill_opacity=0.1 + 0.8 * share if held else 0, stroke=GREY, stroke_opacity=0.4,
                     class_="cell")  # fmt: skip
        if (rank, chunk) in written:
            drawing.rect(*box, stroke=ORANGE, stroke_width=2, class_="new")
        if held:
            text = names_of(held, ranks) if chunks == 1 else str(held.bit_count())
            on = {"class_": "on", "fill": "Canvas"} if share > 0.6 else {}
            drawing.text(left + cell / 2, top + ROW / 2 + 4, text, "middle", 11, **on)


def draw_frames(
    ax: Axes, frames: Sequence[np.ndarray], written: Sequence[set[tuple[int, int]]], columns: int, title: str
) -> None:
    """Draw frames side by side on axes, each as :func:`add_frame` does.

    ``frames``: at first and after every step. ``written``: the cells of every step. ``columns``: how many frames there
    is room for.
    """
    ranks = len(frames[0])
    drawing = Scene(columns * PITCH * WIDTH, ranks * ROW)
    for number, frame in enumerate(frames):
        left = number * PITCH * WIDTH
        add_frame(drawing, frame, written[number - 1] if number else (), left, 0)
        drawing.text(left + WIDTH / 2, -8, f"step {number}" if number else "before", "middle", 11, opacity=0.8)
    drawing.onto(ax, (0, 0), (WIDTH, ROW))
    ax.set(xlim=(-0.025, columns * PITCH - 0.2), ylim=(ranks + 0.1, -1.0))
    ax.set_yticks(np.arange(ranks) + 0.5, [f"rank {r}" for r in range(ranks)])
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_title(title)


def names_of(held: int, ranks: int) -> str:
    """The ranks in a sum: "0+2"."""
    return "+".join(str(r) for r in range(ranks) if held >> r & 1)
