"""One mixed-precision step as a diagram: the FP16 copy, forward, scale, backward, unscale, the FP32 master's update.

Every edge shows the value of one weight's step as it passes, and its bits. The step is real: a linear classifier with a
squared error reads 16 handwritten digits, its products in the bits of an H100's Tensor Cores.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..draw.page import Said, after_colon, facts, note, panel, title
from ..draw.scene import BLUE, GREEN, ORANGE, Scene
from ..draw.strip import bit_strip
from ..errors import integer
from ..floats import encode, quantize
from ..inspection import encodings
from ..tensorcore import dot
from ..training.data import digits
from ..words import Text, say
from .shell import Action, Control, shown, steps

IMAGES, PIXELS, CLASSES = 16, 64, 10
GPU = "H100"
NAMES = (
    say("master weight"), say("FP16 copy"), say("output"), say("gradient of the output"), say("times the scale"),
    say("gradient of the weight"), say("unscaled"), say("update"), say("new master weight"), say("next FP16 copy"),
)  # fmt: skip
OPERATIONS = (
    say("rounded"), say("product with the input, sums in FP32"), say("loss, in FP32"), say("scaled, rounded"),
    say("product with the input, sums in FP32"), say("divided by the scale"), say("times the learning rate"),
    say("subtracted"), say("rounded"),
)  # fmt: skip
FORMATS = ("fp32", "fp16", "fp16", "fp32", "fp16", "fp16", "fp32", "fp32", "fp32", "fp16")
WIDTH, BOX, TALL, GAP = 810, 134, 46, 34  # pixels
PLACES = [(i, 0) for i in range(5)] + [(4 - i, 1) for i in range(5)]  # of the boxes: there above, back below


@dataclass(frozen=True)
class State:
    """``edge``: which value is shown in bits, from 1 on. The weight is that of a pixel for a digit, 0 to 9.

    ``log2_scale``, ``log2_rate``: of the loss scale and of the learning rate. ``log2_loss``: of the loss's weight,
    which makes the gradients as small as those of a deep network are.
    """

    digit: int = 1
    pixel: int = 1
    log2_scale: int = 16
    log2_loss: int = -14
    log2_rate: int = -2
    edge: int = 5


class Step(NamedTuple):
    """The values of the edges as float64, the image whose output is shown, and the exact value before each rounding."""

    values: tuple[float, ...]
    image: int
    exact: tuple[float, ...]


@functools.cache
def inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images float32 (16, 64) of 0 to 1, labels (16,), and first weights float32 (10, 64): FP32's, uniform."""
    data = digits()
    words = np.random.Philox(0).random_raw(CLASSES * PIXELS).reshape(CLASSES, PIXELS)
    weights = ((words >> np.uint64(40)).astype(np.float64) * 2.0**-24 - 0.5).astype(np.float32) * np.float32(0.25)
    return data.images[:IMAGES].reshape(IMAGES, PIXELS).astype(np.float32) / 16, data.labels[:IMAGES], weights


