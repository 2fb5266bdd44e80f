"""The format designer: exponent bits, fraction bits and specials, and what range, precision and density they give."""

import math
from dataclasses import dataclass, replace

import numpy as np

from .. import formats
from ..draw.page import Facts, after_colon, beside, bracketed, facts, listed, note, panel, title, two_to
from ..draw.scene import BLUE, GREY, ORANGE, Scene
from ..draw.strip import bit_strip
from ..errors import one_of
from ..formats import Format, Specials
from ..words import say, say_of, verbatim
from .shell import Action, Control, change, shown

WIDTH = 880
MOST_TICKS = 300
SPECIALS = {s.value: s for s in Specials if s is not Specials.SINGLE}  # that one belongs to P3109's biases


@dataclass(frozen=True)
class State:
    """The fields of a format, and a format of the table to hold beside it."""

    exponent_bits: int = 4
    fraction_bits: int = 3
    specials: str = "last"
    beside: str = "fp16"


def designed(state: State) -> Format:
    """The record; LabError for what is impossible."""
    name = f"e{state.exponent_bits}m{state.fraction_bits}"
    return Format(name, state.exponent_bits, state.fraction_bits, specials=SPECIALS[state.specials])


def twins(form: Format) -> tuple[str, ...]:
    same = ("exponent_bits", "fraction_bits", "bias", "signed", "zero", "specials")
    return tuple(f.name for f in formats.TABLE if all(getattr(f, x) == getattr(form, x) for x in same))


def render(state: State) -> str:
    """Layout, numbers, the values around zero, and the values in each binade, beside a known format's."""
    form, other = designed(state), formats.get(state.beside)
    same = twins(form)
    known = say(" (the table's {names})", names=listed(*same)) if same else ""
    bits = say("{bits} bits", bits=form.bits)
    strip = bit_strip(tuple((n, "0" * w) for n, w in _widths(form)), form.name)
    return panel(
        title(listed(form.name, f"{bits}{known}")),
        strip.svg(after_colon(form.name, bits)),
        beside(title(form.name) + facts(_numbers(form)), title(other.name) + facts(_numbers(other))),
        title(say("Values from zero up, to scale")),
        ruler(form),
        title(say("Values in each power of two")),
        density((form, other)),
        note(say("Short ticks: subnormals. A wider bar: a larger range; a taller one: more values a binade.")),
    )  # fmt: skip


def _widths(form: Format) -> list[tuple[str, int]]:
    widths = [("sign", int(form.signed)), ("exponent", form.exponent_bits), ("fraction", form.fraction_bits)]
    return [(name, width) for name, width in widths if width]


def _numbers(form: Format) -> Facts:
    decades = math.log10(form.max) - math.log10(form.smallest_subnormal)
    special = [str(say("infinity"))] * form.has_infinity + ["NaN"] * form.has_nan
    return [
        (say("largest"), f"{form.max:.9g}"),
        (say("smallest normal"), f"{form.smallest_normal:.9g} = {two_to(form.emin)}"),
        (say("smallest"), f"{form.smallest_subnormal:.9g}"),
        (say("ulp of 1"), f"{form.eps:.9g} = {two_to(form.machep)}"),
        (say("ulp of the largest"), f"{math.ldexp(1.0, form.emax - form.fraction_bits):.9g}"),
        (say("range"), say("{decades:.1f} decades", decades=decades)),
        (say_of("designer", "values"), f"{form.distinct_values:,}"),
        (say("specials"), str(say_of("between items", ", ")).join(special) or say_of("designer", "none")),
    ]


def near_zero(form: Format) -> np.ndarray:
    """The non-negative values that the ruler shows: all, or the lowest 300, float64."""
    return np.array([form.magnitude(code) for code in range(min(form.max_code + 1, MOST_TICKS))])


