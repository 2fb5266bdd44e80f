"""Which tensors have companions, and their values in float64."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor
FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}  # fmt: skip
COMPLEX = {torch.complex32, torch.complex64, torch.complex128}


def floating(x: Any) -> bool:
    """Whether something is a dense tensor of real or complex floating-point numbers."""
    return (
        isinstance(x, Tensor) and (x.dtype in FLOATS or x.dtype in COMPLEX) and x.layout == torch.strided
        and x.device.type != "meta" and not x.is_nested
    )  # fmt: skip


def wide(x: Tensor) -> Tensor:
    """A new tensor of a tensor's values in float64 or complex128."""
    return x.to(torch.complex128 if x.dtype in COMPLEX else torch.float64, copy=True)
