"""The experiment's data: errors of products and losses of the model, by method, outliers, threshold and group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import integers
from ...hardware.cases import Arrays
from ..base import Tick
from .planting import planted, readers, trained
from .published import LEAST_MAGNITUDE, TABLE1

if TYPE_CHECKING:
    from torch import Tensor, nn

    Reading = tuple[nn.Linear, Tensor]  # a layer that reads outliers, and its input

NAMES = tuple(method.name for method in integers.METHODS)
DECOMPOSED = tuple(method.name for method in integers.METHODS if method.decompose)  # those that have a threshold
SKIP = ("head",)  # as the paper's library leaves the last layer
INFINITY = float("inf")


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

    @property
    def ends(self) -> Params:
        """What of each further network is measured: the least and the most outliers, and so on."""
        thresholds = self.thresholds[0], LEAST_MAGNITUDE, self.thresholds[-1]
        return replace(self, dimensions=self.dimensions[:: len(self.dimensions) - 1], thresholds=thresholds,
                       groups=self.groups[:: len(self.groups) - 1])  # fmt: skip


QUICK = Params(
    context=32,
    batch=8,
    steps=40,
    seeds=(0, 1, 2),
    windows=8,
    dimensions=(0, 3, 7),
    thresholds=(0.0, 6.0, 64.0),
    groups=(8, 64),
)


@dataclass(frozen=True)
class Baseline:
    """A trained FP32 model, the windows it is tested on, and what it gives there: logits, loss, and in FP64 the
    products of the layers that read outliers, without a bias.
    """

    model: nn.Module
    tokens: Tensor
    targets: Tensor
    logits: np.ndarray
    loss: float
    exact: list[Tensor]


def run(params: Params, tick: Tick) -> Arrays:
    """Train, plant, and measure: arrays by method and number of outlier dimensions, by threshold, by group size.

    They are the first network's, whose ``parameters`` (n,) are kept, with the windows and the characters that follow;
    those that begin with "each" hold of every network what :attr:`Params.ends` names.
    """
    from ...training.loop import one_thread

    measured: list[Arrays] = []
    for i, seed in enumerate(params.seeds):

        def part(done: float, text: str, i: int = i) -> None:
            tick((i + done) / len(params.seeds), text)

        model, tokens, targets = trained(params, seed, lambda done, text: part(0.5 * done, text))
        with one_thread():
            measured.append(measure(params.ends if i else params, model, tokens, targets, part))
    six = params.thresholds.index(LEAST_MAGNITUDE)

    def each(name: str, *first: int) -> np.ndarray:
        """Of the first network what of the others alone there is."""
        return np.stack([measured[0][name][..., first], *(one[name] for one in measured[1:])])

    return {
        **measured[0],
        "unchanged": np.concatenate([one["unchanged"] for one in measured]),
        "each_inputs": np.stack([one["inputs"] for one in measured]),
        "each_errors": each("errors", 0, -1),
        "each_divergences": each("divergences", 0, -1),
        "each_threshold_errors": each("threshold_errors", 0, six, -1),
        "each_int8_shares": each("int8_shares", 0, six, -1),
        "each_int4_errors": each("int4_errors", 0, -1),
    }


def measure(params: Params, model: nn.Module, tokens: Tensor, targets: Tensor, tick: Tick) -> Arrays:
    """Everything about a trained model."""
    plain = readers(model, tokens)
    exact = [x.double() @ linear.weight.detach().double().T for linear, x in plain]
    base = Baseline(model, tokens, targets, *logits_and_loss(model, tokens, targets), exact)
    outlying = planted(model, params.planted)
    reading = readers(outlying, tokens)
    return {
        "fp32_loss": np.array([base.loss]),
        **by_dimensions(params, base, lambda done, text: tick(0.5 + 0.3 * done, text)),
        **by_threshold(params, base, outlying, reading, lambda done, text: tick(0.8 + 0.15 * done, text)),
        **by_group(params, base, plain, lambda done, text: tick(0.95 + 0.05 * done, text)),
        "inputs": np.stack([x.numpy() for _, x in reading]),
        "weights": np.concatenate([linear.weight.detach().numpy().T for linear, _ in reading], axis=1),
        "published": np.array(list(TABLE1.values())),
        "parameters": np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]),
        "tokens": tokens.numpy(),
        "targets": targets.numpy(),
    }


def by_dimensions(params: Params, base: Baseline, tick: Tick) -> Arrays:
    """Every method with each number of outlier dimensions: errors, losses and divergences (method, number).

    ``unchanged``: whether planting so many leaves every bit of the FP32 logits.
    """
    from ...nn import int8_linears

    shape = (len(NAMES), len(params.dimensions))
    errors, losses, divergences = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    unchanged = np.zeros(len(params.dimensions), np.int64)
    for j, n in enumerate(params.dimensions):
        tick(j / shape[1], f"{n} outlier dimensions")
        outlying = planted(base.model, n)
        reading = readers(outlying, base.tokens)
        unchanged[j] = int((logits_and_loss(outlying, base.tokens, base.targets)[0] == base.logits).all())
        for i, name in enumerate(NAMES):
            narrow = int8_linears(outlying, name, skip=SKIP)
            found, losses[i, j] = logits_and_loss(narrow, base.tokens, base.targets)
            divergences[i, j] = divergence(base.logits, found)
        errors[:, j] = [product_error(reading, base.exact, name) for name in NAMES]
    return {
        "dimensions": np.array(params.dimensions),
        "unchanged": unchanged,
        "errors": errors,
        "losses": losses,
        "divergences": divergences,
    }


def by_threshold(params: Params, base: Baseline, outlying: nn.Module, reading: list[Reading], tick: Tick) -> Arrays:
    """Every decomposed method on one planted model at every threshold: errors and losses (method, threshold).

    Also LLM.int8()'s losses with the weights of outliers kept in INT8, and the share of dimensions that stay in INT8.
    """
    from ...nn import int8_linears

    def loss(method: str, threshold: float, kept: str = "fp16") -> float:
        narrow = int8_linears(outlying, method, threshold, kept, SKIP)
        return logits_and_loss(narrow, base.tokens, base.targets)[1]

    shape = (len(DECOMPOSED), len(params.thresholds))
    errors, losses, int8_rows, shares = np.zeros(shape), np.zeros(shape), np.zeros(shape[1]), np.zeros(shape[1])
    for k, threshold in enumerate(params.thresholds):
        tick(k / shape[1], f"threshold {threshold}")
        losses[:, k] = [loss(name, threshold) for name in DECOMPOSED]
        errors[:, k] = [product_error(reading, base.exact, name, threshold) for name in DECOMPOSED]
        int8_rows[k] = loss("llm_int8", threshold, "int8")
        shares[k] = 1 - np.mean([integers.outliers(x.numpy(), threshold) for _, x in reading])
    return {
        "thresholds": np.array(params.thresholds),
        "threshold_losses": losses,
        "threshold_losses_int8_rows": int8_rows,
        "threshold_errors": errors,
        "int8_shares": shares,
    }


def by_group(params: Params, base: Baseline, plain: list[Reading], tick: Tick) -> Arrays:
    """Weights in INT4 with a scale for each group, at every group size: errors of products, losses, divergences."""
    from ...nn import Int4Linear, int4_linears

    tick(0.0, "INT4 weights")
    found = [
        logits_and_loss(int4_linears(base.model, group, skip=SKIP), base.tokens, base.targets)
        for group in params.groups
    ]
    errors = [relative_error([Int4Linear(linear, group) for linear, _ in plain], plain, base.exact)
              for group in params.groups]  # fmt: skip
    return {
        "groups": np.array(params.groups),
        "int4_errors": np.array(errors),
        "int4_losses": np.array([loss for _, loss in found]),
        "int4_divergences": np.array([divergence(base.logits, logits) for logits, _ in found]),
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
