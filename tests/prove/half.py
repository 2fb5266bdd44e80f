"""FP16 arithmetic a second time, from its definition, in plain 64-bit integers: no float takes part.

Every finite FP16 number is an integer of at most 11 bits times a power of two, at least 2**-24. A sum is an integer
of that unit, a product one with twice the digits, a quotient an integer quotient with a last digit 1 where a rest
remains. One function rounds them, to nearest with ties to even.
"""

from typing import Any

import numba
import numpy as np

Array = np.ndarray[Any, Any]
INFINITY, SIGN, NAN = 0x7C00, 0x8000, 0x7E00
OPERATIONS = ("add", "sub", "mul", "div")


@numba.njit(nogil=True)
def _round(m, e):
    """The code of m * 2**e units of 2**-24, for m > 0."""
    length, rest = 1, m
    for step in (32, 16, 8, 4, 2, 1):  # the number of binary digits, by halving
        if rest >> step:
            rest >>= step
            length += step
    scale = max(length + e - 11, 0)  # the exponent of the result's last digit
    drop = scale - e
    if drop <= 0:
        return (m << -drop) + (scale << 10)
    drop = min(drop, 62)
    kept, lost, half = m >> drop, m & ((1 << drop) - 1), 1 << (drop - 1)
    kept += lost > half or (lost == half and kept & 1 == 1)
    return min(kept + (scale << 10), INFINITY)


@numba.njit(nogil=True)
def _finite(code):
    """A finite code as (significand, exponent in units of 2**-24)."""
    field, fraction = (code >> 10) & 31, code & 1023
    return (fraction, 0) if field == 0 else (fraction + 1024, field - 1)


@numba.njit(nogil=True)
def _add(a, b):
    if (a & 0x7FFF) > INFINITY or (b & 0x7FFF) > INFINITY:
        return NAN
    if (a & 0x7FFF) == INFINITY:
        return NAN if (b & 0x7FFF) == INFINITY and a != b else a
    if (b & 0x7FFF) == INFINITY:
        return b
    ma, ea = _finite(a)
    mb, eb = _finite(b)
    total = ((ma << ea) if a < SIGN else -(ma << ea)) + ((mb << eb) if b < SIGN else -(mb << eb))
    if total == 0:
        return a & b & SIGN if ma == 0 else 0  # -0 only from two of them
    return _round(total, 0) if total > 0 else _round(-total, 0) | SIGN


@numba.njit(nogil=True)
def _mul(a, b):
    sign, a, b = (a ^ b) & SIGN, a & 0x7FFF, b & 0x7FFF
    if a > INFINITY or b > INFINITY or (a == INFINITY and b == 0) or (b == INFINITY and a == 0):
        return NAN
    if a == INFINITY or b == INFINITY:
        return sign | INFINITY
    if a == 0 or b == 0:
        return sign
    ma, ea = _finite(a)
    mb, eb = _finite(b)
    return sign | _round(ma * mb, ea + eb - 24)


@numba.njit(nogil=True)
def _div(a, b):
    sign, a, b = (a ^ b) & SIGN, a & 0x7FFF, b & 0x7FFF
    if a > INFINITY or b > INFINITY or (a == INFINITY and b == INFINITY) or (a == 0 and b == 0):
        return NAN
    if a == INFINITY or b == 0:
        return sign | INFINITY
    if b == INFINITY or a == 0:
        return sign
    ma, ea = _finite(a)
    mb, eb = _finite(b)
    quotient = (ma << 26) // mb
    inexact = quotient * mb != ma << 26
    return sign | _round((quotient << 1) | inexact, ea - eb + 24 - 27)


@numba.njit(nogil=True)
def operate(op, a, codes, out):
    """``out[j] = a op codes[j]``, all FP16 codes as int64; a NaN result is 0x7E00. ``op``: a place in OPERATIONS."""
    for j in range(codes.size):
        b = codes[j]
        if op == 0:
            out[j] = _add(a, b)
        elif op == 1:
            out[j] = _add(a, b ^ SIGN)
        elif op == 2:
            out[j] = _mul(a, b)
        else:
            out[j] = _div(a, b)


def decode_all() -> Array:
    """The float32 value of every FP16 code, by its fields; every NaN is the canonical one."""
    code = np.arange(1 << 16)
    field, fraction = (code >> 10) & 31, (code & 1023).astype(np.float64)
    size = np.where(field == 0, np.ldexp(fraction, -24), np.ldexp(fraction + 1024, field - 25))
    value = np.where(code < SIGN, size, -size)
    value[field == 31] = np.where(fraction == 0, np.copysign(np.inf, value), np.nan)[field == 31]
    return value.astype(np.float32)
