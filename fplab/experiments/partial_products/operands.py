"""The operands of the products, as FP16 codes A (M, K) and B (N, K): made up ones, and those of a trained network.

Made up ones come from Philox's raw stream by integer arithmetic, so that they are the same bits everywhere. Every
leading part of a length ``16 * 2**j`` is an example of its kind, too.

* ``random``: uniform between -1 and 1.
* ``positive``: uniform between 0 and 1; nothing cancels, so the running sum only grows.
* ``ill-conditioned``: each stretch from 2**j to 2**(j+1) climbs and comes back: its second half holds the negated
  products of the first in another order, but for :data:`LEFT` units in the last place of one factor. Little remains.
* ``swamped``: a one, then products just below what a block keeps beside it. Row i of A is the worst case of the i-th
  of :data:`TARGETS`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...hardware.cases import philox_bits

Array = np.ndarray[Any, Any]
SYNTHETIC = ("random", "positive", "ill-conditioned", "swamped")
FIRST = 16  # the shortest product
# Block length, and the exponents of the factors a of each block; b is just below 2**-12.
TARGETS: dict[str, tuple[int, ...]] = {
    "V100": (-12,) * 4,
    "A100": (*(-13,) * 7, -12),
    "H100": (*(-14,) * 15, -12),
}
LEFT = 8
ALMOST_TWO = 2 - 2.0**-10  # the largest FP16 significand


def sizes(log2_last: int) -> Array:
    """16, 32, ... 2**log2_last."""
    return 1 << np.arange(4, log2_last + 1)


def make(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """Codes A and B (rows, 2**log2_last) of a made up kind; of ``swamped``, A has a row for each target."""
    k, key = 1 << log2_last, 1000 + 10 * SYNTHETIC.index(kind)
    if kind == "swamped":
        return swamped(k, rows)
    u = [philox_bits(key + i, rows * k).reshape(rows, k).astype(np.float64) * 2.0**-32 for i in range(2)]
    if kind == "random":
        return half(2 * u[0] - 1), half(2 * u[1] - 1)
    if kind == "positive":
        return half(u[0]), half(u[1])
    return climbing(*(half(v) for v in u))


def half(x: Array) -> Array:
    """FP16 codes, to nearest even."""
    return np.ascontiguousarray(x, np.float16).view(np.uint16)


def values(codes: Array) -> Array:
    """FP16 codes as float64."""
    return codes.view(np.float16).astype(np.float64)


def climbing(a: Array, b: Array) -> tuple[Array, Array]:
    """Overwrite the second half of every stretch by the first: negated in A, permuted, a few last places off in B."""
    start, end = 0, FIRST
    while end <= a.shape[1]:
        middle = (start + end) // 2
        order = start + np.argsort(philox_bits(end, middle - start), kind="stable")
        a[:, middle:end] = a[:, order] ^ np.uint16(0x8000)
        b[:, middle:end] = b[:, order]
        b[:, end - 1] += np.uint16(LEFT)
        start, end = end, 2 * end
    return a, b


def swamped(k: int, columns: int) -> tuple[Array, Array]:
    """A (3, k) and B (columns, k); the columns are alike but for the sign, which alternates."""
    a = np.stack([np.ldexp(ALMOST_TWO, np.resize(exponents, k)) for exponents in TARGETS.values()])
    b = np.full((columns, k), np.ldexp(ALMOST_TWO, -13))
    a[:, 0] = b[:, 0] = 1
    return half(a), half(b * np.resize([1.0, -1.0], columns)[:, None])
