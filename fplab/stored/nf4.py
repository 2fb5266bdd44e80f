"""bitsandbytes' NF4: 64 codes, the first of two in the high half of a byte, and their largest magnitude in FP32."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..codebooks import BOOKS, quantize_blockwise
from .record import Stored

Array = np.ndarray[Any, Any]
_VALUES = BOOKS["NF4"].table
PAIRS = np.stack([_VALUES.repeat(16), np.tile(_VALUES, 16)], axis=1).view(np.int64).ravel()
"""The two values of each byte, as the bits of one number."""


def _encode(x: Array) -> Array:
    done = quantize_blockwise(x, "NF4", 64, "bitsandbytes torch")
    codes = done.codes[:, 0::2] << np.uint8(4) | done.codes[:, 1::2]
    return np.hstack([codes, done.absmax.astype("<f4").view(np.uint8).reshape(-1, 4)])


def _decode(data: Array) -> Array:
    values = np.take(PAIRS, data[:, :32]).view(np.float32)
    return np.asarray(values * np.ascontiguousarray(data[:, 32:]).view("<f4"))


RECORDS = (Stored("nf4", 64, 36, _encode, _decode, "bitsandbytes, quantize_4bit (its two arrays side by side)"),)
"""Its record."""
