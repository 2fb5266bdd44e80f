"""The fused block on Python integers and Fractions, shaped like its definition: what the oracles of all units share.

Nothing here is shared with the kernels. A block is returned as data, from which :mod:`fplab.tensorcore.tracing` shows
what was lost where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .. import exact
from ..exact import Exact, two_to
from ..formats import Overflow, rounding
from .models import Model

NO_FLOOR = -(10**6)


@dataclass(frozen=True)
class Term:
    """One term of a block: ``significand * 2**exponent``, exact. A zero has a sign, and an exponent that may not count.

    ``counts``: whether the exponent takes part in emax. ``units``: the term in multiples of the block's quantum after
    truncation, and ``lost``: what truncation took away. In a trace ``k`` is its place in the row, -1 for the
    accumulator and -2 for the sum of a step before, ``a`` and ``b`` are its factors (c and 1), and ``shift`` = emax -
    exponent, by how many places it moved right; in block-scaled FP4, where a term is a group of 16 products, ``k`` is
    its first, its factors are its scales.
    """

    significand: Fraction
    exponent: int
    negative: bool
    counts: bool
    units: int = 0
    lost: Fraction = Fraction(0)
    k: int = -1
    a: float = 0.0
    b: float = 1.0
    shift: int = 0

    @property
    def value(self) -> Fraction:
        """The exact value before truncation."""
        return self.significand * two_to(self.exponent)

    def cut(self, units: int, quantum: Fraction) -> Term:
        """This term as so many units of a quantum, the rest lost."""
        return replace(self, units=units, lost=self.value - units * quantum)

    @property
    def bits_lost(self) -> int:
        """How many bits of the term, from its last 1 upward, lay below the quantum."""
        if not self.lost:
            return 0
        if self.units == 0:
            return abs(self.value.numerator).bit_length()
        quantum = abs(self.value - self.lost) / abs(self.units)
        return (quantum / Fraction(1, self.value.denominator)).numerator.bit_length() - 1


@dataclass(frozen=True)
class Block:
    """One step: its terms (the accumulator last), alignment, sum and result.

    ``emax``: the exponent of alignment, None where special operands decide or all terms are zero. ``quantum``:
    2**(emax - F). ``units``: the sum of the truncated terms in quanta. ``result``: after the output rounding.
    ``what``: "block"; "add" where c is added at last (without terms where that is one IEEE addition); "join" where the
    sums of two blocks are; "tree", "sum" and "fma" of which nothing is cut: rounded throughout, or at the end.
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
    return x.value / two_to(exponent), exponent


def product(a: Exact, b: Exact, emins: tuple[int, int], model: Model, shift: int) -> Term:
    """a * b, not renormalised; ``emins``: the multiplier's; ``shift`` is the sum of the exponents of block scales."""
    (sa, ea), (sb, eb) = (split(x, e, model.zero_exponent) for x, e in zip((a, b), emins, strict=True))
    counts = sa * sb != 0 or model.zero_exponent is not None
    return Term(sa * sb, ea + eb + shift, a.negative != b.negative, counts)


def decided(result: Exact, what: str = "block") -> Block:
    """A step whose result needs no alignment: special operands decide it, or it is one IEEE operation."""
    return Block((), None, Fraction(1), 0, result, what)


def exactly(values: Sequence[Exact], result: Exact, what: str) -> Block:
    """A step whose terms are all kept whole: in units of the finest of them."""
    if any(x.kind != "finite" for x in values):
        return decided(result, what)
    apart = [split(x, NO_FLOOR, NO_FLOOR) for x in values]
    terms = [Term(s, e, x.negative, s != 0) for (s, e), x in zip(apart, values, strict=True)]
    if not any(t.counts for t in terms):
        return Block(tuple(terms), None, Fraction(1), 0, result, what)
    quantum = Fraction(1, max(x.magnitude.denominator for x in values))
    cut = tuple(t.cut(int(t.value / quantum), quantum) for t in terms)
    return Block(cut, max(t.exponent for t in terms), quantum, sum(t.units for t in cut), result, what)


def in_format(value: Exact, model: Model) -> Exact:
    """A number rounded to nearest in the format of C and D."""
    code, _ = exact.round_to(value, model.format_d, "rne", Overflow.INF)
    return exact.decode(code, model.format_d)


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
    if model.overflow == "inf" and abs(value) >= two_to(fmt.emax + 1):
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
    quantum = two_to(emax - model.alignment_bits)
    cut = [t.cut(math.trunc(t.value / quantum), quantum) for t in terms]
    total = sum(t.units for t in cut)
    if total:
        result = deliver(total * quantum, model)
    else:
        minus = model.negative_zeros == "minus" and all(t.negative and t.significand == 0 for t in terms)
        result = Exact(minus)
    return Block(tuple(cut), emax, quantum, total, result)
