"""The experiment's claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import fplab

from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, failed, passed, verdict
from .data import ACCUMULATORS, SCHEDULES, SPLITS, Params, accumulate, counts, timelines


def check_bubbles(arrays: Arrays, params: Params) -> Outcome:
    """Counted on the timelines, as fractions."""
    found = [line.bubble for line in timelines(params)]
    want = [Fraction(params.stages - 1, params.micro_batches * chunks) for _, chunks in SCHEDULES]
    text = ", ".join(f"{name} {bubble}" for (name, _), bubble in zip(SCHEDULES, found, strict=True))
    return verdict(found == want, f"waited over worked: {text}")


def check_in_flight(arrays: Arrays, params: Params) -> Outcome:
    """GPipe holds all micro-batches, 1F1B as many as stages are left, interleaving 1 + (p - 1) / (p v) of its first."""
    p, m, v = params.stages, params.micro_batches, SCHEDULES[2][1]
    gpipe, one, woven = arrays["in_flight"].tolist()
    holds = gpipe == [m] * p and one == [min(p - s, m) for s in range(p)]
    holds &= Fraction(woven[0], v) == p * (1 + Fraction(p - 1, p * v))
    return verdict(holds, f"GPipe {gpipe}, 1F1B {one}, interleaved {woven} halves")


def check_memory(arrays: Arrays, params: Params) -> Outcome:
    """A middle stage's bytes, which are layers alone, are in the proportion of what its timeline holds."""
    held, at = arrays["activations"], arrays["in_flight"]
    for stage in range(1, params.stages - 1):
        for i, (name, chunks) in enumerate(SCHEDULES):
            if int(held[i, stage]) * int(at[0, stage]) * chunks != int(held[0, stage]) * int(at[i, stage]):
                return failed(f"{name}, stage {stage}: {held[i, stage]:,} bytes for {at[i, stage]} chunks in flight")
    return passed(f"GPT-3 on {params.stages} stages: {', '.join(f'{b / 1e9:.1f} GB' for b in held[:, 1])} on stage 1")


def check_accumulation(arrays: Arrays, params: Params) -> Outcome:
    """The error of a BF16 sum grows with the micro-batches; FP32's does not matter."""
    last = {" ".join(how): float(arrays["errors"][a, -1]) for a, how in enumerate(ACCUMULATORS)}
    first = float(arrays["errors"][2, 1])
    holds = last["fp32 rne"] < 1e-6 and last["bf16 rne"] > 3 * first and last["fp16 rne"] < last["bf16 rne"]
    return verdict(holds, f"{counts(params)[-1]} micro-batches: " + ", ".join(f"{k} {e:.1e}" for k, e in last.items()))


def check_chain(arrays: Arrays, params: Params) -> Outcome:
    """Accumulating in place in torch's BF16 and FP16, gradients being in that format."""
    import torch

    for fmt, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        parts = fplab.quantize(arrays["gradients"], fmt)
        total = torch.zeros(parts.shape[1], dtype=dtype)
        for part in torch.from_numpy(parts).to(dtype):
            total.add_(part)
        if total.float().numpy().tobytes() != accumulate(parts, fmt, "rne").tobytes():
            return failed(f"{fmt} differs")
    return passed(f"{arrays['gradients'].size:,} additions in each of FP16 and BF16, every bit")


def differing(arrays: Arrays, store: str) -> list[float]:
    """The share of results, rounded to a format, that differ from one chain's, for each split."""
    found = fplab.encode(arrays["products"], store)
    return [float((one != found[0]).mean()) for one in found]


def check_split(arrays: Arrays, params: Params) -> Outcome:
    """Dividing k changes bits of the FP32 results, and few of those that are stored in BF16."""
    wide, narrow = differing(arrays, "fp32"), differing(arrays, "bf16")
    errors = split_errors(arrays)
    detail = "; ".join(f"k in {s}: {w:.0%} of FP32 results, {n:.2%} in BF16, error {e:.1e}"
                       for s, w, n, e in zip(SPLITS, wide, narrow, errors, strict=True))  # fmt: skip
    return verdict(min(wide[1:]) > 0.5 and max(narrow) < 0.05, detail)


def check_shorter(arrays: Arrays, params: Params) -> Outcome:
    """A Tensor Core truncates at every step, so shorter chains lie nearer to the exact product."""
    errors = split_errors(arrays)
    return verdict(bool(np.all(np.diff(errors) < 0)), " > ".join(f"{e:.2e}" for e in errors))


def split_errors(arrays: Arrays) -> list[float]:
    """Relative error in the 2-norm, for each split."""
    exact = arrays["exact"]
    return [float(np.linalg.norm(one - exact) / np.linalg.norm(exact)) for one in arrays["products"]]


CHECKS = (
    Check("bubbles are (p - 1) / m, and a v-th of it when interleaved", Evidence.EXACT, check_bubbles),
    Check("the timelines hold the published numbers of micro-batches", Evidence.EXACT, check_in_flight),
    Check("the calculator's bytes are those the timelines hold", Evidence.EXACT, check_memory),
    Check("a 16-bit accumulator loses more with every micro-batch", Evidence.EXACT, check_accumulation),
    Check("the 16-bit sums are torch's", Evidence.LIBRARY, check_chain),
    Check("splitting k changes most FP32 results and few stored in BF16", Evidence.EXACT, check_split),
    Check("on an H100 more slices of k are nearer to the exact product", Evidence.EXACT, check_shorter),
)
