"""Training with FP16 gradients at every loss scale: where they underflow, where they overflow, and the dynamic scale.

Two networks on the digits with their natural losses, torch's default means and default initialisation. The classifier
needs no scale, like most networks of Micikevicius et al. 2018 (arXiv 1710.03740). The autoencoder hardly learns
without one: its loss is a mean over the 64 values of each of 512 densities, and twelve layers of tanh, initialised as
torch does, shrink the gradient on its way to the encoder. (It is no law: with the learning rate 5e-3 for 300 steps the
decoder's weights grow until enough of the gradient survives, and the unscaled run catches up in part.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import numeric
from ...hardware.cases import Arrays, Case, philox_bits
from ...hardware.programs import program
from ...words import CLAUSE, joined, say
from ..frame import Experiment, Params, Result
from ..outcomes import Outcome, Part, failed, passed
from ..panels import line
from ..quantities import beside, equivalent, of, superior
from ..statistics import superior as larger
from ..trajectory import torchs_scales
from .data import JOBS, KEPT, Trained, first_gradient, kept_steps, step_by_hand, train

SEEDED = ("2^0", "2^16", "FP32")  # the runs that every seed makes: unscaled, between underflow and overflow, without
E = Experiment(
    "Loss scaling", "At which loss scales does FP16 training work, and how does a dynamic scale find them?",
    budget=8.0, one_thread=True,
    # steps, batch, lr: of the autoencoder and of the classifier; every: binades between two scales; encoder: the widths
    # from 64 pixels to the code, which the decoder takes backwards; hidden: the classifier's; growth_interval: of the
    # dynamic scale (torch's default is 2,000, longer than these runs); gpu: whose matrix products, None: this machine's
    # FP32 products; count: steps between two counts of zeros; seeds: of the runs SEEDED, all others are of the first
    full={"steps": (400, 300), "batch": (512, 128), "lr": (3e-3, 3e-3), "every": 2,
          "encoder": (64, 48, 40, 32, 24, 16, 8), "hidden": (48, 48), "growth_interval": 20, "gpu": "H100",
          "count": 10, "seeds": 3},
    quick={"steps": (140, 50), "lr": (5e-3, 3e-3), "every": 8, "growth_interval": 6, "gpu": None},
)  # fmt: skip


# --- the runs ---------------------------------------------------------------------------------------------------
def ways(p: Params) -> dict[str, int | None]:
    """The static scales with their exponents, the dynamic scale, and FP32."""
    return {**{f"2^{e}": e for e in range(0, 25, p.every)}, "dynamic": None, "FP32": None}


@E.cache
def trained(p: Params, task: str, way: str, seed: int) -> Trained:
    """One run."""
    from ...training.scalers import DynamicScaler, StaticScaler

    dynamic, static = DynamicScaler(growth_interval=p.growth_interval), StaticScaler(2.0 ** (ways(p)[way] or 0))
    scaler = dynamic if way == "dynamic" else static
    return train(JOBS[task](p), p, list(JOBS).index(task), scaler, half=way != "FP32", seed=seed)


def layers_of(p: Params) -> range:
    """The autoencoder's layers, counted from 1."""
    return range(1, 2 * len(p.encoder) - 1)


@E.measure("score", "zero_gradients", "skipped_steps", axes={"task": JOBS, "loss_scale": ways})
def scores(p: Params, task: str, loss_scale: str) -> tuple[float, float, float]:
    """Of the first seed: what was learned; with static scales the shares of zero gradients and of skipped steps."""
    run = trained(p, task, loss_scale, 0)
    if ways(p)[loss_scale] is None:
        return run.score, np.nan, np.nan
    return run.score, float(run.zeros.mean(axis=0).mean()), float(run.skipped.mean())


@E.measure(axes={"task": JOBS, "way": SEEDED, "seed": "seeds"})
def final(p: Params, task: str, way: str, seed: int) -> float:
    """What the runs of every seed learned: explained variance or accuracy on the test images."""
    return trained(p, task, way, seed).score


@E.measure(axes={"seed": "seeds"}, dims=("layer",))
def zeros(p: Params, seed: int) -> np.ndarray:
    """The share of zeros among the gradients of the unscaled autoencoder's layers, over the counts."""
    return np.asarray(trained(p, "autoencoder", "2^0", seed).zeros.mean(axis=0))


