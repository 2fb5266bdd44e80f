"""What a GPU must compute: gradients accumulated in place, in 16 bits and in FP32."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays, Case, Meta
from ...hardware.tensors import bits, tensor
from ..collectives.cases import FORMATS, inputs

if TYPE_CHECKING:
    from .data import Params


def compute(given: Arrays, device: str, fmt: str) -> Arrays:
    """``add_`` row by row."""
    import torch

    rows = tensor(given["rows"], fmt, device)
    half, wide = torch.zeros_like(rows[0]), torch.zeros_like(rows[0], dtype=torch.float32)
    for row in rows:
        half.add_(row)
        wide.add_(row)
    return {"half": bits(half), "wide": bits(wide)}


def emulate(given: Arrays, meta: Meta, fmt: str) -> Arrays:
    """The same with the lab's additions."""
    import fplab

    rows = fplab.decode(given["rows"], fmt)
    half, wide = np.zeros_like(rows[0]), np.zeros_like(rows[0])
    for row in rows:
        half, wide = fplab.add(half, row, fmt), fplab.add(wide, row, "fp32")
    return {"half": fplab.encode(half, fmt), "wide": fplab.encode(wide, "fp32")}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """A case a format."""
    return tuple(
        Case(f"micro-batches in {fmt}", partial(inputs, fmt), partial(compute, fmt=fmt), partial(emulate, fmt=fmt),
             {"half": fmt, "wide": "fp32"})
        for fmt in FORMATS
    )  # fmt: skip
