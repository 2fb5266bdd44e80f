"""The series that are summed, the place where a sequential sum of each stops growing, and exact partial sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...formats import Format, get

Array = np.ndarray[Any, Any]
SERIES: tuple[str, ...] = ("harmonic", "ones", "0.1", "1e-4")
CHUNK = 1 << 19  # terms summed at a time


def terms(series: str, first: int, count: int) -> Array:
    """Terms number ``first`` (from 1) and on, as float64, not yet rounded to a format."""
    if series == "harmonic":
        return 1.0 / np.arange(first, first + count, dtype=np.float64)
    return np.full(count, 1.0 if series == "ones" else float(series))


def rounded(series: str, fmt: Format, first: int, count: int) -> Array:
    """The same terms in a format, to nearest even, as float32."""
    from ... import floats

    if series == "harmonic":
        return np.asarray(floats.quantize(terms(series, first, count), fmt), np.float32)
    return np.full(count, floats.quantize(terms(series, 1, 1), fmt)[0], np.float32)


@dataclass(frozen=True)
class Stall:
    """Where a sequential sum stops: its value, the last term that changed it (0: none did), and the sum before."""

    value: float
    last: int
    before: float


def stall(series: str, fmt: Format, limit: int = 1 << 26) -> Stall:
    """Add terms one by one until one changes nothing.

    The terms do not increase and rounding is monotone, so from then on none does.
    """
    from ... import sums

    value = before = 0.0
    for first in range(1, limit, CHUNK):
        chunk = np.concatenate([[np.float32(value)], rounded(series, fmt, first, CHUNK)])
        partial = sums.sum(chunk, fmt, running=True)
        same = np.flatnonzero(partial[1:] == partial[:-1])
        if same.size:
            at = int(same[0])
            return Stall(float(partial[at]), first - 1 + at, float(partial[at - 1]) if at else before)
        value, before = float(partial[-1]), float(partial[-2])
    raise AssertionError(f"{series} in {fmt.name} still grows after {limit} terms")


def sampled(series: str, fmt: Format, at: Array, last: int) -> Array:
    """The sequential sums of ``at[0] < at[1] < ...`` terms, as float64; ``last`` is the last term that counts."""
    from ... import sums

    found, value, count = np.empty(at.size), 0.0, min(int(at[-1]), max(last, 1))
    for first in range(1, count + 1, CHUNK):
        size = min(CHUNK, count + 1 - first)
        partial = sums.sum(np.concatenate([[np.float32(value)], rounded(series, fmt, first, size)]), fmt, running=True)
        here = (at >= first) & (at < first + size)
        found[here] = partial[at[here] - first + 1]
        value = float(partial[-1])
    found[at > count] = value
    return found


def checkpoints(log2_last: int, per_octave: int) -> Array:
    """Sizes up to ``2**log2_last``: ``per_octave`` (1, 2, 4) equal steps from each power of two to the next."""
    sizes = [(1 << a) * (per_octave + m) // per_octave for a in range(log2_last) for m in range(per_octave)]
    return np.unique(np.array([*sizes, 1 << log2_last], np.int64))


def unit(series: str, fmt: str, n: int) -> int:
    """The exponent u such that the first n terms in the format, and so their sums in it, are multiples of 2**u."""
    form = get(fmt)
    least = terms(series, n, 1)[0]
    return max(math.frexp(least)[1] - 1, form.emin) - form.fraction_bits


def in_units(x: Array, exponent: int) -> Array:
    """Values as int64 multiples of ``2**exponent``; they must be that, and below 2**63."""
    scaled = np.ldexp(np.asarray(x, np.float64), -exponent)
    whole = scaled.astype(np.int64)
    assert (whole.astype(np.float64) == scaled).all()
    return whole
