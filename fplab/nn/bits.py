"""torch tensors as numpy arrays of values or of bits, and back: nothing is ever rounded on the way.

>>> import torch
>>> codes(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
array([16256, 49152], dtype=uint16)
>>> from_codes(np.array([0x3C00], np.uint16), "fp16")
tensor([1.], dtype=torch.float16)
"""

from types import SimpleNamespace
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
_PLAIN = {
    torch.float64: "<f8", torch.float32: "<f4", torch.float16: "<f2", torch.int64: "<i8", torch.int32: "<i4",
    torch.int16: "<i2", torch.int8: "|i1", torch.uint8: "|u1", torch.bool: "|b1",
}  # fmt: skip
PLAIN_TENSOR = torch.Tensor.__torch_dispatch__  # of tensors that are memory, as parameters and most classes are
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def format_of(dtype: torch.dtype) -> str:
    """The name of a dtype's format: "fp16" for ``torch.float16``. Raises LabError for a dtype that is no float."""
    if dtype not in FORMATS:
        allowed = ", ".join(str(d) for d in FORMATS)
        raise LabError(f"{dtype} is no floating-point format of the lab. Allowed: {allowed}.")
    return FORMATS[dtype]


def holds_values(x: Any) -> bool:
    """Whether a value is a tensor with its values in it: dense, not nested, and not on the device meta."""
    return isinstance(x, torch.Tensor) and x.layout is torch.strided and not (x.is_nested or x.is_meta)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor that is spread over several (a DTensor), on its own memory; others as is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
    return part


def memory(tensor: torch.Tensor) -> Array:
    """A dense tensor of the CPU's, of a dtype of numpy's and with elements, as an array on the same memory."""
    strides = None  # row by row
    if not tensor.is_contiguous():
        strides = tuple([step * tensor.element_size() for step in tensor.stride()])
    asked = {
        "version": 3, "data": (tensor.data_ptr(), False), "typestr": _PLAIN[tensor.dtype], "shape": tensor.shape,
        "strides": strides,
    }  # fmt: skip
    return np.asarray(SimpleNamespace(__array_interface__=asked, tensor=tensor))  # which the array keeps alive


def array(tensor: torch.Tensor) -> Array:
    """A tensor of a dtype of numpy's as an array on the same memory, copied first if it is not on the CPU.

    ``Tensor.numpy`` marks the memory for good as not to be resized, and FSDP2 frees parameters by resizing them.
    Of a DTensor it is the part that this process holds.
    """
    plain = local(tensor).detach().cpu()
    dense = type(plain).__torch_dispatch__ is PLAIN_TENSOR and plain.layout == torch.strided and plain.numel()
    if not dense or plain.is_neg() or plain.dtype not in _PLAIN:
        result: Array = plain.resolve_neg().numpy()
        return result
    return memory(plain)


def values(tensor: torch.Tensor) -> Array:
    """A tensor's values, float64 for float64 and float32 for all narrower formats, in the tensor's shape and strides.

    float32 and float64 tensors on the CPU share their memory with the array.
    """
    plain = tensor.detach()
    if plain.dtype not in (torch.float32, torch.float64):
        format_of(plain.dtype)
        plain = plain.to(torch.float32)
    return array(plain)


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
    return array(tensor.detach().contiguous().view(_SIGNED[size])).view(f"u{size}")


def from_codes(array: Array, fmt: str) -> torch.Tensor:
    """Codes of a format that torch has as a tensor of its dtype. Raises LabError for a format that torch lacks."""
    name = get(fmt).name
    if name not in DTYPES:
        raise LabError(f"torch has no dtype for {fmt}. Allowed: {', '.join(DTYPES)}.")
    width = get(fmt).bits // 8
    signed = np.ascontiguousarray(array).astype(f"u{width}", copy=False).view(f"i{width}")
    return torch.from_numpy(signed.reshape(array.shape)).view(DTYPES[name])
