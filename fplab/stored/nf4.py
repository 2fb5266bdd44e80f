"""bitsandbytes' NF4 and FP4: 64 codes, two a byte, the first in its high half, and their largest magnitude in FP32.

FP4 is a floating-point number of two exponent bits and one of fraction over 12, whose codes are not in the order of the
values. Of its two zeros what is a little above 0 gets the code of the negative one, as bitsandbytes has it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..codebooks import BOOKS, dequantize_blockwise, quantize_blockwise
from .record import Coder, Stored

Array = np.ndarray[Any, Any]
SMALLEST = np.float32(1e-38)  # what a smaller maximum counts as
_HALF = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4 = np.concatenate([_HALF, 0 - _HALF])
"""The values of FP4's codes."""
ORDER = np.argsort(FP4, kind="stable").astype(np.uint8)
BOUNDS = (FP4[ORDER[:-1]] + FP4[ORDER[1:]]) * np.float32(0.5)


def _by_blocks(x: Array) -> Any:
    return quantize_blockwise(x, "NF4", 64, "bitsandbytes torch")


def _as_nf4(x: Array) -> tuple[Array, Array]:
    return (done := _by_blocks(x)).codes, done.absmax


def _as_fp4(x: Array) -> tuple[Array, Array]:
    absmax = np.abs(x).max(axis=1)
    scaled = np.clip(x * (np.float32(1) / np.maximum(absmax, SMALLEST))[:, None], -1, 1)
    return ORDER[np.searchsorted(BOUNDS, scaled)], absmax


def _record(name: str, codes_of: Any, table: Array, rounder: Coder | None = None) -> Stored:
    # The two values of each byte, as the bits of one number.
    pairs = np.stack([table.repeat(16), np.tile(table, 16)], axis=1).view(np.int64).ravel()
    coders: tuple[Coder, Coder] = partial(_encode, codes_of), partial(_decode, pairs)
    return Stored(name, 64, 36, *coders, "bitsandbytes, quantize_4bit (its two arrays side by side)", rounder)


def _encode(codes_of: Any, x: Array) -> Array:
    codes, absmax = codes_of(x)
    pairs = codes.view("<u2")
    data = (pairs << np.uint16(4) | pairs >> np.uint16(8)).astype(np.uint8)
    return np.hstack([data, absmax.astype("<f4").view(np.uint8).reshape(-1, 4)])


def _decode(pairs: Array, data: Array) -> Array:
    values = np.take(pairs, data[:, :32]).view(np.float32)
    return np.asarray(values * np.ascontiguousarray(data[:, 32:]).view("<f4"))


RECORDS = (
    _record("nf4", _as_nf4, BOOKS["NF4"].table, lambda x: dequantize_blockwise(_by_blocks(x))),
    _record("fp4_bnb", _as_fp4, FP4),
)
"""Their records."""