def ruler(form: Format) -> str:
    values = near_zero(form)
    drawing = Scene(WIDTH, 62)
    drawing.line(20, 36, WIDTH - 30, 36)
    for value in values.tolist():
        x = 20 + value / values[-1] * (WIDTH - 50)
        subnormal = value < form.smallest_normal
        drawing.line(x, 26 if subnormal else 14, x, 36, stroke=ORANGE if subnormal else BLUE,
                     class_="subnormal" if subnormal else "normal", data_value=repr(value))  # fmt: skip
    drawing.text(20, 54, "0", "middle", 11)
    shown = say("largest") if values.size == form.max_code + 1 else say("and so on")
    drawing.text(WIDTH - 30, 54, bracketed(f"{values[-1]:.6g}", shown), "end", 11)
    ends = say("{size} values from 0 to {n:.6g}", size=values.size, n=values[-1])
    return drawing.svg(after_colon(form.name, ends))


def per_binade(form: Format) -> dict[int, int]:
    """How many positive values each power of two holds, by its exponent."""
    lowest = form.emin - form.fraction_bits if form.zero else form.emin
    counts = {e: 1 << (e - lowest) for e in range(lowest, form.emin)}
    for exponent in range(form.emin, form.emax + 1):
        counts[exponent] = 1 << form.fraction_bits
    top = (form.max_code & ((1 << form.fraction_bits) - 1)) + 1  # the highest binade may end early
    return counts | {form.emax: top}


def density(chosen: tuple[Format, Format]) -> str:
    """log2 of the number of values in each binade, one row a format."""
    tallies = [per_binade(f) for f in chosen]
    first, last = min(min(t) for t in tallies), max(max(t) for t in tallies)
    step, drawing = (WIDTH - 90) / (last - first + 1), Scene(WIDTH, 176)
    tallest = max(math.log2(max(t.values())) for t in tallies) + 1
    for row, (form, tally) in enumerate(zip(chosen, tallies, strict=True)):
        foot = 76.0 + row * 72
        for exponent, n in tally.items():
            tall = (math.log2(n) + 1) / tallest * 58
            x = 74 + (exponent - first) * step
            drawing.rect(x, foot - tall, max(step - 0.6, 0.5), tall, BLUE if row == 0 else GREY, fill_opacity=0.7,
                         class_=f"density-{row}", data_n=n, data_binade=exponent)  # fmt: skip
        drawing.text(68, foot - 4, form.name, "end", 12, font_weight="bold")
        drawing.line(74, foot, WIDTH - 10, foot, stroke_opacity=0.5)
    every = max(1, 2 ** math.ceil(math.log2(max((last - first) / 16, 1))))
    for exponent in range(first, last + 1):
        if exponent % every == 0:
            drawing.text(74 + (exponent - first + 0.5) * step, 168, two_to(exponent), "middle", 11)
    ends = [say("binades {n} to {n2}", n=min(t), n2=max(t)) for t in tallies]
    return drawing.svg("; ".join(after_colon(f.name, end) for f, end in zip(chosen, ends, strict=True)))


def like(name: str) -> State:
    """The state that designs a format of the table."""
    form = formats.get(name)
    return State(form.exponent_bits, form.fraction_bits, form.specials.value)


CONTROLS = (
    Control("exponent_bits", say("exponent bits"), low=1, high=11),
    Control("fraction_bits", say("fraction bits"), low=0, high=23),
    Control("specials", say("specials"), options=tuple(SPECIALS)),
    Control("beside", say("beside"), options=tuple(f.name for f in formats.TABLE)),
)


def _button(name: str) -> Action:
    return Action(verbatim(name), lambda state: change(like(name), "beside", state.beside))


ACTIONS = tuple(map(_button, ("fp16", "bf16", "e4m3", "e5m2", "e2m1")))


@shown(State, render, CONTROLS, ACTIONS)
def widget(state: State) -> State:
    """The format designer. ``specials``: ieee, last, negative_zero or none; what cannot be is told in the picture."""
    one_of("specials", state.specials, SPECIALS)
    return replace(state, beside=formats.get(state.beside).name)
