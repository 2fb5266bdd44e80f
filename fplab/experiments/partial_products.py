"""Partial products: what FP16 accumulation loses, what FP32 keeps, and how exactly each GPU's Tensor Core adds.

Products of FP16 matrices of length K = 16 to 65,536, on random, all-positive, ill-conditioned, worst-case and real
operands. Everything that is compared is an integer: exact results, errors and bounds are whole numbers of one tiny
unit (:mod:`fplab.exact_products`).

After Micikevicius et al. 2018 (arXiv 1710.03740), section 3.3, which keeps partial products in FP32; Fasi et al. 2021
(PeerJ CS 7:e330) and Blanchard et al. 2020 (SISC 42(3)) on what Tensor Cores do with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np

from .. import draw, numeric
from .. import exact_products as whole
from ..formats import get
from ..hardware.cases import Case, philox_bits
from ..hardware.core_cases import SIDE, core_case
from ..hardware.products import FP16_SUMS, ONE_CHAIN, REDUCED, Product
from ..words import COMMA, Text, joined, say
from . import chain_bounds as bounds
from . import long_products
from .chain_bounds import CORES, unit
from .frame import Experiment, Params, Result
from .long_products import EACH, FIRST, LENGTH, REAL, Array, Sums, against_k, along_k, rms, within_bounds
from .outcomes import Outcome, Part, Sample, failed, measured, passed, verdict
from .panels import line, with_
from .quantities import Quantity, of, superior
from .statistics import superior as larger

SYNTHETIC = ("random", "positive", "ill-conditioned", "swamped")
KINDS = SYNTHETIC + REAL
TRACED = ("positive", "activations × gradients")  # of these the running sums are kept
OFF_HALF = 0.02  # the mean of over a thousand lost parts, each between 0 and its bound, lies so near to half of it
DIGITS = 3.0  # by FP32's significand, which has 13 bits more, nearly four digits
WORSE = ((1.0, 2.0**-11, 2.0**-12), (1.0, 1.0, 2.0**-12))  # an FP16 sum of these on H100 is exact to half an ulp
FORMATS = ("fp16", "fp32")
ONE_BY_ONE = {fmt: f"{fmt.upper()} one by one" for fmt in FORMATS}
# Ways to accumulate: the format of the running sum, and whose Tensor Core adds; "" for one addition after the other.
# Then each partial product is rounded to the running sum's format, added and rounded again. FP32 holds every product of
# two FP16 numbers, so there it is one rounding an addition.
WAYS = {f"{gpu} {fmt.upper()}" if gpu else ONE_BY_ONE[fmt]: (fmt, gpu) for fmt in FORMATS for gpu in ("", *CORES)}
FP32 = {gpu: f"{gpu} FP32" for gpu in CORES}
FATES = ("zero", "stored as zero", "added without effect", "counts")

# ``rows``: of A and of B, so that a kind has ``rows**2`` products. ``log2_last``: the longest K. ``points``: of a
# traced running sum.
E = Experiment(
    "Partial products",
    "What is lost when partial products are kept in FP16, and what does each GPU's FP32 accumulation keep?",
    budget=4.0, full={"rows": 8, "log2_last": 16, "points": 512}, quick={"rows": 4, "log2_last": 14, "points": 256},
)  # fmt: skip


# --- operands ---------------------------------------------------------------------------------------------------

# Block length, and the exponents of the factors a of each block; b is just below 2**-12.
TARGETS: dict[str, tuple[int, ...]] = {"V100": (-12,) * 4, "A100": (*(-13,) * 7, -12), "H100": (*(-14,) * 15, -12)}
LEFT = 8
ALMOST_TWO = 2 - 2.0**-10  # the largest FP16 significand


def operands(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """FP16 codes A (M, K) and B (N, K), of ``rows`` rows but for ``swamped``, whose A has a row for each target.

    Made up ones come from Philox's raw stream by integer arithmetic, so that they are the same bits everywhere. Every
    leading part of a length ``16 * 2**j`` is an example of its kind, too. Real ones are rounded to nearest even, as
    mixed precision training casts before it multiplies.

    * ``random``: uniform between -1 and 1.
    * ``positive``: uniform between 0 and 1; nothing cancels, so the running sum only grows.
    * ``ill-conditioned``: each stretch from 2**j to 2**(j+1) climbs and comes back: its second half holds the negated
      products of the first in another order, but for ``LEFT`` units in the last place of one factor. Little remains.
    * ``swamped``: a one, then products just below what a block keeps beside it. Row i of A is the worst case of the
      i-th of ``TARGETS``.
    """
    if kind in REAL:
        a, b = long_products.chosen(kind, rows, log2_last)
        return long_products.half(a), long_products.half(b)
    k, key = 1 << log2_last, 1000 + 10 * SYNTHETIC.index(kind)
    if kind == "swamped":
        return swamped(k, rows)
    a, b = (philox_bits(key + i, rows, k).astype(np.float64) * 2.0**-32 for i in range(2))
    if kind == "random":
        return long_products.half(2 * a - 1), long_products.half(2 * b - 1)
    return (
        (long_products.half(a), long_products.half(b))
        if kind == "positive"
        else climbing(long_products.half(a), long_products.half(b))
    )


def climbing(a: Array, b: Array) -> tuple[Array, Array]:
    """Overwrite the second half of every stretch by the first: negated in A, permuted, a few last places off in B."""
    start, end = 0, FIRST
    while end <= a.shape[1]:
        middle = (start + end) // 2
        order = start + np.argsort(philox_bits(end, middle - start), kind="stable")
        a[:, middle:end] = a[:, order] ^ np.uint16(0x8000)
        b[:, middle:end] = b[:, order]
        b[:, end - 1] += np.uint16(LEFT)
        start, end = end, 2 * end
    return a, b


def swamped(k: int, columns: int) -> tuple[Array, Array]:
    """A (3, k) and B (columns, k); the columns are alike but for the sign, which alternates."""
    a = np.stack([np.ldexp(ALMOST_TWO, np.resize(exponents, k)) for exponents in TARGETS.values()])
    b = np.full((columns, k), np.ldexp(ALMOST_TWO, -13))
    a[:, 0] = b[:, 0] = 1
    return long_products.half(a), long_products.half(b * np.resize([1.0, -1.0], columns)[:, None])


def values(codes: Array) -> Array:
    """FP16 codes as float64."""
    return codes.view(np.float16).astype(np.float64)


@E.cache
def given(p: Params, kind: str) -> tuple[Array, Array]:
    """The operands of a kind as float64."""
    a, b = operands(kind, p.rows, p.log2_last)
    return values(a), values(b)


@E.cache
def sums(p: Params, kind: str) -> Sums:
    """Their exact sums."""
    return Sums.of(*given(p, kind))


# --- one by one, and by Tensor Cores ----------------------------------------------------------------------------
def running(a: Array, b: Array, fmt: str) -> Array:
    """One by one: the running sums (N, K) of one row a (K,) with rows b (N, K), every product rounded first."""
    sums = numeric.dot(a[None], b, "fp16", accumulate=fmt, products="rounded", running=True)
    return np.asarray(sums, np.float32)


def fates(a: Array, b: Array, fmt: str, at: Array, sums: Array) -> Array:
    """What becomes of the partial products between one length and the next, one by one: int64 (S, fate).

    ``sums`` (M, N, K): the running ones in this format.
    """
    counts = np.zeros((at.size, len(FATES)), np.int64)
    segment = np.searchsorted(at, np.arange(1, a.shape[1] + 1))
    for row, own in zip(a, sums, strict=True):
        products = row * b  # exact in float32
        stored = np.asarray(numeric.quantize(products, fmt))
        before = np.concatenate([np.zeros((len(b), 1), np.float32), own[:, :-1]], axis=1)
        fate = np.select([products == 0, stored == 0, own == before], [0, 1, 2], 3)
        np.add.at(counts, (np.broadcast_to(segment, fate.shape), fate), 1)
    return counts


@E.cache
def all_running(p: Params, kind: str, fmt: str) -> Array:
    """The running sums of every product, one by one: (M, N, K)."""
    a, b = (x.astype(np.float32) for x in given(p, kind))
    return np.stack([running(row, b, fmt) for row in a])


@E.cache
def product(p: Params, kind: str, way: str) -> Array:
    """The product at every length: float32 (M, N, S)."""
    (fmt, gpu), at = WAYS[way], sums(p, kind).lengths
    if not gpu:
        return np.asarray(all_running(p, kind, fmt)[..., at - 1])
    a, b = (x.astype(np.float32) for x in given(p, kind))
    return long_products.on_gpu(a, b, gpu, fmt, at)


@E.cache
def chains(p: Params, group: str, gpu: str) -> tuple[bounds.Chains, Array]:
    """The chains of a real kind, or of all made-up ones since walking a few takes as long as walking one, by definition
    and into every format; and the exponents of their products."""
    terms = [bounds.terms(*given(p, kind)) for kind in (SYNTHETIC if group == "made up" else (group,))]
    products, exponents = (np.concatenate(part) for part in zip(*terms, strict=True))
    return bounds.walk(products, exponents, [unit(gpu, fmt) for fmt in FORMATS]), exponents


@E.cache
def block_bounds(p: Params, group: str, gpu: str) -> Array:
    """Their bounds by block: integers (format, rows, S)."""
    at = sums(p, SYNTHETIC[0] if group == "made up" else group).lengths
    return whole.unpack(bounds.by_block(*chains(p, group, gpu), [unit(gpu, fmt) for fmt in FORMATS], at))


def part_of_group(p: Params, kind: str) -> tuple[str, slice, tuple[int, int]]:
    """The group of a kind, the rows of its products there, and how many rows A and B have."""
    before = SYNTHETIC[: SYNTHETIC.index(kind)] if kind in SYNTHETIC else ()
    m, n = (len(x) for x in given(p, kind))
    start = sum(len(a) * len(b) for a, b in (given(p, other) for other in before))
    return "made up" if kind in SYNTHETIC else kind, slice(start, start + m * n), (m, n)


def walked(p: Params, kind: str, way: str, at: Array) -> Array:
    """What a chain holds after so many products, by its definition: (M, N, S)."""
    (fmt, gpu), (group, rows, shape) = WAYS[way], part_of_group(p, kind)
    totals = chains(p, group, gpu)[0].totals[at // CORES[gpu][0], FORMATS.index(fmt), rows]
    return np.asarray(totals.T.reshape(*shape, -1))


# --- bounds -----------------------------------------------------------------------------------------------------
def bound(p: Params, kind: str, way: str) -> Array:
    """By block, or one by one."""
    (fmt, gpu), exact = WAYS[way], sums(p, kind)
    if not gpu:
        return exact.bound(lambda k, s: bounds.one_by_one(k, get(fmt).significand_bits, s), exact.magnitude)
    group, rows, shape = part_of_group(p, kind)
    return np.asarray(block_bounds(p, group, gpu)[FORMATS.index(fmt), rows].reshape(*shape, -1))


@E.cache
def clamped_sum(p: Params, kind: str) -> Array:
    """The sums of magnitudes of the operands clamped to 2**-14."""
    a, b = (bounds.clamped(x) for x in given(p, kind))
    return whole.products(a, b, sums(p, kind).lengths)


def bound_beforehand(p: Params, kind: str, way: str) -> Array:
    """Of a Tensor Core's FP32 sums, from A and B alone."""
    rate = bounds.rate(unit(WAYS[way][1], "fp32"))
    return sums(p, kind).bound(lambda k, s: k * rate * s, clamped_sum(p, kind))


