"""A rounding of all 2**32 float32 patterns, written down as a few runs of patterns with one result each.

By its definition a deterministic rounding depends on nothing but the sign, the two neighbours in the format, and
whether the number lies at the lower one, below their midpoint, at it, or above it. Between those points the result is
constant. So it is enough to round, by table look-up (:mod:`.grid`), one pattern of every run, and all others follow.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from fplab.formats import Format, Rounding, Specials

from .grid import Choices, grid

Array = np.ndarray[Any, Any]
INFINITY, SIGN = 0x7F800000, 0x80000000


def patterns(values: Array) -> Array:
    """Those of non-negative float64 values that float32 reaches, as float32 patterns; each must be exact there."""
    values = values[values <= float(np.finfo(np.float32).max)]
    narrow = values.astype(np.float32)
    assert np.array_equal(narrow.astype(np.float64), values), "float32 does not hold a midpoint of this format"
    return narrow.view(np.uint32)


@lru_cache(maxsize=4)
def run_starts(fmt: Format) -> Array:
    """The first pattern of every run, ascending; the negative ones after the positive ones, as patterns go."""
    magnitudes = grid(fmt).magnitudes
    points = patterns(np.concatenate([magnitudes, (magnitudes[:-1] + magnitudes[1:]) / 2]))
    # A NaN's payload is cut to the format's fraction: one run for every payload that remains.
    step = 1 << (23 - fmt.fraction_bits)
    kept = np.arange(INFINITY + step, SIGN, step) if fmt.specials is Specials.IEEE else np.empty(0, np.int64)
    starts = np.concatenate([[0, 1, INFINITY, INFINITY + 1], points, points + 1, kept])
    starts = np.sort(starts, kind="stable")  # of parts in order: merged, where np.unique would hash them all
    positive = starts[np.append(True, starts[1:] != starts[:-1])].astype(np.uint32)
    return np.concatenate([positive, positive | np.uint32(SIGN)])


class Runs:
    """One rounding of one format on all float32 patterns: ``codes`` and float32 ``bits`` of every run."""

    def __init__(self, fmt: Format, choices: Choices) -> None:
        self.starts = run_starts(fmt)
        self.codes = grid(fmt).round(self.starts.view(np.float32), choices)[0].astype(np.uint32)
        self.bits = grid(fmt).decode(self.codes, np.float32).view(np.uint32)

    def block(self, first: int, count: int) -> Array:
        """The results, as float32 bits, of ``count`` patterns from ``first`` on."""
        low = int(np.searchsorted(self.starts, first, side="right")) - 1
        high = int(np.searchsorted(self.starts, first + count - 1, side="right"))
        edges = np.append(self.starts[low:high].astype(np.int64), first + count)
        edges[0] = first
        return np.repeat(self.bits[low:high], np.diff(edges))

    def at(self, pattern: Array) -> Array:
        """The number of the run that each pattern lies in."""
        return np.searchsorted(self.starts, pattern, side="right") - 1


@lru_cache(maxsize=4)
def runs(fmt: Format, choices: Choices) -> Runs:
    """The runs of a rounding, made once."""
    return Runs(fmt, choices)


class Gaps:
    """Stochastic rounding of float32 patterns in a format with a sign and a zero, whose overflow has its own code.

    In the gap above the value of code k, a magnitude goes to k + 1 if its share of the gap, as 32 bits, and the random
    word carry. Float64 holds the share exactly, since a gap is a power of two.
    """

    def __init__(self, fmt: Format) -> None:
        assert fmt.has_negative_zero
        assert fmt.has_nan
        g = grid(fmt)
        self.over = fmt.max_code + 1  # the code of infinity or NaN
        self.low = g.magnitudes[: self.over + 1]
        self.starts = patterns(self.low)
        self.scale = np.append(2.0**32 / np.diff(self.low), 0.0)  # beyond the largest value there is no choice
        top = np.arange(self.over + 1, dtype=np.uint32)
        values = g.decode(np.concatenate([top, top | np.uint32(fmt.sign_mask)]), np.float32).view(np.uint32)
        self.positive, self.negative = np.split(values, 2)

    def block(self, first: int, count: int, words: Array) -> Array:
        """The results of ``count`` patterns from ``first`` on, all of one sign, as float32 bits; not for NaN."""
        pattern = np.arange(first, first + count, dtype=np.uint32)
        sizes = np.abs(pattern.view(np.float32)).astype(np.float64)
        from_zero = first & (SIGN - 1)
        low = int(np.searchsorted(self.starts, from_zero, side="right")) - 1
        high = int(np.searchsorted(self.starts, from_zero + count - 1, side="right"))
        edges = np.append(self.starts[low:high].astype(np.int64), from_zero + count)
        edges[0] = from_zero
        code = np.repeat(np.arange(low, high), np.diff(edges))
        within = np.minimum(sizes, self.low[self.over]) - self.low[code]
        share = (within * self.scale[code]).astype(np.int64)
        code += (share + words) >> 32  # 1 where the sum carries
        values = self.negative if first & SIGN else self.positive
        return values[np.minimum(code, self.over)]


@lru_cache(maxsize=4)
def gaps(fmt: Format) -> Gaps:
    """The gaps of a format, made once."""
    return Gaps(fmt)


DETERMINISTIC = tuple(r for r in Rounding if r is not Rounding.STOCHASTIC)
