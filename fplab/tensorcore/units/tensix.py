"""Tenstorrent's matrix unit as its vendor's open simulator, ttsim, computes it: MVMUL onto FP32, in fidelity phases.

A multiplier takes 7 bits of A's significand and 5 of B's. Phase 0 has the leading ones, phase 1 the next 5 of B, phase
2 the last 4 of A, phase 3 both; B's eleventh bit enters none. An instruction adds 16 products, of one phase, to c:

1. Of each 8 products e is the largest exponent, not renormalised; a zero has that of two subnormal operands and counts.
   Each product is rounded to a multiple of 2**(e - 10), ties away from zero, and all are added exactly.
2. Both sums and c are rounded to multiples of 2**(m - 23), m the largest of the three exponents, and added exactly: c's
   ties go away from zero, the sums' upward. The result is rounded to FP32, ties away from zero.

Subnormals are zeros, and a result of zero is +0. There is no NaN and no infinity: their codes are numbers beyond the
largest; results overflow to 2**128, infinity's. A NaN operand, of which no payload comes here, is 1.5 times infinity's.
Wormhole makes of a sum of exactly -2**(m - 23), by mistake, -2**(m + 4): ``Model.minus_one``.

``Model.phases`` run one after the other over a tile of 32 products, as in tt-llk's loop. Source: tensix.cpp of ttsim,
2026, which is meant to have the silicon's bits; an earlier README said that MVMUL did not have them yet, and the manual
of the ISA calls its own model, 16 products added in FP32, a rough guide. Nothing here was held to silicon.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from ...errors import LabError
from ...exact import Exact, floor_log2, two_to
from ...formats import Format, get
from .. import engine
from ..blocks import Block, decided
from ..models import Model
from . import Array, Known, Pairs, Rounded, ScalePair, Unit

GROUP, LANES = 8, 16  # products that share an exponent, and those of an instruction
LAST, FINE = 10, 23  # places below an exponent that products, and sums, keep
BIAS, FP32 = 127, get("fp32")


class Tensix(Unit):
    """A tile: both its instructions in every phase."""

    traced = False

    # --- the oracle -------------------------------------------------------------------------------------------------

    def width(self, model: Model) -> int:
        return model.k

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        steps = []
        for phase in range(model.phases):
            for start in range(0, model.k, LANES):
                pairs = list(zip(a[start : start + LANES], b[start : start + LANES], strict=True))
                sums = [_group(pairs[n : n + GROUP], phase, model) for n in range(0, LANES, GROUP)]
                c = _onto(c, sums, model.minus_one == "wrong")
                steps.append(decided(c, "sum"))
        return steps

    # --- the fast product -------------------------------------------------------------------------------------------

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        left, right = (_taken_apart(engine.whole(x, model), f) for x, f in ((a, model.format_a), (b, model.format_b)))
        for start in range(0, left[0].shape[1], model.k):
            for phase in range(model.phases):
                for first in range(start, start + model.k, LANES):
                    own = slice(first, first + LANES)
                    c[...] = _instruction([x[:, own] for x in left], [x[:, own] for x in right], c, phase, model)

    # --- bounds -----------------------------------------------------------------------------------------------------

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        raise LabError(f"{model.name} cuts operands by phases, and no bound is proved of that.")


def _zero_exponent(phase: int, model: Model) -> int:
    """The exponent of a product with a zero, without FP32's bias."""
    return -BIAS if model.format_a.exponent_bits == 8 else 2 * (model.format_a.emin - 1) - _lower(phase)


def _lower(phase: int) -> int:
    """By how many places a phase's products lie lower than those of the first."""
    return 5 * (phase & 1) + 7 * (phase >> 1)


# --- on Fractions -----------------------------------------------------------------------------------------------------
def _number(x: Exact, fmt: Format) -> Fraction:
    """A code's value as the unit reads it."""
    if x.kind != "finite":
        top = Fraction(2) ** (fmt.emax + 1)
        return top * (2 - two_to(-FINE) if fmt.name == "fp32" else Fraction(3, 2)) if x.is_nan else _signed(top, x)
    return x.value if x.magnitude >= two_to(fmt.emin) else Fraction(0)


def _signed(magnitude: Fraction, x: Exact) -> Fraction:
    return -magnitude if x.negative else magnitude


def _part(x: Fraction, places: int, width: int) -> Fraction:
    """Of a significand in [1, 2), ``width`` bits from ``places`` below the first on, truncated."""
    above = x // two_to(-places + 1) * two_to(-places + 1) if places else Fraction(0)
    last = two_to(1 - places - width)
    return (x - above) // last * last


