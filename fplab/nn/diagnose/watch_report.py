"""The report of a watched run: what broke, what to do and why, a table, and a figure on request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...columns import REPORT, as_csv, folded, grid
from ...errors import name_of
from ...formats import Format
from ...words import NOTHING, Text, joined, verbatim
from ..reporting import Report as Base
from . import watch_words as words
from .format_advice import Limits, LossScale, Row, loss_scale, rows, widths
from .format_counts import SPECIAL, Cuts, Fates, Lost, histogram, merged, resolved
from .nonfinite import NonFinite, power
from .recipe_errors import PASSES, ProductRow
from .watched_run import GRADIENTS, Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FEW = 4  # counted steps below which the report says that they are few: an optimizer's first is like no other
MOST_ROWS = 60  # of the table, where the text does not show all


@dataclass(frozen=True, repr=False)
class Report(Base):
    """What a watched run says about formats. ``str()`` is the whole of it; ``advice`` are its sentences.

    It speaks the language of :func:`fplab.lang`; the figure is in English.
    ``rows``: every layer and kind. ``scales``: by format of 16 bits the loss scale it needs. ``first``: the first
    infinity or NaN. ``products``: what each recipe that was asked for would lose in each layer's products;
    ``unmeasured``: the other layers with weights to multiply by, and why.
    """

    FILE = "watch"
    ROW = Row

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
    products: tuple[ProductRow, ...]
    unmeasured: dict[str, Text]
    _advice: tuple[Text, ...] = field(repr=False)
    _notes: tuple[Text, ...] = field(repr=False)
    formats: tuple[Format, ...] = field(repr=False)
    _cuts: Cuts = field(repr=False, compare=False)
    _largest: dict[str, tuple[tuple[int, float], ...]] = field(repr=False, compare=False)  # by kind: steps and values

    def paragraphs(self) -> Iterator[list[str]]:
        """What was watched, the advice, and the tables."""
        yield folded([self.headline, *self.notes])
        yield folded(self.advice, REPORT, " " * words.LABEL)
        yield [self.table(MOST_ROWS, REPORT)]
        if self.products or self.unmeasured:
            yield [self.products_table(REPORT)]

    def csv(self) -> str:
        """The fates of every layer and kind in each candidate as CSV, counts in full."""
        heads = [f"{f.name} {fate}" for f in self.formats for fate in Fates._fields]
        counts = ([row.layer, row.kind, *(n for fates in row.fates.values() for n in fates)] for row in self.rows)
        return as_csv([["layer", "kind", *heads], *counts])

    def facts(self) -> dict[str, Any]:
        """See :meth:`Report.facts`; tables by binade are left out."""
        return super().facts() | {"advice": self.advice, "notes": self.notes}

    @property
    def headline(self) -> str:
        """What was watched."""
        return str(self.title)

    @property
    def title(self) -> Text:
        """The headline in both languages."""
        return words.HEADLINE.fill(
            model=self.model,
            optimizer=self.optimizer,
            steps=self.steps,
            skipped=words.SKIPPED.fill(n=self.skipped) if self.skipped else NOTHING,
            part=NOTHING if self.counted == self.steps else words.COUNTED.fill(n=self.counted),
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """What broke and what to do, a sentence each."""
        return tuple(map(str, self._advice))

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before reading the counts."""
        return tuple(map(str, self._notes))

    def table(self, most: int | None = None, width: int | None = None) -> str:
        """The table by layer and kind as text; ``most``: leave out rows that need nothing, if there are more.

        ``width``: how many columns it may take, where cells can be broken; None: as many as it needs.
        """
        shown, whole = self.rows, list[list[str]]()
        if most is not None and len(shown) > most:
            kinds = dict.fromkeys(r.kind for r in self.rows)
            usual = {kind: _usual([r for r in self.rows if r.kind == kind]) for kind in kinds}
            whole = [self._whole(kind) for kind in kinds]
            shown = tuple(r for r in self.rows if _formats(r) != usual[r.kind])[: most - len(whole)]
        head = [*map(str, words.HEADS), *(f.name for f in self.formats)]
        head += [str(words.IN_BITS.fill(bits=bits)) for bits in widths(self.formats)]
        cells = [head, *whole, *(self._cells(row) for row in shown)]
        below = [str(words.LEGEND)]
        if len(shown) < len(self.rows):
            below.append(str(words.SHORTENED.fill(shown=len(shown), rows=len(self.rows))))
        return "\n".join([*grid(cells, width), *(below if width is None else folded(below, width))])

    def keep(self, recipe: str) -> tuple[str, ...]:
        """The layers that a recipe should leave in high precision, as its ``keep`` takes them.

        They are those of which a product loses more than twice what it would of normal numbers.
        """
        names = dict.fromkeys(row.recipe for row in self.products)
        recipe = name_of("recipe", recipe, names)
        return tuple(row.layer for row in self.products if row.recipe == recipe and not row.stands)

    def products_table(self, width: int | None = None) -> str:
        """What each recipe would lose in each layer's products as text; ``width``: as for :meth:`table`."""
        names = list(dict.fromkeys(row.recipe for row in self.products))
        result = {(row.layer, row.recipe): row for row in self.products}
        cells = [[str(words.HEADS[0]), *names]]
        for layer in dict.fromkeys(row.layer for row in self.products):
            mine = [result.get((layer, name)) for name in names]
            cells.append([layer, *("" if row is None else _products(row) for row in mine)])
        below: list[Text] = [words.PRODUCTS_LEGEND] if self.products else []
        if self.unmeasured:
            below += [words.UNMEASURED, *words.by_reason(self.unmeasured)]
        shown = grid(cells, width) if self.products else []
        return "\n".join([*shown, *folded(map(str, below), width or REPORT)])

    def _whole(self, kind: str) -> list[str]:
        """All layers of a kind as one row, and what all of them stand."""
        mine = [r for r in self.rows if r.kind == kind]
        table = np.sum([r.table for r in mine], axis=0)
        fates = {f.name: self._cuts.fates(table, f) for f in self.formats}
        lost = [r.lost for r in mine if r.lost is not None]
        cells = self._cells(Row(str(words.ALL), kind, table, fates, {}, merged(lost) if lost else None))
        for bits in mine[0].choices:
            result = dict.fromkeys(str(r.choices[bits] or "fp32") for r in mine if r.judged)
            names = dict.fromkeys(text.partition(" ")[0] for text in result)
            shown = next(iter(result)) if len(result) == 1 else ", ".join(names) or str(words.NONE)
            cells.append("" if kind == "updates" else shown)
        return cells

    def _cells(self, row: Row) -> list[str]:
        any_fates = next(iter(row.fates.values()))
        finite = any_fates.nonzero + any_fates.zero
        broken = any_fates.infinite + any_fates.nan
        low_high = row.binades
        span = (f"2^{low_high[0]}..2^{low_high[1]}" if low_high else str(words.NONE)) + " + inf/nan" * bool(broken)
        cells = [row.layer, str(words.kind(row.kind)), percent(any_fates.zero / max(finite, 1)), span]
        for f in self.formats:
            text = _three(row.fates[f.name])
            if row.lost is not None and row.kind != "weights":
                lost = str(words.LOST.fill(share=percent(row.lost.share(f.name))))
                text = lost if row.kind == "updates" else f"{text}, {lost}"
            cells.append(text)
        for choice in row.choices.values():
            wide = "fp32" if row.judged else str(words.NONE)
            cells.append("" if row.kind == "updates" else wide if choice is None else str(choice))
        return cells

    def figure(self, theme: str = "light") -> Figure:
        """The figure: histograms by binade, gradients against the loss scale, updates lost. "light" or "dark"."""
        from ...draw.style import themed
        from ...draw.watch import draw

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


