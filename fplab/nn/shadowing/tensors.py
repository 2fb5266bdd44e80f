"""Which tensors have companions, and their values in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}  # fmt: skip
INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
COMPLEX = {torch.complex32, torch.complex64, torch.complex128}


def floating(x: Any) -> bool:
    """Whether something is a dense tensor of real or complex floating-point numbers."""
    return isinstance(x, Tensor) and (x.dtype in FLOATS or x.dtype in COMPLEX) and dense(x)


def dense(x: Tensor) -> bool:
    """Whether a tensor lies in memory of its own; one that ``torch.func`` has put around others does not."""
    return (
        x.layout == torch.strided and x.device.type != "meta" and not x.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )  # fmt: skip


def among(given: Any, also: Callable[[Tensor], bool] | None = None) -> list[Tensor]:
    """Those among an operation's arguments or results, which are tensors, lists and tuples of them, and numbers.

    ``also``: which tensors of integers count.
    """
    if isinstance(given, Tensor):
        whole = also is not None and given.dtype in INTEGERS and dense(given) and also(given)
        return [given] if whole or floating(given) else []
    return [x for one in given for x in among(one, also)] if isinstance(given, (list, tuple)) else []


def wide(x: Tensor) -> Tensor:
    """A new tensor of a tensor's values in float64 or complex128."""
    return x.to(torch.complex128 if x.dtype in COMPLEX else torch.float64, copy=True)