def _group(pairs: Pairs, phase: int, model: Model) -> tuple[Fraction, int]:
    """The sum of 8 products, and the exponent that it has whatever is left of it."""
    products, exponents = [], []
    for x, y in pairs:
        u, v = _number(x, model.format_a), _number(y, model.format_b)
        if not u or not v:
            exponents.append(_zero_exponent(phase, model))
            continue
        (su, eu), (sv, ev) = ((abs(w) / two_to(floor_log2(abs(w))), floor_log2(abs(w))) for w in (u, v))
        high = _part(su, 7, 4) if phase & 2 else _part(su, 0, 7)
        low = _part(sv, 5, 5) if phase & 1 else _part(sv, 0, 5)
        exponents.append(eu + ev - _lower(phase))
        products.append((high * low * two_to(eu + ev), (u < 0) != (v < 0)))
    top = max(exponents)
    if top <= -BIAS:
        return Fraction(0), -BIAS
    quantum = two_to(top - LAST)
    units = [(magnitude / quantum + Fraction(1, 2)).__floor__() for magnitude, _ in products]
    return sum((-n if minus else n for n, (_, minus) in zip(units, products, strict=True)), 0) * quantum, top


def _onto(c: Exact, sums: Sequence[tuple[Fraction, int]], wrong: bool) -> Exact:
    """Both sums and c."""
    number = Fraction(0) if c.is_zero else _number(c, FP32)
    m = max([e for _, e in sums] + [floor_log2(abs(number)) if number else -BIAS])
    if m <= -BIAS:
        return Exact(False)
    quantum, half = two_to(m - FINE), Fraction(1, 2)
    away = (abs(number) / quantum + half).__floor__()
    total = (-away if number < 0 else away) + sum((x / quantum + half).__floor__() for x, _ in sums)
    if not total:
        return Exact(False)
    if wrong and total == -1:
        magnitude = two_to(m + 4)
    else:
        magnitude = abs(total) * quantum
        last = two_to(floor_log2(magnitude) - FINE)
        magnitude = (magnitude / last + half).__floor__() * last
    if magnitude < two_to(FP32.emin):
        return Exact(False)
    return Exact(total < 0, magnitude) if magnitude < two_to(FP32.emax + 1) else Exact(total < 0, kind="inf")


# --- on arrays --------------------------------------------------------------------------------------------------------
def _taken_apart(x: Array, fmt: Format) -> tuple[Array, Array, Array, Array]:
    """Signs, exponents, significands of 11 bits, and which are zero, int64."""
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
    exponent, fraction, sign = (bits >> 23 & 255) - BIAS, bits >> 13 & 0x3FF, bits >> 31
    beyond = exponent == 128
    nan = beyond & (fraction > 0)
    exponent[beyond], fraction[nan], sign[nan] = fmt.emax + 1, 0x200, 0
    return sign, exponent, fraction | 0x400, np.abs(x) < 2.0**fmt.emin


def _instruction(left: Sequence[Array], right: Sequence[Array], c: Array, phase: int, model: Model) -> Array:
    """c, as FP32 bits, with the products of 16 columns."""
    (sign_a, exponent_a, a, zero_a), (sign_b, exponent_b, b, zero_b) = left, right
    products = ((a & 15) << 3 if phase & 2 else a >> 4) * (b >> 1 & 31 if phase & 1 else b >> 6)
    zero = zero_a | zero_b
    products[zero] = 0
    exponents = np.where(zero, _zero_exponent(phase, model), exponent_a + exponent_b - _lower(phase)) + BIAS
    total, terms = c.astype(np.int64), []
    for n in range(0, LANES, GROUP):
        own = slice(n, n + GROUP)
        top = exponents[:, own].max(axis=1)
        shift = np.minimum(top[:, None] - exponents[:, own], 30)
        units = (2 * products[:, own] + (1 << shift)) >> (shift + 1)
        summed = np.where((sign_a ^ sign_b)[:, own] == 1, -units, units).sum(axis=1)
        terms.append((np.where(top > 0, summed, 0) << (FINE - LAST), np.maximum(top, 0)))
    exponent = total >> 23 & 255
    magnitude = np.where(exponent > 0, total & 0x7FFFFF | 0x800000, 0)
    largest = np.maximum.reduce([exponent, *(top for _, top in terms)])
    summed = np.where(
        total >> 31 == 1, -_shifted(magnitude, largest - exponent), _shifted(magnitude, largest - exponent)
    )
    for term, top in terms:
        summed = summed + _shifted(term, largest - top)
    size = np.abs(summed)
    shift = 24 - np.frexp(size.astype(np.float64))[1]
    if model.minus_one == "wrong":
        shift = np.where(summed == -1, -4, shift)
    result = np.where(shift < 0, _shifted(size, np.maximum(-shift, 0)), size << np.maximum(shift, 0))
    exponent = largest - shift + (result >> 24 & 1)
    bits = np.where(exponent >= 255, 255 << 23, exponent << 23 | result & 0x7FFFFF) | (summed < 0) << 31
    return np.where((largest > 0) & (summed != 0) & (exponent > 0), bits, 0).astype(np.uint32)


def _shifted(x: Array, places: Array) -> Array:
    """x / 2**places to the nearest integer, ties upward."""
    most = np.minimum(places, 40)
    return np.asarray((x + (1 << most >> 1)) >> most)


UNIT = Tensix()
