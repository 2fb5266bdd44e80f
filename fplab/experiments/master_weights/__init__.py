"""Where updates go when weights are held in 16 bits: FP16 and BF16 weights with four ways of adding an update.

Everything but the weights is FP32 here, so whatever happens is the weights' doing. The same network is trained with
ever smaller steps and ever more of them, lr * steps held constant: in FP32 that changes little. Claims after
Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1, and Zamirai et al. 2020 (arXiv 2010.06192).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from ... import draw, exact, formats, numeric
from ...hardware.cases import Arrays, Case, Meta
from ...hardware.programs import cast, program
from ...hardware.tensors import bits, tensor
from ...words import CLAUSE, joined, say
from .. import lost_updates
from ..base import Claims, Columns, Experiment, in_columns, one_threaded
from ..outcomes import Outcome, Sample, Status, failed, measured, passed, same_bits
from ..statistics import equivalent, superior
from . import data
from .data import GIVEN, HALVES, QUICK, STEP, VARIANTS, WORDS, Params, Result, Variant, ratio_edges, run


def rows(result: Result) -> Columns:
    """A row for each way of holding weights, learning rate and seed: how far it came, and what it lost on the way."""
    names = ("weights", "update", "lr", "steps", "seed", "training_loss", "test_accuracy", "updates_lost",
             "median_drift_in_ulps", "largest_drift_in_ulps")  # fmt: skip
    table = []
    for where in np.ndindex(result.final.shape):
        v, i, seed = where
        rate = result.params.rates[i]
        found = (result.final[where], result.top1[where], result.lost[where], *result.drift[where])
        table.append((*VARIANTS[v], rate, result.params.steps(rate), seed, *map(float, found)))
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.measured("The network learns in FP32 at every learning rate")
def learning(result: Result) -> Outcome:
    """What is lost below is not lost by FP32: it reads well above chance, by 30% of all digits, at every rate."""
    means = zip(result.params.rates, result.top1[0].mean(axis=1), strict=True)
    texts = ", ".join(f"2^{np.log2(r):.0f}: {t:.1%}" for r, t in means)
    worst = result.top1[0].min(axis=0)
    return superior(worst, 0.1, 0.3, texts)


@CLAIMS.proved(
    "In the first, a middle and the last step gradients, velocities and the sums of every way are the rule's own"
)
@one_threaded
def steps(result: Result) -> Outcome:
    """The kept steps of the first seed at the last rate: gradients by autograd, the update, and the rule's own sums.

    And of what is drawn of them: the updates lost by layer, and the loss at the end.
    """
    from ...training.tasks import digits_mlp, epochs

    params, rate = result.params, result.params.rates[-1]
    shapes = [tuple(p.shape) for p in digits_mlp(0, params.width).parameters()]
    images, labels = data.whole()
    order, done = list(epochs(len(labels), params.batch, 0, params.steps(rate))), 0
    for v, variant in enumerate(VARIANTS):
        for step, row in zip(params.kept(rate), result.steps[v], strict=True):
            there = say("{way}, step {step}", way=variant.label, step=step)
            given = dict(zip(STEP, row, strict=True))
            gradient = data.gradients(given["parameter"], shapes, images[order[step]], labels[order[step]])
            for what, want in {"gradient": gradient, **data.after(variant, given, params, rate)}.items():
                outcome = same_bits(given[what].view(np.uint32), want.view(np.uint32), "fp32")
                if outcome.status is not Status.PASS:
                    return failed(joined([there, f", {what}: ", outcome.detail]))
                done += want.size
            if step % params.every == 0:
                shares = data.by_layer(given, shapes, rate)
                if not np.array_equal(result.by_layer[v, step // params.every], shares):
                    return failed(say("{there}: lost by layer are {shares}", there=there, shares=shares))
        if result.final[v, -1, 0] != data.last_losses(result.losses[v]):
            return failed(say("{way}: the final loss is not that of the last steps", way=variant.label))
        if result.along[v, -1, 0] != result.losses[v].mean():
            return failed(say("{way}: the loss along the way is not that of all steps", way=variant.label))
    said = say("{n:,} numbers of {steps} steps in {ways} ways, every bit", n=done, steps=len(params.kept(rate)))
    return passed(said.fill(ways=len(VARIANTS)))


TEXTBOOK = (  # FP16: weight, update, sum
    (1.0, 2.0**-11, 1.0),  # a ratio of 2048, and a tie that goes to the even neighbour, the weight
    (1.0, 2.0**-11 * (1 + 2.0**-10), 1 + 2.0**-10),
    (1 + 2.0**-10, 2.0**-11, 1 + 2.0**-9),  # the same update: a tie again, and now the even neighbour is above
    (1.5, 1.5 / 2048, 1.5 + 2.0**-10),  # a ratio of 2048 exactly, and not lost
)


@CLAIMS.proved("A ratio |w|/|u| of 2048 may survive in FP16: the rule is half an ulp, ties to even")
def textbook(result: Result) -> Outcome:
    for w, u, want in TEXTBOOK:
        code = exact.round_to(exact.of(Fraction(w) + Fraction(u)), "fp16")[0]
        got = float(numeric.add(w, u, "fp16"))
        if not got == want == float(numeric.decode(np.uint16(code), "fp16")):
            return failed(say("{w!r} + {u!r} gives {got!r} instead of {want!r}", w=w, u=u, got=got, want=want))
    return passed(say("1.5 + 1.5/2048 = 1.5009765625, though the ratio is 2048; 1 + 2^-11 = 1, a tie"))


@CLAIMS.library("The runs' sums are numpy's and torch's own in half precision")
def library_sums(result: Result) -> Outcome:
    """numpy rounds the FP16 run's float64 sums the same; torch adds the same once the update is a half number too."""
    w, u, after_ = result.nearest("fp16")
    theirs = (w + u).astype(np.float16).view(np.uint16)
    outcome, n = same_bits(numeric.encode(after_, "fp16"), theirs, "fp16"), 0
    if outcome.status is not Status.PASS:
        return failed(joined(["numpy: ", outcome.detail]))
    for fmt in HALVES:
        codes = [numeric.encode(x, fmt) for x in result.nearest(fmt)[:2]]
        a, b = (tensor(c, fmt, "cpu") for c in codes)
        w_, u_ = (numeric.decode(c, fmt) for c in codes)
        outcome = same_bits(numeric.encode(numeric.add(w_, u_, fmt), fmt), bits(a + b), fmt)
        if outcome.status is not Status.PASS:
            return failed(joined([f"torch, {fmt}: ", outcome.detail]))
        n += codes[0].size
    return passed(say("numpy {n:,} sums, torch {m:,}, every bit", n=w.size, m=n))


