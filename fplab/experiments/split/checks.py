"""The claims about split products, each against exact integers or a library."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, Status, failed, passed, same_bits, verdict
from ..partial_products.compared import within_bounds
from . import parts
from .methods import GPUS, KINDS, MADE_UP, METHODS, index, of_kind
from .parts import ALONE, PLAIN, SCALED, TF32, split

if TYPE_CHECKING:
    from . import Params

REAL = KINDS[-1]
LONG = 256  # from this length on there is something to sum


def lost_bits(arrays: Arrays, params: Params) -> Outcome:
    """All significands: the shares that two FP16 parts miss, to nearest and truncated."""
    count = arrays["lost"]
    total = 1 << 23
    eighths = np.array([[6, 2, 0, 0], [4, 2, 1, 1]])
    right = (count == eighths * (total // 8)).all()
    kept = 23 - (total - count[:, 0]) / total
    return verdict(bool(right), f"all {total:,} significands: {kept[0]:g} bits to nearest, {kept[1]:g} truncated")


def numpy_parts(arrays: Arrays, params: Params) -> Outcome:
    """numpy's own casts to float16 and float32 subtraction."""
    compared = 0
    for kind, part, scheme in itertools.product(KINDS, "ab", (PLAIN, SCALED)):
        x = arrays[f"{kind}: {part}"].view(np.float32)
        with np.errstate(under="ignore"):
            high = x.astype(np.float16)
            left = (x - high.astype(np.float32)) * np.float32(2.0**scheme.log2_scale)
            want = (high, left.astype(np.float16))
        for got, wanted in zip(split(x, scheme), want, strict=True):
            outcome = same_bits(got.view(np.uint32), wanted.astype(np.float32).view(np.uint32), "fp32")
            if outcome.status is not Status.PASS:
                return failed(f"{kind}, {scheme.name}: {outcome.detail}")
            compared += x.size
    return passed(f"{compared:,} parts, every bit")


def ranges(arrays: Arrays, params: Params) -> Outcome:
    """The lowest and the highest binade from which a scheme keeps 2**-23, the sampled ones in between too."""
    exponents = np.arange(parts.LOWEST, parts.HIGHEST)
    found = {}
    for scheme, worst in zip(parts.SCHEMES, arrays["binades"], strict=True):
        good = exponents[worst <= 2.0**-23]
        found[scheme.name] = (int(good[0]), int(good[-1])) if good.size else None
        if good.size and good.size != good[-1] - good[0] + 1:
            return failed(f"{scheme.name}: keeps 2^-23 in binades with gaps between")
    want = {ALONE.name: None, PLAIN.name: (-2, 14), SCALED.name: (-13, 14), TF32.name: (exponents[0], exponents[-1])}
    text = ", ".join(f"{name} {'never' if r is None else f'2^{r[0]} to 2^{r[1]}'}" for name, r in found.items())
    return verdict(found == want, f"2^-23 kept: {text} (sampled: 2^{exponents[0]} to 2^{exponents[-1]})")


def how_many(arrays: Arrays, params: Params) -> Outcome:
    """Exact sums of one to four products: the largest errors, and what the fourth product adds."""
    texts = []
    for kind in MADE_UP:
        one = of_kind(arrays, kind)
        error = np.abs(one.partial - one.exact)
        most = [float(whole.ratio(e, one.magnitude).max()) for e in error]
        fourth = np.abs(one.partial[3] - one.partial[2])
        if not (most[1] < most[0] < 3 * most[1] and 1000 * most[2] < most[1]):
            return failed(f"{kind}: largest errors {most}")
        if (error[2] > one.split_bound()).any() or (fourth > one.clamped >> 22).any():
            return failed(f"{kind}: three products miss more than 2^-21, or the fourth adds more than 2^-22")
        texts.append(f"{kind} " + " ".join(f"{v:.0e}" for v in most))
    return passed(f"largest errors of 1 to 4 products, added exactly: {'; '.join(texts)}")


def bounds_hold(arrays: Arrays, params: Params) -> Outcome:
    """Every error that has a bound, in integers, and how much of it is used at most."""
    return within_bounds(((kind, of_kind(arrays, kind)) for kind in KINDS), [method.name for method in METHODS])


