"""The claims about TF32, each against exact integers, bit formulas, or published numbers."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ... import exact_products as whole
from ...errors import LabError
from ...hardware.cases import Arrays, philox_bits
from ..base import Check, Evidence, Outcome, Status, failed, passed, same_bits, verdict
from ..partial_products.compared import within_bounds
from .operands import CONVERSIONS, LOW
from .products import CORES, EXAMPLE_GPU, KINDS, VARIANTS, converted, index, of_kind

if TYPE_CHECKING:
    from . import Params

PATTERNS = 1 << 20
DECIDED = 4096  # up to this length the conversion decides
# PyTorch's documentation (notes/cuda.html): normal matrices of 10240 x 10240 on an A100, product in TF32 against FP64.
PUBLISHED_ERROR, PUBLISHED_MEAN, PUBLISHED_COUNT = 0.1747, 80.7277, 10240**2
SIGMAS = (5.2, 6.6)  # the largest of so many normal numbers lies between these with a probability above 99%


def formulas(arrays: Arrays, params: Params) -> Outcome:
    """Each conversion as integer arithmetic on the FP32 code; FP32's top values and specials are among the patterns."""
    codes = np.concatenate([philox_bits(2200, PATTERNS), np.arange(0x7F7FE000, 0x7F810000, dtype=np.uint32)])
    codes = codes[(codes & np.uint32(0x7FFFFFFF)) <= np.uint32(0x7F800000)]  # NaNs have no one answer
    u, keep = codes.astype(np.uint64), np.uint64(0xFFFFE000)
    want = {
        "truncate": u & keep,
        "rna": (u + np.uint64(0x1000)) & keep,
        "rne": (u + np.uint64(0xFFF) + ((u >> np.uint64(LOW)) & np.uint64(1))) & keep,
    }
    for conversion, bits in want.items():
        got = converted(codes.view(np.float32), conversion)
        outcome = same_bits(got.view(np.uint32), bits, "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{conversion}: {outcome.detail}")
    return passed(f"{3 * codes.size:,} conversions, every bit")


