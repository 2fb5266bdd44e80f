"""Random operands in E4M3, and products of them: on GPUs, promoted, and exact.

A product of two E4M3 numbers is a multiple of 2**-18, and sums of up to 2**14 of them stay below 2**53 of these units:
so float64 adds them without rounding in any order, and every error here is exact before it is divided by anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import exact

Array = np.ndarray[Any, Any]
SIGMA, LARGEST = 64.0, 448.0
UNIT = -18  # exponent of the grid on which all products lie


def _normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / (SIGMA * math.sqrt(2))))


def _both_signs(x: float) -> float:
    return (x + LARGEST) / (2 * LARGEST)


def _positive(x: float) -> float:
    return x / LARGEST


# How likely a number is below x. Scaled as FP8 training scales: the largest numbers come near E4M3's largest, 448.
DISTRIBUTIONS: dict[str, Callable[[float], float]] = {
    "normal": _normal,
    "uniform, both signs": _both_signs,
    "uniform, positive": _positive,
}
SERIES: dict[str, dict[str, Any]] = {  # arguments of tensorcore.matmul; "promote" is its plan's
    "H100": {"gpu": "H100"},
    "H100, promoted every 128": {"gpu": "H100", "promote": 128},
    "Ada": {"gpu": "Ada"},
    "B200": {"gpu": "B200"},
}


def draw(distribution: str, key: int, rows: int, k: int) -> Array:
    """E4M3 codes (rows, k): each drawn with the probability, to 2**-32, that a random number rounds to it."""
    limits, codes = _limits(distribution)
    words = np.random.Philox(key=key).random_raw(rows * k) >> np.uint64(32)
    # The upper 16 bits of a word nearly always decide; only where a limit lies within is the rest looked at.
    first = np.searchsorted(limits, np.arange(1 << 16, dtype=np.uint64) << np.uint64(16), side="right")
    upper = (words >> np.uint64(16)).astype(np.intp)
    found = codes[first][upper]
    parted = np.append(first[1:], codes.size - 1) != first
    near = np.flatnonzero(parted[upper])
    found[near] = codes[np.searchsorted(limits, words[near], side="right")]
    return found.reshape(rows, k)


def _limits(distribution: str) -> tuple[Array, Array]:
    """The finite codes of E4M3 by rising value, and the words from which each but the first begins."""
    positive = [exact.decode(code, "e4m3").magnitude for code in range(0x7F)]
    values = [-v for v in positive[:0:-1]] + positive
    middles = [float(x + y) / 2 for x, y in itertools.pairwise(values)]
    shares = np.clip([DISTRIBUTIONS[distribution](x) for x in middles], 0.0, 1.0)
    codes = np.array([*range(0xFE, 0x80, -1), *range(0x7F)], np.uint8)
    return np.rint(shares * 2.0**32).astype(np.uint64), codes


def numbers(codes: Array) -> Array:
    """E4M3 codes as float32."""
    from ... import floats

    return np.asarray(floats.decode(codes, "e4m3", np.float32))


def product(a: Array, b: Array, gpu: str, promote: int | None = None) -> Array:
    """A B^T for A (m, k) and B (n, k), float32 that hold E4M3, to FP32, as bits (m, n)."""
    from ... import tensorcore

    plan = tensorcore.Plan(promote=promote)
    return tensorcore.matmul(a, b.T, gpu=gpu, inputs="e4m3", plan=plan).view(np.uint32)


def exactly(a: Array, b: Array) -> Array:
    """A B^T without any error, float64 (m, n)."""
    assert a.shape[1] <= 1 << 14
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64).T)


# --- what a relative error is -----------------------------------------------------------------------------------


def _own(error: Array, want: Array) -> float:
    there = want != 0
    return float((error[there] / np.abs(want[there])).max())


def _of_rms(error: Array, want: Array) -> float:
    return float(error.max() / np.sqrt((want**2).mean()))


def _of_largest(error: Array, want: Array) -> float:
    return float(error.max() / np.abs(want).max())


def _frobenius(error: Array, want: Array) -> float:
    return float(np.sqrt((error**2).sum() / (want**2).sum()))


def _median(error: Array, want: Array) -> float:
    there = want != 0
    return float(np.median(error[there] / np.abs(want[there])))


DEFINITIONS: dict[str, Callable[[Array, Array], float]] = {
    "largest error, each over its own result": _own,
    "largest error over the r.m.s. result": _of_rms,
    "largest error over the largest result": _of_largest,
    "norm of the errors over that of the results": _frobenius,
    "median error, each over its own result": _median,
}
RMS = "largest error over the r.m.s. result"  # the one that the curves show


def relative(bits: Array, want: Array, definition: str = RMS) -> float:
    """A relative error of FP32 bits against exact results, by one of ``DEFINITIONS``."""
    return DEFINITIONS[definition](np.abs(bits.view(np.float32).astype(np.float64) - want), want)


def significant_bits(bits: Array) -> int:
    """The most bits that a significand of FP32 bits needs, the leading one included."""
    used = np.bitwise_or.reduce(bits.ravel() & np.uint32(0x7FFFFF))
    trailing = (int(used) & -int(used)).bit_length() - 1 if used else 23
    return 24 - trailing
