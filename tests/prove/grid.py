"""Rounding by its definition, on arrays: look both neighbours up in the sorted table of all values of a format.

This is the third implementation beside the oracle on fractions (:mod:`fplab.exact`, which makes the table) and the
kernels; it shares no arithmetic with either, and is fast enough for millions of inputs. It covers formats of at most
:data:`WIDEST` bits, whose midpoints float64 holds exactly.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fplab import exact
from fplab.formats import Format, Overflow, Rounding, Specials

Array = np.ndarray[Any, Any]
WIDEST = 19
CARRIERS = {np.dtype(np.float32): (np.uint32, 23), np.dtype(np.float64): (np.uint64, 52)}


def bits_of(x: Array) -> Array:
    """A float array's bits, as a view."""
    return x.view(CARRIERS[x.dtype][0])


def make_quiet(x: Array) -> Array:
    """The same values with every signalling NaN quiet."""
    unsigned, fraction = CARRIERS[x.dtype]
    quiet = unsigned(1 << (fraction - 1))
    return np.where(np.isnan(x), bits_of(x) | quiet, bits_of(x)).view(x.dtype)


def covers(fmt: Format) -> bool:
    """Whether a format is small enough for a table, and float64 holds its midpoints and what follows its maximum."""
    return fmt.bits <= WIDEST and fmt.emax < 1023


@dataclass(frozen=True)
class Choices:
    """How to round, in the words of the public functions."""

    mode: Rounding = Rounding.RNE
    policy: Overflow = Overflow.INF
    flush_inputs: bool = False
    flush_outputs: bool = False
    nan: str | None = None


