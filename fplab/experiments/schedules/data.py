"""The experiment's data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import fplab

from ...hardware.cases import Arrays
from ...parallel.schedules import Timeline, timeline
from ..base import Tick

SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))
ACCUMULATORS = (("fp32", "rne"), ("fp16", "rne"), ("bf16", "rne"), ("bf16", "stochastic"))
SPLITS = (1, 2, 4, 8)
MODEL = "gpt3"


@dataclass(frozen=True)
class Params:
    """``stages``, ``micro_batches``: of the timelines. ``accumulated``: the most micro-batches whose gradients are
    added, a power of two, of ``images`` each. ``rows``: of the product whose k is split, ``width``: its k.
    ``networks``: how many, from ``seed`` on.
    """

    stages: int = 4
    micro_batches: int = 8
    accumulated: int = 256
    images: int = 4
    rows: int = 256
    width: int = 1024
    seed: int = 0
    networks: int = 5


QUICK = Params(accumulated=128, rows=64, width=512, networks=3)


def timelines(params: Params) -> list[Timeline]:
    """The three schedules; a backward pass takes twice a forward pass."""
    return [timeline(name, params.stages, params.micro_batches, chunks) for name, chunks in SCHEDULES]


def run(params: Params, tick: Tick) -> Arrays:
    """Timelines; sums of gradients and products, a network in each row."""
    from ... import memory

    lines = timelines(params)
    tick(0.05, "memory of the stages")
    held = []
    for name, chunks in SCHEDULES:
        how = {"pipeline": params.stages, "gpus": params.stages, "micro_batches": params.micro_batches}
        stages = memory.estimate(MODEL, schedule=name, chunks=chunks, **how).stages
        held.append([stage.device["activations"] for stage in stages])
    rows = []
    for i in range(params.networks):
        tick(0.1 + 0.9 * i / params.networks, f"sums and products, network {i}")
        one = replace(params, seed=params.seed + i)
        slopes = gradients(one)
        rows.append({"gradients": slopes, "errors": accumulation(slopes, one), **products(one)})
    return {
        "in_flight": np.array([line.in_flight() for line in lines]),
        "activations": np.array(held),
        **{name: np.stack([row[name] for row in rows]) for name in rows[0]},
    }


def gradients(params: Params) -> np.ndarray:
    """Gradients of micro-batches, float32 (micro-batches, parameters)."""
    from ..collectives import data as ranks

    return ranks.gradients(ranks.Params(shares=params.accumulated, images=params.images, seed=params.seed))


def counts(params: Params) -> list[int]:
    """1, 2, 4, ... micro-batches."""
    return [2**i for i in range(params.accumulated.bit_length())]


def accumulate(parts: np.ndarray, fmt: str, rounding: str) -> np.ndarray:
    """A running sum kept in a format: every micro-batch's gradient is added in FP32 and the sum is rounded."""
    total = np.zeros(parts.shape[1], np.float32)
    for i, part in enumerate(parts):
        seed = i if rounding == "stochastic" else None
        total = np.asarray(fplab.quantize(total + part, fmt, rounding, seed=seed), np.float32)
    return total


def accumulation(parts: np.ndarray, params: Params) -> np.ndarray:
    """The relative error of the sums (accumulator, count) of the gradients, scaled to 1 at most by a power of two."""
    parts = parts * np.float32(2.0 ** -np.ceil(np.log2(np.abs(parts).max())))
    out = np.zeros((len(ACCUMULATORS), len(counts(params))))
    for c, count in enumerate(counts(params)):
        exact = parts[:count].sum(axis=0, dtype=np.float64)
        for a, (fmt, rounding) in enumerate(ACCUMULATORS):
            off = accumulate(parts[:count], fmt, rounding) - exact
            out[a, c] = np.linalg.norm(off) / np.linalg.norm(exact)
    return out


def operands(params: Params) -> tuple[np.ndarray, np.ndarray]:
    """The activations (rows, k) and weights (k, outputs) of a hidden layer of a perceptron, rounded to BF16."""
    import torch

    from ...training.loop import one_thread
    from ...training.tasks import perceptron

    task = perceptron(width=params.width, hidden=2, batch=params.rows)
    with one_thread(), torch.no_grad():
        model = task.model(params.seed)
        inputs, _ = next(task.batches(params.seed, 1))
        hidden = torch.relu(inputs @ model.get_parameter("0.weight").T + model.get_parameter("0.bias"))
        weight = model.get_parameter("2.weight").T[:, :64]
        return fplab.quantize(hidden.numpy(), "bf16"), fplab.quantize(weight.numpy(), "bf16")


def products(params: Params) -> Arrays:
    """The layer's product on an H100 with k in 1, 2, 4 and 8 slices, whose sums are added in FP32.

    ``products``: float32 (split, rows, outputs); ``exact``: in float64.
    """
    from ... import tensorcore

    a, b = operands(params)
    plans = [tensorcore.Plan(split_k=split) for split in SPLITS]
    found = [tensorcore.matmul(a, b, gpu="H100", inputs="bf16", plan=plan) for plan in plans]
    return {"products": np.stack(found).astype(np.float32), "exact": a.astype(np.float64) @ b.astype(np.float64)}
