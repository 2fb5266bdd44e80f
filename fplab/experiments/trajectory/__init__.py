"""A whole training run of which every bit is known: FP16 with master weights and a dynamic loss scale.

Mixed precision as in Micikevicius et al. 2018 (arXiv 1710.03740), built only from operations with one right result, and
run twice from one definition (``steps``): by the lab's kernels and Tensor Core models, and by torch. On a GPU the two
must agree on every bit of every weight after every step; here, without one, torch computes everything but the
products. The same run in the bits of three GPU families shows what their Tensor Cores alone change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ... import draw
from ...hardware.cases import Arrays, Case, Meta
from ...hardware.software import gpu_of
from ...hardware.tensors import flags_set
from ...seeds import bits as random_bits
from ...seeds import permutation
from ...tensorcore import Plan
from ...words import COMMA, joined, say
from ..base import Claims, Columns, Digested, Experiment, Tick
from ..outcomes import Outcome, failed, passed, verdict
from . import steps
from .steps import MOMENTUM, SKIP, Backend, Params, Pass, bits, by_lab, by_torch, first_weights, right, train

GPUS = ("V100", "A100", "H100")  # one of each family of FP16 blocks
PAIRS = ((0, 1), (1, 2), (0, 2))
KEPT = ("digests", "scales", "skipped", "losses")  # of each trace
QUICK = Params(steps=120, batch=64, hidden=64)


@dataclass(frozen=True)
class Result:
    """``digests`` (GPU, step) of all weights, ``scales``, ``skipped`` and ``losses`` (GPU, step), ``right`` (GPU, 2) of
    the test digits; ``final`` (GPU, weight), FP32 bits; ``apart`` (pair of GPUs, step): how many weights differ,
    ``ulps`` (pair, step): the median distance of all weights in FP32 ulp; ``spread`` (pair, 32): how many of the last
    weights are equal, and how many have a distance of so many binary digits.
    """

    params: Params
    digests: Digested
    scales: Digested
    skipped: Digested
    losses: np.ndarray
    right: Digested
    final: Digested
    apart: Digested
    ulps: Digested
    spread: np.ndarray

    @property
    def first_update(self) -> int:
        return int(np.flatnonzero(~self.skipped[-1])[0])

    @property
    def shares(self) -> np.ndarray:
        """Of the weights that differ, (pair, step)."""
        return np.asarray(self.apart / self.final.shape[1])


def run(params: Params, tick: Tick) -> Result:
    traces, answers = [], []
    for i, gpu in enumerate(GPUS):
        tick(0.95 * i / len(GPUS), f"training in the bits of {gpu}")
        traces.append(train(params, by_lab(gpu)))
        answers.append(right(params, by_lab(gpu), traces[-1].weights[-1]))
    tick(0.95, "distances")
    pairs = zip(*(compared(traces[i].weights, traces[j].weights) for i, j in PAIRS), strict=True)
    kept = {name: np.stack([getattr(trace, name) for trace in traces]) for name in KEPT}
    final = np.stack([trace.weights[-1] for trace in traces])
    apart, ulps, spread = map(np.stack, pairs)
    return Result(params, **kept, right=np.array(answers), final=final, apart=apart, ulps=ulps, spread=spread)


def compared(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of two runs' weights, FP32 bits (step, weight), a row of each of ``apart``, ``ulps`` and ``spread``."""
    a, b = (np.where(x >> 31, -(x & 0x7FFFFFFF).astype(np.int64), x.astype(np.int64)) for x in (one, other))
    distance = np.abs(a - b)
    digits = np.minimum(np.frexp(distance[-1].astype(np.float64))[1], 31)
    return (one != other).sum(axis=1), np.median(distance, axis=1), np.bincount(digits, minlength=32)


