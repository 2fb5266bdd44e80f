"""The experiment's claims."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Arrays
from ...parallel import collectives, gloo
from ..base import Evidence, Outcome, failed, passed, verdict
from ..legacy import Check
from ..statistics import both, superior
from .data import CURVES, ON_GRADIENTS, Params, rank_counts
from .skipping import POLICIES

if TYPE_CHECKING:
    import torch

AT = {curve.name: i for i, curve in enumerate(CURVES)}


def check_volumes(arrays: Arrays, params: Params) -> Outcome:
    """2 (n - 1) / n of the data a rank for a ring, in 2 (n - 1) steps."""
    for n in (2, 4, 8, 64):
        ring = collectives.all_reduce(n)
        if ring.sent(n * 10) != [2 * (n - 1) * 10] * n or len(ring.steps) != 2 * (n - 1):
            return failed(f"{n} ranks: {ring.sent(n * 10)}")
        if collectives.reduce_scatter(n).sent(n) != [n - 1] * n or collectives.all_gather(n).sent(n) != [n - 1] * n:
            return failed(f"{n} ranks: reduce-scatter or all-gather sends something else than (n - 1) / n")
    return passed("2, 4, 8 and 64 ranks, counted message by message")


def grouped(arrays: Arrays, *names: str, bias: bool = False) -> list[np.ndarray]:
    """Of each curve the errors (or biases) at the most ranks, by group of elements."""
    return [arrays["by_group"][int(bias), AT[f"BF16, {name}"]] for name in names]


def check_depth(arrays: Arrays, params: Params) -> Outcome:
    """BF16 at the most ranks: the ring's chain against trees, in octaves; the margin is a factor of 5."""
    if not np.allclose(arrays["by_group"][0].mean(1), arrays["errors"][:, -1], rtol=0.2):
        return failed("the errors drawn are not those of their groups of elements")
    names = ("ring", "tree", "doubling", "direct")
    ring, tree, doubling, direct = (np.log2(x) for x in grouped(arrays, *names))
    parts = ", ".join(f"{n} {2 ** x.mean():.2g}" for n, x in zip(names, (ring, tree, doubling, direct), strict=True))
    detail = f"{params.ranks[-1]} ranks: {parts}"
    return superior(ring, np.maximum(tree, doubling), np.log2(5), f"{detail}; of the ring, octaves")


def check_stagnation(arrays: Arrays, params: Params) -> Outcome:
    """Rounding to nearest loses addends on one side; stochastic rounding does not. The margin: a fifth of the sum."""
    nearest, fair = grouped(arrays, "ring", "ring, stochastic", bias=True)
    detail = f"bias {nearest.mean():+.2%} to nearest, {fair.mean():+.2%} stochastic"
    return superior(-nearest, np.abs(fair), 0.2, detail)


def check_bounds(arrays: Arrays, params: Params) -> Outcome:
    """Each FP32 error is within (n - 1) u of the sum of magnitudes, and at one n more than a hundredth of that."""
    u, ranks = 2.0**-24, np.array(params.ranks)
    reach = (ranks - 1) * u / (1 - (ranks - 1) * u) * arrays["conditions"]
    share = arrays["errors"][0] / reach
    detail = f"errors are {share.min():.2g} to {share.max():.2g} of the bound, n up to {params.ranks[-1]}"
    return verdict(bool((share <= 1).all() and share.max() > 0.01), detail)


def check_gradients(arrays: Arrays, params: Params) -> Outcome:
    """On real gradients the wire's format decides, network by network; in octaves, the margin is a factor of 2."""
    last = np.log2(arrays["gradient_errors"][..., -1])
    by = {curve.name: last[:, c] for c, curve in enumerate(ON_GRADIENTS)}
    names = ("FP32, ring", "FP16, ring", "BF16, ring", "E4M3, ring")
    detail = f"{rank_counts(params)[-1]} ranks: " + ", ".join(f"{k} {2 ** v.mean():.1e}" for k, v in by.items())
    apart = np.min([by[wide] - by[narrow] for narrow, wide in pairwise(names)], axis=0)
    trees = np.min([by[f"{fmt}, ring"] - by[f"{fmt}, tree"] for fmt in ("BF16", "E4M3")], axis=0)
    zero = np.zeros(len(apart))
    return both(superior(apart, zero, 1.0, f"{detail}; from one format to the next, octaves"),
                superior(trees, zero, 0.0, "from a tree to a ring, octaves"))  # fmt: skip


