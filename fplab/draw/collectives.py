"""Collectives step by step: which ranks' values every chunk of every rank's buffer contains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..words import say
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
        bits, left, top = int(frame[rank, chunk]), x + chunk * cell, y + rank * ROW
        share, box = bits.bit_count() / ranks, (left + 1.5, top + 1.5, cell - 3, ROW - 3)
        drawing.rect(*box, BLUE, fill_opacity=0.1 + 0.8 * share if bits else 0, stroke=GREY, stroke_opacity=0.4,
                     class_="cell")  # fmt: skip
        if (rank, chunk) in written:
            drawing.rect(*box, stroke=ORANGE, stroke_width=2, class_="new")
        if bits:
            text = names_of(bits, ranks) if chunks == 1 else str(bits.bit_count())
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


def names_of(bits: int, ranks: int) -> str:
    """The ranks in a sum: "0+2"."""
    return "+".join(str(r) for r in range(ranks) if bits >> r & 1)


HEIGHT, TALL = 34, 300  # pixels of a rank's row in a step, and of the buffers' width


def step_scene(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]], shares: Sequence[np.ndarray],
               messages: Sequence[tuple[int, int, int, bool]], heads: tuple[str, str]) -> Scene:  # fmt: skip
    """One step: the buffers before it and after it, a row a rank and a cell a chunk, and a line for each message.

    ``before``, ``after``: the text of each cell. ``shares``: for both, the share of the ranks whose values are in it,
    which its tint says. ``messages``: (source, target, chunk, whether it is added); what replaces is a dashed line.
    """
    ranks, chunks = len(before), len(before[0])
    left, right, top, cell = 62, 478, 26, TALL / chunks
    drawing = Scene(right + TALL + 6, top + ranks * HEIGHT + 4)
    written = {(target, chunk) for _, target, chunk, _ in messages}
    for x, texts, share, head in zip((left, right), (before, after), shares, heads, strict=True):
        drawing.text(x + TALL / 2, 15, head, "middle", 12, opacity=0.85)
        for rank, chunk in np.ndindex(ranks, chunks):
            box = (x + chunk * cell + 1.5, top + rank * HEIGHT + 1.5, cell - 3, HEIGHT - 3)
            drawing.rect(*box, BLUE, fill_opacity=0.06 + 0.4 * float(share[rank, chunk]), stroke=GREY,
                         stroke_opacity=0.4)  # fmt: skip
            if x == right and (rank, chunk) in written:
                drawing.rect(*box, stroke=ORANGE, stroke_width=2, class_="new")
            size = min(12, 1.7 * cell / max(len(texts[rank][chunk]), 1))
            drawing.text(x + (chunk + 0.5) * cell, box[1] + HEIGHT / 2 + 2, texts[rank][chunk], "middle", size)
    for rank in range(ranks):
        drawing.text(left - 8, top + rank * HEIGHT + HEIGHT / 2 + 4, rank_name(rank), "end", 12)
    for source, target, chunk, adds in messages:
        dashes = {} if adds else {"stroke_dasharray": "5 3"}
        start, end = (top + (rank + 0.5) * HEIGHT + (chunk - chunks / 2) * 16 / chunks for rank in (source, target))
        drawing.line(
            left + TALL + 3, start, right - 9, end, stroke=ORANGE, stroke_width=1.6, class_="message", **dashes
        )
        drawing.path([(right - 9, end - 4), (right - 2, end), (right - 9, end + 4)], stroke=ORANGE, stroke_width=1.6)
    return drawing


def rank_name(rank: int) -> str:
    return str(say("rank {n}", n=rank))