def rows(result: Result) -> Columns:
    """A row for each step: its loss scale, whether it was skipped, and what the three GPUs make of it."""
    columns: dict[str, list[object]] = {"step": list(range(result.params.steps))}
    for i, gpu in enumerate(GPUS):
        columns[f"loss scale {gpu}"] = result.scales[i].tolist()
        columns[f"skipped {gpu}"] = result.skipped[i].astype(int).tolist()
        columns[f"loss {gpu}"] = [f"{x:.6g}" for x in result.losses[i].tolist()]
        columns[f"digest of the weights {gpu}"] = [f"{x:016x}" for x in result.digests[i].tolist()]
    for p, (i, j) in enumerate(PAIRS):
        columns[f"weights that differ {GPUS[i]}-{GPUS[j]}"] = result.apart[p].tolist()
        columns[f"median distance in ulp {GPUS[i]}-{GPUS[j]}"] = result.ulps[p].tolist()
    return columns


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.library(
    "torch's own elementwise operations, around the same products, give every bit of every weight at every step"
)
def torch_agrees(result: Result) -> Outcome:
    for i, gpu in enumerate(GPUS):
        with determined():
            theirs = train(result.params, by_torch("cpu", gpu))
            read = right(result.params, by_torch("cpu", gpu), theirs.weights[-1])
        for name in KEPT:
            ours, found = getattr(result, name)[i], getattr(theirs, name)
            if (differ := np.flatnonzero(ours != found)).size:
                at = int(differ[0])
                said = say("{gpu}: {name} differ from step {at} on: {ours} against {theirs}", gpu=gpu, name=name, at=at)
                return failed(said.fill(ours=ours[at], theirs=found[at]))
        if wrong := int((theirs.weights[-1] != result.final[i]).sum()):
            return failed(say("{gpu}: {n} of the last weights differ", gpu=gpu, n=wrong))
        if read != tuple(result.right[i]):
            return failed(say("{gpu}: torch reads {n} of {of} digits right", gpu=gpu, n=read[0], of=read[1]))
    said = say("{n:,} weights after each of {steps} steps on {gpus} GPUs, every bit", n=result.final.shape[1])
    return passed(said.fill(steps=result.params.steps, gpus=len(GPUS)))


@CLAIMS.library("the loss scale is torch's state machine's, step for step")
def loss_scale(result: Result) -> Outcome:
    import torch

    for gpu, scales, skipped in zip(GPUS, result.scales, result.skipped, strict=True):
        theirs, tracker = torch.tensor(steps.INIT_SCALE), torch.tensor(0, dtype=torch.int32)
        for step, scale in enumerate(scales):
            if float(theirs) != float(scale):
                said = say("{gpu}, step {step}: {scale:g}, torch {theirs:g}", gpu=gpu, step=step)
                return failed(said.fill(scale=scale, theirs=float(theirs)))
            overflow = torch.tensor(float(skipped[step]))
            torch._amp_update_scale_(theirs, tracker, overflow, 2.0, 0.5, steps.GROWTH_INTERVAL)
    said = say("{steps} steps on {gpus} GPUs, {n} of them overflows", steps=result.params.steps, gpus=len(GPUS))
    return passed(said.fill(n=result.skipped.sum()))


@CLAIMS.library("the backward pass written out is autograd's")
def backward(result: Result) -> Outcome:
    """In FP64, without casts, on weights so coarse that no operation rounds.

    Pixels are sixteenths and weights -1, 0 and 1: the longest sums have less than 53 bits, whatever their order.
    """
    import torch

    params = result.params
    x, targets = (torch.from_numpy(a[: params.batch]).double() for a in steps.examples("train"))
    weights = [torch.from_numpy(np.rint(w / np.abs(w).max())).double().requires_grad_() for w in first_weights(params)]
    z1 = x @ weights[0]
    a1 = z1.relu()
    a2 = (a1 @ weights[1]).relu() + SKIP * a1
    ((a2 @ weights[2] - targets) ** 2).sum().div(2 * params.batch).backward()
    wide = Backend(torch.from_numpy, torch.matmul, lambda tensor, fmt: tensor)
    with torch.no_grad():
        ours = steps.forward_and_backward(wide, weights, x, targets, 1.0)
    for i, w in enumerate(weights):
        if wrong := int((getattr(ours, f"g{i + 1}") != w.grad).sum()):
            return failed(say("{n:,} of {of:,} gradients of weight {i} differ", n=wrong, of=w.numel(), i=i + 1))
    return passed(say("{n:,} gradients, every bit", n=sum(w.numel() for w in weights)))