def check_averaging(arrays: Arrays, params: Params) -> Outcome:
    """Dividing first saves the top of FP16's range and costs the bottom, dividing last the other way.

    The margin: a hundredth of the gradients, at the loss scale where it shows most.
    """
    before, after = arrays["fates"][:, 0], arrays["fates"][:, 1]  # (network, scale, infinite or zero)
    pairs, same = arrays["compared"].sum(axis=0)
    if (before[..., 0] > after[..., 0]).any() or (before[..., 1] < after[..., 1]).any():
        return failed("at some loss scale dividing first overflows more, or dividing last loses more")
    more = np.stack([(after - before)[..., 0].max(axis=1), (before - after)[..., 1].max(axis=1)])
    detail = (
        f"up to {more[0].max()} more infinite sums when dividing last, {more[1].max()} more zeros when dividing first"
        f"; of {pairs:,} finite pairs {same / pairs:.1%} are equal to the bit"
    )
    share = more.min(axis=0) / arrays["gradients"].shape[-1]
    return superior(share, np.zeros(len(share)), 0.01, detail)


def check_skipping(arrays: Arrays, params: Params) -> Outcome:
    """Replicas that skip together stay equal to the bit; those that skip alone part, by more than a thousandth."""
    apart, skips = arrays["apart"], arrays["skips"]
    ends = zip(POLICIES, skips[0].tolist(), apart[0, :, -1], strict=True)
    detail = "; ".join(f"{policy}: skips {skip}, apart by {far:.2g}" for policy, skip, far in ends)
    if apart[:, 0].any() or not skips[:, 0].all():
        return failed(f"{detail}; of those that skip together some part, or none skips")
    return superior(apart[:, 1, -1], np.zeros(len(apart)), 1e-3, detail)


def by_gloo(rows: torch.Tensor) -> torch.Tensor:
    """What gloo's own all-reduce leaves on rank 0, each rank a thread: ``rows`` (ranks, elements)."""
    import torch.distributed

    dist: Any = torch.distributed  # whose types leave out what it has
    store = dist.HashStore()
    sums: list[torch.Tensor] = [row.clone() for row in rows]

    def one(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, len(rows), timedelta(seconds=60))
        group.allreduce([sums[rank]]).wait()

    with ThreadPoolExecutor(len(rows)) as ranks:
        list(ranks.map(one, range(len(rows))))
    return sums[0]


def check_torch(arrays: Arrays, params: Params) -> Outcome:
    """Sums over 3 and 4 ranks, each element of which gloo adds in the order of its place."""
    import torch

    for ranks in (3, 4):
        for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
            rows = torch.from_numpy(arrays["gradients"][0, :ranks]).to(dtype)
            theirs, ours = by_gloo(rows).float().numpy(), gloo.all_reduce(rows.float().numpy(), name)
            if not np.array_equal(ours, theirs):
                return failed(f"{ranks} ranks, {name}: {int((ours != theirs).sum())} of {ours.size} sums differ")
    return passed(f"3 and 4 ranks, {ours.size:,} gradients in FP32, FP16 and BF16, every bit")


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("a ring sends 2 (n - 1) / n of the data", PROVED, check_volumes),
    Check("FP32 rings stay within (n - 1) half units of the sum of magnitudes", PROVED, check_bounds),
    Check("in BF16 a ring over thousands of ranks is more than 5 times worse than a tree", MEASURED, check_depth),
    Check("stochastic rounding takes the bias out of a long ring", MEASURED, check_stagnation),
    Check("on real gradients each narrower format of the wire at least doubles the error", MEASURED, check_gradients),
    Check("averaging before the sum risks underflow, after it overflow", MEASURED, check_averaging),
    Check("replicas stay equal if all skip together, and part if they skip alone", MEASURED, check_skipping),
    Check("gloo's own all-reduce gives the sums of the order that the lab says", LIBRARY, check_torch),
)
