"""Gradient underflow and loss scaling, on the true gradients of a network that is trained in FP32.

The mean cross-entropy of a batch is the loss, and nothing else shrinks the gradients: what falls below FP16's range
does so because a trained network is sure of its answers. After Micikevicius et al. 2018, Mixed Precision Training
(arXiv 1710.03740), sections 3.1 and 3.2, Figures 2 and 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import draw, formats, numeric
from ..hardware.cases import Arrays, Case
from ..hardware.programs import cast, program
from ..hardware.tensors import bits, overflow_of, tensor
from ..words import say
from . import lost_updates
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, verdict
from .panels import line, with_
from .quantities import of, superior

FORMATS = ("fp16", "bf16", "e5m2", "e4m3")
HALVES = FORMATS[:2]
KINDS = ("activation", "weight")
LAYERS = ("conv1", "conv2", "conv3", "linear")
FATES = ("zero", "subnormal", "normal", "overflow")
LOWEST, HIGHEST = -149, 127  # the binades of FP32
SCALES = (0, 3, 15)  # exponents: none, the scale that saved SSD in the paper, and its largest
LARGEST_LOST = 2.0**-25  # a tie between 0 and FP16's smallest subnormal: zero

# ``every``: steps between two snapshots. ``scales``: loss scales 2^0 to 2^scales. ``sample``: how many values a GPU
# case takes. ``seeds``: networks over which the share of lost gradients is measured; all else is of the first.
E = Experiment(
    "Gradient underflow and loss scaling",
    "Which gradients of a real network does a narrow format lose, and what does a loss scale save?",
    budget=6.0, one_thread=True,
    full={"epochs": 16, "batch": 64, "lr": 0.05, "momentum": 0.9, "seed": 0, "every": 11, "scales": 24, "sample": 4096,
          "seeds": 3},
    quick={"epochs": 8, "every": 35},
)  # fmt: skip


# --- a training run's true gradients, weights and updates -------------------------------------------------------
class Gathered(NamedTuple):
    """What a run computed in FP32, of all snapshots, which were taken at ``steps``, one after the other.

    ``gradients``: the non-zero ones by kind, float32; ``zeros``: how many others there are. ``sizes``: non-zero
    activation gradients by snapshot and layer. ``weights``, ``updates``: float32, as long as each other.
    """

    steps: np.ndarray
    gradients: dict[str, np.ndarray]
    zeros: dict[str, int]
    sizes: np.ndarray
    weights: np.ndarray
    updates: np.ndarray


def recipe(p: Params, seed: int) -> Any:
    """How a seed's network is trained."""
    from .. import training

    return training.Recipe(p.epochs, p.batch, p.lr, p.momentum, seed)


@E.cache
def gathered(p: Params, seed: int) -> Gathered:
    """A seed's run."""
    from .. import training

    data, how = training.digits("train"), recipe(p, seed)
    total = how.steps(len(data.labels))
    at = sorted({*range(0, total, p.every), total - 1})
    snapshots = training.train(training.digits_net(seed), data, how, at).snapshots
    values = {"activation": [s.activation_gradients[name].ravel() for s in snapshots for name in LAYERS],
              "weight": [g.ravel() for s in snapshots for g in s.weight_gradients.values()]}  # fmt: skip
    whole = {kind: np.concatenate(parts) for kind, parts in values.items()}
    return Gathered(
        np.array(at), {kind: x[x != 0] for kind, x in whole.items()},
        {kind: int((x == 0).sum()) for kind, x in whole.items()},
        np.array([np.count_nonzero(x) for x in values["activation"]]).reshape(-1, len(LAYERS)),
        np.concatenate([x.ravel() for s in snapshots for x in s.weights.values()]),
        np.concatenate([x.ravel() for s in snapshots for x in s.updates.values()]),
    )  # fmt: skip


