"""The report of a watched run: what broke, what to do and why, a table, and a figure on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...formats import Format
from .advice import GRADIENTS, Limits, LossScale, Row, loss_scale, rows, widths
from .events import NonFinite, power
from .losses import Lost, merged
from .tables import Fates, histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .session import watch

MOST_ROWS = 60  # of the table, where the text does not show all
WHAT = "vanish / underflow / overflow"


@dataclass(frozen=True)
class Report:
    """What a watched run says about formats. ``str()`` is the whole of it; ``advice`` are its sentences.

    ``rows``: every layer and kind. ``scales``: by format of 16 bits the loss scale it needs. ``first``: the first
    infinity or NaN.
    """

    model: str
    optimizer: str
    steps: int
    counted: int
    skipped: int
    limits: Limits
    first: NonFinite | None
    first_kept: NonFinite | None
    rows: tuple[Row, ...]
    scales: dict[str, LossScale]
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    formats: tuple[Format, ...] = field(repr=False)
    _seen: Any = field(repr=False, compare=False)

    def __str__(self) -> str:
        return "\n\n".join(("\n".join([self.headline, *self.notes]), "\n".join(self.advice), self.table(MOST_ROWS)))

    __repr__ = __str__

    @property
    def headline(self) -> str:
        """What was watched."""
        skipped = f", {self.skipped} skipped by the loss scaler" if self.skipped else ""
        part = "" if self.counted == self.steps else f", {self.counted} of them counted"
        return f"{self.model} with {self.optimizer}: {self.steps} steps{skipped}{part}"

    def table(self, most: int | None = None) -> str:
        """The table by layer and kind as text; ``most``: leave out rows that need nothing, if there are more."""
        shown, whole = self.rows, list[list[str]]()
        if most is not None and len(shown) > most:
            kinds = dict.fromkeys(r.kind for r in self.rows)
            usual = {kind: _usual([r for r in self.rows if r.kind == kind]) for kind in kinds}
            whole = [self._whole(kind) for kind in kinds]
            shown = tuple(r for r in self.rows if _formats(r) != usual[r.kind])[: most - len(whole)]
        head = ["layer", "kind", "zero", "binades", *(f.name for f in self.formats)]
        head += [f"in {bits} bits" for bits in widths(self.formats)]
        cells = [head, *whole, *(self._cells(row) for row in shown)]
        wide = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, wide, strict=True)).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * w for w in wide))
        legend = f"in each format: {WHAT}, of the non-zero values, unscaled; updates and states: changes lost"
        if len(shown) < len(self.rows):
            legend += (
                f"\n{len(shown)} of {len(self.rows)} rows: the whole model, and layers unlike it; all: report.table()"
            )
        return "\n".join([*lines, legend])

    def _whole(self, kind: str) -> list[str]:
        """All layers of a kind as one row, and what all of them stand."""
        mine = [r for r in self.rows if r.kind == kind]
        table = np.sum([r.table for r in mine], axis=0)
        fates = {f.name: self._seen._tables.fates(table, f) for f in self.formats}
        lost = [r.lost for r in mine if r.lost is not None]
        cells = self._cells(Row("(all)", kind, table, fates, {}, merged(lost) if lost else None))
        for bits in mine[0].choices:
            found = dict.fromkeys(str(r.choices[bits] or "fp32") for r in mine)
            names = dict.fromkeys(text.partition(" ")[0] for text in found)
            cells.append("" if kind == "updates" else next(iter(found)) if len(found) == 1 else ", ".join(names))
        return cells

    def _cells(self, row: Row) -> list[str]:
        any_fates = next(iter(row.fates.values()))
        finite = any_fates.nonzero + any_fates.zero
        broken = any_fates.infinite + any_fates.nan
        low_high = row.binades
        span = f"2^{low_high[0]}..2^{low_high[1]}" if low_high else "none"
        cells = [row.layer, row.kind, percent(any_fates.zero / max(finite, 1)), span + (" + inf/nan" if broken else "")]
        for f in self.formats:
            text = _three(row.fates[f.name])
            if row.lost is not None and row.kind != "weights":
                text = ("" if row.kind == "updates" else text + ", ") + f"lost {percent(row.lost.share(f.name))}"
            cells.append(text)
        for choice in row.choices.values():
            cells.append("" if row.kind == "updates" else "fp32" if choice is None else str(choice))
        return cells

    def figure(self, theme: str = "light") -> Figure:
        """The figure: histograms by binade, gradients against the loss scale, updates lost. "light" or "dark"."""
        from ...plots.style import themed
        from ...plots.watch import draw

        with themed(theme):
            return draw(picture(self))


def percent(share: float) -> str:
    """A share; what is there never reads as nothing, nor what is missing as all.

    >>> percent(0.0), percent(1e-9), percent(0.25), percent(0.9999)
    ('0', '<.1%', '25%', '>99%')
    """
    if share == 0:
        return "0"
    if share < 0.001:
        return "<.1%"
    if share < 0.1:
        return f"{100 * share:.1f}%"
    return "100%" if share == 1 else ">99%" if share > 0.99 else f"{100 * share:.0f}%"


def _three(fates: Fates) -> str:
    shares = [fates.share(name) for name in ("vanish", "underflow", "overflow")]
    return "/".join(map(percent, shares)) if any(shares) else "-"


def _formats(row: Row) -> str:
    """The formats that a row stands, without an 8-bit tensor's own scale."""
    return ", ".join(
        "fp32" if c is None else str(c) if bits >= 16 else c.format.name for bits, c in row.choices.items()
    )


