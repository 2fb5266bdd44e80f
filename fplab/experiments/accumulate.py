"""Sums that stop growing, what each order of the additions does about it, and bounds that hold.

Four series are summed in five formats. Errors are measured against the exact sum of the *rounded* terms, so that they
are those of the additions alone; all sums are multiples, below 2**53, of a common unit: float64 has them exactly.

Bounds are on the relative error of a sum of n non-negative terms, exact fractions; u = 2**-p. They hold to nearest even
(stochastic: in any rounding to a neighbour) without overflow; a subnormal sum is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .. import draw, numeric
from ..formats import get
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import program, stack
from ..words import say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, Sample, failed, measured, verdict
from .panels import dots, line, with_
from .quantities import Columns, Quantity, equal, in_columns, of

SERIES = ("harmonic", "ones", "0.1", "1e-4")
FORMATS = ("fp32", "fp16", "bf16", "e4m3", "e5m2")
ORDERS = ("sequential", "pairwise", "blocked", "kahan", "stochastic")
MEASURED = ("harmonic", "ones", "0.1")  # the series whose errors are measured
CURVES = tuple(itertools.product(MEASURED, FORMATS))
CHUNK = 1 << 19  # terms summed at a time

E = Experiment(
    "Where sums stall",
    "When does adding one more term change nothing, and what do other orders of the same additions save?", budget=4.0,
    # Powers of two: the most terms in formats of 32, 16 and 8 bits, and of a stochastic sum; so many of those; the
    # blocked order's block.
    full={"fp32": 24, "half": 18, "fp8": 11, "stochastic": 17, "seeds": 32, "block": 64},
    quick={"fp32": 20, "half": 16, "stochastic": 14, "seeds": 16},
)  # fmt: skip


def terms(series: str, first: int, count: int) -> np.ndarray:
    """Terms number ``first`` (from 1) and on, as float64, not yet rounded to a format."""
    if series == "harmonic":
        return 1.0 / np.arange(first, first + count, dtype=np.float64)
    return np.full(count, 1.0 if series == "ones" else float(series))


def rounded(series: str, fmt: str, first: int, count: int) -> np.ndarray:
    """The same terms in a format, to nearest even, as float32."""
    if series == "harmonic":
        return np.asarray(numeric.quantize(terms(series, first, count), fmt), np.float32)
    return np.full(count, numeric.quantize(terms(series, 1, 1), fmt)[0], np.float32)


def checkpoints(log2_last: int, per_octave: int) -> np.ndarray:
    """Sizes up to ``2**log2_last``: ``per_octave`` (1, 2, 4) equal steps from each power of two to the next."""
    sizes = [(1 << a) * (per_octave + m) // per_octave for a in range(log2_last) for m in range(per_octave)]
    return np.unique(np.array([*sizes, 1 << log2_last], np.int64))


REACH = checkpoints(22, 4)  # numbers of terms on the way to a stall


def until_stall(series: str, fmt: str, at: np.ndarray) -> tuple[float, int, float, np.ndarray]:
    """Add terms one by one until one changes nothing: the sum there, the last term that counts, the sum before it, and
    the sums of ``at[0] < at[1] < ...`` terms.

    The terms do not increase and rounding is monotone, so from then on none changes anything.
    """
    value, before, sums = 0.0, 0.0, np.empty(0)
    for first in range(1, 1 << 26, CHUNK):
        chunk = np.concatenate([[np.float32(value)], rounded(series, fmt, first, CHUNK)])
        partial = numeric.sum(chunk, fmt, running=True)
        sums = np.append(sums, partial[at[(at >= first) & (at < first + CHUNK)] - first + 1])
        same = np.flatnonzero(partial[1:] == partial[:-1])
        if same.size:
            end = int(same[0])
            value, before = float(partial[end]), float(partial[end - 1]) if end else before
            return value, first - 1 + end, before, np.append(sums, np.full(at.size - sums.size, value))
        value, before = float(partial[-1]), float(partial[-2])
    raise AssertionError(f"{series} in {fmt} still grows after {1 << 26} terms")


@E.measure("stall_value", "stall_last", "stall_before", "partial", axes={"series": SERIES, "format": FORMATS},
           dims=("size",), digested=True)  # fmt: skip
def stalls(p: Params, series: str, format: str) -> tuple[float, int, float, np.ndarray]:
    """Where a sequential sum stops: its value, the last term that changed it, the sum before, and sums on the way."""
    return until_stall(series, format, REACH)


@E.cache
def curve(p: Params, series: str, format: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Terms in a format, the numbers of them that are summed, and their exact sums."""
    n = 1 << {32: p.fp32, 16: p.half, 8: p.fp8}[get(format).bits]
    x = rounded(series, format, 1, n)
    prefix = np.cumsum(x.astype(np.float64))  # exact, as the claim exact_sums holds
    sizes = np.unique(np.maximum(checkpoints(p.fp32, 2) - 1, 1))  # a power of two would flatter the tree
    at = sizes[sizes <= n]
    at = at[prefix[at - 1] <= get(format).max / 2]  # the bounds hold without overflow
    return x, at, prefix[at - 1]