def network(p: Params, snapshot: int, updated: bool = False) -> Any:
    """The network of a snapshot, before its step or updated."""
    import torch

    from .. import training

    run, model = gathered(p, p.seed), training.digits_net(p.seed)
    weights = run.weights + run.updates if updated else run.weights
    chosen = torch.from_numpy(weights.reshape(len(run.steps), -1)[snapshot].copy())
    torch.nn.utils.vector_to_parameters(chosen, model.parameters())
    return model


def scaled(values: np.ndarray, exponent: int) -> np.ndarray:
    """``values * 2**exponent`` in FP32, exact as long as it stays finite."""
    return values * np.float32(2.0**exponent)


def times_rate(gradients: np.ndarray, lr: float) -> np.ndarray:
    """``gradients * lr`` in FP32, rounded once."""
    return gradients * np.float32(lr)


# --- what formats make of them ----------------------------------------------------------------------------------
@E.measure("zero_in_fp32", *FATES,
           axes={"gradients": KINDS, "format": FORMATS, "log2_loss_scale": lambda p: range(p.scales + 1)})  # fmt: skip
def counts(p: Params, gradients: str, format: str, log2_loss_scale: int) -> tuple[int, ...]:
    """How many gradients are zero, and how many of the others meet each fate at a loss scale."""
    run = gathered(p, p.seed)
    rounded = numeric.quantize(scaled(run.gradients[gradients], log2_loss_scale), format)
    return run.zeros[gradients], *count(rounded, format)


@E.measure(axes={"seed": lambda p: range(p.seed, p.seed + p.seeds), "scale": SCALES})
def lost(p: Params, seed: int, scale: int) -> float:
    """What FP16 makes zero, of all activation gradients of a network."""
    there = gathered(p, seed).gradients["activation"]
    gone = int((numeric.quantize(scaled(there, scale), "fp16") == 0).sum())
    return gone / (there.size + gathered(p, seed).zeros["activation"])


@E.measure(axes={"step": ...}, dims=("layer",))
def lost_by_layer(p: Params) -> dict[int, np.ndarray]:
    """How many of the non-zero activation gradients FP16 makes zero, by step and layer."""
    run = gathered(p, p.seed)
    gone = split_sums(numeric.quantize(run.gradients["activation"], "fp16") == 0, run.sizes)
    return dict(zip(run.steps.tolist(), gone, strict=True))


@E.measure(axes={"values": (*KINDS, "product"), "binade": ...})
def binades(p: Params, values: str) -> dict[int, int]:
    """How many gradients, and products of weight gradients and learning rate, lie in each binade."""
    return dict(zip(range(LOWEST, HIGHEST + 1), histogram(drawn(p, values)).tolist(), strict=True))


@E.measure()
def accuracy(p: Params) -> float:
    """The share of the test digits that the network reads in the end, from its last weights and updates."""
    from .. import training

    return float(training.accuracy(network(p, -1, updated=True), training.digits("test")))


@E.measure(axes={"format": FORMATS}, dims=("edge",), digested=True)
def thresholds(p: Params, format: str) -> list[int]:
    """The exponents of the lowest powers of two that are not rounded to zero, are normal, overflow."""
    exponents, form = np.arange(-200, 200), formats.get(format)
    rounded = np.abs(numeric.quantize(np.ldexp(1.0, exponents), format))
    edges = (rounded > 0, rounded >= form.smallest_normal, ~(rounded <= form.max))
    return [int(exponents[np.argmax(edge)]) for edge in edges]


def drawn(p: Params, values: str) -> np.ndarray:
    """The values of a histogram."""
    gradients = gathered(p, p.seed).gradients
    return times_rate(gradients["weight"], p.lr) if values == "product" else gradients[values]


