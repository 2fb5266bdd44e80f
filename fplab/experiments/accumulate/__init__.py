"""Sums that stop growing, what each order of the additions does about it, and bounds that hold.

Four series are summed in five formats. Errors are measured against the exact sum of the *rounded* terms, so that they
are those of the additions alone; all of them are whole numbers of a common unit, so nothing about them is rounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ... import draw, exact, numeric
from ...formats import get
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.programs import program, stack
from ...hardware.tensors import bits, tensor
from ...words import say
from ..base import Claims, Columns, Digested, Experiment, Tick, in_columns, sheet
from ..outcomes import Outcome, Sample, absent, failed, measured, passed, verdict
from . import series

FORMATS = ("fp32", "fp16", "bf16", "e4m3", "e5m2")
ORDERS = ("sequential", "pairwise", "blocked", "kahan", "stochastic")
MEASURED = ("harmonic", "ones", "0.1")  # the series whose errors are measured
CURVES = tuple((i, j) for i in range(len(MEASURED)) for j in range(len(FORMATS)))


@dataclass(frozen=True)
class Params:
    """Sizes are powers of two. ``fp32``, ``half``, ``fp8``: terms summed at most in formats of that width;
    ``stochastic``: terms of a stochastic sum at most, ``seeds``: how many of them; ``block``: of the blocked order.
    """

    fp32: int = 24
    half: int = 18
    fp8: int = 11
    stochastic: int = 17
    seeds: int = 32
    block: int = 64

    def largest(self, fmt: str) -> int:
        """The most terms summed in a format, as a power of two."""
        return {32: self.fp32, 16: self.half, 8: self.fp8}[get(fmt).bits]


@dataclass(frozen=True)
class Result:
    """Stalls by (series, format): the sum there (float64), the last term that counts (int64) and the sum before it.

    ``partial`` (series, format, reach), float64: the sequential sums of ``reach`` terms. Of the errors the ingredients,
    int64: ``exact`` (series, format, size) and ``computed`` (series, format, order, size) count ``2**unit``; -1 where a
    size is beyond a format's. ``stochastic`` (series, format, seed, size) are the stochastic sums, one by one.
    """

    params: Params
    stall_value: Digested
    stall_last: Digested
    stall_before: Digested
    reach: Digested
    partial: Digested
    sizes: Digested
    unit: Digested
    exact: Digested
    computed: Digested
    stochastic: Digested

    def sums(self, i: int, j: int, order: str) -> np.ndarray:
        """The computed sums of one series, format and order, in units: (size,), stochastic (seed, size)."""
        return np.asarray(self.stochastic[i, j] if order == "stochastic" else self.computed[i, j, ORDERS.index(order)])

    def errors(self, i: int, j: int, order: str) -> tuple[np.ndarray, np.ndarray]:
        """Sizes and relative errors (stochastic: of every seed) of a curve; float64, exact before the division."""
        want, got = self.exact[i, j], self.sums(i, j, order)
        there = (want >= 0) & (got.reshape(-1, want.size)[0] >= 0)
        return self.sizes[there], np.abs(got[..., there] - want[there]) / want[there]

    def bounds(self, j: int, order: str, sizes: np.ndarray) -> list[float]:
        """The bounds of an order's relative errors in a format, for a drawing: NaN where there is none."""
        p, block = get(FORMATS[j]).significand_bits, self.params.block
        return [series.as_float(series.BOUNDS[order](n, p, block)) for n in sizes.tolist()]


def rms(errors: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt((errors**2).mean(axis=0)))


