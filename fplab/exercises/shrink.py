"""Smaller values of each kind, and the search for the smallest input that still fails.

A kind's ``size`` is a tuple of integers that orders its values from simple to complicated; every step offered here is
strictly smaller, so the search ends. What it ends at is minimal: no single step from it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

Size = tuple[Any, ...]


def split(x: float) -> tuple[int, int]:
    """A finite positive float as (odd integer, exponent)."""
    value = Fraction(x)
    odd, exponent = value.numerator, 1 - value.denominator.bit_length()
    shift = (odd & -odd).bit_length() - 1
    return odd >> shift, exponent + shift


def float_size(x: float) -> Size:
    """Finite before infinite before NaN; few significant bits, an exponent near 0, a plus sign come first."""
    negative = math.copysign(1, x) < 0
    if math.isnan(x):
        return 3, 0, 0, 0, negative
    if math.isinf(x):
        return 2, 0, 0, 0, negative
    if x == 0:
        return 0, 0, 0, 0, negative
    odd, exponent = split(abs(x))
    return 1, odd.bit_length(), abs(exponent + odd.bit_length() - 1), odd, negative


def float_steps(x: float) -> list[float]:
    """Simpler floats: 0, 1, without the sign, with fewer bits, nearer to 1."""
    found = {0.0, 1.0, 2.0, -1.0, math.inf}
    if not math.isnan(x):
        found |= {abs(x)}
    if math.isfinite(x) and x:
        sign, (odd, exponent) = math.copysign(1, x), split(abs(x))
        width = odd.bit_length()
        found |= {sign * math.ldexp(odd >> k, exponent + k) for k in range(1, width)}
        found |= {sign * math.ldexp(odd - (1 << k), exponent) for k in range(width - 1) if odd >> k & 1}
        lead = exponent + width - 1
        found |= {sign * math.ldexp(odd, other - width + 1) for other in _toward_zero(lead)}
    own = float_size(x)
    return sorted((v for v in found if float_size(v) < own), key=float_size)


def _toward_zero(n: int) -> set[int]:
    """Integers between 0 and n, n left out."""
    return {0, int(n / 2), int(n * 3 / 4), n - 1 if n > 0 else n + 1} - {n} if n else set()


def integer_steps(value: int, origin: int) -> list[int]:
    """Integers nearer to the origin: itself, half-way, less one bit, one less; and the same distance above it."""
    away = abs(value - origin)
    sign = 1 if value > origin else -1
    found = {0, away // 2, away - 1} | {away - (1 << k) for k in range(away.bit_length())}
    steps = {origin + sign * d for d in found if 0 <= d < away}
    if value < origin:
        steps.add(origin + away)
    return sorted(steps, key=lambda v: integer_size(v, origin))


def integer_size(value: int, origin: int) -> Size:
    """The distance from the origin; above it before below it."""
    return abs(value - origin), value < origin


def list_steps(value: Sequence[Any], least: int, steps: Callable[[Any], Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Shorter lists first (halves, then without one element), then lists with one simpler element."""
    value, n = tuple(value), len(value)
    for part in dict.fromkeys((n // 2, n // 4, 1)):
        if part and n - part >= least:
            yield from (value[:i] + value[i + part :] for i in range(0, n - part + 1, part))
    for i, item in enumerate(value):
        yield from ((*value[:i], one, *value[i + 1 :]) for one in steps(item))


def smallest(
    start: tuple[Any, ...],
    steps: Callable[[tuple[Any, ...]], Iterator[tuple[Any, ...]]],
    fails: Callable[[tuple[Any, ...]], bool],
    most: int = 5000,
) -> tuple[tuple[Any, ...], int]:
    """Go from a failing input to one from which no single step fails; returns it and how many steps were taken.

    ``most``: trials after which the search stops where it is.
    """
    now, taken, tried = start, 0, 0
    while True:
        for candidate in steps(now):
            tried += 1
            if tried > most:
                return now, taken
            if fails(candidate):
                now, taken = candidate, taken + 1
                break
        else:
            return now, taken