def _products(row: ProductRow) -> str:
    """The errors of a layer's products; of one that is to stay high with a star."""
    shown = (f"{row.errors[name]:.1%}" if name in row.errors else "-" for name in PASSES)
    return " / ".join(shown) + " *" * (not row.stands)


def _formats(row: Row) -> str:
    """The formats that a row stands, without an 8-bit tensor's own scale."""
    if not row.judged:
        return str(words.NONE)
    return ", ".join(
        "fp32" if c is None else str(c) if bits >= 16 else c.format.name for bits, c in row.choices.items()
    )


def _usual(mine: list[Row]) -> str:
    """The formats that most rows of a kind stand."""
    texts = [_formats(r) for r in mine]
    return max(dict.fromkeys(texts), key=texts.count)


def make_report(seen: Seen, limits: Limits) -> Report:
    """The report of a run."""
    wide = [f for f in seen.formats if f.bits >= 16]
    scales = {f: loss_scale(seen, f, limits) for f in wide}
    result = rows(seen, scales, limits)
    kept = {f.name: s for f, s in scales.items() if s is not None}
    notes: list[Text] = []
    if seen.scales is not None:
        low, high = map(power, seen.scales)
        between = low if low == high else words.BETWEEN.fill(low=low, high=high)
        notes.append(words.DIVIDED.fill(between=between))
    if seen.first_kept is not None:
        notes.append(words.GOES_ON.fill(step=seen.first_kept.step))
    counted = -(-seen.steps // seen.every)
    if counted < FEW:
        notes.append(words.FEW.fill(n=counted))
    if seen.compiled:
        notes.append(words.AS_MADE)
    if seen.unread:
        notes.append(words.UNREAD.fill(names=words.listed(sorted(seen.unread)[:4])))
    judged = tuple(r for r in result if r.judged)
    notes += _unresolved(judged, limits)
    products = seen.products.rows()
    advice = (*_broken(seen), *_scale_advice(kept), *_kept_wide(seen, judged, limits), *_narrower(judged, seen),
              *_in_recipes(products))  # fmt: skip
    if len(judged) < len(result):
        names = tuple(dict.fromkeys(r.layer for r in result if not r.judged))
        text = words.ALL_BROKEN.fill(layers=words.named(names, 4, words.MORE_LAYERS))
        advice += (words.advice(words.NOT_JUDGED, text),)
    scaled = ", as scaled" if seen.scales else ""
    kinds = {"activations": "activations", GRADIENTS[0]: GRADIENTS[0] + scaled, GRADIENTS[1]: GRADIENTS[1]}
    largest = {shown: tuple(seen._fingerprints.largest(kind)) for kind, shown in kinds.items()}
    return Report(
        seen.name, type(seen._optimizer).__name__, seen.steps, counted, seen.skipped, limits,
        seen.first, seen.first_kept, result, kept, products,
        seen.products.unmeasured(seen._model), advice, tuple(notes), seen.formats,
        Cuts(seen.formats), largest,
    )  # fmt: skip


def _broken(seen: Seen) -> list[Text]:
    """What went infinite, first the one that was not skipped."""
    if seen.first is None:
        return [words.advice(words.BROKEN, words.NONE_BROKEN)]
    lines = []
    for event in dict.fromkeys(e for e in (seen.first_kept, seen.first) if e is not None):
        likely = words.LIKELY.fill(cause=event.reason)
        lines += [words.advice(words.BROKEN, event.text), words.advice(words.BLANK, likely)]
    return lines


def _unresolved(judged: tuple[Row, ...], limits: Limits) -> list[Text]:
    """How many gradients FP32's own rounding has made, where so many of a layer would have changed a verdict."""
    tables = [r.table for r in judged if r.kind in GRADIENTS and r.binades]
    counts = [(int(t[:SPECIAL].sum()), int(resolved(t)[:SPECIAL].sum())) for t in tables]
    if not any(nonzero - above > limits.vanish * nonzero for nonzero, above in counts):
        return []
    nonzero, above = (sum(column) for column in zip(*counts, strict=True))
    return [words.UNRESOLVED.fill(share=percent(1 - above / nonzero))]


def _scale_advice(scales: dict[str, LossScale]) -> list[Text]:
    """The loss scale that each format needs, with what it saves."""
    return [words.advice(words.LOSS_SCALE, _scale_needed(name, s)) for name, s in scales.items()]


def _scale_needed(name: str, s: LossScale) -> Text:
    evidence = words.UNSCALED.fill(share=percent(s.without.share("vanish")))
    low, high = s.window
    if s.log2 == 0 and s.works:
        up = words.UP_TO.fill(high=high) if high > 0 else NOTHING
        return words.NONE_NEEDED.fill(format=name, evidence=evidence, up=up)
    vanish, subnormal = (percent(s.within.share(fate)) for fate in ("vanish", "underflow"))
    at = words.AT.fill(vanish=vanish, subnormal=subnormal, log2=s.log2, overflow=s.within.overflow)
    if s.works:
        return words.SCALE.fill(format=name, log2=s.log2, scale=2**s.log2, evidence=evidence, at=at, low=low, high=high)
    layers = words.named(s.left_out, 3, words.MORE)
    return words.NO_SCALE.fill(format=name, log2=s.log2, layers=layers, evidence=evidence, at=at)


def _kept_wide(seen: Seen, judged: tuple[Row, ...], limits: Limits) -> list[Text]:
    """What must stay FP32; nothing is said where no candidate has 16 bits."""
    wide = [f for f in seen.formats if f.bits >= 16]
    if not wide:
        return []
    lines = _master_copy(seen, judged, wide, limits)
    for kind in dict.fromkeys(r.kind for r in judged if r.kind.startswith("state")):
        mine = [r for r in judged if r.kind == kind]
        unfit = [r for r in mine if all(r.choices[b] is None for b in r.choices if b >= 16)]
        if unfit:
            lost = [r.lost for r in mine if r.lost is not None]
            parts = [_state_lost(seen, kind, f.name, lost) for f in wide]
            text = words.STATE.fill(
                kind=words.kind(kind), unfit=len(unfit), layers=len(mine), parts=joined(parts, words.SEMICOLON)
            )
            lines.append(words.advice(words.STAYS, text))
    for kind in ("activations", *GRADIENTS):
        layers = [r.layer for r in judged if r.kind == kind and any(b >= 16 for b in r.choices)
                  and all(r.choices[b] is None for b in r.choices if b >= 16)]  # fmt: skip
        if layers:
            text = words.OF_LAYERS.fill(kind=words.kind(kind), layers=words.named(layers, 4, words.MORE_LAYERS))
            lines.append(words.advice(words.STAYS, text))
    return lines


def _master_copy(seen: Seen, judged: tuple[Row, ...], wide: list[Format], limits: Limits) -> list[Text]:
    """Whether the weights need an FP32 copy, and how many of their updates each format would lose.

    Updates that are lost already, because the weights are held in a narrow format, are lost in every candidate.
    """
    by_layer = {r.layer: r.lost for r in judged if r.kind == "updates" and r.lost is not None and r.lost.pushed}
    if not by_layer:
        return []
    total = merged(list(by_layer.values()))
    stuck = sum(item.still > limits.lost * item.pushed for item in by_layer.values())
    too_many = {f: sum(item.share(f.name) > limits.lost for item in by_layer.values()) for f in wide}
    safe = [f.name for f in wide if not too_many[f] and not stuck]
    verdict = words.NO_COPY.fill(formats=words.listed(safe)) if safe else words.MASTER
    if safe and seen.first_kept is not None:  # its updates are not those of a run that learns
        verdict = words.NO_VERDICT
    shares = [words.WOULD_LOSE.fill(format=f.name, share=_worst(by_layer, total, f.name), bad=too_many[f],
                                    layers=len(by_layer)) for f in wide]  # fmt: skip
    text = words.OF_UPDATES.fill(verdict=verdict, moved=total.moved, shares=joined(shares, words.SEMICOLON))
    lines = [words.advice(words.WEIGHTS if safe else words.STAYS, text)]
    still = words.STILL.fill(n=total.still, bad=stuck, layers=len(by_layer))
    return lines + [words.advice(words.BLANK, still)] * bool(total.still)


def _state_lost(seen: Seen, kind: str, fmt: str, lost: list[Lost]) -> Text:
    """What a format makes of a state, and of its changes."""
    changes = words.CHANGES.fill(share=percent(merged(lost).share(fmt))) if lost else NOTHING
    return words.VANISH.fill(format=fmt, share=percent(seen.fates(fmt, kind).share("vanish")), changes=changes)


def _worst(by_layer: dict[str, Lost], total: Lost, fmt: str) -> Text:
    """The share lost in all, and in the layer that loses most."""
    worst = max(by_layer, key=lambda layer: by_layer[layer].share(fmt))
    most, share = by_layer[worst].share(fmt), percent(total.share(fmt))
    return words.WORST.fill(share=share, layer=worst, most=percent(most)) if most else verbatim(share)


def _narrower(judged: tuple[Row, ...], seen: Seen) -> list[Text]:
    """For each width, in which formats how many tensors of a kind could be held."""
    lines = []
    for bits in widths(seen.formats):
        for name, kinds in (("weights", ("weights",)), ("activations", ("activations",)), ("gradients", GRADIENTS)):
            choices = [r.choices[bits] for r in judged if r.kind in kinds]
            if choices:
                fit = [c.format.name for c in choices if c is not None]
                text = _fitting(name, fit, len(choices), own_scale=bits < 16)
                lines.append(words.advice(words.BITS.fill(bits=bits), text))
    return lines


def _fitting(kind: str, fit: list[str], tensors: int, own_scale: bool) -> Text:
    """How many of so many tensors fit a format each."""
    counts = [words.IN.fill(n=fit.count(n), format=n) for n in dict.fromkeys(fit)]
    return words.FITS.fill(
        kind=words.kind(kind),
        n=tensors,
        counts=words.listed(counts) if counts else words.NO_FORMAT,
        own=words.OWN_SCALE if own_scale and fit else NOTHING,
        rest=words.IN_NONE.fill(n=tensors - len(fit)) if fit and len(fit) < tensors else NOTHING,
    )


def _in_recipes(products: tuple[ProductRow, ...]) -> Iterator[Text]:
    """For each recipe what the products of layers would lose, and which layers to keep high."""
    for name in dict.fromkeys(row.recipe for row in products):
        mine = [row for row in products if row.recipe == name]
        worst = [max(row.errors.values()) for row in mine]
        high = tuple(row.layer for row in mine if not row.stands)
        verdict = words.ALL_STAND
        if high:
            verdict = words.KEEP_HIGH.fill(layers=words.named(high, 4, words.MORE_LAYERS))
        usual = max(mine[0].usual.values())
        text = words.IN_RECIPE.fill(n=len(mine), low=f"{min(worst):.1%}", high=f"{max(worst):.1%}",
                                    usual=f"{usual:.1%}", verdict=verdict)  # fmt: skip
        yield words.advice(verbatim(name.upper()[: words.LABEL - 1]), text)


def picture(report: Report) -> Any:
    """What the figure shows, as plain arrays."""
    from ...draw.lettering import language
    from ...draw.watch import Picture

    gradients = [r.table for r in report.rows if r.kind in GRADIENTS]
    curves = {}
    for f in report.formats if gradients else ():
        fates = [report._cuts.fates(np.sum(gradients, axis=0), f, s) for s in range(25)]
        fate_names = (("vanish",), ("vanish", "underflow"), ("overflow",))
        vanish, low, over = ([x.share(*names) for x in fates] for names in fate_names)
        curves[f.name] = vanish, low, over
    event = report.first_kept or report.first
    order = ("weights", "activations", *GRADIENTS, "updates")
    kinds = sorted(
        dict.fromkeys(r.kind for r in report.rows), key=lambda k: order.index(k) if k in order else len(order)
    )
    return Picture(
        title=report.title.into(language()),
        histograms={(r.layer, r.kind): histogram(r.table) for kind in kinds for r in report.rows if r.kind == kind},
        formats=report.formats,
        curves=curves,
        scale={name: s.log2 for name, s in report.scales.items() if s.works},
        lost={r.layer: (r.lost.moved, r.lost.absorbed) for r in report.rows
              if r.kind == "updates" and r.lost is not None and r.lost.moved},
        largest=report._largest,
        first=event.text.en if event else "",
        broken=event.step if event else None,
    )  # fmt: skip
