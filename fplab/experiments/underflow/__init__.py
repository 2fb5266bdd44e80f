"""Gradient underflow and loss scaling, on the true gradients of a network that is trained in FP32.

The mean cross-entropy of a batch is the loss, and nothing else shrinks the gradients: what falls below FP16's range
does so because a trained network is sure of its answers. After Micikevicius et al. 2018, Mixed Precision Training
(arXiv 1710.03740), sections 3.1 and 3.2, Figures 2 and 3.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ... import draw, formats, numeric
from ...hardware.cases import Arrays, Case
from ...hardware.programs import cast, program
from ...hardware.tensors import bits, overflow_of, tensor
from ...words import CLAUSE, Text, joined, say
from .. import lost_updates
from ..base import Claims, Columns, Experiment, in_columns, one_threaded
from ..outcomes import Outcome, Status, absent, failed, passed, same_bits, verdict
from ..statistics import superior
from . import data
from .data import FORMATS, FP16, HALVES, KINDS, LAYERS, QUICK, Params, Result, counts_from_edges, gather, run, scaled

__all__ = ["EXPERIMENT", "KINDS", "QUICK", "Params", "Result", "gather"]

LARGEST_LOST = 2.0**-25  # a tie between 0 and FP16's smallest subnormal: zero


def rows(result: Result) -> Columns:
    """A row for each kind of gradient, format and loss scale: how many of the non-zero gradients meet each fate."""
    places = itertools.product(range(len(KINDS)), range(len(FORMATS)), range(result.params.scales + 1))
    table = [(KINDS[k], FORMATS[f], s, int(result.zeros[k]), *result.counts[k, f, s].tolist()) for k, f, s in places]
    return in_columns(("gradients", "format", "log2_loss_scale", "zero_in_fp32", *data.FATES), table)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("The network is a trained one: it reads more than 95% of the test digits")
@one_threaded
def trained_network(result: Result) -> Outcome:
    from ... import training

    test = training.digits("test")
    last = (result.weights + result.updates).reshape(len(result.steps), -1)[-1]
    answers = data.network(result.params, last)(training.tensors(test)[0]).argmax(1).numpy()
    right, tested = (int(x) for x in result.right)
    said = say(
        "{right} of {tested} ({share:.1%}) after {steps} steps", right=right, tested=tested, share=right / tested
    )
    return verdict(right == int((answers == test.labels).sum()) and right > 0.95 * tested,
                   said.fill(steps=len(result.losses)))  # fmt: skip


Cast = Callable[[np.ndarray, str], np.ndarray]
SEEN = 6  # binades between the loss scales at which the slower libraries cast


def casts_alike(result: Result, theirs: Cast, fmts: Sequence[str], every: int = 1, torch: str = "") -> Outcome:
    """Whether a library's ``theirs(values, fmt) -> codes`` gives every bit and every count that the kernels give.

    ``every``: binades between two loss scales. ``torch``: the version that casts, where it is torch.
    """
    compared = 0
    for fmt, (k, kind), s in itertools.product(fmts, enumerate(KINDS), range(0, result.params.scales + 1, every)):
        values, policy = scaled(result.of(kind), s), overflow_of(fmt, torch)
        try:
            codes = theirs(values, fmt)
        except ImportError as error:
            return absent(say("{module} is not installed", module=error.name))
        where = say("{kind} gradients * 2^{s} to {fmt}: {found}", kind=kind, s=s, fmt=fmt)
        ours = numeric.encode(values, fmt, overflow=policy)
        if not np.array_equal(ours, codes) and (outcome := same_bits(ours, codes, fmt)).status is not Status.PASS:
            return failed(where.fill(found=outcome.detail))
        counted = data.fates_of_codes(codes, fmt)
        if policy is None and not np.array_equal(counted, result.counts[k, FORMATS.index(fmt), s]):
            return failed(where.fill(found=say("the library's values count {counted}", counted=counted)))
        compared += values.size
    return passed(say("{n:,} casts, every bit and every count", n=compared))


@CLAIMS.library("FP16 counts and bits are numpy's own casts', at every loss scale")
def numpy_casts(result: Result) -> Outcome:
    def theirs(values: np.ndarray, fmt: str) -> np.ndarray:
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16).view(np.uint16)

    return casts_alike(result, theirs, ["fp16"])


@CLAIMS.library("FP16, BF16, E5M2, E4M3 counts and bits are torch's own casts'")
def torch_casts(result: Result) -> Outcome:
    """torch's cast on the CPU, on one thread, as its others go on spinning for a while."""
    import torch

    @one_threaded
    def theirs(values: np.ndarray, fmt: str) -> np.ndarray:
        return bits(cast(tensor(values.view(np.uint32), "fp32", "cpu"), fmt))

    return casts_alike(result, theirs, FORMATS, SEEN, str(torch.__version__))


