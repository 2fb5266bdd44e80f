"""Outlier features planted in a trained transformer without changing what it computes, and what INT8 makes of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from ..frame import Params

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...training.tasks import Task

    Reading = tuple[nn.Linear, Tensor]  # a layer that reads a norm, and its input

GAIN = 16.0  # a power of two: products with it and with its inverse are exact
SKIP = ("head",)  # as the paper's library leaves the last layer


def outlier_dimensions(width: int, n: int) -> list[int]:
    """``n`` feature dimensions spread over ``width``, the first of them the same for every larger ``n``.

    >>> outlier_dimensions(64, 3)
    [5, 44, 19]
    """
    return [(5 + 39 * i) % width for i in range(n)]


def norms_and_readers(model: Any) -> list[tuple[nn.LayerNorm, nn.Linear]]:
    """Each layer norm inside a block with the linear layer that alone reads it."""
    pairs = []
    for block in model.blocks:
        pairs += [(block.norm1, block.attention.qkv), (block.norm2, block.up)]
    return pairs


def planted(model: nn.Module, n: int, gain: float = GAIN) -> nn.Module:
    """A copy with ``n`` outlier dimensions in every block: the norm's output ``gain`` times, the weights a ``gain``-th.

    With a power of two, every product and every sum of the layer that reads is the same, bit for bit.
    """
    import torch

    result = copy.deepcopy(model)
    with torch.no_grad():
        for norm, reader in norms_and_readers(result):
            at = outlier_dimensions(norm.weight.numel(), n)
            norm.weight[at] *= gain
            norm.bias[at] *= gain
            reader.weight[:, at] /= gain
    return result


def readers(model: nn.Module, tokens: Tensor) -> list[Reading]:
    """The layers that read a norm, each with its input in a pass over ``tokens``: float32 (positions, width)."""
    import torch

    readings: list[Reading] = []

    def keep(linear: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        readings.append((linear, inputs[0].detach().flatten(0, -2).clone()))  # type: ignore[arg-type]

    with ExitStack() as hooks, torch.no_grad():
        for _, reader in norms_and_readers(model):
            hooks.enter_context(reader.register_forward_pre_hook(keep))
        model(tokens)
    return readings


def task_of(p: Params) -> Task:
    from ...training import tasks

    return tasks.characters(width=p.width, layers=p.layers, heads=p.heads, context=p.context, batch=p.batch)


def trained(p: Params, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The transformer after its training, and held-out windows with the characters that follow, int64 (windows, t)."""
    import torch

    task = task_of(p)
    model = task.model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=p.lr, weight_decay=0.01)
    for step, batch in enumerate(task.batches(seed, p.steps)):
        optimizer.param_groups[0]["lr"] = p.lr * min(1.0, (step + 1) / 20)
        loss = task.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    held_out = [torch.cat(parts)[: p.windows] for parts in zip(*task.held_out(), strict=True)]
    return model.eval(), held_out[0], held_out[1]


def logits_and_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> tuple[np.ndarray, float]:
    """The logits, float32 (positions, characters), and their mean cross-entropy in nats, summed in float64."""
    import torch

    with torch.no_grad():
        logits = model(tokens).flatten(0, -2)
        return logits.numpy(), float(torch.nn.functional.cross_entropy(logits.double(), targets.flatten()))


def divergence(reference: np.ndarray, other: np.ndarray) -> float:
    """The mean Kullback-Leibler divergence of the predicted distribution from the FP32 model's, in nats."""
    shifted = [x.astype(np.float64) - x.max(axis=-1, keepdims=True) for x in (reference, other)]
    p, q = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in shifted)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def product_error(reading: list[Reading], exact: list[Tensor], method: str, threshold: float = 6.0) -> float:
    """The error of the products that read outliers in INT8 by a method."""
    from ...nn import Int8Linear

    return relative_error([Int8Linear(linear, method, threshold) for linear, _ in reading], reading, exact)


def relative_error(layers: list[Any], reading: list[Reading], exact: list[Tensor]) -> float:
    """The error of layers' products, without a bias, relative to exact ones (Frobenius), averaged over layers."""
    errors = []
    for layer, (_, x), want in zip(layers, reading, exact, strict=True):
        layer.bias = None
        errors.append(float((layer(x) - want).norm() / want.norm()))
    return float(np.mean(errors))


# --- the same by another route ----------------------------------------------------------------------------------
Layers = Callable[[Any, Any, Any], Any]  # of a linear layer, its inputs and its bias or None


def counted(model: Any, layers: Layers, tokens: Any, targets: Any) -> tuple[float, float, float]:
    """Error of the products that read a norm, loss and divergence, where ``layers`` compute what linear ones do."""
    import torch

    linears = [x for name, x in model.named_modules() if isinstance(x, torch.nn.Linear) and name not in SKIP]
    reading = {reader for _, reader in norms_and_readers(model)}
    errors, logits = [], []

    def kept(linear: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if linear in reading:
            exact = inputs[0].double() @ linear.weight.double().T
            errors.append(float((layers(linear, inputs[0], None) - exact).norm() / exact.norm()))

    def replaced(linear: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        return layers(linear, inputs[0], linear.bias)

    for hook in (kept, replaced):
        with ExitStack() as hooks, torch.no_grad():
            for linear in linears:
                hooks.enter_context(linear.register_forward_hook(hook))
            logits.append(model(tokens).flatten(0, -2).double().log_softmax(1))
    fp32, narrow = logits
    loss = -narrow[torch.arange(len(narrow)), targets.flatten()].mean()
    return float(np.mean(errors)), float(loss), float((fp32.exp() * (fp32 - narrow)).sum(1).mean())
