"""Block-wise quantisation with a codebook: a maximum, a division and a look-up for each element.

A quantiser that is monotone is a list of thresholds, the rank of a scaled value being how many thresholds lie below
it; which tie rule, which midpoints and whose library they come from is all in the thresholds. They are found in one of
two ways:

* **keyed**: the float's bits as an integer in the order of the values (its *key*) name a bucket by their top bits, and
  no bucket holds more than one threshold. Its entry is the rank below the threshold and a fraction chosen so that
  adding the key's low bits carries into the rank exactly above the threshold: a load, an addition and a shift.
* **searched**: bisection, for any thresholds.

A block is worked on in pieces that stay in the first-level cache. Keys are computed by one loop, which vectorises,
looked up by another, which cannot, and the codes collected before they are stored: a byte stored at a time to memory
that is not in the cache stalls the loop (twice the time).
"""

import numpy as np

from . import inlined, jit
from .fast32 import as_bits, as_float, write
from .memory import BLOCK, fence
from .rounding import random_word, stream_keys

PIECE = 512  # elements between two looks at memory; 256 to 2048 measured alike
ABS = np.uint32(0x7FFFFFFF)
NOT_FINITE = np.uint32(0x7F800000)
ONE = np.int32(0x3F800000)
LOW_HALF = np.uint64(0xFFFFFFFF)
TINY = np.float32(1e-38)  # what the libraries that multiply by a reciprocal let a maximum count at least
HALVES = tuple(1 << i for i in reversed(range(8)))


@inlined
def largest(bits):
    """The largest magnitude among float32 bits, as bits: magnitudes are ordered like integers, and that vectorises."""
    most = np.uint32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & ABS)
        most = magnitude if magnitude > most else most
    return most


@inlined
def largest_unsigned(bits):
    """The largest of float32 bits where none may be negative: below 2**31, or else there is a negative sign."""
    most = np.uint32(0)
    for i in range(bits.size):
        most = bits[i] if bits[i] > most else most
    return most


@inlined
def key_of(x, low, offset):
    """An unsigned integer that grows with ``x`` in [-1, 1]; magnitudes with bits up to ``low`` share the middle."""
    bits = np.int32(as_bits(x))
    magnitude = np.int32(bits & np.int32(ABS))
    magnitude = magnitude if magnitude > low else low
    magnitude = magnitude if magnitude < ONE else ONE
    return np.uint32(np.int32(np.int32(np.int32(magnitude - low) ^ np.int32(bits >> np.int32(31))) + offset))


@inlined
def order_of(x):
    """A float32 as an int32 that grows with it; -0 is -1, just below 0."""
    bits = np.int32(as_bits(x))
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(ABS)))


@inlined
def searched(x, thresholds):
    """How many of 255 ascending thresholds, in the order of :func:`order_of`, are less than ``x``."""
    order, rank = order_of(x), np.uint32(0)
    for half in HALVES:
        step = np.uint32(half)
        rank = np.uint32(rank + (step if thresholds[rank + step - np.uint32(1)] < order else np.uint32(0)))
    return rank


@inlined
def divided(x, scale):
    """A value in units of its block's maximum, rounded once."""
    return np.float32(x / scale)


@inlined
def multiplied(x, scale):
    """The same with a reciprocal that was rounded before: at most one unit in the last place above 1."""
    return np.float32(x * scale)


@inlined
def divisor(most):
    """What to divide by: the maximum; 1 for a block of zeros; infinity, and all is 0, for one that is not finite."""
    scale = as_float(most if most < NOT_FINITE else NOT_FINITE)
    return scale if most else np.float32(1)


@inlined
def reciprocal(most):
    """What to multiply by."""
    return np.float32(np.float32(1) / max(divisor(most), TINY))


def _ranks(scaled):
    """Two ways from scaled values to ranks, of one piece: ``keyed`` and ``by_search``."""

    @inlined
    def keyed(source, scale, codes, keys, table, low, shift, offset):
        for i in range(source.size):
            keys[i] = key_of(scaled(source[i], scale), low, offset)
        for i in range(source.size):
            key = keys[i]
            codes[i] = np.uint8(np.uint32(table[key >> shift] + key) >> shift)

    @inlined
    def by_search(source, scale, codes, keys, thresholds, low, shift, offset):
        for i in range(source.size):
            codes[i] = np.uint8(searched(scaled(source[i], scale), thresholds))

    return keyed, by_search


keyed_quotients, searched_quotients = _ranks(divided)
keyed_products, searched_products = _ranks(multiplied)


def _quantize(maximum, scale_of, ranks):
    """The kernel of one way to find the maximum, to scale and to look up.

    ``x`` float32 and ``codes`` uint8, both contiguous and of one size; ``absmax`` float32, one for each block, gets
    NaN for a block that is not finite. ``table``, ``low``, ``shift``, ``offset``: a
    :class:`~fplab.codebooks.thresholds.Plan`. Returns whether an element has a negative
    sign, where that is looked for.
    """

    @jit
    def kernel(x, codes, absmax, block, table, low, shift, offset):
        keys, buffer = np.empty(PIECE, np.uint32), np.empty(PIECE, np.uint8)
        negative = False
        for k in range(absmax.size):
            at, end = k * block, min(x.size, (k + 1) * block)
            most = maximum(x[at:end].view(np.uint32))
            if most > ABS:
                negative = negative or most != np.uint32(ABS + np.uint32(1))
                most = largest(x[at:end].view(np.uint32))
            scale = scale_of(most)
            absmax[k] = as_float(most) if most < NOT_FINITE else np.float32(np.nan)
            while at < end:
                count = min(end - at, PIECE)
                ranks(x[at : at + count], scale, buffer, keys, table, low, shift, offset)
                target = codes[at : at + count]
                for i in range(target.size):
                    target[i] = buffer[i]
                at += count
        return negative

    return kernel