@CLAIMS.library("BF16, E5M2, E4M3 counts and bits are ml_dtypes' casts'")
def ml_dtypes_casts(result: Result) -> Outcome:
    def theirs(values: np.ndarray, fmt: str) -> np.ndarray:
        import ml_dtypes

        kind = {"bf16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn}[fmt]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return values.astype(kind).view(np.uint16 if fmt == "bf16" else np.uint8)

    return casts_alike(result, theirs, FORMATS[1:], SEEN)


@CLAIMS.proved("Three edges of a format decide every count")
def three_edges(result: Result) -> Outcome:
    for k, kind in enumerate(KINDS):
        magnitudes = np.sort(np.abs(result.of(kind)).astype(np.float64))
        for (f, fmt), s in itertools.product(enumerate(FORMATS), range(result.params.scales + 1)):
            got, want = result.counts[k, f, s], counts_from_edges(magnitudes, fmt, s)
            if not np.array_equal(got, want):
                found = say("{kind} gradients * 2^{s} to {fmt}: {got} against {want}", got=got, want=want)
                return failed(found.fill(kind=kind, s=s, fmt=fmt))
    return passed(say("{n} counts of {of:,} gradients", n=result.counts.size, of=result.gradients.size))


@CLAIMS.proved("The histograms count each gradient, and its product with the rate, in the binade of its bits")
def histograms(result: Result) -> Outcome:
    """The drawn histograms against a recount on bits; the product with the rate is rounded from float64's exact one."""
    products = (result.weight.astype(np.float64) * np.float64(np.float32(result.params.lr))).astype(np.float32)
    drawn = zip((*result.binades, result.product_binades), (result.activation, result.weight, products), strict=True)
    for name, (got, values) in zip((*KINDS, "product"), drawn, strict=True):
        want = data.binades_of_bits(values)
        if not np.array_equal(got, want):
            at = int(np.flatnonzero(got != want)[0])
            found = say("{name}: {got} in binade 2^{at}, by bits {want}", name=name, got=got[at], want=want[at])
            return failed(found.fill(at=at + data.LOWEST))
    return passed(say("{n:,} values in three histograms", n=result.activation.size + 2 * result.weight.size))


@CLAIMS.library(
    "In the first, a middle and the last snapshot each layer's gradients are autograd's, and so are its losses"
)
@one_threaded
def layers(result: Result) -> Outcome:
    """The gradients again, by autograd on functions of the layers; and how many are lost, by comparison."""
    from ... import training
    from ...training.loop import batches

    params, steps, sizes = result.params, result.steps, result.activation_sizes
    images, labels = training.tensors(training.digits("train"))
    order = list(batches(len(labels), params.recipe(params.seed)))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    weights = result.weights.reshape(len(steps), -1)
    checked = sorted({0, len(steps) // 2, len(steps) - 1})
    for n in checked:
        chosen = order[int(steps[n])]
        found = data.layer_gradients(params, weights[n], images[chosen], labels[chosen])
        for i, (name, g) in enumerate(zip(LAYERS, found, strict=True)):
            there, start, counted = g[g != 0], int(starts[n * len(LAYERS) + i]), result.layer_underflows[n, i]
            if sizes[n, i] != there.size or not np.array_equal(result.activation[start : start + there.size], there):
                return failed(say("step {step}: the gradients of {name} are others", step=steps[n], name=name))
            if counted != (lost := int((np.abs(there) <= LARGEST_LOST).sum())):
                told = say("step {step}, {name}: {counted} lost, not {lost}", counted=counted, lost=lost)
                return failed(told.fill(step=steps[n], name=name))
    if result.layer_underflows.sum() != result.counts[0, FP16, 0, 0]:
        return failed(say("the layers' losses do not add up to the count of all"))
    told = say("{layers} layers of {checked} snapshots; the losses of all {all} add up", all=len(steps))
    return passed(told.fill(layers=len(LAYERS), checked=len(checked)))


@CLAIMS.proved("A loss scale adds its exponent to every gradient's and changes no significand")
def shift(result: Result) -> Outcome:
    g, n = result.gradients, result.params.scales + 1
    significands, exponents = np.frexp(g)
    for s in range(n):
        found = np.frexp(scaled(g, s))
        if not (np.array_equal(found[0], significands) and np.array_equal(found[1], exponents + s)):
            return failed(say("scaling by 2^{s} does not move every binade by {s} and nothing else", s=s))
    return passed(say("{n:,} gradients at {scales} scales", n=g.size, scales=n))


@CLAIMS.proved("FP16 loses what is at most 2^-25: not all below 2^-24, as is often said")
def edge_of_zero(result: Result) -> Outcome:
    g = np.abs(result.gradients)
    lower, below = int((g <= LARGEST_LOST).sum()), int((g < 2.0**-24).sum())
    lost = int(result.by_fate[FP16, 0, 0])
    said = say("{lost:,} become zero, {lower:,} are at most {edge}, {below:,} are below {smallest}", lost=lost)
    return verdict(lost == lower < below, said.fill(lower=lower, below=below, edge="2^-25", smallest="2^-24"))


@CLAIMS.measured("FP16 loses activation gradients, and a loss scale wins back most")
def scaling_helps(result: Result) -> Outcome:
    """What FP16 loses of the activation gradients without and with a loss scale, beside the paper's numbers for SSD.

    "Most" is more than half of what is lost without a scale, in the mean over networks; nothing overflows.
    """
    zeros, counts = int(result.zeros[0]), result.counts[0, FP16]
    total, overflow, (none, eight, large) = zeros + counts[0].sum(), counts[data.SCALES[-1], 3], result.lost.T
    detail = say(
        "zero already {share:.1%} (SSD 66.8%); FP16 makes zero {none:.1%} of all values (SSD 31%), with scale 8 "
        "{eight:.1%}, with 2^15 {large:.2%} (SSD 0.1%), {overflow} overflow",
        share=zeros / total, none=none.mean(), eight=eight.mean(), large=large.mean(), overflow=overflow,
    )  # fmt: skip
    if overflow or not np.array_equal(result.lost[0], counts[list(data.SCALES), 0] / total):
        return failed(detail)
    return superior(none / 2, large, 0.0, detail)


@CLAIMS.proved("Smallest and largest gradient alone decide which loss scales lose nothing")
def window(result: Result) -> Outcome:
    extremes, most = np.sort(np.abs(result.gradients).astype(np.float64))[[0, -1]], result.params.scales
    texts: list[Text] = []
    for fmt, counts in zip(FORMATS, result.by_fate, strict=True):
        want = [s for s in range(most + 1) if not counts_from_edges(extremes, fmt, s)[[0, 3]].any()]
        got = result.clean_scales(fmt)
        if got != want:
            said = say("{fmt}: {got} from all gradients, {want} from the two extremes", fmt=fmt, got=got, want=want)
            return failed(said)
        if want:
            texts.append(say("{fmt}: {low} to {high}", fmt=fmt, low=f"2^{min(want)}", high=f"2^{max(want)}"))
            continue
        bad = counts[:, 0] + counts[:, 3]
        best = int(np.argmin(bad))
        none = say("{fmt}: none up to {most}, least bad {best} ({share:.2%} lost)", fmt=fmt, most=f"2^{most}")
        texts.append(none.fill(best=f"2^{best}", share=bad[best] / counts[0].sum()))
    return passed(joined(texts, CLAUSE))


@CLAIMS.proved("gradient * lr underflows in FP16 where the gradient does not")
def product(result: Result) -> Outcome:
    narrow = numeric.quantize(result.weight, "fp16")
    narrow = narrow[narrow != 0].astype(np.float64)
    lr = float(numeric.quantize(np.float32(result.params.lr), "fp16"))
    gone = int((np.abs(narrow * lr) <= LARGEST_LOST).sum())  # at most 22 significant bits: float64 is exact
    small = int((np.abs(result.weight) <= LARGEST_LOST).sum())
    cast_, counted = (int(x) for x in result.product_fates[0, :2])
    said = say(
        "FP16 rounds {cast:.2%} of the non-zero weight gradients to zero, the product with lr={lr} {more:.2%} more"
    )
    total = result.weight.size
    return verdict(counted == gone > 0 and cast_ == small,
                   said.fill(cast=cast_ / total, lr=result.params.lr, more=counted / total))  # fmt: skip


def held(result: Result, fmt: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights and updates as a format holds them, float64."""
    w, u = (numeric.quantize(x, fmt).astype(np.float64) for x in (result.weights, result.updates))
    return w, u


@CLAIMS.proved("An update is lost exactly where |u| is below half the gap beside w (tie: even)")
def half_gap(result: Result) -> Outcome:
    texts = []
    for fmt, fate in zip(HALVES, result.update_fates, strict=True):
        wrong = int((lost_updates.lost_by_criterion(*held(result, fmt), fmt) != (fate == data.LOST_IN_SUM)).sum())
        if wrong:
            return failed(say("{fmt}: {wrong:,} of {of:,} differ", fmt=fmt, wrong=wrong, of=fate.size))
        moving = int((fate != data.NO_UPDATE).sum())
        said = say("{fmt}: {lost:.1%} of {of:,} updates lost in the sum, {under:.1%} underflow before it", fmt=fmt)
        shares = {"lost": (fate == data.LOST_IN_SUM).sum() / moving, "under": (fate == data.UNDERFLOWS).sum() / moving}
        texts.append(said.fill(of=moving, **shares))
    return passed(joined(texts, CLAUSE))


@CLAIMS.proved("A ratio of 2048 (FP16), 256 (BF16) is needed to lose an update, but not enough")
def ratio_rule(result: Result) -> Outcome:
    runs = []
    for fmt, fate in zip(HALVES, result.update_fates, strict=True):
        w, u = held(result, fmt)
        runs.append((fmt, w[u != 0], u[u != 0], fate[u != 0] == data.LOST_IN_SUM))
    return lost_updates.ratio_rule(runs)


# --- what a GPU must compute ------------------------------------------------------------------------------------
CASE_SCALES = (0, 3, 8, 15, 24)


def spread(values: np.ndarray, n: int) -> np.ndarray:
    """The places of ``n`` values, evenly spaced in the order of magnitude, the smallest and the largest included."""
    order = np.argsort(np.abs(values), kind="stable")
    return order[np.linspace(0, len(values) - 1, n).round().astype(np.int64)]


@functools.lru_cache(maxsize=2)
def samples(params: Params) -> Arrays:
    """A sample of true gradients, and of weights with their updates, as the bits of FP32; loss scales and the rate."""
    found = gather(params, lambda _done, _text: None)
    g, moving = found.gradients, np.flatnonzero(found.updates)
    moving = moving[spread(found.updates[moving], params.sample)]
    values = {
        "gradients": g[spread(g, params.sample)],
        "scales": np.array([[2.0**s] for s in CASE_SCALES], np.float32),
        "weight_gradients": found.weight[spread(found.weight, params.sample)],
        "lr": np.array([params.lr], np.float32),
        "weights": found.weights[moving],
        "updates": found.updates[moving],
    }
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


def cases(params: Params) -> Iterator[Case]:
    def chosen(*names: str) -> Callable[[], Arrays]:
        return lambda: {name: samples(params)[name] for name in names}

    def case(does: Callable[..., Any], gives: Sequence[str], *names: str) -> Case:
        return program(does.__name__, chosen(*names), dict.fromkeys(names, "fp32"), does, {fmt: fmt for fmt in gives})

    yield case(scaled_casts, FORMATS, "gradients", "scales")
    yield case(gradient_times_lr, HALVES, "weight_gradients", "lr")
    yield case(weight_plus_update, HALVES, "weights", "updates")


# --- figures ----------------------------------------------------------------------------------------------------
NAMES = {"zero": "zero", "subnormal": "subnormal", "normal": "normal", "overflow": "infinite (E4M3: NaN)"}


def gradients(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 9)
    right, tested = result.right
    draw.caption(
        figure, f"A convolutional net on the UCI digits, FP32, mean cross-entropy: {len(result.losses)} steps,\n"
        f"{right / tested:.1%} of the test digits right; {len(result.steps)} steps collected, all layers",
    )  # fmt: skip
    rows: Any = [["whole", "whole"], ["histogram", "histogram"], ["loss", "layers"]]
    panels = figure.subplot_mosaic(rows, height_ratios=[0.55, 2, 1.6], width_ratios=[1, 1.5])
    draw_all_values(panels["whole"], result)
    counts, exponents = folded(result.binades[0], -60)
    draw.binade_histogram(panels["histogram"], counts, exponents=exponents, thresholds="fp16")
    where = f"magnitude, by binade (the lowest bar: all below $2^{{{exponents[0] + 1}}}$)"
    panels["histogram"].set(ylabel="of the non-zero gradients (%)", xlabel=where)
    panels["loss"].plot(result.losses, color=draw.current().muted, linewidth=1.2)
    panels["loss"].set(yscale="log", ylabel="loss", title="As the loss falls ...")
    share = 100 * result.layer_underflows / np.maximum(result.activation_sizes, 1)
    for i, name in enumerate(LAYERS):
        panels["layers"].plot(
            result.steps, share[:, i], **draw.look(i).marked, markersize=3.5, linewidth=1.4, label=name
        )
    panels["layers"].set(ylim=(0, None), ylabel="rounded to zero by FP16,\nof the non-zero gradients (%)",
                         title="... so do the gradients")  # fmt: skip
    panels["layers"].legend(loc="upper left")
    for ax in (panels["loss"], panels["layers"]):
        ax.set(xlim=(0, 1.02 * result.steps[-1]), xlabel="training step")
    return figure


def scales(result: Result) -> draw.Figure:
    from ...draw.shares import fate_patches, stacked_shares

    figure = draw.new_figure(8, 7)
    figure.suptitle("Loss scaling: what a format makes of the non-zero activation gradients", x=0.01, ha="left",
                    fontsize=11, fontweight="bold")  # fmt: skip
    exponents = np.arange(result.params.scales + 1)
    panels: Any = figure.subplots(2, 2, sharey=True)
    for ax, fmt, counts in zip(panels.flat, FORMATS, result.counts[0], strict=True):
        share = counts / counts.sum(axis=1, keepdims=True)
        stacked_shares(ax, exponents, dict(zip(data.FATES, share.T, strict=True)))
        draw.power_ticks(ax.xaxis, range(0, len(exponents), 4))
        ax.set(xlabel="loss scale", title=fmt.upper())
    for ax in panels[:, 0]:
        ax.set_ylabel("of the non-zero gradients (%)")
    figure.legend(handles=fate_patches(NAMES), loc="outside lower center", ncols=4)
    return figure


def updates(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 8.5)
    panels = figure.subplot_mosaic([["product", "product"], list(HALVES)], height_ratios=[1, 1.3])
    draw_learning_rate(panels["product"], result)
    for fmt, fate in zip(HALVES, result.update_fates, strict=True):
        gone = np.isin(fate, (data.LOST_IN_SUM, data.UNDERFLOWS))
        lost_updates.draw_lost_updates(panels[fmt], result.weights, result.updates, gone, fmt, (-14, 0, -40, -4))
        panels[fmt].set_title(f"weight + update in {fmt.upper()}", pad=24)
    return figure


def folded(counts: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts by binade and their binades from ``start`` up, with all smaller ones in the first; the empty top cut."""
    first = start - data.LOWEST
    kept = np.concatenate([[counts[: first + 1].sum()], counts[first + 1 :]])
    end = int(np.flatnonzero(kept)[-1]) + 1
    return kept[:end], np.arange(start, start + end)


def draw_all_values(ax: draw.Axes, result: Result) -> None:
    """One bar of all activation gradients: zero already in FP32, and what FP16 makes of the others without a scale."""
    from ...draw.shares import fill

    theme, zeros, counts = draw.current(), int(result.zeros[0]), result.counts[0, FP16, 0]
    total, left = zeros + counts.sum(), 0.0
    ink: dict[str, Any] = {"facecolor": theme.grid, "hatch": "..", "edgecolor": theme.background}
    parts = [("zero in FP32", zeros, ink)]
    parts += [(NAMES[fate], int(n), fill(fate)) for fate, n in zip(data.FATES, counts, strict=True) if n]
    for text, n, filled in parts:
        width = 100 * n / total
        ax.barh([0], [width], left=left, height=1, **filled)
        draw.note(ax, f"{text}\n{draw.percent(n / total)}", (left + width / 2, 0.5), (0, 3), ha="center", va="bottom")
        left += width
    ax.set(xlim=(0, 100), ylim=(-0.5, 2))
    ax.set_axis_off()
    ax.set_title("Activation gradients: all values, as FP16 would hold them without a loss scale")


def draw_learning_rate(ax: draw.Axes, result: Result) -> None:
    """The weight gradients by binade, and their product with the learning rate."""
    counts, exponents = folded(result.binades[1], -44)
    form = formats.get("fp16")
    lowest = form.emin - form.fraction_bits
    marks = ((lowest, f"subnormal\nfrom $2^{{{lowest}}}$"), (form.emin, f"normal\nfrom $2^{{{form.emin}}}$"))
    draw.binade_histogram(ax, counts, exponents=exponents, thresholds=marks, show_shares=False)
    after, low = folded(result.product_binades, -44)
    style, total = draw.look(1), counts.sum()
    ax.stairs(100 * after / total, np.append(low, low[-1] + 1), color=style.color, linewidth=1.8)
    lost, more = (int(x) for x in result.product_fates[0, :2])
    notes = ((0.97, "$g$", lost, draw.look(0).color), (0.72, rf"${result.params.lr}\,g$", lost + more, style.color))
    for y, name, gone, color in notes:
        note = f"{name}\nzero in FP16:\n{draw.percent(gone / total)}"
        ax.text(0.02, y, note, transform=ax.transAxes, va="top", color=color)
    draw.power_ticks(ax.xaxis, range(-40, 1, 8))
    ax.set(xlabel=f"magnitude, by binade (the lowest: all below $2^{{{exponents[0] + 1}}}$)",
           ylabel="of the non-zero weight gradients (%)", title="gradient × learning rate")  # fmt: skip


EXPERIMENT = Experiment(
    title=say("Gradient underflow and loss scaling"),
    question=say("Which gradients of a real network does a narrow format lose, and what does a loss scale save?"),
    budget=6.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(gradients, scales, updates), cases=cases,
)  # fmt: skip