def outside_is_a_loop(arrays: Arrays, params: Params) -> Outcome:
    """Instruction by instruction with c = 0, and numpy's float32 additions."""
    from ...tensorcore import matmul

    compared = 0
    for kind, gpu in itertools.product(KINDS, GPUS):
        x, y = (arrays[f"{kind}: {part}"].view(np.float32) for part in "ab")
        k = min(x.shape[1], 1024)
        (ah, al), (bh, bl) = split(x[:, :k], SCALED), split(y[:, :k], SCALED)
        sums = np.zeros((2, len(x), len(y)), np.float32)
        for which, a, b in ((0, ah, bh), (1, ah, bl), (1, al, bh)):
            for start in range(0, k, 16):
                s = slice(start, start + 16)
                sums[which] += matmul(a[:, s], b[:, s].T, gpu=gpu)
        want = sums[0] + sums[1] / np.float32(2048)
        got = arrays[f"{kind}: results"][index(f"3 scaled, outside, {gpu}"), ..., int(k).bit_length() - 5]
        outcome = same_bits(got.copy().view(np.uint32), want.view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{kind}, {gpu}: {outcome.detail}")
        compared += got.size * (3 * k // 16)
    return passed(f"{compared:,} instructions and additions")


def single_precision(arrays: Arrays, params: Params) -> Outcome:
    """Mean errors of three scaled products, added outside, and of FP32 multiply-adds, for every K from 256."""
    texts = []
    for kind in MADE_UP:
        one = of_kind(arrays, kind)
        long = one.lengths >= LONG
        plain = one.shares(index("FP32 multiply-adds"))[0][long]
        for gpu in GPUS:
            mean = one.shares(index(f"3 scaled, outside, {gpu}"))[0][long]
            if not (mean < plain).all():
                k = one.lengths[long][np.argmax(mean >= plain)]
                return failed(f"{kind}, {gpu}, K = {k}: mean error {mean.max():.1e}, of FP32 {plain.max():.1e}")
            texts.append(f"{kind} {gpu} {mean[-1]:.1e}")
        texts.append(f"FP32 {plain[-1]:.1e}")
    return passed(f"mean errors at K = {one.lengths[-1]:,}: {', '.join(texts)}")


def inside_drifts(arrays: Arrays, params: Params) -> Outcome:
    """Positive operands: inside, every result falls short, the further the longer; outside it does not."""
    one = of_kind(arrays, "positive")
    texts = []
    for gpu in GPUS:
        inside, outside = (index(f"3 scaled, {where}, {gpu}") for where in ("inside", "outside"))
        if (one.results[inside] > one.exact)[..., one.lengths >= LONG].any():
            return failed(f"{gpu}: a sum inside is above the exact one")
        first, last = (one.shares(i)[0] for i in (inside, outside))
        growth = first[-1] / first[-4]
        if not (first[-1] > 20 * last[-1] and growth > 4):
            return failed(f"{gpu}: inside {first[-1]:.1e}, outside {last[-1]:.1e}, growth {growth:.1f}")
        texts.append(f"{gpu} {first[-1]:.1e} inside, {last[-1]:.1e} outside")
    plain = one.shares(index("FP32 multiply-adds"))[0][-1]
    return passed(f"mean errors at K = {one.lengths[-1]:,}: {'; '.join(texts)}; FP32 {plain:.1e}")


def scale_saves(arrays: Arrays, params: Params) -> Outcome:
    """Operands below 2**-9: what three products miss without the scale and with it."""
    one = of_kind(arrays, "small")
    plain, scaled = (one.shares(index(name))[1][0] for name in ("3 products", "3 scaled, inside, A100"))
    detail = f"largest error at K = 16: {plain:.1e} without the scale, {scaled:.1e} with it"
    return verdict(plain > 50 * scaled, detail)


def gradients(arrays: Arrays, params: Params) -> Outcome:
    """Real operands: gradients below FP16's range, which parts in TF32 hold."""
    one = of_kind(arrays, REAL)
    half, tf32, plain = (
        one.shares(index(name))[1].max()
        for name in ("3 scaled, outside, A100", "3 TF32 scaled, outside", "FP32 multiply-adds")
    )
    detail = f"largest error at any K: FP16 parts {half:.1e}, TF32 parts {tf32:.1e}, FP32 {plain:.1e}"
    return verdict(half > 5 * tf32 and tf32 < 2.0**-20, detail)


EXACT = Evidence.EXACT
CHECKS = (
    Check("Two FP16 parts hold 22.75 of FP32's 23 bits to nearest, 22.5 truncated", EXACT, lost_bits),
    Check("The parts are those of numpy's own casts", Evidence.LIBRARY, numpy_parts),
    Check("The scale 2^11 moves the lower end of the range from 2^-2 to 2^-13; TF32 parts have FP32's", EXACT, ranges),
    Check("Two products recover little, three all, and the fourth is below 2^-22", EXACT, how_many),
    Check("No error is above its bound", EXACT, bounds_hold),
    Check("Outside: c = 0 for each instruction, and numpy's FP32 additions", Evidence.LIBRARY, outside_is_a_loop),
    Check("Three products, added outside, err less than FP32 multiply-adds from K = 256 on", EXACT, single_precision),
    Check("Added inside, positive sums drift with K; added outside they do not", EXACT, inside_drifts),
    Check("Without the scale, small operands lose their second part", EXACT, scale_saves),
    Check("Real gradients leave FP16's range even so, and TF32 parts hold them", EXACT, gradients),
)
