"""The exercises, a file a chapter; importing this package fills the registry."""

from __future__ import annotations

from . import (
    arithmetic,
    bits,
    blocks,
    hardware,
    integers,
    memory,
    optimizers,
    products,
    rounding,
    sums,
    training,
    underflow,
)

__all__ = [
    "arithmetic", "bits", "blocks", "hardware", "integers", "memory", "optimizers", "products", "rounding", "sums",
    "training", "underflow",
]  # fmt: skip
