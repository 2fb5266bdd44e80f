"""FP32 operands, and every pattern of the 13 bits that TF32 does not have."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...hardware.cases import philox_bits
from ..partial_products import network

Array = np.ndarray[Any, Any]
MADE_UP = ("random", "positive")
REAL = network.REAL[2]
LOW = 13  # fraction bits of FP32 beyond TF32's 10
CONVERSIONS = ("truncate", "rna", "rne")
ROUNDINGS = {"truncate": "rtz", "rna": "rna", "rne": "rne"}
EXAMPLE = 10240  # K of the published example


def make(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """Float32 A and B (rows, K). Made up: multiples of 2**-24 between -1 or 0 and 1."""
    k = 1 << log2_last
    if kind not in MADE_UP:
        return network.chosen(kind, rows, log2_last)
    key = 2000 + 10 * MADE_UP.index(kind)
    found: list[Array] = []
    for i in range(2):
        whole = (philox_bits(key + i, rows * k) >> np.uint32(7)).astype(np.int64).reshape(rows, k)
        found.append(np.ldexp(whole - (1 << 24) if kind == "random" else whole, -24 if kind == "random" else -25))
    return found[0].astype(np.float32), found[1].astype(np.float32)


def nearly_normal(key: int, rows: int) -> Array:
    """Float32 (rows, 10240) of mean 0 and variance 1: sums of twelve uniform numbers, from integers alone."""
    raw = philox_bits(key, 12 * rows * EXAMPLE).reshape(12, rows, EXAMPLE).astype(np.int64).sum(axis=0)
    found: Array = np.ldexp((raw - (6 << 32)).astype(np.float64), -32)
    return found.astype(np.float32)


def low_bits() -> Array:
    """What every conversion does to all patterns of the low bits, after an even and an odd last place: int64.

    Shape (conversion, parity, 2**13); in units of FP32's last place, 2**-13 of TF32's.
    """
    from ...floats import quantize

    codes = np.uint32(0x3F800000) + np.arange(2 << LOW, dtype=np.uint32)
    x = codes.view(np.float32)
    errors = [np.asarray(quantize(x, "tf32", ROUNDINGS[c]), np.float64) - x for c in CONVERSIONS]
    found: Array = np.ldexp(np.stack(errors), 23).astype(np.int64)
    return np.asarray(found.reshape(len(CONVERSIONS), 2, 1 << LOW))
