"""Outlier features planted in a trained transformer without changing what it computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

GAIN = 16.0  # a power of two: products with it and with its inverse are exact


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


def readers(model: nn.Module, tokens: Tensor) -> list[tuple[nn.Linear, Tensor]]:
    """The layers that read a norm, each with its input in a pass over ``tokens``: float32 (positions, width)."""
    import torch

    found: list[tuple[nn.Linear, Tensor]] = []

    def keep(linear: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append((linear, inputs[0].detach().flatten(0, -2).clone()))  # type: ignore[arg-type]

    handles = [reader.register_forward_pre_hook(keep) for _, reader in norms_and_readers(model)]
    with torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()
    return found


def untrained(params: Any, seed: int = 0) -> nn.Module:
    """The transformer before its training."""
    model: nn.Module = _task(params).model(seed)
    return model


def _task(params: Any) -> Any:
    from ...training import tasks

    sizes = {"width": params.width, "layers": params.layers, "heads": params.heads}
    return tasks.characters(**sizes, context=params.context, batch=params.batch)


def trained(params: Any, seed: int, tick: Callable[[float, str], None]) -> tuple[nn.Module, Tensor, Tensor]:
    """The transformer after its training, and held-out windows with the characters that follow, int64 (windows, t)."""
    import torch

    from ...training.loop import one_thread

    task, model = _task(params), untrained(params, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.lr, weight_decay=0.01)
    with one_thread():
        for step, batch in enumerate(task.batches(seed, params.steps)):
            optimizer.param_groups[0]["lr"] = params.lr * min(1.0, (step + 1) / 20)
            loss = task.loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tick(step / params.steps, f"training, seed {seed}, step {step}")
    held_out = [torch.cat(parts)[: params.windows] for parts in zip(*task.held_out(), strict=True)]
    return model.eval(), held_out[0], held_out[1]
