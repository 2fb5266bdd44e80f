"""Series that are summed, where a sequential sum of each stops growing, exact partial sums; bounds on the errors.

Bounds are on the relative error of a sum of n non-negative terms, exact fractions; u = 2**-p. They hold
to nearest even (stochastic: in any rounding to a neighbour), without overflow; underflow does no harm, since a
subnormal sum is exact.

* sequential: (n - 1) u, for every n (Rump, Error estimation of floating-point summation and dot product, BIT 52, 2012).
  Where (n - 1) u < 1 it implies the classical (n - 1) u / (1 - (n - 1) u).
* pairwise: (1 + u)**h - 1 with h = ceil(log2 n): each term passes h additions at most, each of which multiplies by
  1 + d, |d| <= u. Where h u < 1 it is below h u / (1 - h u).
* blocked: Rump's bound twice, inside a block of b and over the m = ceil(n / b) block sums:
  (1 + (b - 1) u) (1 + (m - 1) u) - 1.
* kahan: u + (1 + u) e with e = (u + (n - 2) u**2) / (1 - (n - 2) u**2), which is 2 u + O(n u**2) (Kahan; Knuth; Higham,
  Accuracy and Stability of Numerical Algorithms, section 4.3), for terms that do not increase, u <= 1/8, and as long as
  the bound is at most 1/4. Proof: see :func:`kahan`.
* stochastic, certain: (1 + 2 u)**(n - 1) - 1. Expected: u sqrt(n), from errors of standard deviation half a unit in the
  last place at most, each of mean zero whatever the ones before it were. They are mean-independent so, and need not be
  independent (Connolly, Higham & Mary, SISC 43, 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ... import numeric
from ...formats import Format, get

SERIES: tuple[str, ...] = ("harmonic", "ones", "0.1", "1e-4")
CHUNK = 1 << 19  # terms summed at a time


def terms(series: str, first: int, count: int) -> np.ndarray:
    """Terms number ``first`` (from 1) and on, as float64, not yet rounded to a format."""
    if series == "harmonic":
        return 1.0 / np.arange(first, first + count, dtype=np.float64)
    return np.full(count, 1.0 if series == "ones" else float(series))


def rounded(series: str, fmt: Format, first: int, count: int) -> np.ndarray:
    """The same terms in a format, to nearest even, as float32."""
    if series == "harmonic":
        return np.asarray(numeric.quantize(terms(series, first, count), fmt), np.float32)
    return np.full(count, numeric.quantize(terms(series, 1, 1), fmt)[0], np.float32)


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
    value = before = 0.0
    for first in range(1, limit, CHUNK):
        chunk = np.concatenate([[np.float32(value)], rounded(series, fmt, first, CHUNK)])
        partial = numeric.sum(chunk, fmt, running=True)
        same = np.flatnonzero(partial[1:] == partial[:-1])
        if same.size:
            at = int(same[0])
            return Stall(float(partial[at]), first - 1 + at, float(partial[at - 1]) if at else before)
        value, before = float(partial[-1]), float(partial[-2])
    raise AssertionError(f"{series} in {fmt.name} still grows after {limit} terms")


def sampled(series: str, fmt: Format, at: np.ndarray, last: int) -> np.ndarray:
    """The sequential sums of ``at[0] < at[1] < ...`` terms, as float64; ``last`` is the last term that counts."""
    found, value, count = np.empty(at.size), 0.0, min(int(at[-1]), max(last, 1))
    for first in range(1, count + 1, CHUNK):
        size = min(CHUNK, count + 1 - first)
        partial = numeric.sum(
            np.concatenate([[np.float32(value)], rounded(series, fmt, first, size)]), fmt, running=True
        )
        here = (at >= first) & (at < first + size)
        found[here] = partial[at[here] - first + 1]
        value = float(partial[-1])
    found[at > count] = value
    return found


def checkpoints(log2_last: int, per_octave: int) -> np.ndarray:
    """Sizes up to ``2**log2_last``: ``per_octave`` (1, 2, 4) equal steps from each power of two to the next."""
    sizes = [(1 << a) * (per_octave + m) // per_octave for a in range(log2_last) for m in range(per_octave)]
    return np.unique(np.array([*sizes, 1 << log2_last], np.int64))


def unit(series: str, fmt: str, n: int) -> int:
    """The exponent u such that the first n terms in the format, and so their sums in it, are multiples of 2**u."""
    form = get(fmt)
    least = terms(series, n, 1)[0]
    return max(math.frexp(least)[1] - 1, form.emin) - form.fraction_bits


def in_units(x: np.ndarray, exponent: int) -> np.ndarray:
    """Values as int64 multiples of ``2**exponent``; they must be that, and below 2**63."""
    scaled = np.ldexp(np.asarray(x, np.float64), -exponent)
    whole = scaled.astype(np.int64)
    assert (whole.astype(np.float64) == scaled).all()
    return whole


# --- bounds of n terms, p bits and the blocked order's block -------------------------------------------------------
def sequential(n: int, p: int, block: int) -> Fraction:
    """(n - 1) u."""
    return Fraction(n - 1, 1 << p)


def pairwise(n: int, p: int, block: int) -> Fraction:
    """(1 + u)**ceil(log2 n) - 1."""
    return (1 + Fraction(1, 1 << p)) ** (n - 1).bit_length() - 1


def blocked(n: int, p: int, block: int) -> Fraction:
    """(1 + (b - 1) u) (1 + (m - 1) u) - 1."""
    u = Fraction(1, 1 << p)
    inside, over = min(block, n) - 1, -(-n // block) - 1
    return (1 + inside * u) * (1 + over * u) - 1


def kahan(n: int, p: int, block: int) -> Fraction | None:
    """u + (1 + u) e, or None where the proof does not reach.

    Let S_k be the exact sums of k terms, s_k the computed ones, y_k = fl(x_k - c_{k-1}) = x_k - c_{k-1} + d_k and
    T_k = s_{k-1} + y_k.

    1. While |y_k| <= s_{k-1}, the two subtractions are exact (Dekker 1971), c_k = s_k - T_k and |c_k| <= u |T_k|. Then
       T_k = T_{k-1} + x_k + d_k, so T_n = S_n + d_2 + ... + d_n.
    2. |d_k| <= u (x_k + |c_{k-1}|), c_1 = 0 and |T_k| <= S_n + E, where E is the sum of all |d_k|. Hence
       E <= u S_n + (n - 2) u**2 (S_n + E), that is E <= e S_n, and |s_n - S_n| <= E + |c_n| <= E + u (S_n + E).
    3. The premise: y_2 = x_2 <= x_1 = s_1. For k >= 3, S_{k-1} >= 2 x_k, and s_{k-1} >= 3/4 S_{k-1} while the bound is
       at most 1/4, so |y_k| <= (1 + u) (2/3 + u) s_{k-1} < s_{k-1} for u <= 1/8.
    """
    if n == 1:
        return Fraction(0)
    u = Fraction(1, 1 << p)
    rest = 1 - (n - 2) * u * u
    if u > Fraction(1, 8) or rest <= 0:
        return None
    bound = u + (1 + u) * (u + (n - 2) * u * u) / rest
    return bound if bound <= Fraction(1, 4) else None


@lru_cache(maxsize=512)
def stochastic(n: int, p: int, block: int) -> Fraction:
    """(1 + 2 u)**(n - 1) - 1."""
    return (1 + Fraction(1, 1 << (p - 1))) ** (n - 1) - 1


BOUNDS: dict[str, Callable[[int, int, int], Fraction | None]] = {
    bound.__name__: bound for bound in (sequential, pairwise, blocked, kahan, stochastic)
}


def as_float(bound: Fraction | None) -> float:
    """A bound for a drawing: NaN where there is none, and no more than 1e300."""
    if bound is None:
        return float("nan")
    return float(bound) if bound < 10**300 else 1e300
