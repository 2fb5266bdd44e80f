"""What :mod:`.scaled_products` does to arrays, for tensors on a GPU: the same bits, by :mod:`fplab.nn.device`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...scaled import Scaled
from ...tensorcore.models import Model
from ...tensorcore.plan import ONE_CHAIN, Plan
from ..device import products
from ..device.rounding import quantize
from ..device.scaling import ScaledTensor, quantize_scaled
from ..recipes import Operand
from .scaled_products import demand_one_chain, promoted

f32 = np.float32


def quantized(
    x: torch.Tensor, operand: Operand, axis: int, seed: int, amax: float | None = None, dtype: str = "fp32",
    seen: Callable[[Any, Scaled], None] | None = None,
) -> ScaledTensor:  # fmt: skip
    """An operand as codes and scales along K, as :func:`.scaled_products.quantized`."""
    if operand.hadamard:
        ragged = (0, -x.shape[axis] % operand.hadamard)
        x = torch.nn.functional.pad(x, (0, 0, *ragged) if axis == -2 else ragged)
        x = hadamard(x, axis, operand.hadamard, operand.signs, dtype)
    given: dict[str, Any] = {"seed": seed} if operand.rounding == "stochastic" else {}
    found = quantize_scaled(x, operand.record, axis, rounding=operand.rounding, amax=amax, dtype=dtype, **given)
    if seen is not None:
        seen(x.cpu().numpy(), found.on_host())
    return found


def hadamard(x: torch.Tensor, axis: int, size: int, signs: Any, dtype: str) -> torch.Tensor:
    """:func:`fplab.scaled.hadamard`: butterflies in FP64, rounded once."""
    moved = x.movedim(axis, -1)
    ones = torch.from_numpy(np.resize(np.asarray(signs), size).astype(np.float64)).to(x.device)
    part = moved.double().unflatten(-1, (-1, size)) * ones
    step = 1
    while step < size:
        one, other = part.unflatten(-1, (-1, 2, step)).unbind(-2)
        part, step = torch.stack([one + other, one - other], -2).flatten(-3), 2 * step
    part = (part * (1 / math.sqrt(size))).flatten(-2)
    found = part.float() if dtype == "fp32" else quantize(_to_odd(part), dtype)
    return found.movedim(-1, axis)


def _to_odd(x: torch.Tensor) -> torch.Tensor:
    """Float64 as float32 that rounds on as it does: what lies between two has the odd one's bits."""
    bits = x.float().view(torch.int32)
    wide = bits.view(torch.float32).double()
    below = torch.where(wide.abs() > x.abs(), bits - 1, bits)
    return torch.where((wide != x) & x.isfinite(), below | 1, bits).view(torch.float32)


def multiply(
    model: Model, a: ScaledTensor, b: ScaledTensor, promote: int | None = None, plan: Plan = ONE_CHAIN
) -> tuple[torch.Tensor, float]:
    """``a @ b``, not stored, and the factor that is left, as :func:`.scaled_products.multiply`."""
    x, y = a.elements(), b.elements()
    if not (x.numel() and y.numel()):
        return products.multiply(model, x, y, plan), 1.0
    blocks = a.scheme.block
    if a.scheme.kind == "fp32" and not isinstance(blocks, str):
        demand_one_chain(plan)
        return by_blocks(model, x, y, a.scale_values(True), b.scale_values(True), blocks[1]), 1.0
    scales = None
    if model.scale:
        left, right = a.scale_values(True), b.scale_values(True)
        scales = (products.packed(left, "scale_a", tuple(left.shape), model, x),
                  products.packed(right, "scale_b", tuple(right.shape), model, y))  # fmt: skip
    result = products.multiply(model, x, y, promoted(plan, promote, model), scales)
    factors = _factors(a, b)
    if len(factors) == 1 and factors[0].numel() == 1:
        return result, float(factors[0])
    return factored(result, factors, model), 1.0


def factored(result: torch.Tensor, factors: Sequence[torch.Tensor], model: Model) -> torch.Tensor:
    """A finished product times factors, one after the other; NaN is the unit's."""
    for factor in factors:
        result = result * factor
    return products.settled(result, model)


def by_blocks(
    model: Model, x: torch.Tensor, y: torch.Tensor, left: torch.Tensor, right: torch.Tensor, length: int
) -> torch.Tensor:
    """Every ``length`` of K scaled and summed in FP32 outside of the unit."""
    total = torch.zeros((*x.shape[:-1], y.shape[-1]), device=x.device)
    for n, k in enumerate(range(0, x.shape[-1], length)):
        part = products.multiply(model, x[..., k : k + length], y[..., k : k + length, :])
        total = products.fused(left[..., n, None] * right[..., None, n, :], part, total)
    return products.settled(total, model)


def _factors(a: ScaledTensor, b: ScaledTensor) -> list[torch.Tensor]:
    """What a finished product is multiplied by, one after the other."""
    if a.amax is not None and b.amax is not None:
        if a.scheme.variant == "torchao":
            one, other = (torch.full_like(a.amax, x.scheme.top) for x in (a, b))  # torch multiplies by 1 / a number
            return [(a.amax / one) * (b.amax / other)]
        return [(a.amax * b.amax) * float(f32(1 / (a.scheme.top * b.scheme.top)))]
    if a.scheme.kind != "fp32":
        return []
    if a.scheme.block == b.scheme.block == "tensor":
        return [a.scales * b.scales]
    return [a.scales, b.scales]


def dequantized(model: Model, a: ScaledTensor, b: ScaledTensor, plan: Plan = ONE_CHAIN) -> torch.Tensor:
    """``a @ b`` for a GPU without their unit, as :func:`.scaled_products.dequantized`."""
    x, y = (quantize(q.dequantize(), fmt) for q, fmt in ((a, model.a), (b, model.b)))
    return products.multiply(model, x, y, plan)
