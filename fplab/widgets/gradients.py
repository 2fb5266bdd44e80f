"""A histogram of real gradients with a loss scale to move, and what a narrow format makes of them.

The gradients are a sample of those that the underflow experiment collects: a small convolutional network on
handwritten digits, trained in FP32 (:mod:`fplab.experiments.underflow`). ``python -m fplab.widgets.gradients`` takes
the sample anew.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import floats, formats
from ..draw.page import listed, note, panel, table, title, two_to
from ..draw.scene import BLUE, GREY, ORANGE, PURPLE, RED, Scene
from ..errors import LabError, quotes_call
from ..storage import read_arrays, shipped
from ..words import say, say_of
from .shell import Board, Control

FILE = Path(__file__).parent / "data" / "gradients.npz"
SAMPLE, KEY = 16384, 2026
KINDS = ("activation", "weight")
FATES = ("zero", "subnormal", "normal", "overflow")
NAMES = {
    "zero": say_of("gradients", "zero"),
    "subnormal": say_of("gradients", "subnormal"),
    "normal": say_of("gradients", "normal"),
    "overflow": say("overflow"),
}
COLOURS = dict(zip(FATES, (RED, ORANGE, BLUE, PURPLE), strict=True))
MARKS = dict(zip(FATES, ("✗", "~", "✓", "∞"), strict=True))
WIDTH, HEIGHT, LEFT = 860, 210, 56


@dataclass(frozen=True)
class State:
    """``kind``: gradients of activations or of weights. ``log2_scale``: the loss scale's exponent."""

    kind: str = "activation"
    format: str = "fp16"
    log2_scale: int = 0


@functools.cache
def sample(kind: str) -> np.ndarray:
    """The sampled non-zero gradients of a kind, float32 (16384,), read-only."""
    if kind not in KINDS:
        raise LabError(f"kind={kind!r} is not possible; allowed: {', '.join(KINDS)}.")
    with shipped(FILE):
        values = read_arrays(FILE.read_bytes(), 1 << 20)[kind].view(np.float32)
    values.setflags(write=False)
    return values


def fates(values: np.ndarray, fmt: str, log2_scale: int) -> np.ndarray:
    """The fate of each value times the loss scale once rounded: an index into ``FATES``, int64."""
    form = formats.get(fmt)
    with np.errstate(over="ignore"):
        scaled = np.ldexp(values, log2_scale)
    magnitude = np.abs(np.asarray(floats.quantize(scaled, form)))
    return np.select([~(magnitude <= form.max), magnitude == 0, magnitude < form.smallest_normal], [3, 0, 1], 2)


def render(state: State) -> str:
    """The histogram by binade of the scaled gradients, each bar divided by fate, and the shares."""
    form, values = formats.get(state.format), sample(state.kind)
    fate = fates(values, form.name, state.log2_scale)
    binade = np.frexp(values)[1] - 1 + state.log2_scale
    low, high = form.emin - form.fraction_bits, form.emax
    scale = str(say("loss scale"))
    head = listed(form.name, f"{scale} {two_to(state.log2_scale)} = {2**state.log2_scale:,}")
    shares = [int((fate == i).sum()) for i in range(4)]
    drawing = histogram(binade, fate, low, form.emin, high, head)
    columns = [f"{MARKS[name]} {NAMES[name]}" for name in FATES]
    rows = [(str(say("gradients")), *(f"{n:,}" for n in shares)),
            (str(say("share")), *(f"{n / values.size:.2%}" for n in shares))]  # fmt: skip
    told = note(str(say("Bars: gradients by power of two after scaling; the marks repeat what the colours say.")))
    return panel(title(head), drawing, table(["", *columns], rows), told)


