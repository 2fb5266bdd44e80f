"""One product on every GPU that has it: the bits each gives, and which of them agree."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import tensorcore
from ..draw.page import after_colon, facts, listed, note, panel, title
from ..draw.scene import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Scene
from ..errors import LabError
from ..tensorcore import GPUS, models
from ..words import say, say_of
from .shell import Control, shown
from .stepper import INPUTS, PRESETS, numbers

SINGLE = tuple(name for name in INPUTS if name != "fp64")  # whose results are FP32 or FP16

FIRST = "three generations"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)


@dataclass(frozen=True)
class State:
    """The row as in the stepper: texts of numbers."""

    inputs: str = "fp16"
    output: str = "fp32"
    a: str = PRESETS[FIRST][0]
    b: str = PRESETS[FIRST][1]
    c: str = PRESETS[FIRST][2]
    preset: str = FIRST


@dataclass(frozen=True)
class Answer:
    """A GPU's result; ``bits``: as FP32, None where it has no such instruction."""

    gpu: str
    name: str
    value: float
    bits: int | None


def answers(state: State) -> list[Answer]:
    """Every GPU's result of the row, by ``tensorcore.dot``."""
    a, b, c = numbers(state.a, "a"), numbers(state.b, "b"), numbers(state.c, "c")
    if len(a) != len(b) or not a or len(c) != 1:
        raise LabError(f"a has {len(a)} numbers, b {len(b)}, c {len(c)}; a and b need the same, c one.")
    given = []
    for gpu in GPUS:
        try:
            model = models.get(gpu, state.inputs, state.output)
        except LabError:
            given.append(Answer(gpu, "", float("nan"), None))
            continue
        value = np.float32(tensorcore.dot(np.array([a]), np.array([b]), np.array(c), gpu=model)[0])
        given.append(Answer(gpu, model.name, float(value), int(value.view(np.uint32))))
    return given


def exact(state: State) -> Fraction | None:
    """The sum of the operands as the format holds them, exact; None where it is no number."""
    model = next(m for m in models.TABLE if m.a == m.b == state.inputs and m.scale is None)
    return tensorcore.trace(numbers(state.a, "a"), numbers(state.b, "b"), numbers(state.c, "c")[0], gpu=model).exact


def render(state: State) -> str:
    """A row a GPU: bits, value and error; GPUs with one letter gave the same bits."""
    given, wanted = answers(state), exact(state)
    groups = list(dict.fromkeys(answer.bits for answer in given if answer.bits is not None))
    drawing = Scene(860, 34 + 26 * len(given))
    finite = [Fraction(answer.value) for answer in given if answer.bits is not None and np.isfinite(answer.value)]
    worst = max((abs(x - wanted) for x in finite), default=Fraction(0)) if wanted is not None else Fraction(0)
    for x, head in ((212, say("bits")), (310, say("value")), (480, say("error"))):
        drawing.text(x, 16, head, size=12, opacity=0.8)
    for row, answer in enumerate(given):
        _row(drawing, 40 + 26 * row, answer, groups, wanted, worst)
    counts = (say("no GPU has this product"), say("one answer"))
    count = counts[len(groups)] if len(groups) < 2 else say("{n} different answers", n=len(groups))
    total = say_of("gpus", "none") if wanted is None else repr(float(wanted))
    return panel(title(after_colon(f"{state.inputs} → {state.output}", count)), drawing.svg(_spoken(given)),
                 facts([(say("exact sum"), total)]),
                 note(say("The same letter: the same bits.")))  # fmt: skip


def _row(drawing: Scene, y: float, answer: Answer, groups: list[int], wanted: Fraction | None, worst: Fraction) -> None:
    drawing.text(4, y, answer.gpu, size=13, font_weight="bold")
    drawing.text(104, y, models.row_of(answer.gpu).architecture, size=12, opacity=0.8)
    if answer.bits is None:
        drawing.text(212, y, say("has no such product"), size=12, opacity=0.8)
        return
    group = groups.index(answer.bits)
    drawing.rect(186, y - 13, 18, 18, COLOURS[group % len(COLOURS)], fill_opacity=0.45)
    drawing.text(195, y, chr(ord("A") + group), "middle", 12, class_="group")
    drawing.text(212, y, f"{answer.bits:08x}", size=13, font_family="ui-monospace,monospace", class_="bits",
                 data_gpu=answer.gpu)  # fmt: skip
    drawing.text(310, y, f"{answer.value:.10g}", size=13)
    if wanted is not None and np.isfinite(answer.value):
        error = Fraction(answer.value) - wanted
        drawing.text(480, y, f"{float(error):+.4g}" if error else "0", size=13)
        drawing.rect(580, y - 11, float(abs(error) / worst) * 260 if worst else 0, 13, COLOURS[group % len(COLOURS)],
                     fill_opacity=0.6)  # fmt: skip


def _spoken(given: list[Answer]) -> str:
    none = say_of("gpus", "none")
    return listed(*(f"{x.gpu} {none if x.bits is None else format(x.bits, '08x')}" for x in given))


def changed(state: State, field: str, value: Any) -> State:
    """Another value of a field; a preset fills the row."""
    if field == "preset" and value in PRESETS:
        a, b, c = PRESETS[value]
        return replace(state, a=a, b=b, c=c, preset=value)
    after = replace(state, **{field: value})
    return replace(after, preset="") if field in "abc" else after


CONTROLS = (
    Control("preset", say("example"), options=("", *PRESETS)),
    Control("inputs", say("inputs"), options=SINGLE),
    Control("output", say("output"), options=("fp32", "fp16")),
    Control("a", say("a"), wide=True),
    Control("b", say("b"), wide=True),
    Control("c", say("c")),
)


@shown(State, render, CONTROLS, changed=changed)
def widget(state: State) -> None:
    """The comparison of GPUs. Raises LabError for inputs that no GPU here has."""
    answers(state)
