"""A histogram of real gradients with a loss scale to move, and what a narrow format makes of them.

The gradients are a sample of those that the underflow experiment collects: a small convolutional network on
handwritten digits, trained in FP32 (:mod:`fplab.experiments.underflow`). ``python -m fplab.widgets.gradients`` takes
the sample anew.
"""

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .. import floats, formats
from ..draw.histogram import Layer, histogram_scene
from ..draw.page import listed, note, panel, table, title, two_to
from ..draw.scene import BLUE, ORANGE, PURPLE, RED
from ..errors import LabError
from ..storage import read_arrays, shipped
from ..words import say, say_of
from .shell import Control, shown

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
    scale = say("loss scale")
    head = listed(form.name, f"{scale} {two_to(state.log2_scale)} = {2**state.log2_scale:,}")
    shares = [int((fate == i).sum()) for i in range(4)]
    stacked, first = layers(binade, fate, low, high)
    edges = (low, say_of("gradients", "smallest")), (form.emin, say_of("gradients", "normal")), (high + 1, say("top"))
    drawing = histogram_scene(stacked, first, [(at, str(name)) for at, name in edges], head).svg()
    columns = [f"{MARKS[name]} {NAMES[name]}" for name in FATES]
    rows = [(say("gradients"), *(f"{n:,}" for n in shares)),
            (say("share"), *(f"{n / values.size:.2%}" for n in shares))]  # fmt: skip
    legend = note(say("Bars: gradients by power of two after scaling; the marks repeat what the colours say."))
    return panel(title(head), drawing, table(["", *columns], rows), legend)


def layers(binade: np.ndarray, fate: np.ndarray, low: int, high: int) -> tuple[list[Layer], int]:
    """How many values of each fate lie in each binade, around those of a format; and the first binade."""
    first, last = min(int(binade.min()), low) - 1, max(int(binade.max()), high) + 1
    counts = np.zeros((4, last - first + 1), np.int64)
    np.add.at(counts, (fate, binade - first), 1)
    return [Layer(n, COLOURS[name], name, MARKS[name]) for n, name in zip(counts, FATES, strict=True)], first


def collect() -> dict[str, np.ndarray]:
    """The sample, taken from a run of the underflow experiment's training: uint32 bits by kind."""
    from ..experiments import underflow

    run = underflow.gathered(underflow.E.quick, 0)
    words = np.random.Philox(KEY).random_raw
    arrays = {}
    for kind in KINDS:
        values = run.gradients[kind]
        chosen = words(SAMPLE) % np.uint64(values.size)
        arrays[kind] = np.ascontiguousarray(values[chosen.astype(np.int64)]).view(np.uint32)
    return arrays


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


@shown(State, render, CONTROLS)
def widget(state: State) -> State:
    """The histogram with its loss-scale slider. Raises LabError for a kind or format that does not exist."""
    sample(state.kind)
    return replace(state, format=formats.get(state.format).name)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **collect())  # type: ignore[arg-type]