def histogram(binade: np.ndarray, fate: np.ndarray, low: int, emin: int, high: int, spoken: str) -> str:
    """Stacked bars from the lowest binade of FP32 drawn to the highest, with the format's three edges."""
    first, last = min(int(binade.min()), low) - 1, max(int(binade.max()), high) + 1
    step = (WIDTH - LEFT - 10) / (last - first + 1)
    counts = np.zeros((4, last - first + 1), np.int64)
    np.add.at(counts, (fate, binade - first), 1)
    tallest = max(int(counts.sum(0).max()), 1)
    drawing = Scene(WIDTH, HEIGHT + 62)
    for column in range(last - first + 1):
        y = HEIGHT + 18.0
        for i, name in enumerate(FATES):
            n = int(counts[i, column])
            if not n:
                continue
            tall = n / tallest * HEIGHT
            y -= tall
            x = LEFT + column * step
            drawing.rect(x, y, max(step - 1, 0.8), tall, COLOURS[name], fill_opacity=0.75, class_=f"bar {name}",
                         data_n=n, data_binade=first + column)  # fmt: skip
            if tall > 12 and step > 7:
                drawing.text(x + step / 2, y + min(tall / 2 + 4, 14), MARKS[name], "middle", 10)
    edges = (low, say_of("gradients", "smallest")), (emin, say_of("gradients", "normal")), (high + 1, say("top"))
    _edges(drawing, tuple((at, str(name)) for at, name in edges),
           first, step)  # fmt: skip
    every = 8 if last - first < 120 else 16
    for exponent in range(first, last + 1):
        if exponent % every == 0:
            drawing.text(LEFT + (exponent - first + 0.5) * step, HEIGHT + 34, two_to(exponent), "middle", 11)
    drawing.text(LEFT - 6, 28, f"{tallest:,}", "end", 11)
    drawing.line(LEFT, HEIGHT + 18, WIDTH - 10, HEIGHT + 18, stroke_opacity=0.6)
    return drawing.svg(spoken)


def _edges(drawing: Scene, edges: tuple[tuple[int, str], ...], first: int, step: float) -> None:
    """The format's limits as labelled lines; the first two, which are close in narrow formats, away from each other."""
    room = LEFT + 50.0  # where the first label must end at the earliest to stay inside, and the next may begin
    for (exponent, name), anchor in zip(edges, ("end", "start", "end"), strict=True):
        x = LEFT + (exponent - first) * step
        drawing.line(x, 14, x, HEIGHT + 40, stroke=GREY, stroke_dasharray="5 3")
        room = max(x, room)
        drawing.text(room, HEIGHT + 54, f"{name} {two_to(exponent)}", anchor, 11, class_="edge")


def collect() -> dict[str, np.ndarray]:
    """The sample, taken from a run of the underflow experiment's training: uint32 bits by kind."""
    from ..experiments.underflow import data

    arrays = data.gather(data.QUICK, lambda done, text: None)
    words = np.random.Philox(KEY).random_raw
    found = {}
    for kind in KINDS:
        chosen = words(SAMPLE) % np.uint64(arrays[kind].size)
        found[kind] = np.ascontiguousarray(arrays[kind][chosen.astype(np.int64)]).view(np.uint32)
    return found


def largest_safe(kind: str, fmt: str, most: int = 40) -> int:
    """The largest exponent of a loss scale, 0 to ``most``, at which no sampled gradient overflows.

    >>> largest_safe("weight", "bf16")
    40
    """
    form, peak = formats.get(fmt), float(np.abs(sample(kind)).max())
    safe = [s for s in range(most + 1) if math.ldexp(peak, s) <= form.max]
    return safe[-1] if safe else 0


CONTROLS = (
    Control("kind", say("gradients of"), options=KINDS),
    Control("format", say("format"), options=("fp16", "bf16", "e5m2", "e4m3")),
    Control("log2_scale", say("loss scale 2^"), low=0, high=40),
)


@quotes_call
def widget(kind: str = "activation", format: str = "fp16", log2_scale: int = 0) -> Board:
    """The histogram with its loss-scale slider. Raises LabError for a kind or format that does not exist."""
    sample(kind)
    return Board(State(kind, formats.get(format).name, log2_scale), render, CONTROLS)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **collect())  # type: ignore[arg-type]
