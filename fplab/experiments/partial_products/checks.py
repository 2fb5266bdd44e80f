"""The claims about accumulation, each against exact integers or a library."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, Status, failed, measured, passed, same_bits, verdict
from ..legacy import Check
from ..statistics import superior
from . import operands
from .accumulators import ACCUMULATORS, CORES, FORMATS, index, on_gpu
from .compared import drawn, within_bounds
from .exactly import of_kind
from .network import REAL
from .operands import SYNTHETIC

if TYPE_CHECKING:
    from . import Params

KINDS = SYNTHETIC + REAL
TRACED = ("positive", "activations × gradients")  # of these the running sums are kept
OFF_HALF = 0.02  # the mean of over a thousand lost parts, each between 0 and its bound, lies so near to half of it
DIGITS = 3.0  # by FP32's significand, which has 13 bits more, nearly four digits
WORSE = ((1.0, 2.0**-11, 2.0**-12), (1.0, 1.0, 2.0**-12))  # an FP16 sum of these on H100 is exact to half an ulp


def libraries(arrays: Arrays, params: Params) -> Outcome:
    """numpy's float16 and float32 multiplications and additions, one after the other."""
    compared = 0
    for kind, fmt in itertools.product(KINDS, FORMATS):
        dtype = {"fp16": np.float16, "fp32": np.float32}[fmt]
        x, y = (operands.values(arrays[f"{kind}: {part}"]).astype(dtype) for part in "ab")
        at = operands.sizes(x.shape[1].bit_length() - 1) - 1
        with np.errstate(under="ignore"):
            sums = [np.add.accumulate(row * y, axis=1, dtype=dtype)[:, at] for row in x]
        got = arrays[f"{kind}: results"][index(fmt)]
        outcome = same_bits(got.view(np.uint32), np.stack(sums).astype(np.float32).view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{kind} in {fmt}: {outcome.detail}")
        compared += len(x) * y.size
    for kind in TRACED:  # the running sums that are drawn
        trace, at = arrays[f"{kind}: trace"], operands.sizes(arrays[f"{kind}: a"].shape[1].bit_length() - 1)
        both, place, step = np.intersect1d(at, trace[0].astype(np.int64), return_indices=True)
        if (trace[2:, step] != arrays[f"{kind}: results"][:, 0, 0, place]).any():
            return failed(f"{kind}: the running sums that are drawn are others, at K = {both.tolist()}")
    return passed(f"{compared:,} multiplications and additions")


def bounds_hold(arrays: Arrays, params: Params) -> Outcome:
    """Every error is at most its bound, in integers; how much of it is used at most."""
    return within_bounds(((kind, of_kind(arrays, kind)) for kind in KINDS), [one.name for one in ACCUMULATORS])


def beforehand(arrays: Arrays, params: Params) -> Outcome:
    """For FP32 results: error <= bound by block <= bound beforehand."""
    compared = 0
    for kind, gpu in itertools.product(KINDS, CORES):
        one, i = of_kind(arrays, kind), index("fp32", gpu)
        most = one.beforehand(i)
        if (one.errors[i] > most).any() or (one.bound(i) > most).any():
            return failed(f"{kind}, {gpu}: an error or a bound by block is above K ((L-1) 2^-F + 2^-23) / L * s")
        compared += most.size
    return passed(f"{compared:,} errors and bounds by block")


def tight(arrays: Arrays, params: Params) -> Outcome:
    """The worst case of each GPU reaches 99% of both bounds."""
    one = of_kind(arrays, "swamped")
    found = {}
    for row, gpu in enumerate(operands.TARGETS):
        i = index("fp32", gpu)
        at = (row, slice(None), slice(-1, None))
        shares = [whole.ratio(one.errors[i][at], bound[at]).min() for bound in (one.bound(i), one.beforehand(i))]
        found[gpu] = min(float(share) for share in shares)
    return verdict(all(0.99 < v <= 1 for v in found.values()), f"at K = {one.lengths[-1]:,}: {_listed(found, '.4f')}")


def published(arrays: Arrays, params: Params) -> Outcome:
    """Whether an FP32 error exceeds K 2^-24 sum|a b|, by GPU, over all kinds without subnormal operands."""
    most = dict.fromkeys(CORES, 0.0)
    for kind in SYNTHETIC:
        one = of_kind(arrays, kind)
        for gpu in CORES:
            share = whole.ratio(one.errors[index("fp32", gpu)], one.published()).max()
            most[gpu] = max(most[gpu], float(share))
    crossed = {gpu: share > 1 for gpu, share in most.items()}
    detail = f"largest error as a share of it: {_listed(most, '.3f')}"
    return verdict(crossed == {"V100": True, "A100": True, "H100": False}, detail)


def drift(arrays: Arrays, params: Params) -> Outcome:
    """On positive operands: every FP32 result falls short, by about half the bound, further than one by one.

    The share of the bound is taken on the diagonal: products of other rows of A and of B, so independent draws.
    """
    one = of_kind(arrays, "positive")
    alone = one.errors[index("fp32")][..., -1]
    texts, shares = [], []
    for gpu in CORES:
        i = index("fp32", gpu)
        if (one.results[i] > one.exact).any():
            return failed(f"{gpu}: a truncated sum is above the exact one")
        if not (one.errors[i][..., -1] > alone).all():
            return failed(f"{gpu}: rounding one by one is further off")
        shares.append(np.diagonal(whole.ratio(one.errors[i], one.bound(i))[..., -1]))
        relative = whole.ratio(one.errors[i], one.exact)[..., -1]
        texts.append(f"{gpu} {relative.mean():.2e}")
    off = np.abs(np.stack(shares) - 0.5).max(axis=0)
    mean = whole.ratio(alone, one.exact[..., -1]).mean()
    detail = f"mean relative error at K = {one.lengths[-1]:,}: {', '.join(texts)}; FP32 one by one {mean:.2e}"
    return measured(bool((off < OFF_HALF).all()), detail, Sample(off.size, float(off.std(ddof=1)), OFF_HALF))


def more_bits(arrays: Arrays, params: Params) -> Outcome:
    """Random signs: root mean squares of the FP32 errors over the three longest K, as shares of sum|a b|.

    Of each row of B, a draw: the smaller of A100's and H100's over V100's.
    """
    one = of_kind(arrays, "random")
    found = {}
    for gpu in ("", *CORES):
        found[gpu or "one by one"] = drawn(whole.ratio(one.errors[index("fp32", gpu)], one.magnitude))
    rms = {name: float(np.sqrt((v**2).mean())) for name, v in found.items()}
    more = np.minimum(found["A100"], found["H100"])
    detail = f"r.m.s. {_listed(rms, '.1e')}; in powers of 2"
    return superior(np.log2(more), np.log2(found["V100"]), 0.0, detail)


def stored_once(arrays: Arrays, params: Params) -> Outcome:
    """An FP32 sum cast once to FP16, and FP16 sums, for every kind and unit.

    The cast is the FP16 number nearest to the FP32 sum, so it is no further from the exact result than any other FP16
    number, but for twice the error of the FP32 sum. More cannot be said: H100 adds three products better in FP16.
    """
    from ...floats import quantize

    compared, right, total = 0, 0, 0
    for kind, gpu in itertools.product(KINDS, ("", *CORES)):
        one, i = of_kind(arrays, kind), index("fp32", gpu)
        cast = np.asarray(quantize(arrays[f"{kind}: results"][i], "fp16"))
        once, sums = np.abs(whole.of_values(cast) - one.exact), one.errors[index("fp16", gpu)]
        if (once > sums + 2 * one.errors[i]).any():
            return failed(f"{kind}, {gpu or 'one by one'}: a sum stored once is further off than the FP16 sum")
        compared += once.size
        nearest = np.asarray(quantize(whole.floats(one.exact), "fp16"))
        if kind not in ("ill-conditioned", "swamped"):
            right += int((cast == nearest).sum())
            total += cast.size
    x, y = (np.array([v], np.float32) for v in WORSE)
    sums, once = (float(quantize(on_gpu(x, y, "H100", fmt, np.array([3])), "fp16")[0, 0, 0]) for fmt in FORMATS)
    exact = float(x[0].astype(np.float64) @ y[0])
    nearest_of = f"random, positive, real: {right / total:.1%} are the FP16 number nearest to the exact result"
    detail = f"{compared:,} products; {nearest_of}; one that is worse stored once: {once!r}, summed in FP16 {sums!r}"
    return verdict(abs(once - exact) > abs(sums - exact), detail)


def lost_products(arrays: Arrays, params: Params) -> Outcome:
    """Fates of the partial products, counted again by numpy's own products and sums, one by one."""
    texts = []
    for kind in KINDS:
        x, y = (operands.values(arrays[f"{kind}: {part}"]) for part in "ab")
        edges = operands.sizes(x.shape[1].bit_length() - 1)
        segments = np.split(np.arange(x.shape[1]), edges[:-1])
        for fmt, dtype, got in zip(FORMATS, (np.float16, np.float32), arrays[f"{kind}: fates"], strict=True):
            want = np.zeros_like(got)
            for row in x:
                products = row * y
                with np.errstate(under="ignore"):
                    stored = products.astype(dtype)
                sums = np.pad(np.add.accumulate(stored, axis=1, dtype=dtype), ((0, 0), (1, 0)))
                fate = np.select([products == 0, stored == 0, sums[:, 1:] == sums[:, :-1]], [0, 1, 2], 3)
                want += [np.bincount(fate[:, at].ravel(), minlength=4) for at in segments]
            if (got != want).any():
                return failed(f"{kind} in {fmt}: {got.sum(axis=0).tolist()}, numpy {want.sum(axis=0).tolist()}")
        half, single = arrays[f"{kind}: fates"].sum(axis=1).tolist()
        if kind in ("positive", REAL[2]):
            alive = sum(half[1:])
            texts.append(
                f"{kind}: {half[1] / alive:.1%} stored as zero, {half[2] / alive:.1%} added without effect "
                f"(FP32: {single[2] / alive:.1%})"
            )
    return passed("; ".join(texts))


def cancellation(arrays: Arrays, params: Params) -> Outcome:
    """Ill-conditioned: the worst relative error of sums one by one over rows of A and lengths, in FP16 and in FP32.

    Of each row of B, a draw.
    """
    one = of_kind(arrays, "ill-conditioned")
    size = np.abs(one.exact)
    half, single = (whole.ratio(one.errors[index(f)], size).max(axis=(0, 2)) for f in FORMATS)
    condition = whole.ratio(one.magnitude, size)
    detail = (
        f"condition {condition.min():.0e} to {condition.max():.0e}; worst relative errors of FP16 {half.min():.2g} and "
        f"more, of FP32 {single.max():.1e} at most"
    )
    if half.min() < 1:
        return failed(detail)
    return superior(np.log10(half), np.log10(single), DIGITS, detail)


def _listed(found: dict[str, float], spec: str) -> str:
    return ", ".join(f"{name} {value:{spec}}" for name, value in found.items())


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("numpy's float16 and float32 give the same sums one by one", LIBRARY, libraries),
    Check("No error is above its bound, by block or one by one, and each way uses a sixteenth of it", PROVED,
          bounds_hold),
    Check("FP32 sums: K ((L-1) 2^-F + 2^-23) / L holds beforehand", PROVED, beforehand),
    Check("These bounds are sharp: worst cases reach 99% of them", PROVED, tight),
    Check("The bound K 2^-24, for rounding to nearest, fails on V100 and A100, not on H100", PROVED, published),
    Check("All-positive sums drift down by half the bound, more than FP32 one by one errs", MEASURED, drift),
    Check("Random signs: truncating sums, as A100 and H100 do, costs more than V100's alignment", MEASURED,
          more_bits),
    Check("An FP32 sum stored once as FP16 is worse than an FP16 sum by twice its own error at most", PROVED,
          stored_once),
    Check("What FP16 stores as zero or adds without effect, numpy does: zero is what is at most 2^-25", LIBRARY,
          lost_products),
    Check("Ill-conditioned: FP16 sums keep no digit, FP32 sums at least three more", MEASURED, cancellation),
)  # fmt: skip
