"""Codes as torch tensors of a format and back; where torch's casts overflow; torch's flags set for a while."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from .environment import torch_for
from .tiles import CODES, Codes, to_device, to_host

TORCH = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0": "float8_e8m0fnu", "int8": "int8", "int32": "int32",
}  # fmt: skip
PRECISION = "float32_matmul_precision"  # "highest" is IEEE, "high" is TF32
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def tensor(codes: Codes, fmt: str, device: str) -> Any:
    """Codes as a tensor of their format on a device; on the CPU it shares their memory."""
    torch = torch_for(device)
    return to_device(codes.astype(CODES[fmt], copy=False), device).view(getattr(torch, TORCH[fmt]))


def bits(x: Any) -> Codes:
    import torch

    size = x.element_size()
    return to_host(x.contiguous().view(getattr(torch, f"int{8 * size}")), _BITS[size])


def overflow_of(fmt: str, version: str) -> str | None:
    """The overflow policy of a cast by that version of torch; None is the format's own.

    E4M3 saturates from torch 2.13 on, infinity too; before, as in ml_dtypes, it gives NaN.
    """
    return "saturate" if fmt == "e4m3" and release(version) >= (2, 13) else None


def release(version: str) -> tuple[int, int]:
    """Major and minor number of a version.

    >>> release("2.13.0+cpu")
    (2, 13)
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def on_device(device: str, *sizes: int, most: int = 64) -> tuple[int, ...]:
    """Sizes of a product as they are; at most ``most`` on a CPU, which only stands in and is slow in half precision."""
    return tuple(min(size, most) for size in sizes) if device == "cpu" else sizes


def autocast_to(x: Any) -> Any:
    """CUDA's autocast to a tensor's dtype; on a CPU the lab's, since torch's for the CPU has other lists."""
    if x.device.type == "cpu":
        from .. import nn

        return nn.autocast(x.dtype)
    return torch_for(x.device.type).autocast(x.device.type, x.dtype)


@contextlib.contextmanager
def flags_set(given: Mapping[str, Any]) -> Iterator[None]:
    """Set flags of ``torch.backends`` ("cuda.matmul.allow_tf32"), or "float32_matmul_precision", and undo it."""
    before = {name: _flag(name) for name in given}
    try:
        for name, value in given.items():
            _set_flag(name, value)
        yield
    finally:
        for name, value in before.items():
            _set_flag(name, value)


def _flag(name: str) -> Any:
    import torch

    return torch.get_float32_matmul_precision() if name == PRECISION else attrgetter(name)(torch.backends)


def _set_flag(name: str, value: Any) -> None:
    import torch

    if name == PRECISION:
        return torch.set_float32_matmul_precision(value)
    owner, _, attribute = name.rpartition(".")
    return setattr(attrgetter(owner)(torch.backends), attribute, value)