@E.measure("exact", axes={"series": MEASURED, "format": FORMATS, "terms": ...}, digested=True)
def exact_sum(p: Params, series: str, format: str) -> dict[int, float]:
    """The exact sums of so many rounded terms."""
    _, at, prefix = curve(p, series, format)
    return dict(zip(at.tolist(), prefix.tolist(), strict=True))


@E.measure("computed", axes={"series": MEASURED, "format": FORMATS, "order": ORDERS, "terms": ...}, dims=("seed",),
           digested=True)  # fmt: skip
def computed(p: Params, series: str, format: str, order: str) -> dict[int, np.ndarray]:
    """The sums in an order; stochastic ones seed by seed."""
    x, at, _ = curve(p, series, format)
    if order == "stochastic":
        at = at[at <= 1 << p.stochastic]
        rows = np.broadcast_to(x[: at[-1]], (p.seeds, int(at[-1])))
        key = CURVES.index((series, format))
        sums = numeric.sum(rows, format, rounding="stochastic", seed=key, running=True)[:, at - 1].T
    elif order in ("sequential", "kahan"):
        sums = numeric.sum(x, format, order, running=True)[at - 1, None]
    else:
        sums = np.array([[numeric.sum(x[:n], format, order, block=p.block)] for n in at])
    return dict(zip(at.tolist(), sums.astype(np.float64), strict=True))


# --- bounds of n terms, p bits and the blocked order's block -------------------------------------------------------
def sequential(n: int, p: int, block: int) -> Fraction:
    """(n - 1) u, for every n (Rump, Error estimation of floating-point summation and dot product, BIT 52, 2012)."""
    return Fraction(n - 1, 1 << p)


def pairwise(n: int, p: int, block: int) -> Fraction:
    """(1 + u)**ceil(log2 n) - 1: a term passes so many additions, each of which multiplies by 1 + d, |d| <= u."""
    return (1 + Fraction(1, 1 << p)) ** (n - 1).bit_length() - 1


