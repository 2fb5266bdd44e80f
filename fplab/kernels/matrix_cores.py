"""AMD's Matrix Cores: pairwise sums of products, and sums in two steps that round down.

The element by element functions (:func:`pairwise_dot`, :func:`two_step_dot`) follow the definitions. Matrices are
multiplied in pairs by :mod:`.multiply_adds`; in two steps here, many columns at a time: operands are packed as in
:mod:`.tensorcore_fast`, and blocks that are not in range left to the element by element function.
"""

from typing import NamedTuple

import numpy as np

from . import inlined, jit
from .tensorcore_exact import fma
from .tensorcore_fast import ABS, INFINITY, LINE, TILE, WIDTH, _bits, _float, _power64, give, in_range_of, lined, take
from .tensorcore_pack import IN_RANGE
from .tensorcore_rows import TwoStep, TwoStepOfTwo, highest_of

SUM = 31  # places below the largest of products and C to which the sum of products is rounded down
ZERO = -126  # the exponent of a zero operand
SIGN = np.uint32(0x80000000)
LEAST_ALIGNED, MOST_ALIGNED = 16, 25  # places of which sums fit the int32 and float32 of the vectors


class Rule(NamedTuple):
    """A two-step sum as kernels see it; every field an int."""

    length: int  # products of a group
    parts: int  # 2: the first and the second half of a group are summed apart, each at its own exponent
    align: int  # places below the largest product to which products are truncated, and below the largest of both C
    emin_a: int
    emin_b: int
    nan: int
    none: int  # largest exponents below this mean that all products are zero


# --- pairwise sums ------------------------------------------------------------------------------------------------
@inlined
def _flushed(x):
    """A subnormal float32 as a zero of its sign."""
    bits = _bits(x)
    return _float(np.uint32(bits & SIGN) if np.uint32(bits & INFINITY) == np.uint32(0) else bits)


@jit
def pairwise_dot(a, b, c, length, flushes, every):
    """Rows: to ``c[i]`` is added, group after group, the tree of a group's products; every operation in FP32.

    ``every``: before each so many products a -0 there becomes +0; 0 for never.
    """
    tree = np.empty(length, np.float32)
    for i in range(a.shape[0]):
        for start in range(0, a.shape[1], length):
            if every and start % every == 0:
                c[i] += np.float32(0)
            for k in range(length):
                p = fma(a[i, start + k], b[i, start + k], np.float32(0))
                tree[k] = _flushed(p) if flushes else p
            n = length
            while n > 1:
                n //= 2
                for k in range(n):
                    s = np.float32(tree[2 * k] + tree[2 * k + 1])
                    tree[k] = _flushed(s) if flushes else s
            s = np.float32(c[i] + tree[0])
            c[i] = _flushed(s) if flushes else s


# --- sums in two steps --------------------------------------------------------------------------------------------
@inlined
def _exponent(bits, emin):
    """The exponent of a finite number, clamped; a zero's is -126."""
    e = max(np.int64(np.uint32(bits >> np.uint32(23)) & np.uint32(255)) - np.int64(127), np.int64(emin))
    return np.int64(ZERO) if np.uint32(bits & ABS) == np.uint32(0) else e


@inlined
def _finish(s, e, c, align, forgets):
    """The second step on ``s * 2**(e - align)`` and the float32 bits of a finite c; float32 bits.

    ``forgets``: a c more than 25 places below the rest counts for nothing.
    """
    ec = max(np.int64(np.uint32(c >> np.uint32(23)) & np.uint32(255)) - np.int64(127), np.int64(ZERO))
    m = max(np.int64(e), ec)
    finer = np.int64(SUM) - np.int64(align)
    total = np.floor(s * _power64(np.int64(e) - m + finer))
    low = np.floor(np.float64(_float(c)) * _power64(np.int64(align) - m)) * _power64(finer)
    low = np.float64(0) if forgets and ec < m - np.int64(25) else low
    return _bits(np.float32((total + low) * _power64(m - np.int64(SUM))))