# By (signed, divides, keyed).
QUANTIZE = {
    (signed, divides, keyed): _quantize(largest if signed else largest_unsigned, divisor if divides else reciprocal,
                                        {(True, True): keyed_quotients,
                                         (True, False): searched_quotients,
                                         (False, True): keyed_products,
                                         (False, False): searched_products}[divides, keyed]) for signed in (True, False)
    for divides in (True, False) for keyed in (True, False)
}  # fmt: skip


def _drawn(ranks):
    """The way to round a piece stochastically, the value below each element found by ``ranks``."""

    @inlined
    def drawn(source, scale, codes, keys, steps, plan, values, gaps, index, seed):
        """Up from the value below with the share of the gap that lies below, by random words ``index`` and on.

        ``plan``: of :func:`~fplab.codebooks.thresholds.floors`; ``values``: float64; ``gaps``: float64, to the next
        value in units of 2**-32. The share is computed in float64, each operation rounded once, and compared with the
        word. An element that equals a value may count as above the one below: its share is then 1. ``steps``: float64
        (2, PIECE) to gather them in, since a loop that looks them up as it divides does not vectorise.
        """
        ranks(source, scale, codes, keys, plan.table, plan.low, plan.shift, plan.offset)
        first, high = np.uint32(index & LOW_HALF), index >> np.uint64(32)
        turn = min(source.size, 1 + np.int64(LOW_HALF) - np.int64(first))  # where the low half of the index begins anew
        key0, key1 = stream_keys(seed, high)
        for i in range(turn):
            keys[i] = random_word(np.uint32(first + np.uint32(i)), key0, key1)
        key0, key1 = stream_keys(seed, high + np.uint64(1))
        for i in range(turn, source.size):
            keys[i] = random_word(np.uint32(first + np.uint32(i)), key0, key1)
        for i in range(source.size):
            steps[0, i], steps[1, i] = values[codes[i]], gaps[codes[i]]
        for i in range(source.size):
            share = (np.float64(divided(source[i], scale)) - steps[0, i]) / steps[1, i]
            codes[i] += np.uint8(np.float64(keys[i]) < share)

    return drawn


keyed_draws, searched_draws = _drawn(keyed_quotients), _drawn(searched_quotients)


def _quantize_stochastic(draw):
    """Like the kernels above, dividing, signed or not; element i draws random word ``start + i`` of the seed."""

    @jit
    def kernel(x, codes, absmax, block, plan, values, gaps, start, seed):
        keys, buffer, steps = np.empty(PIECE, np.uint32), np.empty(PIECE, np.uint8), np.empty((2, PIECE))
        negative = False
        for k in range(absmax.size):
            at, end = k * block, min(x.size, (k + 1) * block)
            most = largest(x[at:end].view(np.uint32))
            scale = divisor(most)
            absmax[k] = as_float(most) if most < NOT_FINITE else np.float32(np.nan)
            while at < end:
                count = min(end - at, PIECE)
                draw(x[at : at + count], scale, buffer, keys, steps, plan, values, gaps, np.uint64(start + at), seed)
                target = codes[at : at + count]
                for i in range(target.size):
                    target[i] = buffer[i]
                if values[0] >= 0:
                    for i in range(at, at + count):
                        negative = negative or x[i] < np.float32(0)
                at += count
        return negative

    return kernel


QUANTIZE_STOCHASTIC = {True: _quantize_stochastic(keyed_draws), False: _quantize_stochastic(searched_draws)}  # by keyed


def dequantize_by(value):
    """The kernel of a function that gives the values of codes from what else it is given.

    ``out = value(codes, how) * absmax`` of each block, rounded once; ``out`` as uint32 bits. The first ``first``
    elements come before a 64-byte boundary of ``out``; results are written from there on in pieces of whole lines,
    wherever blocks begin and end.
    """

    @jit
    def kernel(codes, absmax, out, block, how, first, past_cache):
        buffer = np.empty(BLOCK, np.float32)
        at, k, end = 0, 0, block  # the end of block k
        while at < codes.size:
            count = min(codes.size - at, BLOCK if at or not first else first)
            done = 0
            while done < count:
                stop = min(count, end - at)
                scale = absmax[k]
                for i in range(done, stop):
                    buffer[np.uintp(i)] = np.float32(value(codes[np.uintp(at + i)], how) * scale)
                done = stop
                if at + done == end:
                    k, end = k + 1, end + block
            write(out, at, buffer.view(np.uint32), count, past_cache)
            at += count
        if past_cache:
            fence()

    return kernel


@inlined
def _looked_up(code, table):
    return table[code]


dequantize = dequantize_by(_looked_up)