def means(arrays: Arrays, params: Params) -> Outcome:
    """All patterns of the low bits: the mean error of each conversion, exact, in units of TF32's last place."""
    low = arrays["low bits"]
    got = {c: Fraction(int(low[i].sum()), low[i].size << LOW) for i, c in enumerate(CONVERSIONS)}
    most = {c: int(np.abs(low[i]).max()) for i, c in enumerate(CONVERSIONS)}
    n = 1 << LOW
    right = got == {"truncate": Fraction(1 - n, 2 * n), "rna": Fraction(1, 2 * n), "rne": Fraction(0)}
    right &= most == {"truncate": n - 1, "rna": n // 2, "rne": n // 2}
    return verdict(right, ", ".join(f"{c}: mean {v}, at most {Fraction(most[c], n)}" for c, v in got.items()))


def ties(arrays: Arrays, params: Params) -> Outcome:
    """rna and rne on all patterns: where they differ."""
    rna, rne = (arrays["low bits"][CONVERSIONS.index(c)] for c in ("rna", "rne"))
    at = [(int(p), int(bits)) for p, bits in np.argwhere(rna != rne)]
    share = 1 / (2 << LOW)
    return verdict(at == [(0, 1 << (LOW - 1))], f"a tie after an even last place: {share:.1e} of all operands")


def half_precision(arrays: Arrays, params: Params) -> Outcome:
    """TF32 and FP16 of the same FP32 values, to nearest even, within the normal range of FP16."""
    from ...floats import quantize

    compared = 0
    for kind, part in itertools.product(KINDS, "ab"):
        x = arrays[f"{kind}: {part}"].view(np.float32)
        x = x[(np.abs(x) >= 2.0**-14) & (np.abs(x) < 65504)]
        got, want = converted(x, "rne"), np.asarray(quantize(x, "fp16"))
        outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{kind}: {outcome.detail}")
        compared += x.size
    far = np.array([1e-30, 3e38], np.float32)
    kept = bool((converted(far, "rne") != 0).all() and np.isfinite(converted(far, "rne")).all())
    return verdict(kept, f"{compared:,} operands, every bit; 1e-30 and 3e38, which FP16 loses, stay")


def bounds_hold(arrays: Arrays, params: Params) -> Outcome:
    """Every error, in integers, and how much of its bound is used at most."""
    return within_bounds(((kind, of_kind(arrays, kind)) for kind in KINDS), [v.name for v in VARIANTS])


def parts_hold(arrays: Arrays, params: Params) -> Outcome:
    """The two parts of an error one by one: conversion, and the chain on converted operands."""
    compared = 0
    for kind, (c, conversion) in itertools.product(KINDS, enumerate(CONVERSIONS)):
        one = of_kind(arrays, kind)
        if (np.abs(one.converted[c] - one.exact) > one.conversion_bound(conversion)).any():
            return failed(f"{kind}, {conversion}: the converted operands are too far from the exact ones")
        for gpu in CORES:
            i = index(gpu, conversion)
            if (np.abs(one.results[i] - one.converted[c]) > one.chain_bound(i)).any():
                return failed(f"{kind}, {gpu}, {conversion}: the chain errs by more than its bound")
            compared += one.exact.size
    return passed(f"{compared:,} products, both parts")


def converted_first(arrays: Arrays, params: Params) -> Outcome:
    """Converting the operands and multiplying them with truncation, which then has nothing to cut."""
    from .products import Variant, results

    compared = 0
    for kind, gpu, conversion in itertools.product(KINDS, CORES, CONVERSIONS):
        a, b = (converted(arrays[f"{kind}: {part}"].view(np.float32), conversion) for part in "ab")
        at = of_kind(arrays, kind).lengths[:6]
        got = results(a, b, Variant(gpu, "truncate"), at)
        want = arrays[f"{kind}: results"][index(gpu, conversion)][..., : at.size]
        outcome = same_bits(got.view(np.uint32), want.copy().view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{kind}, {gpu}, {conversion}: {outcome.detail}")
        compared += got.size
    return passed(f"{compared:,} products, every bit")


def shrinks(arrays: Arrays, params: Params) -> Outcome:
    """Positive operands: truncation falls short by the same share at every length, rounding by ever less."""
    one = of_kind(arrays, "positive")
    last = one.lengths.size - 1
    signed = {c: one.converted[i] - one.exact for i, c in enumerate(CONVERSIONS)}
    if (signed["truncate"] >= 0).any():
        return failed("a product of truncated positive operands is not below the exact one")
    mean = {c: np.abs(whole.ratio(v, one.exact)).mean(axis=(0, 1)) for c, v in signed.items()}
    steady = mean["truncate"][last] / mean["truncate"][4]
    falls = {c: mean[c][last] / mean[c][0] for c in ("rna", "rne")}
    holds = 0.9 < steady < 1.1 and all(v < 0.1 for v in falls.values())
    holds &= bool(mean["truncate"][last] > 20 * mean["rne"][last])
    detail = ", ".join(f"{c} {v[0]:.1e} to {v[last]:.1e}" for c, v in mean.items())
    return verdict(holds, f"mean relative error of the conversion, K = 16 to {one.lengths[-1]:,}: {detail}")


def conversion_decides(arrays: Arrays, params: Params) -> Outcome:
    """Random signs: r.m.s. errors of the conversion, of A100's chain after it, and of FP32 multiply-adds."""
    one = of_kind(arrays, "random")
    plain = _rms(whole.ratio(one.errors[index()], one.magnitude))
    short = one.lengths <= DECIDED
    texts, holds = [], True
    for c, conversion in enumerate(CONVERSIONS):
        share = _rms(whole.ratio(one.converted[c] - one.exact, one.magnitude))
        chain = _rms(whole.ratio(one.results[index(EXAMPLE_GPU, conversion)] - one.converted[c], one.magnitude))
        holds &= bool((share > 4 * chain)[short].all() and (share > 50 * plain)[short].all())
        texts.append(f"{conversion} {share[-1]:.1e} and {chain[-1]:.1e}")
    return verdict(holds, f"at K = {one.lengths[-1]:,}, conversion and chain: {', '.join(texts)}; FP32 {plain[-1]:.1e}")


def _rms(x: np.ndarray) -> np.ndarray:
    """The root mean square over products, by length."""
    return np.asarray(np.sqrt((x**2).mean(axis=(0, 1))))


def published_error(arrays: Arrays, params: Params) -> Outcome:
    """The published largest error of 10240 x 10240 products against our sample of the same distribution."""
    exact, errors = arrays["published: exact"], arrays["published: errors"]
    sigmas = {c: PUBLISHED_ERROR / float(errors[i].std()) for i, c in enumerate(CONVERSIONS)}
    most = float(np.abs(errors[0]).max())
    slope = float((errors[0] * exact).sum() / (exact**2).sum())
    typical = float(np.abs(exact).mean())
    same = abs(typical / PUBLISHED_MEAN - 1) < 0.1
    fits = {c: SIGMAS[0] < sigmas[c] < SIGMAS[1] for c in ("rna", "rne")}
    detail = (
        f"0.1747 is {sigmas['rna']:.2f} (rna), {sigmas['rne']:.2f} (rne) standard deviations; truncation shrinks "
        f"products by {-slope:.2e}: among {exact.size:,} it errs by {most:.3f}; mean |product| {typical:.1f} (80.7)"
    )
    return verdict(same and all(fits.values()) and most > PUBLISHED_ERROR, detail)


def gpus(arrays: Arrays, params: Params) -> Outcome:
    """Which GPUs have TF32, in blocks of how many products; the others say so."""
    from ...tensorcore.models import GPUS, get

    blocks: dict[tuple[int, int], list[str]] = {}
    without = []
    for gpu in GPUS:
        try:
            model = get(gpu, "tf32")
        except LabError:
            without.append(gpu)
            continue
        blocks.setdefault((model.length, model.alignment_bits), []).append(gpu)
    text = "; ".join(f"L = {length}, F = {align}: {', '.join(names)}" for (length, align), names in blocks.items())
    covered = {(get(core, "tf32").length, get(core, "tf32").alignment_bits) for core in CORES}
    return verdict(without == ["V100", "T4"] and set(blocks) == covered, f"{text}; none on {', '.join(without)}")


EXACT = Evidence.EXACT
CHECKS = (
    Check("Each conversion is its bit formula", EXACT, formulas),
    Check("Over all low bits truncation loses half a unit on average, rna gains 2^-14, rne nothing", EXACT, means),
    Check("rna and rne differ in one operand of 16,384", EXACT, ties),
    Check("TF32 is FP16's precision with FP32's range", EXACT, half_precision),
    Check("Ampere and later have TF32, with two block lengths", EXACT, gpus),
    Check("Converting first and truncating then is converting", EXACT, converted_first),
    Check("No error is above its bound", EXACT, bounds_hold),
    Check("Conversion and chain each keep their own bound", EXACT, parts_hold),
    Check(
        "Up to K = 4,096 the conversion decides: the chain after it, and FP32, err far less", EXACT, conversion_decides
    ),
    Check("Truncation shrinks positive sums by a share that stays at every K; rounding averages out", EXACT, shrinks),
    Check("PyTorch's published A100 error fits rounded operands and rules out truncated ones", EXACT, published_error),
)