def run(params: Params, tick: Tick) -> Result:
    places = list(itertools.product(series.SERIES, FORMATS))
    reach = series.checkpoints(22, 4)
    stalls, partial = [], []
    for i, (name, fmt) in enumerate(places):
        tick(0.5 * i / len(places), f"{name} in {fmt} until it stalls")
        stalls.append(series.stall(name, get(fmt)))
        partial.append(series.sampled(name, get(fmt), reach, stalls[-1].last))
    shape = (len(series.SERIES), len(FORMATS))
    sizes = np.unique(np.maximum(series.checkpoints(params.fp32, 2) - 1, 1))  # a power of two would flatter the tree
    unit = np.zeros((len(MEASURED), len(FORMATS)), np.int64)
    exact = np.full((*unit.shape, sizes.size), -1, np.int64)
    computed = np.full((*unit.shape, len(ORDERS) - 1, sizes.size), -1, np.int64)
    stochastic = np.full((*unit.shape, params.seeds, sizes.size), -1, np.int64)
    for k, (i, j) in enumerate(CURVES):
        tick(0.6 + 0.4 * k / len(CURVES), f"{MEASURED[i]} in {FORMATS[j]} in every order")
        form, n = get(FORMATS[j]), 1 << params.largest(FORMATS[j])
        x = series.rounded(MEASURED[i], form, 1, n)
        u = unit[i, j] = series.unit(MEASURED[i], form.name, n)
        prefix = np.cumsum(series.in_units(x, u))  # exact
        at = sizes[sizes <= n]
        at = at[prefix[at - 1] * 2.0**u <= form.max / 2]  # the bounds hold without overflow
        exact[i, j, : at.size] = prefix[at - 1]
        found = {order: numeric.sum(x, form, order, running=True)[at - 1] for order in ("sequential", "kahan")}
        for order in ("pairwise", "blocked"):
            found[order] = np.array([numeric.sum(x[:m], form, order, block=params.block) for m in at])
        for order, values in found.items():
            computed[i, j, ORDERS.index(order), : at.size] = series.in_units(values, u)
        few = at[at <= 1 << params.stochastic]
        terms = np.broadcast_to(x[: few[-1]], (params.seeds, int(few[-1])))
        random = numeric.sum(terms, form, rounding="stochastic", seed=k, running=True)
        stochastic[i, j, :, : few.size] = series.in_units(random[:, few - 1], u)
    return Result(
        params,
        np.array([s.value for s in stalls]).reshape(shape),
        np.array([s.last for s in stalls]).reshape(shape),
        np.array([s.before for s in stalls]).reshape(shape),
        reach,
        np.array(partial).reshape(*shape, reach.size),
        sizes, unit, exact, computed, stochastic,
    )  # fmt: skip


def rows(result: Result) -> Columns:
    """One row per error (of the random sums the root mean square) and bound; the stall of its sum beside it."""
    names = ("series", "format", "stops at", "first no-op term", "order", "terms", "relative error", "bound")
    rows: list[tuple[Any, ...]] = []
    for (i, j), order in itertools.product(CURVES, ORDERS):
        stop = (float(result.stall_value[i, j]), int(result.stall_last[i, j]) + 1)
        n, errors = result.errors(i, j, order)
        errors = rms(errors) if order == "stochastic" else errors
        for m, error, bound in zip(n.tolist(), errors.tolist(), result.bounds(j, order, n), strict=True):
            rows.append((MEASURED[i], FORMATS[j], *stop, order, m, error, bound))
    return in_columns(names, rows)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()
USED = 0.25  # of its bound, at the least, by the largest error of every order: a bound far too large proves little
LAW = (0.5, 4.0)  # root mean squares between which the largest of many stochastic errors is expected


