"""torch tensors as numpy arrays of values or of bits, and back: nothing is ever rounded on the way.

>>> import torch
>>> codes(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
array([16256, 49152], dtype=uint16)
>>> from_codes(np.array([0x3C00], np.uint16), "fp16")
tensor([1.], dtype=torch.float16)
"""

from typing import Any

import numpy as np
import torch

from ..errors import LabError
from ..formats import get

Array = np.ndarray[Any, Any]
FORMATS: dict[torch.dtype, str] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.float8_e4m3fnuz: "e4m3fnuz",
    torch.float8_e5m2fnuz: "e5m2fnuz",
}
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in FORMATS.items()}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def format_of(dtype: torch.dtype) -> str:
    """The name of a dtype's format: "fp16" for ``torch.float16``. Raises LabError for a dtype that is no float."""
    if dtype not in FORMATS:
        allowed = ", ".join(str(d) for d in FORMATS)
        raise LabError(f"{dtype} is no floating-point format of the lab. Allowed: {allowed}.")
    return FORMATS[dtype]


def values(tensor: torch.Tensor) -> Array:
    """A tensor's values, float64 for float64 and float32 for all narrower formats, in the tensor's shape and strides.

    float32 and float64 tensors on the CPU share their memory with the array.
    """
    plain = tensor.detach()
    if plain.dtype not in (torch.float32, torch.float64):
        format_of(plain.dtype)
        plain = plain.to(torch.float32)
    found: Array = plain.cpu().numpy()
    return found


def tensor(array: Array, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values as a tensor. They must be values of ``dtype`` already, or be rounded here once, to nearest, from float32.

    torch's own casts from float64 to 16 bits and fewer round twice, so float64 is taken for float64 only.
    """
    given = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    if given.dtype != torch.float32 and dtype != given.dtype:
        raise LabError(f"values of {array.dtype} cannot become {dtype} in one rounding; give float32.")
    return given if given.dtype == dtype else given.to(dtype)


def codes(tensor: torch.Tensor) -> Array:
    """The bits of a tensor of any dtype as unsigned integers of its width and shape."""
    size = tensor.element_size()
    signed: Array = tensor.detach().contiguous().view(_SIGNED[size]).cpu().numpy()
    return signed.view(f"u{size}")


def from_codes(array: Array, fmt: str) -> torch.Tensor:
    """Codes of a format that torch has as a tensor of its dtype. Raises LabError for a format that torch lacks."""
    name = get(fmt).name
    if name not in DTYPES:
        raise LabError(f"torch has no dtype for {fmt}. Allowed: {', '.join(DTYPES)}.")
    width = get(fmt).bits // 8
    signed = np.ascontiguousarray(array).astype(f"u{width}", copy=False).view(f"i{width}")
    return torch.from_numpy(signed.reshape(array.shape)).view(DTYPES[name])
