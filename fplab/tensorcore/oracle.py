"""The oracle of Tensor Cores: one block on Python integers and Fractions, shaped like its definition.

It shares nothing with the kernels. A block, and each step of a chain, is returned as data (:class:`Block`), from which
:mod:`fplab.tensorcore.tracing` shows what was lost where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .. import exact
from ..exact import Exact
from ..formats import Overflow, Rounding, get, rounding
from .models import ZERO_EXPONENT, Kind, Model

NO_FLOOR = -(10**6)
GROUP = 16  # products of a group in block-scaled FP4


@dataclass(frozen=True)
class Term:
    """One term of a block: ``significand * 2**exponent``, exact. A zero has a sign, and an exponent that may not count.

    ``counts``: whether the exponent takes part in emax. ``units``: the term in multiples of the block's quantum after
    truncation, and ``lost``: what truncation took away.
    """

    significand: Fraction
    exponent: int
    negative: bool
    counts: bool
    units: int = 0
    lost: Fraction = Fraction(0)

    @property
    def value(self) -> Fraction:
        """The exact value before truncation."""
        return self.significand * Fraction(2) ** self.exponent


@dataclass(frozen=True)
class Block:
    """One block: its terms (the accumulator last), alignment, sum and result.

    ``emax``: the exponent of alignment, None where special operands decide or all terms are zero. ``quantum``:
    2**(emax - F). ``units``: the sum of the truncated terms in quanta. ``result``: after the output rounding.
    ``what``: "block", or "add" for the IEEE addition that ends a widened FP8 instruction (no alignment there).
    """

    terms: tuple[Term, ...]
    emax: int | None
    quantum: Fraction
    units: int
    result: Exact
    what: str = "block"

    @property
    def total(self) -> Fraction:
        """The exact sum of the truncated terms."""
        return self.units * self.quantum

    @property
    def lost_to_rounding(self) -> Fraction:
        """Sum minus result."""
        return self.total - self.result.value if self.result.kind == "finite" else Fraction(0)


def split(x: Exact, emin: int, of_zero: int | None = None) -> tuple[Fraction, int]:
    """A finite number as (signed significand, exponent), the exponent not below ``emin``; a zero's is as asked for."""
    if x.is_zero:
        return Fraction(0), emin if of_zero is None else of_zero
    exponent = max(exact.floor_log2(x.magnitude), emin)
    return x.value / Fraction(2) ** exponent, exponent


def product(a: Exact, b: Exact, model: Model, shift: int) -> Term:
    """a * b, not renormalised; ``shift`` is the sum of the exponents of block scales."""
    (sa, ea), (sb, eb) = (split(x, e, model.zero_exponent) for x, e in zip((a, b), model.multiplier_emin, strict=True))
    counts = sa * sb != 0 or model.zero_exponent is not None
    return Term(sa * sb, ea + eb + shift, a.negative != b.negative, counts)


def special(pairs: Sequence[tuple[Exact, Exact]], c: Exact) -> Exact | None:
    """The result of a block with a NaN or an infinity among its operands; None where there is none."""
    products = [exact.mul(a, b)[0] for a, b in pairs]
    if any(t.is_nan for t in (*products, c)):
        return exact.NAN
    signs = {t.negative for t in (*products, c) if t.kind == "inf"}
    if not signs:
        return None
    return exact.NAN if len(signs) == 2 else Exact(signs.pop(), kind="inf")


def deliver(value: Fraction, model: Model) -> Exact:
    """A non-zero sum rounded to the result format; truncation, too, gives infinity beyond the largest finite value."""
    fmt = model.result
    mode = rounding(model.rounding)
    code, _ = exact.round_to(exact.of(value), fmt, mode, Overflow.INF)
    result = exact.decode(code, fmt)
    if model.overflow == "inf" and abs(value) >= Fraction(2) ** (fmt.emax + 1):
        return Exact(value < 0, kind="inf")
    if model.overflow == "max" and result.kind == "inf":
        return Exact(value < 0, exact.magnitude_of(fmt.max_code, fmt))
    if result.is_zero and model.zero_from_below == "plus":
        return Exact(False)
    return result


def fuse(products: Sequence[Term], c: Exact, model: Model) -> Block:
    """Align, truncate, add and round: the block itself, for finite terms."""
    emin = model.format_d.emin if model.c_exponent == "clamped" else -(10**4)
    sc, ec = split(c, emin, model.zero_exponent)
    terms = [*products, Term(sc, ec, c.negative, sc != 0 or model.zero_exponent is not None)]
    floor = NO_FLOOR if model.floor is None or model.floor_rule == "zero_terms" else model.floor
    counted = [t.exponent for t in terms if t.counts]
    if not counted:
        minus = model.negative_zeros == "minus" and all(t.negative for t in terms)
        return Block(tuple(terms), None, Fraction(1), 0, Exact(minus))
    emax = max(*counted, floor)
    quantum = Fraction(2) ** (emax - model.alignment_bits)
    cut = []
    for t in terms:
        units = math.trunc(t.value / quantum)
        cut.append(Term(t.significand, t.exponent, t.negative, t.counts, units, t.value - units * quantum))
    total = sum(t.units for t in cut)
    if total:
        result = deliver(total * quantum, model)
    else:
        minus = model.negative_zeros == "minus" and all(t.negative and t.significand == 0 for t in terms)
        result = Exact(minus)
    return Block(tuple(cut), emax, quantum, total, result)


