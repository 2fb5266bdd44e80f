"""What a chunk of weights is like, and what a format made of it, in one pass each.

Sums are of float64 in lanes that are added up in order, so that neither the processor's vectors nor threads change
them.
"""

import numpy as np

from . import inlined, jit
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


@jit
def describe(x, k, at, base, columns, rows):
    """Of float32 ``x``, part of a matrix with rows of ``k`` from element ``at`` on: (sum, sum of squares, low, high).

    What is not finite counts as zero. ``columns``: float32, from column ``base`` on, and ``rows``: those that the part
    reaches into; both become at least the largest magnitudes in it.
    """
    lanes, squares = np.zeros(LANES), np.zeros(LANES)
    low, high = np.float32(np.inf), np.float32(-np.inf)
    first, start = at // k, 0
    while start < x.size:
        row = (at + start) // k
        left = at + start - row * k
        count = min(k - left, x.size - start)
        part, across = x[start : start + count], columns[left - base : left - base + count]
        most = rows[row - first]
        for i in range(count):
            v = part[i]
            v = v if np.uint32(as_bits(v) & ABS) < INFINITY else np.float32(0)
            low, high = min(low, v), max(high, v)
            size = as_float(np.uint32(as_bits(v) & ABS))
            across[i] = max(across[i], size)
            most = max(most, size)
        rows[row - first] = most
        whole = count // LANES * LANES
        for i in range(0, whole, LANES):
            for j in range(LANES):
                v = part[i + j]
                v = np.float64(v if np.uint32(as_bits(v) & ABS) < INFINITY else np.float32(0))
                lanes[j] += v
                squares[j] += v * v
        for i in range(whole, count):
            v = part[i]
            v = np.float64(v if np.uint32(as_bits(v) & ABS) < INFINITY else np.float32(0))
            lanes[i - whole] += v
            squares[i - whole] += v * v
        start += count
    return _added(lanes), _added(squares), low, high


@jit
def compare(x, y, limits, block):
    """What became of float32 ``x`` in ``y``: (sum of squared differences, the largest, how many to zero, clipped).

    ``limits``: the largest magnitude that each ``block`` elements could become, of which a clipped one has more; none
    where that is not known. Only where both are finite.
    """
    squares = np.zeros(LANES)
    most, flushed, clipped = np.float32(0), 0, 0
    for start in range(0, x.size, LANES):
        count = min(LANES, x.size - start)
        for j in range(count):
            a, b = x[start + j], y[start + j]
            d = np.float32(a - b)
            finite = np.uint32(as_bits(d) & ABS) < INFINITY
            d = as_float(np.uint32(as_bits(d) & ABS)) if finite else np.float32(0)
            most = max(most, d)
            squares[j] += np.float64(d) * np.float64(d)
            flushed += 1 if np.uint32(as_bits(b) & ABS) == np.uint32(0) and a != np.float32(0) else 0
    if limits.size:
        for k in range(limits.size):
            limit, part = as_bits(limits[k]), x[k * block : (k + 1) * block]
            for i in range(part.size):
                clipped += 1 if limit < np.uint32(as_bits(part[i]) & ABS) <= INFINITY else 0
    return _added(squares), most, flushed, clipped
