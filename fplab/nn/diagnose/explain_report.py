"""Why two ways differ: the whole, what each layer and each setting does to it, the rest, and where they part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...columns import REPORT, as_csv, folded, grid
from ...words import NOTHING, Text, joined, say, say_of, verbatim
from ..reporting import Report, leading, number
from .first_difference import ONE_CHAIN, FirstDifference
from .watch_words import by_reason

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 40
SUMS = ("alone", "back", "effect")
SAME = say("Both ways give the same bits.")
EQUAL = say("Both ways give equal outputs.")
LOST = say(
    "Of {n:,} values of the output {a:,} are NaN or infinite in way a and {b:,} in way b: no difference can be taken, "
    "and no layer's part of it."
)
WHOLE = say("b less a: {whole:+.4e}, of {n:,} values the root mean square along their difference.")
WHOLE_ONE = say("b less a: {whole:+.6e} ({a:.9g}, {b:.9g}).")
ALONE = say("Each layer alone in way b: {sum:+.3e} together, the rest is {rest:+.3e}.")
UNSEEN = say(
    "Both ways give equal outputs; layers that differ by themselves: {n:,}. The furthest apart is {layer}{causes}."
)
BACK = say("Each layer alone taken back to way a: {sum:+.3e} together, the rest is {rest:+.3e}.")
MEAN = say("The mean of both: {sum:+.3e}, the rest is {rest:+.3e}.")
LARGEST = say("Largest part of the difference: {layer}, {share:.0%}{causes}.")
HIGH = say("The recipe of way {way} leaves in high precision:")
LEFT = say("{n:,} layers with the smallest own difference were not tried; their part is in the rest.")
OTHER = say("Way {way} has other bits here than where its user runs it: something depends on how layers are called.")
COMPILED = say("Way {way} has the bits that torch.compile gives here.")
BESIDES = say("torch.compile changes more here than way {way} has: {rest:.1%} of the difference is left.")
UNCOMPILED = say("torch.compile computes nothing here that way {way} could be held to.")
FIRST = say(
    "First differing operation: {operation} in {layer}{causes}. Element {place}: {x:.9g} ({x_bits}) in a, {y:.9g} "
    "({y_bits}) in b; {differing:,} of {elements:,} elements differ."
)
CAUSE = say("{name}: {a} in a, {b} in b")
GRAPH = say(
    "Every operation that both ways have gives the same bits in both. Operations of one way alone: {a} in a, {b} in b."
)
MOVED = say("Every operation gives the same bits in both ways; only views, copies or integers are others.")
BECAUSE = say(" ({causes})")
INHERITED = say("(only what it is given)")
UNNAMED = say("(nothing that is recorded)")
OUTSIDE = say("(the output)")
HEADS = (
    say("layer"), say("differs in"), say("own difference"), say("alone in b"), say("taken back"), say("part of all"),
)  # fmt: skip
# The facts of an operation that have a name of the lab's own; others are torch's, such as "eps".
FACTS = {
    "unit": say("unit"), "plan": say_of("order of k", "plan"), "recipe": say_of("facts", "recipe"),
    "store": say_of("facts", "store"), "weights": say("weights"), "operation": say("operation"),
    "formats": say("formats"), "fused": say("fused"), "dtypes": say("dtypes"), "inputs": say_of("facts", "inputs"),
}  # fmt: skip
VALUES = {"-": say_of("words", "none"), ONE_CHAIN: say("one chain")}
PARTS = (say("setting"), say("in a"), say("in b"), say("alone as in b"), say("taken back"))


@dataclass(frozen=True)
class Row:
    """One layer. ``causes``: name -> (how in a, how in b), what it computes otherwise by itself.

    ``own``: the relative difference of its result on the operands of way a. ``alone``: what b in it alone does to the
    output; ``back``: how much of the whole a in it alone takes away.
    """

    layer: str
    causes: dict[str, tuple[str, str]]
    own: float
    alone: float
    back: float

    @property
    def effect(self) -> float:
        """The mean of both."""
        return (self.alone + self.back) / 2

    @property
    def text(self) -> Text:
        """What it computes otherwise, in words."""
        return in_words(self.causes) if self.causes else INHERITED if math.isnan(self.own) else UNNAMED


@dataclass(frozen=True)
class Setting:
    """One of several settings that differ, as written in ``a`` and ``b``; NaN where a GPU cannot have it alone."""

    name: str
    a: str
    b: str
    alone: float
    back: float


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """``whole``: of one value b less a; of several the root mean square of that, along which all else is measured.

    ``rows``: by layer, in the order of the model; ``settings``: of both ways, where more than one differs. ``first``:
    the first differing operation. ``left``: how many layers were not tried. ``faithful``: whether each way has the
    bits here that it has with the model as it is; None was not tried. ``runs``: of the model, in ``seconds``. ``lost``:
    how many values are NaN or infinite in each way; ``whole`` and the layers' parts may then be NaN. ``high``: of each
    way the layers that its recipe leaves in high precision, and why.
    """

    FILE = "explain"
    ROW = Row

    ways: tuple[str, str]
    values: int
    ends: tuple[float, float]
    whole: float
    rows: tuple[Row, ...]
    settings: tuple[Setting, ...]
    first: FirstDifference | None
    left: int
    faithful: tuple[bool | None, bool | None]
    runs: int
    seconds: float
    lost: tuple[int, int] = (0, 0)
    high: tuple[dict[str, Text], ...] = ()
    rests: tuple[float, float] = (math.nan, math.nan)

    @property
    def rest(self) -> tuple[float, float, float]:
        """What is left of the whole by the layers alone in b, by those alone taken back, and by the mean of both."""
        alone, back, mean = (math.fsum([self.whole, *(-getattr(r, n) for r in self.rows)]) for n in SUMS)
        return alone, back, mean

    @property
    def largest(self) -> Row | None:
        """The layer with the largest effect, or own difference where outputs are the same; None where there is none."""
        effects = math.isfinite(self.whole) and self.whole
        return max(self.rows, key=lambda row: abs(row.effect if effects else row.own), default=None)

    def share(self, row: Row) -> float:
        """A layer's part of the whole."""
        return row.effect / self.whole if self.whole else math.nan

    @property
    def text(self) -> Text:
        """All but the tables, in both languages."""
        sentences = list[Text]()
        row, known = self.largest, math.isfinite(self.whole)
        if not known:
            sentences.append(LOST.fill(n=self.values, a=self.lost[0], b=self.lost[1]))
        elif row is None and not self.whole:
            sentences.append(EQUAL if self.first else SAME)
        elif row is not None and not self.whole:
            sentences.append(UNSEEN.fill(n=len(self.rows), layer=_layer(row.layer), causes=_because(row.causes)))
        else:
            if row is not None:
                because = _because(row.causes)
                sentences.append(LARGEST.fill(layer=_layer(row.layer), share=self.share(row), causes=because))
            one = WHOLE_ONE.fill(whole=self.whole, a=self.ends[0], b=self.ends[1])
            sentences.append(WHOLE.fill(whole=self.whole, n=self.values) if self.values > 1 else one)
        p = self.first
        if p is not None and p.differing:
            first = FIRST.fill(x=p.values[0], y=p.values[1], x_bits=p.bits[0], y_bits=p.bits[1])
            first = first.fill(operation=verbatim(p.operation), layer=_layer(p.layer), causes=_because(p.unlike))
            place = verbatim(str(list(p.place)))
            sentences.append(first.fill(place=place, differing=p.differing, elements=p.elements))
        elif p is not None:
            a, b = map(_value, p.unlike["operation"])
            sentences.append(GRAPH.fill(a=a, b=b))
        elif known and self.whole:
            sentences.append(MOVED)
        if known and self.whole:
            for text, name, rest in zip((ALONE, BACK, MEAN), SUMS, self.rest, strict=True):
                sentences.append(text.fill(sum=math.fsum(getattr(r, name) for r in self.rows), rest=rest))
        if self.left:
            sentences.append(LEFT.fill(n=self.left))
        for way, high in zip("ab", self.high, strict=False):
            sentences += [HIGH.fill(way=way), *by_reason(high)] if high else []
        for way, same, rest in zip("ab", self.faithful, self.rests, strict=True):
            if math.isinf(rest):
                sentences.append(UNCOMPILED.fill(way=way))
            elif not math.isnan(rest):
                sentences.append(BESIDES.fill(way=way, rest=rest) if rest else COMPILED.fill(way=way))
            elif same is False:
                sentences.append(OTHER.fill(way=way))
        return joined(sentences, "\n")

    def paragraphs(self) -> Iterator[list[str]]:
        """What is said, a table of the layers, and one of the settings."""
        yield folded(str(self.text).split("\n"))
        if self.rows:
            shown = leading(self.rows, SHOWN, lambda r: -abs(r.effect))
            yield grid([[*map(str, HEADS)], *map(self._cells, shown)], REPORT)
        if self.settings:
            cells = [
                [*map(str, (_name(s.name), _value(s.a), _value(s.b))), number(s.alone, "+.2e"), number(s.back, "+.2e")]
                for s in self.settings
            ]
            yield grid([[*map(str, PARTS)], *cells], REPORT)

    def _cells(self, row: Row) -> list[str]:
        own = f"{row.own:.1e}" if row.own else ""
        changes = number(row.alone, "+.2e"), number(row.back, "+.2e"), number(self.share(row), ".1%")
        return [str(_layer(row.layer)), str(row.text), own, *changes]

    def csv(self) -> str:
        """The layers as CSV, numbers in full."""
        rows = ([r.layer, str(r.text), r.own, r.alone, r.back] for r in self.rows)
        return as_csv([[f.name for f in fields(Row)], *rows])

    def facts(self) -> dict[str, Any]:
        """See :meth:`Report.facts`; the steps of the units are left out."""
        return super().facts() | {"rest": self.rest}

    def figure(self, theme: str = "light") -> Figure:
        """What each layer does to the output alone, what taking it back does, and the rest. "light" or "dark"."""
        from ...draw.explain import draw
        from ...draw.style import themed

        with themed(theme):
            return draw([(str(_layer(r.layer)), r.alone, r.back) for r in self.rows], self.whole, self.rest[:2])

    def save(self, folder: str | Path) -> None:
        """Write explain.csv, explain.json, explain.txt and explain.png into a folder, and the stepper as first.png."""
        from ...draw.style import save

        super().save(folder)
        if self.first is not None and all(self.first.traces):
            save(self.first.figure(), Path(folder) / "first.png", "light")


def in_words(causes: dict[str, tuple[str, str]]) -> Text:
    """What is computed otherwise, in words."""
    result = [CAUSE.fill(name=_name(name), a=_value(a), b=_value(b)) for name, (a, b) in causes.items()]
    return joined(result, say("; "))


def _name(fact: str) -> Text:
    return FACTS.get(fact) or verbatim(fact)


def _value(value: str) -> Text:
    return VALUES.get(value) or verbatim(value)


def _because(causes: dict[str, tuple[str, str]]) -> Text:
    return BECAUSE.fill(causes=in_words(causes)) if causes else NOTHING


def _layer(name: str) -> Text:
    return verbatim(name) if name else OUTSIDE
