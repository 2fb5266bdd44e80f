"""All-reduce in low precision: what travels, in which order it is added, and what that costs.

Sums of values that thousands of ranks have, and of a network's true gradients, by ring, tree and recursive doubling;
averaging before or after the sum; and what happens to replicas that do not skip an overflowed step together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw, numeric
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import program
from ..language import lang
from ..parallel import collectives
from ..parallel.collectives import Collective, Wire, reduce_fast
from ..words import COMMA, FIGURE, joined, say
from ..words.patterns import translated
from .base import Claims, Columns, Digested, Experiment, Tick, in_columns, one_threaded
from .outcomes import Outcome, failed, passed, verdict
from .statistics import both, superior

if TYPE_CHECKING:
    import torch


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
AT = {curve.name: i for i, curve in enumerate(CURVES)}
WIRES = (
    Wire(),
    *(Wire(fmt, add=add) for fmt in ("fp16", "bf16", "e5m2") for add in ("fp32", "wire")),
    *(Wire(fmt, "stochastic", seed=1) for fmt in ("fp16", "bf16", "e5m2")),
)
# A ring, a tree and doubling with every wire: what is not drawn is in the full size's table.
OTHERS = tuple(Curve(f"{wire.format} {wire.rounding}, added in {wire.add}, {algorithm}", algorithm, wire)
               for algorithm in ("ring", "tree", "doubling") for wire in WIRES
               if (algorithm, wire) not in {(one.algorithm, one.wire) for one in CURVES})  # fmt: skip
# E4M3's range ends at 448: its sums are of gradients, which are scaled to 1.
E4M3 = (Curve("E4M3, ring", "ring", Wire("e4m3")), Curve("E4M3, tree", "tree", Wire("e4m3")))
ON_GRADIENTS = (CURVES[0], CURVES[1], CURVES[2], CURVES[4], CURVES[5], *E4M3)
GROUPS = 4  # of elements, each an independent draw of the simulated sums
FORMATS = ("fp16", "bf16")


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

    @property
    def rank_counts(self) -> list[int]:
        return [2**i for i in range(1, self.shares.bit_length())]

    @property
    def loss_scales(self) -> range:
        return range(-20, self.scales, 2)


QUICK = Params(ranks=(2, 16, 128, 2048), elements=64, shares=32, steps=40, every=False, networks=3)


@dataclass(frozen=True)
class Result:
    """``errors``, ``biases`` (curve, ranks): of the simulated sums; ``by_group`` (error or bias, curve, group): at the
    most ranks, by group of elements; ``conditions`` (ranks,): the sum of magnitudes over the sum's.

    A network in each row: ``gradients``, float32 (share, parameter); ``gradient_errors`` (curve, ranks) of their mean;
    ``fates``, ``compared``, ``nonzero`` of :func:`averaged`; ``apart``, ``losses``, ``skips`` of :func:`replicas`.
    """

    params: Params
    errors: Digested
    biases: Digested
    by_group: np.ndarray
    conditions: np.ndarray
    gradients: np.ndarray
    gradient_errors: np.ndarray
    fates: np.ndarray
    compared: np.ndarray
    nonzero: np.ndarray
    apart: np.ndarray
    losses: np.ndarray
    skips: np.ndarray


def run(params: Params, tick: Tick) -> Result:
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
    networks = []
    for i in range(params.networks):
        tick(0.6 + 0.4 * i / params.networks, f"gradients and replicas, network {i}")
        one = replace(params, seed=params.seed + i)
        slopes = gradients(one.seed, one.shares, one.images)
        networks.append((slopes, mean_errors(one, slopes), *averaged(one, slopes), *replicas(one)))
    return Result(params, found[0], found[1], groups, conditions, *map(np.stack, zip(*networks, strict=True)))


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


@one_threaded
def gradients(seed: int, shares: int, images: int) -> np.ndarray:
    """The gradient of each share's mean loss, float32 (shares, parameters): a perceptron after 40 steps on digits."""
    import torch
    from torch.nn.functional import cross_entropy

    from ..training.tasks import perceptron

    task = perceptron(width=32, hidden=2, batch=images)
    model = task.model(seed)
    weights = list(model.parameters())
    for batch in task.batches(seed, 40):
        slopes = torch.autograd.grad(task.loss(model, batch), weights)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                weight.sub_(0.1 * slope)
    rows = []
    for inputs, targets in task.batches(seed + 1, shares):
        slopes = torch.autograd.grad(cross_entropy(model(inputs), targets), weights)
        rows.append(torch.cat([slope.flatten() for slope in slopes]).numpy())
    return np.asarray(np.stack(rows), np.float32)


