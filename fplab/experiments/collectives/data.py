"""The experiment's data: sums over ranks in every way, against sums that are exact."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...hardware.cases import Arrays
from ...parallel.collectives import Wire, reduce_fast
from ..base import Tick


@dataclass(frozen=True)
class Curve:
    """One way to add: the algorithm and what travels."""

    name: str
    algorithm: str
    wire: Wire


CURVES = (
    Curve("FP32, ring", "ring", Wire()),
    Curve("FP16, ring", "ring", Wire("fp16")),
    Curve("BF16, ring", "ring", Wire("bf16")),
    Curve("BF16, ring, added in BF16", "ring", Wire("bf16", add="wire")),
    Curve("BF16, ring, stochastic", "ring", Wire("bf16", "stochastic", seed=1)),
    Curve("BF16, tree", "tree", Wire("bf16")),
    Curve("BF16, doubling", "doubling", Wire("bf16")),
    Curve("BF16, direct", "direct", Wire("bf16")),
    Curve("E5M2, ring", "ring", Wire("e5m2")),
    Curve("E5M2, tree", "tree", Wire("e5m2")),
)
WIRES = (
    Wire(),
    *(Wire(fmt, add=add) for fmt in ("fp16", "bf16", "e5m2") for add in ("fp32", "wire")),
    *(Wire(fmt, "stochastic", seed=1) for fmt in ("fp16", "bf16", "e5m2")),
)
# A ring, a tree and doubling with every wire: what is not drawn is in the full size's table.
OTHERS = tuple(
    Curve(f"{wire.format} {wire.rounding}, added in {wire.add}, {algorithm}", algorithm, wire)
    for algorithm in ("ring", "tree", "doubling")
    for wire in WIRES
    if (algorithm, wire) not in {(one.algorithm, one.wire) for one in CURVES}
)
# E4M3's range ends at 448: its sums are of gradients, which are scaled to 1.
E4M3 = (Curve("E4M3, ring", "ring", Wire("e4m3")), Curve("E4M3, tree", "tree", Wire("e4m3")))
ON_GRADIENTS = (CURVES[0], CURVES[1], CURVES[2], CURVES[4], CURVES[5], *E4M3)


@dataclass(frozen=True)
class Params:
    """``ranks``, ``elements``: of the simulated sums. ``shares``: the most ranks that share real gradients, a power of
    two; ``images`` on each of them. ``steps``: of the replicas. ``scales``: loss scales 2^-20, 2^-18, ... below
    2^scales (the small ones stand for networks whose gradients are smaller). ``every``: with all algorithms and wires,
    not those alone that are drawn. ``networks``: how many, from ``seed`` on, the first of which is drawn.
    """

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    elements: int = 4096
    shares: int = 64
    images: int = 16
    steps: int = 64
    scales: int = 34
    every: bool = True
    seed: int = 0
    networks: int = 4

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The ways to add, those that are drawn first."""
        return CURVES + OTHERS if self.every else CURVES


QUICK = Params(ranks=(2, 16, 128, 2048), elements=64, shares=32, steps=40, every=False, networks=3)
GROUPS = 4  # of elements, each an independent draw of the simulated sums


def values(params: Params) -> np.ndarray:
    """What each of the most ranks has, float32 (ranks, elements): between -1/2 and 3/2, multiples of 2^-22.

    So few bits that sums in float64 are exact; a common part and much noise, as gradients of shares have.
    """
    n = max(params.ranks) * params.elements
    raw = np.random.Philox(key=params.seed).random_raw(n) >> np.uint64(41)
    spread = raw.astype(np.float32) * np.float32(2.0**-22) - np.float32(0.5)
    return np.asarray(spread.reshape(max(params.ranks), params.elements))


