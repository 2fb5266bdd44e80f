"""One operation on float32 operands of any formats, rounded once into another format.

An optimizer adds an FP32 update to a BF16 weight, or multiplies an FP16 state by an FP32 coefficient: the operands need
not be values of the result's format, as :mod:`fplab.kernels.fast_arith` has them. The operation is done in float64.
Products of two float32 are exact there, quotients and square roots survive a second rounding to 24 bits or fewer, and
a sum is rounded to odd first, which keeps it on its side of every midpoint (Boldo and Melquiond 2008).

Seen from float64 every format of at most 32 bits is narrow, so one rounder serves them all: adding
1.5 * 2**(e + 53 - p) to the magnitude makes the float64 addition round it to the grid (see :mod:`.fast32`).
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import inlined, jit
from .rounding import random_word

BLOCK = 512
SIGN = np.uint64(1 << 63)
ABS = np.uint64((1 << 63) - 1)
EXPONENT = np.uint64(0x7FF << 52)
ONE = np.uint64(1)


class Grid(NamedTuple):
    """A format as this file sees it; float64 bit patterns as ints."""

    emin: int  # of 2**emin
    top: int  # of the power of two above the largest value
    magic: int  # added to an exponent's bits: 1.5 * 2**(e + 53 - p)
    ulp: int  # subtracted from an exponent's bits: 2**(e - p + 1)
    largest: int
    over: int  # what a larger magnitude becomes: infinity, NaN or the largest
    minus_zero: int  # the sign bit that a zero may keep, shifted down to bit 0


@inlined
def _float(bits):
    return np.uint64(bits).view(np.float64)


@inlined
def _bits(x):
    return np.float64(x).view(np.uint64)


@inlined
def _exponent(a, g):
    """The bits of 2**e for e the exponent of the magnitude ``a``, between emin and the first that overflows."""
    return min(max(np.uint64(a & EXPONENT), np.uint64(g.emin)), np.uint64(g.top))


@inlined
def _with_sign_and_overflow(y, x, g):
    """Overflow, NaN, and the sign of ``x`` on the rounded magnitude ``y``."""
    r = np.uint64(g.over) if y > _float(np.uint64(g.largest)) else _bits(y)
    sign = np.uint64(_bits(x) & SIGN)
    sign = sign if y != 0.0 else np.uint64(sign & np.uint64(np.uint64(g.minus_zero) << np.uint64(63)))
    return np.float32(np.nan) if x != x else np.float32(_float(np.uint64(r | sign)))


@inlined
def _nearest(x, g, word):
    """To nearest, ties to even."""
    a = np.uint64(_bits(x) & ABS)
    c = _float(np.uint64(_exponent(a, g) + np.uint64(g.magic)))
    return _with_sign_and_overflow((_float(a) + c) - c, x, g)


@inlined
def _stochastic(x, g, word):
    """Up with the probability of the distance from below, in 32 bits: when that share and the word carry."""
    a = np.uint64(_bits(x) & ABS)
    e = _exponent(a, g)
    c = _float(np.uint64(e + np.uint64(g.magic)))
    ulp = _float(np.uint64(e - np.uint64(g.ulp)))
    y = (_float(a) + c) - c
    y = y - (ulp if y > _float(a) else 0.0)
    above = _float(a) - y
    share = np.uint64((above if above < ulp else 0.0) / ulp * 4294967296.0)  # both by powers of two: exact
    up = np.uint64(share + np.uint64(word)) >> np.uint64(32) != np.uint64(0)
    return _with_sign_and_overflow(y + (ulp if up else 0.0), x, g)


@inlined
def _add(x, y):
    """x + y in float64, rounded to odd where it is inexact."""
    s = x + y
    back = s - x
    error = (x - (s - back)) + (y - back)
    bits = _bits(s)
    inexact = (error > 0.0) | (error < 0.0)
    outward = (error > 0.0) == (s > 0.0)
    odd = np.uint64(bits + ONE) if outward else np.uint64(bits - ONE)
    return _float(odd if inexact & ((bits & ONE) == np.uint64(0)) else bits)


@inlined
def _sub(x, y):
    return _add(x, -y)


@inlined
def _mul(x, y):
    return x * y


@inlined
def _div(x, y):
    return x / y


@inlined
def _sqrt(x, y):
    return np.sqrt(x)


@inlined
def _hold(x, y):
    """x itself: rounding alone."""
    return x


OPERATIONS = {"add": _add, "sub": _sub, "mul": _mul, "div": _div, "sqrt": _sqrt, "hold": _hold}


def _loop(operation, rounder, draws, array):
    """``out[i] = round(operation(a[i], b[i]))``, b an array or a number; element i draws word ``start + i``."""

    @jit
    def kernel(a, b, out, g, start, key0, key1):
        buffer = np.empty(BLOCK, np.float32)  # so that out may be an operand, and the loop still vectorise
        for at in range(0, a.size, BLOCK):
            x = a[at : at + BLOCK]
            y = b[at : at + BLOCK] if array else b
            first = np.uint32(start + at)
            for i in range(x.size):
                word = random_word(np.uint32(first + np.uint32(i)), key0, key1) if draws else np.uint32(0)
                buffer[i] = rounder(operation(np.float64(x[i]), np.float64(y[i] if array else y)), g, word)
            out[at : at + x.size] = buffer[: x.size]

    return kernel


@lru_cache
def kernel(operation: str, array: bool, stochastic: bool) -> Any:
    """The loop of one operation with an array or a number on its right, and one rounding."""
    return _loop(OPERATIONS[operation], _stochastic if stochastic else _nearest, stochastic, array)
