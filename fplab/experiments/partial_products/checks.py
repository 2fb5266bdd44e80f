"""The claims about accumulation, each against exact integers, the Fraction oracle, or a library."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, Status, failed, passed, same_bits, verdict
from . import operands
from .accumulators import ACCUMULATORS, BLOCKED, CORES, FORMATS, alike, index, on_gpu
from .compared import within_bounds
from .exactly import of_kind
from .network import REAL
from .operands import SYNTHETIC

if TYPE_CHECKING:
    from . import Params

KINDS = SYNTHETIC + REAL
HALF_OF_BOUND = (0.48, 0.52)  # where the mean of many lost parts, each between 0 and its bound, must lie
ORACLE = 64  # products that the oracle adds


def definition(arrays: Arrays, params: Params) -> Outcome:
    """The kernels' results, and those of the chains walked block by block."""
    compared = 0
    for kind in KINDS:
        got = arrays[f"{kind}: results"][list(BLOCKED)]
        outcome = same_bits(got.view(np.uint32), arrays[f"{kind}: walked"].view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{kind}: {outcome.detail}")
        compared += got.size
    return passed(f"{compared:,} products of up to {1 << params.log2_last:,} terms, every bit")


def oracle(arrays: Arrays, params: Params) -> Outcome:
    """A few short products of every kind on Fractions."""
    from ... import exact
    from ...tensorcore import oracle as definition

    compared = 0
    for kind, i in itertools.product(KINDS, BLOCKED):
        x, y = (operands.values(arrays[f"{kind}: {part}"][-1, :ORACLE]).tolist() for part in "ab")
        at = np.log2(ORACLE).astype(int) - 4
        want = definition.dot(x, y, 0.0, ACCUMULATORS[i].model)
        got = float(arrays[f"{kind}: results"][i, -1, -1, at])
        if want.value != exact.from_float(got).value:
            return failed(f"{kind}, {ACCUMULATORS[i].name}: {got!r} against {float(want.value)!r}")
        compared += 1
    return passed(f"{compared} products of {ORACLE} terms")


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
    return passed(f"{compared:,} multiplications and additions")


def all_gpus(arrays: Arrays, params: Params) -> Outcome:
    """Every GPU of the table on the same operands, against the one it is said to be like."""
    compared = 0
    for kind, fmt in itertools.product(SYNTHETIC, FORMATS):
        x, y = (operands.values(arrays[f"{kind}: {part}"]).astype(np.float32) for part in "ab")
        sizes = operands.sizes(min(params.log2_last, 12))
        for core, gpus in alike(fmt).items():
            want = arrays[f"{kind}: results"][index(fmt, core)][..., : sizes.size]
            for gpu in gpus:
                got = on_gpu(x, y, gpu, fmt, sizes)
                outcome = same_bits(got.view(np.uint32), want.copy().view(np.uint32), "fp32")
                if outcome.status is not Status.PASS:
                    return failed(f"{kind}, {gpu} and {core}, {fmt}: {outcome.detail}")
                compared += got.size
    groups = "; ".join(", ".join(gpus) for gpus in alike().values())
    return passed(f"{compared:,} products: {groups}")


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
    """On positive operands: every FP32 result falls short, by about half the bound, further than one by one."""
    one = of_kind(arrays, "positive")
    alone = one.errors[index("fp32")][..., -1]
    texts = []
    for gpu in CORES:
        i = index("fp32", gpu)
        if (one.results[i] > one.exact).any():
            return failed(f"{gpu}: a truncated sum is above the exact one")
        share = whole.ratio(one.errors[i], one.bound(i))[..., -1]
        if not (share > HALF_OF_BOUND[0]).all() or not (share < HALF_OF_BOUND[1]).all():
            return failed(f"{gpu}: errors are {share.min():.3f} to {share.max():.3f} of the bound, not half")
        if not (one.errors[i][..., -1] > alone).all():
            return failed(f"{gpu}: rounding one by one is further off")
        relative = whole.ratio(one.errors[i], one.exact)[..., -1]
        texts.append(f"{gpu} {relative.mean():.2e}")
    mean = whole.ratio(alone, one.exact[..., -1]).mean()
    return passed(f"mean relative error at K = {one.lengths[-1]:,}: {', '.join(texts)}; FP32 one by one {mean:.2e}")


def more_bits(arrays: Arrays, params: Params) -> Outcome:
    """Random signs: root mean squares of the FP32 errors, as shares of sum|a b|, and whether sums shrink."""
    one = of_kind(arrays, "random")
    found, shrunk = {}, {}
    for gpu in ("", *CORES):
        i = index("fp32", gpu)
        share = whole.ratio(one.errors[i], one.magnitude)[..., -1]
        found[gpu or "one by one"] = float(np.sqrt((share**2).mean()))
        shrunk[gpu] = float((np.abs(one.results[i]) < np.abs(one.exact))[..., -1].mean())
    holds = max(found["V100"], found["one by one"]) * 4 < min(found["A100"], found["H100"])
    holds &= min(shrunk["A100"], shrunk["H100"]) > 0.8
    detail = f"K = {one.lengths[-1]:,}: r.m.s. {_listed(found, '.1e')}; sums too small: {_listed(shrunk, '.0%', CORES)}"
    return verdict(holds, detail)


def stored_once(arrays: Arrays, params: Params) -> Outcome:
    """An FP32 sum cast once to FP16, and FP16 sums, for every kind and unit.

    Each product: the cast is the FP16 number nearest to the FP32 sum, so it is no further from the exact result than
    any other, but for twice the error of the FP32 sum. And the worst of the made up ones at every K, without that.
    """
    from ...floats import quantize

    compared, right, total = 0, 0, 0
    for kind, gpu in itertools.product(KINDS, ("", *CORES)):
        one, i = of_kind(arrays, kind), index("fp32", gpu)
        where = f"{kind}, {gpu or 'one by one'}"
        cast = np.asarray(quantize(arrays[f"{kind}: results"][i], "fp16"))
        once, sums = np.abs(whole.of_values(cast) - one.exact), one.errors[index("fp16", gpu)]
        if (once > sums + 2 * one.errors[i]).any():
            return failed(f"{where}: a sum stored once is further off than the FP16 sum")
        worst, other = (whole.ratio(e, one.magnitude).max(axis=(0, 1)) for e in (once, sums))
        if kind in SYNTHETIC and (worst > other).any():
            at = int(np.argmax(worst > other))
            return failed(f"{where}, K = {one.lengths[at]}: {worst[at]:.3g} stored once, {other[at]:.3g} in FP16")
        compared += once.size
        nearest = np.asarray(quantize(whole.floats(one.exact), "fp16"))
        if kind not in ("ill-conditioned", "swamped"):
            right += int((cast == nearest).sum())
            total += cast.size
    nearest_of = f"random, positive, real: {right / total:.1%} are the FP16 number nearest to the exact result"
    return passed(f"{compared:,} products; {nearest_of}")


def lost_products(arrays: Arrays, params: Params) -> Outcome:
    """Fates of the partial products one by one; those stored as zero are counted again by their exponents."""
    texts = []
    for kind in KINDS:
        x, y = (operands.values(arrays[f"{kind}: {part}"]) for part in "ab")
        products = np.abs(x[:, None] * y)
        tiny = int(((products > 0) & (products <= 2.0**-25)).sum())
        half, single = arrays[f"{kind}: fates"].sum(axis=1).tolist()
        if half[1] != tiny or single[1] != 0 or single[2] > half[1] + half[2]:
            return failed(f"{kind}: FP16 {half}, FP32 {single}, {tiny} products of at most 2^-25")
        if kind in ("positive", REAL[2]):
            alive = products.size - half[0]
            texts.append(
                f"{kind}: {tiny / alive:.1%} stored as zero, {half[2] / alive:.1%} added without effect "
                f"(FP32: {single[2] / alive:.1%})"
            )
    return passed("; ".join(texts))


def cancellation(arrays: Arrays, params: Params) -> Outcome:
    """Ill-conditioned: the worst relative error of sums one by one, in FP16 and in FP32, at every length."""
    one = of_kind(arrays, "ill-conditioned")
    size = np.abs(one.exact)
    relative = {i: whole.ratio(one.errors[i], size).max(axis=(0, 1)) for i in (index("fp16"), index("fp32"))}
    half, single = relative.values()
    condition = whole.ratio(one.magnitude, size)
    detail = (
        f"condition {condition.min():.0e} to {condition.max():.0e}; relative error of FP16 {half.min():.2g} and more, "
        f"of FP32 {single[0]:.1e} at K = 16, {single[-1]:.1e} at K = {one.lengths[-1]:,}"
    )
    return verdict(bool((half >= 0.5).all()) and bool((single * 1000 < half).all()), detail)


def _listed(found: dict[str, float], spec: str, names: tuple[str, ...] | None = None) -> str:
    return ", ".join(f"{name} {found[name]:{spec}}" for name in names or found)


EXACT = Evidence.EXACT
CHECKS = (
    Check("The kernels give what the definition of a block gives, walked block by block", EXACT, definition),
    Check("The Fraction oracle gives the same bits", EXACT, oracle),
    Check("numpy's float16 and float32 give the same sums one by one", Evidence.LIBRARY, libraries),
    Check("Eleven GPUs have three ways to add FP16 products", EXACT, all_gpus),
    Check("No error is above its bound, by block or one by one", EXACT, bounds_hold),
    Check("FP32 sums: K ((L-1) 2^-F + 2^-23) / L holds beforehand", EXACT, beforehand),
    Check("These bounds are sharp: worst cases reach 99% of them", EXACT, tight),
    Check("The bound K 2^-24, for rounding to nearest, fails on V100 and A100, not on H100", EXACT, published),
    Check("All-positive sums drift down by half the bound, more than FP32 one by one errs", EXACT, drift),
    Check("Random signs: truncating sums, as A100 and H100 do, costs more than V100's alignment", EXACT, more_bits),
    Check("FP32 sums stored once as FP16 are never worse than FP16 sums", EXACT, stored_once),
    Check("FP16 stores tiny products as zero and adds most others without effect; FP32 does not", EXACT, lost_products),
    Check("Ill-conditioned: FP16 sums keep no digit, FP32 sums at least three more", EXACT, cancellation),
)
