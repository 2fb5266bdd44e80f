"""Dot products in an exact (Kulisch) accumulator: one fixed-point number wide enough for every product.

The accumulator is an array of int64 limbs that each carry one 32-bit digit; what overflows a digit stays in the upper
half of its limb until :func:`_propagate` moves it on, so that adding a product touches three limbs and no carry
chain. Its lowest bit is the lowest bit any product can have, so nothing is ever lost and the order of the terms
cannot matter (Kulisch, Computer Arithmetic and Validity, 2nd ed. 2013, chapter 8).
"""

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros

from . import jit
from .arith import mul
from .rounding import (
    FINITE,
    INF,
    INVALID,
    QNAN,
    QUIET,
    RTN,
    SNAN,
    U0,
    U1,
    ZERO,
    check,
    draws,
    element_word,
    is_subnormal,
    pack,
    unpack,
)

DIGIT = np.uint64(0xFFFFFFFF)
U32, U64_BITS = np.uint64(32), np.uint64(64)
LAZY = 1 << 29  # terms between two propagations: a limb gains less than 2**32 a term, 2**61 in all


@jit
def lowest_bit(fmt):
    """The exponent of the lowest bit a product of two values of ``fmt`` can have."""
    return 2 * (fmt.emin - fmt.fraction_bits)


@jit
def limb_count(fmt):
    """Limbs for every product of two values of ``fmt``, for 2**62 terms of them, and for the sign."""
    emax = (fmt.max_code >> fmt.fraction_bits) - fmt.zero + fmt.emin
    return (2 * (emax + 1) - lowest_bit(fmt) + 63) // 32 + 3


@jit
def deposit(limbs, negative, m, position):
    """Add ``m * 2**position`` (positions count from the lowest bit of the accumulator) or subtract it."""
    at = position >> 5
    shift = np.uint64(position & 31)
    low = np.int64((m << shift) & DIGIT)
    middle = np.int64((m >> (U32 - shift)) & DIGIT)
    high = np.int64(m >> (U64_BITS - shift)) if shift != U0 else np.int64(0)
    if negative:
        low, middle, high = -low, -middle, -high
    limbs[at] += low
    limbs[at + 1] += middle
    limbs[at + 2] += high


@jit
def _propagate(limbs):
    """Move what overflows each digit into the next limb; the top limb keeps the sign."""
    for d in range(limbs.size - 1):
        limbs[d + 1] += limbs[d] >> 32
        limbs[d] &= 0xFFFFFFFF


@jit
def read(limbs, lowest):
    """The accumulator as (negative, m, e, sticky), m with its highest bit set, or m = 0; the limbs are used up."""
    _propagate(limbs)
    negative = limbs[limbs.size - 1] < 0
    if negative:
        for d in range(limbs.size):
            limbs[d] = -limbs[d]
        _propagate(limbs)
    top = limbs.size - 1
    while top >= 0 and limbs[top] == 0:
        top -= 1
    if top < 0:
        return False, U0, np.int64(0), False
    first = np.uint64(limbs[top])
    second = np.uint64(limbs[top - 1]) if top >= 1 else U0
    third = np.uint64(limbs[top - 2]) if top >= 2 else U0
    m = (first << U32) | second
    free = np.uint64(leading_zeros(m))  # at most 31: the top digit is not zero
    m = (m << free) | (third >> (U32 - free))
    sticky = (third & ((U1 << (U32 - free)) - U1)) != U0
    for d in range(top - 2):
        sticky = sticky or limbs[d] != 0
    return negative, m, lowest + 32 * (top - 1) - np.int64(free), sticky


@jit
def exact_dot(x, y, row, src, daz, mode, limbs):
    """One row's exact sum of products as (kind, negative, m, e, sticky, flags); ``y`` without elements means ones."""
    limbs[:] = 0
    lowest = lowest_bit(src)
    flags = 0
    nan = False
    infinite = 0  # bit 0: a +inf was met, bit 1: a -inf
    zeros = 0  # the same for zero products
    nonzero = False
    for k in range(x.shape[1]):
        ka, na, ma, ea, _ = unpack(np.uint64(x[row, k]), src)
        if daz and ka == FINITE and is_subnormal(ma, src):
            ka = ZERO
        kb, nb, mb, eb = FINITE, False, U1, np.int64(0)
        if y.size > 0:
            kb, nb, mb, eb, _ = unpack(np.uint64(y[row, k]), src)
            if daz and kb == FINITE and is_subnormal(mb, src):
                kb = ZERO
        if ka == FINITE and kb == FINITE:
            nonzero = True
            deposit(limbs, na != nb, ma * mb, ea + eb - lowest)
        else:
            kind, negative, _, _, _, raised = mul(ka, na, ma, ea, kb, nb, mb, eb)
            flags |= raised
            nan = nan or kind == QNAN or kind == SNAN
            side = 2 if negative else 1
            if kind == INF:
                infinite |= side
            elif kind == ZERO:
                zeros |= side
        if (k + 1) % LAZY == 0:
            _propagate(limbs)
    if nan or infinite == 3:
        return QNAN, False, U0, np.int64(0), False, flags if nan else INVALID
    if infinite:
        return INF, infinite == 2, U0, np.int64(0), False, 0
    if not nonzero and (zeros == 1 or zeros == 2):
        return ZERO, zeros == 2, U0, np.int64(0), False, 0
    negative, m, e, sticky = read(limbs, lowest)
    if m == U0:
        return ZERO, mode == RTN and x.shape[1] > 0, U0, np.int64(0), False, 0
    return FINITE, negative, m, e, sticky, 0


@jit
def dot_rows(x, y, out, flags, src, dst, options, seed, first, last):
    """The exact dot products of rows ``first`` to ``last`` (codes of ``src``), rounded once to codes of ``dst``.

    ``x``, ``y``: (N, K) uint32, ``y`` without elements means ones; ``out``, ``flags``: (N,), bit 64 of the flags says
    that a NaN met a format without one. Row i draws random word i.
    """
    check(options)
    limbs = np.zeros(limb_count(src), np.int64)
    for i in range(first, last):
        kind, negative, m, e, sticky, raised = exact_dot(x, y, i, src, options.daz != 0, options.mode, limbs)
        word = element_word(i, seed) if draws(options.mode) else U0
        code, more = pack(kind, negative, m, e, sticky, QUIET, dst, options, True, word)
        out[i] = code
        flags[i] = raised | more
