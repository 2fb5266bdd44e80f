"""A whole training run of which every bit is known: FP16 with master weights and a dynamic loss scale.

Mixed precision as in Micikevicius et al. 2018 (arXiv 1710.03740), built only from operations with one right result, and
run twice from one definition: by the lab's kernels and Tensor Core models, and by torch. On a GPU the two must agree on
every bit of every weight after every step; here, without one, torch computes everything but the products. The same run
in the bits of three GPU families shows what their Tensor Cores alone change.

The network is three products with a scaled skip around the second:

    z1 = x W1,  a1 = relu(z1),  z2 = a1 W2,  a2 = relu(z2) + 0.75 a1,  y = a2 W3,  loss = sum (y - t)^2 / (2 batch)

Left out is what would make a bit unknowable: a bias (its gradient is a sum whose order a library chooses), a mean or a
softmax, ``torch.optim`` (fused multiply-adds), square roots, and ``torch.relu`` (the sign of its zero). Every operation
is a call of its own, so that nothing contracts, and is written once, for tensors and for values that round like them.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import draw, numeric, seeds, tensorcore
from ..errors import LabError
from ..hardware import tensors
from ..hardware.cases import Arrays, Case, Meta
from ..hardware.programs import Rounded, cast
from ..hardware.software import gpu_of
from ..training.data import digits
from ..training.scalers.machine import Machine
from ..words import COMMA, joined, say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, passed, verdict
from .panels import line, with_
from .quantities import Columns, of

GPUS = ("V100", "A100", "H100")  # one of each family of FP16 blocks
PAIRS = {"V100-A100": GPUS[:2], "A100-H100": GPUS[1:], "V100-H100": GPUS[::2]}
PIXELS = 64
CLASSES = 16  # outputs: ten digits and six that stay zero, so that every product has whole tiles
SKIP = 0.75  # the factor of the skip: one that FP16 holds, so that no library rounds it
MOMENTUM = float(np.float32(0.9))
INIT_SCALE = 2.0**24  # too large, so that the run begins with skipped steps
GROWTH_INTERVAL = 20

E = Experiment(
    "A training run, bit for bit",
    "Can a whole mixed-precision training run be predicted to the last bit, and what do three GPUs make of it?",
    budget=4.0,
    # Steps of a batch of digits; the width of both hidden layers; the learning rate. Every k of the run's products is
    # batch, hidden, 64 or 16: at most 256, so that a library has no reason to split it. All are multiples of 16.
    full={"steps": 400, "batch": 128, "hidden": 128, "rate": 0.03, "seed": 0},
    quick={"steps": 120, "batch": 64, "hidden": 64},
)  # fmt: skip


def shapes(p: Params) -> tuple[tuple[int, int], ...]:
    """Of the three weights; sizes that would not do are refused."""
    for name in ("batch", "hidden"):
        value = getattr(p, name)
        if not 16 <= value <= 256 or value % 16 or (name == "batch" and value & (value - 1)):
            what = "a power of two" if name == "batch" else "a multiple of 16"
            raise LabError(f"{name}={value} is not possible; allowed: {what} from 16 to 256.")
    return (PIXELS, p.hidden), (p.hidden, p.hidden), (p.hidden, CLASSES)


def parts(p: Params, weights: np.ndarray) -> list[np.ndarray]:
    """The three weights of all in one row."""
    ends = np.cumsum([rows * columns for rows, columns in shapes(p)])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(weights, ends), shapes(p), strict=True)]


def learning_rate(p: Params) -> float:
    """The learning rate as FP32 holds it."""
    return float(np.float32(p.rate))


# --- the two ways to compute ------------------------------------------------------------------------------------
class Backend(NamedTuple):
    """What is not written once. ``load``: a float16 or float32 array as a tensor, or as values that round like one.

    ``product``: FP16 times FP16, summed in FP32, stored as FP16. ``cast``: to "fp16" or "fp32".
    """

    load: Callable[[np.ndarray], Any]
    product: Callable[[Any, Any], Any]
    cast: Callable[[Any, str], Any] = cast


def by_lab(gpu: str, plan: tensorcore.Plan | None = None) -> Backend:
    """The lab's kernels, products with the bits of a GPU. ``plan``: another order of k than one chain."""

    def load(x: np.ndarray) -> Rounded:
        return Rounded(x.astype(np.float32), "fp16" if x.dtype == np.float16 else "fp32")

    def product(a: Rounded, b: Rounded) -> Rounded:
        d = tensorcore.matmul(a.values, b.values, gpu=gpu, inputs="fp16", store="fp16", plan=plan)
        return Rounded(d, "fp16")

    return Backend(load, product)