def count(rounded: np.ndarray, fmt: str) -> list[int]:
    """How many rounded values of a format are zero, subnormal, normal, and infinite or NaN."""
    form, magnitude = formats.get(fmt), np.abs(rounded)
    below = [int((magnitude == 0).sum()), int((magnitude < form.smallest_normal).sum()),
             int((magnitude <= form.max).sum()), rounded.size]  # fmt: skip
    return np.diff(below, prepend=0).tolist()


def histogram(values: np.ndarray) -> np.ndarray:
    """How many values lie in each binade of FP32, by their exponents as floats."""
    exponents = np.frexp(values[values != 0])[1] - 1
    return np.asarray(np.bincount(exponents - LOWEST, minlength=HIGHEST - LOWEST + 1))


def split_sums(flags: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The sum of flags over consecutive stretches of ``sizes`` (any shape) elements."""
    running, ends = np.concatenate([[0], np.cumsum(flags)]), np.cumsum(sizes)
    return np.asarray((running[ends] - running[ends - sizes.ravel()]).reshape(sizes.shape))


@E.cache
def sums(p: Params) -> list[lost_updates.Sums]:
    """Weights and updates as both halves hold them, no update zero, and whether their sum is the weight."""
    run, rows = gathered(p, p.seed), []
    for fmt in HALVES:
        w, u = (numeric.quantize(x, fmt) for x in (run.weights, run.updates))
        w, u = (x[u != 0].astype(np.float64) for x in (w, u))
        rows.append((fmt, w, u, np.asarray(numeric.add(w, u, fmt) == w)))
    return rows


def counts_from_edges(magnitudes: np.ndarray, fmt: str, exponent: int) -> np.ndarray:
    """The four fates of sorted float64 magnitudes times 2**exponent by comparison alone, without rounding any."""
    *limits, tie_overflows = edges(fmt)
    sides: Any = ("right", "left", "left" if tie_overflows else "right")
    ends = [int(np.searchsorted(magnitudes, x * 2.0**-exponent, side)) for x, side in zip(limits, sides, strict=True)]
    return np.diff([0, *ends, magnitudes.size])


def edges(fmt: str) -> tuple[float, float, float, bool]:
    """Where RNE changes a magnitude's fate, exact: zero up to, subnormal below, overflow above, and at it or not."""
    form = formats.get(fmt)
    half = form.smallest_subnormal / 2  # a tie between code 0 and code 1: zero
    half_top = math.ldexp(0.5, form.emax - form.fraction_bits)
    return half, form.smallest_normal - half, form.max + half_top, form.max_code % 2 == 1


# --- claims -----------------------------------------------------------------------------------------------------
def counted(r: Result, kind: str | list[str], fmt: str, scale: int) -> np.ndarray:
    """The four fates of gradients in a format at a loss scale."""
    at = {"gradients": kind, "format": fmt, "log2_loss_scale": scale}
    return np.array([int(getattr(r, fate).sel(at).sum()) for fate in FATES])


def all_gradients(r: Result) -> np.ndarray:
    """The non-zero gradients of both kinds, float32."""
    return np.concatenate([*gathered(r.p, r.p.seed).gradients.values()])


@E.proved("The network is a trained one: it reads more than 95% of the test digits")
def trained_network(r: Result) -> Outcome:
    return verdict(r.accuracy > 0.95, f"{r.accuracy:.1%}")


Cast = Callable[[np.ndarray, str], np.ndarray]
SEEN = 6  # binades between the loss scales at which the slower libraries cast


def casts_alike(r: Result, theirs: Cast, fmts: Sequence[str], every: int = 1, torch: str = "") -> Iterator[Part]:
    """A library's ``theirs(values, fmt) -> codes`` beside the kernels' bits and counts.

    ``every``: binades between two loss scales. ``torch``: the version that casts, where it is torch.
    """
    for fmt, kind, s in itertools.product(fmts, KINDS, range(0, r.p.scales + 1, every)):
        values, policy = scaled(gathered(r.p, r.p.seed).gradients[kind], s), overflow_of(fmt, torch)
        codes, name = theirs(values, fmt), say("{kind} gradients * 2^{s} to {fmt}", kind=kind, s=s, fmt=fmt)
        yield name, numeric.encode(values, fmt, overflow=policy), codes, fmt
        if policy is None:
            yield name, counted(r, kind, fmt, s), np.array(count(numeric.decode(codes, fmt), fmt)), "bits64"


@E.library("FP16 counts and bits are numpy's own casts', at every loss scale")
def numpy_casts(r: Result) -> Iterator[Part]:
    def theirs(values: np.ndarray, fmt: str) -> np.ndarray:
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16).view(np.uint16)

    return casts_alike(r, theirs, ["fp16"])