@functools.lru_cache(maxsize=64)
def step(digit: int, pixel: int, log2_scale: int, log2_loss: int, log2_rate: int) -> Step:
    """The step of one weight. All outputs of the digit are computed, for its gradient is a sum over the images."""
    x, labels, weights = inputs()
    scale, rate = np.float32(2.0**log2_scale), np.float32(2.0**log2_rate)
    copies = quantize(weights[digit], "fp16")
    sums = np.asarray(dot(x, np.broadcast_to(copies, x.shape), np.zeros(IMAGES), gpu=GPU))
    outputs = np.asarray(quantize(sums, "fp16"), np.float32)
    errors = outputs - (labels == digit).astype(np.float32)
    gradients = errors * np.float32(2 / (IMAGES * CLASSES)) * np.float32(2.0**log2_loss)
    scaled = np.asarray(quantize(gradients * scale, "fp16"), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.float32(dot(scaled[None], x[None, :, pixel], 0.0, gpu=GPU)[0])
        gradient = np.float32(quantize(total, "fp16"))
        unscaled = gradient / scale
        update = unscaled * rate
    master = weights[digit, pixel]
    new = master - update if np.isfinite(update) else master  # a scaler leaves the step out
    image = int(np.argmax(np.abs(gradients) * (x[:, pixel] > 0)))
    shown = (master, copies[pixel], outputs[image], gradients[image], scaled[image], gradient, unscaled, update, new,
             quantize(new, "fp16"))  # fmt: skip
    exact = (master, master, sums[image], gradients[image], gradients[image] * scale, total, unscaled, update,
             float(master) - float(update) if np.isfinite(update) else master, new)  # fmt: skip
    return Step(tuple(map(float, shown)), image, tuple(map(float, exact)))


def step_of(state: State) -> Step:
    """The step of a state. Raises LabError for numbers beyond the sliders' ends."""
    bounds = {"digit": (0, CLASSES - 1), "pixel": (0, PIXELS - 1), "log2_scale": (0, 40), "log2_loss": (-24, 0),
              "log2_rate": (-20, 0)}  # fmt: skip
    return step(*(integer(name, getattr(state, name), *ends) for name, ends in bounds.items()))


def render(state: State) -> str:
    """The loop of the ten values, the chosen one with its bits, and what its rounding took."""
    shown, edge = step_of(state), integer("edge", state.edge, 1, len(NAMES)) - 1
    value, before = shown.values[edge], shown.exact[edge]
    fmt = FORMATS[edge]
    fields = encodings.get(fmt).fields(int(encode(value, fmt)))
    head = title(say("{n}. {name}, {fmt}", n=edge + 1, name=NAMES[edge], fmt=fmt.upper()))
    lines: list[tuple[Said, Said]] = [(say("value"), f"{value:.9g}")]
    if edge:
        lines.append((say("comes from"), OPERATIONS[edge - 1]))
    if value != before:
        lines.append((say("before rounding"), f"{before:.9g}"))
        lines.append((say("lost by rounding"), _lost(value, before)))
    lines.append((say("the step"), _outcome(shown)))
    caption = say("The weight of pixel {pixel} for the digit {digit}; output and gradient are of image {image}.",
                pixel=state.pixel, digit=state.digit, image=shown.image + 1)  # fmt: skip
    legend = note(say("Green: FP16. Blue: FP32. The next step begins with 9 in the place of 1."))
    strip = bit_strip(fields, str(NAMES[edge])).svg()
    return panel(_diagram(shown, edge), head, strip, facts(lines), note(caption), legend)


def _lost(value: float, before: float) -> Text | str:
    if not math.isfinite(value):
        return say("all of it: overflow")
    if value == 0:
        return say("all of it: underflow")
    return f"{abs(value - before) / abs(before):.2%}" if before else "0"


def _outcome(shown: Step) -> Text:
    """What became of the update: in the master copy, and in an FP16 weight that had no master."""
    master, update, new, following = shown.values[0], shown.values[7], shown.values[8], shown.values[9]
    if not math.isfinite(update):
        return say("overflow: left out, and the scale is halved")
    alone = float(quantize(shown.values[1] - update, "fp16"))
    if new == master:
        return say("the update is lost, in FP32 as well")
    if alone == shown.values[1] and following == shown.values[1]:
        return say("kept in the master weight; the FP16 copy does not move yet, and an FP16 weight alone would lose it")
    return say("kept in the master weight, and the FP16 copy moves")


def _diagram(shown: Step, edge: int) -> str:
    drawing = Scene(WIDTH, 2 * TALL + 86)
    positions = [(2 + column * (BOX + GAP), 20 + row * (TALL + 40)) for column, row in PLACES]
    for i, (name, fmt, value, (x, y)) in enumerate(zip(NAMES, FORMATS, shown.values, positions, strict=True)):
        chosen = (
            {"stroke": ORANGE, "stroke_width": 3} if i == edge else {"stroke": "currentColor", "stroke_opacity": 0.5}
        )
        drawing.rect(
            x, y, BOX, TALL, GREEN if fmt == "fp16" else BLUE, fill_opacity=0.22, rx=7, class_="edge", **chosen
        )
        drawing.text(x + BOX / 2, y - 5, f"{i + 1}. {name}", "middle", 11)
        drawing.text(x + BOX / 2, y + 20, f"{value:.6g}", "middle", 13)
        drawing.text(x + BOX / 2, y + 37, fmt.upper(), "middle", 11, opacity=0.8)
    middle = TALL / 2
    for (x, y), (to_x, to_y) in itertools.pairwise(positions):
        if y == to_y:
            start, end = (x + BOX + 3, to_x - 3) if to_x > x else (x - 3, to_x + BOX + 3)
            _arrow(drawing, start, y + middle, end, y + middle)
        else:
            _arrow(drawing, x + BOX / 2, y + TALL + 2, x + BOX / 2, to_y - 17)
    return drawing.svg(after_colon(NAMES[edge], f"{shown.values[edge]:.6g}"))


def _arrow(drawing: Scene, x: float, y: float, to_x: float, to_y: float) -> None:
    drawing.line(x, y, to_x, to_y, stroke_width=1.5)
    if y == to_y:
        back = to_x - math.copysign(6, to_x - x)
        drawing.path([(back, y - 4), (to_x, y), (back, y + 4)], stroke_width=1.5)
    else:
        back = to_y - math.copysign(6, to_y - y)
        drawing.path([(x - 4, back), (x, to_y), (x + 4, back)], stroke_width=1.5)


def chosen(state: State, edge: int) -> State:
    """Another edge, the first after the last."""
    return replace(state, edge=(edge - 1) % len(NAMES) + 1)


CONTROLS = (
    Control("log2_scale", say("log2 of the loss scale"), low=0, high=40),
    Control("log2_loss", say("log2 of the loss's weight"), low=-24, high=0),
    Control("log2_rate", say("log2 of the learning rate"), low=-20, high=0),
    Control("digit", say("digit"), low=0, high=CLASSES - 1),
    Control("pixel", say("pixel"), low=0, high=PIXELS - 1),
)
ACTIONS = (
    *steps(lambda s, by: chosen(s, s.edge + by)),
    *(Action(name, functools.partial(chosen, edge=i)) for i, name in enumerate(NAMES, 1)),
)


@shown(State, render, CONTROLS, ACTIONS)
def widget(state: State) -> None:
    """A mixed-precision step. Raises LabError for a digit, a pixel or a scale that is not there."""
    step_of(state)
