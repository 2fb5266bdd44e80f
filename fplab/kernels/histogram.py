"""Counting float32 values by binade and by place inside the binade, and what a narrow format would lose of a sum.

Magnitudes of float32 are ordered as their codes, so a count by exponent field is a histogram by binade. What a format
makes of a value at a power-of-two scale depends on more than the binade, but on little more: on which side of a few
fractions it lies (of the midpoint below the largest value, say). Those fractions are the ``cuts``, and a cell of a
table is a binade and a place between two cuts: every count that a format asks for is then a sum of cells.
"""

from typing import NamedTuple

import numpy as np

from . import inlined, jit

SIGN = np.uint32(0x80000000)
ABS = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)
FRACTION = np.uint32(0x7FFFFF)
SMALLEST_NORMAL = np.uint32(0x800000)

BLOCK = 256  # elements whose cells are found before they are counted: three arrays that stay in the first-level cache
WAYS = 4  # tables counted into in turn: a value that repeats would wait for its own count to be stored
BINADES = 277  # of the finite non-zero float32 values, 2**-149 to 2**127
SPECIAL, ZERO = BINADES, BINADES + 1  # the rows of infinities and NaNs, and of zeros
ROWS = BINADES + 2


@inlined
def _normalised(a):
    """A magnitude's bits with the significand of a normal number: (row, fraction)."""
    # A subnormal is an integer times 2**-149; converting that integer normalises it, whether or not the thread flushes
    # subnormals to zero.
    whole = np.float32(np.int32(a)).view(np.uint32)
    tiny = a < SMALLEST_NORMAL
    bits = np.uint32(whole if tiny else a)
    row = np.int32(np.uint32(bits >> np.uint32(23))) + (np.int32(-127) if tiny else np.int32(22))
    row = np.int32(ZERO) if a == np.uint32(0) else row
    return row, np.uint32(bits & FRACTION)


@jit
def count(bits, cuts, scratch):
    """Add the cells of float32 ``bits`` to ``scratch``, uint32 (WAYS, ROWS * (len(cuts) + 1)).

    ``cuts``: rising fraction fields, uint32; the place of a value is how many of them it reaches. An infinity has
    place 0 of its row, a NaN (with 1 among the cuts) another.
    """
    cells = np.empty(BLOCK, np.int32)
    fractions = np.empty(BLOCK, np.uint32)
    columns = np.int32(cuts.size + 1)
    for at in range(0, bits.size, BLOCK):
        source = bits[at : at + BLOCK]
        n = source.size
        for i in range(n):
            row, fraction = _normalised(np.uint32(source[i] & ABS))
            cells[i] = np.int32(row * columns)
            fractions[i] = fraction
        for c in range(cuts.size):
            cut = cuts[c]
            for i in range(n):
                cells[i] += np.int32(1) if fractions[i] >= cut else np.int32(0)
        for i in range(n):
            scratch[i & (WAYS - 1), cells[i]] += np.uint32(1)


@jit
def gather(scratch, table, first):
    """Move the counts of ``scratch`` into ``table``, int64 (rows, places), leaving zeros.

    The binade of row 0 of the scratch is row ``first`` of the table, whose last two rows are the special ones.
    """
    columns = table.shape[1]
    last = table.shape[0] - 2
    for row in range(ROWS):
        to = first + row if row < BINADES else last + row - BINADES
        for place in range(columns):
            cell = row * columns + place
            total = np.int64(0)
            for way in range(WAYS):
                total += np.int64(scratch[way, cell])
                scratch[way, cell] = 0
            if total:
                table[to, place] += total


@jit
def count_parts(bits, offsets, cuts, scratch, tables, first):
    """:func:`count` and :func:`gather` of consecutive parts: ``bits[offsets[i]:offsets[i+1]]`` into ``tables[i]``."""
    for i in range(offsets.size - 1):
        count(bits[offsets[i] : offsets[i + 1]], cuts, scratch)
        gather(scratch, tables[i], first)


@jit
def scan(bits):
    """The largest magnitude's bits, and two sums that tell arrays apart: (largest, sum, sum), uint32.

    Each sum multiplies every element by an odd number of its own, so that one changed bit always changes it.
    """
    largest, first, two = np.uint32(0), np.uint32(0), np.uint32(0)
    for i in range(bits.size):
        b = bits[i]
        odd = np.uint32(np.uint32(np.uint32(i) << np.uint32(1)) | np.uint32(1))
        largest = max(largest, np.uint32(b & ABS))
        first = np.uint32(first + np.uint32(b * np.uint32(odd * np.uint32(0x9E3779B1))))
        two = np.uint32(two + np.uint32(np.uint32(b ^ np.uint32(b >> np.uint32(15))) * np.uint32(
            np.uint32(odd * odd) ^ np.uint32(0x85EBCA6A))))  # fmt: skip
    return largest, first, two


