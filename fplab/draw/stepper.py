"""The Tensor Core stepper as a figure: every term of a block as bits on one binary scale, and what falls off it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..errors import LabError, integer
from ..tensorcore.tracing import Step, Term, Trace
from .style import current, new_figure

MOST = 4  # steps that fit one figure
BELOW = 10  # places drawn below the quantum; what lies lower is told in words
DIGITS = 20  # rows up to which the digits are written into the boxes

Bits = Iterator[tuple[int, str]]


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
    rows = [len(_terms(step)) + 3.6 for step in shown]
    figure = new_figure(11.5, 0.24 * sum(rows) + 0.75 * len(shown) + 0.4)
    grid = figure.add_gridspec(len(shown), 1, height_ratios=rows)
    for i, step in enumerate(shown):
        draw_step(figure.add_subplot(grid[i]), step, trace, first + i)
    return figure


def draw_step(ax: Axes, step: Step, trace: Trace, number: int) -> None:
    """One block: its terms, their sum and the result, on an axis of powers of two."""
    ax.set_axis_off()
    what = "block" if step.what == "block" else "c is added"
    title = f"{trace.model.name}, step {number}: {what}"
    if step.emax is None or not step.quantum:
        text = "nothing is aligned" if math.isfinite(step.result) else "special operands decide"
        ax.set_title(f"{title}; {text}, result {step.result:g}", loc="left")
        return
    low = _log2(step.quantum)
    ax.set_title(f"{title}; aligned to $2^{{{step.emax}}}$, cut below $2^{{{low}}}$", loc="left", pad=12)
    terms = _terms(step)
    overflows = not math.isfinite(step.result)
    rounded = Fraction(0) if overflows else Fraction(step.result)
    place = low if overflows else _last_place(rounded, trace)
    change = f", {-float(step.lost_to_rounding):+.3g} by rounding" if step.lost_to_rounding else ""
    sums = [
        (step.total, "sum", f"{step.units:,} × $2^{{{low}}}$", place),
        (rounded, "result", f"= {step.result:.9g}{change}", place),
    ]
    top = max(_top(value) for value in [*(t.value for t in terms), step.total, Fraction(2) ** step.emax])
    bottom = max(low - BELOW, min(low, *(_last(v) for v in [*(t.value for t in terms), step.total])))
    row = 0.0
    for term in terms:
        _row(ax, row, term.value, low, bottom, _name(term), _fate(term, low), len(terms) <= DIGITS)
        row += 1
    for value, name, end, last in sums:
        _row(ax, row + 0.6, value, last, bottom, name, end, True)
        row += 1
    _frame(ax, row + 0.6, top, bottom, low, len(terms))


def _terms(step: Step) -> list[Term]:
    """The terms that are not zero."""
    return [term for term in step.terms if term.value]


def _log2(power: Fraction) -> int:
    return power.numerator.bit_length() - power.denominator.bit_length()


def _top(value: Fraction) -> int:
    """The place of the highest 1."""
    if not value:
        return -(10**6)
    place = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return place if Fraction(2) ** place <= abs(value) else place - 1


def _last(value: Fraction) -> int:
    """The place of the lowest 1; values are sums of powers of two."""
    if not value:
        return 10**6
    low_one = value.numerator & -value.numerator
    return low_one.bit_length() - value.denominator.bit_length()


def _last_place(result: Fraction, trace: Trace) -> int:
    """The place of the last bit that the result's format keeps."""
    form = trace.model.result
    exponent = max(_top(result), form.emin) if result else form.emin
    return exponent - min(form.fraction_bits, trace.model.kept_bits)


def _name(term: Term) -> str:
    return "c" if term.k < 0 else f"k = {term.k}:  {term.a:.5g} × {term.b:.5g}"


def _fate(term: Term, low: int) -> str:
    """What became of a term, in words."""
    shift = f"shift {term.shift}"
    if not term.lost:
        return shift
    if not term.units:
        return f"{shift}: lost, $2^{{{_top(term.value)}}}$ is below $2^{{{low}}}$"
    return f"{shift}: {term.bits_lost} bit{'s' * (term.bits_lost != 1)} lost"


def _digits(value: Fraction, bottom: int) -> Bits:
    """The places and binary digits of a magnitude, from its highest 1 to its lowest, none below ``bottom``."""
    top, last = _top(value), max(_last(value), bottom)
    scaled = int(abs(value) / Fraction(2) ** last) if last <= top else 0
    for place in range(top, last - 1, -1):
        yield place, str(scaled >> (place - last) & 1)


def _row(ax: Axes, row: float, value: Fraction, low: int, bottom: int, name: str, end: str, digits: bool) -> None:
    """A value's bits with its top edge at -row; those below ``low`` crossed out."""
    theme = current()
    total = name in ("sum", "result")
    colour = theme.ink if total else theme.series[2 if name == "c" else 0]
    for place, digit in _digits(value, bottom):
        box = Rectangle((-place - 0.45, -row - 0.9), 0.9, 0.8)
        lost = place < low
        box.set_facecolor(theme.series[1] if lost else colour)
        box.set_alpha(1.0 if digit == "1" else 0.18)
        ax.add_patch(box)
        if digits:
            shade = theme.background if digit == "1" else theme.ink
            ax.text(-place, -row - 0.53, digit, ha="center", va="center", fontsize=7.5, color=shade)
        if lost:
            ax.plot([-place - 0.45, -place + 0.45], [-row - 0.9, -row - 0.1], color=theme.ink, linewidth=0.8)
    weight = "bold" if total else "normal"
    beside: dict[str, Any] = {"va": "center", "fontsize": 8.5, "annotation_clip": False}
    sign = "−" if value < 0 else ""
    ax.annotate(f"{name}   {sign}", (0, -row - 0.5), xycoords=("axes fraction", "data"), ha="right", fontweight=weight,
                **beside)  # fmt: skip
    ax.annotate(end, (1, -row - 0.5), xycoords=("axes fraction", "data"), ha="left", color=theme.muted, **beside)
    if value and _last(value) < bottom <= _top(value):
        ax.text(-bottom + 0.7, -row - 0.5, "…", va="center", fontsize=8.5, color=theme.series[1])


def _frame(ax: Axes, rows: float, top: int, bottom: int, low: int, terms: int) -> None:
    """The scale, and the line below which bits fall off."""
    theme = current()
    ax.set_xlim(-top - 0.8, -bottom + 1.6)
    ax.set_ylim(-rows - 1.2, 0.2)
    ax.plot([-low + 0.5] * 2, [0.1, -terms - 0.1], color=theme.series[1], linewidth=1.4)
    ax.text(-low + 0.6, 0.1, "quantum", color=theme.series[1], fontsize=8, va="bottom")
    ax.axhline(-terms - 0.3, color=theme.muted, linewidth=0.8)
    for place in range(bottom, top + 1):
        if place % 4 == 0:
            ax.text(-place, -rows - 0.2, f"$2^{{{place}}}$", ha="center", va="top", fontsize=8, color=theme.muted)
