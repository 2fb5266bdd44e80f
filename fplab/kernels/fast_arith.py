"""Fast +, -, * and / for formats whose range lies inside float32's and that have at most 11 significand bits.

With 2 p + 2 <= 24 a float32 operation rounded once more to p bits is the correctly rounded result (Figueroa 1995), so
the hardware's float32 operation does the work. Both operands are rounded first, always: rounding what is already
representable changes nothing, and a test for it would cost as much and keep the loop from vectorising.
"""

import numpy as np

from . import inlined, jit
from .fast32 import ABS, INFINITY, SIGN, as_bits, as_float, write
from .memory import BLOCK, fence

CANONICAL_NAN = np.uint32(0x7FC00000)
NEXT_BINADE = np.uint32(1 << 23)


@inlined
def _add(x, y):
    return np.float32(x + y)


@inlined
def _sub(x, y):
    return np.float32(x - y)


@inlined
def _mul(x, y):
    return np.float32(x * y)


@inlined
def _div(x, y):
    return np.float32(x / y)


@inlined
def _round(b, p):
    """Float32 bits rounded to nearest, ties to even, as the bits of the magnitude; a NaN stays one (not canonical).

    :func:`fplab.kernels.fast32.narrow_rne` with fewer instructions: the exponent is kept below that of a constant
    that would overflow, so that only a NaN gives a NaN, and an ordered comparison leaves it alone.
    """
    a = np.uint32(b & ABS)
    top = np.uint32(np.uint32(np.uint32(p.largest) & INFINITY) + NEXT_BINADE)
    e = np.uint32(min(max(np.uint32(a & INFINITY), np.uint32(p.emin)), top))
    c = as_float(np.uint32(e + np.uint32(p.magic)))
    y = np.float32(np.float32(as_float(a) + c) - c)
    return as_bits(as_float(np.uint32(p.over)) if y > as_float(np.uint32(p.largest)) else y)


@inlined
def _operand(b, p):
    return as_float(np.uint32(_round(b, p) | np.uint32(b & SIGN)))


def _loop(operation):
    """The kernel of one operation: float32 bits of both operands into ``out``."""

    @jit
    def kernel(a, b, out, p, head, past_cache):
        buffer = np.empty(BLOCK, np.uint32)
        at, n = 0, a.size
        while at < n:
            count = min(n - at, BLOCK if at or not head else head)
            first, second = a[at : at + count], b[at : at + count]
            for i in range(first.size):
                z = operation(_operand(first[i], p), _operand(second[i], p))
                bits = as_bits(z)
                r = np.uint32(_round(bits, p) | np.uint32(bits & SIGN))
                buffer[i] = CANONICAL_NAN if z != z else r
            write(out, at, buffer, count, past_cache)
            at += count
        if past_cache:
            fence()

    return kernel


ADD, SUB, MUL, DIV = _loop(_add), _loop(_sub), _loop(_mul), _loop(_div)
