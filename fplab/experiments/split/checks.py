"""The claims about split products, each against exact integers or a library."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, Status, failed, measured, passed, same_bits, verdict
from ..legacy import Check
from ..partial_products.compared import drawn, within_bounds
from ..statistics import superior
from . import parts
from .methods import GPUS, KINDS, MADE_UP, METHODS, index, of_kind
from .parts import ALONE, PLAIN, SCALED, TF32, split

if TYPE_CHECKING:
    from . import Params

REAL = KINDS[-1]
LONG = 256  # from this length on there is something to sum
KEPT = 2.0**-23  # of a value, that its parts may miss
PART_USED = 1 / 64  # of what three products may miss, and the fourth may add, by the largest of many random signs
WIDE = 2.0**-20  # of the magnitudes, that parts in TF32 may miss: eight units of FP32's last place
MANY = 4.0  # a factor of 16, in powers of 2: the products that an accumulator inside takes at a time


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
    """The lowest and the highest binade from which a scheme keeps 2**-23 of all that is sampled, and all in between."""
    exponents = np.arange(parts.LOWEST, parts.HIGHEST)
    found = {}
    for scheme, worst in zip(parts.SCHEMES, arrays["binades"], strict=True):
        good = exponents[worst <= KEPT]
        found[scheme.name] = (int(good[0]), int(good[-1])) if good.size else None
        if good.size and good.size != good[-1] - good[0] + 1:
            return failed(f"{scheme.name}: keeps 2^-23 in binades with gaps between")
    want = {ALONE.name: None, PLAIN.name: (-2, 14), SCALED.name: (-13, 14), TF32.name: (exponents[0], exponents[-1])}
    text = ", ".join(f"{name} {'never' if r is None else f'2^{r[0]} to 2^{r[1]}'}" for name, r in found.items())
    kept = arrays["binades"][parts.SCHEMES.index(SCALED)][(exponents >= -13) & (exponents <= 14)]
    sample = Sample(params.values, float(np.ptp(kept)), KEPT)
    return measured(found == want, f"2^-23 kept: {text} (sampled: 2^{exponents[0]} to 2^{exponents[-1]})", sample)


def how_many(arrays: Arrays, params: Params) -> Outcome:
    """Exact sums of one to four products: the bounds on what three miss and the fourth adds, and that they are used."""
    texts = []
    for kind in MADE_UP:
        one = of_kind(arrays, kind)
        error = np.abs(one.partial - one.exact)
        most = [float(whole.ratio(e, one.magnitude).max()) for e in error]
        fourth = np.abs(one.partial[3] - one.partial[2])
        if (error[2] > one.split_bound()).any() or (fourth > one.clamped >> 22).any():
            return failed(f"{kind}: three products miss more than 2^-21, or the fourth adds more than 2^-22")
        used = [float(whole.ratio(e, one.clamped >> shift).max()) for e, shift in ((error[2], 21), (fourth, 22))]
        if min(used) < PART_USED or 1000 * most[2] > most[1]:
            return failed(f"{kind}: of these bounds {used} are used; largest errors {most}")
        texts.append(f"{kind} " + " ".join(f"{v:.0e}" for v in most))
    return passed(f"largest errors of 1 to 4 products, added exactly: {'; '.join(texts)}")


def bounds_hold(arrays: Arrays, params: Params) -> Outcome:
    """Every error that has a bound, in integers, and how much of it is used at most."""
    return within_bounds(((kind, of_kind(arrays, kind)) for kind in KINDS), [method.name for method in METHODS])


def rms(arrays: Arrays, kind: str, name: str) -> np.ndarray:
    """log2 of a method's r.m.s. error over all K from 256 on, of each independent draw."""
    one = of_kind(arrays, kind)
    long = int((one.lengths >= LONG).sum())
    return np.asarray(np.log2(drawn(whole.ratio(one.errors[index(name)], one.magnitude), long)))


