"""All-reduce in low precision: what travels, in which order it is added, and what that costs.

Sums of values that thousands of ranks have, and of a network's true gradients, by ring, tree and recursive doubling;
averaging before or after the sum; and what happens to replicas that do not skip an overflowed step together.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import draw, numeric
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import program
from ..language import lang
from ..parallel import collectives
from ..parallel.collectives import Collective, Wire, reduce_fast
from ..words import FIGURE, say
from ..words.patterns import translated
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, failed, verdict
from .panels import line
from .quantities import Columns, beside, of, superior, table
from .statistics import both
from .statistics import superior as above

if TYPE_CHECKING:
    import torch

WIRES = (
    Wire(),
    *(Wire(fmt, add=add) for fmt in ("fp16", "bf16", "e5m2") for add in ("fp32", "wire")),
    *(Wire(fmt, "stochastic", seed=1) for fmt in ("fp16", "bf16", "e5m2")),
)
CURVES = {  # ways to add: the algorithm and what travels
    "FP32, ring": ("ring", Wire()),
    "FP16, ring": ("ring", Wire("fp16")),
    "BF16, ring": ("ring", Wire("bf16")),
    "BF16, ring, added in BF16": ("ring", Wire("bf16", add="wire")),
    "BF16, ring, stochastic": ("ring", Wire("bf16", "stochastic", seed=1)),
    "BF16, tree": ("tree", Wire("bf16")),
    "BF16, doubling": ("doubling", Wire("bf16")),
    "BF16, direct": ("direct", Wire("bf16")),
    "E5M2, ring": ("ring", Wire("e5m2")),
    "E5M2, tree": ("tree", Wire("e5m2")),
}
# A ring, a tree and doubling with every wire: what the quick size leaves out is in the full size's table.
OTHERS = {f"{wire.format} {wire.rounding}, added in {wire.add}, {algorithm}": (algorithm, wire)
          for algorithm in ("ring", "tree", "doubling") for wire in WIRES
          if (algorithm, wire) not in CURVES.values()}  # fmt: skip
# E4M3's range ends at 448: its sums are of gradients, which are scaled to 1.
E4M3 = {"E4M3, ring": ("ring", Wire("e4m3")), "E4M3, tree": ("tree", Wire("e4m3"))}
WAYS = {**CURVES, **OTHERS, **E4M3}
ON_GRADIENTS = ("FP32, ring", "FP16, ring", "BF16, ring", "BF16, ring, stochastic", "BF16, tree", *E4M3)
GROUPS = 4  # of elements, each an independent draw of the simulated sums
FORMATS = ("fp16", "bf16")
RANKS = 4  # of the replicas, and of the drawn collectives
GROWTH = 8  # steps without an overflow after which a scale doubles

# ``ranks``, ``elements``: of the simulated sums. ``shares``: the most ranks that share real gradients, a power of two;
# ``images`` on each of them. ``steps``: of the replicas. ``scales``: loss scales 2^-20, 2^-18, ... below 2^scales (the
# small ones stand for networks whose gradients are smaller). ``every``: with all algorithms and wires. ``networks``: of
# the seeds from ``seed`` on; the first is drawn.
E = Experiment(
    "Collectives in low precision",
    "What does adding gradients over thousands of ranks in BF16, FP16 or FP8 cost, and who must skip a step?",
    budget=5.0, one_thread=True, animation=lambda: moving(),
    full={"ranks": (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096), "elements": 4096, "shares": 64, "images": 16,
          "steps": 64, "scales": 34, "every": True, "seed": 0, "networks": 4},
    quick={"ranks": (2, 16, 128, 2048), "elements": 64, "shares": 32, "steps": 40, "every": False, "networks": 3},
)  # fmt: skip


# --- sums over ranks --------------------------------------------------------------------------------------------
def curves(p: Params) -> list[str]:
    """The ways to add, those that are drawn first."""
    return [*CURVES, *OTHERS] if p.every else [*CURVES]


@E.cache
def values(p: Params) -> np.ndarray:
    """What each of the most ranks has, float32 (ranks, elements): between -1/2 and 3/2, multiples of 2^-22.

    So few bits that sums in float64 are exact; a common part and much noise, as gradients of shares have.
    """
    n = max(p.ranks) * p.elements
    raw = np.random.Philox(key=p.seed).random_raw(n) >> np.uint64(41)
    spread = raw.astype(np.float32) * np.float32(2.0**-22) - np.float32(0.5)
    return np.asarray(spread.reshape(max(p.ranks), p.elements))


@E.cache
def sums(p: Params, curve: str, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """The sums of so many ranks' values, and exact ones."""
    given = values(p)[:ranks]
    return added(given, curve), given.sum(axis=0, dtype=np.float64)


