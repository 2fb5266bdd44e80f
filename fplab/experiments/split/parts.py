"""FP32 numbers as sums of two narrow ones.

``high`` is the number rounded; ``low`` is what is left, times a scale, rounded again. What is left of an FP32 number
is an FP32 number, so nothing else is lost on the way. High has 11 bits of the 24; 13 remain, and since low has a sign,
to nearest they are at most 12; low holds 11. So it misses the last bit of a quarter of all numbers; by truncation the
13 stay 13, and it misses something of a half. Ootomo and Yokota count that as 22.75 and 22.5 bits of 23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...hardware.cases import philox_bits

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Scheme:
    """``fmt``: of both parts. ``log2_scale``: of the second. ``rounding``: of both. ``pair``: whether there is one."""

    name: str
    fmt: str
    log2_scale: int = 0
    rounding: str = "rne"
    pair: bool = True


ALONE = Scheme("FP16 alone", "fp16", pair=False)
PLAIN = Scheme("FP16 + FP16", "fp16")
SCALED = Scheme("FP16 + FP16 / 2^11", "fp16", 11)
TF32 = Scheme("TF32 + TF32 / 2^11", "tf32", 11, "rna")
SCHEMES = (ALONE, PLAIN, SCALED, TF32)
ROUNDINGS = ("rne", "rtz")
LOWEST, HIGHEST = -60, 20  # the binades that are sampled


def split(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """High and low (scaled) of FP32 values, float32; low is 0 where the scheme has one part."""
    from ...floats import quantize

    with np.errstate(invalid="ignore", over="ignore"):
        high = np.asarray(quantize(x, scheme.fmt, scheme.rounding))
        if not scheme.pair:
            return high, np.zeros_like(high)
        left = (x - high) * np.float32(2.0**scheme.log2_scale)
        return high, np.asarray(quantize(left, scheme.fmt, scheme.rounding))


def missing(x: Array, scheme: Scheme) -> Array:
    """What the parts miss of the values, float64, exact."""
    high, low = split(x, scheme)
    with np.errstate(invalid="ignore"):
        left = x.astype(np.float64) - high
        return np.asarray(left - np.ldexp(low.astype(np.float64), -scheme.log2_scale))


def lost() -> Array:
    """All 2**23 significands: how many miss 0, 1, 2, 3 units of FP32's last place, by rounding; int64 (2, 4)."""
    x = (np.arange(1 << 23, dtype=np.uint32) + np.uint32(0x3F800000)).view(np.float32)
    found = []
    for rounding in ROUNDINGS:
        units = np.ldexp(np.abs(missing(x, Scheme("", "fp16", 11, rounding))), 23)
        assert (units == np.rint(units)).all()
        found.append(np.bincount(units.astype(np.int64), minlength=4))
    return np.stack(found)


def by_binade(values: int) -> Array:
    """The largest relative error of the parts of values of each binade from 2**-60 to 2**19, by scheme; float64."""
    exponents = np.arange(LOWEST, HIGHEST)
    fraction = philox_bits(3000, values) >> np.uint32(9)
    fraction[0] = 0x7FFFFF  # the largest of the binade
    codes = ((exponents + 127).astype(np.uint32)[:, None] << np.uint32(23)) | fraction
    x = codes.view(np.float32)
    with np.errstate(invalid="ignore"):
        shares = [np.abs(missing(x, scheme)) / x for scheme in SCHEMES]
    return np.stack([np.where(np.isfinite(s), s, 1.0).max(axis=1) for s in shares])
