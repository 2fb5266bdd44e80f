"""What a short run foretells of a long one in each recipe: margins to overflow, saturation, underflow and noise.

A watch notes the largest magnitudes of both operands of every linear layer's products in each step, and keeps those of
its last counted step. A power law of the step is fitted to each tensor's magnitudes, the first quarter of the steps
left out; the deviations from it repeat. The recipe's rule for scales runs on what was seen and on what is so
extrapolated, and the operands that were kept are quantised by the scales that it then has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from ...columns import REPORT, folded, grid
from ...errors import LabError, integer
from ...floats import encode, quantize
from ...formats import Format, get
from ...scaled import Scaled
from ...tensorcore.plan import ONE_CHAIN
from ...words import Text, joined, say
from ..emulation.backends import HOST
from ..emulation.choices import Choices
from ..emulation.scaled_products import quantized
from ..recipes import Operand, Recipe
from ..reporting import Report as Base
from ..reporting import leading
from .nonfinite import ROOT
from .recipe_errors import PASSES, operands
from .tensors import Array
from .watch_words import kind, listed

LEAST_STEPS = 8
LEAST_BITS = 1.0  # right in the products of a pass, over the layers: with fewer the error is more than half of them
TENSORS = ("input", "weights", "gradients")  # x, w and dy
SIDES = {"forward": (0, 1), "data_gradient": (2, 1), "weight_gradient": (2, 0)}  # of TENSORS
SHOWN = 24

HEADLINE = say("{model}: {n} steps watched, {steps} to come to.")
DIVERGES = say("{recipe} diverges: {tensor} of {layer} exceed the largest value of {format} by {bits:.1f} bits.")
LOSES = say(
    "{recipe} loses noticeably: over the layers {mean:.1f} bits of the {phase} are right, fewer than {least:g}; fewest "
    "in {layer}, {bits:.1f}."
)
STANDS = say(
    "{recipe}: no loss is foretold, which excludes none; over the layers at least {mean:.1f} bits of a pass are right, "
    "those of the {phase}; fewest in {layer}, {bits:.1f}."
)
NOT_SEEN = say("{recipe}: it quantises no product that was measured.")
LEFT_HIGH = say("By its scope {recipe} leaves high: {layers}.")
ASSUMED = say(
    "Assumed: magnitudes go on by the power law of the step that fits the steps watched, with the deviations seen; the "
    "operands keep the shape of the last counted step; what nobody has seen yet, a spike of the loss or another "
    "learning rate, is not foretold. Products without weights and layers that are not linear are not measured."
)
HEADS = (
    say("recipe"), say("layer"), say("pass"), say("grows by"), say("headroom"), say("at the end"), say("underflow"),
    say("at the end"), say("bits right"), say("at the end"),
)  # fmt: skip
PHASES = dict(zip(PASSES, (say("forward"), say("data gradient"), say("weight gradient")), strict=True))
LEGEND = say(
    "in bits. Grows by: the operand that changes most, until the end. Headroom: from the largest magnitude to the "
    "largest value, of both operands the least; below 0 it saturates, or overflows. Underflow: from where values "
    "become zero to the median of those that are not. Bits right: of the product, over its columns."
)


@dataclass(frozen=True)
class Row:
    """A product of a layer in a recipe: margins in bits, now and, with ``_end``, at the end of the run.

    ``tensor``: the operand with the least headroom. ``growth``: of the operand that changes most. ``headroom``: from
    the largest magnitude to the format's largest value, infinite where a scale follows it. ``overflows``: whether
    beyond that is no number. ``underflow``: from where values vanish to the median of those that are not zero.
    ``signal``: -log2 of the product's relative error, the mean square over its columns; :func:`lost`.
    """

    recipe: str
    layer: str
    phase: str
    tensor: str
    format: str
    growth: float
    headroom: float
    headroom_end: float
    overflows: bool
    underflow: float
    underflow_end: float
    signal: float
    signal_end: float

    @property
    def breaks(self) -> bool:
        """Whether its operands are to become infinite or NaN."""
        return self.overflows and self.headroom_end < 0

    @property
    def rank(self) -> tuple[bool, float]:
        """By which the worst row comes first."""
        return not self.breaks, self.headroom_end if self.breaks else self.signal_end


@dataclass(frozen=True, repr=False)
class Forecast(Base):
    """``verdicts``: by recipe "diverges", "loses" or "stands". ``rows``: by recipe, layer and pass.

    ``high``: the layers that a recipe's scope leaves high, which have no rows.
    """

    FILE = "forecast"
    ROW = Row

    model: str
    watched: int
    steps: int
    rows: tuple[Row, ...]
    high: dict[str, tuple[str, ...]]

    @property
    def verdicts(self) -> dict[str, str]:
        """What is to become of the run in each recipe."""
        result = {}
        for recipe in self.high:
            mine = [row for row in self.rows if row.recipe == recipe]
            loses = bool(mine) and _worst_pass(mine)[1] < LEAST_BITS
            result[recipe] = "diverges" if any(row.breaks for row in mine) else "loses" if loses else "stands"
        return result

    @property
    def text(self) -> Text:
        """The verdicts in words."""
        return joined(self._sentences(), " ")

    def _sentences(self) -> Iterator[Text]:
        for recipe, verdict in self.verdicts.items():
            mine = [row for row in self.rows if row.recipe == recipe]
            if not mine:
                yield NOT_SEEN.fill(recipe=recipe)
                continue
            phase, mean = _worst_pass(mine)
            row = min((row for row in mine if verdict == "diverges" or row.phase == phase), key=lambda row: row.rank)
            text = {"diverges": DIVERGES, "loses": LOSES, "stands": STANDS}[verdict]
            bits = -row.headroom_end if verdict == "diverges" else row.signal_end
            values = {"tensor": kind(row.tensor), "format": row.format, "mean": mean, "least": LEAST_BITS}
            yield text.fill(recipe=recipe, layer=row.layer, phase=PHASES[phase], bits=bits, **values)

    def paragraphs(self) -> Iterator[list[str]]:
        """The verdicts, what they assume, and the worst products of each recipe."""
        left = [LEFT_HIGH.fill(recipe=r, layers=listed(layers)) for r, layers in self.high.items() if layers]
        yield folded([str(HEADLINE.fill(model=self.model, n=self.watched, steps=self.steps))])
        yield folded(map(str, [*self._sentences(), *left]))
        yield folded([str(ASSUMED)])
        shown = leading(self.rows, SHOWN, lambda row: row.rank)
        margins = ("growth", "headroom", "headroom_end", "underflow", "underflow_end", "signal", "signal_end")
        cells = [
            [row.recipe, row.layer, str(PHASES[row.phase]), *(f"{round(getattr(row, m), 1) + 0:.1f}" for m in margins)]
            for row in shown
        ]
        yield [*grid([[*map(str, HEADS)], *cells], REPORT), *folded([str(LEGEND)])]


def _worst_pass(rows: Sequence[Row]) -> tuple[str, float]:
    """The pass of whose products the fewest bits are right over the layers, and how many."""
    shares = {name: [4.0**-row.signal_end for row in rows if row.phase == name] for name in PASSES}
    bits = {name: abs(0.5 * math.log2(max(np.mean(own), 2.0**-120))) for name, own in shares.items() if own}
    return min(bits.items(), key=lambda item: item[1])


def forecast(seen: Any, steps: int) -> Forecast:
    """What is to become of the run in each of the ``recipes`` that a watch was given, if it has ``steps`` steps.

    The verdicts: "diverges", where the largest magnitude of an operand grows beyond a format that neither scales nor
    saturates; "loses", where over the layers less than one bit of a pass's products is right; else "stands". Raises
    :class:`LabError` for a watch without recipes, and for fewer than 8 steps watched.
    """
    steps = integer("steps", steps, seen.steps, 1 << 24)
    if not seen.products.recipes:
        raise LabError("this watch has no recipes to foretell; give it some: watch(model, optimizer, recipes=[...]).")
    if seen.steps < LEAST_STEPS:
        raise LabError(f"{seen.steps} steps were watched; allowed: {LEAST_STEPS} and more, to see what grows.")
    rows, high = list[Row](), dict[str, tuple[str, ...]]()
    names = dict.fromkeys(name or ROOT for name, _ in seen._model.named_modules())
    layers = [name for name in names if name in seen.products.last]
    series = {layer: _series(seen.products.amaxes[layer], seen.steps, steps) for layer in layers}
    for recipe in seen.products.recipes:
        left = _left_high(recipe, seen._model, layers)
        high[recipe.name] = left
        for layer in layers:
            if layer not in left:
                rows += _rows(recipe, layer, seen.products.last[layer], seen.steps, series[layer])
    return Forecast(seen.name, seen.steps, steps, tuple(rows), high)


def _left_high(recipe: Recipe, model: nn.Module, layers: Sequence[str]) -> tuple[str, ...]:
    """The layers whose products a recipe leaves high by its scope."""
    if not recipe.products():
        return ()
    choices = Choices(recipe, ONE_CHAIN, {})
    choices.add([(name or ROOT, module) for name, module in model.named_modules()])
    return tuple(layer for layer in layers if choices.of(layer).high or choices.of(layer).unfit)


def _series(amaxes: dict[int, Array], n: int, steps: int) -> Array:
    """log2 of the largest magnitudes of x, w and dy, float64 (3, steps), of which ``n`` were seen."""
    own = np.array([amaxes.get(step, np.zeros(3)) for step in range(n)]).T
    return np.stack([extrapolated(row, steps) for row in own])


def extrapolated(amaxes: Array, steps: int) -> Array:
    """log2 of magnitudes (n,), and of those to come by the power law that fits them, float64 (steps,).

    The deviations from it of the steps after the first quarter repeat. Zeros take the least magnitude that is not zero.

    >>> extrapolated(np.arange(1.0, 9.0), 16)[-1].round(6)
    np.float64(4.0)
    """
    n, finite = len(amaxes), amaxes[(amaxes > 0) & np.isfinite(amaxes)]
    if not finite.size:
        return np.full(steps, -math.inf)
    seen = np.log2(np.clip(np.nan_to_num(amaxes, nan=0.0, posinf=finite.max()), finite.min(), finite.max()))
    t = np.log2(np.arange(1, steps + 1))
    first = n // 4
    slope, start = np.polyfit(t[first:n], seen[first:], 1)
    fitted = start + slope * t
    deviations = (seen - fitted[:n])[first:]
    return np.concatenate([seen, fitted[n:] + np.resize(deviations, max(steps - n, 0))])


def headrooms(recipe: Recipe, form: Format, amaxes: Array, at: range) -> Array:
    """Bits from a tensor's largest magnitude to the largest value at its scale, in some steps; a scale's own: 0.

    ``amaxes``: log2 by step. ``form``: the elements' format.
    """
    now = amaxes[at.start : at.stop]
    if not recipe.products():
        return math.log2(form.max) - now
    if not recipe.amax_history_len:
        return np.zeros(len(at))
    length = 1 if recipe.amax_compute_algo == "most_recent" else recipe.amax_history_len
    used = [amaxes[max(step - length, 0) : step].max() + recipe.margin if step else math.log2(form.max) for step in at]
    return np.array(used) - now


def _rows(
    recipe: Recipe, layer: str, last: tuple[int, tuple[Array, Array, Array]], n: int, amaxes: Array
) -> Iterator[Row]:
    """A layer's products, now and at the end."""
    step, tensors = last
    some, steps = n // 2, amaxes.shape[1]
    now, end = range(n - some, n), range(steps - some, steps)
    plain = get(recipe.high)
    for name, sides in operands(*tensors).items():
        product, places = getattr(recipe, name), SIDES[name]
        if product is None and recipe.products():
            continue
        how = (None, None) if product is None else (product.left, product.right)
        forms = [plain if side is None else side.record.element for side in how]
        exact = np.matmul(*(side.astype(np.float64) for side in sides))
        found = []
        for at in (now, end):
            rooms = [headrooms(recipe, form, amaxes[place], at) for form, place in zip(forms, places, strict=True)]
            coded, under = zip(*(
                _coded(side, own, form, axis, step, float(np.median(room)), _shift(amaxes[place], step, at))
                for side, own, form, axis, room, place in zip(sides, how, forms, (-1, -2), rooms, places, strict=True)
            ), strict=True)  # fmt: skip
            pairs = zip(how, rooms, strict=True)
            least = [math.inf if _follows(recipe, side) else float(room.min()) for side, room in pairs]
            with np.errstate(invalid="ignore"):
                error = lost(np.matmul(*coded), exact)
            found.append((least, min(under), abs(0.5 * math.log2(error)) if error else math.inf))
        (least, *here), (least_end, *there) = found
        worst = int(np.argmin(least_end))
        growth = max((float(_shift(amaxes[place], n - 1, end)) for place in places), key=abs)
        overflows = product is None and plain.bits > 8  # of 8 bits and fewer operands saturate
        yield Row(
            recipe.name, layer, name, TENSORS[places[worst]], forms[worst].name, growth, min(least), min(least_end),
            overflows, here[0], there[0], here[1], there[1],
        )  # fmt: skip


