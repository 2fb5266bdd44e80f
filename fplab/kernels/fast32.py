"""Fast rounding of float32 arrays: branch-free, so that it vectorises; every result equals the general path's.

Two ways, by the format's range:

* **narrow** (FP16, FP8, FP6, FP4): adding 1.5 * 2**(e + 24 - p) to |x|, e its exponent or emin if that is larger,
  makes the float32 addition itself round |x| to the format's grid; subtracting it again is exact. What was lost,
  |x| - y, is exact too and decides the other roundings.
* **wide** (BF16, TF32: the exponents of float32): the grid is a fixed number of low bits, and rounding is integer
  arithmetic on the code.

Infinity, NaN and overflow are put right by selection, and the sign is set aside before and put back after.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import inlined, jit
from .memory import BLOCK, LINE, fence, stream
from .rounding import ODD, RNA, RNE, RTN, RTP, RTZ, STOCHASTIC, random_word

SIGN = np.uint32(0x80000000)
ABS = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)
HALF_BITS = np.uint32(0x400000)


class Narrow(NamedTuple):
    """Constants of a format whose range lies inside float32's; float32 bit patterns as ints."""

    emin: int  # of 2**emin
    magic: int  # added to an exponent's bits: 1.5 * 2**(e + 24 - p)
    ulp: int  # subtracted from an exponent's bits: 2**(e - p + 1)
    units: int  # an exponent's bits are subtracted from it: 2**32 / ulp
    largest: int
    flip: int  # the sign bit for rtn, which is rtp of the negated operand; else 0
    over: int  # what an infinite operand becomes, and an overflow that rounds away from zero
    stop: int  # what a finite overflow becomes that rounds toward zero
    nan_and: int  # a NaN becomes (x & nan_and) | nan_or
    nan_or: int


class Wide(NamedTuple):
    """Constants of a format with float32's exponents and ``drop`` fraction bits fewer; bit patterns as ints."""

    drop: int
    largest: int
    flip: int
    over: int
    stop: int
    nan_and: int
    nan_or: int


@inlined
def as_float(bits):
    """The float32 with these bits."""
    return np.uint32(bits).view(np.float32)


@inlined
def as_bits(x):
    """The bits of a float32."""
    return np.float32(x).view(np.uint32)


@intrinsic
def shift_right(_context, bits, count):
    """uint32 ``bits >> places`` for less than 32 places, in 32 bits: numba's own shift is in 64."""

    def generate(_context, builder, _signature, args):
        return builder.lshr(args[0], args[1])

    return (types.uint32(bits, count), generate) if bits == count == types.uint32 else None


@intrinsic
def _convert(_context, x):
    """A float32 of 0 to 2**32 - 256 without its fraction, as uint32; numba's own conversion would not vectorise."""

    def generate(_context, builder, _signature, args):
        return builder.fptoui(args[0], ir.IntType(32))

    return types.uint32(x), generate


@inlined
def to_uint32(x):
    """A float32 from 0 to below 2**32 without its fraction, as uint32; for a NaN and for more, 2**32 - 256."""
    most = np.float32(4294967040)
    return _convert(x if x < most else most)


@inlined
def _finish(r, a, b, p, limit):
    """Overflow (to ``limit``), NaN and the sign put right on the rounded magnitude bits ``r`` of input bits ``b``."""
    r = limit if r > np.uint32(p.largest) else r
    r = np.uint32((a & np.uint32(p.nan_and)) | np.uint32(p.nan_or)) if a > INFINITY else r
    return np.uint32(r | (b & SIGN))


@inlined
def _stop(a, p):
    """The limit of a rounding that never goes away from zero."""
    return np.uint32(p.over) if a == INFINITY else np.uint32(p.stop)


@inlined
def _grid(a, p):
    """The bits of 2**e for e the exponent of ``a``, at least emin."""
    return max(np.uint32(a & INFINITY), np.uint32(p.emin))


