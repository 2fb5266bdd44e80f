"""The rounding number line: drag x between representable values and see where each rounding sends it."""

import functools
import itertools
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from .. import exact, formats, numerals
from ..draw.page import after_colon, listed, note, panel, title
from ..draw.scene import BLUE, GREY, MONO, ORANGE, Scene
from ..errors import LabError, integer
from ..exact import Exact
from ..formats import Format, Rounding
from ..inspection import rows
from ..inspection.given import parse
from ..inspection.rows import spacing
from ..words import say
from .shell import Control, shown

PARTS = 16  # positions of x within a gap
GAPS = 4
NAMES = {
    Rounding.RNE: say("to nearest, ties to even"),
    Rounding.RNA: say("to nearest, ties away"),
    Rounding.RTZ: say("toward zero"),
    Rounding.RTP: say("toward +∞"),
    Rounding.RTN: say("toward −∞"),
    Rounding.ODD: say("inexact: to odd"),
    Rounding.STOCHASTIC: say("up or down by distance"),
}
LEFT, WIDTH, ROW = 215, 900, 30


@dataclass(frozen=True)
class State:
    """A window of four gaps of a format; ``base``: its first value, as text; ``place``: x in 16ths of a gap."""

    format: str = "e4m3"
    base: str = "1"
    place: int = 24


@functools.lru_cache(maxsize=64)  # one picture asks several times
def window(state: State) -> tuple[Exact, ...]:
    """The five neighbouring values that are drawn."""
    form = formats.get(state.format)
    value = parse(state.base).value
    if value.kind != "finite":
        raise LabError(f"base={state.base!r} is no finite number; the line begins at a number.")
    code, _ = exact.round_to(value, form, "rtn", "saturate")
    values = [exact.decode(code, form)]
    while len(values) < GAPS + 1:
        after = rows.neighbours(exact.round_to(values[-1], form)[0], form)[1]
        if after is None or after.kind != "finite":  # beyond the top: the window moves down instead
            before = rows.neighbours(exact.round_to(values[0], form)[0], form)[0]
            if before is None or before.kind != "finite":
                raise LabError(f"{form.name} has too few values for a line of {GAPS} gaps.")
            values.insert(0, before)
        else:
            values.append(after)
    return tuple(values)


def x_of(state: State) -> Fraction:
    """The value of x, exact: between its neighbours in the window."""
    place = integer("place", state.place, 0, GAPS * PARTS)
    ends = [v.value for v in window(state)]
    gap = min(place // PARTS, GAPS - 1)
    return ends[gap] + (ends[gap + 1] - ends[gap]) * Fraction(place - gap * PARTS, PARTS)


@functools.lru_cache(maxsize=64)
def results(state: State) -> dict[Rounding, tuple[tuple[int, Fraction], ...]]:
    """For each rounding the codes it can give, with their probabilities: one of 1, but for stochastic."""
    form, x = formats.get(state.format), x_of(state)
    by_mode: dict[Rounding, tuple[tuple[int, Fraction], ...]] = {}
    for mode in Rounding:
        if mode.random:
            by_mode[mode] = stochastic(x, form)
        else:
            by_mode[mode] = ((exact.round_to(exact.of(x), form, mode)[0], Fraction(1)),)
    return by_mode


def stochastic(x: Fraction, form: Format) -> tuple[tuple[int, Fraction], ...]:
    """Both neighbours of x, each with the probability of the distance to the other."""
    low, high = (exact.round_to(exact.of(x), form, mode)[0] for mode in ("rtn", "rtp"))
    a, b = (exact.decode(code, form).value for code in (low, high))
    if a == b:
        return ((low, Fraction(1)),)
    up = (x - a) / (b - a)
    return ((low, 1 - up), (high, up))


def render(state: State) -> str:
    """The number line, and below it where each rounding sends x."""
    form, values, x = formats.get(state.format), window(state), x_of(state)
    low, high = values[0].value, values[-1].value
    bottom = 52 + len(Rounding) * ROW
    drawing = Scene(WIDTH, bottom + 32)

    def at(value: Fraction) -> float:
        return LEFT + 20 + float((value - low) / (high - low)) * (WIDTH - LEFT - 130)

    drawing.line(at(low) - 8, 44, at(high) + 8, 44)
    for value in values:
        code = exact.round_to(value, form)[0]
        drawing.line(at(value.value), 36, at(value.value), bottom, stroke_opacity=0.35)
        drawing.text(at(value.value), 30, numerals.short(value.value, 8), "middle", 12, class_="tick")
        drawing.text(at(value.value), 14, rows.bit_fields(code, form)[-1][1], "middle", 10, font_family=MONO)
    for a, b in itertools.pairwise(values):
        middle = at((a.value + b.value) / 2)
        drawing.line(middle, 33, middle, 55, stroke=GREY, stroke_dasharray="3 2", stroke_width=1.5)
    drawing.line(at(x), 40, at(x), bottom, stroke=ORANGE, stroke_dasharray="4 3", stroke_width=1.5)
    drawing.add("circle", cx=at(x), cy=44, r=5, fill=ORANGE)
    drawing.text(at(x) + 7, 60, "x", size=13, font_weight="bold")
    for row, (mode, ends) in enumerate(results(state).items()):
        y = 78.0 + row * ROW
        drawing.text(LEFT, y + 4, f"{mode.value}  {NAMES.get(mode, mode.text)}", "end", 12)
        for code, share in ends:
            _arrow(drawing, at(x), at(exact.decode(code, form).value), y, mode, code, share)
    ulp = numerals.short(spacing(exact.decode(results(state)[Rounding.RTZ][0][0], form), form))
    caption = say("x = {n}; spacing here {ulp}", n=numerals.short(x, 17), ulp=ulp)
    legend = note(say("Above the values: the last field's bits; a dashed tick is a tie."))  # fmt: skip
    return panel(title(after_colon(form.name, caption)), drawing.svg(_spoken(state)), legend)


def _arrow(drawing: Scene, start: float, end: float, y: float, mode: Rounding, code: int, share: Fraction) -> None:
    """From x to a result; the thickness is the probability."""
    width = 1 + 2 * float(share)
    if start != end:
        drawing.line(start, y, end, y, stroke=BLUE, stroke_width=width)
    drawing.add("circle", cx=end, cy=y, r=3 + 2 * float(share), fill=BLUE, class_="result", data_mode=mode.value,
                data_code=code, data_share=str(share))  # fmt: skip
    if share != 1:
        drawing.text(end, y - 8, str(share), "middle", 11)


def _spoken(state: State) -> str:
    form = formats.get(state.format)
    sentences = []
    for mode, shares in results(state).items():
        ends = str(say(" or ")).join(numerals.short(exact.decode(code, form).value, 8) for code, _ in shares)
        sentences.append(f"{mode.value} {ends}")
    return after_colon(listed(form.name, f"x = {numerals.short(x_of(state), 17)}"), listed(*sentences))


def changed(state: State, field: str, value: Any) -> State:
    """Another value of a field; a base that cannot be read is refused before it is taken."""
    after = replace(state, **{field: value})
    window(after)
    return after


CONTROLS = (
    Control("format", say("format"), options=tuple(f.name for f in formats.TABLE if f.zero and f.bits <= 32)),
    Control("base", say("line begins at")),
    Control("place", say("x"), low=0, high=GAPS * PARTS),
)


@shown(State, render, CONTROLS, changed=changed)
def widget(state: State) -> State:
    """The number line. ``base``: where it begins; ``place``: x in 16ths of a gap, 0 to 64."""
    x_of(state)
    return replace(state, format=formats.get(state.format).name)