def single_precision(arrays: Arrays, params: Params) -> Outcome:
    """Three scaled products, added outside, against FP32 multiply-adds: better in each way, and by how much."""
    gain, texts = [], []
    for kind in MADE_UP:
        plain = rms(arrays, kind, "FP32 multiply-adds")
        for gpu in GPUS:
            ours = rms(arrays, kind, f"3 scaled, outside, {gpu}")
            gain.append(plain - ours)
            texts.append(f"{kind} {gpu} {np.exp2(ours).mean():.1e}")
        texts.append(f"FP32 {np.exp2(plain).mean():.1e}")
    mean, detail = np.mean(gain, axis=0), f"r.m.s. errors: {', '.join(texts)}; in powers of 2"
    if (np.mean(gain, axis=1) <= 0).any():
        return failed(detail)
    return superior(mean, np.zeros_like(mean), 0.0, detail)


def inside_drifts(arrays: Arrays, params: Params) -> Outcome:
    """Positive operands: inside, every result falls short; how much further off it is than outside."""
    one = of_kind(arrays, "positive")
    least, texts = [], []
    for gpu in GPUS:
        names = [f"3 scaled, {where}, {gpu}" for where in ("inside", "outside")]
        if (one.results[index(names[0])] > one.exact)[..., one.lengths >= LONG].any():
            return failed(f"{gpu}: a sum inside is above the exact one")
        inside, outside = (rms(arrays, "positive", name) for name in names)
        least.append(inside - outside)
        texts.append(f"{gpu} {np.exp2(inside).mean():.1e} inside, {np.exp2(outside).mean():.1e} outside")
    worst = np.min(least, axis=0)
    return superior(worst, np.zeros_like(worst), MANY, f"r.m.s. errors: {', '.join(texts)}; in powers of 2")


def scale_saves(arrays: Arrays, params: Params) -> Outcome:
    """Operands below 2**-9: what three products miss without the scale and with it."""
    plain, scaled = (rms(arrays, "small", name) for name in ("3 products", "3 scaled, outside, A100"))
    detail = f"r.m.s. errors: {np.exp2(plain).mean():.1e} without the scale, {np.exp2(scaled).mean():.1e} with it"
    return superior(plain, scaled, MANY, f"{detail}; in powers of 2")


def gradients(arrays: Arrays, params: Params) -> Outcome:
    """Real operands: gradients below FP16's range, which parts in TF32 hold; the largest error of each row of A."""
    one = of_kind(arrays, REAL)
    half, tf32, plain = (
        whole.ratio(one.errors[index(name)], one.magnitude).max(axis=(1, 2))
        for name in ("3 scaled, outside, A100", "3 TF32 scaled, outside", "FP32 multiply-adds")
    )
    detail = f"largest error at any K: FP16 parts {half.max():.1e}, TF32 parts {tf32.max():.1e}, FP32 {plain.max():.1e}"
    holds = bool(half.max() > 5 * tf32.max() and tf32.max() < WIDE)
    return measured(holds, detail, Sample(tf32.size, float(tf32.std(ddof=1)), WIDE))


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("Two FP16 parts hold 22.75 of FP32's 23 bits to nearest, 22.5 truncated", PROVED, lost_bits),
    Check("The parts are those of numpy's own casts", LIBRARY, numpy_parts),
    Check("The scale 2^11 moves the lower end of the range from 2^-2 to 2^-13; TF32 parts have FP32's", MEASURED,
          ranges),
    Check("Added exactly, three products miss 2^-21 of the magnitudes at most, the fourth is 2^-22", PROVED, how_many),
    Check("No error is above its bound, and each way uses a sixteenth of it", PROVED, bounds_hold),
    Check("Three products, added outside, err less than FP32 multiply-adds from K = 256 on, on average", MEASURED,
          single_precision),
    Check("Added inside, positive sums fall short, 16 times further off than added outside", MEASURED, inside_drifts),
    Check("Without the scale, small operands lose their second part: errors 16 times larger", MEASURED, scale_saves),
    Check("Real gradients leave FP16's range even so, and TF32 parts hold them to 2^-20", MEASURED, gradients),
)  # fmt: skip
