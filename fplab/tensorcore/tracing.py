"""One element of a product, step by step: what each term is aligned to, what truncation and rounding take away."""

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .. import exact
from ..errors import LabError, quotes_call
from ..formats import FormatName
from ..words import say
from . import accumulators, models, oracle, units
from .blocks import Block
from .blocks import Term as Term
from .models import Inputs, Model
from .operands import read, read_scales

STEP = say("step {number} ({what}): emax {emax}, sum {units} x {quantum:g} -> {result!r} ({bits:08x})")
TERM = say("  {name:>6} {value: .9g} shift {shift:3d} units {units} lost {lost:.3g}")


@dataclass(frozen=True)
class Step:
    """One step: a block, or what else an algorithm does with sums.

    ``what``: "block"; "add", where c is added at last (in a widened FP8 instruction without terms and emax); "join",
    where the sums of two blocks are. Nothing is cut in a "tree" of products added pairwise, the "sum" of it and c, and
    an "fma".
    ``emax``: the exponent of alignment; None where all terms are zero or special operands decide. ``units``: the sum
    of the truncated terms in units of ``quantum``. ``result``: after rounding, ``bits`` as float32 (FP64: float64),
    which of a sum inside a group may hold fewer digits.
    """

    what: str
    terms: tuple[Term, ...]
    emax: int | None
    quantum: Fraction
    units: int
    result: float
    bits: int
    lost_to_truncation: Fraction
    lost_to_rounding: Fraction

    @property
    def total(self) -> Fraction:
        """The exact sum of the truncated terms."""
        return self.units * self.quantum


@dataclass(frozen=True)
class Trace:
    """All steps of one chain. ``exact``: the sum without any rounding, None where it is no number."""

    model: Model
    steps: tuple[Step, ...]
    result: float
    bits: int
    exact: Fraction | None

    @property
    def error(self) -> Fraction | None:
        """Result minus exact sum; None where either is no number."""
        return None if self.exact is None or not np.isfinite(self.result) else Fraction(self.result) - self.exact

    def __str__(self) -> str:
        lines = [self.model.name]
        for number, step in enumerate(self.steps):
            lines.append(str(STEP.fill(number=number, emax=step.emax, units=step.units, quantum=float(step.quantum),
                                       what=step.what, result=step.result, bits=step.bits)))  # fmt: skip
            for t in step.terms:
                name = "c" if t.k == -1 else "sum" if t.k < 0 else f"k={t.k}"
                value, lost = float(t.value), float(t.lost)
                lines.append(str(TERM.fill(name=name, value=value, shift=t.shift, units=t.units, lost=lost)))
        return "\n".join(lines)


@quotes_call
def trace(
    a: Any, b: Any, c: Any = None, gpu: str | Model = "H100", inputs: Inputs = "fp16",
    output: FormatName | None = "fp32", instruction: str | None = None, *, scale_a: Any = None, scale_b: Any = None,
    conversion: str | None = None, strict: bool = False,
) -> Trace:  # fmt: skip
    """One row as :func:`dot` computes it, with every step as data: ``a``, ``b`` (K,), ``c`` a number.

    The other arguments are :func:`dot`'s; block scales have shape (K / length, rounded up). It is computed by the
    oracle, on integers and fractions. Not for INT8, whose steps hide nothing.

    >>> step = trace([2.0**-12] * 4, [2.0**-12] * 4, 1.0, gpu="V100").steps[0]
    >>> [t.units for t in step.terms], step.result
    ([0, 0, 0, 0, 8388608], 1.0)
    """
    model = models.get(gpu, inputs, output, instruction)
    if not units.of(model).traced:
        raise LabError(f"{models.input_name(model)} has no blocks to trace; allowed: all floating-point formats.")
    x, y = (read(v, n, f, conversion, strict) for v, n, f in ((a, "a", model.a), (b, "b", model.b)))
    if x.shape != y.shape or x.ndim != 1:
        raise LabError(f"a has shape {x.shape} and b {y.shape}; both must be (K,).")
    accumulator = accumulators.of(model)
    entering = float(accumulator.values(accumulator.read(c, model, (), strict)))
    pairs: list[tuple[float, float]] = []
    if model.scale:
        shape = (-(-x.size // model.scale[1]),)
        scales = [read_scales(s, n, shape, model) for s, n in ((scale_a, "scale_a"), (scale_b, "scale_b"))]
        values = [np.ldexp(s.significands, s.exponents).tolist() for s in scales if s is not None]
        pairs = list(zip(*values, strict=True))
    return _trace(model, x.tolist(), y.tolist(), entering, pairs)


def _trace(model: Model, a: list[float], b: list[float], c: float, scales: list[tuple[float, float]]) -> Trace:
    exact_a, exact_b = ([exact.from_float(v) for v in row] for row in (a, b))
    exact_scales = [(exact.from_float(s), exact.from_float(t)) for s, t in scales]
    blocks = oracle.instruction(exact_a, exact_b, exact.from_float(c), model, exact_scales)
    steps, acc = [], c
    for block, (factors, enters) in zip(blocks, units.of(model).factors(model, a, b, scales), strict=True):
        steps.append(_step(block, model, factors, acc if enters else 0.0))
        acc = steps[-1].result
    bits = steps[-1].bits if steps else oracle.result_bits(exact.from_float(c), model)
    result = _number(bits, model)
    finite = np.isfinite([*a, *b, c, *(s for pair in scales for s in pair)]).all()
    return Trace(model, tuple(steps), result, bits, _exact_sum(model, a, b, c, scales) if finite else None)


def _step(block: Block, model: Model, factors: units.Factors, c: float) -> Step:
    """An oracle's block as a step."""
    bits = oracle.result_bits(block.result, model)
    result = _number(bits, model)
    if block.result.kind == "finite" and block.result.value:
        result = float(block.result.value)
    named = [*factors, (-1, c, 1.0)]
    emax = block.emax
    terms = tuple(dataclasses.replace(t, k=k, a=float(t.value) if k == units.OF_SUM[0] else x, b=y,
                                      shift=0 if emax is None or not t.counts else emax - t.exponent)
                  for (k, x, y), t in zip(named, block.terms, strict=False))  # fmt: skip
    lost = sum((t.lost for t in terms), Fraction(0))
    return Step(block.what, terms, emax, block.quantum, block.units, result, bits, lost, block.lost_to_rounding)


def _number(bits: int, model: Model) -> float:
    """A result of its bits."""
    return float(np.uint64(bits).view(np.float64) if model.output == "fp64" else np.uint32(bits).view(np.float32))


def _exact_sum(model: Model, a: list[float], b: list[float], c: float, scales: list[tuple[float, float]]) -> Fraction:
    """The sum of all products and c, exact."""
    total = Fraction(c)
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        s, t = scales[k // model.scale[1]] if model.scale else (1.0, 1.0)
        total += Fraction(x) * Fraction(y) * Fraction(s) * Fraction(t)
    return total