@jit
def group(a, at, b, bt, stride, c, r):
    """One group of products, ``a[at + k]`` and ``b[bt + k * stride]``, and c as float32 bits; so is the result."""
    marks = np.float64(_float(c)) if np.uint32(c & INFINITY) == INFINITY else np.float64(0)
    beyond = np.float64(0)
    total, top = np.float64(0), np.int64(0)
    for part in range(r.parts):
        s, e = np.float64(0), np.int64(-1000)
        first = part * (r.length // r.parts)
        for k in range(first, first + r.length // r.parts):
            x, y = a[at + k], b[bt + k * stride]
            e = max(e, _exponent(_bits(x), r.emin_a) + _exponent(_bits(y), r.emin_b))
            p = np.float64(x) * np.float64(y)
            if not np.isfinite(p):
                marks += p
            elif np.abs(p) >= np.float64(2.0**128):
                beyond += np.copysign(np.float64(np.inf), p)
        scale = _power64(np.int64(r.align) - e)
        for k in range(first, first + r.length // r.parts):
            s += np.trunc(np.float64(a[at + k]) * np.float64(b[bt + k * stride]) * scale)
        if part:
            both = max(e, top)
            s = np.floor(s * _power64(e - both)) + np.floor(total * _power64(top - both))
            e = both
        total, top = s, e
    if np.isnan(marks) or (marks == 0.0 and np.isnan(beyond)):
        return np.uint32(r.nan)
    if marks != 0.0 or beyond != 0.0:
        return _bits(np.float32(marks if marks != 0.0 else beyond))
    return _finish(total, top, c, r.align, r.parts == 2)


@jit
def two_step_dot(a, b, c, r):
    """Rows of whole groups: ``c[i]``, float32 bits, becomes the chain of ``a[i]`` and ``b[i]``, values."""
    for i in range(a.shape[0]):
        for start in range(0, a.shape[1], r.length):
            c[i] = group(a[i], start, b[i], start, 1, c[i], r)


def _two_step(length, kind):
    """The kernel of one group length; of a group's sums ``kind`` has one or two."""
    n, parts = length // kind.parts, kind.parts
    highest, in_range = highest_of(n), in_range_of(length, kind)

    @jit
    def kernel(a, ea, ka, rows, b, eb, kb, out, columns, row0, row1, panel0, panel1, r):
        blocks, usual, unmoved = ka.size // rows, LEAST_ALIGNED <= r.align <= MOST_ALIGNED, np.empty(0, np.int32)
        acc, before = lined(np.empty(TILE * WIDTH + LINE, np.uint32)), np.empty(WIDTH, np.uint32)
        top, zeros = lined(np.empty(parts * TILE * WIDTH + LINE, np.uint8)), np.empty(TILE, np.bool_)
        for panel in range(panel0, panel1):
            left = panel * WIDTH
            width = min(WIDTH, columns - left)
            for tile in range(row0, row1, TILE):
                height = min(TILE, row1 - tile)
                take(out, tile * columns + left, columns, 1, height, width, acc)
                for block in range(blocks):
                    i = end = 0
                    first, theirs = block * rows + tile, panel * blocks + block
                    while i < height:
                        if i >= end:
                            end = i
                            while end < height and usual and max(ka[first + end], kb[theirs]) == IN_RANGE:
                                zeros[end] = False
                                for part in range(parts):
                                    at, bt = (first + end) * length + part * n, (theirs * length + part * n) * WIDTH
                                    zeros[end] |= highest(ea, at, eb, bt, r.none, top, (end * parts + part) * WIDTH)
                                end += 1
                        bt = theirs * length * WIDTH
                        if i < end:
                            i = in_range(i, end, a, first, b, bt, unmoved, unmoved, 0, acc, zeros, top, before, r)
                        if i < height:
                            for j in range(i * WIDTH, i * WIDTH + width):
                                acc[j] = group(a, (first + i) * length, b, bt + j - i * WIDTH, WIDTH, acc[j], r)
                            i += 1
                give(acc, height, width, out, tile * columns + left, columns, 1)

    return kernel


TWO_STEP = {
    (length, kind.parts): _two_step(length, kind) for length, kind in ((4, TwoStep), (8, TwoStep), (16, TwoStepOfTwo))
}