def _usual(mine: list[Row]) -> str:
    """The formats that most rows of a kind stand."""
    texts = [_formats(r) for r in mine]
    return max(dict.fromkeys(texts), key=texts.count)


def make_report(seen: watch, limits: Limits) -> Report:
    """The report of a run."""
    wide = [f for f in seen.formats if f.bits >= 16]
    scales = {f: loss_scale(seen, f, limits) for f in wide}
    found = rows(seen, scales, limits)
    kept = {f.name: s for f, s in scales.items() if s is not None}
    notes = []
    if seen.scales is not None:
        low, high = map(power, seen.scales)
        between = low if low == high else f"{low} to {high}"
        notes.append(f"gradients are shown divided by the run's loss scale ({between})")
    if seen.first_kept is not None:
        notes.append(f"the run broke at step {seen.first_kept.step}; the counts below go on after it")
    if seen.unread:
        notes.append(f"not read (no values on this machine): {', '.join(sorted(seen.unread)[:4])}")
    advice = (*_broken(seen), *_scale_advice(kept, found), *_kept_wide(seen, found, limits), *_narrower(found, seen))
    return Report(
        seen.name, type(seen._optimizer).__name__, seen.steps, -(-seen.steps // seen.every), seen.skipped, limits,
        seen.first, seen.first_kept, found, kept, advice, tuple(notes), seen.formats, seen,
    )  # fmt: skip


def _broken(seen: watch) -> list[str]:
    """What went infinite, first the one that was not skipped."""
    if seen.first is None:
        return ["NOT FINITE  nothing: no infinity and no NaN in any step"]
    lines = []
    for event in dict.fromkeys(e for e in (seen.first_kept, seen.first) if e is not None):
        lines += [f"NOT FINITE  {event}", f"            likely: {event.cause}"]
    return lines


def _scale_advice(scales: dict[str, LossScale], found: tuple[Row, ...]) -> list[str]:
    """The loss scale that each format needs, with what it saves."""
    lines = []
    for name, s in scales.items():
        before, after = s.without.share("vanish"), s.within.share("vanish")
        subnormal = s.within.share("underflow")
        evidence = f"of the non-zero gradients {percent(before)} vanish without a scale"
        if s.log2 == 0 and s.works:
            up = f"; any up to 2^{s.window.high} is safe" if s.window.high > 0 else ""
            lines.append(f"LOSS SCALE  {name}: none needed ({evidence}, none overflow{up})")
            continue
        at = f"{percent(after)} vanish and {percent(subnormal)} are subnormal at 2^{s.log2}"
        at += f", {s.within.overflow:,} overflow"
        if s.works:
            lines.append(f"LOSS SCALE  {name}: 2^{s.log2} = {2**s.log2:,} ({evidence}; {at}; every layer stands "
                         f"2^{s.window.low} to 2^{s.window.high})")  # fmt: skip
        else:
            names = ", ".join(s.left_out[:3]) + (f" and {len(s.left_out) - 3} more" if len(s.left_out) > 3 else "")
            lines.append(f"LOSS SCALE  {name}: no single scale serves every layer; at 2^{s.log2} {names} would lose "
                         f"too much or overflow ({evidence}; {at})")  # fmt: skip
    return lines


def _kept_wide(seen: watch, found: tuple[Row, ...], limits: Limits) -> list[str]:
    """What must stay FP32."""
    lines = []
    by_layer = {r.layer: r.lost for r in found if r.kind == "updates" and r.lost is not None and r.lost.moved}
    wide = [f for f in seen.formats if f.bits >= 16]
    if by_layer:
        total = merged(list(by_layer.values()))
        too_many = {f: [n for n, one in by_layer.items() if one.share(f.name) > limits.lost] for f in wide}
        safe = [f.name for f in wide if not too_many[f]]
        text = (
            f"WEIGHTS     no FP32 copy needed in {', '.join(safe)}" if safe else "STAYS FP32  the weights' master copy"
        )
        shares = "; ".join(
            f"{f.name} would lose {_worst(by_layer, total, f.name)}, "
            f"too many in {len(too_many[f])} of {len(by_layer)} layers"
            for f in wide
        )
        lines.append(f"{text}: of {total.moved:,} updates {shares}")
        if total.still:
            lines.append(
                f"            and {total.still:,} weights with a gradient did not move in the format they are in"
            )
    for kind in dict.fromkeys(r.kind for r in found if r.kind.startswith("state")):
        mine = [r for r in found if r.kind == kind]
        unfit = [r for r in mine if all(r.choices[b] is None for b in r.choices if b >= 16)]
        if unfit:
            lost = [r.lost for r in mine if r.lost is not None]
            parts = []
            for f in wide:
                changes = f", {percent(merged(lost).share(f.name))} of its changes lost" if lost else ""
                parts.append(f"{f.name}: {percent(seen.fates(f, kind).share('vanish'))} vanish{changes}")
            lines.append(f"STAYS FP32  {kind} in {len(unfit)} of {len(mine)} layers ({'; '.join(parts)})")
    for kind in ("activations", *GRADIENTS):
        unfit = [r for r in found if r.kind == kind and any(b >= 16 for b in r.choices)
                 and all(r.choices[b] is None for b in r.choices if b >= 16)]  # fmt: skip
        if unfit:
            lines.append(f"STAYS FP32  {kind} of {', '.join(r.layer for r in unfit[:4])}"
                         f"{f' and {len(unfit) - 4} more layers' if len(unfit) > 4 else ''}")  # fmt: skip
    return lines


def _worst(by_layer: dict[str, Lost], total: Lost, fmt: str) -> str:
    """The share lost in all, and in the layer that loses most."""
    worst = max(by_layer, key=lambda layer: by_layer[layer].share(fmt))
    share = by_layer[worst].share(fmt)
    return f"{percent(total.share(fmt))}" + (f" ({worst} {percent(share)})" if share else "")


def _narrower(found: tuple[Row, ...], seen: watch) -> list[str]:
    """For each width, in which formats how many tensors of a kind could be held."""
    lines = []
    for bits in widths(seen.formats):
        for name, kinds in (("weights", ("weights",)), ("activations", ("activations",)), ("gradients", GRADIENTS)):
            choices = [r.choices[bits] for r in found if r.kind in kinds]
            fit = [c.format.name for c in choices if c is not None]
            counts = ", ".join(f"{fit.count(n)} in {n}" for n in dict.fromkeys(fit)) or "none"
            own = " at a scale of their own" if bits < 16 and fit else ""
            rest = f", {len(choices) - len(fit)} in none" if fit and len(fit) < len(choices) else ""
            if choices:
                lines.append(f"{f'{bits} BITS':11} {name}: of {len(choices)} tensors {counts}{own}{rest}")
    return lines


def picture(report: Report) -> Any:
    """What the figure shows, as plain arrays."""
    from ...plots.watch import Picture

    seen = report._seen
    gradients = [r.table for r in report.rows if r.kind in GRADIENTS]
    curves = {}
    for f in report.formats if gradients else ():
        fates = [seen._tables.fates(sum(gradients), f, s) for s in range(25)]
        fate_names = (("vanish",), ("vanish", "underflow"), ("overflow",))
        vanish, low, over = ([x.share(*names) for x in fates] for names in fate_names)
        curves[f.name] = vanish, low, over
    event = report.first_kept or report.first
    order = ("weights", "activations", *GRADIENTS, "updates")
    kinds = sorted(
        dict.fromkeys(r.kind for r in report.rows), key=lambda k: order.index(k) if k in order else len(order)
    )
    return Picture(
        title=report.headline,
        histograms={(r.layer, r.kind): histogram(r.table) for kind in kinds for r in report.rows if r.kind == kind},
        formats=report.formats,
        curves=curves,
        scale={name: s.log2 for name, s in report.scales.items() if s.works},
        lost={r.layer: (r.lost.moved, r.lost.absorbed) for r in report.rows
              if r.kind == "updates" and r.lost is not None and r.lost.moved},
        largest={
            kind + (", as scaled" if seen.scales and kind == GRADIENTS[0] else ""): tuple(seen._trail.largest(kind))
            for kind in ("activations", *GRADIENTS)
        },
        first=str(event or ""),
        broken=event.step if event else None,
    )  # fmt: skip
