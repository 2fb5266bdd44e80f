"""What computes a product: arrays and numba's kernels on the CPU, or tensors and :mod:`fplab.nn.device` on a GPU.

Both give the same bits; no GPU has run the second yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ... import scaled
from ...errors import LabError
from ...floats import quantize
from ...formats import Format, Rounding
from ...scaled.result import values_of
from ...tensorcore import accumulators
from ...tensorcore import products as tensorcore
from ...tensorcore.models import Model
from ...tensorcore.operands import nan_bits, rounded
from ...tensorcore.plan import ONE_CHAIN, Plan
from .. import bits, device
from ..device import products, running, scaling
from ..recipes import Operand

Numbers = Any  # an array, or a tensor on a GPU
Pair = tuple[Numbers, Numbers]


class Host:
    """Arrays and numba's kernels."""

    def numbers(self, tensor: torch.Tensor) -> Numbers:
        """The values of a tensor of float32 or float64."""
        return bits.array(tensor)

    def half(self, tensor: torch.Tensor, dtype: torch.dtype, model: Model | None) -> Numbers:
        """The values of a float32 tensor rounded to a half, or, where a product of ``model`` rounds, as they are."""
        if model is not None and tensorcore.rounds(model):
            return self.numbers(tensor)
        return self.numbers(tensor.to(dtype).to(torch.float32))

    def tensor(self, x: Numbers) -> torch.Tensor:
        return torch.from_numpy(x)

    def rounded(self, x: Numbers, form: Format, rounding: Rounding) -> Numbers:
        """To a format of more than 8 bits."""
        return rounded(x.reshape(-1), form, rounding).reshape(x.shape)

    def stored(self, x: Numbers, fmt: str, overflow: str | None = None) -> Numbers:
        """Rounded to nearest."""
        return np.asarray(quantize(x, fmt, overflow=overflow))

    def times(self, x: Numbers, factor: float) -> Numbers:
        """Times an FP32 number, in the format of ``x``."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return x * x.dtype.type(factor)

    def divided(self, x: Numbers, divisor: float) -> Numbers:
        """Divided by an FP32 number."""
        with np.errstate(all="ignore"):
            return x / np.float32(divisor)

    def shifted(self, x: Numbers, exponent: int) -> Numbers:
        """Times a power of two, rounded once, whatever it is."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.ldexp(x, exponent)

    def multiply(
        self, model: Model, x: Numbers, y: Numbers, plan: Plan = ONE_CHAIN, scales: Pair | None = None,
        below: bool = False,
    ) -> Numbers:  # fmt: skip
        """The accumulator's values; ``below``: what lies above a result's diagonal may be +0 where it is finite."""
        return tensorcore.multiply(model, x, y, plan, scales, below=below)

    def epilogue(self, model: Model, result: Numbers, c: torch.Tensor | None, alpha: float, beta: float) -> Numbers:
        """``alpha * result + beta * c``: beta * c rounded, then one fused multiply-add, in the accumulator's format."""
        return accumulators.of(model).epilogue(result, None if c is None else bits.values(c), alpha, beta, model)

    def values(self, codes: torch.Tensor, form: Format) -> Numbers:
        """What codes (uint8) stand for, float32."""
        return values_of(bits.array(codes), form)

    def scaled_product(self, model: Model, x: Numbers, y: Numbers, plan: Plan, scales: Pair | None) -> Numbers:
        """A product with block scales, if any, which are looked at."""
        left, right = scales or (None, None)
        return tensorcore.matmul(x, y, gpu=model, plan=plan, scale_a=left, scale_b=right)

    def by_blocks(self, model: Model, x: Numbers, y: Numbers, left: Numbers, right: Numbers, length: int) -> Numbers:
        """Every ``length`` of K scaled and summed in FP32 outside of the unit."""
        return tensorcore.multiply_blocks(model, x, y, left, right, length)

    def settled(self, result: Numbers, model: Model) -> Numbers:
        """Results with the NaN that the model has."""
        result.view(np.uint32)[np.isnan(result)] = nan_bits(model)
        return result

    def factored(self, result: Numbers, factors: Sequence[Numbers], model: Model) -> Numbers:
        """A finished product times factors, one after the other, each product rounded to FP32; NaN is the unit's."""
        with np.errstate(all="ignore"):
            for factor in factors:
                result = result * factor
        return self.settled(result, model)

    def largest(self, x: Numbers) -> float:
        """The largest magnitude."""
        return float(np.abs(x).max(initial=0))

    def array(self, x: Numbers) -> Numbers:
        """As an array, or as codes and scales in arrays."""
        return x

    def hadamard(self, x: Numbers, axis: int, operand: Operand, dtype: str) -> Numbers:
        """Blocks along an axis, -1 or -2, transformed as an operand says, in a format; a ragged end is filled up."""
        ragged = [(0, 0)] * x.ndim
        ragged[axis] = (0, -x.shape[axis] % operand.hadamard)
        return scaled.hadamard(np.pad(x, ragged), axis, size=operand.hadamard, signs=operand.signs, dtype=dtype)

    def quantized(self, x: Numbers, *args: Any, **options: Any) -> Numbers:
        """As codes and scales, see :func:`fplab.scaled.quantize`."""
        return scaled.quantize(x, *args, **options)