def by_torch(device: str, gpu: str = "H100") -> Backend:
    """torch's own operations on a device. A CPU has no Tensor Core: there the lab's model of ``gpu`` multiplies."""
    import torch

    def load(x: np.ndarray) -> Any:
        return torch.from_numpy(np.array(x)).to(device)

    def stand_in(a: Any, b: Any) -> Any:
        lab = by_lab(gpu)
        return load(lab.product(lab.load(a.numpy()), lab.load(b.numpy())).values.astype(np.float16))

    return Backend(load, stand_in if device == "cpu" else torch.matmul)


def bits(x: Any) -> np.ndarray:
    """The bits of a tensor, or of values that round like one."""
    return np.asarray(numeric.encode(x.values, x.fmt)) if isinstance(x, Rounded) else tensors.bits(x)


def where_positive(z: Any, x: Any) -> Any:
    """``x`` where ``z`` > 0, else +0."""
    if isinstance(x, Rounded):
        return Rounded(np.where(z.values > 0, x.values, np.float32(0)), x.fmt)
    return x.where(z > 0, x.new_zeros(()))


def finite(x: Any) -> bool:
    """Whether all numbers are."""
    return bool(np.isfinite(x.values).all() if isinstance(x, Rounded) else x.isfinite().all())


# --- a step -----------------------------------------------------------------------------------------------------
# All tensors of a forward and backward pass, in the order in which they are computed; FP16 but for ``error``. The last
# of each weight, g1 to g3, is its gradient, times the loss scale.
Pass = namedtuple("Pass", "z1 a1 z2 a2 y error dy g3 da2 dz2 g2 da1 dz1 g1")


def forward(backend: Backend, halves: Sequence[Any], x: Any) -> tuple[Any, ...]:
    """z1, a1, z2, a2 and the outputs y, of FP16 weights and ``x`` (batch, inputs)."""
    z1 = backend.product(x, halves[0])
    a1 = where_positive(z1, z1)
    z2 = backend.product(a1, halves[1])
    a2 = where_positive(z2, z2) + a1 * SKIP
    return z1, a1, z2, a2, backend.product(a2, halves[2])


def forward_and_backward(backend: Backend, weights: Sequence[Any], x: Any, target: Any, scale: float) -> Pass:
    """The pass of one batch: ``x`` FP16 (batch, inputs), ``target`` FP32 (batch, 16), ``scale`` a power of two."""
    product, cast = backend.product, backend.cast
    halves = [cast(w, "fp16") for w in weights]
    z1, a1, z2, a2, y = forward(backend, halves, x)
    error = cast(y, "fp32") - target
    dy = cast(error * (scale / len(x)), "fp16")
    g3 = product(a2.T, dy)
    da2 = product(dy, halves[2].T)
    dz2 = where_positive(z2, da2)
    g2 = product(a1.T, dz2)
    da1 = product(dz2, halves[1].T) + da2 * SKIP
    dz1 = where_positive(z1, da1)
    g1 = product(x.T, dz1)
    return Pass(z1, a1, z2, a2, y, error, dy, g3, da2, dz2, g2, da1, dz1, g1)


# --- the run ----------------------------------------------------------------------------------------------------
class Trace(NamedTuple):
    """What is kept of a run. ``weights``: all of them after each step, as FP32 bits, uint32 (steps, weights).
    ``digests``: of them, uint64 (steps,); ``scales``, ``skipped``, ``losses`` of each step (the losses for the eye).
    ``passes``: step -> all its tensors, as bits, of the first step and of the first that was not skipped.
    """

    weights: np.ndarray
    digests: np.ndarray
    scales: np.ndarray
    skipped: np.ndarray
    losses: np.ndarray
    passes: dict[int, Arrays]


