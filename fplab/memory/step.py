"""A whole step of any module, on shapes alone: what it saves for the backward pass, and what lives for a moment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import LabError, summary
from ..nn.cuda_autocast import autocast
from .measuring import Tracker
from .recipes import Precision
from .tracing import on_shapes, saving


@dataclass(frozen=True)
class Step:
    """Bytes of one forward and backward pass.

    ``saved``: for the backward pass, by the loss too. ``passing``: the most at any time beyond that and what was there
    before, gradients of parameters among it. ``loss``: whether there was one; else this is of the forward pass alone.
    """

    saved: int
    passing: int
    loss: bool


def traced_step(module: nn.Module, inputs: Any, loss: Callable[[Any], Any] | None, how: Precision) -> Step:
    """A step of a module. ``inputs``: a tensor, or a tuple or dict of arguments; ``loss(output)``: gives the loss.

    Where ``loss`` is None, the output itself is the loss if it is one number, or has it as its ``.loss``.
    Weights and inputs are taken in the precision's format, BF16 where that is narrower than FP32. Where products have
    fewer bits than the weights, the pass runs under CUDA's autocast. The CPU's operations are taken, too, where a
    model asks for what the meta device does not know, such as whether a mask is all ones. torch's attention and dropout
    are a GPU's kernels everywhere, see :class:`~fplab.memory.tracing.ShapesAlone`.
    """
    named = inputs if isinstance(inputs, dict) else {}
    plain = () if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple | list) else (inputs,)
    cast = how.compute < how.weights

    def step(call: Callable[[], Any], known: list[Any], running: list[str]) -> Step:
        given = [x for x in known if isinstance(x, torch.Tensor)]
        first = len(known)
        leaves = [x for x in given if x.is_leaf and x.requires_grad]
        for x in leaves:
            x.grad = torch.empty_like(x)
        with Tracker() as tracker:
            tracker.mark([*given, *(x.grad for x in leaves if x.grad is not None)], "given")
            tracker.restart()
            before = tracker.total
            with saving(known, running) as saved_tensors, autocast("bf16", enabled=cast, product="torch"):
                output = call()
                value = _loss(output, loss)
            if value is not None:
                value.backward()
        saved = sum(storage.bytes for storage in saved_tensors())
        brought = sum(x.untyped_storage().nbytes() for x in known[first:])  # such as labels, which are the caller's
        return Step(saved, max(0, tracker.peak - before - saved - brought), value is not None)

    dtype = torch.float32 if how.weights >= 4 else torch.bfloat16
    try:
        return on_shapes(module, plain, named, "cpu" if cast else "meta", dtype, step, fused=True)
    except LabError as error:
        try:
            return on_shapes(module, plain, named, "cpu", dtype, step, fused=True)
        except LabError:
            raise error from None


def _loss(output: Any, loss: Callable[[Any], Any] | None) -> torch.Tensor | None:
    value = loss(output) if loss is not None else output if isinstance(output, torch.Tensor) else None
    if value is None and loss is None:
        value = getattr(output, "loss", None)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad:
        return value
    if loss is not None:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else summary(value)
        raise LabError(f"loss(output) gave {what}; it must give a tensor of one number with a gradient.")
    return None