@CLAIMS.proved("|u| < ulp(w)/2, half that below a power of two, names every lost update")
def half_gap(result: Result) -> Outcome:
    texts = []
    for fmt in HALVES:
        w, u, after_ = result.nearest(fmt)
        there = w != 0
        named, gone = lost_updates.lost_by_criterion(w, u, fmt)[there], (after_ == w)[there]
        if wrong := int((named != gone).sum()):
            return failed(say("{fmt}: {wrong:,} of {of:,} differ", fmt=fmt, wrong=wrong, of=gone.size))
        texts.append(say("{fmt}: {share:.1%} of {of:,} lost", fmt=fmt, share=gone.mean(), of=gone.size))
    return passed(joined(texts, CLAUSE))


@CLAIMS.proved("The 2048 rule (BF16: 256) is where loss begins; it is certain only at twice that")
def ratio_rule(result: Result) -> Outcome:
    runs = []
    for fmt in HALVES:
        w, u, after_ = result.nearest(fmt)
        normal = np.abs(w) >= formats.get(fmt).smallest_normal
        runs.append((fmt, w[normal], u[normal], (after_ == w)[normal]))
    return lost_updates.ratio_rule(runs)


@CLAIMS.proved("In between, the weight's significand decides: 2^x - 1 of all are lost at ratio 2^(p+x)")
def survivors(result: Result) -> Outcome:
    for fmt, share in zip(HALVES, result.survival, strict=True):
        form = formats.get(fmt)
        want = np.clip(ratio_edges(fmt) / 2.0**form.significand_bits - 1, 0, 1)
        most = float(np.abs(share - want).max())
        if most > 2.0**-form.fraction_bits:
            return failed(say("{fmt}: {most:.3g} apart", fmt=fmt, most=most))
    return passed(say("to one significand in 1,024 (FP16) and 128 (BF16)"))


