"""What a GPU must compute: the sums of a ring and of a tree in 16 bits, addition by addition."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor

if TYPE_CHECKING:
    from .data import Params

RANKS, ELEMENTS = 64, 4096
FORMATS = ("fp16", "bf16")


def inputs(fmt: str) -> Arrays:
    """Finite values between 2^-9 and 16 in magnitude, of both signs: bits of the format."""
    raw = philox_bits(7, RANKS * ELEMENTS, np.uint16)
    low, fraction = {"fp16": (6, 10), "bf16": (118, 7)}[fmt]
    exponent = low + (raw >> 4) % np.uint16(13)
    significand = raw * 40503 & np.uint16((1 << fraction) - 1)
    codes = (raw & np.uint16(0x8000)) | (exponent << np.uint16(fraction)) | significand
    return {"rows": codes.astype(np.uint16).reshape(RANKS, ELEMENTS)}


def compute(given: Arrays, device: str, fmt: str) -> Arrays:
    """Rank by rank, and pairwise."""
    rows = tensor(given["rows"], fmt, device)
    ring = rows[0]
    for row in rows[1:]:
        ring = ring + row
    tree = rows
    while len(tree) > 1:
        tree = tree[0::2] + tree[1::2]
    return {"ring": bits(ring), "tree": bits(tree[0])}


def emulate(given: Arrays, meta: Meta, fmt: str) -> Arrays:
    """The same with the lab's additions."""
    import fplab

    rows = fplab.decode(given["rows"], fmt)
    ring = rows[0]
    for row in rows[1:]:
        ring = fplab.add(ring, row, fmt)
    tree = rows
    while len(tree) > 1:
        tree = fplab.add(tree[0::2], tree[1::2], fmt)
    return {"ring": fplab.encode(ring, fmt), "tree": fplab.encode(tree[0], fmt)}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """A case a format."""
    return tuple(
        Case(f"sums over ranks in {fmt}", partial(inputs, fmt), partial(compute, fmt=fmt), partial(emulate, fmt=fmt),
             {"ring": fmt, "tree": fmt})
        for fmt in FORMATS
    )  # fmt: skip
