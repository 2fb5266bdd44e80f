"""The operations of a step: by the lab's kernels on numpy arrays, and by torch on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LabOps:
    """float16 and float32 arrays: FP16 by the lab's kernels, products with the bits of a GPU.

    ``plan``: another order of k than one chain.
    """

    gpu: str
    plan: Any = None

    def product(self, a: Array, b: Array) -> Array:
        """(M, K) and (K, N) float16 give (M, N) float16."""
        from ... import tensorcore

        x, y = a.astype(np.float32), b.astype(np.float32)
        return _half(tensorcore.matmul(x, y, gpu=self.gpu, inputs="fp16", store="fp16", plan=self.plan))

    def turned(self, x: Array) -> Array:
        """The transpose."""
        return np.ascontiguousarray(x.T)

    def half(self, x: Array) -> Array:
        """The cast to FP16."""
        from ...floats import quantize

        return _half(quantize(x, "fp16"))

    def single(self, x: Array) -> Array:
        """The cast to FP32."""
        return x.astype(np.float32)

    def add(self, a: Array, b: Array) -> Array:
        """The sum."""
        return _rounded_once("add", a, b)

    def subtract(self, a: Array, b: Array) -> Array:
        """The difference."""
        return _rounded_once("sub", a, b)

    def times(self, x: Array, factor: float) -> Array:
        """The product with a number."""
        return _rounded_once("mul", x, np.full_like(x, factor))

    def where_positive(self, z: Array, x: Array) -> Array:
        """``x`` where ``z`` > 0, else +0."""
        return np.where(z > 0, x, x.dtype.type(0))

    def finite(self, x: Array) -> bool:
        """Whether every element is finite."""
        return bool(np.isfinite(x).all())


def _rounded_once(name: str, a: Array, b: Array) -> Array:
    """One operation: FP16 by the lab's kernel; FP32 by numpy, whose float32 arithmetic is IEEE 754's."""
    if a.dtype == np.float16:
        from ... import arithmetic

        return _half(getattr(arithmetic, name)(a, b, "fp16"))
    assert a.dtype == b.dtype == np.float32
    with np.errstate(all="ignore"):
        return np.asarray({"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](a, b))


def _half(values: Any) -> Array:
    """float32 values that FP16 holds as float16."""
    return np.asarray(values, np.float32).astype(np.float16)


@dataclass(frozen=True)
class TorchOps:
    """torch's own operations, each a call of its own; ``stand_in`` supplies products where there is no such unit."""

    stand_in: Callable[[Any, Any], Any] | None = None

    def product(self, a: Any, b: Any) -> Any:
        """``torch.matmul`` of half tensors."""
        return a @ b if self.stand_in is None else self.stand_in(a, b)

    def turned(self, x: Any) -> Any:
        """The transpose, a view."""
        return x.t()

    def half(self, x: Any) -> Any:
        """``Tensor.half``."""
        return x.half()

    def single(self, x: Any) -> Any:
        """``Tensor.float``."""
        return x.float()

    def add(self, a: Any, b: Any) -> Any:
        """``torch.add``."""
        return a + b

    def subtract(self, a: Any, b: Any) -> Any:
        """``torch.sub``."""
        return a - b

    def times(self, x: Any, factor: float) -> Any:
        """``torch.mul`` with a number."""
        return x * factor

    def where_positive(self, z: Any, x: Any) -> Any:
        """``torch.where`` with a zero of x's format."""
        return x.where(z > 0, x.new_zeros(()))

    def finite(self, x: Any) -> bool:
        """Whether every element is finite."""
        return bool(x.isfinite().all())


def lab_product(gpu: str) -> Callable[[Any, Any], Any]:
    """A product of half CPU tensors by the lab's model of a GPU."""
    ops = LabOps(gpu)

    def product(a: Any, b: Any) -> Any:
        import torch

        return torch.from_numpy(ops.product(a.numpy(), np.ascontiguousarray(b.numpy())))

    return product
