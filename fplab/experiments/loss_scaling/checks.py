"""The experiment's claims, each against an exact criterion, torch's own kernel, or the FP32 run."""

from __future__ import annotations

import itertools

import numpy as np

import fplab

from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, Status, failed, measured, passed, same_bits, verdict
from ..legacy import Check
from ..statistics import equivalent, superior
from .data import KEPT, SCALE, TASKS, Job, Params, autoencoder, classifier

LARGEST_LOST = 2.0**-25  # what FP16 rounds to zero: half its smallest number, and less
FIRST_INFINITE = 65520.0
JOBS = (autoencoder, classifier)


def scores(arrays: Arrays, task: str) -> tuple[np.ndarray, float, float]:
    """Of the static scales, of the dynamic scale, of FP32."""
    found = arrays[f"{task}_score"]
    return found[:-2], float(found[-2]), float(found[-1])


def check_first_step(arrays: Arrays, params: Params) -> Outcome:
    """Both edges on the first step: what is stored of each output's gradient, at every scale, from the FP32 values."""
    done = 0
    for task in TASKS:
        natural = arrays[f"{task}_first_fp32"].astype(np.float64)
        for i, exponent in enumerate(params.exponents):
            scaled = np.abs(natural) * 2.0**exponent
            stored = arrays[f"{task}_first"][i]
            if not np.array_equal(stored == 0, scaled <= LARGEST_LOST):
                return failed(f"{task}, 2^{exponent}: the zeros are not the values up to 2^-25")
            if not np.array_equal(np.isinf(stored), scaled >= FIRST_INFINITE):
                return failed(f"{task}, 2^{exponent}: the infinities are not the values from 65520 on")
            with np.errstate(over="ignore"):
                want = (natural * 2.0**exponent).astype(np.float16).view(np.uint16)
            if not np.array_equal(fplab.encode(stored, "fp16"), want):
                return failed(f"{task}, 2^{exponent}: not numpy's FP16 values")
            done += stored.size
    return passed(f"{done:,} gradients, every bit numpy's cast")


