"""Sums that stop growing, what each order of the additions does about it, and bounds that hold.

Four series are summed in five formats. Errors are measured against the exact sum of the *rounded* terms, so that they
are those of the additions alone; all of them are whole numbers of a common unit, so nothing about them is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...formats import get
from ...hardware.cases import Arrays, Case
from ..base import Columns, in_columns
from . import bounds, series
from .checks import CHECKS as CHECKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Where sums stall"
QUESTION = "When does adding one more term change nothing, and what do other orders of the same additions save?"
BUDGET = 8.0
FORMATS: tuple[str, ...] = ("fp32", "fp16", "bf16", "e4m3", "e5m2")
ORDERS: tuple[str, ...] = ("sequential", "pairwise", "blocked", "kahan", "stochastic")
MEASURED: tuple[str, ...] = ("harmonic", "ones", "0.1")  # the series whose errors are measured


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


QUICK = Params(fp32=20, half=16, fp8=11, stochastic=14, seeds=16)
DIGESTED: tuple[str, ...] = (
    "stall_value", "stall_last", "stall_before", "reach", "partial", "sizes", "unit", "exact", "computed", "stochastic"
)  # fmt: skip


def run(params: Params, tick: Callable[[float, str], None]) -> Arrays:
    """Stalls by (series, format); partial sums by (series, format, reach); errors' ingredients as int64 units.

    ``exact`` (series, format, size) and ``computed`` (series, format, order, size) count ``2**unit``; -1 where a size
    is beyond a format's. ``stochastic`` (series, format, seed, size) are the stochastic sums, one by one.
    """
    stall_value = np.zeros((len(series.SERIES), len(FORMATS)))
    stall_before = np.zeros(stall_value.shape)
    stall_last = np.zeros(stall_value.shape, np.int64)
    for i, name in enumerate(series.SERIES):
        for j, fmt in enumerate(FORMATS):
            tick(0.5 * (i * len(FORMATS) + j) / stall_value.size, f"{name} in {fmt} until it stalls")
            found = series.stall(name, get(fmt))
            stall_value[i, j], stall_last[i, j], stall_before[i, j] = found.value, found.last, found.before
    reach = series.checkpoints(22, 4)
    sizes = np.unique(np.maximum(series.checkpoints(params.fp32, 2) - 1, 1))  # a power of two would flatter the tree
    shape = (len(MEASURED), len(FORMATS))
    arrays: Arrays = {
        "stall_value": stall_value,
        "stall_last": stall_last,
        "stall_before": stall_before,
        "reach": reach,
        "partial": np.array(
            [
                [series.sampled(s, get(f), reach, int(stall_last[i, j])) for j, f in enumerate(FORMATS)]
                for i, s in enumerate(series.SERIES)
            ]
        ),
        "sizes": sizes,
        "unit": np.zeros(shape, np.int64),
        "exact": np.full((*shape, sizes.size), -1, np.int64),
        "computed": np.full((*shape, len(ORDERS) - 1, sizes.size), -1, np.int64),
        "stochastic": np.full((*shape, params.seeds, sizes.size), -1, np.int64),
    }
    for i, name in enumerate(MEASURED):
        for j, fmt in enumerate(FORMATS):
            tick(0.6 + 0.4 * (i * len(FORMATS) + j) / (shape[0] * shape[1]), f"{name} in {fmt} in every order")
            _measure(arrays, i, j, name, fmt, params)
    tick(1.0, "done")
    return arrays


def _measure(arrays: Arrays, i: int, j: int, name: str, fmt: str, params: Params) -> None:
    """Fill in one series in one format."""
    from ... import sums

    form, sizes = get(fmt), arrays["sizes"]
    n = 1 << params.largest(fmt)
    x = series.rounded(name, form, 1, n)
    u = series.unit(name, fmt, n)
    prefix = np.cumsum(series.in_units(x, u))  # exact
    at = sizes[sizes <= n]
    at = at[prefix[at - 1] * 2.0**u <= form.max / 2]  # the bounds hold without overflow
    arrays["unit"][i, j] = u
    arrays["exact"][i, j, : at.size] = prefix[at - 1]
    partial = {order: sums.sum(x, form, order, running=True)[at - 1] for order in ("sequential", "kahan")}
    for order in ("pairwise", "blocked"):
        partial[order] = np.array([sums.sum(x[:m], form, order, block=params.block) for m in at])
    for order, found in partial.items():
        arrays["computed"][i, j, ORDERS.index(order), : at.size] = series.in_units(found, u)
    few = at[at <= 1 << params.stochastic]
    rows = np.broadcast_to(x[: few[-1]], (params.seeds, int(few[-1])))
    random = sums.sum(rows, form, rounding="stochastic", seed=i * len(FORMATS) + j, running=True)
    arrays["stochastic"][i, j, :, : few.size] = series.in_units(random[:, few - 1], u)


def sums_of(arrays: Arrays, i: int, j: int, order: str) -> np.ndarray:
    """The computed sums of one series, format and order: (size,), stochastic (seed, size)."""
    found = arrays["stochastic"][i, j] if order == "stochastic" else arrays["computed"][i, j, ORDERS.index(order)]
    return np.asarray(found)


def errors(arrays: Arrays, name: str, fmt: str, order: str) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and relative errors (stochastic: of every seed) of one curve; float64, exact before the one division."""
    i, j = MEASURED.index(name), FORMATS.index(fmt)
    want = arrays["exact"][i, j]
    got = sums_of(arrays, i, j, order)
    there = (want >= 0) & (got.reshape(-1, want.size)[0] >= 0)
    return arrays["sizes"][there], np.abs(got[..., there] - want[there]) / want[there]


def plot(arrays: Arrays, params: Params) -> Figure:
    """The running sums, the stalls, and errors with their bounds."""
    from .figure import draw

    return draw(arrays, params)


def table(arrays: Arrays, params: Params) -> Columns:
    """One row per error (of the random sums the root mean square) and bound; the stall of its sum beside it."""
    names = ("series", "format", "stops at", "first no-op term", "order", "terms", "relative error", "bound")
    rows: list[tuple[Any, ...]] = []
    for name in MEASURED:
        for j, fmt in enumerate(FORMATS):
            i = series.SERIES.index(name)
            stop = (float(arrays["stall_value"][i, j]), int(arrays["stall_last"][i, j]) + 1)
            for order in ORDERS:
                n, error = errors(arrays, name, fmt, order)
                error = np.sqrt((error**2).mean(axis=0)) if order == "stochastic" else error
                for m, e in zip(n.tolist(), error.tolist(), strict=True):
                    bound = bounds.BOUNDS[order](m, get(fmt).significand_bits, params.block)
                    rows.append((name, fmt, *stop, order, m, e, bounds.as_float(bound)))
    return in_columns(names, rows)


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The same stalls on a device, one addition at a time, and torch's own sum of half tensors."""
    from .cases import cases

    return cases()
