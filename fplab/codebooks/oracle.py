"""Block-wise quantisation as its definition reads, in fractions: slow, and what the kernels are held against.

One difference from the definition on paper is common to all and therefore here too: the scaled element is a float32,
the quotient (or product with a rounded reciprocal) rounded once.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from .. import exact
from .books import Codebook
from .rules import EVEN, Rule

Array = np.ndarray[Any, Any]


def units(x: float) -> int:
    """A float32 as a whole number of 2**-149, the smallest of them: distances of such are exact integers."""
    numerator, denominator = x.as_integer_ratio()
    return numerator * (2**149 // denominator)


@lru_cache
def in_units(book: Codebook) -> tuple[int, ...]:
    """The values of a codebook in :func:`units`."""
    return tuple(units(float(v)) for v in book.values)


def nearest(x: float, book: Codebook, rule: Rule = EVEN) -> int:
    """The rank of the value nearest to ``x``; a tie is between two neighbours and goes where the rule says."""
    at = units(x)
    distances = [abs(v - at) for v in in_units(book)]
    best = distances.index(min(distances))
    if best + 1 < len(book) and distances[best + 1] == distances[best] and rule.even_ties and best % 2 == 1:
        return best + 1
    return best


@lru_cache
def midpoints(book: Codebook) -> tuple[int, ...]:
    """Half the sums of neighbouring values, each operation rounded to float32, in :func:`units`."""
    exactly = [Fraction(float(v)) for v in book.values]
    return tuple(units(float(exact.nearest(exact.nearest(a + b) / 2))) for a, b in pairwise(exactly))


def by_midpoints(x: float, book: Codebook, rule: Rule) -> int:
    """The rank of the value nearest to ``x`` by comparing with midpoints that were rounded to float32."""
    at, rank = units(x), 0
    for i, middle in enumerate(midpoints(book)):
        if at > middle or (at == middle and rule.even_ties and i % 2 == 1):
            rank = i + 1
    return rank


def by_table(x: float, book: Codebook, rule: Rule) -> int:
    """The rank of the entry that a library with a table of evenly spaced elements looks up; float32 steps as there."""
    f, size = np.float32, rule.look_up
    entry = int(f(f(f(min(max(f(x), f(-1)), f(1)) + f(1)) * f(0.5)) * f(size - 1)) + f(0.5))
    element = f(f(-1) + f(f(2) * f(entry)) / f(size - 1))
    return by_midpoints(float(element), book, rule)


def rank_of(x: float, book: Codebook, rule: Rule) -> int:
    """The rank of a scaled element under a rule."""
    if rule.look_up:
        return by_table(x, book, rule)
    rank = nearest(x, book, rule) if rule.exact_midpoints else by_midpoints(x, book, rule)
    if rule.keeps_sign and math.copysign(1, x) < 0 and book.values[rank] == 0 and rank > 0:
        rank -= 1
    return rank


def blocks(flat: Array, block: int) -> Iterator[tuple[list[float], Fraction]]:
    """The elements of every block, and their largest magnitude."""
    for start in range(0, flat.size, block):
        elements = [float(v) for v in flat[start : start + block]]
        yield elements, Fraction(max(abs(v) for v in elements))


def scaled(x: float, most: Fraction, rule: Rule) -> float:
    """An element in units of its block's maximum, in float32 and with its sign: -0 is not 0."""
    if most == 0:
        return x
    if rule.divides:
        quotient = exact.nearest(Fraction(x) / most)
    else:
        smallest = Fraction(float(np.float32(1e-38))) if rule.clamps else most
        if 1 / most >= 2**128 and not rule.clamps:  # an infinite reciprocal; times 0 it is NaN, the first entry
            return -1.0 if x == 0 else math.copysign(1, x)
        product = exact.nearest(Fraction(x) * exact.nearest(1 / max(most, smallest)))
        quotient = min(max(product, Fraction(-1)), Fraction(1))
    return math.copysign(float(quotient), x)


def quantize(x: Array, code: Codebook, block: int, rule: Rule = EVEN) -> tuple[Array, Array]:
    """Codes, uint8, and scales, float32, of a finite float32 array, element by element."""
    ranks: list[int] = []
    scales = []
    for elements, most in blocks(np.asarray(x, np.float32).reshape(-1), block):
        scales.append(float(most))
        if most == 0 and not rule.zeros_as_zero:
            ranks += [0] * len(elements)
        else:
            ranks += [rank_of(scaled(v, most, rule), code, rule) for v in elements]
    codes = np.array(ranks, np.int64) if code.codes is None else code.codes[ranks]
    return codes.astype(np.uint8).reshape(np.shape(x)), np.array(scales, np.float32)


def stochastic(x: Array, code: Codebook, block: int, words: Sequence[int]) -> Array:
    """Codes of stochastic rounding, given each element's 32-bit word: up where the share exceeds ``word / 2**32``.

    The share's operations are float64's, as in the kernel: it is a quotient that no binary number holds.
    """
    ranks: list[int] = []
    for elements, most in blocks(np.asarray(x, np.float32).reshape(-1), block):
        for v in elements:
            at, word = scaled(v, most, EVEN), words[len(ranks)]
            rank = max([i for i, q in enumerate(code.values) if q <= at], default=0)
            if rank + 1 < len(code) and at >= code.values[0]:
                low, high = float(code.values[rank]), float(code.values[rank + 1])
                rank += word < (at - low) / (high - low) * 2.0**32
            ranks.append(rank)
    codes = np.array(ranks, np.int64) if code.codes is None else code.codes[ranks]
    return codes.astype(np.uint8).reshape(np.shape(x))


def dequantize(codes: Array, scales: Array, code: Codebook, block: int) -> Array:
    """``Q[code] * N``, the exact product rounded once to float32."""
    flat = codes.reshape(-1)
    products = [Fraction(float(code.table[c])) * Fraction(float(scales[i // block])) for i, c in enumerate(flat)]
    return np.array([float(exact.nearest(p)) for p in products], np.float32).reshape(codes.shape)
