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

from ...tensorcore import accumulators, engine
from ...tensorcore import products as tensorcore
from ...tensorcore.models import Model
from ..bits import memory, values
from . import crowd
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
        """An operand in the unit's format, or as it is where products round operands themselves; its rows as (M, K)."""
        found = memory(x) if self.as_they_are else self.products.rounded(x, self.model.a)
        return found if found.ndim == 2 else found.reshape(-1, found.shape[-1])

    def product(self, phase: str, a: Array, b: Array) -> Array:
        """``a @ b`` (M, K) by (K, N), in any thread."""
        crowd.hold()
        return tensorcore.multiply(self.model, a, b, self.products.choice.plan.of(len(a)))

    def result(self, phase: str, operation: str, found: Array, k: int) -> Tensor:
        """A product (M, N) of so many columns by as many rows, stored and counted."""
        products, (m, n) = self.products, found.shape
        with products.run.places.lock:
            products.log.product(products.place.layer, phase, operation, self.model, Shape(1, m, k, n))
        result = torch.from_numpy(found)
        return result if self.as_stored else products.stored(result, self.dtype)

    def forward(self, x: Tensor, weight: Tensor, bias: Maybe) -> Tensor:
        """``x @ weight.T`` for x (..., M, K) and weight (N, K), with a bias (N,) in the epilogue."""
        found = self.product("forward", self.rounded(x), self.rounded(weight).T)
        if bias is not None:
            found = accumulators.of(self.model).epilogue(found, self.values(bias), 1.0, 1.0, self.model)
        result = self.result("forward", "addmm" if self.biased else "mm", found, x.shape[-1])
        return result if x.dim() == 2 else result.view(*x.shape[:-1], -1)

    def backward(self, gradient: Tensor, x: Maybe, weight: Maybe) -> tuple[Maybe, Maybe]:
        """The gradients of x (..., M, K) and weight (N, K), of those that are given, by that of the result."""
        settings = self.products.settings
        self.model = settings.rounded_model(self.dtype, self.products.flag) or self.model  # by torch's flags as of now
        rows = self.rounded(gradient)
        pairs = [("x", rows, weight), ("weight", rows.T, x)]
        wanted = [(name, a, self.rounded(b)) for name, a, b in pairs if b is not None]
        if not self.biased:
            wanted.reverse()  # of mm the weight's comes first
        work = [partial(self.product, "backward", a, b) for _, a, b in wanted]
        macs = rows.size * wanted[0][2].shape[1] if wanted else 0
        found = {
            name: self.result("backward", "mm", one, len(b))
            for (name, _, b), one in zip(wanted, engine.each(work, macs), strict=True)
        }
        of_x = found.get("x")
        if of_x is not None and gradient.dim() > 2:
            of_x = of_x.view(*gradient.shape[:-1], -1)
        return of_x, found.get("weight")


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
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return layer.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Maybe) -> tuple[Maybe, ...]:
        if gradient is None:
            return None, None, None, None
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        apart = layer.apart(layer.products, gradient)
        if apart is None:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                of_x, of_weight = layer.backward(gradient, x, weight)
                rows = gradient if gradient.dim() == 2 else gradient.reshape(-1, gradient.shape[-1])
                return None, of_x, rows.sum(0) if ctx.needs_input_grad[2] else None, of_weight
        with apart:
            rows = gradient.reshape(-1, gradient.shape[-1])
            x = None if x is None else x.reshape(-1, x.shape[-1])
            of_weight = torch.mm(rows.t(), x) if x is not None and not layer.biased else None  # of mm it comes first
            of_x = None if weight is None else torch.mm(rows, weight).view(*gradient.shape[:-1], -1)
            if x is not None and layer.biased:
                of_weight = torch.mm(rows.t(), x)
            return None, of_x, rows.sum(0) if ctx.needs_input_grad[2] else None, of_weight


def linear(layer: Layer, x: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
    """``torch.nn.functional.linear`` of arguments that :func:`takes` says yes to."""
    found: Tensor = super(torch.autograd.Function, Linear).apply(layer, x, bias, weight)  # hooked by nobody
    return found