def against(total: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Relative error in the 2-norm, and the mean signed error over the mean magnitude."""
    off = total.astype(np.float64) - exact
    return float(np.linalg.norm(off) / np.linalg.norm(exact)), float(off.mean() / np.abs(exact).mean())


def gradients(params: Params) -> np.ndarray:
    """The gradient of each share's mean loss, float32 (shares, parameters): a perceptron after 40 steps on digits."""
    import torch
    from torch.nn.functional import cross_entropy

    from ...training.loop import one_thread
    from ...training.tasks import perceptron

    task = perceptron(width=32, hidden=2, batch=params.images)
    with one_thread():
        model = task.model(params.seed)
        weights = list(model.parameters())
        for batch in task.batches(params.seed, 40):
            slopes = torch.autograd.grad(task.loss(model, batch), weights)
            with torch.no_grad():
                for weight, slope in zip(weights, slopes, strict=True):
                    weight.sub_(0.1 * slope)
        rows = []
        for inputs, targets in task.batches(params.seed + 1, params.shares):
            slopes = torch.autograd.grad(cross_entropy(model(inputs), targets), weights)
            rows.append(torch.cat([slope.flatten() for slope in slopes]).numpy())
    return np.asarray(np.stack(rows), np.float32)


def shared(parts: np.ndarray, ranks: int) -> np.ndarray:
    """The gradients of fewer ranks with more images each: float32 (ranks, parameters)."""
    mean = parts.astype(np.float64).reshape(ranks, -1, parts.shape[1]).mean(axis=1)
    return np.asarray(mean, np.float32)


def rank_counts(params: Params) -> list[int]:
    """2, 4, ... up to the shares."""
    return [2**i for i in range(1, params.shares.bit_length())]


def loss_scales(params: Params) -> range:
    """The base-2 logarithms of the loss scales."""
    return range(-20, params.scales, 2)


def run(params: Params, tick: Tick) -> Arrays:
    """All sums.

    ``errors``, ``biases`` (curve, ranks): of the simulated sums; ``by_group`` (error or bias, curve, group): at the
    most ranks, by group of elements; ``conditions`` (ranks,): the sum of magnitudes over the sum's. Of real gradients
    and of replicas see :func:`on_gradients`, :func:`averaged` and :func:`skipping.replicas`; a network in each row.
    """
    from .skipping import replicas

    table = values(params)
    found = np.zeros((2, len(params.curves), len(params.ranks)))
    groups = np.zeros((2, len(params.curves), GROUPS))
    for c, curve in enumerate(params.curves):
        tick(0.6 * c / len(params.curves), curve.name)
        for r, ranks in enumerate(params.ranks):
            given = table[:ranks]
            total = reduce_fast(given, params.elements, ranks, curve.algorithm, curve.wire)
            exact = given.sum(axis=0, dtype=np.float64)
            found[:, c, r] = against(total, exact)
        parts = (np.array_split(x, GROUPS) for x in (total, exact))
        groups[:, c] = np.transpose([against(*pair) for pair in zip(*parts, strict=True)])
    sums = [
        (np.abs(table[:n]).sum(axis=0, dtype=np.float64), table[:n].sum(axis=0, dtype=np.float64)) for n in params.ranks
    ]
    conditions = np.array([np.linalg.norm(all_) / np.linalg.norm(sum_) for all_, sum_ in sums])
    rows = []
    for i in range(params.networks):
        tick(0.6 + 0.4 * i / params.networks, f"gradients and replicas, network {i}")
        one = replace(params, seed=params.seed + i)
        slopes = gradients(one)
        rows.append({"gradients": slopes, **on_gradients(one, slopes), **averaged(one, slopes), **replicas(one)})
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {"errors": found[0], "biases": found[1], "by_group": groups, "conditions": conditions, **arrays}


def on_gradients(params: Params, parts: np.ndarray) -> Arrays:
    """Relative errors of the mean of real gradients: (curve, ranks). They are scaled to 1 at most, a power of two."""
    out = np.zeros((len(ON_GRADIENTS), len(rank_counts(params))))
    for r, ranks in enumerate(rank_counts(params)):
        given = shared(parts, ranks)
        given = given * np.float32(2.0 ** -np.ceil(np.log2(np.abs(given).max())))
        exact = given.sum(axis=0, dtype=np.float64)
        for c, curve in enumerate(ON_GRADIENTS):
            total = reduce_fast(given, given.shape[1], ranks, curve.algorithm, curve.wire)
            out[c, r] = against(total, exact)[0]
    return {"gradient_errors": out}


def averaged(params: Params, parts: np.ndarray) -> Arrays:
    """FP16 ring sums of scaled gradients, divided before or after: how many end infinite, how many wrongly zero.

    ``fates``: int64 (before or after, loss scale, infinite or zero); ``compared``: where both are normal numbers, how
    many, and how many of these are equal.
    """
    exponents = loss_scales(params)
    ranks, n = parts.shape
    wire, share = Wire("fp16"), np.float32(1 / ranks)
    fates = np.zeros((2, len(exponents), 2), np.int64)
    both = np.zeros(2, np.int64)
    nonzero = parts.sum(axis=0, dtype=np.float64) != 0
    for s, exponent in enumerate(exponents):
        scaled = parts * np.float32(2.0**exponent)
        before = reduce_fast(scaled * share, n, ranks, "ring", wire)
        after = np.asarray(reduce_fast(scaled, n, ranks, "ring", wire)) * share
        for way, total in enumerate((before, after)):
            fates[way, s] = int((~np.isfinite(total)).sum()), int(((total == 0) & nonzero).sum())
        fine = ~np.isfinite(after) | ~np.isfinite(before)
        both += int((~fine).sum()), int((before == after)[~fine].sum())
    return {"fates": fates, "compared": both, "nonzero": np.array([int(nonzero.sum())])}
