"""The stepper of matrix units: every term of a block as bits on one binary scale, and what falls off it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from ..errors import LabError, integer
from ..language import speaking
from ..tensorcore.tracing import Step, Term, Trace
from ..words import Message, say, say_of
from .page import after_colon, bracketed, power, two_to
from .scene import BLUE, GREEN, MONO, ORANGE, Scene, figure_of_scenes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 4  # steps that fit one figure
BELOW = 10  # places drawn below the quantum; what lies lower is told in words
CELL, ROW, LEFT, RIGHT = 15, 20, 190, 250
LETTER = 7.7  # pixels of a digit of the widest font
X = Callable[[int], float]  # from a place to the left edge of its column
EMPTY = 0.12  # opacity of the box of a 0


def trace_figure(trace: Trace, first: int = 0, steps: int = 2) -> Figure:
    """Draw ``steps`` steps of a trace, from step ``first`` on, below one another.

    A column is a power of two, a row a term: its exact bits, those below the quantum crossed out. Below them the sum
    of what is left, an integer number of quanta, its bits crossed out where the result has no place for them; and the
    result. A full box is a 1.

    Raises LabError for a trace without so many steps, and for more than four of them.
    """
    first = integer("first", first, 0, max(len(trace.steps) - 1, 0))
    steps = integer("steps", steps, 1, MOST)
    if not trace.steps:
        raise LabError("the trace has no steps: its row is empty.")
    shown = trace.steps[first : first + steps]
    from .lettering import language

    with speaking(language()):
        titled = say("{model}, step {number}: {told}", model=trace.model.name)
        return figure_of_scenes(
            [(str(titled.fill(number=number, told=told(step))), step_scene(step, trace))
             for number, step in enumerate(shown, first)]
        )  # fmt: skip


def kind_of(step: Step) -> Message:
    """What a step does, in words."""
    what = {"block": say_of("stepper", "block"), "join": say("both sums are added"),
            "tree": say("products, pairwise"), "fma": say("multiply-add")}  # fmt: skip
    return what.get(step.what, say("c is added"))


def told(step: Step) -> str:
    what = kind_of(step)
    if step.emax is None or not step.quantum:
        text = say("nothing is aligned") if math.isfinite(step.result) else say("special operands decide")
        return str(say("{what}; {text}, result {value:g}", what=what, text=text, value=step.result))
    if is_whole(step):
        return str(say("{what}; {text}", what=what, text=say("nothing is cut")))
    cut = say("{what}; aligned to {emax}, cut below {quantum}", emax=two_to(step.emax), quantum=power(step.quantum))
    return str(cut.fill(what=what))


def is_whole(step: Step) -> bool:
    """Whether the step keeps all of its terms until it rounds, having no place below which it cuts them."""
    return step.what in ("tree", "fma", "sum")


def step_scene(step: Step, trace: Trace) -> Scene:
    """A column a power of two, a row a term; below the line the sum of what is left, and the result.

    Empty where nothing is aligned.
    """
    if step.emax is None or not step.quantum:
        return Scene(LEFT + 30 * CELL + RIGHT, 1)
    terms = [term for term in step.terms if term.value]
    low = _top(step.quantum)
    result = Fraction(step.result) if math.isfinite(step.result) else Fraction(0)
    kept = _last_place(result, trace) if result and step.lost_to_rounding else low
    values = [*(t.value for t in terms), step.total]
    top = max(max((_top(v) for v in values if v), default=low), step.emax)
    bottom = max(low - BELOW, min(low, *(_last(v) for v in values if v))) if any(values) else low
    cell = max(6.0, min(CELL, 620 / (top - bottom + 1)))
    left = max(LEFT, 12 + LETTER * max((len(_signed(_name(t), t.value < 0)) for t in terms), default=0))
    width = left + (top - bottom + 2) * cell + RIGHT
    drawing = Scene(width, 34 + (len(terms) + 2) * ROW + 34, _spoken(step, trace, terms))

    def x_of(place: int) -> float:
        return left + (top - place) * cell

    y = 24.0
    for term in terms:
        _bits(drawing, y, term.value, low, bottom, x_of, cell, GREEN if term.k < 0 else BLUE)
        _words(drawing, y, left, _signed(_name(term), term.value < 0), _fate(term, low), width)
        y += ROW
    edge = x_of(low) + cell
    if not is_whole(step):
        drawing.line(edge, 14, edge, y + 2, stroke=ORANGE, stroke_width=2)
        drawing.text(edge + 3, 13, say("cut"), size=11)
    drawing.line(left - 4, y + 3, width - RIGHT, y + 3, stroke_opacity=0.6)
    y += 8
    change_ = f", {float(-step.lost_to_rounding):+.3g}" if step.lost_to_rounding else ""
    sums = ((step.total, say("sum"), f"{step.units:,} × {two_to(low)}"),
            (result, say("result"), f"{step.result:.9g}{change_}"))  # fmt: skip
    for value, name, end in sums:
        _bits(drawing, y, value, kept, bottom, x_of, cell, "currentColor")
        _words(drawing, y, left, _signed(name, value < 0), end, width, "bold")
        y += ROW
    for place in range(bottom, top + 1):
        if place % 4 == 0:
            drawing.text(x_of(place) + cell / 2, y + 16, two_to(place), "middle", 11, opacity=0.8)
    return drawing


def _spoken(step: Step, trace: Trace, terms: list[Term]) -> str:
    fates = [after_colon(_name(t), _fate(t, _top(step.quantum))) for t in terms]
    result = say("result {value!r}", value=step.result)
    return after_colon(trace.model.name, str(say("; ")).join([*fates, str(result)]))


def _bits(drawing: Scene, y: float, value: Fraction, low: int, bottom: int, x_of: X, cell: float, fill: str) -> None:
    """A value's digits; those below ``low`` struck out."""
    for place, digit in _digits(value, bottom):
        x, lost = x_of(place), place < low
        opacity = EMPTY if digit == "0" else 0.35 if fill == "currentColor" else 0.5
        drawing.rect(x + 0.5, y, cell - 1, ROW - 4, ORANGE if lost else fill, stroke="currentColor", stroke_opacity=0.3,
                     fill_opacity=opacity, class_="lost" if lost else "kept", data_place=place)  # fmt: skip
        if cell >= 9:
            drawing.text(x + cell / 2, y + 12.5, digit, "middle", 11, font_family=MONO, class_="bit")
        if lost:
            drawing.line(x + 0.5, y + ROW - 4, x + cell - 0.5, y, class_="strike")
    if value and _last(value) < bottom <= _top(value):
        drawing.text(x_of(bottom) + cell + 2, y + 12, "…")


