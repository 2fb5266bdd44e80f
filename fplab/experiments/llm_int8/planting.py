"""Outlier features planted in a trained transformer without changing what it computes, and what INT8 makes of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import integers
from ...hardware.cases import Arrays
from ..base import Tick, one_threaded

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...training.tasks import Task

    Reading = tuple[nn.Linear, Tensor]  # a layer that reads a norm, and its input

GAIN = 16.0  # a power of two: products with it and with its inverse are exact
# The paper's criterion of an outlier feature:
LEAST_MAGNITUDE = 6.0  # this magnitude ...
LEAST_LAYERS = 0.25  # ... in this share of the layers ...
LEAST_POSITIONS = 0.06  # ... and of the positions of a sequence
LARGER = (3.0, 20.0)  # how many times as large as the largest of the other features
NAMES = tuple(method.name for method in integers.METHODS)
DECOMPOSED = tuple(method.name for method in integers.METHODS if method.decompose)  # those that have a threshold
SKIP = ("head",)  # as the paper's library leaves the last layer


@dataclass(frozen=True)
class Params:
    """``width`` to ``context``: the transformer; ``batch``, ``steps``, ``lr``: its training, once for each seed.

    ``windows``: held-out windows of ``context`` characters. ``dimensions``: numbers of outlier dimensions planted;
    ``planted``: how many for the thresholds. ``groups``: weights of INT4 that share a scale.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64
    batch: int = 16
    steps: int = 600
    lr: float = 3e-3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    windows: int = 128
    dimensions: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    planted: int = 6
    thresholds: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0,
                                     64.0)  # fmt: skip
    groups: tuple[int, ...] = (4, 8, 16, 32, 64)

    @property
    def ends(self) -> Params:
        """What of each further network is measured: the least and the most outliers, and so on."""
        thresholds = self.thresholds[0], LEAST_MAGNITUDE, self.thresholds[-1]
        return replace(self, dimensions=self.dimensions[:: len(self.dimensions) - 1], thresholds=thresholds,
                       groups=self.groups[:: len(self.groups) - 1])  # fmt: skip

    @property
    def was_planted(self) -> np.ndarray:
        """Which dimensions are outliers of the model on which thresholds are tried, bool (width,)."""
        return np.isin(np.arange(self.width), outlier_dimensions(self.width, self.planted))


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

    found: list[Reading] = []

    def keep(linear: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append((linear, inputs[0].detach().flatten(0, -2).clone()))  # type: ignore[arg-type]

    with ExitStack() as hooks, torch.no_grad():
        for _, reader in norms_and_readers(model):
            hooks.enter_context(reader.register_forward_pre_hook(keep))
        model(tokens)
    return found


def task_of(params: Params) -> Task:
    from ...training import tasks

    return tasks.characters(width=params.width, layers=params.layers, heads=params.heads, context=params.context,
                            batch=params.batch)  # fmt: skip


def untrained(params: Params, seed: int = 0) -> nn.Module:
    """The transformer before its training."""
    return task_of(params).model(seed)


@one_threaded
def trained(params: Params, seed: int, tick: Callable[[float, str], None]) -> tuple[nn.Module, Tensor, Tensor]:
    """The transformer after its training, and held-out windows with the characters that follow, int64 (windows, t)."""
    import torch

    task, model = task_of(params), untrained(params, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.lr, weight_decay=0.01)
    for step, batch in enumerate(task.batches(seed, params.steps)):
        optimizer.param_groups[0]["lr"] = params.lr * min(1.0, (step + 1) / 20)
        loss = task.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tick(step / params.steps, f"training, seed {seed}, step {step}")
    held_out = [torch.cat(parts)[: params.windows] for parts in zip(*task.held_out(), strict=True)]
    return model.eval(), held_out[0], held_out[1]


def measure(params: Params, model: nn.Module, tokens: Tensor, targets: Tensor, tick: Tick) -> Arrays:
    """The result's arrays of one trained model."""
    from ...nn import Int4Linear, int4_linears, int8_linears

    plain = readers(model, tokens)
    exact = [x.double() @ linear.weight.detach().double().T for linear, x in plain]
    logits, base = logits_and_loss(model, tokens, targets)

    def predicted(narrow: nn.Module) -> tuple[float, float]:
        """Loss and divergence of a narrow model."""
        found, loss = logits_and_loss(narrow, tokens, targets)
        return loss, divergence(logits, found)

    by_dimensions = np.zeros((3, len(NAMES), len(params.dimensions)))
    unchanged = np.zeros(len(params.dimensions), np.int64)
    for j, n in enumerate(params.dimensions):
        tick(0.5 + 0.3 * j / len(unchanged), f"{n} outlier dimensions")
        outlying = planted(model, n)
        reading = readers(outlying, tokens)
        unchanged[j] = int((logits_and_loss(outlying, tokens, targets)[0] == logits).all())
        for i, name in enumerate(NAMES):
            moved = predicted(int8_linears(outlying, name, skip=SKIP))
            by_dimensions[:, i, j] = product_error(reading, exact, name), *moved
    outlying = planted(model, params.planted)
    reading = readers(outlying, tokens)
    by_threshold = np.zeros((2, len(DECOMPOSED), len(params.thresholds)))
    shares = np.zeros(len(params.thresholds))
    for k, threshold in enumerate(params.thresholds):
        tick(0.8 + 0.15 * k / len(shares), f"threshold {threshold}")
        for i, name in enumerate(DECOMPOSED):
            loss = predicted(int8_linears(outlying, name, threshold, skip=SKIP))[0]
            by_threshold[:, i, k] = product_error(reading, exact, name, threshold), loss
        shares[k] = 1 - np.mean([integers.outliers(x.numpy(), threshold) for _, x in reading])
    tick(0.95, "INT4 weights")
    by_group = np.zeros((3, len(params.groups)))
    for g, group in enumerate(params.groups):
        error = relative_error([Int4Linear(linear, group) for linear, _ in plain], plain, exact)
        by_group[:, g] = error, *predicted(int4_linears(model, group, skip=SKIP))
    return {
        **dict(zip(("errors", "losses", "divergences"), by_dimensions, strict=True)),
        **dict(zip(("threshold_errors", "threshold_losses"), by_threshold, strict=True)),
        **dict(zip(("int4_errors", "int4_losses", "int4_divergences"), by_group, strict=True)),
        "fp32_loss": np.array([base]), "unchanged": unchanged, "int8_shares": shares,
        "inputs": np.stack([x.numpy() for _, x in reading]),
        "weights": np.concatenate([linear.weight.detach().numpy().T for linear, _ in reading], axis=1),
        "parameters": np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]),
        "tokens": tokens.numpy(), "targets": targets.numpy(),
    }  # fmt: skip


def logits_and_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> tuple[np.ndarray, float]:
    """The logits, float32 (positions, characters), and their mean cross-entropy in nats, summed in float64."""
    import torch

    with torch.no_grad():
        logits = model(tokens).flatten(0, -2)
        return logits.numpy(), float(torch.nn.functional.cross_entropy(logits.double(), targets.flatten()))


def divergence(reference: np.ndarray, found: np.ndarray) -> float:
    """The mean Kullback-Leibler divergence of the predicted distribution from the FP32 model's, in nats."""
    shifted = [x.astype(np.float64) - x.max(axis=-1, keepdims=True) for x in (reference, found)]
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