class Grid:
    """All magnitudes of one format in ascending order, which is the order of their codes."""

    def __init__(self, fmt: Format) -> None:
        assert covers(fmt)
        self.fmt = fmt
        # A few more than there are: rounding is decided as if the exponent had no upper end, then comes overflow.
        self.last = max(fmt.max_code, 2 << fmt.fraction_bits)
        self.magnitudes = np.array([float(exact.magnitude_of(c, fmt)) for c in range(self.last + 2)])
        self.odd = np.array([exact.significand_is_odd(c, fmt) for c in range(self.last + 2)])

    @cached_property
    def codes(self) -> Array:
        """Every code."""
        return np.arange(1 << self.fmt.bits, dtype=np.uint32)

    def decode(self, codes: Array, dtype: Any) -> Array:
        """The values of codes in a carrier dtype; signalling NaNs stay signalling."""
        return self._decoded(np.dtype(dtype))[codes]

    @lru_cache(maxsize=2)  # noqa: B019  (grids live as long as the process)
    def _decoded(self, dtype: np.dtype[Any]) -> Array:
        fmt, (unsigned, fraction) = self.fmt, CARRIERS[dtype]
        magnitude = self.codes & ~np.uint32(fmt.sign_mask)
        negative = (self.codes & np.uint32(fmt.sign_mask)) != 0
        values = self.magnitudes[np.minimum(magnitude, fmt.max_code)].astype(dtype)
        bits = values.view(unsigned).copy()
        top = bits_of(np.array([np.inf], dtype))[0]
        special = magnitude > fmt.max_code
        if fmt.specials is Specials.IEEE:  # infinity, and NaNs with their payload at the top of the fraction
            payload = (magnitude[special] & np.uint32((1 << fmt.fraction_bits) - 1)).astype(unsigned)
            bits[special] = top | (payload << unsigned(fraction - fmt.fraction_bits))
        else:
            bits[special] = top | unsigned(1 << (fraction - 1))
        if fmt.specials is Specials.SINGLE:
            bits[magnitude == fmt.inf_code] = top
        if fmt.specials in (Specials.NEGATIVE_ZERO, Specials.SINGLE):
            bits[fmt.nan_code] = top | unsigned(1 << (fraction - 1))
        sign = unsigned(1 << (dtype.itemsize * 8 - 1))
        return np.where(negative, bits | sign, bits).view(dtype)

    def round(self, x: Array, choices: Choices, words: Array | int = 0) -> tuple[Array, Array]:
        """Float values as (codes, flags); a NaN without a code and without a rule gets flag 64."""
        fmt, mode = self.fmt, choices.mode
        x64 = np.where(np.isnan(x), 0.0, x).astype(np.float64)
        negative, size = np.signbit(x), np.abs(x64)
        if choices.flush_inputs:
            size = np.where(size < np.finfo(x.dtype).smallest_normal, 0.0, size)
        code, inexact = self._nearest(size, negative, mode, words)
        tiny = self._is_tiny(size, negative, mode, words)
        flags = np.where(inexact, exact.INEXACT, 0) | np.where(tiny & inexact, exact.UNDERFLOW, 0)
        if choices.flush_outputs and fmt.zero:
            code = np.where(tiny, 0, code)
            flags = np.where(tiny, exact.UNDERFLOW | exact.INEXACT, flags)
        sign = np.where(negative, fmt.sign_mask, 0)
        result = np.where((code == 0) & fmt.zero & (not fmt.has_negative_zero), 0, sign | code)
        infinite, over = np.isinf(x), (code > fmt.max_code) | np.isinf(x)
        flags = np.where(over, exact.OVERFLOW | exact.INEXACT, flags)
        canonical = 0 if fmt.nan_code is None else fmt.nan_code
        match choices.policy:
            case Overflow.SATURATE:
                result = np.where(over, sign | fmt.max_code, result)
            case Overflow.NAN:
                nan_sign = 0 if fmt.specials in (Specials.NEGATIVE_ZERO, Specials.SINGLE) else sign
                result = np.where(over, nan_sign | canonical, result)
            case Overflow.INF:
                assert fmt.inf_code is not None
                away = np.where(negative, mode.away_from_zero(True), mode.away_from_zero(False))
                stops = over & ~infinite & ~away
                result = np.where(over, sign | np.where(stops, fmt.max_code, fmt.inf_code), result)
                flags = np.where(infinite, 0, flags)
        zero = size == 0
        if fmt.zero:
            result = np.where(zero, sign if fmt.has_negative_zero else 0, result)
            flags = np.where(zero, 0, flags)
        beyond = zero if not fmt.zero else np.zeros_like(zero)
        if not fmt.signed:
            beyond = beyond | (negative & ~zero)
        nan_code, nan_flag = self._replaced_nan(np.zeros_like(sign), np.zeros_like(sign), choices.nan)
        result, flags = np.where(beyond, nan_code, result), np.where(beyond, exact.INVALID | nan_flag, flags)
        nan_code, nan_flag = self._replaced_nan(sign, self._payload(x), choices.nan)
        nan = np.isnan(x)
        return np.where(nan, nan_code, result).astype(np.uint64), np.where(nan, nan_flag, flags).astype(np.uint8)

    def _nearest(self, size: Array, negative: Array, mode: Rounding, words: Array | int) -> tuple[Array, Array]:
        """Magnitudes as (code, inexact); the code may be beyond that of the largest finite value."""
        last = self.last
        lower = np.searchsorted(self.magnitudes, size, side="right") - 1
        below, beyond = lower < 0, lower > last
        lower = np.clip(lower, 0, last)
        low, high = self.magnitudes[lower], self.magnitudes[lower + 1]
        middle = (low + high) / 2
        odd = self.odd[lower]
        match mode:
            case Rounding.RNE:
                up = (size > middle) | ((size == middle) & odd)
            case Rounding.RNA:
                up = size >= middle
            case Rounding.RTZ:
                up = np.zeros_like(negative)
            case Rounding.RTP:
                up = ~negative
            case Rounding.RTN:
                up = negative
            case Rounding.ODD:
                up = ~odd
            case Rounding.STOCHASTIC:
                within = np.minimum(size, high)
                share = np.floor((within - low) / (high - low) * 2.0**32)  # each step exact: the gap is a power of two
                up = share + words >= 2.0**32
        inexact = size != low
        code = np.where(inexact & up, lower + 1, lower)
        code = np.where(below, 0, code)  # no zero to round to: the smallest value
        return np.where(beyond, last + 1, code), inexact | below

    def _is_tiny(self, size: Array, negative: Array, mode: Rounding, words: Array | int) -> Array:
        """Whether the result is below the smallest normal even with an exponent that has no lower end."""
        least = self.fmt.smallest_normal
        lifted, _ = self._nearest(2 * np.minimum(size, least), negative, mode, words)
        lowest_binade = (size >= least / 2) & (size < least)
        reaches = self.magnitudes[lifted] >= 2 * least
        return (size > 0) & (size < least) & ~(lowest_binade & reaches)

    def _payload(self, x: Array) -> Array:
        """The top bits of a NaN's fraction, made quiet."""
        unsigned, fraction = CARRIERS[x.dtype]
        drop = fraction - self.fmt.fraction_bits
        kept = (bits_of(x) & unsigned((1 << fraction) - 1)) >> unsigned(drop)
        return kept.astype(np.int64) | (1 << self.fmt.fraction_bits >> 1)

    def _replaced_nan(self, sign: Array, payload: Array, rule: str | None) -> tuple[Array, int]:
        fmt = self.fmt
        match fmt.specials:
            case Specials.IEEE:
                assert fmt.inf_code is not None
                return sign | fmt.inf_code | payload | (1 << fmt.fraction_bits >> 1), 0
            case Specials.LAST:
                return sign | (fmt.max_code + 1), 0
            case Specials.NEGATIVE_ZERO | Specials.SINGLE:
                return np.full_like(sign, fmt.nan_code), 0
        if rule is None:
            return np.zeros_like(sign), 64
        return (np.zeros_like(sign) if rule == "zero" else sign | fmt.max_code), 0


@lru_cache(maxsize=64)
def grid(fmt: Format) -> Grid:
    """The grid of a format, made once."""
    return Grid(fmt)