@CLAIMS.measured("The smaller the step, the larger the share of updates that rounding to nearest loses")
def smaller_steps(result: Result) -> Outcome:
    """Smaller steps lose more: the least of all increases from one rate to the next, by seed."""
    shares = result.lost[[Variant(fmt, "nearest").place for fmt in HALVES]]
    rates = ", ".join(f"2^{np.log2(r):.0f}" for r in result.params.rates)
    texts = [f"{f}: " + ", ".join(f"{s:.0%}" for s in x) for f, x in zip(HALVES, shares.mean(axis=2), strict=True)]
    said = say("at {rates}: {shares}", rates=rates, shares=joined(texts, CLAUSE))
    return superior(np.diff(shares, axis=1).min(axis=(0, 1)), 0.0, 0.0, said)


@CLAIMS.measured(
    "Stochastic rounding's errors on the runs' updates cancel: their sum is within 5 standard deviations of 0"
)
def unbiased(result: Result) -> Outcome:
    """Stochastic rounding's errors along the real updates add up to nothing: within 5 of their standard deviations.

    Each rounding is a draw of its own. Rounding to nearest, beside it, errs against the update.
    """
    texts, most, draws = [], 0.0, 0
    for fmt in HALVES:
        w, u, after_ = result.pairs[Variant(fmt, "stochastic")].astype(np.float64)
        below, above = (numeric.quantize(w + u, fmt, r).astype(np.float64) for r in ("rtn", "rtp"))
        gap = above - below
        inexact = gap > 0
        share, went = ((x - below)[inexact] / gap[inexact] for x in (w + u, after_))
        if not np.isin(went, (0.0, 1.0)).all():
            return failed(say("{fmt}: a result is no neighbour of the sum", fmt=fmt))
        z = float((np.sign(u[inexact]) * (went - share)).sum() / np.sqrt((share * (1 - share)).sum()))
        w, u, after_ = result.nearest(fmt)
        bias = float(((after_ - w - u) * -np.sign(u)).sum() / np.abs(u).sum())
        said = say("{fmt}: {z:+.1f} standard deviations (nearest loses {bias:.0%} of the way)", fmt=fmt)
        texts.append(said.fill(z=z, bias=bias))
        most, draws = max(most, abs(z)), draws + int(inexact.sum())
    return measured(most < 5, joined(texts, CLAUSE), Sample(draws, 1.0, 5.0))


@CLAIMS.proved("With an FP32 copy a weight ends within half an ulp of its exact sum, but for the copy's own roundings")
def copy(result: Result) -> Outcome:
    """How far a rounded copy ends from the exact sum of its updates: the copy is FP32, and rounded at every step.

    Each of its roundings is at most half an ulp of FP32, 2^(p - 25) ulps of a format of p bits; the last one, to the
    format, half an ulp of that. Some weight comes near the bound, else the distance would be in the wrong unit.
    """
    texts = []
    for fmt in HALVES:
        drift = result.drift[Variant(fmt, "master").place, ..., 1]
        for rate, most in zip(result.params.rates, drift, strict=True):
            bound = 0.5 + result.params.steps(rate) * 2.0 ** (formats.get(fmt).significand_bits - 25)
            if most.max() > bound or most.min() < 0.45:
                said = say("{fmt}: {low:.4f} to {high:.4f} ulps; the bound is {bound:.4f}", fmt=fmt, bound=bound)
                return failed(said.fill(low=most.min(), high=most.max()))
        said = say("{fmt}: at most {most:.5f} ulps, the bound is {bound:.5f}", fmt=fmt, bound=bound)
        texts.append(said.fill(most=most.max()))
    return passed(joined(texts, CLAUSE))


@CLAIMS.measured("With Kahan's compensation it ends nearest, in the median within a tenth of an ulp")
def kahan_nearest(result: Result) -> Outcome:
    medians = {u: np.stack([result.drift[Variant(f, u).place, -1, :, 0] for f in HALVES]) for u in WORDS}
    said = say("FP16 and BF16: nearest {nearest[0]:.2f} and {nearest[1]:.2f}, stochastic {stochastic[0]:.2f} and "
               "{stochastic[1]:.2f}, kahan {kahan[0]:.2f} and {kahan[1]:.2f}, master {master[0]:.2f} and "
               "{master[1]:.2f}", **{u: m.mean(axis=1) for u, m in medians.items()})  # fmt: skip
    worst = medians["kahan"].max(axis=0)
    if any(m.min() <= worst.max() for u, m in medians.items() if u != "kahan"):
        return failed(joined([say("another is nearer: "), said]))
    return superior(0.1, worst, 0.0, said)


