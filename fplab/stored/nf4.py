"""bitsandbytes' NF4 and FP4: 64 codes, two a byte, the first in its high half, and their largest magnitude in FP32.

FP4 is a floating-point number of two exponent bits and one of fraction over 12, whose codes are not in the order of the
values. Of its two zeros what is a little above 0 gets the code of the negative one, as bitsandbytes has it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..codebooks import BOOKS, quantize_blockwise
from .record import Coder, Stored

Array = np.ndarray[Any, Any]
SMALLEST = np.float32(1e-38)  # what a smaller maximum counts as
_HALF = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4 = np.concatenate([_HALF, 0 - _HALF])
"""The values of FP4's codes."""
ORDER = np.argsort(FP4, kind="stable").astype(np.uint8)
BOUNDS = (FP4[ORDER[:-1]] + FP4[ORDER[1:]]) * np.float32(0.5)


def _as_nf4(x: Array) -> tuple[Array, Array]:
    done = quantize_blockwise(x, "NF4", 64, "bitsandbytes torch")
    return done.codes, done.absmax


def _as_fp4(x: Array) -> tuple[Array, Array]:
    absmax = np.abs(x).max(axis=1)
    scaled = np.clip(x * (np.float32(1) / np.maximum(absmax, SMALLEST))[:, None], -1, 1)
    return ORDER[np.searchsorted(BOUNDS, scaled)], absmax


def _record(name: str, codes_of: Any, table: Array) -> Stored:
    # The two values of each byte, as the bits of one number.
    pairs = np.stack([table.repeat(16), np.tile(table, 16)], axis=1).view(np.int64).ravel()
    coders: tuple[Coder, Coder] = partial(_encode, codes_of), partial(_decode, pairs)
    return Stored(name, 64, 36, *coders, "bitsandbytes, quantize_4bit (its two arrays side by side)")


def _encode(codes_of: Any, x: Array) -> Array:
    codes, absmax = codes_of(x)
    data = codes[:, 0::2] << np.uint8(4) | codes[:, 1::2]
    return np.hstack([data, absmax.astype("<f4").view(np.uint8).reshape(-1, 4)])


def _decode(pairs: Array, data: Array) -> Array:
    values = np.take(pairs, data[:, :32]).view(np.float32)
    return np.asarray(values * np.ascontiguousarray(data[:, 32:]).view("<f4"))


RECORDS = (_record("nf4", _as_nf4, BOOKS["NF4"].table), _record("fp4_bnb", _as_fp4, FP4))
"""Their records."""