def first_weights(p: Params) -> list[np.ndarray]:
    """Uniform within +-sqrt(3/K) rounded down to a power of two, from Philox's raw stream: FP32, every bit fixed."""
    weights = []
    for i, (rows, columns) in enumerate(shapes(p)):
        raw = seeds.bits(rows * columns, p.seed, i)
        unit = (raw >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
        bound = 2.0 ** np.floor(np.log2(3 / rows) / 2)
        weights.append((unit * bound).astype(np.float32).reshape(rows, columns))
    return weights


def examples(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels in sixteenths, float16 (n, 64), and targets, float32 (n, 16): 1 at the digit, else 0."""
    data = digits(split)
    x = (data.images.reshape(-1, PIXELS).astype(np.float32) / 16).astype(np.float16)
    return x, np.eye(CLASSES, dtype=np.float32)[data.labels]


def batches(p: Params, count: int) -> Iterator[np.ndarray]:
    """The indices of each step's batch: permutations of the examples, one after the other, incomplete ends left out."""
    each = count // p.batch
    for step in range(p.steps):
        epoch, i = divmod(step, each)
        if i == 0:
            order = seeds.permutation(count, p.seed, 1000 + epoch)
        yield order[i * p.batch : (i + 1) * p.batch]


def train(p: Params, backend: Backend, first: Sequence[np.ndarray] | None = None) -> Trace:
    """The whole run; ``first``: other weights than :func:`first_weights`.

    After every step that is not skipped v = momentum v + g and w = w - lr v, in FP32, an operation at a time.
    """
    machine = Machine(INIT_SCALE, growth_interval=GROWTH_INTERVAL)
    tracked = machine.start()
    x, targets = examples("train")
    weights = [backend.load(w) for w in (first_weights(p) if first is None else first)]
    velocities = [backend.load(np.zeros(shape, np.float32)) for shape in shapes(p)]
    kept, digests, scales, skipped, losses = [], [], [], [], []
    passes: dict[int, Arrays] = {}
    for step, index in enumerate(batches(p, len(x))):
        scale = tracked.scale
        tensors = forward_and_backward(backend, weights, backend.load(x[index]), backend.load(targets[index]), scale)
        gradients = (tensors.g1, tensors.g2, tensors.g3)
        overflow = not all(map(finite, gradients))
        if not overflow:
            unscaled = [backend.cast(g, "fp32") * (1 / scale) for g in gradients]
            velocities = [v * MOMENTUM + g for v, g in zip(velocities, unscaled, strict=True)]
            weights = [w - v * learning_rate(p) for w, v in zip(weights, velocities, strict=True)]
        kept.append(np.concatenate([bits(w).ravel() for w in weights]))
        digests.append(digest(kept[-1]))
        scales.append(scale)
        skipped.append(overflow)
        error = bits(tensors.error).view(np.float32).astype(np.float64)
        losses.append(float((error**2).sum() / (2 * p.batch)))
        if step == 0 or (not overflow and len(passes) < 2):
            passes[step] = {name: bits(x) for name, x in tensors._asdict().items()}
        tracked = machine.after(tracked, overflow)
    return Trace(np.stack(kept), np.array(digests, np.uint64), np.array(scales, np.float32), np.array(skipped),
                 np.array(losses), passes)  # fmt: skip


def digest(weights: np.ndarray) -> int:
    """The first 64 bits of the SHA-256 of all weights' bits, little-endian."""
    return int.from_bytes(hashlib.sha256(weights.astype("<u4").tobytes()).digest()[:8], "little")


def right(p: Params, backend: Backend, weights: np.ndarray) -> tuple[int, int]:
    """How many of the test digits the network labels right, and how many there are. ``weights``: bits, in one row."""
    x, targets = examples("test")
    halves = [backend.cast(backend.load(w.view(np.float32)), "fp16") for w in parts(p, weights)]
    y = bits(forward(backend, halves, backend.load(x))[-1]).view(np.float16)
    return int((y[:, :10].argmax(1) == targets.argmax(1)).sum()), len(x)


@E.cache
def run_of(p: Params, gpu: str) -> Trace:
    """The run in the bits of a GPU."""
    return train(p, by_lab(gpu))


KEPT = ("digests", "scales", "skipped", "losses")


@E.measure(*KEPT, axes={"gpu": GPUS}, dims=("step",), digested=KEPT[:3])
def traced(p: Params, gpu: str) -> tuple[np.ndarray, ...]:
    """By step: a digest of all weights, the loss scale, whether it was skipped, the loss."""
    return run_of(p, gpu)[1:5]


@E.measure("final", axes={"gpu": GPUS}, dims=("weight",), digested=True)
def final(p: Params, gpu: str) -> np.ndarray:
    """The weights after the last step, FP32 bits."""
    return np.asarray(run_of(p, gpu).weights[-1])


@E.measure("right", "tested", axes={"gpu": GPUS}, digested=True)
def answers(p: Params, gpu: str) -> tuple[int, int]:
    """How many of the test digits are labelled right, and how many there are."""
    return right(p, by_lab(gpu), run_of(p, gpu).weights[-1])


@E.measure("apart", "ulps", "spread", axes={"pair": PAIRS}, dims=("step",), digested=("apart", "ulps"))
def compared(p: Params, pair: str) -> tuple[np.ndarray, ...]:
    """Of two GPUs' runs, by step: how many weights differ, and the median distance of all in FP32 ulp; and how many of
    the last weights are equal, and how many have a distance of so many binary digits."""
    return distances(*(run_of(p, gpu).weights for gpu in PAIRS[pair]))


def distances(first: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of weights as FP32 bits (step, weight)."""
    a, b = (np.where(x >> 31, -(x & 0x7FFFFFFF).astype(np.int64), x.astype(np.int64)) for x in (first, other))
    ulps = np.abs(a - b)
    digits = np.minimum(np.frexp(ulps[-1].astype(np.float64))[1], 31)
    return (first != other).sum(axis=1), np.median(ulps, axis=1), np.bincount(digits, minlength=32)


def first_update(r: Result) -> int:
    """The first step that is not skipped."""
    return int(np.flatnonzero(~r.skipped.values[-1])[0])


@E.table
def rows(r: Result) -> Columns:
    """A row for each step: its loss scale, whether it was skipped, and what the three GPUs make of it."""
    columns: dict[str, list[object]] = {"step": list(range(r.p.steps))}
    for gpu in GPUS:
        digests, scales, skipped, losses = (getattr(r, name).sel(gpu=gpu).values.tolist() for name in KEPT)
        columns[f"loss scale {gpu}"] = scales
        columns[f"skipped {gpu}"] = [int(x) for x in skipped]
        columns[f"loss {gpu}"] = [f"{x:.6g}" for x in losses]
        columns[f"digest of the weights {gpu}"] = [f"{x:016x}" for x in digests]
    for pair in PAIRS:
        columns[f"weights that differ {pair}"] = r.apart.sel(pair=pair).values.tolist()
        columns[f"median distance in ulp {pair}"] = r.ulps.sel(pair=pair).values.tolist()
    return columns


# --- claims -----------------------------------------------------------------------------------------------------
@E.library("torch's own elementwise operations, around the same products, give every bit of every weight at every step")
def torch_agrees(r: Result) -> Iterator[Part]:
    for gpu in GPUS:
        with determined():
            theirs = train(r.p, by_torch("cpu", gpu))
            read, _ = right(r.p, by_torch("cpu", gpu), theirs.weights[-1])
        for name in KEPT:
            yield f"{gpu}, {name}", getattr(r, name).sel(gpu=gpu).values, getattr(theirs, name)
        yield gpu, r.final.sel(gpu=gpu).values, theirs.weights[-1], "fp32"
        yield say("{gpu}: torch reads {n} digits right", gpu=gpu, n=read), read == r.right.sel(gpu=gpu)
    yield passed(say("{n:,} weights after each of {steps} steps on {gpus} GPUs", n=r.final.sizes["weight"],
                     steps=r.p.steps, gpus=len(GPUS)))  # fmt: skip


def torchs_scales(first: float, skipped: np.ndarray, interval: int) -> np.ndarray:
    """The scales that torch's GradScaler uses in steps of which some are skipped, float64."""
    import torch

    scale, good, scales = torch.tensor(first), torch.tensor(0, dtype=torch.int32), []
    for overflow in skipped:
        scales.append(scale.item())
        torch._amp_update_scale_(scale, good, torch.tensor(float(overflow)), 2.0, 0.5, interval)
    return np.array(scales)


@E.library("the loss scale is torch's state machine's, step for step")
def loss_scale(r: Result) -> Iterator[Part]:
    for gpu, scales, skipped in zip(GPUS, r.scales.values, r.skipped.values, strict=True):
        yield gpu, scales, torchs_scales(INIT_SCALE, skipped, GROWTH_INTERVAL)
    yield passed(say("{n} of them after overflows", n=int(r.skipped.sum())))


@E.library("the backward pass written out is autograd's")
def backward(r: Result) -> Iterator[Part]:
    """In FP64, without casts, on weights so coarse that no operation rounds.

    Pixels are sixteenths and weights -1, 0 and 1: the longest sums have less than 53 bits, whatever their order.
    """
    import torch

    p = r.p
    x, targets = (torch.from_numpy(a[: p.batch]).double() for a in examples("train"))
    weights = [torch.from_numpy(np.rint(w / np.abs(w).max())).double().requires_grad_() for w in first_weights(p)]
    a1 = (x @ weights[0]).relu()
    a2 = (a1 @ weights[1]).relu() + SKIP * a1
    ((a2 @ weights[2] - targets) ** 2).sum().div(2 * p.batch).backward()
    wide = Backend(torch.from_numpy, torch.matmul, lambda tensor, fmt: tensor)
    with torch.no_grad():
        ours = forward_and_backward(wide, weights, x, targets, 1.0)
    for i, w in enumerate(weights, 1):
        yield f"g{i}", getattr(ours, f"g{i}").numpy(), np.asarray(w.grad)


@E.proved("a skipped step changes no weight, every other step does")
def skipped_steps(r: Result) -> Iterator[Part]:
    """A digest stays through every skipped step, and changes in every other; there are both kinds, early and late."""
    digests, skipped = r.digests.values, r.skipped.values
    yield "digests", digests[:, 1:] == digests[:, :-1], skipped[:, 1:]
    first = first_update(r)
    late = int(skipped[-1, first:].sum())
    detail = say("{gpu}: {first} overflows before the first update, {late} after it", gpu=GPUS[-1])
    yield verdict(first > 0 and late > 0, detail.fill(first=first, late=late))


@E.proved("in this run the three families part with the first update and differ after every other")
def families_part(r: Result) -> Iterator[Part]:
    first, shares = first_update(r), r.apart / r.final.sizes["weight"]
    for pair, gpus in PAIRS.items():
        apart = r.apart.sel(pair=pair).values
        later = int((apart[first:] == 0).sum())
        yield say("{pair}: {n} updates leave no difference", pair=pair, n=later), not (apart[:first].any() or later)
        last = distances(*(r.final.sel(gpu=[gpu]).values for gpu in gpus))
        for got, drawn in zip(last, (r.apart, r.ulps, r.spread), strict=True):
            yield pair, got, drawn.sel(pair=pair).values[-got.size :]
    detail = say("differ after the first update: {first:.1%} at most; at the end {last:.1%}")
    yield passed(detail.fill(first=float(shares[:, first].max()), last=float(shares[:, -1].min())))


@E.proved("in this run all three read more than 85% of the test digits, within 2% of each other")
def they_learn(r: Result) -> Outcome:
    read, tested = r.right.values, int(r.tested[0])
    alike = int(read.max() - read.min()) <= 0.02 * tested
    listed = joined([f"{gpu} {n}" for gpu, n in zip(GPUS, read, strict=True)], COMMA)
    detail = say("of {tested} test digits right: {listed}", tested=tested, listed=listed)
    return verdict(bool(read.min() > 0.85 * tested) and alike, detail)


@E.proved("the constants are numbers of their formats")
def constants(r: Result) -> Outcome:
    """Those of the update of FP32, and the skip's of FP16: no library rounds them on its own."""
    lr = learning_rate(r.p)
    exact = (MOMENTUM, lr, SKIP) == (float(np.float32(MOMENTUM)), float(np.float32(lr)), float(np.float16(SKIP)))
    detail = say("momentum {momentum}, learning rate {lr}, skip {skip}", momentum=MOMENTUM, lr=lr, skip=SKIP)
    return verdict(exact, detail)


# --- what a GPU must compute ------------------------------------------------------------------------------------
# The claim is every bit of every weight after every step, so the run's case is no open question: a difference is a
# failure. A record holds a digest of all weights after each step, the weights themselves after a few, and every tensor
# of two passes, so that a difference can be located. The one risk is the library's order of k: cuBLAS may split k or
# deal it to several accumulators where it has idle cores. k is at most 256 here, which it sums in one chain as far as
# is known; the second case asks for each product by itself, with other orders as hypotheses, and a recording names the
# kernels.

PASSES = ("first", "applied")  # the first step, which overflows, and the first that does not
ORDERS: dict[str, dict[str, Any]] = {
    **{f"split-K {n}": {"split_k": n} for n in (2, 3, 4, 8)},
    **{f"{n} accumulators": {"accumulators": n} for n in (2, 4)},
}
Does = Callable[[Params, Backend, Arrays], Arrays]


def kept_steps(p: Params) -> list[int]:
    """The steps after which whole weights are recorded: a few, the last among them."""
    return sorted({p.steps // 4 - 1, p.steps // 2 - 1, p.steps - 1} - {-1})


def run_inputs(p: Params) -> Arrays:
    """The first weights; the digits come with the package."""
    return {f"w{i + 1}": w.view(np.uint32) for i, w in enumerate(first_weights(p))}


def whole_run(p: Params, backend: Backend, given: Arrays) -> Arrays:
    """What is recorded of a run, as unsigned integers."""
    trace = train(p, backend, [given[f"w{i}"].view(np.float32) for i in (1, 2, 3)])
    recorded: Arrays = {
        "digests": trace.digests, "scales": trace.scales.view(np.uint32), "skipped": trace.skipped.astype(np.uint8),
        "passes": np.array(sorted(trace.passes), np.uint64),
    }  # fmt: skip
    for step in kept_steps(p):
        recorded |= {f"w{i + 1}_after_{step}": w for i, w in enumerate(parts(p, trace.weights[step]))}
    for name, step in zip(PASSES, sorted(trace.passes), strict=False):
        recorded |= {f"{name}_{key}": x for key, x in trace.passes[step].items()}
    return recorded


def run_formats(p: Params) -> dict[str, str]:
    """The formats of what is recorded."""
    formats = {"digests": "bits64", "scales": "fp32", "skipped": "bits8", "passes": "bits64"}
    formats |= {f"w{i}_after_{step}": "fp32" for step in kept_steps(p) for i in (1, 2, 3)}
    return formats | {f"{name}_{key}": "fp32" if key == "error" else "fp16" for name in PASSES for key in Pass._fields}


def product_shapes(p: Params) -> dict[str, tuple[int, int, int, bool, bool]]:
    """The run's products: M, N, K, and which factors are transposed views."""
    b, (pixels, h), (_, classes) = p.batch, shapes(p)[0], shapes(p)[-1]
    return {
        "z1": (b, h, pixels, False, False), "z2": (b, h, h, False, False), "y": (b, classes, h, False, False),
        "g3": (h, classes, b, True, False), "da2": (b, h, classes, False, True), "g2": (h, h, b, True, False),
        "back": (b, h, h, False, True), "g1": (pixels, h, b, True, False),
    }  # fmt: skip


def product_inputs(p: Params) -> Arrays:
    """Factors as they lie in memory, FP16 codes, of both signs within six binades.

    At two random places of k each, all but two pairs of products cancel: what is left are the roundings on the way, and
    these tell one order of k from another even after the cast to FP16.
    """
    factors: Arrays = {}
    for key, (name, (m, n, k, transposed_a, transposed_b)) in enumerate(product_shapes(p).items(), 2000):
        a, b = (random_codes(key, side, shape) for side, shape in ((0, (m, k)), (1, (k, n))))
        order = seeds.permutation(k, key, 2)
        first, other = order[: k // 2 - 2], order[k // 2 : k - 2]
        a[:, other], b[other] = a[:, first] ^ np.uint16(0x8000), b[first]
        factors[f"{name}_a"] = np.ascontiguousarray(a.T if transposed_a else a)
        factors[f"{name}_b"] = np.ascontiguousarray(b.T if transposed_b else b)
    return factors


def random_codes(key: int, side: int, shape: tuple[int, int]) -> np.ndarray:
    """Random FP16 codes from 2**-5 to 2**1, both signs."""
    raw = seeds.bits(shape[0] * shape[1], key, side)
    sign, fraction = (raw >> np.uint64(63)) << np.uint64(15), (raw >> np.uint64(20)) & np.uint64(0x3FF)
    exponent = np.uint64(10) + ((raw >> np.uint64(40)) % np.uint64(6))
    return np.asarray(sign | (exponent << np.uint64(10)) | fraction, np.uint16).reshape(shape)


def products(p: Params, backend: Backend, given: Arrays) -> Arrays:
    """The products by themselves."""
    results = {}
    for name, (*_, transposed_a, transposed_b) in product_shapes(p).items():
        a, b = (backend.load(given[f"{name}_{side}"].view(np.float16)) for side in "ab")
        results[name] = bits(backend.product(a.T if transposed_a else a, b.T if transposed_b else b))
    return results


@contextlib.contextmanager
def determined() -> Iterator[None]:
    """torch on one thread, with nothing of its own choice."""
    import torch

    from ..training.loop import one_thread

    unreduced = {"cuda.matmul.allow_fp16_reduced_precision_reduction": False}
    with one_thread(), tensors.flags_set(unreduced), torch.no_grad():
        yield


def on_device(does: Does, p: Params, given: Arrays, device: str) -> Arrays:
    """By torch on a device."""
    with determined():
        return does(p, by_torch(device), given)


def in_lab(does: Does, p: Params, plan: dict[str, Any], given: Arrays, meta: Meta) -> Arrays:
    """By the lab's kernels, with the products of the record's GPU, in an order of k."""
    return does(p, by_lab(gpu_of(meta), tensorcore.Plan(**plan) if plan else None), given)


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """The run, and each of its products by itself."""
    yield Case(f"{p.steps} steps of training, every bit of every weight", partial(run_inputs, p),
               partial(on_device, whole_run, p), partial(in_lab, whole_run, p, {}), run_formats(p))  # fmt: skip
    hypotheses = {text: partial(in_lab, products, p, plan) for text, plan in ORDERS.items()}
    yield Case("the run's products, one by one", partial(product_inputs, p), partial(on_device, products, p),
               partial(in_lab, products, p, {}), dict.fromkeys(product_shapes(p), "fp16"),
               open="In which order of k does the library sum products this small?", hypotheses=hypotheses)  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
def overflows(ax: draw.Axes, r: Result) -> None:
    """Crosses where a step is skipped."""
    at = np.flatnonzero(r.skipped.values[-1])
    ax.plot(at, np.log2(r.scales.values[-1][at]), linestyle="none", marker="X", markersize=7, color=draw.look(5).color,
            label="overflow: the step is skipped, the scale halved")  # fmt: skip
    ax.legend()


weights = of("final").then("weights", lambda x: x.sizes["weight"])
E.answer("torch and lab agree on every bit of {n:,.0f} weights for {steps} steps; two GPUs' units differ in "
         "{apart:.0%} of them",
         n=weights, steps=lambda r: r.p.steps, apart=of("apart", step=-1) / weights)  # fmt: skip
E.figure(
    "training",
    line("losses", x="step", hue="gpu", ylim=(0, None), xlabel="step", ylabel="loss",
         title=lambda r: "One run in the emulated bits of three GPUs: losses at most "
         f"{float(abs(r.losses - r.losses[-1]).max()):.1e} apart"),
    with_(line(of("scales", gpu="H100").log2, x="step", xlabel="step", ylabel="loss scale (exponent of 2)",
               title="The dynamic loss scale (H100, emulated)"), overflows),
    size=(8, 7),
)  # fmt: skip
E.figure(
    "distances",
    line(of("apart") * 100 / weights, x="step", hue="pair", ylim=(0, 100), xlabel="step",
         ylabel="weights that differ (%)", title="Weights that differ in any bit between GPUs (emulated)"),
    line("spread", x="step", hue="pair", xlim=(0, 24), marked=True, ylabel="weights",
         xlabel="distance at the end, in binary digits of FP32 ulp (0: the same)",
         title="How far apart the weights end"),
    size=(8, 7),
)  # fmt: skip
