"""Partial products: what FP16 accumulation loses, what FP32 keeps, and how exactly each GPU's Tensor Core adds.

Products of FP16 matrices of length K = 16 to 65,536, on random, all-positive, ill-conditioned, worst-case and real
operands. Everything that is compared is an integer: exact results, errors and bounds are whole numbers of one tiny
unit (:mod:`fplab.exact_products`).

After Micikevicius et al. 2018 (arXiv 1710.03740), section 3.3, which keeps partial products in FP32; Fasi et al. 2021
(PeerJ CS 7:e330) and Blanchard et al. 2020 (SISC 42(3)) on what Tensor Cores do with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays, Case
from ..base import Columns, in_columns
from . import operands
from .accumulators import ACCUMULATORS, BLOCKED, CORES, FORMATS, index
from .checks import CHECKS as CHECKS
from .checks import TRACED
from .exactly import of_kind, shares_of
from .network import REAL
from .operands import FIRST, SYNTHETIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Partial products"
QUESTION = "What is lost when partial products are kept in FP16, and what does each GPU's FP32 accumulation keep?"
BUDGET = 8.0
KINDS = SYNTHETIC + REAL


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B, so that a kind has ``rows**2`` products. ``log2_last``: the longest K.

    ``points``: of a traced running sum.
    """

    rows: int = 8
    log2_last: int = 16
    points: int = 512


QUICK = Params(rows=4, log2_last=14, points=256)
PARTS = ("a", "b", "exact", "magnitude", "clamped", "results", "walked", "bound", "fates")
DIGESTED = tuple(f"{kind}: {part}" for kind in SYNTHETIC for part in PARTS)


def run(params: Params, tick: Callable[[float, str], None]) -> Arrays:
    """For each kind, arrays named ``kind: part``.

    Codes ``a`` and ``b``; as limbs ``exact`` and ``magnitude`` (M, N, S, limb), the sums of the products and of their
    magnitudes, and ``clamped``, that of the operands clamped to 2**-14; float32 ``results`` (accumulator, M, N, S),
    and those of the blocked ones by their definition, ``walked``; their ``bound`` (blocked, M, N, S, limb); ``fates``
    (format, S, fate) counts the products. ``trace``: running sums of one product, (curve, point).
    """
    from . import network

    arrays: Arrays = {}
    pairs = {}
    for i, kind in enumerate(KINDS):
        tick(0.1 + 0.2 * i / len(KINDS), kind)
        source = network if kind in REAL else operands
        pairs[kind] = source.make(kind, params.rows, params.log2_last)
    for i, (kind, pair) in enumerate(pairs.items()):
        tick(0.3 + 0.4 * i / len(KINDS), f"{kind}: every accumulator")
        arrays |= {f"{kind}: {part}": array for part, array in measured(*pair).items()}
    for i, batch in enumerate(batches(pairs)):
        tick(min(0.7 + 0.1 * i, 0.95), f"bounds of {', '.join(batch)}")
        arrays |= bounded({kind: pairs[kind] for kind in batch}, params.points)
    tick(1.0, "done")
    return arrays


def measured(a: np.ndarray, b: np.ndarray) -> Arrays:
    """What depends on the product alone: exact sums, the results of every accumulator, and fates."""
    from . import accumulators, bounds

    x, y = operands.values(a), operands.values(b)
    sizes = operands.sizes(a.shape[1].bit_length() - 1)
    pairs = {"exact": (x, y), "magnitude": (np.abs(x), np.abs(y)), "clamped": (bounds.clamped(x), bounds.clamped(y))}
    found: Arrays = {name: whole.pack(whole.products(*pair, sizes)) for name, pair in pairs.items()}
    x, y = x.astype(np.float32), y.astype(np.float32)
    sums = {fmt: np.stack([accumulators.running(row, y, fmt) for row in x]) for fmt in FORMATS}
    found["results"] = np.stack([accumulators.results(x, y, one, sizes, sums[one.fmt]) for one in ACCUMULATORS])
    found["fates"] = np.stack([accumulators.fates(x, y, fmt, sizes, sums[fmt]) for fmt in FORMATS])
    return {"a": a, "b": b, **found}