def product(gpu: str | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B of float32 matrices by torch, or of operands rounded to FP16 in a GPU's bits."""
    import torch

    if gpu is None:
        return np.asarray(torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy())
    from ...tensorcore import matmul

    return np.asarray(matmul(half(a), half(b), gpu=gpu, inputs="fp16"))


def half(x: np.ndarray) -> np.ndarray:
    """float32 values as FP16 holds them, by numpy's cast."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def step_by_hand(
    job: Job, kept: dict[str, np.ndarray], index: np.ndarray, step: int, scale: float, gpu: str | None, lr: float
) -> tuple[np.ndarray, list[float]]:
    """The weights after a step (Adam's ``step`` from 1), and the shares of zeros by layer; ``scale`` 0: all in FP32.

    Without autograd: of torch are tanh, the loss with its gradient, sums over a batch and, without a GPU, products.
    """
    import torch

    store = half if scale else np.asarray
    flat, parts, done = store(kept["weights"]), [], 0
    for n, m in itertools.pairwise(job.sizes):
        parts.append((flat[done : done + n * m].reshape(m, n), flat[done + n * m : done + n * m + m]))
        done += n * m + m
    inputs, curves, x = [], [], np.asarray(job.inputs[index].numpy())
    for i, (weight, bias) in enumerate(parts):
        inputs.append(x)
        if gpu is None:
            x = torch.addmm(*(torch.from_numpy(v) for v in (bias, x, weight.T))).numpy()
        else:
            x = product(gpu, x, weight.T) + bias
        x = store(x)
        if i < len(parts) - 1:
            curves.append(torch.tanh(torch.from_numpy(x)))
            x = store(curves[-1].numpy())
    outputs = torch.from_numpy(x.copy()).requires_grad_()
    (job.loss(outputs, job.targets[index]) * torch.tensor(scale or 1.0)).backward()
    assert outputs.grad is not None
    slope, gradients, shares = outputs.grad.numpy(), [], []
    with np.errstate(all="ignore"):
        for i in reversed(range(len(parts))):
            slope = store(slope)
            shares.append(float((slope == 0).mean()))
            gradients += [torch.from_numpy(slope).sum(0).numpy(), product(gpu, slope.T, inputs[i]).ravel()]
            if i:
                back = torch.from_numpy(store(product(gpu, slope, parts[i][0])))
                slope = torch.ops.aten.tanh_backward(back, curves[i - 1]).numpy()
        gradient = store(np.concatenate(gradients[::-1]))
        if not np.isfinite(gradient).all():
            return kept["weights"], shares[::-1]
        return adam(kept, gradient * np.float32(1 / (scale or 1.0)), step, lr), shares[::-1]


def adam(kept: dict[str, np.ndarray], g: np.ndarray, step: int, lr: float) -> np.ndarray:
    """The weights after Adam's step, in numpy's float32, each operation rounded by itself."""
    single = np.float32
    m = kept["exp_avg"] + (g - kept["exp_avg"]) * single(1 - 0.9)
    v = kept["exp_avg_sq"] * single(0.999) + g * single(1 - 0.999) * g
    root = np.sqrt(v) / single((1 - 0.999**step) ** 0.5) + single(1e-8)
    return np.asarray(kept["weights"] + m * single(-lr / (1 - 0.9**step)) / root)


def check_steps(arrays: Arrays, params: Params) -> Outcome:
    """The kept steps of every run of the first seed, and the shares of zeros by layer that are drawn of them."""
    from ...training.loop import one_thread
    from ...training.tasks import epochs

    done, count = 0, len(params.exponents)
    for which, task in enumerate(TASKS):
        job = JOBS[which](params)
        order = list(epochs(len(job.inputs), params.batch[which], 0, params.steps[which]))
        for r, name in enumerate([*(f"2^{e}" for e in params.exponents), "dynamic", "FP32"]):
            for k, step in enumerate(params.kept(which)):
                kept = dict(zip(KEPT, arrays[f"{task}_kept"][r, k], strict=True))
                scale = 2.0 ** params.exponents[r] if r < count else float(arrays[f"{task}_trace"][step])
                scale = 0.0 if name == "FP32" else scale
                skipped = arrays[f"{task}_skipped_steps"][r, :step].sum()
                with one_thread():
                    after, zeros = step_by_hand(job, kept, order[step], step + 1 - int(skipped), scale,
                                                params.gpu if scale else None, params.lr[which])  # fmt: skip
                outcome = same_bits(kept["new weights"].view(np.uint32), after.view(np.uint32), "fp32")
                if outcome.status is not Status.PASS:
                    return failed(f"{task}, {name}, step {step}: {outcome.detail}")
                if r < count and not np.array_equal(arrays[f"{task}_counted"][r, step // params.count], zeros):
                    return failed(f"{task}, {name}, step {step}: the shares of zeros by layer are {np.round(zeros, 3)}")
                done += after.size
        if not np.array_equal(arrays[f"{task}_zeros"], arrays[f"{task}_counted"].mean(axis=1)):
            return failed(f"{task}: the shares of zeros are not the means of those counted")
    return passed(f"{done:,} weights after 3 steps of {count + 2} runs of both tasks, every bit")


def check_unscaled(arrays: Arrays, params: Params) -> Outcome:
    """Unscaled networks explain less than FP32's, each of them, and all together less than a quarter.

    Not network by network: how soon FP32 begins to learn depends on the seed, and some have hardly begun in the quick
    size. The spread is of the differences, in explained variance.
    """
    unscaled, _, fp32 = arrays["autoencoder_by_seed"].T
    zeros = arrays["autoencoder_zeros"][0]
    detail = (
        f"explained variance: unscaled {unscaled.mean():.3f}, FP32 {fp32.mean():.3f}; unscaled, {zeros[0]:.0%} of the "
        f"first layer's gradients are zero and {zeros[-1]:.1%} of the last's"
    )
    holds = bool((unscaled < fp32).all() and 4 * unscaled.sum() < fp32.sum())
    return measured(holds, detail, Sample(len(fp32), float(np.std(fp32 - unscaled, ddof=1)), 0.25))


def check_scaled(arrays: Arrays, params: Params) -> Outcome:
    """With a fixed scale it ends where FP32 does, the dynamic one loses steps on its way.

    The margin is less than what an unscaled run lacks, and more than the 0.02 by which a network now and then begins to
    learn sooner or later.
    """
    _, scaled, fp32 = arrays["autoencoder_by_seed"].T
    dynamic = scores(arrays, "autoencoder")[1]
    skipped = int(arrays["autoencoder_overflows"].sum())
    detail = (
        f"first seed: 2^{SCALE} {scaled[0]:.3f}, FP32 {fp32[0]:.3f}; dynamic {dynamic:.3f}, {skipped} steps skipped"
    )
    return equivalent(scaled, fp32, 0.05, detail)


def check_needs_none(arrays: Arrays, params: Params) -> Outcome:
    """The classifier: no scale needed, as the paper found for ILSVRC; to 3 points of the test digits."""
    unscaled, _, fp32 = arrays["classifier_by_seed"].T
    return equivalent(unscaled, fp32, 0.03, f"accuracy: unscaled {unscaled.mean():.1%}, FP32 {fp32.mean():.1%}")


def check_overflows(arrays: Arrays, params: Params) -> Outcome:
    """At the largest scale every step overflows, and no weight changes: those of the last kept step are the first's."""
    texts = []
    for task in TASKS:
        steps, kept = arrays[f"{task}_skipped_steps"], arrays[f"{task}_kept"][len(params.exponents) - 1]
        if not steps[len(params.exponents) - 1].all() or (kept[:, 3] != kept[0, 0]).any():
            return failed(f"{task}: {steps[len(params.exponents) - 1].mean():.0%} skipped, or a weight has changed")
        first = next(e for e, s in zip(params.exponents, steps, strict=False) if s.any())
        texts.append(f"{task}: 2^{params.exponents[-1]} skips every step; 2^{first} is the first scale that skips any")
    return passed("; ".join(texts))


def check_shrinking(arrays: Arrays, params: Params) -> Outcome:
    """Unscaled, the encoder's gradients beside the decoder's: "more" is more than twice as many zeros."""
    shares = arrays["autoencoder_unscaled"]
    early, late = (part.mean(axis=1) for part in np.split(shares, 2, axis=1))
    half_ = ", ".join(f"{s:.0%}" for s in shares.mean(axis=0))
    return superior(early, 2 * late, 0.0, f"unscaled, first to last layer: {half_}")


def check_machine(arrays: Arrays, params: Params) -> Outcome:
    """The dynamic scale's trace is what torch's kernel makes of the same overflows."""
    import torch

    skipped = []
    for task in TASKS:
        scale, good = torch.tensor(2.0**16), torch.tensor(0, dtype=torch.int32)
        trace, overflows = arrays[f"{task}_trace"], arrays[f"{task}_overflows"]
        for step, (used, overflow) in enumerate(zip(trace, overflows, strict=True)):
            if scale.item() != used:
                return failed(f"{task}, step {step}: {used} instead of torch's {scale.item()}")
            torch._amp_update_scale_(scale, good, torch.tensor(float(overflow)), 2.0, 0.5, params.growth_interval)
        skipped.append(
            f"{task}: {int(overflows.sum())} of {len(trace)} steps skipped, up to 2^{np.log2(trace.max()):.0f}"
        )
    return verdict(any(arrays[f"{task}_overflows"].any() for task in TASKS), "; ".join(skipped))


LIBRARY, MEASURED = Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("In the first, a middle and the last step passes, unscaling, Adam and zeros by layer are of single casts and "
          "sums", Evidence.PROVED, check_steps),
    Check("The autoencoder hardly learns with unscaled FP16 gradients", MEASURED, check_unscaled),
    Check("With the scale 2^16 it ends where FP32 does, to 0.05 of the variance", MEASURED, check_scaled),
    Check("The classifier needs no scale, like most networks of the paper", MEASURED, check_needs_none),
    Check("Unscaled, far from the loss, in the encoder, more gradients are zero than near it, in the decoder", MEASURED,
          check_shrinking),
    Check("At 2^24 every step of both tasks overflows and changes no weight", Evidence.PROVED, check_overflows),
    Check("On the first step zeros are what is at most 2^-25, infinities what is at least 65520", LIBRARY,
          check_first_step),
    Check("The dynamic scale grows, overflows, skips and halves exactly as torch's GradScaler", LIBRARY,
          check_machine),
)  # fmt: skip
