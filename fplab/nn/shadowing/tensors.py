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


def among(given: Any) -> list[Tensor]:
    """Those among an operation's arguments or results, which are tensors, lists and tuples of them, and numbers."""
    if isinstance(given, Tensor):
        return [given] if floating(given) else []
    return [x for one in given for x in among(one)] if isinstance(given, (list, tuple)) else []


def wide(x: Tensor) -> Tensor:
    """A new tensor of a tensor's values in float64 or complex128."""
    return x.to(torch.complex128 if x.dtype in COMPLEX else torch.float64, copy=True)