@CLAIMS.library("every sequential sum, and where it stalls, is numpy's and ml_dtypes' own")
def stalls_of_libraries(result: Result) -> Outcome:
    try:
        import ml_dtypes
    except ImportError:
        return absent(say("{library} is not installed", library="ml_dtypes"))
    types = (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    compared = 0
    for (i, name), (j, fmt) in itertools.product(enumerate(series.SERIES), enumerate(FORMATS)):
        last, value = int(result.stall_last[i, j]), float(result.stall_value[i, j])
        want = (float(result.stall_before[i, j]), value, value)
        got, partial = library_sums(name, types[j], last + 1, result.reach)
        if got != want[-len(got) :]:
            said = say("{series} in {fmt}: the sums up to {n} terms end in {got}, not {want}", series=name, fmt=fmt)
            return failed(said.fill(n=last + 1, got=got, want=want))
        drawn = np.concatenate([partial, np.full(result.reach.size - partial.size, value)])
        if (drawn != result.partial[i, j]).any():
            return failed(say("{series} in {fmt}: sums on the way are {got}", series=name, fmt=fmt, got=drawn.tolist()))
        compared += last + 1
    return passed(say("{n:,} additions", n=compared))


def library_sums(name: str, dtype: Any, count: int, at: np.ndarray) -> tuple[tuple[float, ...], np.ndarray]:
    """The last partial sums (three, if there are) of ``count`` terms in a library's own arithmetic; and those ``at``
    numbers of terms.
    """
    tail, found = np.zeros(1, dtype), []
    for first in range(1, count + 1, series.CHUNK):
        x = series.terms(name, first, min(series.CHUNK, count + 1 - first))
        # ml_dtypes rounds float64 twice, through float32; that changes none of these terms, as the oracle's show.
        both = np.concatenate([tail[-1:], x.astype(dtype)])
        if dtype in (np.float16, np.float32):
            partial = np.add.accumulate(both, dtype=dtype)
        else:
            partial = both.copy()
            for k in range(1, both.size):
                partial[k] = partial[k - 1] + both[k]
        tail = np.concatenate([tail[-2:-1], partial])
        found.append(partial[at[(at >= first) & (at < first + x.size)] - first + 1])
    return tuple(tail[-3:].astype(np.float64).tolist()), np.concatenate(found).astype(np.float64)


@CLAIMS.proved("the first harmonic term without effect is number 513 in FP16 and 65 in BF16")
def folklore(result: Result) -> Outcome:
    i = series.SERIES.index("harmonic")
    first = {f: int(result.stall_last[i, FORMATS.index(f)]) + 1 for f in ("fp16", "bf16")}
    return verdict(first == {"fp16": 513, "bf16": 65}, say("first harmonic term without effect: {first}", first=first))


@CLAIMS.proved("no error crosses its bound, one reaches a quarter: sequential, pairwise, blocked, Kahan, stochastic")
def bounds_hold(result: Result) -> Outcome:
    used = dict.fromkeys(ORDERS, 0.0)
    points = 0
    for (i, j), order in itertools.product(CURVES, ORDERS):
        p = get(FORMATS[j]).significand_bits
        for place, n in enumerate(result.sizes.tolist()):
            want = int(result.exact[i, j, place])
            got = result.sums(i, j, order)[..., place].reshape(-1).tolist()
            bound = series.BOUNDS[order](n, p, result.params.block) if want >= 0 <= got[0] else None
            if bound is None:
                continue
            worst = max(abs(s - want) for s in got)
            points += len(got)
            if worst * bound.denominator > want * bound.numerator:
                said = say("{series} in {fmt}, {order}, {n} terms: error {error:.3g}, bound {bound:.3g}", n=n)
                said = said.fill(series=MEASURED[i], fmt=FORMATS[j], order=order)
                return failed(said.fill(error=worst / want, bound=float(bound)))
            if 0 < bound < 1:
                used[order] = max(used[order], float(Fraction(worst, want) / bound))
    said = say("{n:,} errors, none above its bound; used at most: sequential {sequential:.2f}, "
               "pairwise {pairwise:.2f}, blocked {blocked:.2f}, kahan {kahan:.2f}, stochastic {stochastic:.2f}",
               n=points)  # fmt: skip
    return verdict(min(used.values()) >= USED, said.fill(**used))


@CLAIMS.library("the exact sums are those of math.fsum")
def exact_sums(result: Result) -> Outcome:
    compared = 0
    for i, j in CURVES:
        there = np.flatnonzero(result.exact[i, j] >= 0)
        x = series.rounded(MEASURED[i], get(FORMATS[j]), 1, int(result.sizes[there[-1]])).astype(np.float64)
        for place in there[-5:].tolist():
            n, units = int(result.sizes[place]), int(result.exact[i, j, place])
            want, got = math.fsum(x[:n]), math.ldexp(units, int(result.unit[i, j]))
            if got != want:
                said = say("{series} in {fmt}, {n} terms: {got} against {want}", series=MEASURED[i], fmt=FORMATS[j])
                return failed(said.fill(n=n, got=got, want=want))
            compared += 1
    return passed(say("{n} sums of up to {terms:,} terms", n=compared, terms=int(result.sizes[-1])))


@CLAIMS.measured("the largest stochastic error is between a half and 4 times u sqrt(n)")
def stochastic_law(result: Result) -> Outcome:
    p = np.array([get(fmt).significand_bits for fmt in FORMATS])[:, None]
    want, got = result.exact, result.stochastic
    there = (want >= 0) & (got[:, :, 0] >= 0)
    unit = np.sqrt(result.sizes) * 2.0**-p * want
    ratio = np.abs(got - want[:, :, None]) / np.where(there, unit, np.inf)[:, :, None]
    worst, seeds = ratio.max(axis=(0, 1, 3)), result.params.seeds
    said = say("the largest of {n:,} errors is {worst:.2f} u sqrt(n)", n=seeds * int(there.sum()), worst=worst.max())
    return measured(bool(LAW[0] <= worst.max() <= LAW[1]), said, Sample(seeds, float(worst.std(ddof=1)), LAW[1]))


# --- what a GPU must compute: the stalling sums one addition at a time, and sums of half tensors ----------------
STEPS = {"fp16": 2300, "bf16": 300, "fp32": 96}  # additions in a row: enough to pass every stall, in FP32 from nearby
STALLS_FP32 = {"harmonic": 2097151, "ones": 1 << 24, "0.1": 1 << 24, "1e-4": 1 << 24}


def cases(params: Params) -> Iterator[Case]:
    for fmt in STEPS:
        given = {"start": fmt, "terms": fmt}
        yield program(f"running sums in {fmt}", partial(lanes, fmt), given, running, {"sums": fmt})
    for fmt in ("fp16", "bf16"):
        compute, emulate = partial(torch_sum, fmt), partial(rounded_sum, fmt)
        name = f"torch.sum of {fmt} is one rounding of the exact sum"
        yield Case(name, partial(integers, fmt), compute, emulate, {"sum": fmt})


def running(start: Any, terms: Any) -> dict[str, Any]:
    total, sums = start, []
    for k in range(terms.shape[1]):
        total = total + terms[:, k]
        sums.append(total)
    return {"sums": stack(sums, 1)}


def codes(values: np.ndarray, fmt: str) -> np.ndarray:
    """Codes of float64 values, rounded to nearest even once: numpy's casts, and the oracle where numpy has none."""
    if fmt == "bf16":
        distinct, place = np.unique(values, return_inverse=True)
        return np.array([exact.round_to(exact.from_float(v), fmt)[0] for v in distinct.tolist()], np.uint16)[place]
    dtype, word = (np.float16, np.uint16) if fmt == "fp16" else (np.float32, np.uint32)
    return np.asarray(values).astype(dtype).view(word)


@lru_cache(maxsize=4)
def _lanes(fmt: str) -> tuple[np.ndarray, np.ndarray]:
    starts, rows = [], []
    for name in series.SERIES:
        first = STALLS_FP32[name] - STEPS[fmt] // 2 if fmt == "fp32" else 0
        before = np.float32(0)
        for k in range(1, first + 1, series.CHUNK):
            chunk = series.terms(name, k, min(series.CHUNK, first + 1 - k)).astype(np.float32)
            before = np.add.accumulate(np.concatenate([[before], chunk]), dtype=np.float32)[-1]
        starts.append(codes(np.array([before], np.float64), fmt)[0])
        rows.append(codes(series.terms(name, first + 1, STEPS[fmt]), fmt))
    return np.array(starts), np.stack(rows)


def lanes(fmt: str) -> Arrays:
    """Starting sums (L,) and terms (L, K) as codes, a lane a series.

    FP16 and BF16 start at nothing. FP32 starts ``K/2`` additions before its stall (for 0.1 and 1e-4, 2**24 additions
    in), at what numpy's float32 additions give there.
    """
    start, terms = _lanes(fmt)
    return {"start": start.copy(), "terms": terms.copy()}


def integers(fmt: str) -> Arrays:
    """Integers, few and small enough that every partial sum is exact in FP32, one row a 4,096 ones.

    So the order, which differs between devices, cannot matter, and what is left is whether the accumulator is FP32: in
    half the ones would stall.
    """
    raw = philox_bits(20 + len(fmt), 63 * 4096, np.uint16).reshape(63, 4096)
    values = (raw % 16).astype(np.float64) - np.arange(63)[:, None] % 8
    return {"x": codes(np.concatenate([np.ones((1, 4096)), values]).ravel(), fmt).reshape(64, 4096)}


def torch_sum(fmt: str, given: Arrays, device: str) -> Arrays:
    """``torch.sum`` of half tensors: accumulated in FP32, rounded once."""
    return {"sum": bits(tensor(given["x"], fmt, device).sum(dim=1))}


def rounded_sum(fmt: str, given: Arrays, meta: Meta) -> Arrays:
    """The exact sum, rounded once."""
    found = numeric.sum(numeric.decode(given["x"], fmt), fmt, accumulate="exact")
    return {"sum": np.asarray(numeric.encode(found, fmt))}


# --- figures ----------------------------------------------------------------------------------------------------
PANELS = (("fp16", "harmonic"), ("bf16", "0.1"), ("fp32", "0.1"), ("e4m3", "0.1"))
TITLES = {"harmonic": r"$\Sigma\,1/k$", "ones": r"$\Sigma\,1$", "0.1": r"$\Sigma\,0.1$", "1e-4": r"$\Sigma\,10^{-4}$"}
DOTS = (0, (1, 1.5))
HOLLOW: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markersize": 4, "linestyle": "none"}
BAND: dict[str, Any] = {"alpha": 0.14, "linewidth": 0}


def draw_harmonic(ax: draw.Axes, result: Result) -> None:
    n, i = result.reach, series.SERIES.index("harmonic")
    true = np.log(n) + np.euler_gamma + 0.5 / n
    ax.set_xscale("log", base=2)
    ax.plot(n, true, color=draw.current().muted, linewidth=1, linestyle=DOTS)
    ends = [(float(true[-1]), "exact", draw.current().muted)]
    for j, fmt in enumerate(FORMATS):
        style, last, value = draw.look_of_format(fmt), int(result.stall_last[i, j]), float(result.stall_value[i, j])
        ax.plot(n, result.partial[i, j], **style.line)
        ax.plot([last], [value], marker=style.marker, color=style.color, markersize=8, linestyle="none")
        ends.append((value, f"{fmt.upper()}: {value:.6g}", style.color))
        place, ha = ((-12, 6), "right") if fmt == "fp32" else ((7, -12), "left")
        draw.note(ax, f"last term that counts: {last:,}", (last, value), place, ha=ha, color=style.color)
    ax.set(xlim=(1, n[-1]), ylim=(0, 17), xlabel="number of terms $n$", ylabel="sequential sum",
           title=r"$\Sigma\,1/k$ diverges, but not in floating point")  # fmt: skip
    draw.label_ends(ax, ends)


def draw_stalls(ax: draw.Axes, result: Result) -> None:
    ax.set_xscale("log", base=2)
    for (j, fmt), i in itertools.product(enumerate(FORMATS), range(len(series.SERIES))):
        style, y = draw.look_of_format(fmt), i + (j - 2) * 0.17
        first, value = int(result.stall_last[i, j]) + 1, float(result.stall_value[i, j])
        ax.plot([0.7, first], [y, y], color=style.color, linewidth=1.2, alpha=0.55)
        ax.plot([first], [y], marker=style.marker, color=style.color, linestyle="none")
        text, left = f"{fmt.upper()}: {first:,}  ({value:,.8g})", first < 1 << 16
        draw.note(ax, text, (first, y), (8, 0) if left else (-8, 7), ha="left" if left else "right", va="center")
    ax.set_yticks(range(len(series.SERIES)), [TITLES[s] for s in series.SERIES])
    ax.set(ylim=(len(series.SERIES) - 0.5, -0.55), xlim=(0.7, 2**27))
    ax.set_xticks([2.0**k for k in range(0, 27, 6)])
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="first term without effect  (the sum there)", title="Where sequential sums stop")