def ratios_to_fp32(result: Result, *ways: str) -> dict[Variant, np.ndarray]:
    """Of variants, the final loss at the smallest rate over FP32's of the same seed."""
    final = result.final[:, -1]
    return {v: final[i] / final[0] for i, v in enumerate(VARIANTS) if i and v.update in ways}


@CLAIMS.measured("BF16 rounded to nearest trains with a higher loss than FP32, on average over the steps")
def behind(result: Result) -> Outcome:
    """What rounding to nearest costs BF16 at the smallest rate: its loss over FP32's, on average over all steps.

    The last steps alone, which are drawn, scatter too much between networks for three of them to tell.
    """
    fp16, bf16 = ratios_to_fp32(result, "nearest").items()
    top1, along = result.top1[:, -1].mean(axis=1), result.along[:, -1]
    lost16, lostbf = (1 - top1[v.place] / top1[0] for v, _ in (fp16, bf16))
    detail = say(
        "training loss against FP32's: BF16 nearest {bf16:.2f} times, FP16 nearest {fp16:.3f}; of the test accuracy "
        "BF16 nearest loses {lostbf:.1%}, FP16 nearest {lost16:.1%} (the paper's speech model in FP16: 80%)",
        bf16=bf16[1].mean(), fp16=fp16[1].mean(), lostbf=lostbf, lost16=lost16,
    )  # fmt: skip
    return superior(along[bf16[0].place] / along[0], 1.0, 0.0, detail)


@CLAIMS.measured("FP32 copy, Kahan and stochastic rounding each end within 3% of FP32's loss")
def remedies(result: Result) -> Outcome:
    """Each remedy ends with FP32's loss to 3%, a fraction of what seeds differ by; the one farthest off decides."""
    found = ratios_to_fp32(result, "stochastic", "kahan", "master")
    tests = {v: equivalent(r, 1.0, 0.03, say("the farthest is {way}", way=v.label)) for v, r in found.items()}
    bad = [outcome for outcome in tests.values() if outcome.status is not Status.PASS]
    return bad[0] if bad else tests[max(found, key=lambda v: abs(found[v].mean() - 1))]


# --- what a GPU must compute ------------------------------------------------------------------------------------
LR = 0.0625 * 1.1  # not a power of two, so that the product with it is rounded


def kahan(**given: Any) -> dict[str, Any]:
    """Two compensated additions of the same update in half precision, operation by operation."""
    found: dict[str, Any] = {}
    for fmt in HALVES:
        w, u = given[f"{fmt}_weight"], given[f"{fmt}_update"]
        lost = w - w
        for _ in range(2):
            corrected = u + lost
            summed = w + corrected
            moved = summed - w
            lost, w = corrected - moved, summed
        named = {"corrected": corrected, "summed": summed, "moved": moved, "compensation": lost}
        found |= {f"{fmt}_{name}": x for name, x in named.items()}
    return found


def copies(master: Any) -> dict[str, Any]:
    return {fmt: cast(master, fmt) for fmt in HALVES}


def device_sgd(inputs: Arrays, device: str) -> Arrays:
    """torch's own update of a half weight, ``weight.add_(gradient, alpha=-lr)``."""
    given = {name: tensor(inputs[name], fmt, device) for name, fmt in GIVEN.items()}
    return {fmt: bits(given[f"{fmt}_weight"].clone().add_(given[f"{fmt}_update"], alpha=-LR)) for fmt in HALVES}


def lab_sgd(inputs: Arrays, meta: Meta) -> Arrays:
    """w - lr * g in FP32 and then rounded to the format: twice, so it is not always the nearest half number.

    Whether the product was rounded before the sum cannot be seen here: it moves the sum by 2**-37 of the weight.
    """
    found: Arrays = {}
    for fmt in HALVES:
        w, g = (numeric.decode(inputs[f"{fmt}_{n}"], fmt) for n in ("weight", "update"))
        found[fmt] = numeric.encode(numeric.fma(g, np.float32(-LR), w, "fp32"), fmt)
    return found


