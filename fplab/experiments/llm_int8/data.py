"""The experiment's data: errors of products and losses of the model, by method, outliers, threshold and group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ... import integers
from ...hardware.cases import Arrays
from ..base import Tick
from .planting import planted, readers, trained
from .published import TABLE1

if TYPE_CHECKING:
    from torch import Tensor, nn

NAMES = tuple(method.name for method in integers.METHODS)
SKIP = ("head",)  # as the paper's library leaves the last layer
INFINITY = float("inf")


@dataclass(frozen=True)
class Params:
    """``width`` to ``context``: the transformer; ``batch``, ``steps``, ``lr``, ``seed``: its training.

    ``windows``: held-out windows of ``context`` characters. ``dimensions``: numbers of outlier dimensions planted;
    ``planted``: how many for the thresholds. ``groups``: weights of INT4 that share a scale. ``sample``: rows that the
    Fraction oracle takes.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64
    batch: int = 16
    steps: int = 600
    lr: float = 3e-3
    seed: int = 0
    windows: int = 128
    dimensions: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    planted: int = 6
    thresholds: tuple[float, ...] = (
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        4.0,
        6.0,
        8.0,
        12.0,
        16.0,
        24.0,
        32.0,
        48.0,
        64.0,
    )
    groups: tuple[int, ...] = (4, 8, 16, 32, 64)
    sample: int = 2


QUICK = Params(
    context=32,
    batch=8,
    steps=200,
    windows=24,
    dimensions=(0, 1, 2, 4, 7),
    thresholds=(0.0, 1.0, 2.0, 3.0, 6.0, 12.0, 24.0, 32.0, 64.0),
    groups=(8, 16, 32, 64),
)


def run(params: Params, tick: Tick) -> Arrays:
    """Train, plant, and measure: arrays by method and number of outlier dimensions, by threshold, by group size."""
    from ...training.loop import one_thread

    model, tokens, targets = trained(params, lambda done, text: tick(0.5 * done, text))
    with one_thread():
        return measure(params, model, tokens, targets, tick)


def measure(params: Params, model: nn.Module, tokens: Tensor, targets: Tensor, tick: Tick) -> Arrays:
    """Everything about a trained model."""
    from ...nn import int4_linears, int8_linears

    reference, loss = logits_and_loss(model, tokens, targets)
    exact = [x.double() @ linear.weight.detach().double().T for linear, x in readers(model, tokens)]
    shape = (len(NAMES), len(params.dimensions))
    errors, losses, divergences = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    unchanged = np.zeros(len(params.dimensions), np.int64)
    for j, n in enumerate(params.dimensions):
        tick(0.5 + 0.3 * j / shape[1], f"{n} outlier dimensions")
        outlying = planted(model, n)
        reading = readers(outlying, tokens)
        unchanged[j] = int((logits_and_loss(outlying, tokens, targets)[0] == reference).all())
        for i, name in enumerate(NAMES):
            found, losses[i, j] = logits_and_loss(int8_linears(outlying, name, skip=SKIP), tokens, targets)
            divergences[i, j] = divergence(reference, found)
        errors[:, j] = [product_error(reading, exact, name) for name in NAMES]
    outlying = planted(model, params.planted)
    reading = readers(outlying, tokens)
    by_threshold: list[tuple[float, float, float, float]] = []
    for k, threshold in enumerate(params.thresholds):
        tick(0.8 + 0.15 * k / len(params.thresholds), f"threshold {threshold}")
        own = [
            logits_and_loss(int8_linears(outlying, "llm_int8", threshold, kept, SKIP), tokens, targets)[1]
            for kept in ("fp16", "int8")
        ]
        share = 1 - np.mean([integers.outliers(x.numpy(), threshold) for _, x in reading])
        by_threshold.append((own[0], own[1], product_error(reading, exact, "llm_int8", threshold), float(share)))
    tick(0.95, "INT4 weights")
    four = [logits_and_loss(int4_linears(model, g, skip=SKIP), tokens, targets) for g in params.groups]
    columns = np.array(by_threshold).T
    return {
        "fp32_loss": np.array([loss]),
        "dimensions": np.array(params.dimensions),
        "unchanged": unchanged,
        "errors": errors,
        "losses": losses,
        "divergences": divergences,
        "thresholds": np.array(params.thresholds),
        "threshold_losses": columns[0],
        "threshold_losses_int8_rows": columns[1],
        "threshold_errors": columns[2],
        "int8_shares": columns[3],
        "groups": np.array(params.groups),
        "int4_losses": np.array([found for _, found in four]),
        "int4_divergences": np.array([divergence(reference, found) for found, _ in four]),
        "inputs": np.stack([x.numpy() for _, x in reading]),
        "plain_inputs": np.stack([x.numpy() for _, x in readers(model, tokens)]),
        "weights": np.concatenate([linear.weight.detach().numpy().T for linear, _ in reading], axis=1),
        "published": np.array(list(TABLE1.values())),
    }


def logits_and_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> tuple[np.ndarray, float]:
    """The logits, float32 (positions, characters), and their mean cross-entropy in nats, summed in float64."""
    import torch

    with torch.no_grad():
        logits = model(tokens).flatten(0, -2)
        return logits.numpy(), float(torch.nn.functional.cross_entropy(logits.double(), targets.flatten()))


def divergence(reference: np.ndarray, found: np.ndarray) -> float:
    """The mean Kullback-Leibler divergence of the predicted distribution from the FP32 model's, in nats."""
    p, q = (log_softmax(x.astype(np.float64)) for x in (reference, found))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities of logits, along the last axis."""
    shifted = x - x.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def product_error(
    reading: list[tuple[nn.Linear, Tensor]], exact: list[Tensor], method: str, threshold: float = 6.0
) -> float:
    """The error of the products that read outliers, relative to the exact ones (Frobenius), averaged over layers."""
    from ...nn import Int8Linear

    errors = []
    for (linear, x), want in zip(reading, exact, strict=True):
        layer = Int8Linear(linear, method, threshold)
        layer.bias = None
        errors.append(float((layer(x) - want).norm() / want.norm()))
    return float(np.mean(errors))
