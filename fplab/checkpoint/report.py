"""What a survey of a checkpoint found: its tensors, the losses in each format, the mixture; CSV, JSON, a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..columns import REPORT, folded, grid
from ..nn.diagnose.format_assignment import optimal
from ..nn.reporting import Report, rendered
from ..words import LIST, Message, Text, joined, say
from .measure import About, Loss

KEPT = "kept"  # the choice of leaving a tensor as it is stored
SECONDS = 60.0  # for the proof of a mixture
SHOWN = 24
HEADS = say("tensor, worst first"), say("stored"), say("shape"), say("take")
WHAT = say("{tensors} tensors, {weights:.4g} weights in {size:.4g} GB.")
WORST = say("Worst, by their errors in units of each format's median: {names}.")
TAKE = say("Recommended: {bits:.2f} bits a weight, error {error:.3g}: {mixture}. {proof}")
LEAST_ERROR = say("No mixture of these within {budget:g} bits has a smaller error; that is proved on these numbers.")
LEAST_BITS = say("No mixture of these within an error of {budget:g} has fewer bits; that is proved on these numbers.")
WITHIN = say("The best mixture may be better by {gap:.2%}: its proof took too long.")
NONE = say("No mixture of these formats keeps to the budget; the smallest takes {bits:.2f} bits a weight.")
LEFT = say("{n} of {all} tensors are left: other ranks measure them, or the same command goes on with them.")
SKIPPED = say("{n} tensors of integers or of formats that are not read here are listed alone, such as {name}.")
BROKEN = say("{name} has {n} numbers that are infinite or NaN.")
OUTLIERS = say("Outlier channels: {names}.")
CHANNEL = say("{name}, input channel {channel} ({ratio:.0f} times the median)")
MIXED = say("{choice} for {n} tensor{s}")
UNSEEN = say(
    "The error of a layer's output is that of independent inputs of variance 1: activations are not in the file."
)
HEAT = say("Relative error by tensor and format; a tensor's name opens its histogram by binade.")


@dataclass(frozen=True)
class Mixture:
    """A format for each tensor; its bits of a weight, its error, and how far it may be from the optimum, as a share."""

    assignment: dict[str, str]
    bits: float
    error: float
    gap: float


@dataclass(frozen=True, repr=False)
class Survey(Report):
    """``tensors``: what they are like; ``rows``: the loss of each in each format, worst tensors first.

    ``mixture``: None where none keeps to the budget, which is of ``bits`` or of ``error``. ``left``: how many tensors
    are not measured yet.
    """

    FILE = "checkpoint"
    ROW = Loss

    formats: tuple[str, ...]
    bits: float | None
    error: float | None
    left: int
    tensors: tuple[About, ...]
    rows: tuple[Loss, ...]
    mixture: Mixture | None

    @classmethod
    def of(
        cls, tensors: Sequence[About], losses: Sequence[Loss], *, left: int, formats: tuple[str, ...],
        bits: float | None, error: float | None,
    ) -> Survey:  # fmt: skip
        """The report of what was measured."""
        logs: dict[str, list[float]] = {name: [] for name in formats}
        for loss in losses:
            logs[loss.format].append(math.log(min(max(loss.error, 1e-30), 1e30)))
        usual = {name: statistics.median(of) for name, of in logs.items() if of}
        errors: dict[str, list[float]] = {about.tensor: [] for about in tensors}
        for loss in losses:
            errors[loss.tensor].append(math.log(min(max(loss.error, 1e-30), 1e30)) - usual[loss.format])
        means = {name: statistics.fmean(of) if of else -math.inf for name, of in errors.items()}
        rank = {about.tensor: (-means[about.tensor], i) for i, about in enumerate(tensors)}
        ranked = sorted(tensors, key=lambda about: rank[about.tensor])
        rows = sorted(losses, key=lambda loss: rank[loss.tensor])
        mixture = best(ranked, rows, bits, error)
        return cls(formats, bits, error, left, tuple(ranked), tuple(rows), mixture)

    @property
    def text(self) -> Text:
        """The verdict in words."""
        size = sum(about.bits * about.count for about in self.tensors) / 8e9
        weights = sum(about.count for about in self.tensors)
        sentences = [WHAT.fill(tensors=len(self.tensors), weights=float(weights), size=size)]
        if self.left:
            sentences.append(LEFT.fill(n=self.left, all=self.left + len(self.tensors)))
        measured = {row.tensor for row in self.rows}
        able = [about for about in self.tensors if about.tensor in measured]
        worst = [about.tensor for about in [one for one in able if len(one.shape) > 1] or able][:3]
        if worst:
            sentences.append(WORST.fill(names=joined(worst, LIST)))
        sentences += self._remarks(measured)
        if self.mixture is not None:
            taken = list(self.mixture.assignment.values())
            counts = [(c, taken.count(c)) for c in dict.fromkeys(taken)]
            mixed = joined([MIXED.fill(choice=_named(c), n=n, s="s" * (n > 1)) for c, n in counts], LIST)
            budget = LEAST_BITS.fill(budget=self.error) if self.bits is None else LEAST_ERROR.fill(budget=self.bits)
            proof = WITHIN.fill(gap=self.mixture.gap) if self.mixture.gap > 1e-6 else budget
            take = TAKE.fill(bits=self.mixture.bits, error=self.mixture.error)
            sentences.append(take.fill(mixture=mixed, proof=proof))
        elif worst:
            least = best(self.tensors, self.rows, None, math.inf)
            sentences.append(NONE.fill(bits=math.nan if least is None else least.bits))
        return joined([*sentences, UNSEEN], " ")

    def _remarks(self, measured: set[str]) -> Iterator[Message]:
        """What is odd about tensors: not read, not finite, with outliers."""
        skipped = [about.tensor for about in self.tensors if about.tensor not in measured and about.count]
        if skipped:
            yield SKIPPED.fill(n=len(skipped), name=skipped[0])
        for about in self.tensors:
            if (n := round((about.infinities + about.nans) * about.count or 0) if about.tensor in measured else 0) > 0:
                yield BROKEN.fill(name=about.tensor, n=n)
        far = [about for about in self.tensors if about.input_channels.outliers and len(about.shape) > 1]
        far.sort(key=lambda about: -about.input_channels.ratio)
        names = [
            CHANNEL.fill(name=one.tensor, channel=one.input_channels.worst[0], ratio=one.input_channels.ratio)
            for one in far[:3]
        ]
        if names:
            yield OUTLIERS.fill(names=joined(names, LIST))

    def paragraphs(self) -> Iterator[list[str]]:
        """The verdict, and a table of the worst tensors."""
        yield folded([str(self.text)])
        by = {(row.tensor, row.format): row for row in self.rows}
        shown = [about for about in self.tensors if any((about.tensor, name) in by for name in self.formats)][:SHOWN]
        taken = self.mixture.assignment if self.mixture else {}
        table = [[*map(str, HEADS), *self.formats]]
        for about in shown:
            cells = [by.get((about.tensor, name)) for name in self.formats]
            errors = ["" if row is None else f"{row.error:.1e}" for row in cells]
            take = _named(taken.get(about.tensor, KEPT))
            table.append([about.tensor, about.stored, "x".join(map(str, about.shape)), take, *errors])
        yield grid(table, REPORT) if shown else []

    def picture(self) -> str:
        """A heat map, tensors by formats, sorted at a click on a head; a name opens the histogram."""
        by = {(row.tensor, row.format): row.error for row in self.rows}
        lines = [(about, [by.get((about.tensor, name)) for name in self.formats]) for about in self.tensors]
        heads = [str(HEADS[0]), *self.formats]
        return rendered(Path(__file__).with_name("heat.html.jinja2"), caption=str(HEAT), heads=heads, lines=lines)


def _named(choice: str) -> str:
    return str(say("kept")) if choice == KEPT else choice


def best(tensors: Sequence[About], losses: Sequence[Loss], bits: float | None, error: float | None) -> Mixture | None:
    """The mixture of least error within a budget of bits, or of fewest bits within one of error; None if there is none.

    Of tensors with two dimensions or more, each of which may also stay as it is. What costs a tensor more bits and more
    error than another choice is left out; an integer programme decides among the rest.
    """
    about = {one.tensor: one for one in tensors if len(one.shape) > 1}
    options = {name: {KEPT: (one.bits, 0.0)} for name, one in about.items()}
    for loss in losses:
        if loss.tensor in about and math.isfinite(loss.error):
            options[loss.tensor][loss.format] = loss.bits, loss.error**2
    measured = {loss.tensor for loss in losses}
    options = {name: _undominated(of) for name, of in options.items() if name in measured}
    total = sum(about[name].count for name in options)
    if not total:
        return None
    share = {name: about[name].count / total for name in options}
    pairs = [(name, choice) for name, of in options.items() for choice in of]
    size = np.array([share[name] * options[name][choice][0] for name, choice in pairs])
    squares = np.array([share[name] * options[name][choice][1] for name, choice in pairs])
    allowed = math.inf if error is None else error**2
    able = squares <= allowed
    pairs, size, squares = [pair for pair, one in zip(pairs, able, strict=True) if one], size[able], squares[able]
    limits = [size / bits] if bits is not None else [squares / allowed] if 0 < allowed < math.inf else []
    objective = size if bits is None else squares
    scale = objective.max() or 1.0
    assignment, gap = optimal(pairs, (objective / scale,), limits, SECONDS)
    if assignment is None:
        return None
    chosen = [(share[name], *options[name][choice]) for name, choice in assignment.items()]
    mean = math.fsum(part * width for part, width, _ in chosen)
    return Mixture(assignment, mean, math.sqrt(math.fsum(part * square for part, _, square in chosen)), gap)


def _undominated(options: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """The choices than which none has both fewer bits and less error."""
    kept, least = {}, math.inf
    for name, (width, square) in sorted(options.items(), key=lambda one: one[1]):
        if square < least:
            kept[name], least = (width, square), square
    return kept
