"""Training with FP16 gradients at every loss scale: where they underflow, where they overflow, and the dynamic scale.

Two networks on the digits with their natural losses, torch's default means and default initialisation. The classifier
needs no scale, like most networks of Micikevicius et al. 2018 (arXiv 1710.03740). The autoencoder hardly learns
without one: its loss is a mean over the 64 values of each of 512 densities, and twelve layers of tanh, initialised as
torch does, shrink the gradient on its way to the encoder. (It is no law: with the learning rate 5e-3 for 300 steps the
decoder's weights grow until enough of the gradient survives, and the unscaled run catches up in part.)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ... import draw, numeric
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor
from ...words import CLAUSE, joined, say
from ..base import Claims, Columns, Experiment, in_columns, one_threaded, sheet
from ..outcomes import Outcome, Status, failed, passed, same_bits, verdict
from ..statistics import equivalent, superior
from .data import JOBS, KEPT, QUICK, SCALE, Params, Result, Task, run, step_by_hand


def rows(result: Result) -> Columns:
    """A row for each task and scale: what was learned, the share of zero gradients, the share of skipped steps."""
    names = [*(f"2^{e}" for e in result.params.exponents), "dynamic", "FP32"]
    static, blank, table = len(result.params.exponents), float("nan"), []
    for name, task in result.tasks.items():
        for i, scale in enumerate(names):
            shares = (float(task.zeros[i].mean()), float(task.skipped[i].mean())) if i < static else (blank, blank)
            table.append((name, scale, float(task.score[i]), *shares))
    return in_columns(("task", "loss_scale", "score", "zero_gradients", "skipped_steps"), table)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved(
    "In the first, a middle and the last step passes, unscaling, Adam and zeros by layer are of single casts and sums"
)
@one_threaded
def steps(result: Result) -> Outcome:
    """The kept steps of every run of the first seed, and the shares of zeros by layer that are drawn of them."""
    from ...training.tasks import epochs

    params, done, count = result.params, 0, len(result.params.exponents)
    for which, (name, task) in enumerate(result.tasks.items()):
        job = JOBS[which](params)
        order = list(epochs(len(job.inputs), params.batch[which], 0, params.steps[which]))
        for r, way in enumerate([*(f"2^{e}" for e in params.exponents), "dynamic", "FP32"]):
            for k, step in enumerate(params.kept(which)):
                kept = dict(zip(KEPT, task.kept[r, k], strict=True))
                scale = (
                    2.0 ** params.exponents[r] if r < count else float(task.trace[step]) if way == "dynamic" else 0.0
                )
                taken = step + 1 - int(task.skipped[r, :step].sum())
                gpu = params.gpu if scale else None
                after, zeros = step_by_hand(job, kept, order[step], taken, scale, gpu, params.lr[which])
                there = say("{task}, {way}, step {step}: {found}", task=name, way=way, step=step)
                outcome = same_bits(kept["new weights"].view(np.uint32), after.view(np.uint32), "fp32")
                if outcome.status is not Status.PASS:
                    return failed(there.fill(found=outcome.detail))
                if r < count and not np.array_equal(task.counted[r, step // params.count], zeros):
                    return failed(
                        there.fill(found=say("the shares of zeros by layer are {zeros}", zeros=np.round(zeros, 3)))
                    )
                done += after.size
    said = say("{n:,} weights after {steps} steps of {runs} runs of both tasks, every bit", n=done, steps=3)
    return passed(said.fill(runs=count + 2))


@CLAIMS.measured(
    "Unscaled, most gradients of the autoencoder's first layer are zero in FP16, and it learns less than FP32"
)
def unscaled_fails(result: Result) -> Outcome:
    """The share of zeros, network by network; the margin is half. Each network explains less than FP32's does.

    By how much is not claimed: how soon FP32 begins to learn depends on the seed, and some have hardly begun in the
    quick size.
    """
    unscaled, _, fp32 = result.autoencoder.by_seed.T
    zeros = result.autoencoder.unscaled
    detail = say(
        "explained variance: unscaled {unscaled:.3f}, FP32 {fp32:.3f}; unscaled, {first:.0%} of the first layer's "
        "gradients are zero and {last:.1%} of the last's",
        unscaled=unscaled.mean(), fp32=fp32.mean(), first=zeros[:, 0].mean(), last=zeros[:, -1].mean(),
    )  # fmt: skip
    if not (unscaled < fp32).all():
        return failed(detail)
    return superior(zeros[:, 0], 0.0, 0.5, detail)


@CLAIMS.measured("With the scale 2^16 it ends where FP32 does, to 0.05 of the variance")
def scaled_learns(result: Result) -> Outcome:
    """With a fixed scale it ends where FP32 does, the dynamic one loses steps on its way.

    The margin is less than what an unscaled run lacks, and more than the 0.02 by which a network now and then begins to
    learn sooner or later.
    """
    task = result.autoencoder
    _, scaled, fp32 = task.by_seed.T
    said = say("first seed: {scale} {scaled:.3f}, FP32 {fp32:.3f}; dynamic {dynamic:.3f}, {skipped} steps skipped",
               scale=f"2^{SCALE}", scaled=scaled[0], fp32=fp32[0], dynamic=task.score[-2])  # fmt: skip
    return equivalent(scaled, fp32, 0.05, said.fill(skipped=int(task.overflows.sum())))


@CLAIMS.measured("The classifier needs no scale, like most networks of the paper")
def classifier_needs_none(result: Result) -> Outcome:
    unscaled, _, fp32 = result.classifier.by_seed.T
    said = say("accuracy: unscaled {unscaled:.1%}, FP32 {fp32:.1%}", unscaled=unscaled.mean(), fp32=fp32.mean())
    return equivalent(unscaled, fp32, 0.03, said)


@CLAIMS.measured("Unscaled, far from the loss, in the encoder, more gradients are zero than near it, in the decoder")
def encoder_first(result: Result) -> Outcome:
    """Unscaled, the encoder's gradients beside the decoder's: "more" is more than twice as many zeros."""
    shares = result.autoencoder.unscaled
    early, late = (part.mean(axis=1) for part in np.split(shares, 2, axis=1))
    layers = ", ".join(f"{s:.0%}" for s in shares.mean(axis=0))
    return superior(early, 2 * late, 0.0, say("unscaled, first to last layer: {layers}", layers=layers))


@CLAIMS.proved("At 2^24 every step of both tasks overflows and changes no weight")
def largest_scale(result: Result) -> Outcome:
    exponents, texts = result.params.exponents, []
    for name, task in result.tasks.items():
        static = task.skipped[: len(exponents)]
        kept = task.kept[len(exponents) - 1]
        if not static[-1].all() or (kept[:, 3] != kept[0, 0]).any():
            said = say("{task}: {share:.0%} skipped, or a weight has changed", task=name, share=static[-1].mean())
            return failed(said)
        first = next(e for e, steps in zip(exponents, static, strict=True) if steps.any())
        said = say("{task}: {scale} skips every step; {first} is the first scale that skips any", task=name)
        texts.append(said.fill(scale=f"2^{exponents[-1]}", first=f"2^{first}"))
    return passed(joined(texts, CLAUSE))


@CLAIMS.library("On the first step zeros are what is at most 2^-25, infinities what is at least 65520")
def first_step(result: Result) -> Outcome:
    done = 0
    for name, task in result.tasks.items():
        for exponent, stored in zip(result.params.exponents, task.first, strict=True):
            scaled = task.first_fp32.astype(np.float64) * 2.0**exponent
            there = say("{task}, 2^{exponent}: {found}", task=name, exponent=exponent)
            if not np.array_equal(stored == 0, np.abs(scaled) <= 2.0**-25):
                return failed(there.fill(found=say("the zeros are not the values up to 2^-25")))
            if not np.array_equal(np.isinf(stored), np.abs(scaled) >= 65520.0):
                return failed(there.fill(found=say("the infinities are not the values from 65520 on")))
            with np.errstate(over="ignore"):
                want = scaled.astype(np.float16).view(np.uint16)
            if not np.array_equal(numeric.encode(stored, "fp16"), want):
                return failed(there.fill(found=say("not numpy's FP16 values")))
            done += stored.size
    return passed(say("{n:,} gradients, every bit numpy's cast", n=done))


@CLAIMS.library("The dynamic scale grows, overflows, skips and halves exactly as torch's GradScaler")
def machine(result: Result) -> Outcome:
    import torch

    texts = []
    for name, task in result.tasks.items():
        scale, good = torch.tensor(2.0**16), torch.tensor(0, dtype=torch.int32)
        for step, (used, overflow) in enumerate(zip(task.trace, task.overflows, strict=True)):
            if scale.item() != used:
                said = say("{task}, step {step}: {used} instead of torch's {torchs}", task=name, step=step, used=used)
                return failed(said.fill(torchs=scale.item()))
            found = torch.tensor(float(overflow))
            torch._amp_update_scale_(scale, good, found, 2.0, 0.5, result.params.growth_interval)
        said = say("{task}: {skipped} of {steps} steps skipped, up to {most}", task=name, steps=len(task.trace))
        texts.append(said.fill(skipped=int(task.overflows.sum()), most=f"2^{np.log2(task.trace.max()):.0f}"))
    return verdict(any(task.overflows.any() for task in result.tasks.values()), joined(texts, CLAUSE))


# --- what a GPU must compute: the two kernels of torch's GradScaler ---------------------------------------------
STATES, GRADIENTS = 512, 256
SCALES = (1.0, 3.7, 2.0**16, 2.0**-149, 1e-39, 3e38, 2.0**127, 0.1)
FACTORS = ((2.0, 0.5, 3), (1.5, 0.3, 2), (1000.0, 0.001, 1))  # growth, backoff, interval


def machine_inputs() -> Arrays:
    """Scales of any size, how many good steps, and whether the gradients were finite."""
    raw = philox_bits(421, 3 * STATES, np.uint32).reshape(3, STATES)
    scale = raw[0] & np.uint32(0x7FFFFFFF)
    scale = np.where(scale >= 0x7F800000, scale & np.uint32(0x7F7FFFFF), scale)
    return {"scale": scale.astype(np.uint32), "good": raw[1] >> np.uint32(31), "found": raw[2] >> np.uint32(31)}


def unscale_inputs() -> Arrays:
    """For every scale gradients of any bits; in one half of the rows all are finite."""
    raw = philox_bits(431, len(SCALES) * 2 * GRADIENTS, np.uint32).reshape(-1, GRADIENTS)
    tame = (raw & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    raw[::2] = np.where(tame[::2], raw[::2] & np.uint32(0xBFFFFFFF), raw[::2])
    return {"gradients": raw}


def device_machine(inputs: Arrays, device: str) -> Arrays:
    """``torch._amp_update_scale_`` on every state, with each set of factors."""
    import torch

    scales, goods = [], []
    for growth, backoff, interval in FACTORS:
        for s, g, f in zip(inputs["scale"], inputs["good"], inputs["found"], strict=True):
            scale = torch.tensor(np.uint32(s).view(np.float32).item(), device=device)
            good = torch.tensor(int(g) % interval, dtype=torch.int32, device=device)
            found = torch.tensor(float(f), device=device)
            torch._amp_update_scale_(scale, good, found, growth, backoff, interval)
            scales.append(scale)
            goods.append(good)
    shape = (len(FACTORS), STATES)
    return {"scale": bits(torch.stack(scales)).reshape(shape), "good": bits(torch.stack(goods)).reshape(shape)}


def lab_machine(inputs: Arrays, meta: Meta) -> Arrays:
    from ...training.scalers import Machine, Tracked

    found = []
    for growth, backoff, interval in FACTORS:
        machine = Machine(1.0, growth, backoff, interval)
        for s, g, f in zip(inputs["scale"].view(np.float32), inputs["good"], inputs["found"], strict=True):
            found.append(machine.after(Tracked(float(s), int(g) % interval), bool(f)))
    shape = (len(FACTORS), STATES)
    return {
        "scale": np.array([t.scale for t in found], np.float32).view(np.uint32).reshape(shape),
        "good": np.array([t.good_steps for t in found], np.uint32).reshape(shape),
    }


def device_unscale(inputs: Arrays, device: str) -> Arrays:
    """GradScaler's reciprocal and ``torch._amp_foreach_non_finite_check_and_unscale_``, a row at a time."""
    import torch

    gradients, founds = [], []
    for i, row in enumerate(inputs["gradients"]):
        gradient = tensor(row, "fp32", device).clone()
        found = torch.zeros((), device=device)
        inverse = torch.tensor(SCALES[i // 2], device=device).double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, inverse)
        gradients.append(gradient)
        founds.append(found)
    return {"gradients": bits(torch.stack(gradients)), "found": torch.stack(founds).cpu().numpy().astype(np.uint8)}


def lab_unscale(inputs: Arrays, meta: Meta) -> Arrays:
    from ...training.scalers import unscaled

    rows = inputs["gradients"].view(np.float32)
    results = np.stack([unscaled(row, SCALES[i // 2]) for i, row in enumerate(rows)])
    return {
        "gradients": np.asarray(results, np.float32).view(np.uint32),
        "found": np.array([not np.isfinite(row).all() for row in rows], np.uint8),
    }


def cases(params: Params) -> Iterator[Case]:
    yield Case("update_scale", machine_inputs, device_machine, lab_machine, {"scale": "fp32", "good": "bits32"})
    yield Case("unscale", unscale_inputs, device_unscale, lab_unscale, {"gradients": "fp32", "found": "bits8"})


# --- figures ----------------------------------------------------------------------------------------------------
SCORES = {"autoencoder": "explained variance (test)", "classifier": "accuracy (test)"}
TITLES = {"autoencoder": "The autoencoder needs a scale", "classifier": "The classifier does not"}
ZERO, SKIPPED = 1, 5  # series, as the fates "zero" and "overflow" are drawn elsewhere


def scores(result: Result) -> draw.Figure:
    figure, gpu = draw.new_figure(8, 8.5), result.params.gpu
    products = f"{gpu} products, emulated" if gpu else "products accumulated in FP32"
    draw.caption(figure, f"Digits; weights, activations and gradients stored in FP16, {products},\n"
                         "FP32 master weights, Adam; mean losses as they are")  # fmt: skip
    panels = figure.subplots(2, 1)
    for ax, (name, task) in zip(panels, result.tasks.items(), strict=True):
        draw_score(ax, result.params, name, task)
    return figure


def draw_score(ax: draw.Axes, params: Params, name: str, task: Task) -> None:
    x, theme, width = np.array(params.exponents), draw.current(), 0.8 * params.every
    right = ax.twinx()
    zeros, skipped = 100 * task.zeros.mean(axis=1), 100 * task.skipped[: len(x)].mean(axis=1)
    right.bar(x, zeros, width, color=theme.series[ZERO], alpha=0.45, label="zero gradients (mean of layers)")
    right.bar(x, skipped, width, color=theme.series[SKIPPED], alpha=0.35, hatch="xxx", edgecolor=theme.background,
              linewidth=0, label="skipped steps")  # fmt: skip
    right.set_ylim(0, 135)
    right.set_yticks(range(0, 101, 25))
    right.set_ylabel("zero gradients, skipped steps (%)")
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    ax.set_zorder(right.get_zorder() + 1)
    ax.patch.set_visible(False)
    ax.plot(x, np.maximum(task.score[:-2], 0), **draw.look(0).marked, label="static scale")
    ax.axhline(task.score[-2], **draw.look(2).line, linewidth=1.4, label="dynamic scale")
    ax.axhline(task.score[-1], color=theme.ink, linewidth=1.1, linestyle=(0, (1, 1.5)), label="FP32")
    ax.set(ylim=(0, 1.35 * max(task.score[-2:])), xlim=(x[0] - 0.6 * params.every, x[-1] + 0.6 * params.every))
    draw.power_ticks(ax.xaxis, [e for e in params.exponents if e % 4 == 0])
    ax.set(xlabel="loss scale", ylabel=SCORES[name], title=TITLES[name])
    handles = [*ax.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, loc="upper left", ncols=3, columnspacing=1.2)


def draw_curves(ax: draw.Axes, result: Result) -> None:
    losses, last = result.autoencoder.losses, len(result.params.exponents) - 1
    for name, i, series in (("$2^0$", 0, ZERO), ("$2^{24}$", last, SKIPPED), ("dynamic", -2, 2)):
        ax.plot(*draw.smoothed(losses[i]), **draw.look(series).line, linewidth=1.6, label=f"scale {name}")
    ax.plot(*draw.smoothed(losses[-1]), color=draw.current().ink, linewidth=1, linestyle=(0, (1, 1.5)), label="FP32")
    ax.set(yscale="log", xlim=(0, result.params.steps[0]), xlabel="training step", ylabel="training loss",
           title="The autoencoder: unscaled\nit learns the mean image")  # fmt: skip
    ax.legend(loc="center right")


def draw_layers(ax: draw.Axes, result: Result) -> None:
    params, muted = result.params, draw.current().muted
    x, middle = np.arange(1, params.layers + 1), params.layers / 2 + 0.5
    shown = [i for i, e in enumerate(params.exponents) if e in (0, 2, 4, 6, 8)]
    for i, series in zip(shown, (ZERO, 0, 2, 3, 4), strict=False):
        label = f"scale $2^{{{params.exponents[i]}}}$"
        ax.plot(x, 100 * result.autoencoder.zeros[i], **draw.look(series).marked, label=label)
    ax.axvline(middle, color=muted, linewidth=0.9, linestyle=(0, (3, 2)))
    ax.text(middle - 0.2, 99, "encoder", ha="right", va="top", color=muted)
    ax.text(middle + 0.2, 99, "decoder", ha="left", va="top", color=muted)
    ax.set_ylim(-2, 103)
    ax.set_xticks(x)
    ax.grid(axis="x", visible=False)
    ax.set(xlabel="layer", ylabel="gradients that are zero (%)",
           title="The autoencoder: the encoder's\ngradients underflow first")  # fmt: skip
    ax.legend(loc="center right")


def draw_trace(ax: draw.Axes, result: Result, name: str) -> None:
    task = result.tasks[name]
    scales, at = np.log2(task.trace), np.flatnonzero(task.overflows)
    ax.step(np.arange(len(scales)), scales, where="post", color=draw.look(2).color, linewidth=1.6)
    ax.plot(at, scales[at], linestyle="none", marker="X", markersize=8, color=draw.current().series[SKIPPED],
            label=f"overflow: step skipped,\nscale halved ({len(at)})", clip_on=False)  # fmt: skip
    low, high = int(scales.min()) - 1, int(scales.max()) + 2
    ax.set_ylim(low, high)
    draw.power_ticks(ax.yaxis, range(low + 1, high, max(1, (high - low) // 6)))
    ax.set(xlim=(0, len(scales)), xlabel="training step", ylabel="dynamic loss scale",
           title=f"The dynamic scale of the {name}")  # fmt: skip
    ax.legend(loc="lower right")


EXPERIMENT = Experiment(
    title=say("Loss scaling"),
    question=say("At which loss scales does FP16 training work, and how does a dynamic scale find them?"),
    budget=7.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(scores, sheet("training", (8, 8), (2, 2), draw_curves, draw_layers,
                           *(partial(draw_trace, name=name) for name in ("autoencoder", "classifier")))), cases=cases,
)  # fmt: skip