@CLAIMS.proved("a skipped step changes no weight, every other step does")
def skipped_steps(result: Result) -> Outcome:
    """A digest stays through every skipped step, and changes in every other; there are both kinds, early and late."""
    stayed = result.digests[:, 1:] == result.digests[:, :-1]
    for gpu, wrong in zip(GPUS, stayed != result.skipped[:, 1:], strict=True):
        if wrong.any():
            return failed(say("{gpu}: step {step} does otherwise", gpu=gpu, step=int(np.flatnonzero(wrong)[0]) + 1))
    first = result.first_update
    late = int(result.skipped[-1, first:].sum())
    said = say("{gpu}: {first} overflows before the first update, {late} after it", gpu=GPUS[-1])
    return verdict(first > 0 and late > 0, said.fill(first=first, late=late))


@CLAIMS.proved("in this run the three families part with the first update and differ after every other")
def families_part(result: Result) -> Outcome:
    first = result.first_update
    for p, (i, j) in enumerate(PAIRS):
        apart, pair = result.apart[p], f"{GPUS[i]}-{GPUS[j]}"
        if apart[:first].any() or (apart[first:] == 0).any():
            return failed(say("{pair}: {n} updates leave no difference", pair=pair, n=(apart[first:] == 0).sum()))
        last = compared(result.final[[i]], result.final[[j]])
        drawn = apart[-1:], result.ulps[p, -1:], result.spread[p]
        if not all(map(np.array_equal, last, drawn)):
            return failed(say("{pair}: what is drawn of the last weights is not theirs", pair=pair))
    said = say("differ after the first update: {first:.1%} at most; at the end {last:.1%}")
    return passed(said.fill(first=result.shares[:, first].max(), last=result.shares[:, -1].min()))


@CLAIMS.proved("in this run all three read more than 85% of the test digits, within 2% of each other")
def they_learn(result: Result) -> Outcome:
    read, (tested, *_) = result.right.T
    alike = int(read.max() - read.min()) <= 0.02 * tested
    listed = joined([f"{gpu} {n}" for gpu, n in zip(GPUS, read, strict=True)], COMMA)
    said = say("of {tested} test digits right: {listed}", tested=tested, listed=listed)
    return verdict(bool(read.min() > 0.85 * tested) and alike, said)


@CLAIMS.proved("the constants are numbers of their formats")
def constants(result: Result) -> Outcome:
    """Those of the update of FP32, and the skip's of FP16: no library rounds them on its own."""
    lr = result.params.lr
    held = (MOMENTUM, lr, SKIP) == (float(np.float32(MOMENTUM)), float(np.float32(lr)), float(np.float16(SKIP)))
    said = say("momentum {momentum}, learning rate {lr}, skip {skip}", momentum=MOMENTUM, lr=lr, skip=SKIP)
    return verdict(held, said)


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


