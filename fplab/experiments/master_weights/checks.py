"""The experiment's claims, each against an exact criterion or a library's own sums."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import fplab

from ... import exact, formats
from ...hardware.cases import Arrays
from ...hardware.tensors import bits, tensor
from ..base import Check, Evidence, Outcome, Status, failed, passed, same_bits, verdict
from ..underflow.checks import lost_by_criterion
from .data import HALVES, VARIANTS, Params, Variant, ratio_edges

TEXTBOOK = (  # FP16: weight, update, sum
    (1.0, 2.0**-11, 1.0),  # a ratio of 2048, and a tie that goes to the even neighbour, the weight
    (1.0, 2.0**-11 * (1 + 2.0**-10), 1 + 2.0**-10),
    (1 + 2.0**-10, 2.0**-11, 1 + 2.0**-9),  # the same update: a tie again, and now the even neighbour is above
    (1.5, 1.5 / 2048, 1.5 + 2.0**-10),  # a ratio of 2048 exactly, and not lost
)


def pairs(arrays: Arrays, fmt: str, update: str = "nearest") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, updates and new weights of a run, float32 (n,)."""
    w, u, after = arrays[f"pairs_{fmt}_{update}"]
    return w, u, after


def rounded_exactly(x: Fraction, fmt: str) -> int:
    """The code of a Fraction by the oracle."""
    return exact.round_to(exact.Exact(x < 0, abs(x)), fmt)[0]


def check_textbook(arrays: Arrays, params: Params) -> Outcome:
    """The worked cases of the paper's rule, by Fractions and by the kernels."""
    for w, u, want in TEXTBOOK:
        by_oracle = rounded_exactly(Fraction(w) + Fraction(u), "fp16")
        got = float(fplab.add(w, u, "fp16"))
        if not got == want == float(fplab.decode(np.uint16(by_oracle), "fp16")):
            return failed(f"{w!r} + {u!r} gives {got!r} instead of {want!r}")
    return passed("1.5 + 1.5/2048 = 1.5009765625, though the ratio is 2048; 1 + 2^-11 = 1, a tie")