@inlined
def _nearest(a, e, p):
    """|x| rounded to nearest, ties to even, on the grid of exponent ``e``: (float bits before and after)."""
    c = as_float(np.uint32(e + np.uint32(p.magic)))
    shifted = np.float32(as_float(a) + c)
    return as_bits(shifted), np.float32(shifted - c)


@inlined
def narrow_rne(b, p, word):
    """Float32 bits ``b`` rounded to nearest, ties to even. All rounders take the random word, one uses it."""
    a = np.uint32(b & ABS)
    _, y = _nearest(a, _grid(a, p), p)
    return _finish(as_bits(y), a, b, p, np.uint32(p.over))


@inlined
def _ulp(e, p):
    return as_float(np.uint32(e - np.uint32(p.ulp)))


@inlined
def _step(y, step, wanted):
    """The bits of |y|, one step on where ``wanted``."""
    return np.uint32(as_bits(np.float32(y + (step if wanted else np.float32(0)))) & ABS)


@inlined
def _narrow_rna(b, p, word):
    a = np.uint32(b & ABS)
    e = _grid(a, p)
    _, y = _nearest(a, e, p)
    ulp = _ulp(e, p)
    tie_went_down = np.float32(as_float(a) - y) == np.float32(np.float32(0.5) * ulp)
    return _finish(_step(y, ulp, tie_went_down), a, b, p, np.uint32(p.over))


@inlined
def _narrow_rtz(b, p, word):
    a = np.uint32(b & ABS)
    e = _grid(a, p)
    _, y = _nearest(a, e, p)
    return _finish(_step(y, np.float32(-_ulp(e, p)), y > as_float(a)), a, b, p, _stop(a, p))


@inlined
def _narrow_up(b, p, word):
    """Toward +infinity; with ``p.flip`` the sign bit, toward -infinity."""
    a = np.uint32(b & ABS)
    signed = np.uint32(b ^ np.uint32(p.flip))
    e = _grid(a, p)
    _, y = _nearest(signed, e, p)
    limit = np.uint32(p.over) if signed == a else _stop(a, p)
    return _finish(_step(y, _ulp(e, p), y < as_float(signed)), a, b, p, limit)


@inlined
def _narrow_odd(b, p, word):
    a = np.uint32(b & ABS)
    e = _grid(a, p)
    shifted, y = _nearest(a, e, p)
    x = as_float(a)
    ulp = _ulp(e, p)
    even = np.uint32(shifted & np.uint32(1)) == np.uint32(0)
    other = ulp if y < x else np.float32(-ulp)  # the step to the neighbour that is odd
    return _finish(_step(y, other, even and y != x), a, b, p, _stop(a, p))


@inlined
def _narrow_stochastic(b, p, word):
    a = np.uint32(b & ABS)
    e = _grid(a, p)
    _, y = _nearest(a, e, p)
    ulp = _ulp(e, p)
    y = np.float32(y - (ulp if y > as_float(a) else np.float32(0)))
    # The part below the grid in units of 2**-32 ulp: both operations are exact, and the conversion cuts off the rest.
    # It rounds up when its sum with the word carries, that is when word > ~share. Written so, or as a carry, LLVM makes
    # of it an addition with overflow, which it does not vectorise; with both signs flipped the comparison is signed.
    per_ulp = as_float(np.uint32(np.uint32(p.units) - e))
    share = to_uint32(np.float32(np.float32(as_float(a) - y) * per_ulp))
    up = np.int32(np.uint32(word ^ SIGN)) > np.int32(np.uint32(share ^ ABS))
    return _finish(_step(y, ulp, up), a, b, p, np.uint32(p.over))


@inlined
def _unit(p):
    """The number of low bits that go, and a mask of them."""
    drop = np.uint32(p.drop)
    return drop, np.uint32((np.uint32(1) << drop) - np.uint32(1))


