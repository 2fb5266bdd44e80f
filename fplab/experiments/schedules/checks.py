"""The experiment's claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import fplab

from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, failed, passed, verdict
from ..legacy import Check
from ..statistics import both, superior
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
    """The error of a BF16 sum grows with the micro-batches, by network; the margin is a factor of 2, an octave.

    FP16's stays below it, and FP32's below a millionth.
    """
    last = {" ".join(how): arrays["errors"][:, a, -1] for a, how in enumerate(ACCUMULATORS)}
    detail = f"{counts(params)[-1]} micro-batches: " + ", ".join(f"{k} {e.mean():.1e}" for k, e in last.items())
    if last["fp32 rne"].max() > 1e-6 or (last["fp16 rne"] > last["bf16 rne"]).any():
        return failed(detail)
    few = arrays["errors"][:, ACCUMULATORS.index(("bf16", "rne")), 1]
    return superior(np.log2(last["bf16 rne"]), np.log2(few), 1.0, f"{detail}; of BF16 beside 2, octaves")


def check_chain(arrays: Arrays, params: Params) -> Outcome:
    """Accumulating in place in torch's BF16 and FP16, gradients being in that format."""
    import torch

    for fmt, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        parts = fplab.quantize(arrays["gradients"][0], fmt)
        total = torch.zeros(parts.shape[1], dtype=dtype)
        for part in torch.from_numpy(parts).to(dtype):
            total.add_(part)
        if total.float().numpy().tobytes() != accumulate(parts, fmt, "rne").tobytes():
            return failed(f"{fmt} differs")
    return passed(f"{arrays['gradients'][0].size:,} additions in each of FP16 and BF16, every bit")


def differing(arrays: Arrays, store: str) -> np.ndarray:
    """The share of results, rounded to a format, that differ from one chain's: (network, split)."""
    found = fplab.encode(arrays["products"], store)
    return np.asarray((found != found[:, :1]).mean(axis=(2, 3)))


def check_split(arrays: Arrays, params: Params) -> Outcome:
    """Dividing k changes bits of the FP32 results, and few of those that are stored in BF16.

    The margins: half of the results, and one in twenty.
    """
    wide, narrow, errors = differing(arrays, "fp32"), differing(arrays, "bf16"), split_errors(arrays)
    rows = zip(SPLITS, wide.mean(axis=0), narrow.mean(axis=0), errors.mean(axis=0), strict=True)
    detail = "; ".join(f"k in {s}: {w:.0%} of FP32 results, {n:.2%} in BF16, error {e:.1e}" for s, w, n, e in rows)
    zero = np.zeros(len(wide))
    return both(superior(wide[:, 1:].min(axis=1), zero, 0.5, f"{detail}; share in FP32"),
                superior(zero, narrow.max(axis=1), -0.05, "share in BF16, below 0"))  # fmt: skip


def check_shorter(arrays: Arrays, params: Params) -> Outcome:
    """A Tensor Core truncates at every step, so shorter chains lie nearer to the exact product; the least gain counts.

    The margin: a tenth of an octave, about 7%.
    """
    errors = split_errors(arrays)
    gains = -np.diff(np.log2(errors), axis=1).max(axis=1)
    detail = " > ".join(f"{e:.2e}" for e in errors.mean(axis=0))
    return superior(gains, np.zeros(len(gains)), 0.1, f"{detail}; the least gain, octaves")


def split_errors(arrays: Arrays) -> np.ndarray:
    """Relative error in the 2-norm: (network, split)."""
    exact = arrays["exact"][:, None]
    off = np.linalg.norm(arrays["products"] - exact, axis=(2, 3))
    return np.asarray(off / np.linalg.norm(exact, axis=(2, 3)))


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("bubbles are (p - 1) / m, and a v-th of it when interleaved", PROVED, check_bubbles),
    Check("the timelines hold the published numbers of micro-batches", PROVED, check_in_flight),
    Check("the calculator's bytes are those the timelines hold", PROVED, check_memory),
    Check("a BF16 accumulator loses more the more micro-batches it adds", MEASURED, check_accumulation),
    Check("the 16-bit sums are torch's", LIBRARY, check_chain),
    Check("splitting k changes most FP32 results and few stored in BF16", MEASURED, check_split),
    Check("in an H100's arithmetic more slices of k are nearer to the exact product", MEASURED, check_shorter),
)
