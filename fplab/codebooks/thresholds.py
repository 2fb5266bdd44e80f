"""A monotone quantiser as its thresholds, and a table that finds how many of them lie below a value.

Threshold i is the largest float32 whose rank is at most i, so that the rank of ``x`` is the number of thresholds less
than ``x``. Whatever a rule says about ties and midpoints moves a threshold by one float32 at most; a look-up table
moves it further.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .books import MOST, Codebook
from .rules import Rule

Array = np.ndarray[Any, Any]
ONE = 0x3F800000
SHIFTS = range(16, 11, -1)  # bits of a key below its bucket: from 7 bits of the significand to 11
LARGEST_TABLE = 1 << 17


def floor32(x: Fraction) -> np.float32:
    """The largest float32 that is at most ``x``, |x| <= 1."""
    rounded = np.float32(float(x))
    if Fraction(float(rounded)) > x:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return rounded


def below(x: Array) -> Array:
    """The next smaller float32."""
    return np.nextafter(x, np.float32(-np.inf))


@lru_cache(maxsize=64)
def thresholds(book: Codebook, rule: Rule) -> Array:
    """The thresholds of a codebook under a rule, float32 (len(book) - 1,), ascending, some perhaps equal."""
    if rule.look_up:
        return looked_up(book, rule.look_up)
    limits = np.empty(len(book) - 1, np.float32)
    for i, (a, b) in enumerate(zip(book.values[:-1], book.values[1:], strict=True)):
        middle = (Fraction(float(a)) + Fraction(float(b))) / 2
        if not rule.exact_midpoints:
            middle = Fraction(float(np.float32(np.float32(a + b) * np.float32(0.5))))
        limits[i] = floor32(middle)
        tie_goes_up = rule.even_ties and i % 2 == 1
        if tie_goes_up and Fraction(float(limits[i])) == middle:
            limits[i] = below(limits[i])
    if rule.keeps_sign and book.signed and (zero := np.flatnonzero(book.values == 0)).size:
        limits[zero[0] - 1] = -0.0  # whatever has the sign bit stays below 0
    return limits


def floors(book: Codebook) -> Array:
    """The thresholds that find the value below, for stochastic rounding: the values themselves, and -0 for 0."""
    return np.where(book.values[1:] == 0, np.float32(-0.0), book.values[1:])


@lru_cache(maxsize=64)
def ladder(book: Codebook) -> tuple[Array, Array]:
    """The values and, in units of 2**-32, the gap above each, float64; no gap above the last is ever crossed."""
    values = book.values.astype(np.float64)
    return values, np.append(np.diff(values), np.inf) * 2.0**-32


def entry_of(x: Array, size: int) -> Array:
    """Which entry of a table of ``size`` evenly spaced elements the CPU library looks up, float32 steps as there."""
    f = np.float32
    scaled: Array = (np.clip(x, f(-1), f(1)) + f(1)) * f(0.5) * f(size - 1) + f(0.5)
    return scaled.astype(np.int64)


def looked_up(book: Codebook, size: int) -> Array:
    """The thresholds of a quantiser that only knows the nearest value of ``size`` evenly spaced elements.

    Ranks of entries are found with float32 midpoints; the largest float32 of an entry by bisection on keys.
    """
    entries = np.float32(-1) + np.float32(2) * np.arange(size, dtype=np.float32) / np.float32(size - 1)
    middles = (book.values[:-1] + book.values[1:]) * np.float32(0.5)
    ranks = np.searchsorted(middles, entries, "left")
    first = np.searchsorted(ranks, np.arange(1, len(book)), "left")  # the first entry of at least that rank
    return largest_with(lambda x: entry_of(x, size) < first, first.size)


def largest_with(holds: Callable[[Array], Array], count: int) -> Array:
    """The largest float32 in [-1, 1] for which each of ``count`` falling predicates holds; below -1 where none does."""
    low, high = np.full(count, -ONE - 2), np.full(count, ONE)  # it holds at low, as far as known; beyond high it fails
    while (low < high).any():
        middle = (low + high + 1) // 2
        good = holds(value_of(middle))
        low, high = np.where(good, middle, low), np.where(good, high, middle - 1)
    return value_of(low)


def ordered(x: Array) -> Array:
    """Float32 values as int64 in their order; -0 is -1, just below 0."""
    bits = x.view(np.uint32).astype(np.int64)
    return np.where(bits >> 31, ~(bits & 0x7FFFFFFF), bits)


def value_of(order: Array) -> Array:
    """The inverse of :func:`ordered`."""
    return np.where(order < 0, ~order | 0x80000000, order).astype(np.uint32).view(np.float32)


class Plan(NamedTuple):
    """What a kernel needs to find ranks.

    ``keyed``: whether ``table`` has an entry, uint32, for each bucket of keys; else it is 255 thresholds as int32 in
    their order.
    ``low``, ``shift``, ``offset``: magnitude bits up to ``low`` share a bucket, a key's bits above ``shift`` name its
    bucket, and ``offset`` makes keys non-negative; int32, uint32, int32.
    """

    keyed: bool
    table: Array
    low: np.int32
    shift: np.uint32
    offset: np.int32


def padded(limits: Array) -> Array:
    """Thresholds as the search wants them: 255 in the order of floats, more than any float after the last."""
    table = np.full(MOST - 1, np.iinfo(np.int32).max, np.int32)
    table[: limits.size] = ordered(limits)
    return table


def rank_of(x: Array, limits: Array) -> Array:
    """How many thresholds are less than each ``x``, -0 being less than 0."""
    return np.searchsorted(ordered(limits), ordered(x), "left")


@lru_cache(maxsize=64)
def plan(book: Codebook, rule: Rule | None, keyed: bool = True) -> Plan:
    """The plan of a codebook under a rule, None the stochastic one: keyed with few buckets, or else searched."""
    limits = floors(book) if rule is None else thresholds(book, rule)
    for shift in SHIFTS if keyed else ():
        if found := keys(limits, shift):
            return found
    return Plan(False, padded(limits), np.int32(0), np.uint32(0), np.int32(0))


def keys(limits: Array, shift: int) -> Plan | None:
    """The keyed plan with ``shift``, or None where a bucket would hold two thresholds or the table be too large."""
    order = ordered(limits)
    magnitudes = np.where(order < 0, ~order, order)
    inside = magnitudes[order != -1]  # -0 is where negative and positive keys part, so it needs no bucket
    low = int(min(inside.min(initial=ONE), ONE)) >> shift << shift
    half = ((ONE - low) >> shift) + 1
    if 2 * half > LARGEST_TABLE or np.abs(limits).max(initial=0) > 1:
        return None
    offset = half << shift
    starts = np.arange(2 * half, dtype=np.int64) << shift
    ends = starts + 2**shift - 1
    first, last = (rank_of(value_of_key(k, low, offset), limits) for k in (starts, ends))
    if (last - first).max() > 1:
        return None
    # An entry plus a key: the rank, then as low bits a sum that carries into it where the key is past the threshold's.
    at = key_of(np.append(limits, np.float32(0)), low, offset)[first] - starts
    entries = (first << shift) + np.where(last > first, 2**shift - 1 - at, 0) - starts
    return Plan(True, (entries & 0xFFFFFFFF).astype(np.uint32), np.int32(low), np.uint32(shift), np.int32(offset))


def key_of(x: Array, low: int, offset: int) -> Array:
    """The key of a value, as the kernel computes it, int64."""
    bits = x.view(np.uint32).astype(np.int64)
    magnitude = np.clip(bits & 0x7FFFFFFF, low, ONE) - low
    key: Array = np.where(bits >> 31, ~magnitude, magnitude) + offset
    return key


def value_of_key(key: Array, low: int, offset: int) -> Array:
    """A value with this key: the one nearest to 0 where several share it."""
    order = key - offset
    magnitude = np.where(order < 0, ~order, order)
    magnitude = np.where(magnitude == 0, 0, np.minimum(magnitude + low, ONE))
    return value_of(np.where(order < 0, ~magnitude, magnitude))
