"""The accumulation explorer: one term added again and again, in a format and an order, against the exact sum."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .. import floats, formats, spacing, sums
from ..draw.page import Said, after_colon, facts, listed, note, panel, title
from ..draw.scene import BLUE, ORANGE, Scene
from ..errors import LabError, integer, one_of
from ..inspection.given import parse
from ..numerals import short, signed
from ..words import say, say_of
from .shell import OPTIONS, Control, shown

MOST = 4096
POINTS, FEWER = 64, 32  # of the curve; fewer where every point is a sum of its own
WIDTH, HEIGHT, LEFT = 820, 260, 76
FORMATS = tuple(f.name for f in formats.TABLE if f.signed and f.zero and f.bits <= 32)


@dataclass(frozen=True)
class State:
    """``term``: added ``n`` times, as text, rounded to ``format`` first. ``order``: of :func:`fplab.sum`."""

    term: str = "0.1"
    n: int = 4096
    format: str = "fp16"
    accumulate: str = "fp16"
    order: str = "sequential"


@dataclass(frozen=True)
class Curve:
    """``counts``: after how many terms, int64; ``computed``: float64; ``exact``: the sums of the rounded terms.

    ``stalls``: after how many terms another one changes nothing, or the sum is no number any more.
    """

    counts: np.ndarray
    computed: np.ndarray
    term: Fraction
    stalls: int | None

    @property
    def exact(self) -> list[Fraction]:
        return [self.term * int(n) for n in self.counts]


def curve(state: State) -> Curve:
    """The sums after up to 64 numbers of terms, and where they stall (in sequential order)."""
    n = integer("n", state.n, 1, MOST)
    one_of("order", state.order, sums.ORDERS)
    value = parse(state.term).value
    if value.kind != "finite":
        raise LabError(f"term={state.term!r} is no finite number.")
    inside = abs(value.value) <= Fraction(2) ** 1023  # a float can hold it; no format here goes further
    term = np.float64(floats.quantize(float(value.value), state.format)) if inside else np.float64(np.inf)
    if not np.isfinite(term):
        raise LabError(f"term={state.term!r} is beyond {state.format}, whose largest value is "
                       f"{formats.get(state.format).max:g}.")  # fmt: skip
    terms = np.full(n, term, np.float64)
    points = POINTS if state.order in sums.RUNNING else FEWER
    counts = np.unique(np.linspace(1, n, min(n, points)).round().astype(np.int64))
    options: dict[str, Any] = {"order": state.order, "accumulate": state.accumulate}
    if state.order in sums.RUNNING:
        running = np.asarray(sums.sum(terms, state.format, running=True, **options), np.float64)
        computed = running[counts - 1]
    else:
        computed = np.array([float(sums.sum(terms[:k], state.format, **options)) for k in counts.tolist()])
    stalls = None
    if state.order == "sequential" and term:
        ended = np.flatnonzero((running == np.append(running[1:], np.nan)) | ~np.isfinite(running))
        stalls = int(ended[0]) + 1 if ended.size else None
    return Curve(counts, computed, Fraction(float(term)), stalls)


def render(state: State) -> str:
    """The running sum and the exact one, where it stalls, and the error at the end."""
    shown = curve(state)
    end, wanted = float(shown.computed[-1]), shown.exact[-1]
    lines: list[tuple[Said, Said]] = [(say("term in the format"), short(shown.term, 12)),
             (say("computed"), repr(end)), (say_of("accumulation", "exact"), short(wanted, 12))]  # fmt: skip
    if np.isfinite(end):
        error = Fraction(end) - wanted
        relative = f" ({signed(100 * error / abs(wanted), 3)} %)" if wanted else ""
        lines.append((say("error"), signed(error) + relative))
    lines.append((say("stalls"), _stall(shown, state)))
    how = listed(state.format, state.accumulate, OPTIONS.get(state.order, state.order))
    return panel(title(after_colon(f"{state.n:,} × {state.term}", how)), _plot(shown, state), facts(lines),
                 note(say("Dashed: exact. Solid: computed.")))  # fmt: skip


def _stall(curve: Curve, state: State) -> Said:
    if curve.stalls is None:
        return say("nowhere within these terms")
    at = float(sums.sum(np.full(curve.stalls, float(curve.term)), state.format, accumulate=state.accumulate))
    if not np.isfinite(at):
        return say("after {stalls:,} terms the sum overflows", stalls=curve.stalls)
    most = formats.get(state.accumulate).max
    if abs(at) >= most:
        return say("after {stalls:,} terms at the largest value, {at:g}", stalls=curve.stalls, at=at)
    ulp = float(spacing.ulp(at, state.accumulate))
    return say("after {stalls:,} terms at {at:g}, where the spacing is {ulp:g} and the term at most half of it",
               stalls=curve.stalls, at=at, ulp=ulp)  # fmt: skip


def _plot(curve: Curve, state: State) -> str:
    exact = [float(x) for x in curve.exact]
    finite = [*exact, *curve.computed[np.isfinite(curve.computed)].tolist(), 0.0]
    low, high = min(finite), max(finite)
    span = high - low or 1.0
    drawing = Scene(WIDTH, HEIGHT + 50)

    def at(n: int, y: float) -> tuple[float, float]:
        return LEFT + n / state.n * (WIDTH - LEFT - 110), 16 + (high - y) / span * HEIGHT

    drawing.line(*at(0, low), *at(state.n, low), stroke_opacity=0.5)
    drawing.line(*at(0, low), *at(0, high), stroke_opacity=0.5)
    counts = curve.counts.tolist()
    drawing.path([at(0, 0), *(at(n, y) for n, y in zip(counts, exact, strict=True))], stroke=ORANGE, stroke_width=2,
                 stroke_dasharray="7 4", class_="exact")  # fmt: skip
    kept = [(n, float(y)) for n, y in zip(counts, curve.computed, strict=True) if np.isfinite(y)]
    drawing.path([at(0, 0), *(at(n, y) for n, y in kept)], stroke=BLUE, stroke_width=2.5, class_="computed")
    for n, y in kept[:: max(len(kept) // 12, 1)]:
        x, height = at(n, y)
        drawing.add("circle", cx=x, cy=height, r=3.5, fill=BLUE, class_="sum", data_n=n, data_sum=repr(y))
    computed = [(y, say_of("accumulation", "computed")) for _, y in kept[-1:]]
    names = [(exact[-1], say_of("accumulation", "exact")), *computed]
    for y, name in names:
        x, height = at(state.n, y)
        lower = (
            12 if len(names) == 2 and y == min(v for v, _ in names) and name != say_of("accumulation", "exact") else -2
        )
        drawing.text(x + 8, height + lower, name, size=12)
    drawing.text(LEFT - 8, 24, f"{high:.5g}", "end", 11)
    drawing.text(LEFT - 8, 18 + HEIGHT, f"{low:.5g}", "end", 11)
    drawing.text(at(state.n, low)[0], HEIGHT + 36, say("{n:,} terms", n=state.n), "end", 11)
    end = float(curve.computed[-1])
    return drawing.svg(say("sum {end!r}, exact {n!r}", end=end, n=exact[-1]))


CONTROLS = (
    Control("term", say("term")),
    Control("n", say("number of terms"), low=1, high=MOST),
    Control("format", say("format"), options=FORMATS),
    Control("accumulate", say("accumulator"), options=FORMATS),
    Control("order", say("order"), options=tuple(sums.ORDERS)),
)


@shown(State, render, CONTROLS)
def widget(state: State) -> None:
    """The accumulation explorer. Raises LabError for what :func:`fplab.sum` refuses."""
    curve(state)
