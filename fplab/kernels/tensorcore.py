"""One fused block of a Tensor Core, element by element, on 64-bit integers: the general path, for every option.

Operands are float32 bit patterns of values that the input formats represent. It follows the definition and does not
vectorise; :mod:`.tensorcore_fast` does the same for the usual records much faster.
"""

from typing import NamedTuple

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros

from . import inlined, jit

ABSENT = -(1 << 20)  # the exponent of a zero that does not count toward emax, and so of sums of it with others
NONE = -(1 << 19)  # an emax below this: no term counts
TOWARD_ZERO, TO_NEAREST = range(2)  # how a sum is rounded; a tie goes to even
NAN = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)
SIGN = np.uint32(0x80000000)
ABS = np.uint32(0x7FFFFFFF)


class Block(NamedTuple):
    """A block as kernels see it; every field an int."""

    length: int  # products of a block, L
    align: int  # F
    kept: int  # fraction bits of a result
    rounding: int  # TOWARD_ZERO or TO_NEAREST
    floor: int  # least emax, or ABSENT
    zero_exponent: int  # of a zero factor and of a zero c, or ABSENT
    emin_a: int
    emin_b: int
    emin_c: int  # where c's exponent is clamped
    emin_d: int  # of the result format
    emax_d: int
    nan: int  # float32 bits of a NaN result
    minus_zeros: int  # 1: a sum of negative zeros alone is -0
    plus_from_below: int  # 1: a negative sum that rounds to zero gives +0
    overflow_max: int  # 1: overflow gives the largest finite value
    widened: int  # 1: two blocks from zero, then c is added; operands come in the order of the blocks
    zero_groups: int  # 1: a group that sums to zero counts toward emax with the exponents of its scales


@inlined
def parts(bits, emin):
    """A finite float32 as (negative, m, e): magnitude m * 2**(e - 23), e not below ``emin``.

    With ``emin`` below float32's own -126, a subnormal has the exponent of its highest 1.
    """
    field = np.int64((bits >> np.uint32(23)) & np.uint32(255))
    m = np.int64(bits & np.uint32(0x7FFFFF))
    if field:
        m |= 1 << 23
    e = max(field, 1) - 127
    if field == 0 and emin < -126 and m:
        normal = np.int64(leading_zeros(np.uint64(m))) - 40
        m <<= normal
        e -= normal
    if e < emin:
        m >>= min(emin - e, 63)
        e = np.int64(emin)
    return (bits & SIGN) != np.uint32(0), m, e


@inlined
def is_nan(bits):
    """Whether float32 bits are a NaN."""
    return (bits & ABS) > INFINITY


@inlined
def is_infinite(bits):
    """Whether float32 bits are an infinity."""
    return (bits & ABS) == INFINITY


@inlined
def is_zero(bits):
    """Whether float32 bits are a zero."""
    return (bits & ABS) == np.uint32(0)


@inlined
def special_product(x, y):
    """0 for a finite product, 1 or 2 for + or - infinity, 4 for NaN."""
    if is_nan(x) or is_nan(y):
        return 4
    if is_infinite(x) or is_infinite(y):
        if is_zero(x) or is_zero(y):
            return 4
        return 2 if (x ^ y) & SIGN else 1
    return 0


@inlined
def cut(m, negative, shift):
    """``m / 2**shift`` truncated toward zero, with its sign; a negative shift multiplies."""
    if shift < 0:
        m <<= min(-shift, 63)  # far to the left is a zero alone, whose exponent does not count
    else:
        m = m >> shift if shift < 63 else np.int64(0)
    return -m if negative else m


@jit
def round_sum(total, exponent, p):
    """The float32 bits of ``total * 2**exponent``, total != 0, rounded as the block rounds its sum."""
    negative = total < 0
    m = np.uint64(-total if negative else total)
    sign = SIGN if negative else np.uint32(0)
    e = max(exponent + 63 - np.int64(leading_zeros(m)), p.emin_d)
    drop = e - p.kept - exponent
    if drop > 0:
        if drop >= 64:
            kept = np.uint64(0)
        else:
            s = np.uint64(drop)
            kept = m >> s
            if p.rounding == TO_NEAREST:
                rest, half = m & ((np.uint64(1) << s) - np.uint64(1)), np.uint64(1) << (s - np.uint64(1))
                if rest > half or (rest == half and kept & np.uint64(1)):
                    kept += np.uint64(1)
    else:
        kept = m << np.uint64(-drop)
    if kept == np.uint64(0):
        return np.uint32(0) if p.plus_from_below else sign
    top = np.uint64(1) << np.uint64(p.kept + 1)
    if kept == top:
        kept >>= np.uint64(1)
        e += 1
    if e > p.emax_d:
        if p.overflow_max:
            fraction = ((np.uint32(1) << np.uint32(p.kept)) - np.uint32(1)) << np.uint32(23 - p.kept)
            return np.uint32(sign | (np.uint32(p.emax_d + 127) << np.uint32(23)) | fraction)
        return np.uint32(sign | INFINITY)
    while kept < top >> np.uint64(1) and e > -126:  # an FP16 subnormal is a normal float32
        kept <<= np.uint64(1)
        e -= 1
    code = np.uint32(kept << np.uint64(23 - p.kept)) & np.uint32(0x7FFFFF)
    field = np.uint32(e + 127) if kept >= top >> np.uint64(1) else np.uint32(0)
    return np.uint32(sign | (field << np.uint32(23)) | code)