def _follows(recipe: Recipe, side: Operand | None) -> bool:
    """Whether an operand is scaled by its own largest magnitude, so that none is beyond the largest value."""
    return side is not None and not (recipe.amax_history_len and side.record.block == "tensor")


def _shift(amaxes: Array, step: int, at: range) -> float:
    """By how many bits magnitudes at some steps exceed those of a step, in the median."""
    return float(np.median(amaxes[at.start : at.stop]) - amaxes[step]) if np.isfinite(amaxes[step]) else 0.0


def _coded(
    x: Array, side: Operand | None, form: Format, axis: int, seed: int, room: float, shift: float
) -> tuple[Array, float]:  # fmt: skip
    """What an operand is quantised to, float64, and bits from where values vanish to the median magnitude.

    ``room``: bits from its largest magnitude to the largest value, by which a scale of the tensor is larger. ``shift``:
    by how many bits it grows first, where there is no scale.
    """
    x = np.ascontiguousarray(x)
    if side is None:
        grown = np.ldexp(x.astype(np.float64), round(shift)).astype(np.float32)
        with np.errstate(all="ignore"):
            policy = "saturate" if form.bits <= 8 else None
            values = np.ldexp(np.asarray(quantize(grown, form, overflow=policy), np.float64), -round(shift))
        return values, _above(np.abs(grown), form)
    given: list[tuple[Array, Scaled]] = []
    amax = float(np.abs(x).max()) * 2.0**room if room and side.record.block == "tensor" else None
    result = quantized(HOST, x, side, axis, seed, amax, seen=lambda values, codes: given.append((values, codes)))
    values, codes = given[0]
    unit = replace(codes, codes=np.full_like(codes.codes, encode(1.0, form))).dequantize()
    with np.errstate(all="ignore"):
        return result.dequantize().astype(np.float64), _above(np.abs(values / unit), form)


def _above(magnitudes: Array, form: Format) -> float:
    """Bits from where a format has zero to the median of what is not zero and finite."""
    some = magnitudes[(magnitudes > 0) & np.isfinite(magnitudes)]
    return float(np.log2(np.median(some)) - math.log2(form.smallest_subnormal) + 1) if some.size else math.inf


def lost(coded: Array, exact: Array) -> float:
    """The share of a product (m, n) that is error: the mean over columns of its squares over theirs, at most 1 each.

    Columns of zeros do not count.

    >>> lost(np.array([[1.0, 6.0], [2.0, 8.0]]), np.array([[1.0, 3.0], [2.0, 4.0]]))
    0.5
    """
    whole = np.square(exact).sum(0)
    share = np.square(coded - exact).sum(0)[whole > 0] / whole[whole > 0]
    return float(np.minimum(np.nan_to_num(share, nan=1.0, posinf=1.0), 1.0).mean()) if share.size else 0.0