def _signed(name: object, negative: bool) -> str:
    return f"{name}{'  −' if negative else ''}"


def _words(drawing: Scene, y: float, left: float, name: str, end: str, width: float, weight: str = "normal") -> None:
    drawing.text(left - 8, y + 12.5, name, "end", 12, font_weight=weight)
    drawing.text(width - RIGHT + 6, y + 12.5, end, size=12)


def _top(value: Fraction) -> int:
    place = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return place if Fraction(2) ** place <= abs(value) else place - 1


def _last(value: Fraction) -> int:
    return (value.numerator & -value.numerator).bit_length() - value.denominator.bit_length()


def _last_place(result: Fraction, trace: Trace) -> int:
    """The place of the last bit that the result's format keeps."""
    form = trace.model.result
    return max(_top(result), form.emin) - min(form.fraction_bits, trace.model.kept_bits)


def _digits(value: Fraction, bottom: int) -> Iterator[tuple[int, str]]:
    """Places and digits of a magnitude from its highest 1 to its lowest, none below ``bottom``."""
    if not value or _top(value) < bottom:
        return
    top, last = _top(value), max(_last(value), bottom)
    scaled = int(abs(value) / Fraction(2) ** last)
    for place in range(top, last - 1, -1):
        yield place, str(scaled >> (place - last) & 1)


def _factor(x: float) -> str:
    return power(x) if abs(x) < 0.01 and math.isfinite(x) and math.frexp(x)[0] in (0.5, -0.5) else f"{x:.5g}"


def _name(term: Term) -> str:
    if term.k < -1:
        return str(say("sum"))
    return "c" if term.k < 0 else f"k={term.k}: {_factor(term.a)} × {_factor(term.b)}"


def _fate(term: Term, low: int) -> str:
    shift = say("shift {n}", n=term.shift)
    if not term.lost:
        return after_colon(shift, say("kept whole"))
    if not term.units:
        return after_colon(shift, bracketed(say_of("stepper", "lost"), f"{two_to(_top(term.value))} < {two_to(low)}"))
    bits = say("{bits_lost} bit{n} lost", bits_lost=term.bits_lost, n="s" * (term.bits_lost != 1))
    return after_colon(shift, bits)
