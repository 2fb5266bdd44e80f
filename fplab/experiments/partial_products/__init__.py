"""Partial products: what FP16 accumulation loses, what FP32 keeps, and how exactly each GPU's Tensor Core adds.

Products of FP16 matrices of length K = 16 to 65,536, on random, all-positive, ill-conditioned, worst-case and real
operands. Everything that is compared is an integer: exact results, errors and bounds are whole numbers of one tiny
unit (:mod:`fplab.exact_products`).

After Micikevicius et al. 2018 (arXiv 1710.03740), section 3.3, which keeps partial products in FP32; Fasi et al. 2021
(PeerJ CS 7:e330) and Blanchard et al. 2020 (SISC 42(3)) on what Tensor Cores do with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from ... import draw, numeric
from ... import exact_products as whole
from ...formats import get
from ...hardware.cases import Case
from ...hardware.core_cases import SIDE, core_case
from ...hardware.products import FP16_SUMS, ONE_CHAIN, REDUCED, Product
from ...words import CLAUSE, COMMA, joined, say
from .. import long_products
from ..base import Claims, Columns, Digested, Experiment, Tick, in_columns
from ..long_products import DOTS, FIRST, REAL, Array, Compared, along_k, listed, sizes
from ..outcomes import Outcome, Sample, failed, measured, passed, same_bits, verdict
from ..statistics import superior
from . import bounds
from .accumulators import (
    ACCUMULATORS,
    BLOCKED,
    CORES,
    FATES,
    FORMATS,
    NAMES,
    SYNTHETIC,
    TARGETS,
    UNITS,
    alike,
    fates,
    index,
    operands,
    running,
    values,
)

KINDS = SYNTHETIC + REAL
TRACED = ("positive", "activations × gradients")  # of these the running sums are kept
OFF_HALF = 0.02  # the mean of over a thousand lost parts, each between 0 and its bound, lies so near to half of it
DIGITS = 3.0  # by FP32's significand, which has 13 bits more, nearly four digits
WORSE = ((1.0, 2.0**-11, 2.0**-12), (1.0, 1.0, 2.0**-12))  # an FP16 sum of these on H100 is exact to half an ulp


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B, so that a kind has ``rows**2`` products. ``log2_last``: the longest K.

    ``points``: of a traced running sum.
    """

    rows: int = 8
    log2_last: int = 16
    points: int = 512


# --- the run ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Products(Compared):
    """``clamped`` (M, N, S): the sums of magnitudes of the operands clamped to 2**-14. ``results`` by accumulator.

    ``walked``: those of the blocked ones by their definition (blocked, M, N, S), and their ``bound`` by block as limbs
    (blocked, M, N, S, limb). ``fates`` (format, S, fate) counts the products. ``trace``: running sums of the first
    product (curve, point): K, the exact ones (in float64, for drawing), and every accumulator's; empty if not traced.
    """

    clamped: Digested
    fates: Digested
    walked: Digested
    bound: Digested
    trace: np.ndarray

    @cached_property
    def blocked(self) -> Array:
        """The bounds by block as integers (blocked, M, N, S)."""
        return whole.unpack(self.bound)

    def bound_of(self, i: int) -> Array:
        """The bound of one accumulator at every length, rounded down: by block, or one by one."""
        if i in BLOCKED:
            return np.asarray(self.blocked[BLOCKED.index(i)])
        p = get(ACCUMULATORS[i].fmt).significand_bits
        return self.rounded_down(lambda k, s: bounds.one_by_one(k, p, s), self.magnitude)

    def beforehand(self, i: int) -> Array:
        """The bound of a Tensor Core's FP32 sums from A and B alone, rounded down."""
        rate = bounds.rate(ACCUMULATORS[i].model)
        return self.rounded_down(lambda k, s: k * rate * s, self.clamped)

    def published(self) -> Array:
        """K 2**-24 sum|a b|, the published bound of a unit that rounds to nearest, rounded down."""
        return self.rounded_down(lambda k, s: k * s >> 24, self.magnitude)

    def largest(self, i: int) -> tuple[Array, Array, Array]:
        """Of accumulator ``i`` at every length, the largest over the products: error and bound as shares of sum|a b|,
        and error as a share of its bound. Quotients of exact integers, each float64 (S,).
        """
        error, bound = self.errors[i], self.bound_of(i)
        pairs = ((error, self.magnitude), (bound, self.magnitude), (error, bound))
        error_share, bound_share, used = (whole.ratio(*pair).max(axis=(0, 1)) for pair in pairs)
        return error_share, bound_share, used


