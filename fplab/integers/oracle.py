"""The definitions once more, shaped like themselves: Python integers and Fractions, a number at a time, slow."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ..exact import nearest
from .grids import Grid


def fp64(x: Fraction) -> Fraction:
    """The FP64 number nearest to ``x``, ties to even (Python's own division of integers is correctly rounded)."""
    return Fraction(x.numerator / x.denominator)


def quantize(x: float, scale: float, zero_point: int, grid: Grid) -> int:
    """``clip(rint(x * (1 / scale)) + zero_point)`` with each operation rounded to FP32."""
    steps = round(nearest(Fraction(x) * nearest(1 / Fraction(scale))))
    return min(max(steps + zero_point, grid.low), grid.high)


def dequantize(code: int, scale: float, zero_point: int) -> Fraction:
    """``(code - zero_point) * scale`` rounded to FP32."""
    return nearest((code - zero_point) * Fraction(scale))


def symmetric(amax: float, grid: Grid) -> Fraction:
    return max(nearest(Fraction(amax) / grid.high), Fraction(2) ** -126)


def affine(low: float, high: float, grid: Grid) -> tuple[Fraction, int]:
    """Scale and zero point of a range, stretched to hold zero."""
    least, most = min(Fraction(low), Fraction(0)), max(Fraction(high), Fraction(0))
    scale = max(nearest(nearest(most - least) / grid.steps), Fraction(2) ** -126)
    zero = grid.low - round(nearest(least / scale))
    return scale, min(max(zero, grid.low), grid.high)


def int_matmul(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def scaled(total: int, scale_x: float, scale_w: float) -> Fraction:
    """``float32(total) * (scale_x * scale_w)``, each of the three rounded to FP32."""
    return nearest(nearest(Fraction(total)) * nearest(Fraction(scale_x) * Fraction(scale_w)))


def in_half(x: Sequence[float], w: Sequence[float]) -> Fraction:
    """One element of the decomposed part: FP16 operands, FP64 sums in order, rounded to FP32."""
    total = Fraction(0)
    for a, b in zip(x, w, strict=True):
        total = fp64(total + Fraction(float(np.float16(a))) * Fraction(float(np.float16(b))))
    return nearest(total)


def percentile(counts: Sequence[int], percentile: Fraction) -> int:
    """The first bin at which the cumulative count reaches so many per cent of all, in exact arithmetic."""
    total, running = sum(counts), 0
    for i, count in enumerate(counts):
        running += count
        if running * 100 >= percentile * total:
            return i
    return len(counts)


def divergence(counts: Sequence[int], cut: int, levels: int) -> float:
    """KL of the clipped bins against their image in ``levels`` groups, a bin at a time."""
    bins = list(counts)
    bins[0] = bins[1]
    groups: list[list[int]] = [[] for _ in range(levels)]
    for j in range(cut):
        groups[j * levels // cut].append(j)
    image = [Fraction(0)] * cut
    for members in groups:
        filled = [j for j in members if bins[j]]
        for j in filled:
            image[j] = Fraction(sum(bins[k] for k in filled), len(filled))
    reference = [Fraction(count) for count in bins[:cut]]
    reference[-1] += sum(bins[cut:])
    total, image_total = sum(reference), sum(image)
    terms = []
    for p, q in zip(reference, image, strict=True):
        if p and not q:
            return math.inf
        if p:
            share = p / total
            terms.append(float(share) * math.log(share / (q / image_total)))
    return math.fsum(terms)


def squared_error(counts: Sequence[int], width: Fraction, candidate: int, high: int) -> Fraction:
    """The mean over bins of the squared error of centres, weighted by count, with one centre as the end of the grid."""
    amax = (candidate + Fraction(1, 2)) * width
    total = Fraction(0)
    for i, count in enumerate(counts):
        centre = (i + Fraction(1, 2)) * width
        total += (min(round(centre * high / amax), high) * amax / high - centre) ** 2 * count
    return total / len(counts)