def mean_errors(params: Params, parts: np.ndarray) -> np.ndarray:
    """Relative errors of the mean of real gradients (curve, ranks), which are scaled to 1 at most by a power of two.

    Fewer ranks have more images each.
    """
    out = np.zeros((len(ON_GRADIENTS), len(params.rank_counts)))
    for r, ranks in enumerate(params.rank_counts):
        given = parts.astype(np.float64).reshape(ranks, -1, parts.shape[1]).mean(axis=1).astype(np.float32)
        given = given * np.float32(2.0 ** -np.ceil(np.log2(np.abs(given).max())))
        exact = given.sum(axis=0, dtype=np.float64)
        for c, curve in enumerate(ON_GRADIENTS):
            out[c, r] = against(reduce_fast(given, given.shape[1], ranks, curve.algorithm, curve.wire), exact)[0]
    return out


def averaged(params: Params, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """FP16 ring sums of scaled gradients, divided before or after: how many end infinite, how many wrongly zero.

    ``fates``: int64 (before or after, loss scale, infinite or zero); ``compared``: where both are normal numbers, how
    many, and how many of these are equal; ``nonzero``: sums that are not zero.
    """
    ranks, n = parts.shape
    wire, share = Wire("fp16"), np.float32(1 / ranks)
    fates = np.zeros((2, len(params.loss_scales), 2), np.int64)
    pairs = np.zeros(2, np.int64)
    nonzero = parts.sum(axis=0, dtype=np.float64) != 0
    for s, exponent in enumerate(params.loss_scales):
        scaled = parts * np.float32(2.0**exponent)
        before = reduce_fast(scaled * share, n, ranks, "ring", wire)
        after = np.asarray(reduce_fast(scaled, n, ranks, "ring", wire)) * share
        for way, total in enumerate((before, after)):
            fates[way, s] = int((~np.isfinite(total)).sum()), int(((total == 0) & nonzero).sum())
        fine = np.isfinite(after) & np.isfinite(before)
        pairs += int(fine.sum()), int((before == after)[fine].sum())
    return fates, pairs, np.array([int(nonzero.sum())])


# --- replicas under loss scaling --------------------------------------------------------------------------------
RANKS = 4  # of the replicas, and of the drawn collectives
POLICIES = ("together", "alone")
GROWTH = 8  # steps without an overflow after which a scale doubles


def replicas(params: Params) -> tuple[np.ndarray, ...]:
    """Train four replicas with FP16 gradients and dynamic loss scales, and see how far apart they are.

    "together": the scaled sum, infinite wherever one addend is, decides for all. "alone": every rank looks at its own
    gradient before the sum; with an overflow it sends zeros, skips, and halves its own scale; the others go on.
    ``apart``: float64 (policy, steps), the largest difference between two replicas' weights; ``losses`` (policy,
    steps): the mean over the replicas; ``skips``: int64 (policy, rank).
    """
    return tuple(map(np.stack, zip(*(train(params, policy) for policy in POLICIES), strict=True)))


@one_threaded
def train(params: Params, policy: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from ..training.tasks import perceptron

    task = perceptron(width=32, hidden=1, batch=16 * RANKS)
    apart, losses = np.zeros(params.steps), np.zeros(params.steps)
    skips = np.zeros(RANKS, np.int64)
    scales, clean = np.full(RANKS, 2.0**18, np.float32), np.zeros(RANKS, np.int64)
    models = [task.model(params.seed) for _ in range(RANKS)]
    weights = np.stack([parameters_to_vector(m.parameters()).detach().numpy() for m in models])
    for step, (inputs, targets) in enumerate(task.batches(params.seed, params.steps)):
        halves = []
        for rank, (model, x, y) in enumerate(zip(models, inputs.chunk(RANKS), targets.chunk(RANKS), strict=True)):
            vector_to_parameters(torch.from_numpy(weights[rank].copy()), model.parameters())
            loss = cross_entropy(model(x), y)
            losses[step] += float(loss.detach()) / RANKS
            grads = torch.autograd.grad(loss * float(scales[rank]), list(model.parameters()))
            halves.append(numeric.quantize(torch.cat([g.flatten() for g in grads]).numpy(), "fp16"))
        over, mean = reduced(np.stack(halves), scales, policy)
        weights = np.where(over[:, None], weights, weights - np.float32(0.1) * mean)
        skips += over
        clean = np.where(over, 0, clean + 1)
        grown = np.where(clean == GROWTH, scales * 2, scales)
        scales, clean = np.where(over, scales / 2, grown).astype(np.float32), clean % GROWTH
        apart[step] = np.abs(weights - weights[0]).max()
    return apart, losses, skips


def reduced(halves: np.ndarray, scales: np.ndarray, policy: str) -> tuple[np.ndarray, np.ndarray]:
    """Which ranks skip, bool (ranks,), and the mean gradient, float32, of those that did not overflow."""
    over = ~np.isfinite(halves).all(axis=1)
    if policy == "together":
        over = np.full(RANKS, over.any())
    sent = np.where(over[:, None], np.float32(0), halves / scales[:, None])
    return over, sent.sum(axis=0, dtype=np.float32) / np.float32(RANKS)


def rows(result: Result) -> Columns:
    """A row for each way to add and number of ranks: relative error, and bias (mean of the signed error)."""
    table = []
    for (c, curve), (r, ranks) in product(enumerate(result.params.curves), enumerate(result.params.ranks)):
        wire, found = curve.wire, (float(result.errors[c, r]), float(result.biases[c, r]))
        table.append((curve.algorithm, wire.format, wire.rounding, wire.add, ranks, *found))
    return in_columns(("algorithm", "wire", "rounding", "addition", "ranks", "relative_error", "bias"), table)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("a ring sends 2 (n - 1) / n of the data")
def volumes(result: Result) -> Outcome:
    for n in (2, 4, 8, 64):
        ring = collectives.all_reduce(n)
        if ring.sent(n * 10) != [2 * (n - 1) * 10] * n or len(ring.steps) != 2 * (n - 1):
            return failed(say("{n} ranks: {sent}", n=n, sent=ring.sent(n * 10)))
        if collectives.reduce_scatter(n).sent(n) != [n - 1] * n or collectives.all_gather(n).sent(n) != [n - 1] * n:
            return failed(say("{n} ranks: reduce-scatter or all-gather sends something else than (n - 1) / n", n=n))
    return passed(say("2, 4, 8 and 64 ranks, counted message by message"))


@CLAIMS.proved("FP32 rings stay within (n - 1) half units of the sum of magnitudes")
def bounds(result: Result) -> Outcome:
    u, ranks = 2.0**-24, np.array(result.params.ranks)
    reach = (ranks - 1) * u / (1 - (ranks - 1) * u) * result.conditions
    share = result.errors[0] / reach
    said = say("errors are {low:.2g} to {high:.2g} of the bound, n up to {n}", low=share.min(), high=share.max())
    return verdict(bool((share <= 1).all() and share.max() > 0.01), said.fill(n=ranks[-1]))


def grouped(result: Result, *names: str, bias: bool = False) -> list[np.ndarray]:
    """Of each curve the errors (or biases) at the most ranks, by group of elements."""
    return [result.by_group[int(bias), AT[f"BF16, {name}"]] for name in names]


@CLAIMS.measured("in BF16 a ring over thousands of ranks is more than 5 times worse than a tree")
def depth(result: Result) -> Outcome:
    if not np.allclose(result.by_group[0].mean(1), result.errors[:, -1], rtol=0.2):
        return failed(say("the errors drawn are not those of their groups of elements"))
    ring, tree, doubling, direct = (np.log2(x) for x in grouped(result, "ring", "tree", "doubling", "direct"))
    said = say("{n} ranks: ring {ring:.2g}, tree {tree:.2g}, doubling {doubling:.2g}, direct {direct:.2g}; "
               "of the ring, octaves", n=result.params.ranks[-1], ring=2 ** ring.mean(), tree=2 ** tree.mean(),
               doubling=2 ** doubling.mean(), direct=2 ** direct.mean())  # fmt: skip
    return superior(ring, np.maximum(tree, doubling), np.log2(5), said)


@CLAIMS.measured("stochastic rounding takes the bias out of a long ring")
def stagnation(result: Result) -> Outcome:
    """Rounding to nearest loses addends on one side; stochastic rounding does not. The margin: a fifth of the sum."""
    nearest, fair = grouped(result, "ring", "ring, stochastic", bias=True)
    said = say("bias {nearest:+.2%} to nearest, {fair:+.2%} stochastic", nearest=nearest.mean(), fair=fair.mean())
    return superior(-nearest, np.abs(fair), 0.2, said)


@CLAIMS.measured("on real gradients each narrower format of the wire at least doubles the error")
def formats(result: Result) -> Outcome:
    last = np.log2(result.gradient_errors[..., -1])
    by = {curve.name: last[:, c] for c, curve in enumerate(ON_GRADIENTS)}
    listed = joined([f"{name} {2 ** error.mean():.1e}" for name, error in by.items()], COMMA)
    said = say("{n} ranks: {errors}; from one format to the next, octaves", n=result.params.rank_counts[-1])
    apart = np.min([by[f"{wide}, ring"] - by[f"{narrow}, ring"]
                    for narrow, wide in pairwise(("FP32", "FP16", "BF16", "E4M3"))], axis=0)  # fmt: skip
    trees = np.min([by[f"{fmt}, ring"] - by[f"{fmt}, tree"] for fmt in ("BF16", "E4M3")], axis=0)
    return both(superior(apart, 0.0, 1.0, said.fill(errors=listed)),
                superior(trees, 0.0, 0.0, say("from a tree to a ring, octaves")))  # fmt: skip


@CLAIMS.measured("averaging before the sum risks underflow, after it overflow")
def averaging(result: Result) -> Outcome:
    """Dividing first saves the top of FP16's range and costs the bottom, dividing last the other way.

    The margin: a hundredth of the gradients, at the loss scale where it shows most.
    """
    before, after = result.fates[:, 0], result.fates[:, 1]  # (network, scale, infinite or zero)
    pairs, same = result.compared.sum(axis=0)
    if (before[..., 0] > after[..., 0]).any() or (before[..., 1] < after[..., 1]).any():
        return failed(say("at some loss scale dividing first overflows more, or dividing last loses more"))
    more = np.stack([(after - before)[..., 0].max(axis=1), (before - after)[..., 1].max(axis=1)])
    said = say("up to {infinite} more infinite sums when dividing last, {zeros} more zeros when dividing first; "
               "of {pairs:,} finite pairs {same:.1%} are equal to the bit")  # fmt: skip
    said = said.fill(infinite=more[0].max(), zeros=more[1].max(), pairs=pairs, same=same / pairs)
    share = more.min(axis=0) / result.gradients.shape[-1]
    return superior(share, 0.0, 0.01, said)


@CLAIMS.measured("replicas stay equal if all skip together, and part if they skip alone")
def skipping(result: Result) -> Outcome:
    skips, ends = result.skips[0].tolist(), result.apart[0, :, -1]
    said = say("together: skips {together}, apart by {near:.2g}; alone: skips {alone}, apart by {far:.2g}",
               together=skips[0], alone=skips[1], near=ends[0], far=ends[1])  # fmt: skip
    if result.apart[:, 0].any() or not result.skips[:, 0].all():
        return failed(say("{all}; of those that skip together some part, or none skips", all=said))
    return superior(result.apart[:, 1, -1], 0.0, 1e-3, said)


@CLAIMS.library("gloo's own all-reduce gives the sums of the order that the lab says")
def gloo_order(result: Result) -> Outcome:
    import torch

    from ..parallel import gloo

    for ranks in (3, 4):
        for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
            given = torch.from_numpy(result.gradients[0, :ranks]).to(dtype)
            theirs, ours = by_gloo(given).float().numpy(), gloo.all_reduce(given.float().numpy(), name)
            if not np.array_equal(ours, theirs):
                wrong = say("{ranks} ranks, {fmt}: {n} of {all} sums differ", ranks=ranks, fmt=name)
                return failed(wrong.fill(n=int((ours != theirs).sum()), all=ours.size))
    return passed(say("3 and 4 ranks, {n:,} gradients in FP32, FP16 and BF16, every bit", n=ours.size))


def by_gloo(given: torch.Tensor) -> torch.Tensor:
    """What gloo's own all-reduce leaves on rank 0, each rank a thread: ``given`` (ranks, elements)."""
    import torch.distributed

    dist: Any = torch.distributed  # whose types leave out what it has
    store = dist.HashStore()
    sums: list[torch.Tensor] = [row.clone() for row in given]

    def one(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, len(given), timedelta(seconds=60))
        group.allreduce([sums[rank]]).wait()

    with ThreadPoolExecutor(len(given)) as ranks:
        list(ranks.map(one, range(len(given))))
    return sums[0]


# --- what a GPU must compute ------------------------------------------------------------------------------------
def case_inputs(fmt: str) -> Arrays:
    """Finite values of 64 ranks between 2^-9 and 16 in magnitude, of both signs: bits of the format."""
    raw = philox_bits(7, 64 * 4096, np.uint16)
    low, fraction = {"fp16": (6, 10), "bf16": (118, 7)}[fmt]
    exponent = low + (raw >> 4) % np.uint16(13)
    significand = raw * 40503 & np.uint16((1 << fraction) - 1)
    codes = (raw & np.uint16(0x8000)) | (exponent << np.uint16(fraction)) | significand
    return {"rows": codes.astype(np.uint16).reshape(64, 4096)}


def over_ranks(rows: Any) -> dict[str, Any]:
    """Sums rank by rank, and pairwise."""
    ring = rows[0]
    for i in range(1, len(rows)):
        ring = ring + rows[i]
    while len(rows) > 1:
        rows = rows[0::2] + rows[1::2]
    return {"ring": ring, "tree": rows[0]}


def cases(params: Params) -> Iterator[Case]:
    """The sums of a ring and of a tree in 16 bits, addition by addition: a case a format."""
    for fmt in FORMATS:
        gives = {"ring": fmt, "tree": fmt}
        yield program(f"sums over ranks in {fmt}", partial(case_inputs, fmt), {"rows": fmt}, over_ranks, gives)


# --- figures ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Shown:
    """A collective that is drawn. ``given``: who has what at first, a bit a rank; ``columns``: room for frames."""

    collective: Collective
    given: np.ndarray
    columns: int
    title: str


def shown() -> tuple[tuple[Shown, ...], tuple[Shown, ...]]:
    bits = 1 << np.arange(RANKS)
    one, every = bits[:, None], np.repeat(bits[:, None], RANKS, axis=1)
    own = np.zeros((RANKS, RANKS), np.int64)
    for chunk in range(RANKS):
        own[(chunk - 1) % RANKS, chunk] = 1 << chunk
    c = collectives
    return (
        (Shown(c.broadcast(RANKS), np.array([[1], [0], [0], [0]]), 3, "broadcast: one to all"),
         Shown(c.reduce(RANKS), one, 3, "reduce: the sum to one (tree)"),
         Shown(c.all_reduce(RANKS, "doubling"), one, 3, "all-reduce by doubling")),
        (Shown(c.reduce_scatter(RANKS), every, 4, "reduce-scatter: a piece of the sum to each (ring)"),
         Shown(c.all_gather(RANKS), own, 4, "all-gather: everybody's piece to all (ring)"),
         Shown(c.all_reduce(RANKS), every, 7, "all-reduce by a ring: reduce-scatter, then all-gather")),
    )  # fmt: skip


def moving() -> str:
    """All of them as one animated SVG file."""
    from ..draw.animation import Moving, animation

    panels = []
    for one in (one for line in shown() for one in line):
        messages = [[(m.source, m.target, m.chunk) for m in step] for step in one.collective.steps]
        there = collectives.contributions(one.collective, one.given)
        title = re.split("[:：]", translated(one.title, FIGURE, lang()))[0]
        panels.append(Moving(title, there, messages))
    return animation(panels)


def frames(line: Sequence[Shown]) -> draw.Figure:
    from ..draw.collectives import draw_frames

    figure, panels = draw.panels(8, 6.5, len(line), 1)
    for ax, one in zip(panels, line, strict=True):
        written = [{(m.target, m.chunk) for m in step} for step in one.collective.steps]
        draw_frames(ax, collectives.contributions(one.collective, one.given), written, one.columns, one.title)
    return figure


def trees(result: Result) -> draw.Figure:
    return frames(shown()[0])


def rings(result: Result) -> draw.Figure:
    return frames(shown()[1])


def errors(result: Result) -> draw.Figure:
    figure, (simulated, real) = draw.panels(8, 10, 2, 1)
    draw_errors(simulated, result.params.ranks, dict(zip(CURVES, result.errors, strict=False)))
    simulated.set(xlabel="ranks", title="Values with a common part, simulated")
    draw_errors(real, result.params.rank_counts, dict(zip(ON_GRADIENTS, result.gradient_errors[0], strict=True)))
    real.set(xlabel=f"ranks that share {result.params.shares * result.params.images} images",
             title="Real gradients of a perceptron on digits")  # fmt: skip
    return figure


def draw_errors(ax: draw.Axes, ranks: Sequence[int], by: dict[Curve, np.ndarray]) -> None:
    for i, (curve, error) in enumerate(by.items()):
        hollow: dict[str, Any] = {"markerfacecolor": draw.current().background} if i >= 8 else {}
        ax.plot(ranks, np.where(error > 0, error, np.nan), **draw.look(i).marked, **hollow, markersize=4, linewidth=1.4,
                label=curve.name)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", ylim=(None, 1e3 if len(by) > 8 else 200), ylabel="relative error of the sum")
    ax.legend(ncols=2, loc="upper left", fontsize=9)


def consequences(result: Result) -> draw.Figure:
    figure, (average, apart) = draw.panels(8, 9, 2, 1)
    n, scales = result.gradients.shape[-1], list(result.params.loss_scales)
    for way, name in enumerate(("divided before the sum", "divided after it")):
        for fate, what in enumerate(("infinite", "zero")):
            style = draw.look(fate)
            average.plot(scales, 100 * result.fates[0][way, :, fate] / n, color=style.color, marker=style.marker,
                         markersize=4, linestyle="-" if way else (0, (3, 2)), label=f"{what}, {name}")  # fmt: skip
    average.set_xticks(scales[::4], [f"$2^{{{e}}}$" for e in scales[::4]])
    average.set(xlabel="loss scale", ylabel="of all gradients (%)",
                title=f"FP16 ring over {result.params.shares} ranks: average before or after?")  # fmt: skip
    average.legend(loc="upper center")
    for i, policy in enumerate(POLICIES):
        label = f"a rank that overflows skips {policy}" if i else "all ranks skip together"
        apart.plot(np.arange(1, result.params.steps + 1), result.apart[0][i], **draw.look(i).line, label=label)
    apart.set(xlabel="training step", ylabel="largest difference between weights",
              title="Four replicas under loss scaling")  # fmt: skip
    apart.legend(loc="upper left")
    return figure


EXPERIMENT = Experiment(
    title=say("Collectives in low precision"),
    question=say("What does adding gradients over thousands of ranks in BF16, FP16 or FP8 cost, and who must skip a "
                 "step?"),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(errors, consequences, trees, rings), cases=cases, animation=moving,
)  # fmt: skip
