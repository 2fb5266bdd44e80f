"""What a chunk of weights is like, and what a format made of it, in one pass each.

Sums are of float64 in lanes that are added up in order, so that neither the processor's vectors nor threads change
them.
"""

import numpy as np

from . import inlined, jit
from .codebooks import largest, order_of
from .fast32 import as_bits, as_float

LANES = 16
ABS = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)


@inlined
def _added(lanes):
    total = 0.0
    for i in range(LANES):
        total += lanes[i]
    return total


@inlined
def of_order(order):
    """The float32 of an integer that grows with it."""
    return as_float(np.uint32(order ^ np.int32(np.int32(order >> np.int32(31)) & np.int32(ABS))))


@inlined
def _lost(a, b):
    """What became of a number: the magnitude of the difference, 0 where that is not finite, and whether it is 0 now."""
    size = np.uint32(as_bits(np.float32(a - b)) & ABS)
    d = as_float(size if size < INFINITY else np.uint32(0))
    zero = np.uint32(as_bits(b) & ABS) == np.uint32(0) and np.uint32(as_bits(a) & ABS) != np.uint32(0)
    return d, np.int32(1) if zero else np.int32(0)


@inlined
def _clipped(a, limit):
    """1 where the magnitude of a number that is no NaN is beyond a limit, in bits."""
    size = np.uint32(as_bits(a) & ABS)
    return np.int32(1) if limit < size and size <= INFINITY else np.int32(0)


@inlined
def _ends(bits):
    """The least and the greatest of float32 bits, in the order of :func:`order_of`: integers vectorise."""
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x7FFFFFFF)
    for i in range(bits.size):
        order = order_of(as_float(bits[i]))
        low = order if order < low else low
        high = order if order > high else high
    return low, high


@inlined
def _raised(tops, bits):
    """Raise what was largest to the magnitudes of float32 bits."""
    for i in range(bits.size):
        size = np.uint32(bits[i] & ABS)
        tops[i] = size if size > tops[i] else tops[i]


@jit
def describe(x, k, at, base, columns, rows):
    """Of finite float32 ``x``, part of a matrix with rows of ``k`` from element ``at`` on: (sum, sum of squares, ends).

    ``columns``: float32 bits, from column ``base`` on, and ``rows``: those that the part reaches into; both become at
    least the largest magnitudes in it.
    """
    lanes, squares, bits = np.zeros(LANES), np.zeros(LANES), x.view(np.uint32)
    first, start = at // k, 0
    while start < x.size:
        row = (at + start) // k
        left = at + start - row * k
        count = min(k - left, x.size - start)
        part, own = x[start : start + count], bits[start : start + count]
        _raised(columns[left - base : left - base + count], own)
        rows[row - first] = max(rows[row - first], largest(own))
        whole = count // LANES * LANES
        for i in range(0, whole, LANES):
            for j in range(LANES):
                v = np.float64(part[i + j])
                lanes[j] += v
                squares[j] += v * v
        for i in range(whole, count):
            v = np.float64(part[i])
            lanes[i - whole] += v
            squares[i - whole] += v * v
        start += count
    low, high = _ends(bits)
    return _added(lanes), _added(squares), of_order(low), of_order(high)


@jit
def compare(x, y, limits, block):
    """What became of float32 ``x`` in ``y``: (sum of squared differences, the largest, how many to zero, clipped).

    ``limits``: the largest magnitude that each ``block`` elements could become, of which a clipped one has more; none
    where that is not known. Only where both are finite.
    """
    squares, tops = np.zeros(LANES), np.zeros(LANES, np.float32)
    zeros, beyond = np.zeros(LANES, np.int32), np.zeros(LANES, np.int32)
    whole, uniform = x.size // LANES * LANES, limits.size == 1 or (limits.size > 1 and block % LANES == 0)
    limit, k, end = INFINITY, 0, 0
    for start in range(0, whole, LANES):
        if uniform and start == end:
            limit, k, end = as_bits(limits[k]), k + 1, end + block
        for j in range(LANES):
            d, flushed = _lost(x[start + j], y[start + j])
            tops[j] = d if d > tops[j] else tops[j]
            squares[j] += np.float64(d) * np.float64(d)
            zeros[j] += flushed
            beyond[j] += _clipped(x[start + j], limit)
    for i in range(whole, x.size):
        d, flushed = _lost(x[i], y[i])
        tops[0] = max(tops[0], d)
        squares[i - whole] += np.float64(d) * np.float64(d)
        zeros[0] += flushed
        beyond[0] += _clipped(x[i], as_bits(limits[i // block])) if uniform else 0
    for k in range(0 if uniform else limits.size):
        for i in range(k * block, min((k + 1) * block, x.size)):
            beyond[0] += _clipped(x[i], as_bits(limits[k]))
    return _added(squares), tops.max(), zeros.sum(), beyond.sum()