@E.library("FP16, BF16, E5M2, E4M3 counts and bits are torch's own casts'")
def torch_casts(r: Result) -> Iterator[Part]:
    """torch's cast on the CPU."""
    import torch

    def theirs(values: np.ndarray, fmt: str) -> np.ndarray:
        return bits(cast(tensor(values.view(np.uint32), "fp32", "cpu"), fmt))

    return casts_alike(r, theirs, FORMATS, SEEN, str(torch.__version__))


@E.library("BF16, E5M2, E4M3 counts and bits are ml_dtypes' casts'", needs=("ml_dtypes",))
def ml_dtypes_casts(r: Result) -> Iterator[Part]:
    import ml_dtypes

    kinds = {"bf16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn}

    def theirs(values: np.ndarray, fmt: str) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return values.astype(kinds[fmt]).view(np.uint16 if fmt == "bf16" else np.uint8)

    return casts_alike(r, theirs, FORMATS[1:], SEEN)


@E.proved("Three edges of a format decide every count")
def three_edges(r: Result) -> Iterator[Part]:
    for kind in KINDS:
        magnitudes = np.sort(np.abs(gathered(r.p, r.p.seed).gradients[kind]).astype(np.float64))
        for fmt, s in itertools.product(FORMATS, range(r.p.scales + 1)):
            name = say("{kind} gradients * 2^{s} to {fmt}", kind=kind, s=s, fmt=fmt)
            yield name, counted(r, kind, fmt, s), counts_from_edges(magnitudes, fmt, s), "bits64"


@E.proved("The histograms count each gradient, and its product with the rate, in the binade of its bits")
def histograms(r: Result) -> Iterator[Part]:
    """The drawn histograms against a recount on bits; the product with the rate is rounded from float64's exact one."""
    gradients = gathered(r.p, r.p.seed).gradients
    products = (gradients["weight"].astype(np.float64) * np.float64(np.float32(r.p.lr))).astype(np.float32)
    powers = np.append(2.0 ** np.arange(LOWEST, HIGHEST + 1), np.inf).astype(np.float32).view(np.uint32)
    for name, values in (gradients | {"product": products}).items():
        by_bits, _ = np.histogram(values.view(np.uint32) & np.uint32(0x7FFFFFFF), powers)
        yield name, r.binades.sel(values=name).values, by_bits, "bits64"


@E.library("In the first, a middle and the last snapshot each layer's gradients are autograd's, and so are its losses")
def layers(r: Result) -> list[Part]:
    """The gradients recomputed, by autograd on functions of the layers; and how many are lost, by comparison."""
    import torch

    from .. import training
    from ..training.loop import batches

    run, parts = gathered(r.p, r.p.seed), list[Part]()
    images, labels = training.tensors(training.digits("train"))
    order, ends = list(batches(len(labels), recipe(r.p, r.p.seed))), np.cumsum(run.sizes)
    stored = np.split(run.gradients["activation"], ends[:-1])
    for n in sorted({0, len(run.steps) // 2, len(run.steps) - 1}):
        x, outputs = images[order[run.steps[n]]], []
        for module in network(r.p, n).children():
            x = module(x)
            outputs += [x] * any(True for _ in module.parameters())
        loss = torch.nn.functional.cross_entropy(x, labels[order[run.steps[n]]])
        for i, g in enumerate(torch.autograd.grad(loss, outputs)):
            there, name = g.numpy()[g.numpy() != 0], say("step {step}, {name}", step=run.steps[n], name=LAYERS[i])
            gone = (np.abs(there) <= LARGEST_LOST).sum()
            parts += [(name, stored[n * len(LAYERS) + i].view(np.uint32), there.view(np.uint32), "fp32"),
                      (name, r.lost_by_layer.values[n, i], gone, "bits64")]  # fmt: skip
    summed = say("the losses of all {all} snapshots add up", all=len(run.steps))
    return [*parts, verdict(r.lost_by_layer.sum() == counted(r, "activation", "fp16", 0)[0], summed)]


@E.proved("A loss scale adds its exponent to every gradient's and changes no significand")
def shift(r: Result) -> Iterator[Part]:
    significands, exponents = np.frexp(all_gradients(r))
    for s in range(r.p.scales + 1):
        got = np.frexp(scaled(all_gradients(r), s))
        yield f"2^{s}", got[0].view(np.uint32), significands.view(np.uint32), "fp32"
        yield f"2^{s}", got[1], exponents + s, "bits32"


@E.proved("FP16 loses what is at most 2^-25: not all below 2^-24, as is often said")
def edge_of_zero(r: Result) -> Outcome:
    g = np.abs(all_gradients(r))
    lower, below, gone = int((g <= LARGEST_LOST).sum()), int((g < 2.0**-24).sum()), counted(r, [*KINDS], "fp16", 0)[0]
    detail = say("{lost:,} become zero, {lower:,} are at most {edge}, {below:,} are below {smallest}", lost=gone)
    return verdict(gone == lower < below, detail.fill(lower=lower, below=below, edge="2^-25", smallest="2^-24"))


none, eight, large = (of("lost", scale=scale) for scale in SCALES)
E.claim(
    # "Most" is more than half of what is lost without a scale; of SSD the paper says 31% without, 0.1% with 2^15.
    superior("scaling_helps", "FP16 loses activation gradients, and a loss scale wins back most", none * 0.5, large),
)  # fmt: skip


@E.proved("Smallest and largest gradient alone decide which loss scales lose nothing")
def window(r: Result) -> Iterator[Outcome]:
    extremes, most = np.sort(np.abs(all_gradients(r)).astype(np.float64))[[0, -1]], r.p.scales
    for fmt in FORMATS:
        want = [s for s in range(most + 1) if not counts_from_edges(extremes, fmt, s)[[0, 3]].any()]
        bad = np.array([counted(r, [*KINDS], fmt, s)[[0, 3]].sum() for s in range(most + 1)])
        detail, best = say("{fmt}: {low} to {high}", fmt=fmt), int(np.argmin(bad))
        if not want:
            detail = say("{fmt}: none up to {most}, least bad {best} ({share:.2%} lost)", fmt=fmt, most=f"2^{most}")
            detail = detail.fill(best=f"2^{best}", share=bad[best] / all_gradients(r).size)
        ends = {"low": f"2^{min(want)}", "high": f"2^{max(want)}"} if want else {}
        yield verdict(np.flatnonzero(bad == 0).tolist() == want, detail.fill(**ends))


@E.measure("zero_weights", "zero_products")
def product_zeros(p: Params) -> tuple[int, int]:
    """Of the weight gradients, how many are zero in FP16, and how many more after the product with the rate."""
    gradients = gathered(p, p.seed).gradients["weight"]
    narrow = numeric.quantize(gradients, "fp16")
    narrow = narrow[narrow != 0]
    product = numeric.mul(narrow, numeric.quantize(np.full_like(narrow, p.lr), "fp16"), "fp16")
    return gradients.size - narrow.size, int((product == 0).sum())


@E.proved("gradient * lr underflows in FP16 where the gradient does not")
def product(r: Result) -> Outcome:
    gradients = gathered(r.p, r.p.seed).gradients["weight"].astype(np.float64)
    narrow, lr = (numeric.quantize(x, "fp16").astype(np.float64) for x in (gradients, np.array(r.p.lr)))
    gone = int((np.abs(narrow[narrow != 0] * lr) <= LARGEST_LOST).sum())  # 22 significant bits: float64 is exact
    detail = say("FP16 rounds {cast:.2%} of the non-zero weight gradients to zero, the product with lr={lr} {more:.2%} "
                 "more", cast=r.zero_weights / gradients.size, lr=r.p.lr,
                 more=r.zero_products / gradients.size)  # fmt: skip
    lost = int((np.abs(gradients) <= LARGEST_LOST).sum())
    return verdict(r.zero_products == gone > 0 and r.zero_weights == lost, detail)


E.proved("An update is lost exactly where |u| is below half the gap beside w (tie: even)", "half_gap")(
    lambda r: lost_updates.half_gap(sums(r.p)))  # fmt: skip
E.proved("A ratio of 2048 (FP16), 256 (BF16) is needed to lose an update, but not enough", "ratio_rule")(
    lambda r: lost_updates.ratio_rule(sums(r.p)))  # fmt: skip
E.answer("FP16 makes {none:.1%} of a trained network's activation gradients zero; with a loss scale of 2^15, "
         "{large:.2%}",
         none=none, large=large)  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
CASE_SCALES = (0, 3, 8, 15, 24)


def spread(values: np.ndarray, n: int) -> np.ndarray:
    """The places of ``n`` values, evenly spaced in the order of magnitude, the smallest and the largest included."""
    order = np.argsort(np.abs(values), kind="stable")
    return order[np.linspace(0, len(values) - 1, n).round().astype(np.int64)]


@E.cache
def samples(p: Params) -> Arrays:
    """A sample of true gradients, and of weights with their updates, as the bits of FP32; loss scales and the rate."""
    run = gathered(p, p.seed)
    g, moving = np.concatenate([*run.gradients.values()]), np.flatnonzero(run.updates)
    moving = moving[spread(run.updates[moving], p.sample)]
    values = {
        "gradients": g[spread(g, p.sample)], "scales": np.array([[2.0**s] for s in CASE_SCALES], np.float32),
        "weight_gradients": run.gradients["weight"][spread(run.gradients["weight"], p.sample)],
        "lr": np.array([p.lr], np.float32), "weights": run.weights[moving], "updates": run.updates[moving],
    }  # fmt: skip
    return {name: x.view(np.uint32) for name, x in values.items()}


def scaled_casts(gradients: Any, scales: Any) -> dict[str, Any]:
    """Every sampled gradient times every loss scale in FP32, cast to each format: (scales, n)."""
    return {fmt: cast(gradients * scales, fmt) for fmt in FORMATS}


def gradient_times_lr(weight_gradients: Any, lr: Any) -> dict[str, Any]:
    """The product with the learning rate, of operands in half precision."""
    return {fmt: cast(weight_gradients, fmt) * cast(lr, fmt) for fmt in HALVES}


def weight_plus_update(weights: Any, updates: Any) -> dict[str, Any]:
    """The sum with the weight, of operands in half precision."""
    return {fmt: cast(weights, fmt) + cast(updates, fmt) for fmt in HALVES}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    def case(does: Callable[..., Any], gives: Sequence[str], *names: str) -> Case:
        def chosen() -> Arrays:
            return {name: samples(p)[name] for name in names}

        return program(does.__name__, chosen, dict.fromkeys(names, "fp32"), does, {fmt: fmt for fmt in gives})

    yield case(scaled_casts, FORMATS, "gradients", "scales")
    yield case(gradient_times_lr, HALVES, "weight_gradients", "lr")
    yield case(weight_plus_update, HALVES, "weights", "updates")


# --- figures ----------------------------------------------------------------------------------------------------
def gradients_by_binade(ax: draw.Axes, r: Result) -> None:
    """The activation gradients against FP16's range; all smaller ones in the lowest bar."""
    counts = r.binades.sel(values="activation")
    zero = float((run := gathered(r.p, r.p.seed)).zeros["activation"] / (run.zeros["activation"] + run.sizes.sum()))
    first, last = -60, int(counts.binade[counts > 0].max())
    kept = [int(counts.sel(binade=slice(None, first)).sum()), *counts.sel(binade=slice(first + 1, last)).values]
    draw.binade_histogram(ax, np.array(kept), np.arange(first, last + 1), "fp16")
    ax.set(ylabel="of the non-zero gradients (%)", xlabel="magnitude, by binade",
           title=f"Activation gradients: {zero:.0%} are zero in FP32; the others, against FP16's range")  # fmt: skip


def shares_by_layer(r: Result) -> Any:
    """Of the non-zero activation gradients of a step and layer, the percentage that FP16 makes zero."""
    return 100 * r.lost_by_layer / np.maximum(gathered(r.p, r.p.seed).sizes, 1)


def shares_by_scale(r: Result) -> Any:
    """Of the non-zero activation gradients, the percentage that becomes zero or overflows."""
    return (100 * (r.zero + r.overflow) / gathered(r.p, r.p.seed).sizes.sum()).sel(gradients="activation")


def shares_by_binade(r: Result) -> Any:
    """Of the weight gradients, and of their products with the rate, the percentage in each binade."""
    part = r.binades.sel(values=["weight", "product"], binade=slice(-44, 0))
    return 100 * part / r.binades.sel(values="weight").sum()


def smallest_of_fp16(ax: draw.Axes, r: Result) -> None:
    ax.axvline(-24, color=draw.current().ink, linewidth=1, linestyle="--", label="smallest FP16 number")
    draw.power_ticks(ax.xaxis, range(-40, 1, 8))
    ax.legend()


def lost_map(ax: draw.Axes, r: Result, fmt: str) -> None:
    run = gathered(r.p, r.p.seed)
    w, u = (numeric.quantize(x, fmt) for x in (run.weights, run.updates))
    gone = (run.updates != 0) & (numeric.add(w, u, fmt) == w)
    lost_updates.draw_lost_updates(ax, run.weights, run.updates, gone, fmt, (-14, 0, -40, -4))
    ax.set_title(f"weight + update in {fmt.upper()}", pad=24)


E.figure(
    "gradients", gradients_by_binade,
    line(shares_by_layer, x="step", hue="layer", names=dict(enumerate(LAYERS)), marked=True, xlabel="training step",
         ylabel="rounded to zero by FP16,\nof the non-zero gradients (%)",
         title="As the network learns, its gradients underflow"),
)  # fmt: skip
E.figure(
    "scales",
    with_(line(shares_by_scale, x="log2_loss_scale", hue="format", marked=True, xlabel="loss scale",
               names={fmt: fmt.upper() for fmt in FORMATS},
               ylabel="lost, of the non-zero gradients (%)",
               title="Activation gradients that become zero or overflow, by loss scale"),
          lambda ax, r: draw.power_ticks(ax.xaxis, range(0, r.p.scales + 1, 4))),
    with_(line(shares_by_binade, x="binade", hue="values",
               names=lambda r: {"weight": "weight gradients", "product": f"times {r.p.lr}"},
               xlabel="magnitude, by binade",
               ylabel="of the non-zero weight gradients (%)", title="The learning rate makes more of them underflow"),
          smallest_of_fp16),
)  # fmt: skip
E.figure("updates", partial(lost_map, fmt="fp16"), partial(lost_map, fmt="bf16"), size=(8, 5), grid=(1, 2))