@jit
def scan_parts(bits, offsets, out):
    """:func:`scan` of consecutive parts into ``out``, uint32 (parts, 3)."""
    for i in range(offsets.size - 1):
        out[i, 0], out[i, 1], out[i, 2] = scan(bits[offsets[i] : offsets[i + 1]])


class Sum(NamedTuple):
    """What decides whether a format absorbs a summand."""

    emin: int  # biased as in float32
    fraction_bits: int
    largest: int  # float32 bits of the largest finite value
    saturates: int  # 1 where what lies beyond it becomes it


@inlined
def _absorbs(w, u, p):
    """Whether ``w``, a float32 code of the format, is what w + u rounds to (to nearest, ties to even); u is not 0.

    Half the spacing on the side of u, as float32 bits, against the bits of |u|: below is absorbed, above is not, and
    equal is absorbed where the significand of w is even.
    """
    a, size = np.uint32(w & ABS), np.uint32(u & ABS)
    exponent = np.int32(np.uint32(a >> np.uint32(23)))
    grid = max(exponent, np.int32(p.emin))
    inward = np.uint32(np.uint32(w ^ u) & SIGN) != np.uint32(0)
    power = np.uint32(a & FRACTION) == np.uint32(0) and exponent > np.int32(p.emin)
    half = grid - np.int32(p.fraction_bits) - (np.int32(2) if inward and power else np.int32(1))
    below_normal = np.uint32(np.uint32(1) << np.uint32(max(half + np.int32(22), np.int32(0))))
    edge = np.uint32(np.uint32(half) << np.uint32(23)) if half > np.int32(0) else below_normal
    implicit = SMALLEST_NORMAL if exponent > np.int32(0) else np.uint32(0)
    unit = np.int32(23 - p.fraction_bits) + (grid - max(exponent, np.int32(1)))
    significand = np.uint32(np.uint32(a & FRACTION) | implicit)
    even = np.uint32(np.uint32(significand >> np.uint32(min(unit, np.int32(31)))) & np.uint32(1)) == np.uint32(0)
    absorbed = size < edge or (size == edge and even)
    stuck = p.saturates == 1 and a == np.uint32(p.largest) and not inward and size <= INFINITY
    return (absorbed or stuck) and a <= np.uint32(p.largest)


@jit
def _absorbed(rounded, moves, p):
    total = np.uint32(0)
    for i in range(rounded.size):
        u = moves[i]
        hit = _absorbs(rounded[i], u, p) and np.uint32(u & ABS) != np.uint32(0)
        total = np.uint32(total + (np.uint32(1) if hit else np.uint32(0)))
    return total


@jit
def _moved(moves):
    total = np.uint32(0)
    for i in range(moves.size):
        total = np.uint32(total + (np.uint32(1) if np.uint32(moves[i] & ABS) != np.uint32(0) else np.uint32(0)))
    return total


@jit
def _still(gradients, moves):
    total = np.uint32(0)
    for i in range(moves.size):
        hit = np.uint32(gradients[i] & ABS) != np.uint32(0) and np.uint32(moves[i] & ABS) == np.uint32(0)
        total = np.uint32(total + (np.uint32(1) if hit else np.uint32(0)))
    return total


@jit
def absorbed_parts(rounded, moves, offsets, p, out):
    """How many non-zero ``moves`` would leave ``rounded`` as it is, part by part: int64 ``out`` (parts,).

    ``rounded``: float32 bits of values of the format; ``moves``: float32 bits of what is added to each. A part has
    fewer than 2**32 elements.
    """
    for i in range(offsets.size - 1):
        out[i] = _absorbed(rounded[offsets[i] : offsets[i + 1]], moves[offsets[i] : offsets[i + 1]], p)


@jit
def still_parts(gradients, moves, offsets, out):
    """Of each part: how many values moved, and how many have a gradient and did not: int64 ``out`` (parts, 2)."""
    for i in range(offsets.size - 1):
        part = moves[offsets[i] : offsets[i + 1]]
        out[i, 0] = _moved(part)
        out[i, 1] = _still(gradients[offsets[i] : offsets[i + 1]], part)
