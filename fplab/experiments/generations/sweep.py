"""Sums that fall while c rises, and the summation trees of the GPUs.

At c = 1 the grid of a block, 2**(emax - F), becomes twice as coarse as below 1. Products of half that grid are then
lost, which below 1 were kept: the sum drops. So no Tensor Core that truncates aligned terms is monotonic, and each
generation shows it at its own size of products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...reveal import SumTree, reveal_order
from .probes import GPUS, TINY

Array = np.ndarray[Any, Any]
PRODUCTS: tuple[tuple[int, int], ...] = ((4, -24), (8, -25), (16, -26))  # how many, and the exponent of each: 2**-22
BELOW, ABOVE = 12, 8  # values of c below and above 1


def accumulators() -> Array:
    """The values of c around 1, all of them: FP32 bits, ascending; number ``BELOW`` is 1."""
    return (0x3F800000 + np.arange(-BELOW, ABOVE + 1)).astype(np.uint32)


def results() -> Array:
    """c plus the products on every GPU: FP32 bits (product, GPU, c)."""
    from ... import tensorcore

    c = accumulators().view(np.float32)
    found = np.empty((len(PRODUCTS), len(GPUS), c.size), np.uint32)
    for i, (count, exponent) in enumerate(PRODUCTS):
        a, b = (np.full((c.size, count), factor, np.float32) for factor in TINY[exponent])
        for j, gpu in enumerate(GPUS):
            found[i, j] = np.asarray(tensorcore.dot(a, b, c, gpu=gpu)).view(np.uint32)
    return found


def falls(results: Array) -> Array:
    """How often the last axis (positive FP32 bits, in the order of c) falls."""
    return np.asarray((np.diff(results.astype(np.int64), axis=-1) < 0).sum(axis=-1))


def tree(gpu: str, terms: int) -> SumTree:
    """The tree of c (term 0) and ``terms - 1`` FP16 products on a GPU, as a black box shows it."""
    from ... import tensorcore

    def box(x: Array) -> Any:
        return tensorcore.dot(x[:, 1:], np.ones((len(x), terms - 1), np.float16), x[:, 0], gpu=gpu)

    return reveal_order(box, terms, "fp16", rows=True)


def chain(terms: int, length: int) -> SumTree:
    """A chain of fused sums of ``length`` products and the sum so far, which begins with term 0."""
    nested: Any = 0
    for start in range(1, terms, length):
        nested = (nested, *range(start, min(start + length, terms)))
    return SumTree.of(nested)
