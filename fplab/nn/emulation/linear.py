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
from ...tensorcore.plan import ONE_CHAIN
from ..bits import memory
from . import openmp_threads
from .multiply import Products
from .product_log import Shape
from .settings import Rounded

Array = np.ndarray[Any, Any]
Tensor = torch.Tensor
Maybe = Tensor | None
Apart = Callable[[Products, Tensor], AbstractContextManager[None] | None]
KINDS = (torch.Tensor, torch.nn.Parameter)  # and no class of someone's own


def are_plain(*tensors: Any) -> bool:
    """Whether tensors are dense memory of the CPU's, whose products are computed here."""
    for x in tensors:
        if type(x) not in KINDS or not x.is_cpu or x.layout is not torch.strided or x.is_nested or x.is_neg():
            return False
    return True


def takes(x: Any, weight: Any, bias: Any = None) -> bool:
    """Whether the arguments of ``torch.nn.functional.linear`` lie row by row in memory, and fit."""
    if not (are_plain(x, weight) if bias is None else are_plain(x, weight, bias)):
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

    def __init__(self, products: Products, rounded: Rounded, dtype: torch.dtype, biased: bool, apart: Apart) -> None:
        self.products, self.dtype, self.biased, self.apart = products, dtype, biased, apart
        self.model, as_they_are = rounded
        self.as_stored = dtype == torch.float32 and products.settings.store is None
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.read = memory if as_they_are else self._rounded

    def _rounded(self, x: Tensor) -> Array:
        """An operand in the unit's format."""
        return self.products.rounded(x, self.model.a)

    def rows(self, x: Tensor) -> Array:
        """An operand as products take it, its rows as (M, K)."""
        result = self.read(x.to(self.wide))
        return result if result.ndim == 2 else result.reshape(-1, result.shape[-1])

    def backward_product(self, a: Array, b: Array) -> Array:
        """``a @ b`` (M, K) by (K, N), in any thread."""
        openmp_threads.hold_team()
        return tensorcore.multiply(self.model, a, b, self.products.choice.plan.of(len(a)))

    def result(self, phase: str, operation: str, found: Array, k: int) -> Tensor:
        """A product (M, N) of so many columns by as many rows, stored and counted."""
        products, (m, n) = self.products, found.shape
        with products.run.sites.lock:
            products.log.product(products.site.layer, phase, operation, self.model, Shape(1, m, k, n))
        result = torch.from_numpy(found)
        return result if self.as_stored else products.stored(result, self.dtype)

    def backward(self, gradient: Tensor, x: Maybe, weight: Maybe) -> tuple[Maybe, Maybe]:
        """The gradients of x (..., M, K) and weight (N, K), of those that are given, by that of the result."""
        settings = self.products.settings
        if (now := settings.rounded_model(self.dtype, self.products.flag)) is not None:  # by torch's flags as of now
            self.model, as_they_are = now
            self.read = memory if as_they_are else self._rounded
        rows = self.rows(gradient)
        pairs = [("x", rows, weight), ("weight", rows.T, x)]
        wanted = [(name, a, self.rows(b)) for name, a, b in pairs if b is not None]
        if not self.biased:
            wanted.reverse()  # of mm the weight's comes first
        work = [partial(self.backward_product, a, b) for _, a, b in wanted]
        macs = rows.size * wanted[0][2].shape[1] if wanted else 0
        result = {
            name: self.result("backward", "mm", one, len(b))
            for (name, _, b), one in zip(wanted, engine.each(work, macs), strict=True)
        }
        of_x = result.get("x")
        if of_x is not None and gradient.dim() > 2:
            of_x = of_x.view(*gradient.shape[:-1], -1)
        return of_x, result.get("weight")


class Linear(torch.autograd.Function):
    """``x @ weight.T + bias`` for x (..., M, K), bias (N,), added in the epilogue, and weight (N, K).

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
            a, b = layer.read(x.to(layer.wide)), layer.read(weight.to(layer.wide))
            a, plan = a if a.ndim == 2 else a.reshape(-1, a.shape[-1]), layer.products.choice.plan
            found = tensorcore.multiply(layer.model, a, b.T, plan if plan is ONE_CHAIN else plan.of(len(a)))
            if bias is not None:
                row = memory(bias.to(layer.wide))
                found = accumulators.of(layer.model).epilogue(found, row, 1.0, 1.0, layer.model)
            result = layer.result("forward", "addmm" if layer.biased else "mm", found, x.shape[-1])
            return result if x.dim() == 2 else result.view(*x.shape[:-1], -1)

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


apply_linear = super(torch.autograd.Function, Linear).apply
"""Of a layer, x, bias and weight that :func:`takes` says yes to; hooked by nobody."""
