"""Block-wise quantisation with an outlier to drag: what one large element does to its block, and to no other."""

import functools
from dataclasses import dataclass, replace

import numpy as np

from .. import codebooks, seeds
from ..codebooks import Codebook, Quantized
from ..draw.page import facts, listed, note, panel, table, title
from ..draw.scene import BLUE, GREY, ORANGE, Scene
from ..errors import integer, one_of
from ..words import say, say_of
from .shell import Control, shown

N, KEY = 64, 64
WIDTH, HEIGHT, LEFT = 900, 200, 56
BLOCKS = (8, 16, 32, 64)
BOOKS = ("dynamic", "dynamic_tree", "linear", "nf4")


@dataclass(frozen=True)
class State:
    """64 normal numbers, one of them replaced: element ``place`` is ``outlier``. ``block``: elements to a block."""

    book: str = "nf4"
    block: int = 16
    outlier: float = 8.0
    place: int = 20


@functools.cache
def book(name: str) -> Codebook:
    one_of("codebook", name, BOOKS)
    codebook: Codebook = getattr(codebooks, name)()
    return codebook


@functools.cache
def normals() -> np.ndarray:
    """64 numbers of a normal distribution, float32, from a fixed stream."""
    words = seeds.bits(2 * N, KEY).astype(np.float64) / 2.0**64
    radius = np.sqrt(-2 * np.log(np.maximum(words[:N], 2.0**-64)))
    values: np.ndarray = (radius * np.cos(2 * np.pi * words[N:])).astype(np.float32)
    values.setflags(write=False)
    return values


def quantised(state: State) -> tuple[np.ndarray, Quantized, np.ndarray]:
    """The values with the outlier, their codes, and what comes back."""
    values = normals().copy()
    values[integer("place", state.place, 0, N - 1)] = state.outlier
    codes = codebooks.quantize_blockwise(values, book(state.book), integer("block", state.block, 1, N))
    return values, codes, codebooks.dequantize_blockwise(codes)


def errors(state: State) -> list[float]:
    """The root mean square error of each block, the outlier itself left out, float64."""
    values, _, back = quantised(state)
    squares = (values.astype(np.float64) - back) ** 2
    keep = np.arange(N) != state.place
    blocks = np.arange(N) // state.block
    return [float(np.sqrt(squares[(blocks == b) & keep].mean())) if ((blocks == b) & keep).any() else 0.0
            for b in range(-(-N // state.block))]  # fmt: skip


def render(state: State) -> str:
    """Values as bars, what came back as marks, the steps of each block; a table of scales and errors."""
    values, codes, back = quantised(state)
    rms = errors(state)
    rows = [(str(say_of("blockwise", "block {n}", n=i)) + (" ←" if state.place // state.block == i else ""),
             f"{s:.5g}", f"{e:.4g}",
             f"{int((back[i * state.block : (i + 1) * state.block] == 0).sum())}")
            for i, (s, e) in enumerate(zip(codes.absmax.tolist(), rms, strict=True))]  # fmt: skip
    rms_head = say("RMS error of the others")
    head = [say_of("blockwise", "block"), say("largest magnitude"), rms_head, say("read back as 0")]
    bits = 8 * codes.nbytes / N
    legend = str(
        say("Bar: the value. Mark: what comes back. ←: the outlier's block. "
            "The axis shows ±4; an arrow points beyond it.")
    )  # fmt: skip
    return panel(title(listed(book(state.book).name, say("blocks of {n}", n=state.block))),
                 _plot(values, back, state), table(head, rows),
                 facts([(say("storage"), say("{bits:.3g} bits an element, scales included", bits=bits))]),
                 note(legend))  # fmt: skip


def _plot(values: np.ndarray, back: np.ndarray, state: State) -> str:
    drawing, most = Scene(WIDTH, HEIGHT + 30), 4.0
    step = (WIDTH - LEFT - 10) / N

    def y_of(value: float) -> float:
        return 10 + (most - max(-most, min(most, value))) / (2 * most) * HEIGHT

    for start in range(0, N, state.block):
        x = LEFT + start * step
        drawing.line(x, 4, x, HEIGHT + 16, stroke=GREY, stroke_dasharray="4 3")
        drawing.text(x + 3, HEIGHT + 26, say_of("blockwise", "block {n}", n=start // state.block), size=11)
    for i, (value, again) in enumerate(zip(values.tolist(), back.tolist(), strict=True)):
        x, outlier = LEFT + i * step, i == state.place
        top, bottom = sorted((y_of(value), y_of(0)))
        drawing.rect(x + 2, top, step - 4, bottom - top, ORANGE if outlier else BLUE, fill_opacity=0.5, class_="value",
                     data_value=repr(value))  # fmt: skip
        drawing.line(x, y_of(again), x + step, y_of(again), stroke_width=2.2, class_="back", data_value=repr(again))
        if outlier:
            arrow = " ▲" if value > most else " ▼" if value < -most else ""
            beside, anchor = (x + step + 2, "start") if x < WIDTH - 80 else (x - 2, "end")
            drawing.text(beside, 18 if value >= 0 else HEIGHT + 8, f"{value:g}{arrow}", anchor, 12)
    drawing.line(LEFT, y_of(0), WIDTH - 10, y_of(0), stroke_opacity=0.6)
    for value in (-4, -2, 0, 2, 4):
        drawing.text(LEFT - 8, y_of(value) + 4, value, "end", 11)
    spoken = say("{N} values in blocks of {block}, outlier {outlier:g} at {place}", N=N, block=state.block)
    return drawing.svg(str(spoken.fill(outlier=state.outlier, place=state.place)))


CONTROLS = (
    Control("book", say("codebook"), options=BOOKS),
    Control("block", say("block"), options=BLOCKS),
    Control("outlier", say("outlier"), low=-64.0, high=64.0, step=0.5),
    Control("place", say("place"), low=0, high=N - 1),
)


@shown(State, render, CONTROLS)
def widget(state: State) -> State:
    """The block-wise quantiser. Raises LabError for a codebook or place that does not exist."""
    quantised(state)
    return replace(state, outlier=float(state.outlier))
