"""The stepper of matrix units: one row of a product, step by step, with all bits that alignment and rounding lose."""

import functools
import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..draw.page import Facts, Said, after_colon, bracketed, facts, listed, note, panel, power, title, two_to
from ..draw.stepper import is_whole, kind_of, step_scene
from ..errors import LabError
from ..tensorcore import GPUS, models, tracing
from ..tensorcore.tracing import Step, Trace
from ..words import say, say_of
from . import evidence
from .shell import Action, Control, change, shown, steps

MOST_TERMS = 64
INPUTS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "fp32", "fp64")
PRESETS: dict[str, tuple[str, str, str]] = {
    "1 + 4 × 2^-24": ("2^-12 2^-12 2^-12 2^-12", "2^-12 2^-12 2^-12 2^-12", "1"),
    "16 × 2^-24 + 1": (" ".join(["2^-12"] * 16), " ".join(["2^-12"] * 16), "1"),
    "three generations": ("2^-12 " * 5 + "2^-12", "2^-12 2^-12" + " 2^-13" * 4, "1"),
    "cancellation": ("1024 1024 0.5 0.25", "1024 -1024 0.001 0.001", "0"),
    "far apart": ("1000 3 0.1 0.0007", "1000 0.3 0.1 0.0009", "0.125"),
}


@dataclass(frozen=True)
class State:
    """``a``, ``b``: the row's factors as text, apart by spaces or commas, "2^-12" allowed; ``c``: the accumulator.

    ``step``: which block is drawn. ``row``: the recorded row that was loaded last. ``instruction``: as in
    :func:`fplab.tensorcore.get`; "" is the one that torch's products use.
    """

    gpu: str = "V100"
    inputs: str = "fp16"
    output: str = "fp32"
    a: str = PRESETS["1 + 4 × 2^-24"][0]
    b: str = PRESETS["1 + 4 × 2^-24"][1]
    c: str = "1"
    step: int = 0
    preset: str = "1 + 4 × 2^-24"
    row: int = -1
    instruction: str = ""


def named(model: models.Model) -> str:
    return model.instruction if model.instruction in ("wgmma", "tcgen05") else f"{model.instruction}.k{model.k}"


def numbers(text: str, name: str) -> list[float]:
    words = [w for w in re.split(r"[\s,;]+", text.strip()) if w]
    if len(words) > MOST_TERMS:
        raise LabError(f"{name} has {len(words)} numbers; allowed: up to {MOST_TERMS}.")
    return [_number(word, name) for word in words]


def _number(word: str, name: str) -> float:
    try:
        if match := re.fullmatch(r"([+-]?)2(?:\^|\*\*)\(?([+-]?\d{1,4})\)?", word):
            return math.ldexp(-1.0 if match[1] == "-" else 1.0, int(match[2]))
        return float.fromhex(word) if "0x" in word.lower() else float(word)
    except (ValueError, OverflowError):
        raise LabError(f"{name} holds {word!r}, which is no number; allowed: 0.1, -3, 1e-4, 2^-12, 0x1.8p3.") from None


def traced(state: State) -> Trace:
    """The trace of the row; LabError for texts, lengths and GPUs that cannot be."""
    return _traced(state.a, state.b, state.c, state.gpu, state.inputs, state.output, state.instruction)


@functools.lru_cache(maxsize=32)
def _traced(a: str, b: str, c: str, gpu: str, inputs: str, output: str, instruction: str) -> Trace:
    x, y, z = numbers(a, "a"), numbers(b, "b"), numbers(c, "c")
    if len(x) != len(y) or not x:
        raise LabError(f"a has {len(x)} numbers and b {len(y)}; both need the same number of them, at least one.")
    if len(z) != 1:
        raise LabError(f"c has {len(z)} numbers; it is one.")
    return tracing.trace(x, y, z[0], gpu, inputs, output, instruction or None)


def changed(state: State, field: str, value: str) -> State:
    """Another value of a field; a preset fills a, b and c, an edit of the row starts at its first block."""
    if field == "preset":
        if value not in PRESETS:
            return replace(state, preset=value)
        a, b, c = PRESETS[value]
        return replace(state, a=a, b=b, c=c, preset=value, step=0)
    after: State = change(state, field, value)
    if field in ("gpu", "inputs"):
        after = replace(after, instruction="")  # another GPU may not have it, nor other inputs
    return replace(after, step=0, preset="" if field in "abc" else state.preset)


def moved(state: State, by: int) -> State:
    """Another step of the same row, the first and the last being ends."""
    last = len(traced(state).steps) - 1
    return replace(state, step=min(max(state.step + by, 0), last))