class Gpu(Host):
    """Tensors, and the kernels of :mod:`fplab.nn.device`."""

    def numbers(self, tensor: torch.Tensor) -> Numbers:
        return tensor

    def half(self, tensor: torch.Tensor, dtype: torch.dtype, model: Model | None) -> Numbers:
        return tensor.to(dtype).to(torch.float32)

    def tensor(self, x: Numbers) -> torch.Tensor:
        result: torch.Tensor = x
        return result

    def rounded(self, x: Numbers, form: Format, rounding: Rounding) -> Numbers:
        return device.quantize(x, form, rounding)

    def stored(self, x: Numbers, fmt: str, overflow: str | None = None) -> Numbers:
        return device.quantize(x, fmt, overflow=overflow)

    def times(self, x: Numbers, factor: float) -> Numbers:
        return x * factor

    def divided(self, x: Numbers, divisor: float) -> Numbers:
        return x / torch.full_like(x, divisor)  # torch multiplies by 1 / a number

    def shifted(self, x: Numbers, exponent: int) -> Numbers:
        return torch.ldexp(x.double(), torch.tensor(exponent, device=x.device)).to(x.dtype)

    def multiply(
        self, model: Model, x: Numbers, y: Numbers, plan: Plan = ONE_CHAIN, scales: Pair | None = None,
        below: bool = False,
    ) -> Numbers:  # fmt: skip
        words = None
        if scales is not None:
            left, right = scales
            words = (products.packed(left, "scale_a", tuple(left.shape), model, x),
                     products.packed(right, "scale_b", tuple(right.shape), model, y))  # fmt: skip
        return products.multiply(model, x, y, plan, words)

    def epilogue(self, model: Model, result: Numbers, c: torch.Tensor | None, alpha: float, beta: float) -> Numbers:
        if model.output == "fp16" and (alpha != 1 or (c is not None and beta != 1)):
            raise LabError(
                f"alpha={alpha!r}, beta={beta!r} with sums in FP16 are not computed on a GPU; use accumulate='fp32', "
                "or the CPU."
            )
        return products.epilogue(model, result, c, alpha, beta)

    def values(self, codes: torch.Tensor, form: Format) -> Numbers:
        table = torch.from_numpy(values_of(np.arange(1 << form.bits), form)).to(codes.device)
        return table[codes.long()]

    def scaled_product(self, model: Model, x: Numbers, y: Numbers, plan: Plan, scales: Pair | None) -> Numbers:
        return self.multiply(model, x, y, plan, scales)

    def by_blocks(self, model: Model, x: Numbers, y: Numbers, left: Numbers, right: Numbers, length: int) -> Numbers:
        total = torch.zeros((*x.shape[:-1], y.shape[-1]), device=x.device)
        for n, k in enumerate(range(0, x.shape[-1], length)):
            part = products.multiply(model, x[..., k : k + length], y[..., k : k + length, :])
            total = products.fused(left[..., n, None] * right[..., None, n, :], part, total)
        return self.settled(total, model)

    def settled(self, result: Numbers, model: Model) -> Numbers:
        return products.settled(result, model)

    def largest(self, x: Numbers) -> float:
        return float(x.abs().max()) if x.numel() else 0.0

    def array(self, x: Numbers) -> Numbers:
        return x.cpu().numpy() if isinstance(x, torch.Tensor) else x.on_host()

    def hadamard(self, x: Numbers, axis: int, operand: Operand, dtype: str) -> Numbers:
        ragged = (0, -x.shape[axis] % operand.hadamard)
        x = torch.nn.functional.pad(x, (0, 0, *ragged) if axis == -2 else ragged)
        return scaling.hadamard(x, axis, operand.hadamard, operand.signs, dtype)

    def quantized(self, x: Numbers, *args: Any, **options: Any) -> Numbers:
        return device.quantize_scaled(x, *args, **options)


HOST, GPU = Host(), Gpu()


def backend_of(tensor: torch.Tensor) -> Host:
    """What computes a tensor's products."""
    return GPU if running.takes(tensor) else HOST


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its history, which must be on the CPU or on a GPU that kernels are launched on."""
    if tensor.device.type != "cpu" and not running.takes(tensor):
        raise LabError(
            f"a product of tensors on {tensor.device}; emulation runs on the CPU and on CUDA: move the model there."
        )
    return tensor.detach()


def on_cpu(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """A tensor without its history, which must be on the CPU."""
    if backend_of(tensor) is GPU or tensor.device.type != "cpu":
        raise LabError(f"{what} of tensors on {tensor.device} are not emulated there; move the model to the CPU.")
    return tensor.detach()


def unscaled(backend: Host, result: Numbers, left: float, right: float) -> Numbers:
    """A product divided by the scales of its operands: times their rounded reciprocals' product, in FP32.

    Powers of two are exact, also where the factor itself would be too large or too small for FP32.
    """
    if left == right == 1:
        return result
    (x, i), (y, j) = math.frexp(left), math.frexp(right)
    if x == y == 0.5:
        return backend.shifted(result, 2 - i - j)
    with np.errstate(over="ignore", under="ignore"):
        return backend.times(result, float((np.float32(1) / np.float32(left)) * (np.float32(1) / np.float32(right))))