def published_bound(p: Params, kind: str, way: str) -> Array:
    """K 2**-24 sum|a b|, the published bound of a unit that rounds to nearest."""
    return sums(p, kind).bound(lambda k, s: k * s >> 24, sums(p, kind).magnitude)


def off(p: Params, kind: str, way: str) -> Array:
    """Errors of products, integers."""
    return sums(p, kind).off(product(p, kind, way))


# --- what is measured -------------------------------------------------------------------------------------------
long_products.measured_products(E, KINDS, SYNTHETIC, WAYS, sums, product, bound)
long_products.compared(E, KINDS, FP32.values(), sums, off, bound_beforehand, "before_")
long_products.compared(E, SYNTHETIC, FP32.values(), sums, off, published_bound, "published_")


@E.measure("fates", axes={"kind": KINDS, "fmt": FORMATS}, dims={LENGTH: long_products.lengths, "fate": FATES})
def all_fates(p: Params, kind: str, fmt: str) -> Array:
    """How many products become what between one length and the next, one by one."""
    a, b = (x.astype(np.float32) for x in given(p, kind))
    return fates(a, b, fmt, sums(p, kind).lengths, all_running(p, kind, fmt))


def points(p: Params) -> list[int]:
    """The lengths at which a running sum is traced."""
    step = max((1 << p.log2_last) // p.points, FIRST)
    return list(range(step, (1 << p.log2_last) + 1, step))


@E.measure(axes={"kind": TRACED, "way": ("exact", *WAYS)}, dims={"terms": points})
def trace(p: Params, kind: str, way: str) -> Array:
    """The running sums of the first product; the exact ones in float64, for drawing."""
    at, (a, b) = np.array(points(p)), given(p, kind)
    if way == "exact":
        return np.asarray(np.cumsum(a[0] * b[0])[at - 1])
    fmt, gpu = WAYS[way]
    return np.asarray(walked(p, kind, way, at)[0, 0] if gpu else all_running(p, kind, fmt)[0, 0, at - 1])


# --- claims -----------------------------------------------------------------------------------------------------
@E.library("numpy's float16 and float32 give the same sums one by one")
def libraries(r: Result) -> Iterator[Part]:
    """And the sums that are drawn are those of the results."""
    for kind, fmt in itertools.product(KINDS, FORMATS):
        x, y = (v.astype({"fp16": np.float16, "fp32": np.float32}[fmt]) for v in given(r.p, kind))
        with np.errstate(under="ignore"):
            added = [np.add.accumulate(row * y, axis=1, dtype=x.dtype)[:, sums(r.p, kind).lengths - 1] for row in x]
        got, want = product(r.p, kind, ONE_BY_ONE[fmt]), np.stack(added).astype(np.float32)
        yield f"{kind}, {fmt}", got.view(np.uint32), want.view(np.uint32), "fp32"
    for kind, way in itertools.product(TRACED, WAYS):
        drawn = r.trace.sel(kind=kind, way=way)
        _, place, step = np.intersect1d(sums(r.p, kind).lengths, drawn.terms, return_indices=True)
        yield f"{kind}, {way}", drawn.values[step], product(r.p, kind, way)[0, 0, place]


E.claim(
    within_bounds("bounds_hold",
                  "No error is above its bound, by block or one by one, and each way uses a sixteenth of it"),
)  # fmt: skip


@E.proved("FP32 sums: K ((L-1) 2^-F + 2^-23) / L holds beforehand")
def beforehand(r: Result) -> Outcome:
    """For FP32 results: error <= bound by block <= bound beforehand."""
    n = int(r.before_above.notnull().sum())
    above = int((r.before_above > 0).sum())
    over = sum(int((bound(r.p, kind, way) > bound_beforehand(r.p, kind, way)).sum())
               for kind, way in itertools.product(KINDS, FP32.values()))  # fmt: skip
    detail = say("{n:,} errors and bounds by block; above it: {errors} errors, {bounds} bounds", n=n, errors=above)
    return verdict(not above and not over, detail.fill(bounds=over))


@E.proved("Blocks of 4 FP16 products aligned to 23 bits on V100, 8 to 24 on A100, 16 to 25 on H100: every bit")
def blocks(r: Result) -> Iterator[Part]:
    for kind, (way, (_, gpu)) in itertools.product(KINDS, WAYS.items()):
        if gpu:
            want = walked(r.p, kind, way, sums(r.p, kind).lengths).astype(np.float32)
            yield f"{kind}, {way}", product(r.p, kind, way).view(np.uint32), want.view(np.uint32), "fp32"


@E.proved("These bounds are sharp: worst cases reach 99% of them")
def sharp(r: Result) -> Outcome:
    """Of each target's own row of A the last K: the bound by block and the one beforehand."""
    shares = {gpu: min(float(used.sel(kind="swamped", way=FP32[gpu])[row, : r.p.rows, -1].min())
                       for used in (r.used, r.before_used)) for row, gpu in enumerate(TARGETS)}  # fmt: skip
    detail = say("at K = {k:,}: {shares}", k=1 << r.p.log2_last, shares=listed(shares, ".4f"))
    return verdict(all(0.99 < share <= 1 for share in shares.values()), detail)


@E.proved("The bound K 2^-24, for rounding to nearest, fails on V100 and A100, not on H100")
def published(r: Result) -> Outcome:
    """Whether an FP32 error exceeds it, by GPU, over all kinds without subnormal operands."""
    most = {gpu: float(r.published_used.sel(way=way).max()) for gpu, way in FP32.items()}
    crossed = {gpu: share > 1 for gpu, share in most.items()}
    detail = say("largest error as a share of it: {shares}", shares=listed(most, ".3f"))
    return verdict(crossed == {"V100": True, "A100": True, "H100": False}, detail)


def listed(numbers: dict[str, float], spec: str) -> Text:
    """Names with their numbers, one after another."""
    return joined([f"{name} {x:{spec}}" for name, x in numbers.items()], COMMA)


@E.measured("Random positive sums drift down by half the bound, more than FP32 one by one errs")
def drift(r: Result) -> Outcome:
    """On positive operands: every FP32 result falls short, by about half the bound, further than one by one.

    The share of the bound is taken on the diagonal: products of other rows of A and of B, so independent draws.
    """
    error = r.error.sel(kind="positive", way=[*FP32.values()])
    alone = r.error.sel(kind="positive", way=ONE_BY_ONE["fp32"])[..., -1]
    if (error > 0).any() or not (-error[..., -1] > np.abs(alone)).all():
        return failed(say("a truncated sum is above the exact one, or nearer to it than one by one"))
    used = r.used.sel(kind="positive", way=[*FP32.values()])[..., -1].values
    apart = np.abs(np.diagonal(used, axis1=1, axis2=2) - 0.5).max(axis=0)
    relative = dict(zip(FP32, (-error[..., -1]).mean(EACH).values.tolist(), strict=True))
    detail = say("mean relative error at K = {k:,}: {cores}; FP32 one by one {alone:.2e}", k=1 << r.p.log2_last)
    detail = detail.fill(cores=listed(relative, ".2e"), alone=float(np.abs(alone).mean()))
    return measured(bool((apart < OFF_HALF).all()), detail, Sample(apart.size, float(apart.std(ddof=1)), OFF_HALF))


E.claim(
    superior("more_bits", "Random signs: truncating sums, as A100 and H100 do, costs more than V100's alignment",
             rms(kind="random", way=[FP32["A100"], FP32["H100"]]).min("way").log2,
             rms(kind="random", way=FP32["V100"]).log2),
)  # fmt: skip


@E.proved("An FP32 sum stored once as FP16 is worse than an FP16 sum by twice its own error at most")
def stored_once(r: Result) -> Outcome:
    """An FP32 sum cast once to FP16, and FP16 sums, for every kind and unit.

    The cast is the FP16 number nearest to the FP32 sum, so it is no further from the exact result than any other FP16
    number, but for twice the error of the FP32 sum. More cannot be said: H100 adds three products better in FP16.
    """
    compared, right, total = 0, 0, 0
    halves, singles = ([way for way, (of_sum, _) in WAYS.items() if of_sum == fmt] for fmt in FORMATS)
    for kind, (narrow, single) in itertools.product(KINDS, zip(halves, singles, strict=True)):
        cast, exact = np.asarray(numeric.quantize(product(r.p, kind, single), "fp16")), sums(r.p, kind)
        once, limit = np.abs(exact.off(cast)), np.abs(off(r.p, kind, narrow)) + 2 * np.abs(off(r.p, kind, single))
        if (once > limit).any():
            detail = say("{kind}, {unit}: a sum stored once is further off than the FP16 sum", kind=kind, unit=single)
            return failed(detail)
        compared += once.size
        if kind not in ("ill-conditioned", "swamped"):
            right += int((cast == np.asarray(numeric.quantize(whole.floats(exact.exact), "fp16"))).sum())
            total += cast.size
    x, y = (np.array([v], np.float32) for v in WORSE)
    worse = [numeric.quantize(long_products.on_gpu(x, y, "H100", fmt, np.array([3])), "fp16") for fmt in FORMATS]
    sums_in_half, stored = (float(np.asarray(v)[0, 0, 0]) for v in worse)
    exact_sum = float(x[0].astype(np.float64) @ y[0])
    detail = say("{n:,} products; random, positive, real: {right:.1%} are the FP16 number nearest to the exact result; "
                 "one that is worse stored once: {once!r}, summed in FP16 {sums!r}")  # fmt: skip
    detail = detail.fill(n=compared, right=right / total, once=stored, sums=sums_in_half)
    return verdict(abs(stored - exact_sum) > abs(sums_in_half - exact_sum), detail)


@E.library("What FP16 stores as zero or adds without effect, numpy does: zero is what is at most 2^-25")
def lost_products(r: Result) -> Iterator[Part]:
    for kind, (fmt, dtype) in itertools.product(KINDS, (("fp16", np.float16), ("fp32", np.float32))):
        (x, y), at = given(r.p, kind), sums(r.p, kind).lengths
        want = np.zeros((at.size, 4), np.int64)
        for row in x:
            with np.errstate(under="ignore"):
                stored = (products := row * y).astype(dtype)
            added = np.pad(np.add.accumulate(stored, axis=1, dtype=dtype), ((0, 0), (1, 0)))
            fate = np.select([products == 0, stored == 0, added[:, 1:] == added[:, :-1]], [0, 1, 2], 3)
            want += [np.bincount(part.ravel(), minlength=4) for part in np.split(fate, at[:-1], axis=1)]
        yield f"{kind}, {fmt}", r.fates.sel(kind=kind, fmt=fmt).values[: at.size], want
    for kind in TRACED:
        share = r.fates.sel(kind=kind, fate=[*FATES[1:]]).sum(LENGTH).astype(float)
        (zero, lost, _), (_, single, _) = (share / share.sum("fate")).values
        yield passed(say("{kind}: {zero:.1%} stored as zero, {lost:.1%} added without effect (FP32: {single:.1%})",
                         kind=kind, zero=zero, lost=lost, single=single))  # fmt: skip


@E.measured("Ill-conditioned: FP16 sums keep no digit, FP32 sums at least three more")
def cancellation(r: Result) -> Outcome:
    """The worst relative error of sums one by one over rows of A and lengths, in FP16 and in FP32, of each row of B,
    a draw.
    """
    exact = sums(r.p, "ill-conditioned")
    narrow, single = (whole.ratio(np.abs(off(r.p, "ill-conditioned", way)), np.abs(exact.exact)).max(axis=(0, 2))
                      for way in ONE_BY_ONE.values())  # fmt: skip
    condition = whole.ratio(exact.magnitude, np.abs(exact.exact))
    detail = say("condition {low:.0e} to {high:.0e}; worst relative errors of FP16 {half:.2g} and more, of FP32 "
                 "{single:.1e} at most", low=condition.min(), high=condition.max())  # fmt: skip
    detail = detail.fill(half=narrow.min(), single=single.max())
    return failed(detail) if narrow.min() < 1 else larger(np.log10(narrow), np.log10(single), DIGITS, detail)


def lost(way: str) -> Quantity:
    """The mean error of positive sums at the last K."""
    return of("error", kind="positive", way=way, K=-1).then("error", np.abs)


E.answer("positive products added one by one lose {half:.0%} of their sum in FP16, {fp32:.0e} in FP32; H100's FP32 "
         "accumulator loses {h100:.0e}", half=lost(ONE_BY_ONE["fp16"]), h100=lost(FP32["H100"]),
         fp32=lost(ONE_BY_ONE["fp32"]))  # fmt: skip


# --- what a GPU must multiply -----------------------------------------------------------------------------------
def factors(kind: str, k: int, p: Params) -> tuple[Array, Array]:
    """The leading K of a kind's operands, as codes."""
    a, b = operands(kind, p.rows, p.log2_last)
    return a[:, :k].copy(), b[:, :k].copy()


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """FP32 sums of every made up kind at two lengths, of two kinds at the last; the two ways to an FP16 result."""
    last = 1 << p.log2_last
    wanted = [(kind, k, "fp32", "fp32") for kind in SYNTHETIC for k in (64, 4096) if k <= last]
    wanted += [(kind, last, "fp32", "fp32") for kind in TRACED]
    wanted += [("positive", min(4096, last), sums, "fp16") for sums in ("fp32", "fp16")]
    for kind, k, sums, store in wanted:
        flags = FP16_SUMS if sums == "fp16" else {REDUCED.format("fp16"): False}
        long_product = Product("matmul", ("fp16", "fp16"), store, (SIDE, SIDE, k), flags)
        plan = {"accumulate": "fp16"} if sums == "fp16" else ONE_CHAIN
        name = f"{kind}, K = {k}: {sums.upper()} sums" + (f" stored as {store.upper()}" if store != sums else "")
        yield core_case(name, long_product, partial(factors, kind, k, p), plan)


# --- figures ----------------------------------------------------------------------------------------------------
HALVES = ("exact", *(way for way, (fmt, _) in WAYS.items() if fmt == "fp16"))
SHOWN = {way: f"{way}, emulated" if gpu else way for way, (_, gpu) in WAYS.items()}


def rates(ax: draw.Axes, r: Result) -> None:
    """What the bound beforehand is of the published one."""
    for drawn, gpu in zip(list(ax.lines), CORES, strict=True):
        ax.axhline(
            float(bounds.rate(unit(gpu, "fp32"))) * 2**24,
            color=drawn.get_color(),
            linewidth=1,
            linestyle=long_products.DOTS,
        )
    ax.axhline(1, color=draw.current().ink, linewidth=1.2)


E.figure(
    "stalls",
    line(of("trace", kind="positive", way=[*HALVES, FP32["H100"]]), x="terms", hue="way", names=SHOWN,
         xlabel="products added", ylabel="running sum", title="All positive: FP16 sums stall"),
    with_(line(of("fates", kind="positive", fmt="fp16", fate=[*FATES[1:]]).then(
                   "share", lambda x: 100 * x / x.sum("fate")),
               x=LENGTH, hue="fate", marked=True, ylim=(-2, 105), xlabel="place of the product in the sum (K)",
               ylabel="non-zero products (%)", title="One by one in FP16, more and more products have no effect"),
          along_k),
    size=(8, 8),
)  # fmt: skip
E.figure(
    "made_up",
    against_k("positive", {way: name for way, name in SHOWN.items() if "A100" not in way},
              "All positive: FP32 sums on Tensor Cores drift, too", ylim=(1e-10, 30)),
    with_(line(of("published_used", kind="swamped").then("worst", lambda x: x.max(EACH)), x=LENGTH, hue="way",
               marked=True, ylim=(0, 2.2), names=SHOWN, xlabel="K (dotted: the proved bound)",
               ylabel="worst error / (K 2⁻²⁴ Σ|a b|)", title="Worst cases exceed the bound of rounding to nearest"),
          rates, along_k),
    size=(8, 9),
)  # fmt: skip
E.figure(
    "real",
    *(against_k(kind, SHOWN, f"{kind.capitalize()} of a network", ylim=(1e-10, 30)) for kind in REAL[::2]),
    size=(8, 9.6),
)  # fmt: skip
