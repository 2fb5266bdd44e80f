"""Fused blocks of many outputs at a time on NumPy arrays, as their definition reads: nothing is compiled for them.

These are the products that :mod:`fplab.kernels.tensorcore_fast` does not know, such as those by other answers to open
questions, and the first ones of a process where a kernel is not in the cache (:mod:`fplab.uncompiled`). In float64 all
but the truncation of terms and the rounding of sums is exact: products have 48 bits, and sums of cut terms fewer
than 53 (:data:`MOST_ALIGNED`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..formats import Format
from ..kernels.tensorcore import NONE, TOWARD_ZERO, Block, refuse
from .operands import Array

MOST_ALIGNED = 44  # bits to which terms are aligned, so that float64 holds the sum of 64 and an accumulator
AT_ONCE = 1 << 17  # products: 1 MiB of each array between


class Operand(NamedTuple):
    """Values (..., K), float64; their exponents, a zero's as the block has it; block scales' (..., blocks), or none."""

    values: Array
    exponents: Array
    shifts: Array

    @classmethod
    @np.errstate(all="ignore")
    def of(cls, x: Array, shifts: Array, emin: int, p: Block, fmt: Format | None = None) -> "Operand":
        """Of numbers whose exponents are not below ``emin``, rounded to a format first."""
        wide = x.astype(np.float64) if fmt is None else nearest(x.astype(np.float64), fmt)
        return cls(wide, _exponents(wide, emin, p.zero_exponent), shifts)

    def at(self, index: Any) -> "Operand":
        """Some rows."""
        return Operand(*(part[index] for part in self))


def _exponents(x: Array, emin: int, of_zero: int) -> Array:
    """Of numbers, not below ``emin``; of infinities and NaN, which decide by themselves, any small one."""
    exponents: Array = np.maximum(np.frexp(np.where(np.isfinite(x), x, 0.0))[1] - 1, emin)
    return np.where(x == 0, of_zero, exponents)


def rounded(x: Array, kept: int, emin: int, emax: int, toward_zero: bool = False, beyond: float = np.inf) -> Array:
    """Numbers rounded to ``kept`` fraction bits and the subnormals below 2**emin; ``beyond``: what overflow gives."""
    unit = np.ldexp(1.0, kept - _exponents(x, emin, emin))
    scaled = x * unit
    result = (np.trunc(scaled) if toward_zero else np.rint(scaled)) / unit
    return np.where(np.isfinite(x) & (np.abs(result) >= 2.0 ** (emax + 1)), np.copysign(beyond, x), result)


def nearest(x: Array, fmt: Format) -> Array:
    """Numbers in an IEEE format."""
    return rounded(x, fmt.fraction_bits, fmt.emin, fmt.emax)


def block(x: Operand, y: Operand, n: int, c: Array, p: Block) -> Array:
    """Block ``n`` of operands whose leading dimensions broadcast to those of c, from c: numbers, NaN any."""
    at = slice(n * p.length, (n + 1) * p.length)
    products = x.values[..., at] * y.values[..., at]
    top = (x.exponents[..., at] + y.exponents[..., at]).max(axis=-1)
    shift: Any = x.shifts[..., n] + y.shifts[..., n] if x.shifts.shape[-1] else 0
    top = np.maximum(top + shift, _exponents(c, p.emin_c, p.zero_exponent))
    top = np.where(top < NONE, 0, np.maximum(top, p.floor))  # nothing counts where all are zeros
    zero: Any = 0.0
    if p.minus_zeros:
        minus = ((products == 0) & np.signbit(products)).all(axis=-1) & (c == 0) & np.signbit(c)
        zero = np.where(minus, -0.0, 0.0)
    products *= np.ldexp(1.0, p.align - top + shift)[..., None]
    total = np.trunc(products).sum(axis=-1) + np.trunc(c * np.ldexp(1.0, p.align - top))
    most = 2.0 ** (p.emax_d + 1) - 2.0 ** (p.emax_d - p.kept) if p.overflow_max else np.inf
    result = rounded(np.ldexp(total, top - p.align), p.kept, p.emin_d, p.emax_d, p.rounding == TOWARD_ZERO, most)
    if p.plus_from_below:
        result[result == 0] = 0
    return np.where(total == 0, zero, result)


def chain(x: Operand, y: Operand, c: Array, d: Format, p: Block) -> Array:
    """All blocks from c, float64; ``d``: its format."""
    half = c
    for n in range(x.values.shape[-1] // p.length):
        if not p.widened:
            c = block(x, y, n, c, p)
        elif n % 2 == 0:
            half = block(x, y, n, np.zeros_like(c), p)
        else:
            c = nearest(block(x, y, n, half, p) + c, d)
    return c


def fill(x: Operand, y: Operand, c: Array, d: Format, p: Block) -> None:
    """The chains of rows (N, K) and c (N,), or of x (M, K), y (N, K) and c (M, N), in place: float32 bits."""
    refuse(p)
    with np.errstate(all="ignore"):
        for index, left, right in _pieces(x, y, c.ndim == 2):
            result = chain(left, right, c[index].view(np.float32).astype(np.float64), d, p).astype(np.float32)
            result.view(np.uint32)[np.isnan(result)] = p.nan
            c[index] = result.view(np.uint32)


def _pieces(x: Operand, y: Operand, outer: bool) -> Iterator[tuple[slice, Operand, Operand]]:
    """Some rows at a time, so that what is between stays in the cache."""
    step = max(1, AT_ONCE // (16 * (len(y.values) if outer else 1)))
    for start in range(0, len(x.values), step):
        rows = slice(start, start + step)
        yield (rows, x.at((rows, None)), y.at(None)) if outer else (rows, x.at(rows), y.at(rows))