def refuse(p):
    """An error for a block whose rounding is none: a kernel would take it for another."""
    if p.rounding != TOWARD_ZERO and p.rounding != TO_NEAREST:
        raise ValueError("a kernel was given a rounding that it does not have")


check = jit(refuse)


@jit
def block(a, b, c, start, shift, p):
    """One fused block of the ``p.length`` products from ``start`` on. c is float32 bits; so is the result.

    ``shift`` is the sum of the exponents of two block scales.
    """
    emax = np.int64(ABSENT)
    seen = 0
    minus = True
    for k in range(start, start + p.length):
        x, y = a[k], b[k]
        seen |= special_product(x, y)
        _, ma, ea = parts(x, p.emin_a)
        _, mb, eb = parts(y, p.emin_b)
        emax = max(emax, (ea if ma else p.zero_exponent) + (eb if mb else p.zero_exponent) + shift)
        minus = minus and (ma == 0 or mb == 0) and ((x ^ y) & SIGN) != np.uint32(0)
    if is_nan(c):
        seen |= 4
    if is_infinite(c):
        seen |= 2 if c & SIGN else 1
    if seen:
        return INFINITY if seen == 1 else np.uint32(INFINITY | SIGN) if seen == 2 else np.uint32(p.nan)
    negative, mc, ec = parts(c, p.emin_c)
    emax = max(emax, ec if mc else p.zero_exponent)
    minus = minus and mc == 0 and negative
    if emax < NONE:
        return SIGN if minus and p.minus_zeros else np.uint32(0)
    emax = max(emax, np.int64(p.floor))
    total = cut(mc, negative, 23 - p.align + emax - ec)
    for k in range(start, start + p.length):
        na, ma, ea = parts(a[k], p.emin_a)
        nb, mb, eb = parts(b[k], p.emin_b)
        total += cut(ma * mb, na != nb, 46 - p.align + emax - (ea + eb + shift))
    if total == 0:
        return SIGN if minus and p.minus_zeros else np.uint32(0)
    return round_sum(total, emax - p.align, p)


@jit
def add(x, y, p):
    """The IEEE sum of two values of the output format, to nearest, as float32 bits."""
    total = np.float32(
        np.uint32(x).view(np.float32) + np.uint32(y).view(np.float32)
    )  # float32 holds an FP16 sum to twice its digits
    bits = np.float32(total).view(np.uint32)
    if is_nan(bits):
        return np.uint32(p.nan)
    if p.kept == 23 or is_infinite(bits) or is_zero(bits):
        return bits
    negative, m, e = parts(bits, -126)
    half_unit = 1 << (22 - p.kept)
    if (e == p.emax_d and m >= (1 << 24) - half_unit) or e > p.emax_d:  # whatever blocks make of overflow
        return INFINITY | bits & SIGN
    return round_sum(-m if negative else m, e - 23, p)


@jit
def chain(a, b, c, shifts, p):
    """All blocks of one row of whole blocks. ``shifts``: the exponents of block scales, one a block, or empty."""
    if is_nan(c):
        c = np.uint32(p.nan)
    d = np.uint32(0)
    for start in range(0, a.size, p.length):
        n = start // p.length
        if not p.widened:
            c = block(a, b, c, start, shifts[n] if shifts.size else 0, p)
        elif n % 2 == 0:
            d = block(a, b, np.uint32(0), start, 0, p)
        else:
            c = add(block(a, b, d, start, 0, p), c, p)
    return c


@jit
def dot(a, b, c, shifts, out, p):
    """Rows: ``out[i]`` is the chain of ``a[i]``, ``b[i]`` and ``c[i]``."""
    check(p)
    for i in range(a.shape[0]):
        out[i] = chain(a[i], b[i], c[i], shifts[i], p)
