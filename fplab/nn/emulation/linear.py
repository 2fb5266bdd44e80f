"""Linear layers: a layer as one node of the graph, in the bits of the operations that torch composes it of.

Taken apart, a layer is three operations forward and seven backward, each of which passes through autograd, the modes
and Python: most of a small net's step. What somebody watches, scales or differentiates twice is taken apart as before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ...tensorcore import accumulators
from ...tensorcore import products as tensorcore
from ...tensorcore.models import Model
from ..bits import memory, values
from . import crowd
from .aside import bare
from .multiply import Products
from .report import Shape
from .where import HOST, of

Array = np.ndarray[Any, Any]
Tensor = torch.Tensor
Maybe = Tensor | None
Apart = Callable[[Products, Tensor], AbstractContextManager[None] | None]
KINDS = (torch.Tensor, torch.nn.Parameter)  # and no class of someone's own


def is_plain(x: Any) -> bool:
    """Whether a tensor is dense memory of the CPU's, whose products are computed here."""
    return (
        type(x) in KINDS
        and x.is_cpu
        and of(x) is HOST
        and x.layout is torch.strided
        and not (x.is_nested or x.is_neg())
    )


def takes(x: Any, weight: Any, bias: Any = None) -> bool:
    """Whether the arguments of ``torch.nn.functional.linear`` lie row by row in memory, and fit."""
    if not (is_plain(x) and is_plain(weight) and (bias is None or is_plain(bias))):
        return False
    if x.dim() not in (2, 3) or weight.dim() != 2 or x.dtype != weight.dtype or not x.numel() or not weight.numel():
        return False
    n, k = weight.shape
    return (
        x.shape[-1] == k
        and (bias is None or (bias.shape == (n,) and bias.dtype == x.dtype))
        and x.stride()[-2:] == weight.stride() == (k, 1)
        and (x.dim() == 2 or x.is_contiguous())
        and not torch.is_autocast_enabled("cpu")
        and forward_ad._current_level < 0
    )


class Layer:
    """One call of a layer: where its products belong, and the model of all three.

    ``apart``: given the gradient in a backward pass, a context in which its products are operations that somebody wants
    to see, or None where nobody does.
    """

    def __init__(self, products: Products, model: Model, dtype: torch.dtype, biased: bool, apart: Apart) -> None:
        self.products, self.model, self.dtype, self.biased, self.apart = products, model, dtype, biased, apart
        narrow = dtype == torch.float32
        self.as_they_are = narrow and tensorcore.rounds(model)
        self.as_stored = narrow and products.settings.store is None
        self.values = memory if narrow else values

    def rounded(self, x: Tensor) -> Array:
        """An operand in the unit's format, or as it is where products round operands themselves."""
        return memory(x) if self.as_they_are else self.products.rounded(x, self.model.a)

    def product(self, phase: str, operation: str, a: Tensor, b: Tensor, bias: Maybe = None) -> Tensor:
        """``a @ b`` (M, K) by (K, N), with a bias (N,) in the epilogue, stored and counted."""
        crowd.hold()
        products, model, (m, k), n = self.products, self.model, a.shape, b.shape[1]
        found = tensorcore.multiply(model, self.rounded(a), self.rounded(b), products.choice.plan.of(m))
        if bias is not None:
            found = accumulators.of(model).epilogue(found, self.values(bias), 1.0, 1.0, model)
        with products.run.places.lock:
            products.log.product(products.place.layer, phase, operation, model, Shape(1, m, k, n))
        result = torch.from_numpy(found)
        return result if self.as_stored else products.stored(result, self.dtype)


class Linear(torch.autograd.Function):
    """``x @ weight.T + bias`` for x (..., M, K), bias (N,) and weight (N, K).

    A gradient is ready in the order of the arguments, of which a bucket of DistributedDataParallel's is filled, and a
    bias's comes before a weight's where torch composes a layer: by it gloo adds the ranks' gradients.
    """

    @staticmethod
    def forward(ctx: Any, layer: Layer, x: Tensor, bias: Maybe, weight: Tensor) -> Tensor:
        _, of_x, _, of_weight = ctx.needs_input_grad
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        with bare():
            operation = "addmm" if layer.biased else "mm"
            found = layer.product("forward", operation, x.reshape(-1, x.shape[-1]), weight.t(), bias)
            return found.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Maybe) -> tuple[Maybe, ...]:
        if gradient is None:
            return None, None, None, None
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        apart = layer.apart(layer.products, gradient)
        multiply = partial(layer.product, "backward", "mm") if apart is None else torch.mm
        with apart or bare():
            rows = gradient.reshape(-1, gradient.shape[-1])
            x = None if x is None else x.reshape(-1, x.shape[-1])
            of_weight = multiply(rows.t(), x) if x is not None and not layer.biased else None  # of mm it comes first
            of_x = None if weight is None else multiply(rows, weight).view(*gradient.shape[:-1], -1)
            if x is not None and layer.biased:
                of_weight = multiply(rows.t(), x)
            return None, of_x, rows.sum(0) if ctx.needs_input_grad[2] else None, of_weight


def linear(layer: Layer, x: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
    """``torch.nn.functional.linear`` of arguments that :func:`takes` says yes to."""
    found: Tensor = super(torch.autograd.Function, Linear).apply(layer, x, bias, weight)  # hooked by nobody
    return found
