"""One format or recipe for all layers: each layer's errors, and what becomes of loss, logits and gradients."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ... import formats
from ...errors import LabError, unknown
from ...kernels import discrepancy as kernel
from ...scaled import Scaled
from ...threads import split
from ...words import Text
from ..emulation import Emulation
from ..emulation.delayed import trained_as_before
from ..emulation.operations import EMULATED
from ..recipes import RECIPES, Recipe, get_recipe
from .error_sums import Run, Tally
from .quantization import Step
from .shadow import Shadow
from .tensors import floating, reals

Loss = Callable[[nn.Module, Any], Any]
Emulated = Callable[..., Emulation]  # of recipes, on one GPU


class Whole(NamedTuple):
    """What one choice for all layers does to one batch.

    ``loss``: computed less exact. ``kl``: mean divergence of the computed distribution from the exact one, in nats;
    ``flips``: the share of rows whose largest logit is another one; both NaN where the loss function gives no logits.
    ``cosine``, ``gradient``: of all gradients together against the exact ones, the latter their relative error.
    ``rest``: of the loss's change, what the layers' effects do not explain.
    """

    loss: float
    kl: float
    flips: float
    cosine: float
    gradient: float
    rest: float


@dataclass(frozen=True)
class Local:
    """One layer in one pass, in one choice and one batch; errors are relative, roots of squares.

    ``local``: the error of its own products of the operands that a run without the choice has. ``inherited``: its
    operands' error. ``amplification``: of that error in the results, per unit. ``zero``, ``subnormal``, ``overflow``:
    shares of its operands' values, in a recipe once they are scaled; NaN where it leaves them high. ``bits``: the
    results' signal to noise, in bits.
    ``effect``: of all that is born in the layer on the loss, first order; ``weight``: the root of its squared terms.
    """

    layer: str
    phase: str
    local: float
    inherited: float
    amplification: float
    zero: float
    subnormal: float
    overflow: float
    bits: float
    effect: float
    weight: float


@dataclass(frozen=True)
class Measured:
    """One choice on one batch, the multiply-accumulates of each layer, the exact loss, and what stayed high."""

    locals: tuple[Local, ...]
    whole: Whole
    macs: dict[str, int]
    exact: float
    high: frozenset[str]


class Counting(Run):
    """A shadow's run that also counts what a format, or a recipe, makes of the operands of products."""

    def __init__(self, fmt: formats.Format | None) -> None:
        super().__init__()
        self.counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._format = fmt

    def judge(self, step: Step, *rest: Any) -> Tally:
        """See :meth:`Run.judge`."""
        if self._format is not None and step.event.name in EMULATED:
            where = self._where("", "")
            for x in step.event.args[:3]:
                if floating(x) and x.dim() > 1:
                    self.counts[where.layer, where.phase].update(_fates(x, self._format))
        return super().judge(step, *rest)

    def quantised(self, layer: str, phase: str, x: np.ndarray, codes: Scaled) -> None:
        """Count an operand that a recipe quantised."""
        self.counts[layer, phase].update(_scaled_fates(x, codes))


class Exact(Run):
    """A shadow's run in which products have exact operands: once one is judged, the exact result takes its place."""

    def judge(self, step: Step, real: torch.Tensor, local: torch.Tensor, *rest: Any) -> Tally:
        """See :meth:`Run.judge`."""
        result = super().judge(step, real, local, *rest)
        if step.event.name in EMULATED:
            real.copy_(local)
        return result


def _fates(x: torch.Tensor, fmt: formats.Format) -> dict[str, int]:
    """How many finite non-zero values round to zero, become subnormal, or lie beyond the largest."""
    least = 2.0 ** (fmt.emin - fmt.fraction_bits)
    values = reals(x)
    half = least / 2  # goes to zero, which is even

    def work(start: int, stop: int) -> tuple[int, ...]:
        result: tuple[int, ...] = kernel.fates(values, half, 2.0**fmt.emin, float(fmt.max), start, stop)
        return result

    counts = map(sum, zip(*split(work, len(values)), strict=True))
    return dict(zip(("some", "zero", "low", "high"), counts, strict=True))


def _scaled_fates(x: np.ndarray, operand: Scaled) -> dict[str, int]:
    """The same of values and their codes: beyond the largest is what a scale brings above it."""
    size, element, fmt = np.abs(x), np.abs(operand.elements()), operand.scheme.element
    some = (size > 0) & np.isfinite(size)
    high = some & (element == fmt.max) & (size > np.abs(operand.dequantize()))
    low = (element > 0) & (element < 2.0**fmt.emin)
    counts = {"some": some, "zero": some & (element == 0), "low": some & low, "high": high}
    return {name: int(where.sum()) for name, where in counts.items()}


def choice_of(given: formats.FormatLike | Recipe) -> Recipe:
    """A recipe, or one that rounds all operands of products to a format, as they are."""
    if isinstance(given, Recipe) or (isinstance(given, str) and given in RECIPES):
        return get_recipe(given)
    try:
        name = formats.get(given).name
    except LabError:
        if isinstance(given, str):
            raise unknown("format or recipe", given, dict.fromkeys([*formats.NAMES, *RECIPES])) from None
        raise
    return Recipe(name, high=name)


def width(recipe: Recipe) -> float:
    """The mean bits of an operand in the three products of a layer, without its scales: what a choice costs."""
    high = formats.get(recipe.high).bits
    three = (recipe.forward, recipe.data_gradient, recipe.weight_gradient)
    sides = [side for product in three for side in ((product.left, product.right) if product else (None, None))]
    return sum(high if side is None else side.record.element.bits for side in sides) / len(sides)


