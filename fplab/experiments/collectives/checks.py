"""The experiment's claims."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from ...parallel import collectives, gloo
from ...parallel.collectives import ALGORITHMS, Wire
from ..base import Check, Evidence, Outcome, failed, passed, verdict
from .data import CURVES, ON_GRADIENTS, Params, rank_counts
from .skipping import POLICIES

AT = {curve.name: i for i, curve in enumerate(CURVES)}
WIRES = (Wire(), Wire("bf16"), Wire("fp16", add="wire"), Wire("e4m3"), Wire("bf16", "stochastic", seed=3))


def check_messages(arrays: Arrays, params: Params) -> Outcome:
    """Fast sums against every message executed, on real gradients."""
    given = arrays["gradients"][:8, :333]
    for algorithm in ALGORITHMS:
        for ranks in (3, 8):
            for wire in WIRES:
                fast = collectives.reduce_fast(given[:ranks], 333, ranks, algorithm, wire)
                for row in collectives.execute(collectives.all_reduce(ranks, algorithm), given[:ranks], wire):
                    if row.tobytes() != fast.tobytes():
                        return failed(f"{algorithm} on {ranks} ranks, {wire}: {int((row != fast).sum())} differ")
    return passed(f"{len(ALGORITHMS)} algorithms, {len(WIRES)} wires, 3 and 8 ranks, 333 gradients, every bit")


def check_volumes(arrays: Arrays, params: Params) -> Outcome:
    """2 (n - 1) / n of the data a rank for a ring, in 2 (n - 1) steps."""
    for n in (2, 4, 8, 64):
        ring = collectives.all_reduce(n)
        if ring.sent(n * 10) != [2 * (n - 1) * 10] * n or len(ring.steps) != 2 * (n - 1):
            return failed(f"{n} ranks: {ring.sent(n * 10)}")
        if collectives.reduce_scatter(n).sent(n) != [n - 1] * n or collectives.all_gather(n).sent(n) != [n - 1] * n:
            return failed(f"{n} ranks: reduce-scatter or all-gather sends something else than (n - 1) / n")
    return passed("2, 4, 8 and 64 ranks, counted message by message")


def check_depth(arrays: Arrays, params: Params) -> Outcome:
    """BF16 at the most ranks: the ring's chain against trees."""
    names = ("ring", "tree", "doubling", "direct")
    ring, tree, doubling, direct = (arrays["errors"][AT[f"BF16, {name}"], -1] for name in names)
    detail = f"{params.ranks[-1]} ranks: ring {ring:.2g}, tree {tree:.2g}, doubling {doubling:.2g}, direct {direct:.2g}"
    return verdict(bool(ring > 5 * max(tree, doubling) and direct < tree), detail)


def check_stagnation(arrays: Arrays, params: Params) -> Outcome:
    """Rounding to nearest loses addends on one side; stochastic rounding does not."""
    nearest, fair = (arrays["biases"][AT[f"BF16, ring{k}"], -1] for k in ("", ", stochastic"))
    errors = [arrays["errors"][AT[f"BF16, ring{k}"], -1] for k in ("", ", stochastic")]
    detail = f"bias {nearest:+.2%} to nearest, {fair:+.2%} stochastic; errors {errors[0]:.2%}, {errors[1]:.2%}"
    return verdict(bool(abs(nearest) > 5 * abs(fair) and errors[1] < errors[0]), detail)


def check_bounds(arrays: Arrays, params: Params) -> Outcome:
    """Each FP32 error is below (n - 1) u, for sums of numbers mostly of one sign with their condition."""
    u = 2.0**-24
    worst = max(arrays["errors"][0, r] / ((n - 1) * u) for r, n in enumerate(params.ranks))
    return verdict(bool(worst < 2), f"the largest error is {worst:.2f} of (n - 1) 2^-24, n up to {params.ranks[-1]}")


def check_gradients(arrays: Arrays, params: Params) -> Outcome:
    """On real gradients the wire's format decides."""
    last = {curve.name: float(arrays["gradient_errors"][c, -1]) for c, curve in enumerate(ON_GRADIENTS)}
    holds = last["FP32, ring"] < last["FP16, ring"] / 100 and last["BF16, ring"] < last["E4M3, ring"] / 4
    holds &= last["FP16, ring"] < last["BF16, ring"] and last["BF16, tree"] < last["BF16, ring"]
    return verdict(holds, f"{rank_counts(params)[-1]} ranks: " + ", ".join(f"{k} {v:.1e}" for k, v in last.items()))


def check_averaging(arrays: Arrays, params: Params) -> Outcome:
    """Dividing first saves the top of FP16's range and costs the bottom, dividing last the other way."""
    (before, after), (n, same) = arrays["fates"], arrays["compared"]
    over = before[:, 0] <= after[:, 0]
    under = before[:, 1] >= after[:, 1]
    more = int((after[:, 0] - before[:, 0]).max()), int((before[:, 1] - after[:, 1]).max())
    return verdict(
        bool(over.all() and under.all() and min(more) > 0),
        f"up to {more[0]} more infinite sums when dividing last, {more[1]} more zeros when dividing first; "
        f"of {n:,} finite pairs {same / n:.1%} are equal to the bit",
    )


def check_skipping(arrays: Arrays, params: Params) -> Outcome:
    """Replicas that skip together stay equal to the bit; those that skip alone part."""
    apart, skips = arrays["apart"], arrays["skips"]
    ends = zip(POLICIES, skips.tolist(), apart[:, -1], strict=True)
    detail = "; ".join(f"{policy}: skips {skip}, apart by {far:.2g}" for policy, skip, far in ends)
    return verdict(bool((apart[0] == 0).all() and apart[1, -1] > 0 and skips[0].min() > 0), detail)


def check_torch(arrays: Arrays, params: Params) -> Outcome:
    """gloo's order, addition by addition in torch's own formats."""
    import torch

    given = arrays["gradients"][:4]
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        rows = torch.from_numpy(given).to(dtype)
        ours = gloo.all_reduce(rows.float().numpy(), name)
        at = gloo.chunks(given.shape[1], 4, 2)
        for chunk in range(4):
            first, *others = gloo.order(chunk, 4)
            total = rows[first]
            for rank in others:
                total = total + rows[rank]
            if not np.array_equal(total.float().numpy()[at == chunk], ours[at == chunk]):
                return failed(f"{name}, chunk {chunk}")
    return passed(f"4 ranks, {given.shape[1]:,} gradients in FP16 and BF16, every bit")


CHECKS = (
    Check("the fast sums are what every message, executed, gives", Evidence.EXACT, check_messages),
    Check("a ring sends 2 (n - 1) / n of the data", Evidence.EXACT, check_volumes),
    Check("FP32 rings stay near (n - 1) half units", Evidence.EXACT, check_bounds),
    Check("in BF16 a ring over thousands of ranks is far worse than a tree", Evidence.EXACT, check_depth),
    Check("stochastic rounding takes the bias out of a long ring", Evidence.EXACT, check_stagnation),
    Check("on real gradients the wire's format decides the error", Evidence.EXACT, check_gradients),
    Check("averaging before the sum risks underflow, after it overflow", Evidence.EXACT, check_averaging),
    Check("replicas stay equal only if all skip together", Evidence.EXACT, check_skipping),
    Check("gloo's sums are torch's additions in gloo's order", Evidence.LIBRARY, check_torch),
)
