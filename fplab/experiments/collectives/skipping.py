"""Replicas under loss scaling: what happens when a rank whose gradient overflows skips the step alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import fplab

from ...hardware.cases import Arrays

if TYPE_CHECKING:
    from .data import Params

RANKS = 4
POLICIES = ("together", "alone")
GROWTH = 8  # steps without an overflow after which a scale doubles


def replicas(params: Params) -> Arrays:
    """Train four replicas with FP16 gradients and dynamic loss scales, and see how far apart they are.

    "together": the scaled sum, infinite wherever one addend is, decides for all. "alone": every rank looks at its own
    gradient before the sum; with an overflow it sends zeros, skips, and halves its own scale; the others go on.
    ``apart``: float64 (policy, steps), the largest difference between two replicas' weights; ``losses`` (policy,
    steps): the mean over the replicas; ``skips``: int64 (policy, rank).
    """
    found = [_train(params, policy) for policy in POLICIES]
    names = ("apart", "losses", "skips")
    return {name: np.stack([one[i] for one in found]) for i, name in enumerate(names)}


def _train(params: Params, policy: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from ...training.loop import one_thread
    from ...training.tasks import perceptron

    task = perceptron(width=32, hidden=1, batch=16 * RANKS)
    apart, losses = np.zeros(params.steps), np.zeros(params.steps)
    skips = np.zeros(RANKS, np.int64)
    scales, clean = np.full(RANKS, 2.0**18, np.float32), np.zeros(RANKS, np.int64)
    with one_thread():
        models = [task.model(params.seed) for _ in range(RANKS)]
        weights = np.stack([parameters_to_vector(m.parameters()).detach().numpy() for m in models])
        for step, (inputs, targets) in enumerate(task.batches(params.seed, params.steps)):
            halves = []
            for rank, (model, x, y) in enumerate(zip(models, inputs.chunk(RANKS), targets.chunk(RANKS), strict=True)):
                vector_to_parameters(torch.from_numpy(weights[rank].copy()), model.parameters())
                loss = cross_entropy(model(x), y)
                losses[step] += float(loss.detach()) / RANKS
                grads = torch.autograd.grad(loss * float(scales[rank]), list(model.parameters()))
                halves.append(fplab.quantize(torch.cat([g.flatten() for g in grads]).numpy(), "fp16"))
            over, mean = _reduced(np.stack(halves), scales, policy)
            weights = np.where(over[:, None], weights, weights - np.float32(0.1) * mean)
            skips += over
            clean = np.where(over, 0, clean + 1)
            grown = np.where(clean == GROWTH, scales * 2, scales)
            scales, clean = np.where(over, scales / 2, grown).astype(np.float32), clean % GROWTH
            apart[step] = np.abs(weights - weights[0]).max()
    return apart, losses, skips


def _reduced(halves: np.ndarray, scales: np.ndarray, policy: str) -> tuple[np.ndarray, np.ndarray]:
    """Which ranks skip, bool (ranks,), and the mean gradient, float32, of those that did not overflow."""
    over = ~np.isfinite(halves).all(axis=1)
    if policy == "together":
        over = np.full(RANKS, over.any())
    sent = np.where(over[:, None], np.float32(0), halves / scales[:, None])
    return over, sent.sum(axis=0, dtype=np.float32) / np.float32(RANKS)
