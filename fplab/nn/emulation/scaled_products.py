"""One product of two quantised matrices in a GPU's bits: which unit takes them, and where their scales enter.

* Scales that the unit takes (E8M0, E4M3 for blocks: Blackwell) are part of its sums.
* FP32 scales of blocks are applied outside, to the unit's sum of each block (Hopper's "promoted" product).
* What is left are FP32 factors of the finished product. Of rows and columns one after the other, the rows' first, and
  a bias after them, as CUTLASS's epilogue for ``torch._scaled_mm`` does. Of tensors it is one: the product of both,
  rounded once, or NVFP4's (amax of a * amax of b) * fl(1 / 2688**2), left to right; a bias is added to it by one fused
  multiply-add, as for alpha.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ...errors import LabError
from ...formats import Rounding, get
from ...scaled import Scaled, Scheme
from ...tensorcore.gpus import SCALED
from ...tensorcore.models import Model
from ...tensorcore.plan import ONE_CHAIN, Plan
from ..recipes import Operand
from .backends import Host, Numbers

f32 = np.float32


def quantized(
    backend: Host, x: Numbers, operand: Operand, axis: int, seed: int, amax: float | None = None, dtype: str = "fp32",
    seen: Callable[[Any, Scaled], None] | None = None,
) -> Numbers:  # fmt: skip
    """An operand (..., M, K) or (..., K, N) with K at ``axis``, -1 or -2, as codes and scales along K.

    ``dtype``: the tensor's format, in which a Hadamard transform is computed, too. ``amax``: for a scale of the tensor.
    ``seen`` receives the values, transformed, and their codes.
    """
    if operand.hadamard:
        x = backend.hadamard(x, axis, operand, dtype)
    given: dict[str, Any] = {"seed": seed} if operand.rounding == "stochastic" else {}
    result = backend.quantized(x, operand.record, axis, rounding=operand.rounding, amax=amax, dtype=dtype, **given)
    if seen is not None:
        seen(backend.array(x), backend.array(result))
    return result


@lru_cache
def unit_inputs(a: Scheme, b: Scheme) -> str:
    """The unit's name of inputs of two schemes, as :func:`fplab.tensorcore.matmul` takes it."""
    both_four = a.element.bits == b.element.bits == 4
    return "*".join(dict.fromkeys(_input(scheme, both_four) for scheme in (a, b)))


def _input(scheme: Scheme, both_four: bool) -> str:
    if scheme.kind == "fp32":
        return scheme.element.name
    name = scaled_input(scheme.element.name, scheme.scale.name, int(scheme.block[1]), both_four)
    if name is None:
        raise LabError(
            f"no unit takes {scheme.name}, {scheme.element.name} with a scale of {scheme.scale.name} for each "
            f"{scheme.block}; allowed: {', '.join(SCALED)}."
        )
    return name


def scaled_input(element: str, scale: str, block: int, both_four: bool) -> str | None:
    """The unit's name of inputs of elements with a scale for each block; None where no unit takes them."""
    for name, (own, own_scale, kind) in SCALED.items():
        fits = (own, *own_scale) == (element, scale, block)
        if fits and (element != "e2m1" or both_four == (kind == "grouped")):
            return name
    return None


def multiply(
    backend: Host, model: Model, a: Numbers, b: Numbers, promote: int | None = None, plan: Plan = ONE_CHAIN
) -> tuple[Numbers, float]:
    """``a @ b`` (..., M, K) by (..., K, N), float32, not stored, and the factor that is left; NaN is the unit's."""
    x, y = a.elements(), b.elements()
    if 0 in (*x.shape, *y.shape):
        return backend.multiply(model, x, y, plan), 1.0
    blocks = a.scheme.block
    if a.scheme.kind == "fp32" and not isinstance(blocks, str):
        demand_one_chain(plan)
        return backend.by_blocks(model, x, y, a.scale_values(True), b.scale_values(True), blocks[1]), 1.0
    scales = (a.scale_values(True), b.scale_values(True)) if model.scale else None
    result = backend.multiply(model, x, y, promoted(plan, promote, model), scales)
    left = factors(backend, a, b)
    if len(left) == 1 and math.prod(left[0].shape) == 1:
        return result, float(left[0].item())
    return backend.factored(result, left, model), 1.0


def demand_one_chain(plan: Plan) -> None:
    """Raise LabError for another plan, beside FP32 scales of blocks."""
    if plan != ONE_CHAIN:
        raise LabError(f"{plan} does not go with FP32 scales of blocks, whose sums follow the blocks; leave it out.")


@lru_cache
def promoted(plan: Plan, every: int | None, model: Model) -> Plan:
    """A plan whose sums start again after ``every`` elements of k, if it has no such rule and the unit cuts sums."""
    if every and model.kept_bits < model.format_d.fraction_bits and plan.promote is None:
        return dataclasses.replace(plan, promote=every)
    return plan


def factors(backend: Host, a: Numbers, b: Numbers) -> list[Numbers]:
    """What a finished product is multiplied by, one after the other: FP32 numbers that broadcast to it."""
    with np.errstate(all="ignore"):
        if a.amax is not None and b.amax is not None:
            if a.scheme.variant == "torchao":
                return [backend.divided(a.amax, a.scheme.top) * backend.divided(b.amax, b.scheme.top)]
            return [(a.amax * b.amax) * float(f32(1 / (a.scheme.top * b.scheme.top)))]
        if a.scheme.kind != "fp32":
            return []
        if a.scheme.block == b.scheme.block == "tensor":
            return [a.scales * b.scales]
        return [a.scales, b.scales]


def dequantized(backend: Host, model: Model, a: Numbers, b: Numbers, plan: Plan = ONE_CHAIN) -> Numbers:
    """``a @ b`` for a GPU without their unit: both dequantised, rounded to the formats of ``model``, and multiplied."""
    x, y = (backend.rounded(q.dequantize(), get(fmt), Rounding.RNE) for q, fmt in ((a, model.a), (b, model.b)))
    return backend.multiply(model, x, y, plan)


def transform_format(dtype: torch.dtype) -> str:
    """The format in which a Hadamard transform of a tensor of a dtype is computed."""
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")