@inlined
def _cut(a, b, addend, p, limit):
    """The magnitude plus ``addend``, without its low bits: most roundings differ only in what they add."""
    _, low = _unit(p)
    return _finish(np.uint32(np.uint32(a + addend) & ~low), a, b, p, limit)


@inlined
def _wide_rne(b, p, word):
    drop, low = _unit(p)
    a = np.uint32(b & ABS)
    odd = np.uint32((a >> drop) & np.uint32(1))
    return _cut(a, b, np.uint32((low >> np.uint32(1)) + odd), p, np.uint32(p.over))


@inlined
def _wide_rna(b, p, word):
    _, low = _unit(p)
    half = np.uint32((low >> np.uint32(1)) + np.uint32(1))
    return _cut(np.uint32(b & ABS), b, half, p, np.uint32(p.over))


@inlined
def _wide_rtz(b, p, word):
    a = np.uint32(b & ABS)
    return _cut(a, b, np.uint32(0), p, _stop(a, p))


@inlined
def _wide_up(b, p, word):
    """Toward +infinity; with ``p.flip`` the sign bit, toward -infinity."""
    _, low = _unit(p)
    a = np.uint32(b & ABS)
    away = np.uint32(b ^ np.uint32(p.flip)) == a
    return _cut(a, b, low if away else np.uint32(0), p, np.uint32(p.over) if away else _stop(a, p))


@inlined
def _wide_odd(b, p, word):
    drop, low = _unit(p)
    a = np.uint32(b & ABS)
    last = np.uint32(np.uint32(1) << drop) if np.uint32(a & low) != np.uint32(0) else np.uint32(0)
    last = last if a < INFINITY else np.uint32(0)
    return _finish(np.uint32((a & ~low) | last), a, b, p, _stop(a, p))


@inlined
def _wide_stochastic(b, p, word):
    noise = shift_right(word, np.uint32(np.uint32(32) - np.uint32(p.drop)))
    return _cut(np.uint32(b & ABS), b, noise, p, np.uint32(p.over))


@inlined
def write(out, at, buffer, count, past_cache):
    """``out[at:at+count] = buffer[:count]``, past the cache if asked and whole lines."""
    if past_cache and count % LINE == 0:
        stream(out, at, buffer, count)
    else:
        for i in range(count):
            out[at + i] = buffer[i]


def _loop(rounder, draws):
    """The loop of one rounder: a loop with a choice of roundings inside would not vectorise.

    The kernel rounds float32 ``bits`` into ``out``; element i draws random word ``start + i`` of the two keys. The
    first ``head`` elements come before a 64-byte boundary of ``out``.
    """

    @jit
    def kernel(bits, out, p, start, key0, key1, head, past_cache):
        buffer = np.empty(BLOCK, np.uint32)
        at, n = 0, bits.size
        while at < n:
            count = min(n - at, BLOCK if at or not head else head)
            source = bits[at : at + count]
            index = np.uint32(start + at)  # counted by itself, in 32 bits
            for i in range(source.size):
                word = random_word(index, key0, key1) if draws else np.uint32(0)
                buffer[i] = rounder(source[i], p, word)
                index = np.uint32(index + np.uint32(1))
            write(out, at, buffer, count, past_cache)
            at += count
        if past_cache:
            fence()

    return kernel


NARROW = {
    RNE: _loop(narrow_rne, False),
    RNA: _loop(_narrow_rna, False),
    RTZ: _loop(_narrow_rtz, False),
    RTP: (up := _loop(_narrow_up, False)),
    RTN: up,
    ODD: _loop(_narrow_odd, False),
    STOCHASTIC: _loop(_narrow_stochastic, True),
}
WIDE = {
    RNE: _loop(_wide_rne, False),
    RNA: _loop(_wide_rna, False),
    RTZ: _loop(_wide_rtz, False),
    RTP: (up := _loop(_wide_up, False)),
    RTN: up,
    ODD: _loop(_wide_odd, False),
    STOCHASTIC: _loop(_wide_stochastic, True),
}
