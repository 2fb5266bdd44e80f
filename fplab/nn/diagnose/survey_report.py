"""What a survey found: rows by layer, choice and pass; the whole by choice; the recommendation; CSV, JSON, a figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ...columns import REPORT, folded, grid
from ...words import COMMA, LIST, Text, joined, say
from ..emulation.product_log import PHASES
from ..reporting import Report, leading, number
from .format_assignment import PerChoice, Tried
from .layer_errors import Local, Measured, Whole
from .watch_words import by_reason, tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPREAD = ("local", "bits", "effect")
RECOMMENDED = say(
    "Recommended: {cost:.1f} bits an operand on average, scales aside, {mixture}; the loss changes by {loss:.2e} as "
    "run, by {predicted:.2e} to first order (budget {budget:g})."
)
MISSED = say(
    "No assignment that was tried keeps to the budgets; the nearest, {mixture}, changes the loss by {loss:.2e} (budget "
    "{budget:g})."
)
ALONG = say("The cosine of its gradients with the exact ones is {found:.4f} as run; {asked:g} was asked for.")
LOSS_ALONE = say(
    "Gradients do not enter the choice: with all layers in {choice} their cosine is {least:.2f}, the least of what is "
    "chosen. cosine= asks for one."
)
SCOPED = say(
    "A survey tries a recipe in every layer with weights. As the recipe of a model, {choices} has scope {scope}, which "
    "leaves in high precision:"
)
OVER_BATCHES = say("±: the standard deviation over the batches.")
WORST, OF_CHOICE = say("Of single layers the loss feels most: {worst}."), say("{layer} in {choice} ({effect})")
UNTRIED = say("{n} assignments that might be cheaper were not run.")
MIXED = say("{choice} for {n} layer{s}")
WHOLE = (
    say("all layers in"), say("loss"), say("KL"), say("top-1 flips"), say("gradients' cosine"),
    say("gradients' error"), say("unexplained"),
)  # fmt: skip
HEADS = (
    say("layer"), say("pass"), say("in"), say("own error"), say("inherited"), say("amplified"), say("to zero"),
    say("subnormal"), say("overflow"), say("bits"), say("effect on the loss"), say("recommended"),
)  # fmt: skip
SHOWN = 48


@dataclass(frozen=True)
class Row(Local):
    """One layer, pass and choice: the mean over the batches, and of three columns the standard deviation."""

    choice: str
    local_spread: float
    bits_spread: float
    effect_spread: float

    @property
    def effect_text(self) -> str:
        """The effect on the loss, with its spread over the batches where there are several."""
        spread = "" if math.isnan(self.effect_spread) else f" ± {self.effect_spread:.0e}"
        return f"{self.effect:+.1e}{spread}"


@dataclass(frozen=True)
class Scoped:
    """The layers with weights that a recipe, here tried in all, leaves high by its own ``scope``, and why."""

    scope: str
    layers: tuple[tuple[str, Text], ...]


@dataclass(frozen=True, repr=False)
class Survey(Report):
    """``rows``: by layer, pass and choice. ``wholes``: by choice, (mean, standard deviation) over the batches.

    ``trials``: the assignments that were run, every choice for all layers among them; ``untried``: how many were not
    run that might be cheaper than the recommendation; ``seconds``: what all of it took. ``scoped``: by recipe what
    its own scope leaves high.
    """

    FILE = "survey"
    ROW = Row

    gpu: str
    budget: float
    cosine: float | None
    rows: tuple[Row, ...]
    wholes: dict[str, tuple[Whole, Whole]]
    trials: tuple[Tried, ...]
    untried: int
    seconds: float
    scoped: Mapping[str, Scoped] = field(default_factory=dict)

    @property
    def recommended(self) -> Tried:
        """The cheapest assignment that keeps to the budgets as run, or the one that came nearest."""
        return min(self.trials, key=lambda t: (not t.within, t.cost if t.within else self._excess(t), t.loss))

    def _excess(self, tried: Tried) -> float:
        """How many times a budget is spent, the loss's or the gradients', whichever is more."""
        spent = [(tried.loss, self.budget)]
        if self.cosine is not None:
            spent.append((math.inf if math.isnan(tried.cosine) else 1 - tried.cosine, 1 - self.cosine))
        return max(lost / most if most else math.inf if lost else 0.0 for lost, most in spent)

    @property
    def text(self) -> Text:
        """The recommendation in words."""
        best = self.recommended
        names = list(best.assignment.values())
        counts = {c: names.count(c) for c in dict.fromkeys(names)}
        mixture = joined([MIXED.fill(choice=c, n=n, s="s" * (n > 1)) for c, n in counts.items()], COMMA)
        sentences = [(RECOMMENDED if best.within else MISSED).fill(
            mixture=mixture, cost=best.cost, loss=best.loss, predicted=best.predicted, budget=self.budget
        )]  # fmt: skip
        used = [c for c in self.wholes if c in names and not math.isnan(self.wholes[c][0].cosine)]
        if self.cosine is not None:
            sentences.append(ALONG.fill(found=best.cosine, asked=self.cosine))
        elif used:
            worst = min(used, key=lambda c: self.wholes[c][0].cosine)
            sentences.append(LOSS_ALONE.fill(least=self.wholes[worst][0].cosine, choice=worst))
        felt = {
            row.choice: OF_CHOICE.fill(layer=tensor(row.layer), choice=row.choice, effect=f"{row.effect:+.1e}")
            for row in sorted(self.rows, key=lambda row: math.inf if math.isnan(row.effect) else abs(row.effect))
            if row.phase == "forward" and row.weight
        }
        if felt:
            sentences.append(WORST.fill(worst=joined((felt[c] for c in self.wholes if c in felt), LIST)))
        if self.untried:
            sentences.append(UNTRIED.fill(n=self.untried))
        return joined(sentences, " ")

    @property
    def notes(self) -> list[str]:
        """Which layers each recipe leaves high where it is not tried in all, and what the spread is."""
        notes = list[Text]()
        alike: dict[Scoped, list[str]] = {}
        for name, scoped in self.scoped.items():
            alike.setdefault(scoped, []).append(name)
        for scoped, names in alike.items():
            notes += [SCOPED.fill(choices=joined(names, LIST), scope=scoped.scope), *by_reason(dict(scoped.layers))]
        if self.rows and not math.isnan(self.rows[0].effect_spread):
            notes.append(OVER_BATCHES)
        return list(map(str, notes))

    def paragraphs(self) -> Iterator[list[str]]:
        """The recommendation, what else is to be known, a table of the whole by choice, and one of the layers."""
        yield folded([str(self.text)])
        yield folded(self.notes)
        whole = [[*map(str, WHOLE)]]
        for choice, (mean, spread) in self.wholes.items():
            whole.append([choice, *(_pair(m, s) for m, s in zip(mean, spread, strict=True))])
        yield grid(whole, REPORT)
        shown = leading(self.rows, SHOWN, lambda r: -abs(r.weight))
        yield grid([[*map(str, HEADS)], *map(self._cells, shown)], REPORT)

    def _cells(self, row: Row) -> list[str]:
        mine = self.recommended.assignment.get(row.layer) == row.choice
        shares = [_share(x) for x in (row.zero, row.subnormal, row.overflow)]
        return [
            row.layer, str(PHASES[row.phase]), row.choice, f"{row.local:.1e}", f"{row.inherited:.1e}",
            number(row.amplification, ".2f"), *shares,
            f"{row.bits:.1f}", row.effect_text.replace(" ", "") if row.weight else "", "*" if mine else "",
        ]  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """See :meth:`Report.facts`."""
        wholes = {c: {"mean": m, "spread": s} for c, (m, s) in self.wholes.items()}
        names = ("gpu", "budget", "cosine", "seconds", "rows", "wholes", "trials", "untried", "scoped")
        return {name: wholes if name == "wholes" else getattr(self, name) for name in names}

    def figure(self, theme: str = "light") -> Figure:
        """Right bits by layer and choice, forward and backward, and the effects on the loss. "light" or "dark"."""
        from ...draw.lettering import language
        from ...draw.style import themed
        from ...draw.survey import draw

        with themed(theme):
            return draw(self.rows, self.recommended.assignment, self.text.into(language()))


def collected(
    choices: Iterable[str], measurements: Mapping[tuple[str, int], Measured]
) -> tuple[tuple[Row, ...], dict[str, tuple[Whole, Whole]], dict[str, dict[str, float]], dict[str, int]]:
    """Rows and wholes over the batches; for each layer and choice what it adds to the loss at most; and its work."""
    rows, wholes, macs = [], {}, dict[str, int]()
    effects: dict[str, dict[str, float]] = {}
    for choice in choices:
        mine = [measured for (name, _), measured in measurements.items() if name == choice]
        means, spreads = zip(*(_over([float(w[i]) for w in (m.whole for m in mine)]) for i in range(6)), strict=True)
        wholes[choice] = Whole(*means), Whole(*spreads)
        by: dict[tuple[str, str], list[Local]] = {}
        for measured in mine:
            macs |= measured.macs
            for local in measured.locals:
                by.setdefault((local.layer, local.phase), []).append(local)
        broken = any(not math.isfinite(m.whole.loss) for m in mine)
        for (layer, phase), of in by.items():
            columns = {f.name: _over([getattr(item, f.name) for item in of]) for f in fields(Local)[2:]}
            spread = {f"{name}_spread": columns[name][1] for name in SPREAD}
            rows.append(Row(layer, phase, **{n: mean for n, (mean, _) in columns.items()}, choice=choice, **spread))
            if phase == "forward":
                most = max(max(abs(item.effect), item.weight) for item in of)
                effects.setdefault(layer, {})[choice] = math.inf if broken or math.isnan(most) else most
    order = {layer: i for i, layer in enumerate(effects)}
    rows.sort(key=lambda r: (r.phase != "forward", order.get(r.layer, len(order))))
    return tuple(rows), wholes, effects, {layer: macs.get(layer, 0) for layer in effects}


def lacking(
    effects: PerChoice, rows: Iterable[Row], wholes: Mapping[str, tuple[Whole, Whole]]
) -> dict[str, dict[str, float]]:
    """What each layer in each choice takes from the gradients' cosine: by the squares of its own backward errors."""
    own: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.phase == "backward":
            own.setdefault(row.choice, {})[row.layer] = row.local**2
    result = {layer: dict.fromkeys(of, 0.0) for layer, of in effects.items()}
    for choice, squares in own.items():
        lost, total = 1 - wholes[choice][0].cosine, math.fsum(squares.values())
        for layer, square in squares.items():
            if layer in result and choice in result[layer] and total:
                share = lost * square / total
                result[layer][choice] = math.inf if math.isnan(share) else share
    return result


def _over(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation; of one value the latter is NaN."""
    if not all(map(math.isfinite, values)):
        return values[0] if len(set(map(str, values))) == 1 else math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def _pair(mean: float, spread: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.3g}" if math.isnan(spread) else f"{mean:.3g} ± {spread:.1g}"


def _share(x: float) -> str:
    return "" if math.isnan(x) else f"{x:.1%}" if x else "0"