def orders(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 9)
    for ax, (fmt, name) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        draw_errors(ax, result, MEASURED.index(name), FORMATS.index(fmt))
    figure.legend(handles=legend(result.params), loc="outside lower center", ncols=3)
    return figure


def draw_errors(ax: draw.Axes, result: Result, i: int, j: int) -> None:
    p = get(FORMATS[j]).significand_bits
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    n, _ = result.errors(i, j, "sequential")
    ax.plot(n, 2.0**-p * np.sqrt(n), color=draw.current().muted, linewidth=1.2)
    least = 1.0
    for at, order in enumerate(ORDERS):
        m, error = (a[..., 2:] for a in result.errors(i, j, order))  # the first two sums are exact
        style = draw.look(at)
        if order == "stochastic":
            low, high = error.min(axis=0), error.max(axis=0)
            error = rms(error)
            ax.fill_between(m, np.maximum(low, error / 10), high, color=style.color, **BAND)
        bound = np.minimum(result.bounds(j, order, m), 1e6)
        ax.plot(m, bound, color=style.color, linewidth=1.2, linestyle=DOTS)
        shown = error > 0
        least = min(least, float(error[shown].min(initial=1.0)))
        ax.plot(m[shown], error[shown], **style.marked, markevery=2)
        edge, hollow = np.full(m[~shown].size, 0.02 + 0.018 * at), {"marker": style.marker, "color": style.color}
        ax.plot(m[~shown], edge, transform=ax.get_xaxis_transform(), **HOLLOW | hollow)
    ax.set(xlim=(n[2], n[-1]), ylim=(least / 20, 4), xlabel="number of terms $n$", ylabel="relative error",
           title=f"{TITLES[MEASURED[i]]} in {FORMATS[j].upper()}:  $u = 2^{{-{p}}}$")  # fmt: skip