@dataclass(frozen=True)
class Result:
    params: Params
    kinds: Mapping[str, Products]


def run(params: Params, tick: Tick) -> Result:
    """Every kind: what depends on its products alone, and its chains walked by definition."""
    parts: dict[str, dict[str, Array]] = {}
    for i, kind in enumerate(KINDS):
        tick(0.1 + 0.6 * i / len(KINDS), f"{kind}: every accumulator")
        parts[kind] = multiplied(*operands(kind, params.rows, params.log2_last))
    for i, batch in enumerate(batches(parts)):
        tick(min(0.7 + 0.1 * i, 0.95), f"bounds of {', '.join(batch)}")
        for kind, found in bounded({kind: (parts[kind]["a"], parts[kind]["b"]) for kind in batch}, params).items():
            parts[kind] |= found
    tick(1.0, "done")
    return Result(params, {kind: Products(**found) for kind, found in parts.items()})


def multiplied(a: Array, b: Array) -> dict[str, Array]:
    """What depends on the product alone: exact sums, the results of every accumulator, and fates."""
    x, y, at = values(a), values(b), sizes(a.shape[1].bit_length() - 1)
    pairs = {"exact": (x, y), "magnitude": (np.abs(x), np.abs(y)), "clamped": (bounds.clamped(x), bounds.clamped(y))}
    found = {name: whole.products(*pair, at) for name, pair in pairs.items()}
    x, y = x.astype(np.float32), y.astype(np.float32)
    sums = {fmt: np.stack([running(row, y, fmt) for row in x]) for fmt in FORMATS}
    results = [
        long_products.on_gpu(x, y, one.gpu, one.fmt, at) if one.gpu else sums[one.fmt][..., at - 1]
        for one in ACCUMULATORS
    ]
    fate = np.stack([fates(x, y, fmt, at, sums[fmt]) for fmt in FORMATS])
    return {"a": a, "b": b, **found, "results": np.stack(results), "fates": fate}


def batches(parts: Mapping[str, Mapping[str, Array]], most: int = 128) -> list[list[str]]:
    """Kinds of one length, some together, since walking a few chains takes as long as walking one."""
    found: list[list[str]] = []
    rows, length = most + 1, 0
    for kind, part in sorted(parts.items(), key=lambda item: item[1]["a"].shape[1]):
        (m, k), n = part["a"].shape, len(part["b"])
        if k != length or rows + m * n > most:
            found.append([])
            rows, length = 0, k
        found[-1].append(kind)
        rows += m * n
    return found


