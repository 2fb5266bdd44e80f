"""AMD's Matrix Cores beside H100: probes of their pairwise sums, of flushing and of rounding down.

What is published (Xie et al. 2025, arXiv 2511.10909) stands here once more, on fractions: MI100 adds products pairwise
in FP32, MI210 too but without subnormals, MI300X truncates products, adds them, and rounds that sum and c down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from ... import exact
from ...words import mark
from .probes import TINY, Probe, exponent_of, rounded

GPUS: tuple[str, ...] = ("H100", "MI100", "MI210", "MI300X")


def _probe(id: str, name: str, label: str, c: float, product: tuple[float, float, int], known: Sequence[int]) -> Probe:
    """``known``: the bits of each GPU, then of the exact sum."""
    return Probe(id, name, label, c, (product,), 16, "fp16", dict(zip(GPUS, known[:-1], strict=True)), known[-1])


PROBES: tuple[Probe, ...] = (
    _probe("amd_tiny", mark("c = 1, 16 products of 2^-26"), r"$1 + 16 \times 2^{-26}$", 1.0, (*TINY[-26], 16),
           (0x3F800000, 0x3F800000, 0x3F800000, 0x3F800002, 0x3F800002)),
    _probe("amd_down", mark("c = -2^-30, one product 1"), r"$-2^{-30} + 1$", -(2.0**-30), (1.0, 1.0, 1),
           (0x3F800000, 0x3F800000, 0x3F800000, 0x3F7FFFFF, 0x3F800000)),
    _probe("amd_up", mark("c = 2^-30, one product -1"), r"$2^{-30} - 1$", 2.0**-30, (-1.0, 1.0, 1),
           (0xBF800000, 0xBF800000, 0xBF800000, 0xBF800000, 0xBF800000)),
    _probe("amd_operand", mark("c = 0, 16 products of 2^-15, a subnormal, and 1"), r"$16 \times 2^{-15} \cdot 1$", 0.0,
           (2.0**-15, 1.0, 16), (0x3A000000, 0x3A000000, 0, 0x3A000000, 0x3A000000)),
    _probe("amd_c", mark("c = 2^-130, a subnormal, and no product"), r"$2^{-130} + 0$", 2.0**-130, (0.0, 1.0, 1),
           (0x00080000, 0x00080000, 0, 0x00080000, 0x00080000)),
)  # fmt: skip
DOWN, UP, OPERAND, C = 1, 2, 3, 4  # of the probes


def defined(gpu: str, a: Sequence[float], b: Sequence[float], c: float) -> int:
    """The FP32 bits of FP16 products onto c by the definition; whole instructions, and no result beyond FP32."""
    total = Fraction(c)
    if gpu != "MI300X":
        flushes = gpu == "MI210"
        x, y = ([_kept(Fraction(v), -14, flushes) for v in row] for row in (a, b))
        total = _kept(total, -126, flushes)
        for at in range(0, len(x), 4):
            p = [x[k] * y[k] for k in range(at, at + 4)]
            pair = [_nearest(p[0] + p[1], flushes), _nearest(p[2] + p[3], flushes)]
            total = _nearest(total + _nearest(pair[0] + pair[1], flushes), flushes)
        return rounded(total)
    for at in range(0, len(a), 8):
        pairs = [(Fraction(a[k]), Fraction(b[k])) for k in range(at, at + 8)]
        top = max(_exponent(x, -14) + _exponent(y, -14) for x, y in pairs)
        quantum = Fraction(2) ** (top - 24)
        products = sum(math.trunc(x * y / quantum) for x, y in pairs) * quantum
        most = Fraction(2) ** max(top, _exponent(total, -126))
        down = [math.floor(v * 2**bits / most) * most / 2**bits for v, bits in ((products, 31), (total, 24))]
        total = _nearest(sum(down, Fraction(0)), False)
    return rounded(total)


def _exponent(x: Fraction, least: int) -> int:
    """A zero's is -126."""
    return max(exponent_of(x), least) if x else -126


def _kept(x: Fraction, least: int, flushes: bool) -> Fraction:
    return Fraction(0) if flushes and abs(x) < Fraction(2) ** least else x


def _nearest(x: Fraction, flushes: bool) -> Fraction:
    return _kept(exact.nearest(x), -126, flushes)
