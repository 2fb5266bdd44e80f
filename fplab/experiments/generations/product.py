"""A real product: the correlations of the 64 pixels of handwritten digits, X X^T, on eight GPUs and exactly.

X holds the first K images, every pixel brought to mean 0 and variance 1 and rounded to FP16. Mean and variance come
from integers, so that the same bits enter everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def operands(images: int) -> Array:
    """X as FP16 codes (64, images): pixels by images. A pixel that never changes is zero."""
    from ...training.data import digits

    x = digits("all").images[:images].reshape(-1, 64).astype(np.int64)
    total = x.sum(axis=0)
    spread = len(x) * (x * x).sum(axis=0) - total**2
    scale = np.sqrt(np.maximum(spread, 1).astype(np.float64))
    standard = np.where(spread > 0, (len(x) * x - total) / scale, 0.0).astype(np.float16)
    return np.ascontiguousarray(standard.T).view(np.uint16)


def on_gpu(codes: Array, gpu: str) -> Array:
    """X X^T on a GPU, from FP16 to FP32, one chain of ascending k: FP32 bits (64, 64)."""
    from ... import tensorcore

    x = codes.view(np.float16).astype(np.float32)
    return tensorcore.matmul(x, x.T, gpu=gpu).view(np.uint32)


def exactly(codes: Array) -> Array:
    """X X^T with one rounding: FP32 bits (64, 64)."""
    from ... import sums

    x = codes.view(np.float16).astype(np.float32)
    found = sums.dot(x[:, None], x[None], "fp16", accumulate="exact", store="fp32")
    return np.asarray(found).view(np.uint32)


def ordered(bits: Any) -> Any:
    """FP32 bits as integers in the order of the numbers, neighbours 1 apart."""
    magnitude = np.asarray(bits).astype(np.int64) & 0x7FFFFFFF
    return np.where(np.asarray(bits) >> 31, -magnitude, magnitude)


def difference(x: Array, y: Array) -> tuple[int, int]:
    """How many elements differ between two results in FP32 bits, and the largest difference in ulp."""
    return int((x != y).sum()), int(np.abs(ordered(x) - ordered(y)).max())


def stored(bits: Array) -> Array:
    """FP32 bits rounded to FP16, as torch stores the product of half tensors: FP16 codes."""
    return bits.view(np.float32).astype(np.float16).view(np.uint16)
