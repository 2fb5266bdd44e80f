"""A fused block's answers to open questions, from its outputs: its floor, overflow, signs of zero, and c's exponent.

A row holds a few powers of two, next to where two answers part. What no row of these formats shows stays open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..formats import Format

Array = np.ndarray[Any, Any]
BlackBox = Callable[..., Any]


class Bench:
    """The black box with its formats, and rows made of powers of two."""

    def __init__(self, black_box: BlackBox, a: Format, b: Format, d: Format, k: int) -> None:
        self.black_box, self.a, self.b, self.d, self.k = black_box, a, b, d, k
        self.least = a.emin - a.fraction_bits + b.emin - b.fraction_bits  # of a product's exponent
        self.normal = a.emin + b.emin  # the same with normal factors
        self.most = a.emax + b.emax
        self.smallest = d.emin - d.fraction_bits  # exponent of the least result

    def run(self, rows: list[tuple[dict[int, tuple[float, int]], float]], k: int | None = None) -> Array:
        """The results of rows {k: (significand, exponent)} with a c."""
        a, b = np.zeros((2, len(rows), k or self.k))
        c = np.array([c for _, c in rows])
        factors = cache(self.factors)  # thousands of rows have the same few products
        for n, (terms, _) in enumerate(rows):
            for k, (significand, exponent) in terms.items():
                a[n, k], b[n, k] = factors(significand, exponent)
        f = np.float32
        return np.asarray(self.black_box(a.astype(f), b.astype(f), c.astype(f)), f).astype(np.float64)

    def factors(self, significand: float, exponent: int) -> tuple[float, float]:
        """A product as two factors, the significand in the first or, if it is a square, in both."""
        root = abs(significand) ** 0.5 if abs(significand) >= 2 else 1.0
        first = min(max(exponent // 2, self.a.emin), self.a.emax)
        first = min(max(first, exponent - self.b.emax), exponent - (self.b.emin - self.b.fraction_bits))
        return float(np.ldexp(significand / root, first)), float(np.ldexp(root, exponent - first))


def options(bench: Bench, alignment: int, rounding: str, k: int) -> tuple[dict[str, Any], list[str]]:
    """A fused block's floor and answers to open questions, and which of them its outputs cannot show; k: of zeros."""
    undecided: list[str] = []
    fields: dict[str, Any] = {
        "floor": _floor(bench, alignment, rounding, undecided),
        "overflow": _overflow(bench, undecided),
        "negative_zeros": "minus" if np.signbit(_zeros(bench)) else "plus",
        "zero_from_below": _from_below(bench, k, undecided),
        "c_exponent": _c_exponent(bench, alignment, rounding, undecided),
    }
    return fields, undecided


def _floor(bench: Bench, alignment: int, rounding: str, undecided: list[str]) -> int | None:
    """The least emax: how far below a tiny sum, alone in its block, a crumb still counts."""
    nearest = rounding == "rne"
    main = bench.smallest - 1 if nearest else max(bench.smallest, bench.normal)
    if main < bench.normal or main - 1 < bench.least:
        undecided.append("floor")
        return None
    crumbs = range(main - 1, max(bench.least, main - 60) - 1, -1)
    # To nearest: a tie that a crumb lifts. Toward zero: a value that a negative crumb takes below itself.
    results = bench.run([({0: (1.0, main), 1: (1.0 if nearest else -1.0, e)}, 0.0) for e in crumbs])
    kept = [e for e, r in zip(crumbs, results, strict=True) if (r != 0 if nearest else r != np.ldexp(1.0, main))]
    lowest = min(kept, default=main)
    if lowest == crumbs[-1]:
        undecided.append("floor")
        return None
    return None if lowest + alignment <= main else lowest + alignment


def _overflow(bench: Bench, undecided: list[str]) -> Any:
    """What twice the largest power of two becomes."""
    if bench.most < bench.d.emax + 1:
        undecided.append("overflow")
        return "inf"
    return "inf" if np.isinf(bench.run([({0: (1.0, bench.d.emax + 1)}, 0.0)])[0]) else "max"


def _zeros(bench: Bench) -> float:
    """(-0) + (-0) + ... + (-0)."""
    shape = (1, 64)  # whole instructions, to which a row would be filled up with +0
    zero, ones = np.full(shape, -0.0, np.float32), np.ones(shape, np.float32)
    return float(np.asarray(bench.black_box(zero, ones, np.full(1, -0.0, np.float32)))[0])


def instruction_length(bench: Bench, length: int) -> int:
    """The products of an instruction, to which a row is filled up with +0: only a row of whole ones can end in -0.

    That of a block, ``length``, where the black box never gives -0.
    """
    crumb = bench.factors(-1.0, bench.smallest - 2) if bench.least <= bench.smallest - 2 else (-0.0, 1.0)
    for k in range(length, 65, length):
        a, b = np.full((2, k), -0.0, np.float32), np.ones((2, k), np.float32)
        a[1, -1], b[1, -1] = crumb
        if np.signbit(np.asarray(bench.black_box(a, b, np.full(2, -0.0, np.float32)))).any():
            return k
    return length


def _from_below(bench: Bench, k: int, undecided: list[str]) -> Any:
    """The sign of -(a quarter of the smallest result) at the end of ``k`` products: later ones would add +0 to it."""
    if bench.least > bench.smallest - 2:
        undecided.append("zero_from_below")
        return "minus"
    return "minus" if np.signbit(bench.run([({k - 1: (-1.0, bench.smallest - 2)}, -0.0)], k)[0]) else "plus"


def _c_exponent(bench: Bench, alignment: int, rounding: str, undecided: list[str]) -> Any:
    """Whether a crumb beside a subnormal c and a tie is cut at c's clamped exponent."""
    crumb = bench.d.emin - alignment - 1
    if rounding != "rne" or bench.least > crumb:
        undecided.append("c_exponent")
        return "clamped"
    c = float(np.ldexp(1.0, bench.smallest))
    result = bench.run([({0: (1.0, bench.smallest - 1), 1: (-1.0, crumb)}, c)])[0]
    return "clamped" if result == 2 * c else "true"