@E.measure("losses", "scales", axes={"task": JOBS, "loss_scale": ways}, dims=("step",))
def courses(p: Params, task: str, loss_scale: str) -> tuple[np.ndarray, np.ndarray]:
    """Loss and scale by step, of the first seed."""
    run = trained(p, task, loss_scale, 0)
    return run.losses, run.scales


@E.measure("zeros_by_scale", axes={"loss_scale": lambda p: [*ways(p)][:-2]}, dims={"layer": layers_of})
def zeros_of_first(p: Params, loss_scale: str) -> np.ndarray:
    """The same of the first seed, at each static scale."""
    return np.asarray(trained(p, "autoencoder", loss_scale, 0).zeros.mean(axis=0))


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved(
    "In the first, a middle and the last step passes, unscaling, Adam and zeros by layer are of single casts and sums"
)
def steps(r: Result) -> Iterator[Part]:
    """The kept steps of every run of the first seed, and the shares of zeros by layer that are drawn of them."""
    from ...training.tasks import epochs

    p = r.p
    for (which, task), (way, exponent) in itertools.product(enumerate(JOBS), ways(p).items()):
        run = trained(r.p, task, way, 0)
        order = list(epochs(len(JOBS[task](p).inputs), p.batch[which], 0, p.steps[which]))
        for k, step in enumerate(kept_steps(p, which)):
            kept, used = dict(zip(KEPT, run.kept[k], strict=True)), float(run.scales[step]) if way == "dynamic" else 0.0
            scale = used if exponent is None else 2.0**exponent
            taken = step + 1 - int(run.skipped[:step].sum())
            gpu = p.gpu if scale else None
            after, shares = step_by_hand(JOBS[task](p), kept, order[step], taken, scale, gpu, p.lr[which])
            there = say("{task}, {way}, step {step}", task=task, way=way, step=step)
            yield there, kept["new weights"].view(np.uint32), after.view(np.uint32), "fp32"
            if exponent is not None:
                yield there, run.zeros[step // p.count], shares


@E.measured("Unscaled, most gradients of the autoencoder's first layer are zero in FP16, and it learns less than FP32")
def unscaled_fails(r: Result) -> Outcome:
    """The share of zeros, network by network; the margin is half. Each network explains less than FP32's does.

    By how much is not claimed: how soon FP32 begins to learn depends on the seed, and some have hardly begun in the
    quick size.
    """
    unscaled, _, fp32 = r.final.sel(task="autoencoder").values
    shares = r.zeros.values
    detail = say(
        "explained variance: unscaled {unscaled:.3f}, FP32 {fp32:.3f}; unscaled, {first:.0%} of the first layer's "
        "gradients are zero and {last:.1%} of the last's",
        unscaled=unscaled.mean(), fp32=fp32.mean(), first=shares[:, 0].mean(), last=shares[:, -1].mean(),
    )  # fmt: skip
    if not (unscaled < fp32).all():
        return failed(detail)
    return larger(shares[:, 0], 0.0, 0.5, detail)


auto, reader = ([of("final", task=task, way=way) for way in SEEDED] for task in JOBS)
encoder = of("zeros").then("encoder", lambda x: x[:, : x.shape[1] // 2].mean("layer"))
decoder = of("zeros").then("2 · decoder", lambda x: x[:, x.shape[1] // 2 :].mean("layer"))
E.claim(
    # The margin is less than what an unscaled run lacks, and more than the 0.02 by which a network now and then begins
    # to learn sooner or later.
    equivalent("scaled_learns", "With the scale 2^16 it ends where FP32 does, to 0.05 of the variance",
               auto[1], auto[2], within=0.05),
    equivalent("classifier_needs_none", "The classifier needs no scale, like most networks of the paper",
               reader[0], reader[2], within=0.03),
    superior("encoder_first",
             "Unscaled, far from the loss, in the encoder, more gradients are zero than near it, in the decoder",
             encoder, decoder * 2),
)  # fmt: skip


@E.proved("At 2^24 every step of both tasks overflows and changes no weight")
def largest_scale(r: Result) -> Outcome:
    texts, static = [], [way for way, exponent in ways(r.p).items() if exponent is not None]
    for task in JOBS:
        last = trained(r.p, task, static[-1], 0)
        if not last.skipped.all() or (last.kept[:, 3] != last.kept[0, 0]).any():
            detail = say("{task}: {share:.0%} skipped, or a weight has changed", task=task, share=last.skipped.mean())
            return failed(detail)
        first = next(way for way in static if trained(r.p, task, way, 0).skipped.any())
        detail = say("{task}: {scale} skips every step; {first} is the first scale that skips any", task=task)
        texts.append(detail.fill(scale=static[-1], first=first))
    return passed(joined(texts, CLAUSE))


@E.library("On the first step zeros are what is at most 2^-25, infinities what is at least 65520")
def first_step(r: Result) -> Iterator[Part]:
    for which, task in enumerate(JOBS):
        natural = first_gradient(JOBS[task](r.p), r.p, which).astype(np.float64)
        for exponent in (e for e in ways(r.p).values() if e is not None):
            scaled, stored = natural * 2.0**exponent, trained(r.p, task, f"2^{exponent}", 0).first.astype(np.float32)
            there = f"{task}, 2^{exponent}"
            yield there, stored == 0, np.abs(scaled) <= 2.0**-25
            yield there, np.isinf(stored), np.abs(scaled) >= 65520.0
            with np.errstate(over="ignore"):
                want = scaled.astype(np.float16).view(np.uint16)
            yield there, numeric.encode(stored, "fp16"), want, "fp16"


@E.library("The dynamic scale grows, overflows, skips and halves exactly as torch's GradScaler")
def machine(r: Result) -> Iterator[Part]:
    runs = {task: trained(r.p, task, "dynamic", 0) for task in JOBS}
    for task, run in runs.items():
        yield task, run.scales, torchs_scales(2.0**16, run.skipped, r.p.growth_interval)
        detail = say("{task}: {skipped} of {steps} steps skipped, up to {most}", task=task, steps=len(run.scales))
        yield passed(detail.fill(skipped=int(run.skipped.sum()), most=f"2^{np.log2(run.scales.max()):.0f}"))
    yield say("no step is skipped"), any(run.skipped.any() for run in runs.values())


E.answer("unscaled FP16 explains {bare:.0%} of the variance, scaled by 2^16 {scaled:.0%}, FP32 {fp32:.0%}; unscaled "
         "{zeros:.0%} of the first layer's gradients are 0", bare=auto[0], scaled=auto[1], fp32=auto[2],
         zeros=of("zeros").then("zeros", lambda x: x[:, 0]))  # fmt: skip


# --- what a GPU must compute: the two kernels of torch's GradScaler ---------------------------------------------
STATES, GRADIENTS = 512, 256
SCALES = (1.0, 3.7, 2.0**16, 2.0**-149, 1e-39, 3e38, 2.0**127, 0.1)
FACTORS = ((2.0, 0.5, 3), (1.5, 0.3, 2), (1000.0, 0.001, 1))  # growth, backoff, interval


def machine_inputs() -> Arrays:
    """Scales of any size, how many good steps, and whether the gradients were finite."""
    raw = philox_bits(421, 3, STATES)
    scale = raw[0] & np.uint32(0x7FFFFFFF)
    scale = np.where(scale >= 0x7F800000, scale & np.uint32(0x7F7FFFFF), scale)
    return {"scale": scale.astype(np.uint32), "good": raw[1] >> np.uint32(31), "found": raw[2] >> np.uint32(31)}


def unscale_inputs() -> Arrays:
    """For every scale gradients of any bits; in one half of the rows all are finite."""
    raw = philox_bits(431, 2 * len(SCALES), GRADIENTS)
    infinite = (raw & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    raw[::2] = np.where(infinite[::2], raw[::2] & np.uint32(0xBFFFFFFF), raw[::2])
    return {"gradients": raw}


def updated(scale: Any, good: Any, found: Any) -> dict[str, Any]:
    """``torch._amp_update_scale_`` on every state, with each set of factors."""
    import torch

    states = []
    for growth, backoff, interval in FACTORS:
        for s, g, f in zip(scale, good % interval, found.float(), strict=True):
            states.append((s.clone(), g.clone()))
            torch._amp_update_scale_(*states[-1], f, growth, backoff, interval)
    return {name: torch.stack(each).unflatten(0, (-1, STATES))
            for name, each in zip(("scale", "good"), zip(*states, strict=True), strict=True)}  # fmt: skip


def updated_by_lab(scale: np.ndarray, good: np.ndarray, found: np.ndarray) -> dict[str, np.ndarray]:
    from ...training.scalers import Machine, Tracked

    states = [Machine(1.0, growth, backoff, interval).after(Tracked(float(s), int(g) % interval), bool(f))
              for growth, backoff, interval in FACTORS for s, g, f in zip(scale, good, found, strict=True)]  # fmt: skip
    return {
        "scale": np.array([t.scale for t in states], np.float32).reshape(-1, STATES),
        "good": np.array([t.good_steps for t in states], np.int32).reshape(-1, STATES),
    }


def unscaled(gradients: Any) -> dict[str, Any]:
    """GradScaler's reciprocal and ``torch._amp_foreach_non_finite_check_and_unscale_``, a row at a time."""
    import torch

    rows, flags = gradients.clone(), torch.zeros(len(gradients), device=gradients.device)
    for i, (row, flag) in enumerate(zip(rows, flags, strict=True)):
        inverse = torch.tensor(SCALES[i // 2], device=rows.device).double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_([row], flag, inverse)
    return {"gradients": rows, "found": flags.to(torch.uint8)}


def unscaled_by_lab(gradients: np.ndarray) -> dict[str, np.ndarray]:
    from ...training import scalers

    rows = [scalers.unscaled(row, SCALES[i // 2]) for i, row in enumerate(gradients)]
    return {"gradients": np.array(rows, np.float32), "found": ~np.isfinite(gradients).all(1)}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    yield program("update_scale", machine_inputs, {"scale": "fp32", "good": "int32", "found": "int32"}, updated,
                  {"scale": "fp32", "good": "bits32"}, updated_by_lab)  # fmt: skip
    yield program("unscale", unscale_inputs, {"gradients": "fp32"}, unscaled, {"gradients": "fp32", "found": "bits8"},
                  unscaled_by_lab)  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
def of_fp32(r: Result) -> Any:
    """What was learned at each scale, in percent of FP32's; nothing where it is below nothing."""
    return (100 * r.score / r.score.sel(loss_scale="FP32", drop=True)).clip(0)


def smoothed(losses: Any) -> Any:
    """Running means over a sixtieth of the steps."""
    whole = losses.dropna("step", how="all")
    return whole.rolling(step=max(whole.sizes["step"] // 60, 1)).mean()


by_scale: dict[str, Any] = {"x": "loss_scale", "marked": True, "ticks": True, "ylim": (-3, 118), "xlabel": "loss scale"}
powers = {f"2^{e}": f"$2^{{{e}}}$" for e in range(25)}
lost = beside("share", {"zero gradients, autoencoder": of("zero_gradients", task="autoencoder"),
                        "zero gradients, classifier": of("zero_gradients", task="classifier"),
                        "skipped steps": of("skipped_steps").mean("task")})  # fmt: skip
E.figure(
    "figure",
    line(of_fp32, hue="task", names=powers, **by_scale, legend={"loc": "lower center"},
         ylabel="test score, of FP32's (%)", title="The autoencoder needs a scale, the classifier does not"),
    line((lost * 100).then("share", lambda x: x.dropna("loss_scale", how="all")), hue="share", names=powers, **by_scale,
         ylabel="of gradients, of steps (%)", title="Small scales: gradients underflow; large ones: steps overflow"),
    size=(8, 8.5),
)  # fmt: skip
E.figure(
    "training",
    line(of("losses", task="autoencoder", loss_scale=["2^0", "2^16", "dynamic", "FP32"]).then("loss", smoothed),
         x="step", hue="loss_scale", log="y", names=powers, xlabel="training step", ylabel="training loss",
         title="The autoencoder: unscaled it learns the mean image"),
    line(of("zeros_by_scale", loss_scale=["2^0", "2^8", "2^16"]) * 100, x="layer", hue="loss_scale", marked=True,
         names=powers, ylim=(-2, 103), xlabel="layer", ylabel="gradients that are zero (%)",
         title="The autoencoder: the encoder's gradients underflow first"),
    size=(8, 9),
)  # fmt: skip
E.figure("dynamic", line(of("scales", loss_scale="dynamic").then("exponent", np.log2), x="step", hue="task",
                         xlabel="training step", ylabel="dynamic loss scale, base-2 logarithm",
                         title="The dynamic scale doubles until a step overflows, then halves"))  # fmt: skip