def added(given: np.ndarray, curve: str) -> np.ndarray:
    algorithm, wire = WAYS[curve]
    return np.asarray(reduce_fast(given, given.shape[1], len(given), algorithm, wire))


def against(total: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Relative error in the 2-norm, and the mean signed error over the mean magnitude."""
    off = total.astype(np.float64) - exact
    return float(np.linalg.norm(off) / np.linalg.norm(exact)), float(off.mean() / np.abs(exact).mean())


@E.measure("errors", "biases", axes={"curve": curves, "ranks": "ranks"}, digested=True)
def simulated(p: Params, curve: str, ranks: int) -> tuple[float, float]:
    """Relative error and bias of the simulated sums."""
    return against(*sums(p, curve, ranks))


@E.measure("group_errors", "group_biases", axes={"curve": CURVES, "group": range(GROUPS)})
def grouped(p: Params, curve: str, group: int) -> tuple[float, float]:
    """The same at the most ranks, by group of elements."""
    return against(*(np.array_split(x, GROUPS)[group] for x in sums(p, curve, p.ranks[-1])))


@E.measure("conditions", axes={"ranks": "ranks"})
def condition(p: Params, ranks: int) -> float:
    """The sum of magnitudes over the sum's."""
    magnitudes, total = (x[:ranks].sum(axis=0, dtype=np.float64) for x in (np.abs(values(p)), values(p)))
    return float(np.linalg.norm(magnitudes) / np.linalg.norm(total))


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


@E.cache
def slopes(p: Params, network: int) -> np.ndarray:
    """The gradients of a network's shares."""
    return gradients(p.seed + network, p.shares, p.images)


@E.measure("gradient_errors", axes={"network": "networks", "curve": ON_GRADIENTS,
                                    "ranks": lambda p: [2**i for i in range(1, p.shares.bit_length())]})  # fmt: skip
def mean_errors(p: Params, network: int, curve: str, ranks: int) -> float:
    """Relative error of the mean of real gradients, which are scaled to 1 at most by a power of two.

    Fewer ranks have more images each.
    """
    parts = slopes(p, network)
    given = parts.astype(np.float64).reshape(ranks, -1, parts.shape[1]).mean(axis=1).astype(np.float32)
    given = given * np.float32(2.0 ** -np.ceil(np.log2(np.abs(given).max())))
    return against(added(given, curve), given.sum(axis=0, dtype=np.float64))[0]


@E.measure("infinite", "zero", "pairs", "equal_pairs",
           axes={"network": "networks", "scale": lambda p: range(-20, p.scales, 2)}, dims=("divided",))  # fmt: skip
def averaged(p: Params, network: int, scale: int) -> tuple[Any, ...]:
    """FP16 ring sums of scaled gradients, divided before or after: the share that ends infinite, and wrongly zero;
    where both are finite, how many, and how many of these are equal."""
    parts = slopes(p, network)
    ranks, n = parts.shape
    wire, share, scaled = Wire("fp16"), np.float32(1 / ranks), parts * np.float32(2.0**scale)
    before = np.asarray(reduce_fast(scaled * share, n, ranks, "ring", wire))
    after = np.asarray(reduce_fast(scaled, n, ranks, "ring", wire)) * share
    both, nonzero = np.stack([before, after]), parts.sum(axis=0, dtype=np.float64) != 0
    finite = np.isfinite(both).all(axis=0)
    return (~np.isfinite(both)).mean(axis=1), ((both == 0) & nonzero).mean(axis=1), \
        [finite.sum()] * 2, [(before == after)[finite].sum()] * 2  # fmt: skip


# --- replicas under loss scaling --------------------------------------------------------------------------------
POLICIES = {"network": "networks", "policy": ("together", "alone")}


@E.measure("apart", axes=POLICIES, dims=("step",))
def replicas_apart(p: Params, network: int, policy: str) -> np.ndarray:
    """The largest difference between two replicas' weights, by step."""
    return replicas(p, network, policy)[0]


@E.measure("skips", axes=POLICIES, dims=("rank",))
def skipped_steps(p: Params, network: int, policy: str) -> np.ndarray:
    """How many steps each replica skips."""
    return replicas(p, network, policy)[1]


@E.cache
def replicas(p: Params, network: int, policy: str) -> tuple[np.ndarray, np.ndarray]:
    """Four replicas with FP16 gradients and dynamic loss scales: the largest difference between two replicas' weights,
    by step, and how many steps each skips.

    "together": the scaled sum, infinite wherever one addend is, decides for all. "alone": every rank looks at its own
    gradient before the sum; with an overflow it sends zeros, skips, and halves its own scale; the others go on.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from ..training.tasks import perceptron

    task = perceptron(width=32, hidden=1, batch=16 * RANKS)
    apart = np.zeros(p.steps)
    skips = np.zeros(RANKS, np.int64)
    scales, clean = np.full(RANKS, 2.0**18, np.float32), np.zeros(RANKS, np.int64)
    models = [task.model(p.seed + network) for _ in range(RANKS)]
    weights = np.stack([parameters_to_vector(m.parameters()).detach().numpy() for m in models])
    for step, (inputs, targets) in enumerate(task.batches(p.seed + network, p.steps)):
        halves = []
        for rank, (model, x, y) in enumerate(zip(models, inputs.chunk(RANKS), targets.chunk(RANKS), strict=True)):
            vector_to_parameters(torch.from_numpy(weights[rank].copy()), model.parameters())
            grads = torch.autograd.grad(cross_entropy(model(x), y) * float(scales[rank]), list(model.parameters()))
            halves.append(numeric.quantize(torch.cat([g.flatten() for g in grads]).numpy(), "fp16"))
        over, mean = reduced(np.stack(halves), scales, policy)
        weights = np.where(over[:, None], weights, weights - np.float32(0.1) * mean)
        skips += over
        clean = np.where(over, 0, clean + 1)
        grown = np.where(clean == GROWTH, scales * 2, scales)
        scales, clean = np.where(over, scales / 2, grown).astype(np.float32), clean % GROWTH
        apart[step] = np.abs(weights - weights[0]).max()
    return apart, skips


def reduced(halves: np.ndarray, scales: np.ndarray, policy: str) -> tuple[np.ndarray, np.ndarray]:
    """Which ranks skip, bool (ranks,), and the mean gradient, float32, of those that did not overflow."""
    over = ~np.isfinite(halves).all(axis=1)
    if policy == "together":
        over = np.full(RANKS, over.any())
    sent = np.where(over[:, None], np.float32(0), halves / scales[:, None])
    return over, sent.sum(axis=0, dtype=np.float32) / np.float32(RANKS)


@E.table
def rows(r: Result) -> Columns:
    """A row for each way to add and number of ranks: relative error, and bias (mean of the signed error)."""
    columns = table(relative_error=r.errors, bias=r.biases)
    algorithms, wires = zip(*(WAYS[curve] for curve in columns["curve"]), strict=True)
    ways = {"algorithm": algorithms, "wire": [wire.format for wire in wires], "addition": [wire.add for wire in wires],
            "rounding": [wire.rounding for wire in wires]}  # fmt: skip
    names = ("algorithm", "wire", "rounding", "addition", "ranks", "relative_error", "bias")
    return {name: {**ways, **columns}[name] for name in names}


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved("a ring sends 2 (n - 1) / n of the data")
def volumes(r: Result) -> Iterator[Part]:
    for n in (2, 4, 8, 64):
        ring = collectives.all_reduce(n)
        yield f"{ring.name}, {n}", [*ring.sent(n * 10), len(ring.steps)], [*[2 * (n - 1) * 10] * n, 2 * (n - 1)]
        for half in (collectives.reduce_scatter(n), collectives.all_gather(n)):
            yield f"{half.name}, {n}", half.sent(n), [n - 1] * n


@E.proved("FP32 rings stay within (n - 1) half units of the sum of magnitudes")
def bounds(r: Result) -> Outcome:
    additions = np.array(r.p.ranks) - 1
    reach = additions * 2.0**-24 / (1 - additions * 2.0**-24) * r.conditions.values
    share = r.errors.sel(curve="FP32, ring").values / reach
    detail = say("errors are {low:.2g} to {high:.2g} of the bound, n up to {n}", low=share.min(), high=share.max())
    return verdict(bool((share <= 1).all() and share.max() > 0.01), detail.fill(n=r.p.ranks[-1]))


E.claim(
    superior("depth", "in BF16 a ring over thousands of ranks is more than 5 times worse than a tree",
             of("group_errors", curve="BF16, ring").log2,
             of("group_errors", curve=["BF16, tree", "BF16, doubling"]).max("curve").log2, by=float(np.log2(5))),
    # Rounding to nearest loses addends on one side; stochastic rounding does not. The margin: a fifth of the sum.
    superior("stagnation", "stochastic rounding takes the bias out of a long ring",
             of("group_biases", curve="BF16, ring").then("|bias| to nearest", lambda x: -x),
             of("group_biases", curve="BF16, ring, stochastic").then("|bias| stochastic", abs), by=0.2),
)  # fmt: skip


@E.measured("on real gradients each narrower format of the wire at least doubles the error")
def formats(r: Result) -> Outcome:
    octaves = np.log2(r.gradient_errors.isel(ranks=-1)).transpose("curve", "network")
    by = dict(zip(ON_GRADIENTS, octaves.values, strict=True))
    pairs = itertools.pairwise(("FP32", "FP16", "BF16", "E4M3"))
    apart = np.min([by[f"{wide}, ring"] - by[f"{narrow}, ring"] for narrow, wide in pairs], axis=0)
    trees = np.min([by[f"{fmt}, ring"] - by[f"{fmt}, tree"] for fmt in ("BF16", "E4M3")], axis=0)
    return both(above(apart, 0.0, 1.0, say("from one format to the next, octaves")),
                above(trees, 0.0, 0.0, say("from a tree to a ring, octaves")))  # fmt: skip


@E.measured("averaging before the sum risks underflow, after it overflow")
def averaging(r: Result) -> Outcome:
    """Dividing first saves the top of FP16's range and costs the bottom, dividing last the other way.

    The margin: a hundredth of the gradients, at the loss scale where it shows most.
    """
    infinite, zero = (x.diff("divided").isel(divided=0) for x in (r.infinite, -r.zero))
    if min(infinite.min(), zero.min()) < 0:
        return failed(say("at some loss scale dividing first overflows more, or dividing last loses more"))
    detail = say("up to {infinite:.0%} more infinite sums when dividing last, {zeros:.0%} more zeros when dividing "
                 "first; of {pairs:,} finite pairs {same:.1%} are equal to the bit")  # fmt: skip
    pairs, same = (int(x.isel(divided=0).sum()) for x in (r.pairs, r.equal_pairs))
    detail = detail.fill(infinite=float(infinite.max()), zeros=float(zero.max()), pairs=pairs, same=same / pairs)
    share = np.minimum(infinite.max("scale").values, zero.max("scale").values)
    return above(share, 0.0, 0.01, detail)


@E.measured("replicas stay equal if all skip together, and part if they skip alone")
def skipping(r: Result) -> Outcome:
    skips, ends = r.skips.values[0].tolist(), r.apart.values[0, :, -1]
    detail = say("together: skips {together}, apart by {near:.2g}; alone: skips {alone}, apart by {far:.2g}",
                 together=skips[0], alone=skips[1], near=ends[0], far=ends[1])  # fmt: skip
    if r.apart.sel(policy="together").any() or not r.skips.sel(policy="together").all():
        return failed(say("{all}; of those that skip together some part, or none skips", all=detail))
    return above(r.apart.sel(policy="alone").values[:, -1], 0.0, 1e-3, detail)


@E.library("gloo's own all-reduce gives the sums of the order that the lab says")
def gloo_order(r: Result) -> Iterator[Part]:
    import torch

    from ..parallel import gloo

    types = (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16))
    for ranks, (name, dtype) in itertools.product((3, 4), types):
        given = torch.from_numpy(slopes(r.p, 0)[:ranks]).to(dtype)
        ours = gloo.all_reduce(given.float().numpy(), name)
        yield f"{ranks}, {name}", ours, by_gloo(given).float().numpy()


def by_gloo(given: torch.Tensor) -> torch.Tensor:
    """What gloo's own all-reduce leaves on rank 0, each rank a thread: ``given`` (ranks, elements)."""
    import torch.distributed

    dist: Any = torch.distributed  # whose types leave out what it has
    store = dist.HashStore()
    sums: list[torch.Tensor] = [row.clone() for row in given]

    def run_rank(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, len(given), timedelta(seconds=60))
        group.allreduce([sums[rank]]).wait()

    with ThreadPoolExecutor(len(given)) as ranks:
        list(ranks.map(run_rank, range(len(given))))
    return sums[0]


E.answer("summed over {n:,} ranks in BF16 a ring is {ring:.0%} off, a tree {tree:.1%}; stochastic rounding removes "
         "the bias", n=lambda r: r.p.ranks[-1], ring=of("errors", curve="BF16, ring", ranks=-1),
         tree=of("errors", curve="BF16, tree", ranks=-1))  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
def case_inputs(fmt: str) -> Arrays:
    """Finite values of 64 ranks between 2^-9 and 16 in magnitude, of both signs: bits of the format."""
    raw = philox_bits(7, 64 * 4096, dtype=np.uint16)
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


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """The sums of a ring and of a tree in 16 bits, addition by addition: a case a format."""
    for fmt in FORMATS:
        gives = {"ring": fmt, "tree": fmt}
        yield program(f"sums over ranks in {fmt}", partial(case_inputs, fmt), {"rows": fmt}, over_ranks, gives)


# --- figures ----------------------------------------------------------------------------------------------------
DRAWN = ["FP32, ring", "FP16, ring", "BF16, ring", "BF16, ring, stochastic", "BF16, tree", "E5M2, ring", "E5M2, tree"]
TOP = {"loc": "upper left", "ncols": 2}
E.figure(
    "errors",
    line(of("errors", curve=DRAWN).then("error", lambda x: x.where(x > 0)), x="ranks", hue="curve", log="xy",
         ticks=True, marked=True, legend=TOP, ylim=(None, 1e3), xlabel="ranks", ylabel="relative error of the sum",
         title="Values with a common part: a ring in 16 bits stalls, a tree does not"),
    line(of("gradient_errors", network=0), x="ranks", hue="curve", log="xy", ticks=True, marked=True, legend=TOP,
         ylim=(None, 200), xlabel=lambda r: f"ranks that share {r.p.shares * r.p.images} images",
         ylabel="relative error of the sum", title="Real gradients of a perceptron on digits"),
    size=(8, 10),
)  # fmt: skip
divided = {
    f"{fate}, {way}": of(fate, network=0, divided=i) * 100
    for i, way in enumerate(("divided before the sum", "divided after it"))
    for fate in ("infinite", "zero")
}
E.figure(
    "consequences",
    line(beside("fate", divided), x="scale", hue="fate", legend={"loc": "upper center"},
         xlabel="loss scale, base-2 logarithm", ylabel="of all gradients (%)",
         title="FP16 ring: dividing before the sum loses the small, after it the large"),
    line(of("apart", network=0), x="step", hue="policy", xlabel="training step",
         ylabel="largest difference between weights",
         names={"together": "all ranks skip together", "alone": "a rank that overflows skips alone"},
         title="Four replicas under loss scaling: skipping alone parts them"),
    size=(8, 9),
)  # fmt: skip


class Shown(NamedTuple):
    """A collective that is drawn. ``given``: who has what at first, a bit a rank; ``columns``: room for frames."""

    collective: Collective
    given: np.ndarray
    columns: int
    title: str


def shown() -> tuple[tuple[Shown, ...], tuple[Shown, ...]]:
    bits = 1 << np.arange(RANKS)
    own_bit, every = bits[:, None], np.repeat(bits[:, None], RANKS, axis=1)
    own = np.zeros((RANKS, RANKS), np.int64)
    for chunk in range(RANKS):
        own[(chunk - 1) % RANKS, chunk] = 1 << chunk
    c = collectives
    return (
        (Shown(c.broadcast(RANKS), np.array([[1], [0], [0], [0]]), 3, "broadcast: one to all"),
         Shown(c.reduce(RANKS), own_bit, 3, "reduce: the sum to one (tree)"),
         Shown(c.all_reduce(RANKS, "doubling"), own_bit, 3, "all-reduce by doubling")),
        (Shown(c.reduce_scatter(RANKS), every, 4, "reduce-scatter: a piece of the sum to each (ring)"),
         Shown(c.all_gather(RANKS), own, 4, "all-gather: everybody's piece to all (ring)"),
         Shown(c.all_reduce(RANKS), every, 7, "all-reduce by a ring: reduce-scatter, then all-gather")),
    )  # fmt: skip


def moving() -> str:
    """All of them as one animated SVG file."""
    from ..draw.animation import Moving, animation

    panels = []
    for drawn in itertools.chain(*shown()):
        messages = [[(m.source, m.target, m.chunk) for m in step] for step in drawn.collective.steps]
        there = collectives.contributions(drawn.collective, drawn.given)
        title = re.split("[:：]", translated(drawn.title, FIGURE, lang()))[0]
        panels.append(Moving(title, there, messages))
    return animation(panels)


def frames(two: Sequence[Shown]) -> draw.Figure:
    from ..draw.collectives import draw_frames

    figure, panels = draw.panels(8, 4.4, 2, 1)
    for ax, drawn in zip(panels, two, strict=True):
        written = [{(m.target, m.chunk) for m in step} for step in drawn.collective.steps]
        draw_frames(ax, collectives.contributions(drawn.collective, drawn.given), written, drawn.columns, drawn.title)
    return figure


@E.picture
def trees(r: Result) -> draw.Figure:
    return frames(shown()[0][1:])


@E.picture
def rings(r: Result) -> draw.Figure:
    return frames(shown()[1][:2])  # all-reduce is both, one after the other
