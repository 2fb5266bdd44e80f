"""torch's tensors as values: those inside whatever a module returns, as bits of float32, and in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..bits import array, local
from ..device import running
from ..device.counting import MOST, DeviceBits

Array = np.ndarray[Any, Any]
_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", lambda tensor: False)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's values as a flat dense tensor without history; None where it has none that can be read."""
    if tensor.device.type == "meta" or tensor.is_nested or _wrapped(tensor):
        return None
    plain = local(tensor).detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.reshape(-1)


def bits(tensor: torch.Tensor) -> Array | None:
    """A tensor's values as float32 bits, uint32 (n,), a view where it is float32 and contiguous; None as :func:`flat`.

    16- and 8-bit floats are exact. float64 is rounded to odd, which keeps every value on its side of every edge of a
    format with at most 21 fraction bits.
    """
    values = flat(tensor)
    if values is None:
        return None
    if values.device.type != "cpu":
        values = values.cpu()
    if values.dtype is torch.float32:
        result: Array = array(values).view(np.uint32)
        return result
    if values.dtype is torch.float64:
        from ...floats import quantize

        return np.asarray(quantize(array(values), "fp32", "odd"), np.float32).view(np.uint32)
    return array(values.float()).view(np.uint32)


def on_device(tensor: torch.Tensor) -> DeviceBits | None:
    """The same of a tensor on a GPU, where they stay; None for others, and for float64, which is copied."""
    if not running.takes(tensor) or tensor.dtype is torch.float64 or tensor.is_complex():
        return None
    values = flat(tensor)
    return None if values is None or not 0 < values.numel() <= MOST else DeviceBits(values)


Tensor = torch.Tensor
FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}  # fmt: skip
INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
GAPS = 1 << 28
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
    return [x for item in given for x in among(item, also)] if isinstance(given, (list, tuple)) else []


def wide(x: Tensor) -> Tensor:
    """A new tensor of a tensor's values in float64 or complex128."""
    return x.to(torch.complex128 if x.dtype in COMPLEX else torch.float64, copy=True)


def laid_out(x: Tensor, stride: Sequence[int]) -> Tensor:
    """A copy of a tensor with the strides of another, gaps included: torch's vector paths depend on them.

    A copy as torch lays it out where that takes more than ``GAPS`` elements or places lie over one another.
    """
    once = x
    for d, step in enumerate(stride):
        once = once.narrow(d, 0, 1) if step == 0 < x.shape[d] else once
    size = 1 + sum((n - 1) * step for n, step in zip(once.shape, stride, strict=True))
    if not x.numel() or size > GAPS:
        return x.clone()
    result = x.new_zeros(size).as_strided(once.shape, stride)
    if torch._debug_has_internal_overlap(result) == 1:
        return x.clone()
    return result.copy_(once).expand(x.shape)


def reals(x: Tensor) -> Array:
    """Real numbers in a row, float32 or float64, without a copy where they lie so."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    x = torch.view_as_real(x) if x.dtype in COMPLEX else x
    x = x if x.dtype in (torch.float32, torch.float64) else x.double() if x.dtype in INTEGERS else x.float()
    return array(x.reshape(-1))


def spelt(dtype: torch.dtype) -> str:
    """A dtype as torch names it."""
    return str(dtype).removeprefix("torch.")


def norm(x: Tensor) -> float:
    """The root of the sum of squares, also where these are below what float64 holds."""
    largest = float(x.abs().max()) if x.numel() else 0.0
    return largest * float((x / largest).norm()) if largest else 0.0


def differing(x: Tensor, y: Tensor) -> Tensor:
    """Where two tensors of one shape have other values; zeros of two signs are two values, and NaN is one."""
    x, y = (wide(t).resolve_conj() if floating(t) else t for t in (x, y))
    if x.is_complex() or y.is_complex():
        return differing(x.real, y.real) | differing(x.imag, y.imag)
    return ((x != y) & ~((x != x) & (y != y))) | ((x == 0) & (x.signbit() != y.signbit()))


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether all values are the same; a NaN is as any other."""
    return x.shape == y.shape and not bool(differing(x, y).any())