def blocked(n: int, p: int, block: int) -> Fraction:
    """(1 + (b - 1) u) (1 + (m - 1) u) - 1: Rump's bound inside a block of b and over the m = ceil(n / b) sums."""
    u = Fraction(1, 1 << p)
    inside, over = min(block, n) - 1, -(-n // block) - 1
    return (1 + inside * u) * (1 + over * u) - 1


def kahan(n: int, p: int, block: int) -> Fraction | None:
    """u + (1 + u) e with e = (u + (n - 2) u**2) / (1 - (n - 2) u**2) (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.3), for terms that do not increase and u <= 1/8; None where that exceeds 1/4.

    Let S_k be the exact sums of k terms, s_k the computed ones, y_k = fl(x_k - c_{k-1}) = x_k - c_{k-1} + d_k and
    T_k = s_{k-1} + y_k.

    1. While |y_k| <= s_{k-1}, the two subtractions are exact (Dekker 1971), c_k = s_k - T_k and |c_k| <= u |T_k|. Then
       T_k = T_{k-1} + x_k + d_k, so T_n = S_n + d_2 + ... + d_n.
    2. |d_k| <= u (x_k + |c_{k-1}|), c_1 = 0 and |T_k| <= S_n + E, where E is the sum of all |d_k|. Hence
       E <= u S_n + (n - 2) u**2 (S_n + E), that is E <= e S_n, and |s_n - S_n| <= E + |c_n| <= E + u (S_n + E).
    3. The premise: y_2 = x_2 <= x_1 = s_1. For k >= 3, S_{k-1} >= 2 x_k, and s_{k-1} >= 3/4 S_{k-1} while the bound is
       at most 1/4, so |y_k| <= (1 + u) (2/3 + u) s_{k-1} < s_{k-1} for u <= 1/8.
    """
    if n == 1:
        return Fraction(0)
    u = Fraction(1, 1 << p)
    rest = 1 - (n - 2) * u * u
    if u > Fraction(1, 8) or rest <= 0:
        return None
    bound = u + (1 + u) * (u + (n - 2) * u * u) / rest
    return bound if bound <= Fraction(1, 4) else None


@lru_cache(maxsize=512)
def stochastic(n: int, p: int, block: int) -> Fraction:
    """(1 + 2 u)**(n - 1) - 1, certain; u sqrt(n) is expected (Connolly, Higham & Mary, SISC 43, 2021)."""
    return (1 + Fraction(1, 1 << (p - 1))) ** (n - 1) - 1


BOUNDS: dict[str, Callable[[int, int, int], Fraction | None]] = {
    bound.__name__: bound for bound in (sequential, pairwise, blocked, kahan, stochastic)
}


def as_float(bound: Fraction | None) -> float:
    """A bound for a drawing: NaN where there is none, and no more than 1e300."""
    return math.nan if bound is None else float(min(bound, Fraction(10**300)))


def errors(r: Result, **where: Any) -> Any:
    """Relative errors, exact before the division: of a series, format and order (terms, seed), without those that no
    sum has."""
    error = abs(r.computed - r.exact) / r.exact
    return error.sel(**where).dropna("terms", how="all").dropna("seed", how="all")


@E.table
def rows(r: Result) -> Columns:
    """A row for each error (of stochastic sums the root mean square) and bound; the stall of its sum beside it."""
    names = ("series", "format", "stops at", "first no-op term", "order", "terms", "relative error", "bound")
    table: list[tuple[Any, ...]] = []
    for (series, fmt), order in itertools.product(CURVES, ORDERS):
        at = {"series": series, "format": fmt}
        stop = float(r.stall_value.sel(at)), int(r.stall_last.sel(at)) + 1
        off = errors(r, **at, order=order)
        stochastic = order == "stochastic"
        mean = np.sqrt((np.ascontiguousarray(off.values) ** 2).mean(axis=1)) if stochastic else off.values[:, 0]
        for n, error in zip(off.terms.values.tolist(), mean.tolist(), strict=True):
            bound = as_float(BOUNDS[order](n, get(fmt).significand_bits, r.p.block))
            table.append((series, fmt, *stop, order, n, error, bound))
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
USED = 0.25  # of its bound, at the least, by the largest error of every order: a bound far too large proves little
LAW = (0.5, 4.0)  # root mean squares between which the largest of many stochastic errors is expected


@E.library("every sequential sum, and where it stalls, is numpy's and ml_dtypes' own", needs=["ml_dtypes"])
def stalls_of_libraries(r: Result) -> Iterator[Part]:
    import ml_dtypes

    types = (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    for series, (fmt, dtype) in itertools.product(SERIES, zip(FORMATS, types, strict=True)):
        last, value, before = (x.sel(series=series, format=fmt).item()
                               for x in (r.stall_last, r.stall_value, r.stall_before))  # fmt: skip
        got, partial = library_sums(series, dtype, last + 1, REACH)
        yield f"{series}, {fmt}", (before, value, value)[-len(got) :], got
        drawn = np.concatenate([partial, np.full(REACH.size - partial.size, value)])
        yield (f"{series}, {fmt}",
               r.partial.sel(series=series, format=fmt).values, drawn)  # fmt: skip


def library_sums(name: str, dtype: Any, count: int, at: np.ndarray) -> tuple[tuple[float, ...], np.ndarray]:
    """The last partial sums (three, if there are) of ``count`` terms in a library's own arithmetic; and those ``at``
    numbers of terms.
    """
    tail, parts = np.zeros(1, dtype), []
    for first in range(1, count + 1, CHUNK):
        x = terms(name, first, min(CHUNK, count + 1 - first))
        # ml_dtypes rounds float64 twice, through float32; that changes none of these terms, as the oracle's show.
        both = np.concatenate([tail[-1:], x.astype(dtype)])
        if dtype in (np.float16, np.float32):
            partial = np.add.accumulate(both, dtype=dtype)
        else:
            partial = both.copy()
            for k in range(1, both.size):
                partial[k] = partial[k - 1] + both[k]
        tail = np.concatenate([tail[-2:-1], partial])
        parts.append(partial[at[(at >= first) & (at < first + x.size)] - first + 1])
    return tuple(tail[-3:].astype(np.float64).tolist()), np.concatenate(parts).astype(np.float64)


E.claim(
    equal("folklore", "the first harmonic term without effect is number 513 in FP16 and 65 in BF16",
          of("stall_last", series="harmonic", format=["fp16", "bf16"]) + 1, [513, 65], evidence="proved"),
)  # fmt: skip


@E.proved("no error crosses its bound, one reaches a quarter: sequential, pairwise, blocked, Kahan, stochastic")
def bounds_hold(r: Result) -> Outcome:
    used, points = dict.fromkeys(ORDERS, 0.0), 0
    for (series, fmt), order in itertools.product(CURVES, ORDERS):
        want = r.exact.sel(series=series, format=fmt)
        got = (
            r.computed.sel(series=series, format=fmt, order=order).dropna("terms", how="all").dropna("seed", how="all")
        )
        for n, sums in zip(got.terms.values.tolist(), got.values, strict=True):
            bound = BOUNDS[order](n, get(fmt).significand_bits, r.p.block)
            if bound is None:
                continue
            exactly = float(want.sel(terms=n))
            worst = Fraction(float(np.abs(sums - exactly).max())) / Fraction(exactly)
            points += len(sums)
            if worst > bound:
                detail = say("{series} in {fmt}, {order}, {n} terms: error {error:.3g}, bound {bound:.3g}", n=n)
                return failed(detail.fill(series=series, fmt=fmt, order=order, error=float(worst), bound=float(bound)))
            if 0 < bound < 1:
                used[order] = max(used[order], float(worst / bound))
    detail = say("{n:,} errors, none above its bound; used at most: sequential {sequential:.2f}, "
                 "pairwise {pairwise:.2f}, blocked {blocked:.2f}, kahan {kahan:.2f}, stochastic {stochastic:.2f}",
                 n=points)  # fmt: skip
    return verdict(min(used.values()) >= USED, detail.fill(**used))


@E.library("the exact sums are those of math.fsum")
def exact_sums(r: Result) -> Iterator[Part]:
    for series, fmt in CURVES:
        x, _, _ = curve(r.p, series, fmt)
        last = r.exact.sel(series=series, format=fmt).dropna("terms")[-5:]
        want = [math.fsum(x[:n].astype(np.float64)) for n in last.terms.values.tolist()]
        yield f"{series}, {fmt}", last.values, want


@E.measured("the largest stochastic error is between a half and 4 times u sqrt(n)")
def stochastic_law(r: Result) -> Outcome:
    error = abs(r.computed.sel(order="stochastic") - r.exact)
    u = error.format.copy(data=[2.0 ** -get(fmt).significand_bits for fmt in FORMATS])
    ratio = error / (np.sqrt(error.terms) * u * r.exact)
    worst, n = ratio.max(["series", "format", "terms"]).values, int(ratio.notnull().sum())
    detail = say("the largest of {n:,} errors is {worst:.2f} u sqrt(n)", n=n, worst=worst.max())
    return measured(bool(LAW[0] <= worst.max() <= LAW[1]), detail, Sample(len(worst), float(worst.std(ddof=1)), LAW[1]))


# --- what a GPU must compute: the stalling sums one addition at a time, and sums of half tensors ----------------
STEPS = {"fp16": 2300, "bf16": 300, "fp32": 96}  # additions in a row: enough to pass every stall, in FP32 from nearby
STALLS_FP32 = {"harmonic": 2097151, "ones": 1 << 24, "0.1": 1 << 24, "1e-4": 1 << 24}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    for fmt in STEPS:
        given = {"start": fmt, "terms": fmt}
        yield program(f"running sums in {fmt}", partial(lanes, fmt), given, running, {"sums": fmt})
    for fmt in ("fp16", "bf16"):
        name = f"torch.sum of {fmt} is one rounding of the exact sum"
        yield program(name, partial(integers, fmt), {"x": fmt}, torch_sum, {"sum": fmt}, partial(rounded_sum, fmt))


def running(start: Any, terms: Any) -> dict[str, Any]:
    total, sums = start, []
    for k in range(terms.shape[1]):
        total = total + terms[:, k]
        sums.append(total)
    return {"sums": stack(sums, 1)}


def lanes(fmt: str) -> Arrays:
    """Starting sums (L,) and terms (L, K) as codes, a lane a series.

    FP16 and BF16 start at nothing. FP32 starts ``K/2`` additions before its stall (for 0.1 and 1e-4, 2**24 additions
    in), at what numpy's float32 additions give there.
    """
    starts, rows = [], []
    for name in SERIES:
        first = STALLS_FP32[name] - STEPS[fmt] // 2 if fmt == "fp32" else 0
        before = np.add.accumulate(terms(name, 1, first).astype(np.float32))[-1:] if first else [0.0]
        starts.append(numeric.encode(np.array(before, np.float64), fmt)[0])
        rows.append(numeric.encode(terms(name, first + 1, STEPS[fmt]), fmt))
    return {"start": np.array(starts), "terms": np.stack(rows)}


def integers(fmt: str) -> Arrays:
    """Integers, few and small enough that every partial sum is exact in FP32, one row a 4,096 ones.

    So the order, which differs between devices, cannot matter, and what is left is whether the accumulator is FP32: in
    half the ones would stall.
    """
    raw = philox_bits(20 + len(fmt), 63, 4096, dtype=np.uint16)
    values = (raw % 16).astype(np.float64) - np.arange(63)[:, None] % 8
    return {"x": np.asarray(numeric.encode(np.concatenate([np.ones((1, 4096)), values]), fmt))}


def torch_sum(x: Any) -> dict[str, Any]:
    """``torch.sum`` of half tensors: accumulated in FP32, rounded once."""
    return {"sum": x.sum(dim=1)}


def rounded_sum(fmt: str, x: np.ndarray) -> dict[str, np.ndarray]:
    """The exact sum, rounded once."""
    return {"sum": np.asarray(numeric.sum(x, fmt, accumulate="exact"))}


# --- figures ----------------------------------------------------------------------------------------------------
TITLES = {"harmonic": r"$\Sigma\,1/k$", "ones": r"$\Sigma\,1$", "0.1": r"$\Sigma\,0.1$", "1e-4": r"$\Sigma\,10^{-4}$"}


def dotted(ax: draw.Axes, x: np.ndarray, y: Any, color: str, label: str = "") -> None:
    """A dotted line for what is proved or exact."""
    ax.plot(x, y, color=color, linewidth=1.2, linestyle=(0, (1, 1.5)), label=label)


def logarithm(ax: draw.Axes, r: Result) -> None:
    """The exact harmonic sums, beside the legend's formats."""
    dotted(ax, REACH, np.log(REACH) + np.euler_gamma + 0.5 / REACH, draw.current().ink, "exact")
    ax.legend()


def error_panel(fmt: str, series: str) -> Any:
    """The relative errors of a series in a format by order; proven bounds, dotted, in their orders' colours."""

    def shown(r: Result) -> Any:
        error = errors(r, series=series, format=fmt)
        return error.where(error > 0)

    def bounds(ax: draw.Axes, r: Result) -> None:
        for i, order in enumerate(ORDERS):
            n = errors(r, series=series, format=fmt, order=order).terms.values
            bound = [as_float(BOUNDS[order](m, get(fmt).significand_bits, r.p.block)) for m in n.tolist()]
            dotted(ax, n, np.minimum(bound, 1e6), draw.look(i).color)

    title = f"{TITLES[series]} in {fmt.upper()}: errors, and proven bounds (dotted)"
    return with_(line(Quantity("error", shown, shown), x="terms", hue="order", log="xy", title=title,
                      xlim=(2, None), ylim=(1e-5, 4), names={"kahan": "Kahan"}, legend={"loc": "lower right"},
                      xlabel="number of terms $n$", ylabel="relative error"), bounds)  # fmt: skip


E.answer("a running sum of ones stops at {fp16:,.0f} in FP16 and {bf16:,.0f} in BF16; Kahan's sum goes on",
         fp16=of("stall_value", series="ones", format="fp16"),
         bf16=of("stall_value", series="ones", format="bf16"))  # fmt: skip
E.figure(
    "stalls",
    with_(line(of("partial", series="harmonic").then("sum", lambda x: x.assign_coords(size=REACH)), x="size",
               hue="format", log="x", ylim=(0, 17), xlabel="number of terms $n$", ylabel="sequential sum",
               title=r"$\Sigma\,1/k$ diverges, but not in floating point"), logarithm),
    dots(of("stall_last") + 1, y="series", hue="format", log="x", names=TITLES, xlabel="first term without effect",
         title="Where sequential sums stop"),
    size=(8, 8),
)  # fmt: skip
E.figure("orders", error_panel("fp16", "harmonic"), error_panel("bf16", "0.1"), size=(8, 9))