def check_oracle(arrays: Arrays, params: Params) -> Outcome:
    """A sample of the runs' own sums against Fractions."""
    done = 0
    for fmt in HALVES:
        w, u, after = (x[:: max(1, len(x) // params.sample)] for x in pairs(arrays, fmt))
        sums = [Fraction(a) + Fraction(b) for a, b in zip(w.tolist(), u.tolist(), strict=True)]
        want = np.array([rounded_exactly(s, fmt) for s in sums], np.uint64)
        outcome = same_bits(fplab.encode(after + np.float32(0), fmt), want, fmt)  # + 0: -0 counts as 0
        if outcome.status is not Status.PASS:
            return failed(f"{fmt}: {outcome.detail}")
        done += len(want)
    return passed(f"{done:,} sums of the runs, every bit")


def check_criterion(arrays: Arrays, params: Params) -> Outcome:
    """An update was lost exactly where |u| is below half the gap beside w, or at it and w is even."""
    texts = []
    for fmt in HALVES:
        w, u, after = (x.astype(np.float64) for x in pairs(arrays, fmt))
        there = w != 0
        named, gone = lost_by_criterion(w, u, fmt)[there], (after == w)[there]
        if wrong := int((named != gone).sum()):
            return failed(f"{fmt}: {wrong:,} of {gone.size:,} differ")
        texts.append(f"{fmt}: {gone.mean():.1%} of {gone.size:,} lost")
    return passed("; ".join(texts))


def check_rule(arrays: Arrays, params: Params) -> Outcome:
    """The paper's ratio of 2**p is where loss begins; from twice that on it is certain."""
    texts = []
    for fmt in HALVES:
        w, u, after = (np.abs(x.astype(np.float64)) for x in pairs(arrays, fmt))
        normal = w >= formats.get(fmt).smallest_normal
        limit, gone = 2.0 ** formats.get(fmt).significand_bits, after == w
        doomed = normal & (w >= limit * u)
        if (gone & normal & ~doomed).any() or (normal & (w > 2 * limit * u) & ~gone).any():
            return failed(f"{fmt}: a ratio below {limit:.0f} is lost, or one above {2 * limit:.0f} is not")
        between = doomed & (w <= 2 * limit * u)
        survive = int((between & ~gone).sum())
        if not survive:
            return failed(f"{fmt}: no ratio between {limit:.0f} and {2 * limit:.0f} survives")
        texts.append(
            f"{fmt}: of {int(between.sum()):,} ratios between {limit:.0f} and {2 * limit:.0f}, "
            f"{survive / between.sum():.0%} survive"
        )
    return passed("; ".join(texts))


def check_survival(arrays: Arrays, params: Params) -> Outcome:
    """The share of significands that lose an update of ratio 2**(p+x) is 2**x - 1, counted over all of them."""
    for i, fmt in enumerate(HALVES):
        want = np.clip(ratio_edges(fmt) / 2.0 ** formats.get(fmt).significand_bits - 1, 0, 1)
        most = float(np.abs(arrays["survival"][i] - want).max())
        if most > 2.0 ** -formats.get(fmt).fraction_bits:
            return failed(f"{fmt}: {most:.3g} apart")
    return passed("to one significand in 1,024 (FP16) and 128 (BF16)")


def check_libraries(arrays: Arrays, params: Params) -> Outcome:
    """numpy rounds the FP16 run's float64 sums the same; torch adds the same once the update is a half number too."""
    import torch

    w, u, after = pairs(arrays, "fp16")
    theirs = (w.astype(np.float64) + u).astype(np.float16).view(np.uint16)
    outcome = same_bits(fplab.encode(after, "fp16"), theirs, "fp16")
    if outcome.status is not Status.PASS:
        return failed(f"numpy: {outcome.detail}")
    for fmt in HALVES:
        codes = [fplab.encode(x, fmt) for x in pairs(arrays, fmt)[:2]]
        a, b = (tensor(c, fmt, "cpu") for c in codes)
        with torch.no_grad():
            sums = bits(a + b)
        held = [fplab.decode(c, fmt) for c in codes]
        ours = fplab.encode(fplab.add(held[0], held[1], fmt), fmt)
        outcome = same_bits(ours, sums, fmt)
        if outcome.status is not Status.PASS:
            return failed(f"torch, {fmt}: {outcome.detail}")
    return passed(f"numpy {w.size:,} sums, torch {sum(pairs(arrays, f)[0].size for f in HALVES):,}, every bit")


def check_unbiased(arrays: Arrays, params: Params) -> Outcome:
    """Stochastic rounding's errors along the real updates add up to nothing: within 5 of their standard deviations."""
    texts = []
    for fmt in HALVES:
        w, u, after = (x.astype(np.float64) for x in pairs(arrays, fmt, "stochastic"))
        exactly = w + u
        below, above = (fplab.quantize(exactly, fmt, r).astype(np.float64) for r in ("rtn", "rtp"))
        gap = above - below
        inexact = gap > 0
        share = (exactly - below)[inexact] / gap[inexact]
        went = (after - below)[inexact] / gap[inexact]
        if not np.isin(went, (0.0, 1.0)).all():
            return failed(f"{fmt}: a result is no neighbour of the sum")
        z = float((np.sign(u[inexact]) * (went - share)).sum() / np.sqrt((share * (1 - share)).sum()))
        if abs(z) > 5:
            return failed(f"{fmt}: the errors add up to {z:.1f} standard deviations")
        near = pairs(arrays, fmt)
        bias = float(
            ((near[2] - near[0] - near[1].astype(np.float64)) * -np.sign(near[1])).sum() / np.abs(near[1]).sum()
        )
        texts.append(f"{fmt}: {z:+.1f} standard deviations (nearest loses {bias:.0%} of the way)")
    return passed("; ".join(texts))


def at(update: str, fmt: str) -> int:
    """The place of a variant."""
    return VARIANTS.index(Variant(fmt, update))


def check_drift(arrays: Arrays, params: Params) -> Outcome:
    """How far weights end from the exact sum of their own updates: bounded with a copy, little with Kahan."""
    texts, last = [], len(params.rates) - 1
    for fmt in HALVES:
        by_rule = {u: arrays["drift"][at(u, fmt), last] for u in ("nearest", "stochastic", "kahan", "master")}
        bound = 0.5 + params.steps(params.rates[last]) * 2.0 ** (formats.get(fmt).significand_bits - 25)
        if by_rule["master"][:, 1].max() > bound:
            return failed(f"{fmt}: an FP32 copy is {by_rule['master'][:, 1].max():.3f} ulps away, above {bound:.3f}")
        medians = {u: float(d[:, 0].mean()) for u, d in by_rule.items()}
        if not (medians["kahan"] < 0.1 and medians["stochastic"] > 1 < medians["nearest"]):
            return failed(f"{fmt}: medians {medians}")
        texts.append(f"{fmt}: " + ", ".join(f"{u} {m:.2f}" for u, m in medians.items()) + " ulps in the median")
    return passed("; ".join(texts))


def check_more_is_lost(arrays: Arrays, params: Params) -> Outcome:
    """Smaller steps lose more."""
    texts = []
    for fmt in HALVES:
        shares = arrays["lost"][at("nearest", fmt)].mean(axis=1)
        if not (np.diff(shares) > 0).all():
            return failed(f"{fmt}: {shares}")
        texts.append(f"{fmt}: " + ", ".join(f"{s:.0%}" for s in shares))
    rates = ", ".join(f"2^{np.log2(r):.0f}" for r in params.rates)
    return passed(f"at {rates}: " + "; ".join(texts))


def check_training(arrays: Arrays, params: Params) -> Outcome:
    """At the smallest learning rate: what BF16 rounded to nearest costs, and that each remedy gives it back."""
    final, top1 = arrays["final"].mean(axis=2)[:, -1], arrays["top1"].mean(axis=2)[:, -1]
    ratio = {v: float(final[i] / final[0]) for i, v in enumerate(VARIANTS)}
    remedies = max(abs(r - 1) for v, r in ratio.items() if v.update != "nearest")
    lost = {f: 1 - top1[at("nearest", f)] / top1[0] for f in HALVES}
    detail = (
        f"training loss against FP32's: BF16 nearest {ratio[Variant('bf16', 'nearest')]:.2f} times, FP16 nearest "
        f"{ratio[Variant('fp16', 'nearest')]:.3f}, every remedy within {remedies:.1%}; of the test accuracy BF16 "
        f"nearest loses {lost['bf16']:.1%}, FP16 nearest {lost['fp16']:.1%} (the paper's speech model in FP16: 80%)"
    )
    return verdict(ratio[Variant("bf16", "nearest")] > 1.1 and remedies < 0.03, detail)


def check_baseline(arrays: Arrays, params: Params) -> Outcome:
    """What is lost below is not lost by FP32."""
    top1 = arrays["top1"][0].mean(axis=1)
    texts = ", ".join(f"2^{np.log2(r):.0f}: {t:.1%}" for r, t in zip(params.rates, top1, strict=True))
    return verdict(top1.min() > 0.9, texts)


EXACT, LIBRARY = Evidence.EXACT, Evidence.LIBRARY
CHECKS = (
    Check("The network learns in FP32 at every learning rate, about as well", EXACT, check_baseline),
    Check("A ratio |w|/|u| of 2048 may survive in FP16: the rule is half an ulp, ties to even", EXACT, check_textbook),
    Check("Weights and updates of the runs are added exactly and rounded once", EXACT, check_oracle),
    Check("The runs' sums are numpy's and torch's own in half precision", LIBRARY, check_libraries),
    Check("|u| < ulp(w)/2, half that below a power of two, names every lost update", EXACT, check_criterion),
    Check("The 2048 rule (BF16: 256) is where loss begins; it is certain only at twice that", EXACT, check_rule),
    Check("In between, the weight's significand decides: 2^x - 1 of all are lost at ratio 2^(p+x)", EXACT,
          check_survival),
    Check("The smaller the step, the larger the share of updates that rounding to nearest loses", EXACT,
          check_more_is_lost),
    Check("Stochastic rounding is unbiased on the runs' own updates", EXACT, check_unbiased),
    Check("With an FP32 copy a weight stays within half an ulp of its exact sum, with Kahan near it", EXACT,
          check_drift),
    Check("BF16 rounded to nearest stalls; FP32 copy, Kahan and stochastic rounding each end at FP32's loss", EXACT,
          check_training),
)  # fmt: skip