def bounded(pairs: Mapping[str, tuple[Array, Array]], params: Params) -> dict[str, dict[str, Array]]:
    """The chains of these kinds, codes of one length, walked by definition, their bounds, and traces."""
    pairs = {kind: (values(a), values(b)) for kind, (a, b) in pairs.items()}
    terms = (bounds.terms(*pair) for pair in pairs.values())
    products, exponents = (np.concatenate(part) for part in zip(*terms, strict=True))
    k = products.shape[1]
    lengths = sizes(k.bit_length() - 1)
    at = np.arange(1, params.points + 1) * FIRST * max(k // FIRST // params.points, 1)
    at = at[at <= k]
    walked = np.zeros((len(BLOCKED), len(products), lengths.size), np.float32)
    bound = np.zeros((*walked.shape, whole.LIMBS), np.int64)
    traces = np.zeros((len(BLOCKED), len(products), at.size))
    for gpu in CORES:
        places = [BLOCKED.index(index(fmt, gpu)) for fmt in FORMATS]
        models = [ACCUMULATORS[BLOCKED[i]].model for i in places]
        chains = bounds.walk(products, exponents, models)
        bound[places] = bounds.by_block(chains, exponents, models, lengths)
        length = models[0].length
        walked[places] = chains.totals[lengths // length].transpose(1, 2, 0)
        traces[places] = chains.totals[at // length].transpose(1, 2, 0)
    found: dict[str, dict[str, Array]] = {}
    start = 0
    for kind, (x, y) in pairs.items():
        rows = slice(start, start + len(x) * len(y))
        drawn = trace(x, y, products[start], traces[:, start], at) if kind in TRACED else np.empty((0, 0))
        parts = (part[:, rows].reshape(len(BLOCKED), len(x), len(y), *part.shape[2:]) for part in (walked, bound))
        found[kind] = dict(zip(("walked", "bound", "trace"), (*parts, drawn), strict=True))
        start = rows.stop
    return found


def trace(x: Array, y: Array, products: Array, blocked: Array, at: Array) -> Array:
    """The running sums of the first product; see :class:`Products`."""
    found = np.zeros((2 + len(ACCUMULATORS), at.size))
    found[0], found[1] = at, np.cumsum(products)[at - 1]
    for fmt in FORMATS:
        row = running(x[0].astype(np.float32), y[:1].astype(np.float32), fmt)[0]
        found[2 + index(fmt)] = row[at - 1]
    found[[2 + i for i in BLOCKED]] = blocked
    return found


def rows(result: Result) -> Columns:
    """A row for each kind, length and accumulator: the largest error and bound, as shares of sum|a b|."""
    names = ("operands", "K", "accumulator", "largest error", "largest bound", "error / bound")
    found: list[tuple[Any, ...]] = []
    for (kind, one), (i, way) in itertools.product(result.kinds.items(), enumerate(NAMES)):
        shares = (part.tolist() for part in one.largest(i))
        found += [(kind, k, way.en, *row) for k, *row in zip(one.lengths.tolist(), *shares, strict=True)]
    return in_columns(names, found)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.library("numpy's float16 and float32 give the same sums one by one")
def libraries(result: Result) -> Outcome:
    compared = 0
    for (kind, one), fmt in itertools.product(result.kinds.items(), FORMATS):
        dtype = {"fp16": np.float16, "fp32": np.float32}[fmt]
        x, y = values(one.a).astype(dtype), values(one.b).astype(dtype)
        with np.errstate(under="ignore"):
            sums = [np.add.accumulate(row * y, axis=1, dtype=dtype)[:, one.lengths - 1] for row in x]
        want = np.stack(sums).astype(np.float32)
        outcome = same_bits(one.results[index(fmt)].view(np.uint32), want.view(np.uint32), "fp32")
        if not outcome.holds:
            return failed(say("{kind} in {fmt}: {detail}", kind=kind, fmt=fmt, detail=outcome.detail))
        compared += len(x) * y.size
    for kind in TRACED:
        one = result.kinds[kind]
        both, place, step = np.intersect1d(one.lengths, one.trace[0].astype(np.int64), return_indices=True)
        if (one.trace[2:, step] != one.results[:, 0, 0, place]).any():
            said = say("{kind}: the running sums that are drawn are others, at K = {lengths}", kind=kind)
            return failed(said.fill(lengths=both.tolist()))
    return passed(say("{n:,} multiplications and additions", n=compared))


@CLAIMS.proved("No error is above its bound, by block or one by one, and each way uses a sixteenth of it")
def bounds_hold(result: Result) -> Outcome:
    return long_products.within_bounds(result.kinds, NAMES)


@CLAIMS.proved("FP32 sums: K ((L-1) 2^-F + 2^-23) / L holds beforehand")
def beforehand(result: Result) -> Outcome:
    """For FP32 results: error <= bound by block <= bound beforehand."""
    compared = 0
    for (kind, one), gpu in itertools.product(result.kinds.items(), CORES):
        i = index("fp32", gpu)
        most = one.beforehand(i)
        if (one.errors[i] > most).any() or (one.bound_of(i) > most).any():
            said = say("{kind}, {gpu}: an error or a bound by block is above K ((L-1) 2^-F + 2^-23) / L * s", kind=kind)
            return failed(said.fill(gpu=gpu))
        compared += most.size
    return passed(say("{n:,} errors and bounds by block", n=compared))


@CLAIMS.proved("Blocks of 4 FP16 products aligned to 23 bits on V100, 8 to 24 on A100, 16 to 25 on H100: every bit")
def blocks(result: Result) -> Outcome:
    compared = 0
    for kind, one in result.kinds.items():
        for way, got, want in zip(BLOCKED, one.results[list(BLOCKED)], one.walked, strict=True):
            outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
            if not outcome.holds:
                return failed(say("{kind}: {detail}", kind=joined((kind, NAMES[way]), COMMA), detail=outcome.detail))
            compared += got.size
    return passed(say("{n:,} sums, every bit", n=compared))


@CLAIMS.proved("These bounds are sharp: worst cases reach 99% of them")
def sharp(result: Result) -> Outcome:
    one, found = result.kinds["swamped"], {}
    for row, gpu in enumerate(TARGETS):
        i, at = index("fp32", gpu), (row, slice(None), slice(-1, None))
        shares = [whole.ratio(one.errors[i][at], bound[at]).min() for bound in (one.bound_of(i), one.beforehand(i))]
        found[gpu] = float(min(shares))
    said = say("at K = {k:,}: {shares}", k=one.lengths[-1], shares=listed(found, ".4f"))
    return verdict(all(0.99 < share <= 1 for share in found.values()), said)


@CLAIMS.proved("The bound K 2^-24, for rounding to nearest, fails on V100 and A100, not on H100")
def published(result: Result) -> Outcome:
    """Whether an FP32 error exceeds it, by GPU, over all kinds without subnormal operands."""
    made_up = [result.kinds[kind] for kind in SYNTHETIC]
    limits = [one.published() for one in made_up]
    most = {}
    for gpu in CORES:
        errors = (one.errors[index("fp32", gpu)] for one in made_up)
        most[gpu] = max(float(whole.ratio(e, limit).max()) for e, limit in zip(errors, limits, strict=True))
    crossed = {gpu: share > 1 for gpu, share in most.items()}
    said = say("largest error as a share of it: {shares}", shares=listed(most, ".3f"))
    return verdict(crossed == {"V100": True, "A100": True, "H100": False}, said)


@CLAIMS.measured("Random positive sums drift down by half the bound, more than FP32 one by one errs")
def drift(result: Result) -> Outcome:
    """On positive operands: every FP32 result falls short, by about half the bound, further than one by one.

    The share of the bound is taken on the diagonal: products of other rows of A and of B, so independent draws.
    """
    one = result.kinds["positive"]
    alone = one.errors[index("fp32")][..., -1]
    relative, shares = {}, []
    for gpu in CORES:
        i = index("fp32", gpu)
        if (one.summed[i] > one.exact).any():
            return failed(say("{gpu}: a truncated sum is above the exact one", gpu=gpu))
        if not (one.errors[i][..., -1] > alone).all():
            return failed(say("{gpu}: rounding one by one is further off", gpu=gpu))
        shares.append(np.diagonal(whole.ratio(one.errors[i], one.bound_of(i))[..., -1]))
        relative[gpu] = whole.ratio(one.errors[i], one.exact)[..., -1].mean()
    off = np.abs(np.stack(shares) - 0.5).max(axis=0)
    said = say("mean relative error at K = {k:,}: {cores}; FP32 one by one {alone:.2e}", k=one.lengths[-1])
    said = said.fill(cores=listed(relative, ".2e"), alone=whole.ratio(alone, one.exact[..., -1]).mean())
    return measured(bool((off < OFF_HALF).all()), said, Sample(off.size, float(off.std(ddof=1)), OFF_HALF))


@CLAIMS.measured("Random signs: truncating sums, as A100 and H100 do, costs more than V100's alignment")
def more_bits(result: Result) -> Outcome:
    """Random signs: root mean squares of the FP32 errors over the three longest K, as shares of sum|a b|.

    Of each row of B, a draw: the smaller of A100's and H100's over V100's.
    """
    one = result.kinds["random"]
    found = {
        gpu: long_products.rms_by_draw(whole.ratio(one.errors[index("fp32", gpu)], one.magnitude)) for gpu in UNITS
    }
    rms: dict[Any, float] = {gpu or say("one by one"): float(np.sqrt((v**2).mean())) for gpu, v in found.items()}
    more = np.log2(np.minimum(found["A100"], found["H100"]))
    said = say("r.m.s. {errors}; in powers of 2", errors=listed(rms, ".1e"))
    return superior(more, np.log2(found["V100"]), 0.0, said)


@CLAIMS.proved("An FP32 sum stored once as FP16 is worse than an FP16 sum by twice its own error at most")
def stored_once(result: Result) -> Outcome:
    """An FP32 sum cast once to FP16, and FP16 sums, for every kind and unit.

    The cast is the FP16 number nearest to the FP32 sum, so it is no further from the exact result than any other FP16
    number, but for twice the error of the FP32 sum. More cannot be said: H100 adds three products better in FP16.
    """
    compared, right, total = 0, 0, 0
    for (kind, one), gpu in itertools.product(result.kinds.items(), UNITS):
        i = index("fp32", gpu)
        cast = np.asarray(numeric.quantize(one.results[i], "fp16"))
        once, sums = np.abs(whole.of_values(cast) - one.exact), one.errors[index("fp16", gpu)]
        if (once > sums + 2 * one.errors[i]).any():
            said = say("{kind}, {unit}: a sum stored once is further off than the FP16 sum", kind=kind)
            return failed(said.fill(unit=gpu or say("one by one")))
        compared += once.size
        if kind not in ("ill-conditioned", "swamped"):
            right += int((cast == np.asarray(numeric.quantize(whole.floats(one.exact), "fp16"))).sum())
            total += cast.size
    x, y = (np.array([v], np.float32) for v in WORSE)
    worse = [numeric.quantize(long_products.on_gpu(x, y, "H100", fmt, np.array([3])), "fp16") for fmt in FORMATS]
    sums_in_half, stored = (float(np.asarray(v)[0, 0, 0]) for v in worse)
    exact = float(x[0].astype(np.float64) @ y[0])
    said = say("{n:,} products; random, positive, real: {right:.1%} are the FP16 number nearest to the exact result; "
               "one that is worse stored once: {once!r}, summed in FP16 {sums!r}")  # fmt: skip
    said = said.fill(n=compared, right=right / total, once=stored, sums=sums_in_half)
    return verdict(abs(stored - exact) > abs(sums_in_half - exact), said)


@CLAIMS.library("What FP16 stores as zero or adds without effect, numpy does: zero is what is at most 2^-25")
def lost_products(result: Result) -> Outcome:
    texts = []
    for kind, one in result.kinds.items():
        x, y = values(one.a), values(one.b)
        segments = np.split(np.arange(x.shape[1]), one.lengths[:-1])
        for fmt, dtype, got in zip(FORMATS, (np.float16, np.float32), one.fates, strict=True):
            want = np.zeros_like(got)
            for row in x:
                products = row * y
                with np.errstate(under="ignore"):
                    stored = products.astype(dtype)
                sums = np.pad(np.add.accumulate(stored, axis=1, dtype=dtype), ((0, 0), (1, 0)))
                fate = np.select([products == 0, stored == 0, sums[:, 1:] == sums[:, :-1]], [0, 1, 2], 3)
                want += [np.bincount(fate[:, at].ravel(), minlength=4) for at in segments]
            if (got != want).any():
                said = say("{kind} in {fmt}: {got}, numpy {want}", kind=kind, fmt=fmt)
                return failed(said.fill(got=got.sum(axis=0).tolist(), want=want.sum(axis=0).tolist()))
        if kind in TRACED:
            narrow, single = one.fates.sum(axis=1).tolist()
            shares = {"zero": narrow[1], "lost": narrow[2], "single": single[2]}
            said = say("{kind}: {zero:.1%} stored as zero, {lost:.1%} added without effect (FP32: {single:.1%})")
            texts.append(said.fill(kind=NAMED[kind], **{k: v / sum(narrow[1:]) for k, v in shares.items()}))
    return passed(joined(texts, CLAUSE))


NAMED = {"positive": say("positive"), "activations × gradients": say("activations × gradients")}


@CLAIMS.measured("Ill-conditioned: FP16 sums keep no digit, FP32 sums at least three more")
def cancellation(result: Result) -> Outcome:
    """The worst relative error of sums one by one over rows of A and lengths, in FP16 and in FP32, of each row of B,
    a draw.
    """
    one = result.kinds["ill-conditioned"]
    size = np.abs(one.exact)
    narrow, single = (whole.ratio(one.errors[index(f)], size).max(axis=(0, 2)) for f in FORMATS)
    condition = whole.ratio(one.magnitude, size)
    said = say("condition {low:.0e} to {high:.0e}; worst relative errors of FP16 {half:.2g} and more, of FP32 "
               "{single:.1e} at most", low=condition.min(), high=condition.max())  # fmt: skip
    said = said.fill(half=narrow.min(), single=single.max())
    return failed(said) if narrow.min() < 1 else superior(np.log10(narrow), np.log10(single), DIGITS, said)


# --- what a GPU must multiply -----------------------------------------------------------------------------------
def factors(kind: str, k: int, params: Params) -> tuple[Array, Array]:
    """The leading K of a kind's operands, as codes."""
    a, b = operands(kind, params.rows, params.log2_last)
    return a[:, :k].copy(), b[:, :k].copy()


def cases(params: Params) -> Iterator[Case]:
    """FP32 sums of every made up kind at two lengths, of two kinds at the last; the two ways to an FP16 result."""
    last = 1 << params.log2_last
    wanted = [(kind, k, "fp32", "fp32") for kind in SYNTHETIC for k in (64, 4096) if k <= last]
    wanted += [(kind, last, "fp32", "fp32") for kind in TRACED]
    wanted += [("positive", min(4096, last), sums, "fp16") for sums in ("fp32", "fp16")]
    for kind, k, sums, store in wanted:
        flags = FP16_SUMS if sums == "fp16" else {REDUCED.format("fp16"): False}
        one = Product("matmul", ("fp16", "fp16"), store, (SIDE, SIDE, k), flags)
        plan = {"accumulate": "fp16"} if sums == "fp16" else ONE_CHAIN
        name = f"{kind}, K = {k}: {sums.upper()} sums" + (f" stored as {store.upper()}" if store != sums else "")
        yield core_case(name, one, partial(factors, kind, k, params), plan)


# --- figures ----------------------------------------------------------------------------------------------------
DASHES = (0, (4, 1.5))
TITLES = {"random": "Random signs", "positive": "All positive", "ill-conditioned": "Ill-conditioned",
          "swamped": "Its worst case", **{kind: kind.capitalize() for kind in REAL}}  # fmt: skip


def stalls(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 7.6, 2, 2)
    draw_running(panels[0, 0], result.kinds["positive"])
    draw_drift(panels[0, 1], result.kinds["positive"])
    for ax, kind in zip(panels[1], TRACED, strict=True):
        draw_fates(ax, kind, result.kinds[kind])
    figure.legend(handles=legend(bound=False), loc="outside lower center", ncols=2)
    return figure


def made_up(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 7.8, 2, 2)
    for ax, kind in zip(panels.flat[:3], SYNTHETIC, strict=False):
        draw_errors(ax, kind, result.kinds[kind])
    draw_crossing(panels[1, 1], result.kinds["swamped"])
    figure.legend(handles=legend(), loc="outside lower center", ncols=2)
    return figure


def real(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 7.8, 2, 2)
    for ax, kind in zip(panels.flat[:3], REAL, strict=True):
        draw_errors(ax, kind, result.kinds[kind])
    draw_tightness(panels[1, 1], result)
    figure.legend(handles=legend(), loc="outside lower center", ncols=2)
    return figure


def style(i: int) -> dict[str, Any]:
    """How an accumulator is drawn: a colour and a marker for who adds, dashed and hollow for FP16."""
    one = ACCUMULATORS[i]
    own, narrow = draw.look(UNITS.index(one.gpu)), one.fmt == "fp16"
    return {
        "color": own.color, "marker": own.marker, "linestyle": DASHES if narrow else "-",
        "markerfacecolor": draw.current().background if narrow else own.color, "linewidth": 1.5, "markersize": 4.5,
    }  # fmt: skip


def draw_running(ax: draw.Axes, one: Products) -> None:
    k, exact, *sums = one.trace
    ax.plot(k, exact, color=draw.current().muted, linewidth=4, alpha=0.5)
    ends = [(float(exact[-1]), "exact, FP32", draw.current().muted)]
    for gpu in UNITS:
        own = style(index("fp16", gpu)) | {"marker": "", "linewidth": 1.8}
        ax.plot(k, sums[index("fp16", gpu)], **own)
        ends.append((float(sums[index("fp16", gpu)][-1]), gpu or "one by one", own["color"]))
    ax.plot(k, sums[index("fp32", "H100")], **style(index("fp32", "H100")) | {"marker": "", "linewidth": 1.2})
    ax.set(xlim=(0, k[-1]), ylim=(0, None))
    ticks = np.linspace(0, k[-1], 5)
    ax.set_xticks(ticks, [f"{tick / 1024:g}k" if tick else "0" for tick in ticks])
    ax.set(xlabel="products added", ylabel="running sum", title="FP16 sums stall")
    draw.label_ends(ax, ends)


def draw_drift(ax: draw.Axes, one: Products) -> None:
    """The mean error of FP32 sums of positive products: truncation has a direction, rounding has none."""
    along_k(ax, one.lengths, 1e-8, 2e-3)
    ends = []
    for j, gpu in enumerate(UNITS):
        mean = whole.ratio(one.errors[index("fp32", gpu)], one.magnitude).mean(axis=(0, 1))
        ax.plot(one.lengths, mean, **draw.look(j).marked)
        ends.append((float(mean[-1]), gpu or "one by one", draw.look(j).color))
    ax.axhline(2.0**-11, color=draw.current().muted, linewidth=1, linestyle=DOTS)
    draw.note(ax, "half a unit of FP16", (20, 2.0**-11), (0, 4), color=draw.current().muted)
    ax.set(ylabel="mean relative error", title="FP32 sums drift: truncation")
    draw.label_ends(ax, ends)


def draw_fates(ax: draw.Axes, kind: str, one: Products) -> None:
    counts = one.fates[0][:, 1:].astype(np.float64)
    share = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    theme = draw.current()
    edges = np.append(FIRST // 2, one.lengths)
    bottom = np.zeros(len(share))
    for j, (color, alpha) in enumerate(((theme.series[1], 1.0), (theme.series[6], 0.45), (theme.series[0], 0.85))):
        ax.bar(edges[:-1], share[:, j], np.diff(edges), bottom, align="edge", color=color, alpha=alpha,
               edgecolor=theme.background, linewidth=0.4)  # fmt: skip
        bottom += share[:, j]
    along_k(ax, edges)
    ax.set_ylim(0, 100)
    ax.grid(False)
    ax.set(xlabel="place of the product in the sum", ylabel="non-zero products (%)",
           title=f"FP16: {TITLES[kind].lower()}")  # fmt: skip
    inside: dict[str, Any] = {"fontsize": 10, "fontweight": "bold"}
    ax.text(2**4, 82, FATES[3], color=theme.background, **inside)
    ax.text(edges[-1] * 0.8, 30, FATES[2].replace(" ", "\n"), color=theme.ink, ha="right", **inside)
    if share[0, 0] > 5:
        ax.annotate(FATES[1], (2**3.6, share[0, 0] / 2), (2**4, 64), color=theme.background, **inside,
                    arrowprops={"arrowstyle": "->", "color": theme.background})  # fmt: skip


def draw_errors(ax: draw.Axes, kind: str, one: Products) -> None:
    """The largest error of every accumulator against K, with its bound; relative to the result where it cancels."""
    cancels = kind == "ill-conditioned"
    along_k(ax, one.lengths, *((1e-7, 1e6) if cancels else (1e-9, 30)))
    for i, _ in enumerate(ACCUMULATORS):
        own = style(i)
        error, bound, _ = one.largest(i)
        if cancels:
            pair, size = (one.errors[i], one.bound_of(i)), np.abs(one.exact)
            error, bound = (whole.ratio(x, size).max(axis=(0, 1)) for x in pair)
        shown = error > 0
        ax.plot(one.lengths[shown], error[shown], **own)
        ax.plot(one.lengths, np.minimum(bound, 1e9), color=own["color"], linewidth=1, linestyle=DOTS)
    ax.set_title(TITLES[kind])
    if cancels:
        ax.axhline(1, color=draw.current().muted, linewidth=1)
    ax.set_ylabel("largest |error| / " + ("|exact|" if cancels else "Σ|a b|"))


def draw_tightness(ax: draw.Axes, result: Result) -> None:
    along_k(ax, result.kinds["random"].lengths, 0.02, 1.5)
    ends = []
    for j, (kind, one) in enumerate(result.kinds.items()):
        used, own = one.largest(index("fp32", "H100"))[2], draw.look(j)
        ax.plot(one.lengths[used > 0], used[used > 0], **own.marked, markersize=4, linewidth=1.4)
        name = TITLES[kind].lower().replace("activations", "act.").replace("gradients", "grad.")
        ends.append((float(used[-1]), name, own.color))
    ax.axhline(1, color=draw.current().ink, linewidth=1, linestyle=DOTS)
    ax.set(ylabel="largest error / bound", title="How tight H100's FP32 bound is")
    draw.label_ends(ax, ends)


def draw_crossing(ax: draw.Axes, one: Products) -> None:
    along_k(ax, one.lengths)
    ends = [(1.0, "K 2⁻²⁴", draw.current().ink)]
    for row, gpu in enumerate(TARGETS):
        i, own = index("fp32", gpu), draw.look(UNITS.index(gpu))
        used = whole.ratio(one.errors[i][row], one.published()[row]).max(axis=0)
        rate = float(bounds.rate(ACCUMULATORS[i].model)) * 2**24
        ax.plot(one.lengths, used, **own.marked)
        ax.axhline(rate, color=own.color, linewidth=1, linestyle=DOTS)
        ends.append((rate, f"{gpu}: {rate:g}", own.color))
    ax.axhline(1, color=draw.current().ink, linewidth=1.2)
    ax.set(ylim=(0, 2.2), ylabel="worst error / (K 2⁻²⁴ Σ|a b|)", title="Worst cases, and rounding's bound")
    draw.label_ends(ax, ends)


def legend(bound: bool = True) -> list[Any]:
    from matplotlib.lines import Line2D

    ink, found = draw.current().ink, []
    for j, gpu in enumerate(UNITS):
        others = [other for other in alike(gpu) if other != gpu] if gpu else []
        label = f"{gpu}, emulated" + (f" (and {', '.join(others)})" if others else "") if gpu else "one by one"
        found.append(Line2D([], [], color=draw.look(j).color, marker=draw.look(j).marker, label=label))
    found.append(Line2D([], [], color=ink, linestyle="-", label="FP32 sums"))
    found.append(Line2D([], [], color=ink, linestyle=DASHES, marker="o", markerfacecolor="none", label="FP16 sums"))
    found += [Line2D([], [], color=ink, linewidth=1, linestyle=DOTS, label="proved bound")] if bound else []
    return found


EXPERIMENT = Experiment(
    title=say("Partial products"),
    question=say("What is lost when partial products are kept in FP16, and what does each GPU's FP32 accumulation "
                 "keep?"),
    budget=4.0, full=Params(), quick=Params(rows=4, log2_last=14, points=256), result=Result, run=run, rows=rows,
    claims=CLAIMS, figures=(stalls, made_up, real), cases=cases, kinds=dict.fromkeys(SYNTHETIC, Products),
)  # fmt: skip