def cases(params: Params) -> Iterator[Case]:
    halves, n = {fmt: fmt for fmt in HALVES}, params.sample
    summed = {f"{fmt}_{x}": fmt for fmt in HALVES for x in ("corrected", "summed", "moved", "compensation")}
    yield program("kahan", partial(data.pairs, n), GIVEN, kahan, summed)
    yield program("master_copies", partial(data.masters, n), {"master": "fp32"}, copies, halves)
    yield Case("sgd_on_half_weights", partial(data.pairs, n, lift=4), device_sgd, lab_sgd, halves)


# --- figures ----------------------------------------------------------------------------------------------------
LOOKS = {"nearest": 1, "stochastic": 3, "kahan": 2, "master": 0}


def training(result: Result) -> draw.Figure:
    params, figure = result.params, draw.new_figure(8, 8.5)
    draw.caption(figure, f"A perceptron 64-{params.width}-{params.width}-10 on the UCI digits, SGD with momentum "
                         f"{params.momentum};\neverything but the weights is FP32; lr × steps = {params.distance:g}, "
                         f"{params.seeds} seeds")  # fmt: skip
    panels = figure.subplot_mosaic([list(HALVES), ["cost", "cost"]], height_ratios=[1, 1.1])
    for fmt in HALVES:
        draw_curves(panels[fmt], result, fmt)
    draw_costs(panels["cost"], result)
    return figure


def updates(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 8)
    panels = figure.subplot_mosaic([list(HALVES), ["drift", "drift"]])
    for fmt in HALVES:
        draw_layers(panels[fmt], result, fmt)
    draw_drift(panels["drift"], result)
    return figure


def criterion(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 9)
    panels = figure.subplot_mosaic([list(HALVES), ["ratios", "ratios"]], height_ratios=[1.2, 1])
    for fmt in HALVES:
        w, u, after = result.pairs[Variant(fmt, "nearest")]
        lost_updates.draw_lost_updates(panels[fmt], w, u, after == w, fmt, (-13, 0, -32, -6))
        panels[fmt].set_title(f"{fmt.upper()}: the criterion", pad=24)
    draw_ratios(panels["ratios"], result)
    return figure


def power(x: float) -> str:
    return f"$2^{{{np.log2(x):.0f}}}$"


def draw_curves(ax: draw.Axes, result: Result, fmt: str) -> None:
    rate = result.params.rates[-1]
    for way, word in WORDS.items():
        losses = result.losses[Variant(fmt, way).place]
        ax.plot(*draw.smoothed(losses), **draw.look(LOOKS[way]).line, linewidth=1.6, label=word)
    ax.plot(
        *draw.smoothed(result.losses[0]), color=draw.current().ink, linewidth=0.9, linestyle=(0, (1, 1.5)), label="FP32"
    )
    ax.set(yscale="log", xlim=(0, result.params.steps(rate)), xlabel="training step", ylabel="training loss",
           title=f"{fmt.upper()} weights, lr {power(rate)}")  # fmt: skip
    ax.legend(loc="upper right")


def draw_costs(ax: draw.Axes, result: Result) -> None:
    """The final training loss relative to FP32's, by learning rate: mean, least and largest of the seeds."""
    x, ratio = np.arange(len(result.params.rates)), result.final[1:] / result.final[0]
    for v, one in zip(VARIANTS[1:], ratio, strict=True):
        style, filled = draw.look(LOOKS[v.update]), v.weights == "bf16"
        shift = (list(WORDS).index(v.update) - 1.5) * 0.06 + (filled - 0.5) * 0.36
        mean = one.mean(axis=1)
        ax.errorbar(x + shift, mean, (mean - one.min(axis=1), one.max(axis=1) - mean), color=style.color,
                    linestyle="none", marker=style.marker, markersize=6,
                    markerfacecolor=style.color if filled else "none", elinewidth=1.2,
                    label=WORDS[v.update] if filled else None)  # fmt: skip
    ax.axhline(1, color=draw.current().ink, linewidth=0.9, linestyle=(0, (1, 1.5)))
    ax.set_yscale("log")
    low, top = min(0.95, float(ratio.min()) / 1.05), max(1.12, float(ratio.max()) * 1.12)
    ax.set_ylim(low, top)
    ticks = [t for t in (0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 8, 12, 20) if low <= t <= top]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_xticks(x, [f"{power(r)}\n{result.params.steps(r):,} steps" for r in result.params.rates])
    ax.set_xlim(-0.5, len(x) - 0.5)
    ax.grid(axis="x", visible=False)
    ax.set(xlabel="learning rate", ylabel="final training loss / FP32's",
           title="The price of a smaller step (hollow FP16, filled BF16)")  # fmt: skip
    ax.legend(loc="upper left", ncols=2)


