"""Hopper adds FP8 products with 13 fraction bits: how much that loses over a long k, and what promotion saves.

DeepSeek-V3's report (arXiv 2412.19437, section 3.5.2) found "around 14 bits" in the accumulator of the H800, an error
of "nearly 2%" for two random matrices at K = 4096, and adds the partial sums to FP32 registers every 128 products. The
report states neither the distribution nor what the error is relative to; here both are varied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Arrays, Case
from ..base import Columns, in_columns
from .checks import CHECKS as CHECKS
from .operands import DEFINITIONS, DISTRIBUTIONS, RMS, SERIES, draw, exactly, numbers, product, relative

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "FP8 products in 14 bits"
QUESTION = "How much does Hopper's short accumulator lose, and does adding to FP32 every 128 products repair it?"
BUDGET = 8.0
K = 4096  # the report's
INTERVALS: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B^T in the sweep over K, which ends at ``2**longest``. ``sides``: rows at K = 4096."""

    rows: int = 256
    longest: int = 14
    sides: tuple[int, ...] = (64, 512, 1024, 4096)


QUICK = Params(rows=64, longest=13, sides=(64, 256, 512))
DIGESTED: tuple[str, ...] = ("sizes", "a", "b", "results", "exact", "promoted", "running", "running_exact")


def run(params: Params, tick: Callable[[float, str], None]) -> Arrays:
    """Products by K, promotion interval and size.

    ``a``, ``b`` (distribution, row, k): E4M3 codes. ``results`` (distribution, series, K, row, row): FP32 bits of the
    product over the first K; ``exact`` (distribution, K, row, row), float64 without error. ``promoted`` (distribution,
    interval, row, row), at K = 4096. ``running`` (distribution, 2, step): one element after every 32 products, in one
    chain and promoted every 128, with ``running_exact``. ``defined`` (distribution, side, chain or promoted,
    definition): relative errors at K = 4096.
    """
    sizes = 1 << np.arange(5, params.longest + 1)
    shape, last = (len(DISTRIBUTIONS), params.rows, int(sizes[-1])), len(DISTRIBUTIONS)
    arrays: Arrays = {
        "sizes": sizes,
        "a": np.empty(shape, np.uint8),
        "b": np.empty(shape, np.uint8),
        "results": np.empty((last, len(SERIES), sizes.size, params.rows, params.rows), np.uint32),
        "exact": np.empty((last, sizes.size, params.rows, params.rows)),
        "promoted": np.empty((last, len(INTERVALS), params.rows, params.rows), np.uint32),
        "running": np.empty((last, 2, K // 32), np.uint32),
        "running_exact": np.empty((last, K // 32)),
        "defined": np.empty((last, len(params.sides), 2, len(DEFINITIONS))),
    }
    for i, distribution in enumerate(DISTRIBUTIONS):
        tick(i / last, f"{distribution}: K up to {int(sizes[-1]):,}")
        _sweep(arrays, i, distribution, params)
        tick((i + 0.5) / last, f"{distribution}: what a relative error is")
        _define(arrays["defined"][i], distribution, params)
    tick(1.0, "done")
    return arrays


def _sweep(arrays: Arrays, i: int, distribution: str, params: Params) -> None:
    """Everything of one distribution but ``defined``."""
    for key, name in enumerate("ab"):
        arrays[name][i] = draw(distribution, 2 * i + key, params.rows, int(arrays["sizes"][-1]))
    a, b = (np.ascontiguousarray(numbers(arrays[name][i])) for name in "ab")
    for j, k in enumerate(arrays["sizes"].tolist()):
        x, y = a[:, :k], b[:, :k]
        arrays["exact"][i, j] = exactly(x, y)
        for s, how in enumerate(SERIES.values()):
            arrays["results"][i, s, j] = product(x, y, **how)
    for j, interval in enumerate(INTERVALS):
        arrays["promoted"][i, j] = product(a[:, :K], b[:, :K], "H100", interval)
    begun = np.arange(K) < 32 * np.arange(1, K // 32 + 1)[:, None]
    x, y = np.where(begun, a[0, :K], np.float32(0)), b[:1, :K]
    for j, promote in enumerate((None, 128)):
        arrays["running"][i, j] = product(x, y, "H100", promote)[:, 0]
    arrays["running_exact"][i] = exactly(x, y)[:, 0]


def _define(out: np.ndarray, distribution: str, params: Params) -> None:
    """Relative errors at K = 4096 by every definition, for growing matrices."""
    key = 100 + 2 * list(DISTRIBUTIONS).index(distribution)
    a, b = (numbers(draw(distribution, key + side, params.sides[-1], K)) for side in (0, 1))
    want = exactly(a, b)
    for p, promote in enumerate((None, 128)):
        got = product(a, b, "H100", promote)
        for j, side in enumerate(params.sides):
            out[j, p] = [relative(got[:side, :side], want[:side, :side], definition) for definition in DEFINITIONS]


def plot(arrays: Arrays, params: Params) -> Figure:
    """Errors against K, where 2% lies, how a sum falls behind, and promotion intervals."""
    from .figure import draw as drawing

    return drawing(arrays, params)


def table(arrays: Arrays, params: Params) -> Columns:
    """One row per error: by K and accumulator, by promotion interval, and by definition and size at K = 4096."""
    names = ("operands", "accumulator", "K", "results", "definition", "relative error")
    rows: list[tuple[Any, ...]] = []
    for i, distribution in enumerate(DISTRIBUTIONS):
        for (s, series), (j, k) in ((s, j) for s in enumerate(SERIES) for j in enumerate(arrays["sizes"].tolist())):
            for definition in DEFINITIONS:
                error = relative(arrays["results"][i, s, j], arrays["exact"][i, j], definition)
                rows.append((distribution, series, k, params.rows**2, definition, error))
        want = arrays["exact"][i, arrays["sizes"].tolist().index(K)]
        for j, interval in enumerate(INTERVALS):
            error = relative(arrays["promoted"][i, j], want)
            rows.append((distribution, f"H100, promoted every {interval}", K, params.rows**2, RMS, error))
        for (j, side), (p, series) in ((j, p) for j in enumerate(params.sides) for p in enumerate(list(SERIES)[:2])):
            for definition, error in zip(DEFINITIONS, arrays["defined"][i, j, p].tolist(), strict=True):
                rows.append((distribution, series, K, side**2, definition, error))
    return in_columns(names, rows)


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The same products through torch's FP8 product, with and without fast accumulation."""
    from .cases import cases

    return cases()