def block(a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, shift: int = 0) -> Block:
    """One fused block of at most ``model.length`` products and an accumulator."""
    pairs = list(zip(a, b, strict=True))
    if (found := special(pairs, c)) is not None:
        return Block((), None, Fraction(1), 0, found)
    return fuse([product(x, y, model, shift) for x, y in pairs], c, model)


def widened(a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model) -> list[Block]:
    """FP8 by way of the FP16 unit: k mod 4 < 2 from zero, k mod 4 >= 2 onto that, then c by one IEEE addition."""
    halves = [[k for k in range(len(a)) if (k % 4 < 2) == first] for first in (True, False)]
    steps, d = [], Exact(False)
    for indices in halves:
        steps.append(block([a[k] for k in indices], [b[k] for k in indices], d, model))
        d = steps[-1].result
    code, _ = exact.round_to(exact.add(d, c)[0], model.format_d, Rounding.RNE, Overflow.INF)
    return [*steps, Block((), None, Fraction(1), 0, exact.decode(code, model.format_d), "add")]


def grouped(
    a: Sequence[Exact], b: Sequence[Exact], scales: Sequence[tuple[Exact, Exact]], c: Exact, model: Model
) -> Block:
    """Block-scaled FP4: a term is the exact sum of 16 products times the significands of its two scales.

    Its exponent is that of the scales, which counts even where the sum is zero, unless the model says otherwise.
    """
    if c.is_nan or any(s.is_nan for pair in scales for s in pair):
        return Block((), None, Fraction(1), 0, exact.NAN)
    if c.kind == "inf":
        return Block((), None, Fraction(1), 0, c)
    assert model.scale is not None
    fmt, length = get(model.scale[0]), model.scale[1]
    terms = []
    for start in range(0, len(a), GROUP):
        group = zip(a[start : start + GROUP], b[start : start + GROUP], strict=True)
        total = sum((x.value * y.value for x, y in group), Fraction(0))
        pair = [Exact(False, s.magnitude) for s in scales[start // length]]
        (ma, ea), (mb, eb) = (split(s, fmt.emin, ZERO_EXPONENT) for s in pair)
        significand = total * ma * mb
        terms.append(Term(significand, ea + eb, total < 0, significand != 0 or model.zero_group == "counts"))
    return fuse(terms, c, model)


def instruction(
    a: Sequence[Exact],
    b: Sequence[Exact],
    c: Exact,
    model: Model,
    scales: Sequence[tuple[Exact, Exact]] = (),
) -> list[Block]:
    """The blocks of one chain over all of k; operands are filled with +0 to whole instructions of the model's k.

    ``scales``: one pair for each group of ``model.scale[1]`` elements.
    """
    c = _accumulator(c, model)
    length = model.k if model.kind is Kind.WIDENED else model.length
    fill = [Exact(False)] * (-len(a) % model.k)
    a, b = [*a, *fill], [*b, *fill]
    steps: list[Block] = []
    for start in range(0, len(a), length):
        x, y = a[start : start + length], b[start : start + length]
        if model.kind is Kind.WIDENED:
            steps += widened(x, y, c, model)
        elif model.kind is Kind.GROUPED:
            assert model.scale is not None
            per = length // model.scale[1]
            mine = list(scales[start // model.scale[1] :][:per])
            steps.append(grouped(x, y, mine + [(Exact(False),) * 2] * (per - len(mine)), c, model))
        elif model.scale:
            sa, sb = scales[start // model.scale[1]]
            if sa.is_nan or sb.is_nan:
                steps.append(Block((), None, Fraction(1), 0, exact.NAN))
            else:
                shift = exact.floor_log2(sa.magnitude) + exact.floor_log2(sb.magnitude)
                steps.append(block(x, y, c, model, shift))
        else:
            steps.append(block(x, y, c, model))
        c = steps[-1].result
    return steps


def _accumulator(c: Exact, model: Model) -> Exact:
    """c rounded to nearest in the format of C, as it must be before it can enter."""
    code, _ = exact.round_to(c, model.format_d, Rounding.RNE, Overflow.INF)
    return exact.decode(code, model.format_d)


def dot(
    a: Sequence[float],
    b: Sequence[float],
    c: float,
    model: Model,
    scales: Sequence[tuple[float, float]] = (),
) -> Exact:
    """The result of one chain on Python floats that the formats represent."""
    pairs = [(exact.from_float(float(x)), exact.from_float(float(y))) for x, y in scales]
    x, y = ([exact.from_float(float(v)) for v in row] for row in (a, b))
    steps = instruction(x, y, exact.from_float(float(c)), model, pairs)
    return steps[-1].result if steps else _accumulator(exact.from_float(float(c)), model)


def bits(result: Exact) -> int:
    """A result as FP32 bits; a NaN is the hardware's, all ones in the fraction (an FP16 one: its ten bits)."""
    code, _ = exact.round_to(result, "fp32")
    return code


def result_bits(result: Exact, model: Model) -> int:
    """A result as the FP32 bits in which it travels: NaN is 0x7FFFFFFF, and for FP16 output 0x7FFF widened."""
    if result.is_nan:
        return 0x7FFFFFFF if model.output == "fp32" else 0x7FFFE000
    return bits(result)