def kept_steps(params: Params) -> list[int]:
    """The steps after which whole weights are recorded: a few, the last among them."""
    return sorted({params.steps // 4 - 1, params.steps // 2 - 1, params.steps - 1} - {-1})


def run_inputs(params: Params) -> Arrays:
    """The first weights; the digits come with the package."""
    return {f"w{i + 1}": w.view(np.uint32) for i, w in enumerate(first_weights(params))}


def whole_run(params: Params, backend: Backend, given: Arrays) -> Arrays:
    """What is recorded of a run, as unsigned integers."""
    trace = train(params, backend, [given[f"w{i}"].view(np.float32) for i in (1, 2, 3)])
    found: Arrays = {
        "digests": trace.digests,
        "scales": trace.scales.view(np.uint32),
        "skipped": trace.skipped.astype(np.uint8),
        "passes": np.array(sorted(trace.passes), np.uint64),
    }
    for step in kept_steps(params):
        found |= {f"w{i + 1}_after_{step}": w for i, w in enumerate(params.parts(trace.weights[step]))}
    for name, (_, tensors) in zip(PASSES, sorted(trace.passes.items()), strict=False):
        found |= {f"{name}_{key}": x for key, x in tensors.items()}
    return found


def run_formats(params: Params) -> dict[str, str]:
    formats = {"digests": "bits64", "scales": "fp32", "skipped": "bits8", "passes": "bits64"}
    formats |= {f"w{i}_after_{step}": "fp32" for step in kept_steps(params) for i in (1, 2, 3)}
    return formats | {f"{p}_{key}": "fp32" if key == "error" else "fp16" for p in PASSES for key in Pass._fields}


def product_shapes(params: Params) -> dict[str, tuple[int, int, int, bool, bool]]:
    """The run's products: M, N, K, and which factors are transposed views."""
    b, (pixels, h), (_, classes) = params.batch, params.shapes[0], params.shapes[-1]
    return {
        "z1": (b, h, pixels, False, False), "z2": (b, h, h, False, False), "y": (b, classes, h, False, False),
        "g3": (h, classes, b, True, False), "da2": (b, h, classes, False, True), "g2": (h, h, b, True, False),
        "back": (b, h, h, False, True), "g1": (pixels, h, b, True, False),
    }  # fmt: skip


def product_inputs(params: Params) -> Arrays:
    """Factors as they lie in memory, FP16 codes, of both signs within six binades.

    At two random places of k each, all but two pairs of products cancel: what is left are the roundings on the way, and
    these tell one order of k from another even after the cast to FP16.
    """
    found: Arrays = {}
    for key, (name, (m, n, k, transposed_a, transposed_b)) in enumerate(product_shapes(params).items(), 2000):
        a, b = (random_codes(key, side, shape) for side, shape in ((0, (m, k)), (1, (k, n))))
        places = permutation(k, key, 2)
        one, other = places[: k // 2 - 2], places[k // 2 : k - 2]
        a[:, other], b[other] = a[:, one] ^ np.uint16(0x8000), b[one]
        found[f"{name}_a"] = np.ascontiguousarray(a.T if transposed_a else a)
        found[f"{name}_b"] = np.ascontiguousarray(b.T if transposed_b else b)
    return found


def random_codes(key: int, side: int, shape: tuple[int, int]) -> np.ndarray:
    """Random FP16 codes from 2**-5 to 2**1, both signs."""
    raw = random_bits(shape[0] * shape[1], key, side)
    sign, fraction = (raw >> np.uint64(63)) << np.uint64(15), (raw >> np.uint64(20)) & np.uint64(0x3FF)
    exponent = np.uint64(10) + ((raw >> np.uint64(40)) % np.uint64(6))
    codes: np.ndarray = (sign | (exponent << np.uint64(10)) | fraction).astype(np.uint16)
    return codes.reshape(shape)


def products(params: Params, backend: Backend, given: Arrays) -> Arrays:
    found = {}
    for name, (*_, transposed_a, transposed_b) in product_shapes(params).items():
        a, b = (backend.load(given[f"{name}_{side}"].view(np.float16)) for side in "ab")
        found[name] = bits(backend.product(a.T if transposed_a else a, b.T if transposed_b else b))
    return found


@contextlib.contextmanager
def determined() -> Iterator[None]:
    """torch on one thread, with nothing of its own choice."""
    import torch

    from ...training.loop import one_thread

    unreduced = {"cuda.matmul.allow_fp16_reduced_precision_reduction": False}
    with one_thread(), flags_set(unreduced), torch.no_grad():
        yield


def on_device(does: Does, params: Params, given: Arrays, device: str) -> Arrays:
    with determined():
        return does(params, by_torch(device), given)


def in_lab(does: Does, params: Params, plan: dict[str, Any], given: Arrays, meta: Meta) -> Arrays:
    """By the lab's kernels, with the products of the record's GPU, in an order of k."""
    return does(params, by_lab(gpu_of(meta), Plan(**plan) if plan else None), given)


def cases(params: Params) -> Iterator[Case]:
    name = f"{params.steps} steps of training, every bit of every weight"
    yield Case(name, partial(run_inputs, params), partial(on_device, whole_run, params),
               partial(in_lab, whole_run, params, {}), run_formats(params))  # fmt: skip
    hypotheses = {text: partial(in_lab, products, params, plan) for text, plan in ORDERS.items()}
    yield Case("the run's products, one by one", partial(product_inputs, params), partial(on_device, products, params),
               partial(in_lab, products, params, {}), dict.fromkeys(product_shapes(params), "fp16"),
               open="In which order of k does the library sum products this small?", hypotheses=hypotheses)  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
def training(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 7)
    params, (read, tested), panels = result.params, result.right[-1], figure.subplots(2, 1, sharex=True)
    loss, scale = panels
    for i, (gpu, losses) in enumerate(zip(GPUS, result.losses, strict=True)):
        loss.plot(losses, **draw.look(i).line, label=gpu, linewidth=(3.2, 2.0, 1.2)[i])
    loss.set(xlim=(-1, params.steps - 1), ylim=(0, None), ylabel="loss")
    loss.legend(loc="upper right")
    gap = np.abs(result.losses - result.losses[-1]).max()
    loss.set_title(f"One run in the emulated bits of three GPUs: losses at most {gap:.1e} apart")

    log2, skipped = np.log2(result.scales[-1]), np.flatnonzero(result.skipped[-1])
    scale.step(np.arange(params.steps), log2, where="post", **draw.look(0).line)
    scale.plot(skipped, log2[skipped], linestyle="none", marker="X", markersize=7, color=draw.look(5).color,
               label="overflow: the step is skipped, the scale halved")  # fmt: skip
    ticks = range(int(log2.min()) - 1, int(log2.max()) + 2, 2)
    scale.set_yticks(ticks, labels=[f"$2^{{{t}}}$" for t in ticks])
    scale.set(xlabel="step", ylabel="loss scale")
    scale.legend(loc="upper right")
    scale.set_title("The dynamic loss scale (H100, emulated)")
    digests = ", ".join(f"{gpu} {int(x):016x}" for gpu, x in zip(GPUS, result.digests[:, -1], strict=True))
    caption = (
        f"64-{params.hidden}-{params.hidden}-16 on the UCI digits, FP16 with FP32 master weights: {params.steps} steps "
        f"of {params.batch}, {read / tested:.1%} of the test digits right\n"
        f"SHA-256 of all {result.final.shape[1]:,} weights at the end, its first 64 bits:\n{digests}"
    )
    draw.caption(figure, caption, fontsize=9)
    return figure


def distances(result: Result) -> draw.Figure:
    figure, (shares, spread) = draw.panels(8, 7, 2, 1)
    top = int(np.flatnonzero(result.spread.sum(axis=0) > result.spread.sum() / 1000)[-1]) + 2
    for p, (i, j) in enumerate(PAIRS):
        pair = f"{GPUS[i]} and {GPUS[j]}"
        shares.plot(100 * result.shares[p], **draw.look(p + 1).line, label=pair)
        spread.plot(100 * result.spread[p, :top] / result.spread[p].sum(), **draw.look(p + 1).marked, label=pair)
    shares.set(xlim=(0, result.params.steps - 1), ylim=(0, 100), xlabel="step", ylabel="weights that differ (%)")
    shares.legend(loc="lower right")
    shares.set_title("Weights that differ in any bit between GPUs (emulated)")
    ticks = [0, *range(3, top, 2)]
    spread.set_xticks(ticks, labels=["same", *(f"$2^{{{t - 1}}}$" for t in ticks[1:])])
    spread.set(ylim=(0, None), xlabel="distance of a weight at the end, by binade of FP32 ulp",
               ylabel="of all weights (%)")  # fmt: skip
    spread.legend(loc="upper right")
    spread.set_title("How far apart the weights end")
    return figure


EXPERIMENT = Experiment(
    title=say("A training run, bit for bit"),
    question=say("Can a whole mixed-precision training run be predicted to the last bit, and what do three GPUs make "
                 "of it?"),
    budget=4.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(training, distances), cases=cases,
)  # fmt: skip
