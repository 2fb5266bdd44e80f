"""The experiment's claims, each against an exact criterion, torch's own kernel, or the FP32 run."""

from __future__ import annotations

import numpy as np

import fplab

from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, failed, passed, verdict
from .data import TASKS, Params

LARGEST_LOST = 2.0**-25  # what FP16 rounds to zero: half its smallest number, and less
FIRST_INFINITE = 65520.0


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


def check_fails_unscaled(arrays: Arrays, params: Params) -> Outcome:
    """The autoencoder: nothing is learned without a scale; with one it reaches what FP32 reaches."""
    static, dynamic, fp32 = scores(arrays, "autoencoder")
    best = params.exponents[int(np.argmax(static))]
    zeros = arrays["autoencoder_zeros"][0]
    detail = (
        f"explained variance: unscaled {static[0]:.3f}, best static scale (2^{best}) {static.max():.3f}, dynamic "
        f"{dynamic:.3f}, FP32 {fp32:.3f}; unscaled, {zeros[0]:.0%} of the first layer's gradients are zero and "
        f"{zeros[-1]:.1%} of the last's"
    )
    return verdict(static[0] < 0.05 and fp32 > 0.1 and min(static.max(), dynamic) > 0.85 * fp32, detail)


def check_needs_none(arrays: Arrays, params: Params) -> Outcome:
    """The classifier: no scale needed, as the paper found for ILSVRC."""
    static, dynamic, fp32 = scores(arrays, "classifier")
    detail = f"accuracy: unscaled {static[0]:.1%}, dynamic {dynamic:.1%}, FP32 {fp32:.1%}"
    return verdict(fp32 > 0.9 and abs(static[0] - fp32) < 0.03 and abs(dynamic - fp32) < 0.03, detail)


def check_overflows(arrays: Arrays, params: Params) -> Outcome:
    """At the largest scale every step overflows, and nothing is learned."""
    texts = []
    for task in TASKS:
        static, _, fp32 = scores(arrays, task)
        if arrays[f"{task}_skipped"][-1] < 1 or static[-1] > 0.5 * fp32:
            return failed(f"{task}: {arrays[f'{task}_skipped'][-1]:.0%} skipped, score {static[-1]:.3f}")
        first = next(e for e, s in zip(params.exponents, arrays[f"{task}_skipped"], strict=True) if s)
        texts.append(f"{task}: 2^{params.exponents[-1]} skips every step; 2^{first} is the first scale that skips any")
    return passed("; ".join(texts))


def check_window(arrays: Arrays, params: Params) -> Outcome:
    """Between underflow and overflow the scale does not matter."""
    texts = []
    for task in TASKS:
        static, _, fp32 = scores(arrays, task)
        clean = (arrays[f"{task}_skipped"] == 0) & (arrays[f"{task}_zeros"].max(axis=1) < 0.03)
        if clean.sum() < 2:
            return failed(f"{task}: no two scales with hardly a zero and no skip")
        apart = float(np.abs(static[clean] - fp32).max())
        if apart > 0.05:
            return failed(f"{task}: {apart:.3f} from FP32")
        inside = [e for e, good in zip(params.exponents, clean, strict=True) if good]
        texts.append(f"{task}: 2^{inside[0]} to 2^{inside[-1]}, within {apart:.3f} of FP32's score")
    return passed("; ".join(texts))


def check_shrinking(arrays: Arrays, params: Params) -> Outcome:
    """Zeros: fewer at every larger scale, and more in every layer further from the loss, unscaled."""
    shares = arrays["autoencoder_zeros"]
    by_scale = shares.mean(axis=1)
    if (np.diff(by_scale) > 0.01).any():
        return failed(f"by scale {np.round(by_scale, 3)}")
    early, late = shares[0, : params.layers // 2].mean(), shares[0, params.layers // 2 :].mean()
    half = ", ".join(f"{s:.0%}" for s in shares[0])
    return verdict(early > 2 * late, f"unscaled, first to last layer: {half}")


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


EXACT, LIBRARY = Evidence.EXACT, Evidence.LIBRARY
CHECKS = (
    Check("The autoencoder learns nothing with unscaled FP16 gradients; with a scale it equals FP32", EXACT,
          check_fails_unscaled),
    Check("The classifier needs no scale, like most networks of the paper", EXACT, check_needs_none),
    Check("The further from the loss, the more gradients are zero; the larger the scale, the fewer", EXACT,
          check_shrinking),
    Check("At 2^24 every gradient step overflows in both tasks, and is skipped", EXACT, check_overflows),
    Check("Between underflow and overflow the scale changes nothing: a wide window of powers of two", EXACT,
          check_window),
    Check("On the first step zeros are what is at most 2^-25, infinities what is at least 65520", LIBRARY,
          check_first_step),
    Check("The dynamic scale grows, overflows, skips and halves exactly as torch's GradScaler", LIBRARY,
          check_machine),
)  # fmt: skip