def recorded(state: State) -> State:
    """The next recorded row of this GPU's product; LabError where there is no record.

    The instruction that is chosen comes first, then the GPU's others with the same inputs and output: what was recorded
    is often not the instruction that torch's products use, and the state then says which one it is.
    """
    model = traced(replace(state, a="0", b="0", c="0")).model
    same = [m for m in models.TABLE if (m.gpu, m.a, m.b, m.output, m.scale) == _cell(model)]
    names = [(state.instruction, model), *((named(m), m) for m in same if m != model)]
    for instruction, record in names:
        if rows := evidence.rows_of(record):
            return _loaded(replace(state, instruction=instruction), rows[0])
    raise LabError(f"there is no record of {model.name} here; {evidence.CORPUS_VARIABLE} may name a data set.")


def _cell(model: models.Model) -> tuple[str, str, str, str, tuple[str, int] | None]:
    return model.gpu, model.a, model.b, model.output, model.scale


def _loaded(state: State, rows: evidence.Rows) -> State:
    at = (state.row + 1) % rows.d.size
    a, b = (" ".join(f"{v!r}" for v in x[at].view(np.float32).tolist()) for x in (rows.a, rows.b))
    return replace(state, a=a, b=b, c=repr(float(rows.c[at].view(np.float32))), step=0, preset="", row=at)


def render(state: State) -> str:
    """The step as bits on one binary scale, what was lost, the result, and the recorded bits."""
    trace = traced(state)
    number = min(state.step, len(trace.steps) - 1)
    step = trace.steps[number]
    place = say("step {n} / {steps}", n=number + 1, steps=len(trace.steps))
    head = title(after_colon(trace.model.name, bracketed(place, kind_of(step))))
    drawing = step_scene(step, trace).svg() if step.emax is not None and step.quantum else note(_unaligned(step))
    return panel(head, drawing, facts(_lines(step, trace)), facts(_results(state, trace)))


def _unaligned(step: Step) -> Said:
    if math.isfinite(step.result):
        return say("Nothing is aligned in this step.")
    return say("Special operands decide this step.")


def _lines(step: Step, trace: Trace) -> Facts:
    emax = [] if step.emax is None else [two_to(step.emax)]
    low = say("nothing is cut") if is_whole(step) else say("cut below {power}", power=power(step.quantum))
    cut = listed(*emax, low) if step.quantum else "–"
    total = f"{step.units:,} × {power(step.quantum)} = {float(step.total)!r}" if step.quantum else "–"
    mode = {"rtz": say_of("stepper", "toward zero"), "rne": say("to nearest even")}
    inside = step.what != "add" and trace.model.kind.startswith("two_step")  # a sum that is kept as it is
    rounding = say("nothing") if inside else f"{mode[trace.model.rounding]} → {trace.model.result.name}"
    return [
        (say("aligned to"), cut),
        (say("lost by alignment"), _loss(step.lost_to_truncation)),
        (say("sum of what is left"), total),
        (say("rounded"), rounding),
        (say("lost by rounding"), _loss(step.lost_to_rounding)),
        (say("result of the step"), f"{step.result!r}  (0x{step.bits:08x})"),
    ]


def _loss(x: Fraction) -> Said:
    if not x:
        return say("nothing")
    short, digits = power(x), f"{float(x):.6g}"
    return digits if short == digits else f"{short} = {digits}"


def _results(state: State, trace: Trace) -> Facts:
    lines: list[tuple[Said, Said]] = [(say("end of the row"), f"{trace.result!r}  (0x{trace.bits:08x})")]
    if trace.exact is not None:
        lines.append((say("exact sum"), f"{float(trace.exact)!r}"))
    return [*lines, (say("recorded hardware"), hardware(state, trace))]


def hardware(state: State, trace: Trace) -> str:
    """The recorded bits of this very row, and whether the model gives them; or that there is no record."""
    model = trace.model
    row = [np.asarray(numbers(text, name), np.float32) for text, name in ((state.a, "a"), (state.b, "b"))]
    recorded = evidence.look_up(model, row[0], row[1], numbers(state.c, "c")[0])
    if recorded is None:
        return str(say("no record of this row"))
    same = say("✓ the same bits") if recorded.bits == trace.bits else say("✗ OTHER BITS")
    return f"0x{recorded.bits:08x}  {same}  ({recorded.source})"


CHOICES = ("", *dict.fromkeys(named(m) for m in sorted(models.TABLE, key=lambda m: m.k) if m.a in INPUTS))
CONTROLS = (
    Control("preset", say("example"), options=("", *PRESETS)),
    Control("gpu", say("GPU"), options=GPUS),
    Control("inputs", say("inputs"), options=INPUTS),
    Control("output", say("output"), options=("fp32", "fp16")),
    Control("instruction", say("instruction"), options=CHOICES),
    Control("a", say("a"), wide=True),
    Control("b", say("b"), wide=True),
    Control("c", say("c")),
)
ACTIONS = (*steps(moved), Action(say("a recorded row"), recorded))


@shown(State, render, CONTROLS, ACTIONS, changed)
def widget(state: State) -> State:
    """The stepper of matrix units. Raises LabError for a GPU that does not exist or has no such inputs."""
    return replace(state, gpu=traced(state).model.gpu)
