"""What a shadow found: the cause, the waterfall over the layers, what adds up to what, and the worst elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...columns import REPORT, folded, grid
from ...kernels import discrepancy as kernel
from ...words import NOTHING, Text, joined, say, say_of, verbatim
from ..emulation.low_precision import HANDLERS
from ..emulation.product_log import PHASES
from ..reporting import UNLISTED, leading, number
from ..reporting import Report as Base
from . import exact_operations
from .error_sums import CACHE, Constant, Run, Tally, Where
from .exact_operations import Element

MOST_ROWS = 40
BITS_NAMED = 4.0  # cancelled bits from which it is called catastrophic: more than one digit in ten remains of none
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_PRODUCTS = exact_operations.MATRIX_PRODUCTS | HANDLERS.keys() | {
    "addbmm", "addmv", "convolution", "convolution_backward", _ATTENTION, f"{_ATTENTION}_backward",
}  # fmt: skip
_SUMS = frozenset({"sum", "mean", "cumsum", "logsumexp", "prod", "cumprod"})

NOTHING_BORN = say("No error was born: no finite result differs from its companion.")
FIRST = say("{layer} ({phase}): {cause}.")
BROKE = say("{operation} in {format} makes {n:,} values infinite or NaN that are finite")
VANISHED = say(
    "the constant {value:g} is below {format}'s range (smallest {smallest:.2g}) and is taken for 0 by {operation}"
)
ROUNDED = say("values rounded to {format}{lost}")
LOST = say(", {zero:.1%} of them to zero and {most:.1%} cut off at its largest value: a scale is missing")
CACHED = say("keys and values through a cache of {format}{lost}")
QUANTISED = say("values quantised by {operation}, {n:,} times")
SUMMED = say("a sum in {format}: {operation}, {n:,} times")
ADDED = say("a sum in {format}: {n:,} additions of rounded results")
MULTIPLIED = say("products in {format}: {operation}, {n:,} times")
WEIGHED = say("weights in {format} that differ from their exact ones")
SPLIT = say("differs first: a product of k = {k} is summed in {n} parts (split-K: {parts})")
DIFFERS = say("differs first: {operation} in {format}, where the other run has {other}")
MERELY = say("differs first: {operation} in {format} has other bits on other errors")
SAME = say("No layer's errors differ between the two runs.")
OTHER = say("{operation} in {format}, {n:,} times")
ADDS = say("{cause}; it adds a relative error of {born:.1e}{share}")
SHARE = say(", {share:.0%} of the weight of all errors in the loss")
HEADS = (
    say("layer"), say("pass"), say("born in"), say("born"), say("arrives"), say("leaves"), say("growth"),
    say("right bits"), say("effect on the loss"),
)  # fmt: skip
UPDATE = say_of("a pass", "update")
OUTSIDE = say("(outside)")
SUM = say(
    "Loss {real:.9g}, exactly {exact:.9g}: {whole:+.3e}. The layers' effects (first order{how}) sum to {sum:+.3e}; the "
    "rest is {rest:+.3e}."
)
HOW = say(", by the mean of exact and computed gradients")
NO_LOSS = say("No backward() in the block: what errors do to a loss was not measured.")
SHORTENED = say("{shown} of {rows} rows; all of them are in .rows.")
LEGEND = say(
    "born: what the layer's worst operation adds, on its own operands; arrives, leaves: the relative error of its "
    "operands and results (roots of squares); growth: arrives to carried on."
)
ANEW = say("Taken as exact where they began, having no float64 form here: {names}.")
NARROW = say("In FP64 only, having no double-double form: {names}.")
WORST = say("Worst elements:")
ELEMENT = say("* {layer} {operation}{place}: {real:.9g} for {exact:.9g}, an error of {relative:.1e}{cancelled}{made}")
CANCELLED = say("; catastrophic cancellation, {bits:.1f} bits lost")
MADE = say(", of {operands}")
OPERAND = say("{real:.9g} (exactly {exact:.9g})")


@dataclass(frozen=True)
class Row:
    """One layer in one pass. ``operation``, ``format``: where most is born. The errors are relative, roots of squares.

    ``effect``: what its errors do to the loss, to first order. ``weight``: the root of the squares of the terms of that
    sum, which do not cancel each other.
    """

    layer: str
    phase: str
    operation: str
    format: str
    born: float
    arrives: float
    leaves: float
    growth: float
    effect: float
    weight: float

    @property
    def bits(self) -> float:
        """How many leading bits of what leaves are right, by its relative error."""
        return -math.log2(self.leaves) if self.leaves else math.inf


@dataclass(frozen=True, repr=False)
class Report(Base):
    """``rows``: the waterfall. ``operations``: tallies of all kinds of results. ``elements``: the worst, traced.

    ``narrow``: operations that a shadow in double-double had in FP64 alone.
    ``whole``: the loss less its exact value; ``explained``: the sum of the rows' effects; ``rest``: the difference.
    """

    FILE = "shadow"
    ROW = Row

    diagnosis: Text
    layer: str
    cause: Text
    rows: tuple[Row, ...]
    operations: dict[Where, Tally] = field(metadata=UNLISTED)
    elements: tuple[Element, ...]
    anew: tuple[str, ...]
    loss: tuple[float, float] | None
    whole: float
    explained: float
    _how: Text
    splits: dict[str, tuple[int, ...]]
    narrow: tuple[str, ...] = ()

    def against(self, other: Report) -> Text:
        """The first layer and operation whose errors are not those of another run of the same model, and why."""
        for where, tally in self.operations.items():
            known = other.operations.get(where)
            if known is not None and np.array_equal(known.sums, tally.sums, equal_nan=True):
                continue
            parts = self.splits.get(where.layer, ())
            given = {"operation": _short(where.operation), "format": where.format}
            if len(parts) > len(other.splits.get(where.layer, ())):
                cause: Text = SPLIT.fill(k=sum(parts), n=len(parts), parts=" + ".join(map(str, parts)))
            elif known is None:
                theirs = [f"{_short(w.operation)} {w.format}" for w in other.operations if w[:2] == where[:2]]
                cause = DIFFERS.fill(other=", ".join(theirs) or "-", **given)
            else:
                cause = MERELY.fill(**given)
            return FIRST.fill(layer=where.layer or OUTSIDE, phase=_phase(where.phase), cause=cause)
        return SAME

    @property
    def rest(self) -> float:
        """What the first order does not explain."""
        return self.whole - self.explained

    def facts(self) -> dict[str, Any]:
        """See :meth:`Report.facts`; the tallies of operations are left out."""
        return super().facts() | {"rest": self.rest}

    def paragraphs(self) -> Iterator[list[str]]:
        """The diagnosis, the waterfall, and the worst elements."""
        lines = [str(self.diagnosis)]
        if self.loss is None:
            lines.append(str(NO_LOSS))
        else:
            real, exact = self.loss
            given = {"whole": self.whole, "sum": self.explained, "rest": self.rest, "how": self._how}
            lines.append(str(SUM.fill(real=real, exact=exact, **given)))
        yield folded(lines)
        shown = leading(self.rows, MOST_ROWS, lambda row: (-row.weight, -row.born))
        lines = [*grid([[*map(str, HEADS)], *map(_cells, shown)], REPORT), *folded([str(LEGEND)])]
        if len(shown) < len(self.rows):
            lines.append(str(SHORTENED.fill(shown=len(shown), rows=len(self.rows))))
        yield lines
        below = [str(WORST), *(str(_sentence(e)) for e in self.elements)] if self.elements else []
        if self.anew:
            below.append(str(ANEW.fill(names=", ".join(self.anew))))
        if self.narrow:
            below.append(str(NARROW.fill(names=", ".join(self.narrow))))
        yield folded(below)


def make(run: Run) -> Report:
    """The report of a run so far."""
    run.companions.sweep()
    tallies = {w: t for w, t in run.tallies.items() if t.sums[kernel.BORN] or t.sums[kernel.TOTAL] or t.weight
               or t.count(kernel.BROKEN)}  # fmt: skip
    sums = [math.fsum(t.effect[i] for t in tallies.values()) for i in (0, 1)]
    better = int(abs(run.whole - sums[1]) < abs(run.whole - sums[0]))
    layers: dict[tuple[str, str], list[tuple[Where, Tally]]] = {}
    for where, tally in tallies.items():
        layers.setdefault((where.layer, where.phase), []).append((where, tally))
    rows = tuple(_row(of, better) for of in layers.values())
    diagnosis, layer, cause = _diagnosed(run, layers)
    return Report(
        diagnosis, layer, cause, rows, tallies, elements=tuple(run.elements), anew=tuple(sorted(run.anew)),
        loss=(run.real, run.exact) if run.roots else None, whole=run.whole, explained=sums[better],
        _how=HOW if better else NOTHING, splits=dict(run.splits), narrow=tuple(sorted(run.narrow)),
    )  # fmt: skip


def _row(of: Sequence[tuple[Where, Tally]], better: int) -> Row:
    where, top = max(of, key=lambda x: (x[1].born, -x[1].order))
    last = max(of, key=lambda x: x[1].order)[1]
    grown = [t.growth for _, t in of if not math.isnan(t.growth)]
    return Row(
        where.layer, where.phase, where.operation, where.format, top.born, of[0][1].given, last.total,
        max(grown, default=math.nan), math.fsum(t.effect[better] for _, t in of),
        math.sqrt(math.fsum(t.weight for _, t in of)),
    )  # fmt: skip


def _diagnosed(run: Run, layers: dict[tuple[str, str], list[tuple[Where, Tally]]]) -> tuple[Text, str, Text]:
    """The first sentence, the layer that it names, and why: what first breaks values, else what weighs most."""
    if not layers:
        return NOTHING_BORN, "", NOTHING_BORN
    breaking = sorted((t.order, w, t) for w, t in run.tallies.items() if t.made_broken)
    share: Text = NOTHING
    if breaking:
        _, where, tally = breaking[0]
        cause: Text = BROKE.fill(operation=where.operation, format=where.format, n=tally.made_broken)
        if (constant := _constant(run, where.layer)) is not None:
            cause = joined((_vanished(constant), cause), say("; "))
            where = constant.where
    else:
        weighed = any(t.weight for of in layers.values() for _, t in of)

        def rank(x: tuple[Where, Tally]) -> float:
            return x[1].weight if weighed else x[1].born if x[0].phase == "forward" else x[1].born * 1e-3

        by_layer = {name: sum(map(rank, of)) for name, of in layers.items()}
        most = max(by_layer, key=lambda name: by_layer[name])
        where, tally = max(layers[most], key=rank)
        if weighed:
            share = SHARE.fill(share=by_layer[most] / math.fsum(by_layer.values()))
        cause = ADDS.fill(cause=_cause(run, where, tally), born=tally.born, share=share)
    text = FIRST.fill(layer=where.layer or OUTSIDE, phase=_phase(where.phase), cause=cause)
    return text, where.layer, cause


def _constant(run: Run, layer: str) -> Constant | None:
    """A constant that vanished in a layer."""
    return next((c for c in run.constants.values() if c.where.layer == layer), None)


def _vanished(constant: Constant) -> Text:
    return VANISHED.fill(
        value=constant.value,
        format=constant.where.format,
        smallest=constant.smallest,
        operation=constant.where.operation,
    )


def _cause(run: Run, where: Where, tally: Tally) -> Text:
    """What an operation did to its values, in the words of its kind."""
    given = {"operation": _short(where.operation), "format": where.format, "n": tally.calls}
    if where.operation != CACHE and exact_operations.quantises(where.operation, where.format):
        return QUANTISED.fill(**given)
    if where.operation in ("rounding", "_to_copy", "copy", CACHE):
        zero, most = tally.count(kernel.GONE) / tally.values, tally.count(kernel.HIGH) / tally.values
        return (CACHED if where.operation == CACHE else ROUNDED).fill(
            format=where.format, lost=LOST.fill(zero=zero, most=most) if zero + most > 0.001 else NOTHING
        )
    if (constant := _constant(run, where.layer)) is not None:
        return _vanished(constant)
    if where.operation == "weights":
        return WEIGHED.fill(**given)
    if where.operation in _PRODUCTS:
        return MULTIPLIED.fill(**given)
    if where.operation in _SUMS:
        return SUMMED.fill(**given)
    return ADDED.fill(**given) if where.operation == "add" and tally.calls > 2 else OTHER.fill(**given)


def _phase(name: str) -> Text:
    return UPDATE if name == "update" else PHASES[name]


def _cells(row: Row) -> list[str]:
    errors = (number(x or math.nan, ".1e") for x in (row.born, row.arrives, row.leaves))
    bits = "" if math.isinf(row.bits) else f"{row.bits:.1f}"
    effect = f"{row.effect:+.2e}" if row.weight else ""
    return [
        row.layer or str(OUTSIDE), str(_phase(row.phase)), f"{_short(row.operation)} {row.format}", *errors,
        number(row.growth, ".2f"), bits, effect,
    ]  # fmt: skip


def _short(operation: str) -> str:
    return operation.replace(_ATTENTION, "attention")


def _sentence(e: Element) -> Text:
    cancelled = CANCELLED.fill(bits=e.bits) if e.bits is not None and e.bits >= BITS_NAMED else NOTHING
    made: Text = NOTHING
    if e.operands:
        made = MADE.fill(operands=joined(_listed(e.operands), say(", ")))
    place = verbatim(str(list(e.place)))
    return ELEMENT.fill(
        layer=e.layer or OUTSIDE, operation=_short(e.operation), place=place, real=e.real, exact=e.exact,
        relative=e.relative, cancelled=cancelled, made=made,
    )  # fmt: skip


def _listed(pairs: Iterable[tuple[float, float]]) -> list[Text]:
    return [OPERAND.fill(real=real, exact=exact) for real, exact in pairs]