def legend(params: Params) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = {"kahan": "Kahan", "blocked": f"blocked by {params.block}", "stochastic": "stochastic, r.m.s."}
    ink, muted = draw.current().ink, draw.current().muted
    return [
        *(Line2D([], [], label=names.get(order, order), **draw.look(i).marked) for i, order in enumerate(ORDERS)),
        Line2D([], [], color=ink, linewidth=1.2, linestyle=DOTS, label="proven bound, in its order's colour"),
        Line2D([], [], color=muted, linewidth=1.2, label=r"$u\sqrt{n}$, expected of stochastic"),
        Patch(color=draw.look(ORDERS.index("stochastic")).color, label=f"its range in {params.seeds} runs", **BAND),
        Line2D([], [], color=muted, label="no error at all", **HOLLOW),
    ]


EXPERIMENT = Experiment(
    title=say("Where sums stall"),
    question=say("When does adding one more term change nothing, and what do other orders of the same additions save?"),
    budget=4.0, full=Params(), quick=Params(fp32=20, half=16, fp8=11, stochastic=14, seeds=16), result=Result,
    run=run, rows=rows, claims=CLAIMS, cases=cases,
    figures=(sheet("stalls", (8, 9), (2, 1), draw_harmonic, draw_stalls), orders),
)  # fmt: skip