def computed(model: nn.Module, batch: Any, loss: Loss) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The loss and, where the function gives them, the logits."""
    result = loss(model, batch)
    value, logits = result if isinstance(result, tuple) else (result, None)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise LabError(f"loss gave {_said(value)}; it must give a tensor of one number, or (that, logits).")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise LabError(
            "loss gave a tensor without a gradient; a survey runs backward, too: some parameter must need one."
        )
    return value, logits


def _said(x: Any) -> str:
    return f"a tensor of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Leave gradients, buffers and the random state as they are found; every measurement begins with the same."""
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    with torch.random.fork_rng(devices=[]), trained_as_before(model):
        try:
            for p, _ in gradients:
                p.grad = None
            yield
        finally:
            for p, grad in gradients:
                p.grad = grad
            with torch.no_grad():
                for b, before in buffers:
                    b.copy_(before)


def measure(model: nn.Module, batch: Any, loss: Loss, recipe: Recipe, emulated: Emulated) -> Measured:
    """Forward and backward with a choice for all layers, beside its shadow: as it is, and with all operands exact."""
    run = Counting(None if recipe.products() else formats.get(recipe.high))
    alone = Exact()
    with undisturbed(model), emulated(layers={"*": recipe}, inputs=recipe.high), Shadow(alone):
        computed(model, batch, loss)[0].backward()
    shadow = Shadow(run)
    with undisturbed(model):
        emulation = emulated(layers={"*": recipe}, inputs=recipe.high)
        emulation.quantised = run.quantised
        with emulation, shadow:
            value, logits = computed(model, batch, loss)
            value.backward()
        report = shadow.report()
        exact = float(shadow.exact(value).sum())
        kl, flips = (math.nan, math.nan) if logits is None else _apart(logits, shadow.exact(logits))
        cosine, gradient = _gradients(model, shadow)
    macs: Counter[str] = Counter()
    products = emulation.report()
    for row in products.rows:
        macs[row.layer] += row.macs
    whole = Whole(float(value.detach()) - exact, kl, flips, cosine, gradient, report.rest)
    local = tuple(_locals(run, _products(alone), report.rows))
    return Measured(local, whole, dict(macs), exact, frozenset(products.left_high))


def _products(run: Run) -> dict[tuple[str, str], Tally]:
    """Of every layer and pass that multiplied, all of its products."""
    result: dict[tuple[str, str], list[Tally]] = {}
    for where, tally in run.tallies.items():
        if where.operation in EMULATED:
            result.setdefault((where.layer, where.phase), []).append(tally)
    return {
        key: Tally(given=max(t.given for t in tallies), sums=np.sum([t.sums for t in tallies], axis=0))
        for key, tallies in result.items()
    }


def left_high(model: nn.Module, batch: Any, loss: Loss, recipe: Recipe, emulated: Emulated) -> dict[str, Text]:
    """The layers that a recipe leaves high by its own scope, and why: of one forward pass."""
    emulation = emulated(recipe=recipe)
    emulation.warned = True
    with undisturbed(model), torch.no_grad(), emulation:
        computed(model, batch, loss)
    return emulation.report().left_high


def as_run(
    model: nn.Module, batch: Any, loss: Loss, layers: Mapping[str, Recipe], inputs: str, emulated: Emulated,
    exact: float, gradients: bool,
) -> tuple[float, float]:  # fmt: skip
    """The change of the loss with a choice for each layer, and the cosine of the gradients (NaN if not asked for)."""
    with undisturbed(model), emulated(layers=layers, inputs=inputs):
        if not gradients:
            with torch.no_grad():
                return abs(float(computed(model, batch, loss)[0]) - exact), math.nan
        with Shadow() as shadow:
            value, _ = computed(model, batch, loss)
            value.backward()
        return abs(float(value.detach()) - exact), _gradients(model, shadow)[0]


def _locals(run: Counting, alone: Mapping[tuple[str, str], Tally], rows: Sequence[Any]) -> Iterator[Local]:
    """Of every layer and pass that multiplied."""
    effects = {(row.layer, row.phase): (row.effect, row.weight) for row in rows}
    for key, merged in _products(run).items():
        counts = run.counts[key]
        zero, low, high = (counts[n] / counts["some"] if counts["some"] else math.nan for n in ("zero", "low", "high"))
        bits = -math.log2(merged.total) if merged.total else math.inf
        bits = -math.inf if merged.count(kernel.BROKEN) else bits
        effect, weight = effects.get(key, (0.0, 0.0))
        own = alone[key].born if key in alone else math.nan
        yield Local(
            *key, own, merged.given, merged.growth, zero, low, high, bits, effect, weight,
        )  # fmt: skip


def _apart(logits: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """The mean divergence of two rows of logits (..., classes), exact from computed, and how many have another top."""
    with torch.no_grad():
        wide = logits.detach().double().log_softmax(-1)
        true = exact.log_softmax(-1)
        kl = (true.exp() * (true - wide)).sum(-1).mean()
        return float(kl), float((wide.argmax(-1) != true.argmax(-1)).double().mean())


def _gradients(model: nn.Module, shadow: Shadow) -> tuple[float, float]:
    """Cosine and relative error of all gradients together."""
    both = mine = exact = apart = 0.0
    for p in model.parameters():
        if p.grad is not None:
            real, true = p.grad.detach().double(), shadow.exact(p.grad)
            both += float((real * true).sum())
            mine += float(real.square().sum())
            exact += float(true.square().sum())
            apart += float((real - true).square().sum())
    if not exact or not math.isfinite(mine):
        return math.nan, math.nan
    return both / math.sqrt(mine * exact) if mine else 0.0, math.sqrt(apart / exact)