def batches(pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], most: int = 128) -> list[list[str]]:
    """Kinds of one length, some together, since walking a few chains takes as long as walking one."""
    found: list[list[str]] = []
    rows = most + 1
    length = 0
    for kind, (a, b) in sorted(pairs.items(), key=lambda item: item[1][0].shape[1]):
        if a.shape[1] != length or rows + len(a) * len(b) > most:
            found.append([])
            rows, length = 0, a.shape[1]
        found[-1].append(kind)
        rows += len(a) * len(b)
    return found


def bounded(pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], points: int) -> Arrays:
    """The chains of these kinds walked by definition, their bounds, and traces."""
    from . import bounds

    values = [[operands.values(codes) for codes in pair] for pair in pairs.values()]
    products, exponents = (np.concatenate(part) for part in zip(*(bounds.terms(*pair) for pair in values), strict=True))
    k = products.shape[1]
    sizes, at = operands.sizes(k.bit_length() - 1), np.arange(1, points + 1) * FIRST * max(k // FIRST // points, 1)
    at = at[at <= k]
    walked = np.zeros((len(BLOCKED), len(products), sizes.size), np.float32)
    bound = np.zeros((*walked.shape, whole.LIMBS), np.int64)
    traces = np.zeros((len(BLOCKED), len(products), at.size))
    for gpu in CORES:
        places = [BLOCKED.index(index(fmt, gpu)) for fmt in FORMATS]
        models = [ACCUMULATORS[BLOCKED[i]].model for i in places]
        chains = bounds.walk(products, exponents, models)
        bound[places] = bounds.by_block(chains, exponents, models, sizes)
        length = models[0].length
        walked[places] = chains.totals[sizes // length].transpose(1, 2, 0)
        traces[places] = chains.totals[at // length].transpose(1, 2, 0)
    found, start = {}, 0
    for kind, (x, y) in zip(pairs, values, strict=True):
        rows = slice(start, start + len(x) * len(y))
        for part, array in (("walked", walked), ("bound", bound)):
            found[f"{kind}: {part}"] = array[:, rows].reshape(len(BLOCKED), len(x), len(y), *array.shape[2:])
        if kind in TRACED:
            found[f"{kind}: trace"] = trace(x, y, products[start], traces[:, start], at)
        start = rows.stop
    return found


def trace(x: np.ndarray, y: np.ndarray, products: np.ndarray, blocked: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The running sums of the first product: K, the exact ones (in float64, for drawing), and every accumulator's."""
    from .accumulators import running

    found = np.zeros((2 + len(ACCUMULATORS), at.size))
    found[0], found[1] = at, np.cumsum(products)[at - 1]
    for fmt in FORMATS:
        row = running(x[0].astype(np.float32), y[:1].astype(np.float32), fmt)[0]
        found[2 + index(fmt)] = row[at - 1]
    found[[2 + i for i in BLOCKED]] = blocked
    return found


def plot(arrays: Arrays, params: Params) -> Figure:
    """Running sums that stall, errors of every accumulator with their bounds, and how tight these are."""
    from .figure import draw

    return draw(arrays, params)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each kind, length and accumulator: the largest error and bound, as shares of sum|a b|."""
    names = ("operands", "K", "accumulator", "largest error", "largest bound", "error / bound")
    rows: list[tuple[Any, ...]] = []
    for kind in KINDS:
        measured = of_kind(arrays, kind)
        for i, one in enumerate(ACCUMULATORS):
            shares = (part.tolist() for part in shares_of(measured, i))
            rows += [(kind, k, one.name, *row) for k, *row in zip(measured.lengths.tolist(), *shares, strict=True)]
    return in_columns(names, rows)


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The same products on a device, at three lengths, with FP32 and with FP16 sums."""
    from .cases import cases

    return cases(params)