def draw_layers(ax: draw.Axes, result: Result, fmt: str) -> None:
    share = 100 * result.by_layer[Variant(fmt, "nearest").place]
    x, width = np.arange(len(share)) * result.params.every, max(1, len(share) // 48)
    n = len(share) // width * width
    for i, name in enumerate(("first", "second", "third")):
        mean = share[:n, i].reshape(-1, width).mean(axis=1)
        ax.plot(
            x[:n:width], mean, **draw.look(i).marked, markersize=3.5, linewidth=1.4, markevery=4, label=f"{name} layer"
        )
    ax.set(ylim=(0, 100), xlim=(0, x[-1]), xlabel="training step", ylabel="updates lost (%)",
           title=f"{fmt.upper()}, nearest: lost updates")  # fmt: skip
    ax.legend(loc="upper left")


def draw_drift(ax: draw.Axes, result: Result) -> None:
    x = np.arange(len(result.params.rates))
    for v, drift in zip(VARIANTS[1:], result.drift[1:], strict=True):
        style, filled = draw.look(LOOKS[v.update]), v.weights == "bf16"
        ax.plot(x, drift[..., 0].mean(axis=1), color=style.color, marker=style.marker, linewidth=1.4,
                linestyle="-" if filled else (0, (3, 2)), markerfacecolor=style.color if filled else "none",
                label=WORDS[v.update] if filled else None)  # fmt: skip
    ax.set_yscale("log", base=2)
    ax.set_xticks(x, [power(r) for r in result.params.rates])
    ax.set_xlim(-0.3, len(x) - 0.7)
    ax.grid(axis="x", visible=False)
    ax.set(xlabel="learning rate", ylabel="median distance (ulps)", ylim=(None, ax.get_ylim()[1] * 2**5),
           title="From the exact sum of their updates")  # fmt: skip
    ax.legend(loc="upper left", ncols=2, title="weights: dashed FP16, solid BF16", title_fontsize=9)


def draw_ratios(ax: draw.Axes, result: Result) -> None:
    theme, edges = draw.current(), np.arange(-1, 3.01, 0.125)
    for i, fmt in enumerate(HALVES):
        form, style = formats.get(fmt), draw.look(i)
        w, u, after = result.nearest(fmt)
        good = (np.abs(w) >= form.smallest_normal) & (u != 0)
        ratio = np.log2(np.abs(w[good]) / np.abs(u[good])) - form.significand_bits
        many, _ = np.histogram(ratio, edges)
        gone, _ = np.histogram(ratio[(after == w)[good]], edges)
        ax.plot(edges[:-1] + 0.0625, 100 * gone / np.maximum(many, 1), color=style.color, linestyle="none",
                marker=style.marker, markersize=4.5, label=f"{fmt.upper()} run")  # fmt: skip
    x = np.log2(ratio_edges("fp16")) - formats.get("fp16").significand_bits
    ax.plot(x, 100 * result.survival[0], color=theme.ink, linewidth=1.1, label="all significands: $2^x - 1$")
    ax.axvline(0, color=theme.muted, linewidth=1, linestyle=(0, (3, 2)))
    ax.text(-0.04, 62, "the rule: lost\nfrom $2^p$ on", ha="right", color=theme.muted)
    ax.set_xlim(-1, 3)
    ax.set_xticks(range(-1, 4), ["$2^{p-1}$", "$2^{p}$", "$2^{p+1}$", "$2^{p+2}$", "$2^{p+3}$"])
    ax.set(ylim=(-3, 103), xlabel="ratio $|w|/|u|$ (FP16: $2^p$ = 2048, BF16: 256)", ylabel="updates lost (%)",
           title="The 2048 rule against the exact criterion")  # fmt: skip
    ax.legend(loc="lower right")


EXPERIMENT = Experiment(
    title=say("Master weights"),
    question=say("Which updates does a 16-bit weight lose, and which of three remedies brings them back?"),
    budget=7.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(training, updates, criterion), cases=cases,
)  # fmt: skip
