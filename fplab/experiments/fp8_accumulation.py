"""Hopper adds FP8 products with 13 fraction bits: how much that loses over a long k, and what promotion saves.

DeepSeek-V3's report (arXiv 2412.19437, section 3.5.2) found "around 14 bits" in the accumulator of the H800, an error
of "nearly 2%" for two random matrices at K = 4096, and adds the partial sums to FP32 registers every 128 products. The
report states neither the distribution nor what the error is relative to; here both are varied.

A product of two E4M3 numbers is a multiple of 2**-18, and sums of up to 2**14 of them stay below 2**53 of these units:
so float64 adds them without rounding in any order, and every error here is exact before it is divided by anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import draw, exact, numeric
from ..hardware.cases import Arrays, Case
from ..hardware.core_cases import direct_case
from ..hardware.products import ONE_CHAIN, Plan, Product
from ..words import CLAUSE, COMMA, Text, joined, say, say_of, verbatim
from .base import Claims, Columns, Digested, Experiment, Tick, in_columns, sheet
from .outcomes import Outcome, Sample, failed, measured, passed, same_bits, verdict
from .statistics import equivalent, superior

Array = np.ndarray[Any, Any]
K = 4096  # the report's
INTERVALS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SIGMA, LARGEST = 64.0, 448.0
UNIT = -18  # exponent of the grid on which all products lie
# How likely a number is below x. Scaled as FP8 training scales: the largest numbers come near E4M3's largest, 448.
DISTRIBUTIONS: dict[str, Callable[[float], float]] = {
    "normal": lambda x: 0.5 * (1 + math.erf(x / (SIGMA * math.sqrt(2)))),
    "uniform, both signs": lambda x: (x + LARGEST) / (2 * LARGEST),
    "uniform, positive": lambda x: x / LARGEST,
}
NORMAL, BOTH, POSITIVE = range(3)
SERIES: dict[str, dict[str, Any]] = {  # arguments of :func:`product`
    "H100": {"gpu": "H100"},
    "H100, promoted every 128": {"gpu": "H100", "promote": 128},
    "Ada": {"gpu": "Ada"},
    "B200": {"gpu": "B200"},
}
CHAIN, PROMOTED, ADA, B200 = range(4)
DRAWS = 4  # squares of the results
TIMES = 2.0  # between growth in proportion to K, 8 times here, and with its square root, 2.8 times
ALIKE = 0.415  # log2 of four thirds
NEARLY = 0.02  # the report's figure, said with one digit
SIDE = 512  # of the square of results by which definitions are compared
SPREAD = 7  # every so many elements are summed by integers


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B^T in the sweep over K, which ends at ``2**longest``. ``sides``: rows at K = 4096."""

    rows: int = 256
    longest: int = 14
    sides: tuple[int, ...] = (64, 512, 1024, 4096)


# --- operands, products, errors ---------------------------------------------------------------------------------
def drawn_codes(distribution: str, key: int, rows: int, k: int) -> Array:
    """E4M3 codes (rows, k): each drawn with the probability, to 2**-32, that a random number rounds to it."""
    limits, found_codes = limits_of(distribution)
    words = np.random.Philox(key=key).random_raw(rows * k) >> np.uint64(32)
    # The upper 16 bits of a word nearly always decide; only where a limit lies within is the rest looked at.
    first = np.searchsorted(limits, np.arange(1 << 16, dtype=np.uint64) << np.uint64(16), side="right")
    upper = (words >> np.uint64(16)).astype(np.intp)
    found = found_codes[first][upper]
    parted = np.append(first[1:], found_codes.size - 1) != first
    near = np.flatnonzero(parted[upper])
    found[near] = found_codes[np.searchsorted(limits, words[near], side="right")]
    return found.reshape(rows, k)


def limits_of(distribution: str) -> tuple[Array, Array]:
    """The words from which each finite code of E4M3 but the first begins, and the codes, both by rising value."""
    positive = [exact.decode(code, "e4m3").magnitude for code in range(0x7F)]
    values = [-v for v in positive[:0:-1]] + positive
    middles = [float(x + y) / 2 for x, y in itertools.pairwise(values)]
    shares = np.clip([DISTRIBUTIONS[distribution](x) for x in middles], 0.0, 1.0)
    rising = np.array([*range(0xFE, 0x80, -1), *range(0x7F)], np.uint8)
    return np.rint(shares * 2.0**32).astype(np.uint64), rising


def numbers(of: Array) -> Array:
    return np.asarray(numeric.decode(of, "e4m3", np.float32))


def product(a: Array, b: Array, gpu: str, promote: int | None = None) -> Array:
    """A B^T for A (m, k) and B (n, k), float32 that hold E4M3, to FP32, as bits (m, n)."""
    from .. import tensorcore

    plan = tensorcore.Plan(promote=promote)
    return tensorcore.matmul(a, b.T, gpu=gpu, inputs="e4m3", plan=plan).view(np.uint32)


def exactly(a: Array, b: Array) -> Array:
    """A B^T without any error, float64 (m, n)."""
    assert a.shape[1] <= 1 << 14
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64).T)


def of_own(over: Callable[[Array], Any]) -> Callable[[Array, Array], Any]:
    """Errors, each over its own result where that is not 0, as one number."""
    return lambda error, want: over(error[want != 0] / np.abs(want[want != 0]))


DEFINITIONS: dict[str, Callable[[Array, Array], Any]] = {  # of the magnitudes of errors and the exact results
    "largest error, each over its own result": of_own(np.max),
    "largest error over the r.m.s. result": lambda error, want: error.max() / np.sqrt((want**2).mean()),
    "largest error over the largest result": lambda error, want: error.max() / np.abs(want).max(),
    "norm of the errors over that of the results": lambda error, want: np.sqrt((error**2).sum() / (want**2).sum()),
    "median error, each over its own result": of_own(np.median),
}
OWN, OF_RMS, OF_LARGEST, NORM = range(4)
RMS = "largest error over the r.m.s. result"  # the one that the curves show


def relative(found: Array, want: Array, definition: str = RMS) -> float:
    """A relative error of FP32 bits against exact results, by one of ``DEFINITIONS``."""
    return float(DEFINITIONS[definition](np.abs(found.view(np.float32).astype(np.float64) - want), want))


def significant_bits(found: Array) -> int:
    """The most bits that a significand of FP32 bits needs, the leading one included."""
    used = int(np.bitwise_or.reduce(found.ravel() & np.uint32(0x7FFFFF)))
    return 24 - ((used & -used).bit_length() - 1 if used else 23)


def aligned_bits(gpu: str) -> int:
    """How many bits of terms a unit adds beside a larger term, the largest's leading one included.

    A product of 2**12 is added to 16 products that are 2**fall times smaller, in one block: which falls change the sum?
    """
    falls = np.arange(1, 31)
    small = 12 - falls
    a, b = np.zeros((2, falls.size, 32), np.float32)
    a[:, 0], a[:, 1:17] = 2.0**6, np.ldexp(np.float32(1), small // 2)[:, None]
    b[:, 0], b[:, 1:17] = 2.0**6, np.ldexp(np.float32(1), small - small // 2)[:, None]
    sums = product(a, b, gpu).diagonal().copy().view(np.float32)
    return int(falls[sums != 2.0**12].max(initial=0)) + 1


# --- the run ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Result:
    """Products by K, promotion interval and size.

    ``sizes``: every K. ``a``, ``b`` (distribution, row, k): E4M3 codes. ``results`` (distribution, series, K, row,
    row): FP32 bits of the product over the first K; ``exact`` (distribution, K, row, row), float64 without error.
    ``promoted`` (distribution, interval, row, row), at K = 4096. ``running`` (distribution, 2, step): one element after
    every 32 products, in one chain and promoted every 128, with ``running_exact``. ``defined`` (distribution, side,
    chain or promoted, definition): relative errors at K = 4096.
    """

    params: Params
    sizes: Digested
    a: Digested
    b: Digested
    results: Digested
    exact: Digested
    promoted: Digested
    running: Digested
    running_exact: Digested
    defined: np.ndarray

    def at(self, k: int) -> int:
        return int(self.sizes.tolist().index(k))

    def errors(self, i: int, s: int) -> Array:
        """The relative error, of the r.m.s. result, by K."""
        return np.array([relative(x, y) for x, y in zip(self.results[i, s], self.exact[i], strict=True)])

    def squares(self) -> list[tuple[slice, slice]]:
        """Draws: squares on the diagonal of the results, of other rows of A and B."""
        step = self.params.rows // DRAWS
        return [(slice(k, k + step),) * 2 for k in range(0, step * DRAWS, step)]

    def by_draw(self, i: int, s: int) -> Array:
        """The relative error by draw and K."""
        pairs = list(zip(self.results[i, s], self.exact[i], strict=True))
        return np.array([[relative(x[at], y[at]) for x, y in pairs] for at in self.squares()])


def run(params: Params, tick: Tick) -> Result:
    sizes, found = 1 << np.arange(5, params.longest + 1), []
    for i, distribution in enumerate(DISTRIBUTIONS):
        tick(i / len(DISTRIBUTIONS), f"{distribution}: K up to {int(sizes[-1]):,}")
        swept = sweep(distribution, params, sizes)
        tick((i + 0.5) / len(DISTRIBUTIONS), f"{distribution}: what a relative error is")
        found.append((*swept, defined(distribution, params)))
    tick(1.0, "done")
    return Result(params, sizes, *map(np.stack, zip(*found, strict=True)))


def sweep(distribution: str, params: Params, sizes: Array) -> tuple[Array, ...]:
    """The arrays of one distribution from ``a`` to ``running_exact``."""
    key = 2 * list(DISTRIBUTIONS).index(distribution)
    drawn = [drawn_codes(distribution, key + side, params.rows, int(sizes[-1])) for side in (0, 1)]
    a, b = (np.ascontiguousarray(numbers(of)) for of in drawn)
    exactly_by_k = np.stack([exactly(a[:, :k], b[:, :k]) for k in sizes])
    results = [[product(a[:, :k], b[:, :k], **how) for k in sizes] for how in SERIES.values()]
    promoted = [product(a[:, :K], b[:, :K], "H100", interval) for interval in INTERVALS]
    begun = np.arange(K) < 32 * np.arange(1, K // 32 + 1)[:, None]
    x, y = np.where(begun, a[0, :K], np.float32(0)), b[:1, :K]
    running = [product(x, y, "H100", promote)[:, 0] for promote in (None, 128)]
    return (*drawn, np.array(results), exactly_by_k, np.stack(promoted), np.stack(running), exactly(x, y)[:, 0])


def defined(distribution: str, params: Params) -> Array:
    """Relative errors at K = 4096 by every definition, for growing matrices: (side, chain or promoted, definition)."""
    key = 100 + 2 * list(DISTRIBUTIONS).index(distribution)
    a, b = (numbers(drawn_codes(distribution, key + side, params.sides[-1], K)) for side in (0, 1))
    want, both = exactly(a, b), [product(a, b, "H100", promote) for promote in (None, 128)]
    return np.array([
        [[relative(got[:side, :side], want[:side, :side], name) for name in DEFINITIONS] for got in both]
        for side in params.sides
    ])  # fmt: skip


def rows(result: Result) -> Columns:
    """One row per error: by K and accumulator, by promotion interval, and by definition and size at K = 4096."""
    names = ("operands", "accumulator", "K", "results", "definition", "relative error")
    found: list[tuple[Any, ...]] = []
    sides, count = result.params.sides, result.params.rows**2
    for i, of in enumerate(DISTRIBUTIONS):
        for (s, series), (j, k), name in itertools.product(enumerate(SERIES), enumerate(result.sizes), DEFINITIONS):
            found.append((of, series, int(k), count, name, relative(result.results[i, s, j], result.exact[i, j], name)))
        for j, interval in enumerate(INTERVALS):
            error = relative(result.promoted[i, j], result.exact[i, result.at(K)])
            found.append((of, f"H100, promoted every {interval}", K, count, RMS, error))
        for (j, side), (p, series) in itertools.product(enumerate(sides), enumerate(list(SERIES)[:2])):
            errors = zip(DEFINITIONS, result.defined[i, j, p].tolist(), strict=True)
            found += [(of, series, K, side**2, name, error) for name, error in errors]
    return in_columns(names, found)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()
NAMES = (say("normal"), say("uniform, both signs"), say("uniform, positive"))
ACCUMULATORS = (verbatim("H100"), say("H100, promoted every 128"), verbatim("Ada"), verbatim("B200"))
DEFINED = (
    say("largest error, each over its own result"), say("largest error over the r.m.s. result"),
    say("largest error over the largest result"), say("norm of the errors over that of the results"),
    say("median error, each over its own result"),
)  # fmt: skip


def sample(values: Array, margin: float) -> Sample:
    return Sample(len(values), float(values.std(ddof=1)), margin)


def percent(x: float) -> str:
    return f"{100 * x:.3g}%"


@CLAIMS.library("the reference has no error: Python's integers")
def reference(result: Result) -> Outcome:
    """Python's integers, in units of the grid on which all products lie."""
    compared, rows = 0, result.params.rows
    for (i, _), (j, k) in itertools.product(enumerate(DISTRIBUTIONS), enumerate(result.sizes.tolist())):
        for row in range(0, rows, SPREAD):
            column = (5 * row + j) % rows
            x, y = (np.ldexp(numbers(of[:k]), -UNIT // 2).astype(np.int64).tolist()
                    for of in (result.a[i, row], result.b[i, column]))  # fmt: skip
            want = sum(p * q for p, q in zip(x, y, strict=True))
            got = int(np.ldexp(result.exact[i, j, row, column], -UNIT))
            if got != want or abs(want) >= 1 << 53:
                said = say("element {row}, {column} at K = {k}: {got} units, integers give {want}", row=row, k=k)
                return failed(said.fill(column=column, got=got, want=want))
            compared += 1
    return passed(say("{n} sums of up to {k:,} products", n=compared, k=result.sizes[-1]))


@CLAIMS.proved(
    "one chain keeps 14 significant bits on Hopper and Ada, of these sums and of terms beside a larger one; "
    "promoted sums and Blackwell's keep over 20"
)
def fourteen_bits(result: Result) -> Outcome:
    used = [significant_bits(result.results[:, s]) for s in range(len(SERIES))]
    chains = (CHAIN, ADA, B200)
    beside = [aligned_bits(**SERIES[name]) for name in ("H100", "Ada", "B200")]
    sums = joined([joined((name, str(n)), ": ") for name, n in zip(ACCUMULATORS, used, strict=True)], COMMA)
    terms = joined([joined((ACCUMULATORS[s], str(n)), ": ") for s, n in zip(chains, beside, strict=True)], COMMA)
    holds = [used[CHAIN], used[ADA], *beside[:2]] == [14] * 4 and min(used[PROMOTED], used[B200], beside[2]) > 20
    return verdict(holds, say("{sums}; terms beside a larger one: {terms}", sums=sums, terms=terms))


@CLAIMS.library("promotion every 128 is numpy's float32 sum of chains of 128")
def promotion(result: Result) -> Outcome:
    for i, name in enumerate(NAMES):
        a, b = (numbers(of[i, :, :K]) for of in (result.a, result.b))
        total = np.zeros((len(a), len(b)), np.float32)
        for k in range(0, K, 128):
            total = total + product(a[:, k : k + 128], b[:, k : k + 128], "H100").view(np.float32)
        outcome = same_bits(result.results[i, PROMOTED, result.at(K)], total.view(np.uint32), "fp32")
        if not outcome.holds:
            return failed(say("{name}: {detail}", name=name, detail=outcome.detail))
    return passed(say("{n:,} results, every bit", n=3 * result.params.rows**2))


@CLAIMS.proved("of these sums of positive products none is too large, and from K = 128 on Hopper's are too small")
def shrinking(result: Result) -> Outcome:
    values, want = result.results[POSITIVE].view(np.float32).astype(np.float64), result.exact[POSITIVE]
    for s in (CHAIN, ADA, B200):
        if above := int((values[s] > want).sum()):
            return failed(say("{name}: {n} sums are too large", name=ACCUMULATORS[s], n=above))
    below = float((values[CHAIN] < want)[result.sizes >= 128].mean())
    said = say("{n:,} sums; on H100 {share} of those from K = 128 on are too small", n=3 * want.size)
    return verdict(below > 0.99, said.fill(share=percent(below)))


@CLAIMS.measured("errors of one sign grow with K, of both signs more slowly by a factor of 2")
def growth(result: Result) -> Outcome:
    errors = (result.by_draw(i, CHAIN) for i in (POSITIVE, NORMAL))
    one, both = (e[:, result.at(K)] / e[:, result.at(512)] for e in errors)
    said = say("from K = 512 to {k:,}: {one:.1f} times with one sign, {both:.1f} with both", k=K)
    return superior(one, both, TIMES, said.fill(one=one.mean(), both=both.mean()))


@CLAIMS.measured("positive operands pass 2% between K = 1,024 and 2,048, and err by 7 to 9% at 4,096")
def passes(result: Result) -> Outcome:
    errors = result.by_draw(POSITIVE, CHAIN)
    error = {k: errors[:, result.at(k)] for k in (1024, 2048, K)}
    holds = error[1024].max() < 0.02 < error[2048].min() and 0.07 < error[K].min() <= error[K].max() < 0.09
    texts = [say("K = {k:,}: {share}", k=k, share=percent(float(v.mean()))) for k, v in error.items()]
    return measured(bool(holds), joined(texts, COMMA), sample(error[K], 0.01))


@CLAIMS.measured(
    "DeepSeek-V3's 'nearly 2%' at K = 4096 is, to 0.8 points, the largest error over r.m.s. result at 512x512"
)
def nearly(result: Result) -> Outcome:
    """The definition and the size that come to the report's figure: it grows with the matrix, and is smaller below.

    Fresh draws of two matrices gave 1.4% to 1.9%: the largest error of a matrix is a matter of chance.
    """
    sides = result.params.sides
    found = result.defined[[NORMAL, BOTH]][:, :, 0, OF_RMS]
    there = found[:, sides.index(SIDE)]
    grows = ", ".join(f"{n}x{n} {percent(x)}" for n, x in zip(sides, found[0], strict=True))
    said = say("normal {normal}, uniform, both signs {uniform} of the r.m.s.; it grows with the matrix: {grows}")
    said = said.fill(normal=percent(there[0]), uniform=percent(there[1]), grows=grows)
    holds = bool((np.abs(there - NEARLY) < 0.008).all() and (found[:, -1] > found[:, 0]).all())
    return measured(holds, said, sample(there, 0.008))


@CLAIMS.measured("no other definition gives it there: over 100%, or below 1%; and positive operands over 5%")
def others(result: Result) -> Outcome:
    found = result.defined[:, result.params.sides.index(SIDE), 0]
    both, least = found[[NORMAL, BOTH]], found[POSITIVE].min()
    holds = bool((both[:, OWN] > 1).all() and (both[:, [OF_LARGEST, NORM]] < 0.01).all() and least > 0.05)
    columns = list(zip(DEFINED, both.min(axis=0), both.max(axis=0), strict=True))
    texts = [say("{definition}: {low} to {high}", definition=name, low=percent(low), high=percent(high))
             for i, (name, low, high) in enumerate(columns) if i != OF_RMS]  # fmt: skip
    last = say("positive operands: {share} and more", share=percent(least))
    return measured(holds, joined((*texts, last), CLAUSE), sample(both[:, NORM], 0.01))


@CLAIMS.measured("promoted every 128, the error at K = 4096 is at least 5 times smaller")
def repairs(result: Result) -> Outcome:
    texts: list[Text] = []
    gains = []
    for i, name in enumerate(NAMES):
        chain, promoted = (result.by_draw(i, s)[:, result.at(K)] for s in (CHAIN, PROMOTED))
        gains.append(chain / promoted)
        said = say("{name}: {times:.0f} times less, {share}", name=name, times=gains[-1].mean())
        texts.append(said.fill(share=percent(float(promoted.mean()))))
    least = np.min(gains, axis=0)
    return measured(bool((least >= 5).all()), joined(texts, CLAUSE), sample(least, 5.0))


@CLAIMS.measured("the longer the interval of promotion, the larger the error; 4,096 is one chain")
def intervals(result: Result) -> Outcome:
    want = result.exact[POSITIVE, result.at(K)]
    found = np.array([[relative(x[at], want[at]) for x in result.promoted[POSITIVE]] for at in result.squares()])
    same = np.array_equal(result.promoted[:, INTERVALS.index(K)], result.results[:, CHAIN, result.at(K)])
    ratios = (found[:, 1:] / found[:, :-1]).min(axis=1)
    said = ", ".join(f"{n}: {percent(x)}" for n, x in zip(INTERVALS, found.mean(axis=0), strict=True))
    return measured(bool((ratios > 1).all()) and same, said, sample(ratios, 1.0))


@CLAIMS.measured("Ada errs as much as Hopper from K = 512 on, within a third")
def ada(result: Result) -> Outcome:
    logs = (np.log2(result.by_draw(i, ADA) / result.by_draw(i, CHAIN)) for i in range(3))
    ratios = np.array([x[:, result.at(512) :].mean(axis=1) for x in logs])
    said = say("{low:.2f} to {high:.2f} times Hopper's error; in powers of 2", low=2 ** ratios.min())
    return equivalent(ratios.mean(axis=0), 0.0, ALIKE, said.fill(high=2 ** ratios.max()))


@CLAIMS.measured("Blackwell errs a thousand times less from K = 128 on")
def blackwell(result: Result) -> Outcome:
    errors = np.array([result.by_draw(i, B200) for i in range(3)])
    chains = np.array([result.by_draw(i, CHAIN) for i in range(3)])
    least = 1 / (errors / chains)[..., 2:].max(axis=(0, 2))
    said = say("{least:,.0f} times smaller and more, {worst} at most", least=least.min(), worst=percent(errors.max()))
    return measured(bool((least > 1000).all()), said, sample(least, 1000.0))


# --- torch's FP8 product on a GPU -------------------------------------------------------------------------------
ROWS = 64
BLOCK = 32  # products of one instruction
QUESTIONS = {True: "In which order of k, and is it one chain?", False: "After how many products are sums promoted?"}


def probe_operands() -> Arrays:
    """The FP8 probes as rows of A and of B, c as a block of its own: the results on the diagonal are the probes."""
    from .generations.probes import FP8_PROBES

    rows: dict[str, list[np.ndarray]] = {"a": [], "b": []}
    for probe in FP8_PROBES:
        root = np.sqrt(probe.c)  # 32 or 0
        for row, factors in zip(rows.values(), probe.factors, strict=True):
            row.append(np.concatenate([[root], np.zeros(BLOCK - 1), factors]).astype(np.float32))
    return {name: small(np.resize(np.stack(row), (ROWS, 2 * BLOCK))) for name, row in rows.items()}


def small(values: np.ndarray) -> np.ndarray:
    """E4M3 codes of numbers that it holds, with numpy alone."""
    distinct, place = np.unique(values, return_inverse=True)
    table = [exact.round_to(exact.from_float(v), "e4m3")[0] for v in distinct.tolist()]
    return np.array(table, np.uint8)[place].reshape(values.shape)


def random_operands(distribution: str, k: int) -> Arrays:
    """Codes (64, k) of A and of B^T."""
    return {name: drawn_codes(distribution, 50 + key, ROWS, k) for key, name in enumerate("ab")}


def product_of(fast: bool) -> Product:
    """A B^T through torch, to FP32.

    ``torch._scaled_mm`` keeps its sums in the Tensor Core (``use_fast_accum``) or adds them to FP32 registers now and
    then; how often is the library's choice, and is asked here.
    """
    return Product("scaled_mm", ("e4m3", "e4m3"), "fp32", fast=fast)


def usual(fast: bool) -> Plan:
    """The plan that is expected: one chain, or promotion every 128."""
    return ONE_CHAIN if fast else {"promote": 128}


def plans() -> dict[str, Plan]:
    """The orders and promotions that a library may choose."""
    found: dict[str, Plan] = {"one chain": ONE_CHAIN}
    found |= {f"promoted every {n}": {"promote": n} for n in (32, 64, 128, 256, 512, 1024)}
    found |= {f"split-K {n}": {"split_k": n} for n in (2, 4, 8, 16)}
    return found | {f"{n} accumulators": {"accumulators": n} for n in (2, 4)}


def cases(params: Params) -> Iterator[Case]:
    def case(name: str, inputs: Callable[[], Arrays], fast: bool, question: str = "") -> Case:
        how = "fast accumulation" if fast else "promoted"
        tried = plans() if question else {}
        return direct_case(f"{name}, {how}", product_of(fast), inputs, usual(fast), question, tried)

    for fast in (True, False):
        if fast:
            yield case("probes", probe_operands, fast)
        for of in DISTRIBUTIONS:
            yield case(f"{of}, k = {BLOCK}", partial(random_operands, of, BLOCK), fast)
        for of, k in itertools.product(DISTRIBUTIONS, (128, 512, 4096)):
            yield case(f"{of}, k = {k}", partial(random_operands, of, k), fast, QUESTIONS[fast])


# --- figures ----------------------------------------------------------------------------------------------------
TITLES = ("Normal", "Uniform on (-1, 1)", "Uniform on (0, 1)")
SHORT = ("H100, one chain", "H100, promoted", "Ada", "B200")
LOOKS = (1, 0, 5, 2)
NEAR = (0.015, 0.025)
DOTTED: dict[str, Any] = {"linewidth": 0.8, "linestyle": (0, (1, 1.5))}


def plain_percent(x: float, _: Any = None) -> str:
    """A power of ten as a percentage without an exponent."""
    return f"{100 * x:.8f}".rstrip("0").rstrip(".") + "%"


def percentages(ax: draw.Axes, low: float, high: float) -> None:
    """A logarithmic axis of percentages, with the report's figure as a line."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set(yscale="log", ylim=(low, high))
    ax.yaxis.set_major_locator(FixedLocator([10.0**e for e in range(-8, 1) if low <= 10.0**e <= high]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(plain_percent))
    ax.axhline(NEARLY, color=draw.current().ink, linewidth=1, linestyle=(0, (3, 2)))
    draw.note(ax, "2%", (0, NEARLY), (4, 3), xycoords=("axes fraction", "data"))


def draw_against_k(ax: draw.Axes, result: Result, i: int) -> None:
    ax.set_xscale("log", base=2)
    percentages(ax, 5e-8, 1)
    ends = []
    for s, name in enumerate(SHORT):
        style, error = draw.look(LOOKS[s]), result.errors(i, s)
        ax.plot(result.sizes, error, **style.marked)
        ends.append((float(error[-1]), name.removeprefix("H100, "), style.color))
    ax.axvline(K, color=draw.current().muted, **DOTTED)
    ax.set_xlim(result.sizes[0], result.sizes[-1])
    ax.set_xticks([2.0**e for e in range(5, 15, 3)])
    ax.set(xlabel="K", ylabel="largest error / r.m.s. result", title=TITLES[i] + (" (GPUs emulated)" if i == 0 else ""))
    draw.label_ends(ax, ends)


def draw_intervals(ax: draw.Axes, result: Result) -> None:
    ax.set_xscale("log", base=2)
    percentages(ax, 1e-5, 0.3)
    ends = []
    normal = say_of("a distribution", "normal").into(draw.lettering.language())
    for i, name in enumerate((normal, "(-1, 1)", "(0, 1)")):
        style = draw.look((3, 4, 7)[i])
        error = [relative(found, result.exact[i, result.at(K)]) for found in result.promoted[i]]
        ax.plot(INTERVALS, error, **style.marked)
        ends.append((error[-1], name, style.color))
    ax.axvline(128, color=draw.current().muted, **DOTTED)
    draw.note(ax, "DeepSeek-V3:\nevery 128", (128, 0.13), (5, 0), va="center", color=draw.current().muted)
    ax.set_xlim(INTERVALS[0], INTERVALS[-1])
    ax.set_xticks(INTERVALS[::2], [str(n) for n in INTERVALS[::2]])
    ax.set(xlabel="products between promotions to FP32", ylabel="largest error / r.m.s. result",
           title=f"How often to promote, K = {K:,}")  # fmt: skip
    draw.label_ends(ax, ends)


def draw_falls_behind(ax: draw.Axes, result: Result) -> None:
    n, want = 32 * np.arange(1, K // 32 + 1), result.running_exact[POSITIVE]
    sums, ends = result.running[POSITIVE].view(np.float32).astype(np.float64), []
    for s, found in enumerate(sums):
        error = 100 * (found - want) / want
        ax.plot(n, error, **draw.look(LOOKS[s]).line)
        ends.append((float(error[-1]), SHORT[s].removeprefix("H100, "), draw.look(LOOKS[s]).color))
    doubled = np.flatnonzero(np.diff(np.floor(np.log2(sums[CHAIN])))) + 1
    for place in doubled[-4:]:
        ax.axvline(n[place], color=draw.current().muted, **DOTTED)
    ax.set_xlim(0, K)
    ax.set_xticks(range(0, K + 1, 1024), [f"{k:,}" for k in range(0, K + 1, 1024)])
    ax.set(xlabel="products added  (dotted: the sum enters a new binade, and the grid doubles)",
           ylabel="error of the sum (%)", title="One positive sum falls behind (H100, emulated)")  # fmt: skip
    draw.label_ends(ax, ends)


def draw_definitions(ax: draw.Axes, result: Result) -> None:
    from matplotlib.patches import Rectangle

    theme, sides = draw.current(), result.params.sides
    left = -0.72 * len(sides)
    ax.set(xlim=(left, len(sides)), ylim=(len(DISTRIBUTIONS) * (len(DEFINITIONS) + 1), -1))
    ax.axis("off")
    for j, side in enumerate(sides):
        ax.text(j + 0.5, -0.3, f"{side}² results", ha="center", va="center", fontsize=9, color=theme.muted)
    for i, title in enumerate(TITLES):
        top = i * (len(DEFINITIONS) + 1)
        ax.text(left, top + 0.5, title, va="center", fontweight="bold")
        for d, name in enumerate(DEFINITIONS, top + 1):
            ax.text(left, d + 0.5, name, va="center", fontsize=9)
        for d, j in itertools.product(range(top + 1, top + 1 + len(DEFINITIONS)), range(len(sides))):
            chain, promoted = result.defined[i, j, :, d - top - 1]
            near = NEAR[0] < chain < NEAR[1]
            ax.add_patch(Rectangle((j + 0.03, d + 0.06), 0.94, 0.88, facecolor=theme.exponent if near else theme.grid,
                                   alpha=1 if near else 0.5, linewidth=1.5 * near, edgecolor=theme.ink))  # fmt: skip
            ax.text(j + 0.48, d + 0.5, rounded(chain), ha="right", va="center", fontsize=9,
                    fontweight="bold" if near else "normal")  # fmt: skip
            ax.text(j + 0.54, d + 0.5, rounded(promoted), va="center", fontsize=9, color=theme.muted)
    ax.set_title(f"Which relative error is nearly 2%? One chain of K = {K:,}, and promoted")


def rounded(x: float) -> str:
    return f"{100 * x:.2g}%" if x < 1 else f"{100 * float(f'{x:.2g}'):,.0f}%"


EXPERIMENT = Experiment(
    title=say("FP8 products in 14 bits"),
    question=say("How much does Hopper's short accumulator lose, and does adding to FP32 every 128 products repair "
                 "it?"),
    budget=3.0, full=Params(), quick=Params(rows=64, longest=13, sides=(64, 256, 512)), result=Result, run=run,
    rows=rows, claims=CLAIMS, cases=cases,
    figures=(sheet("errors", (8, 7.4), (2, 2), *(partial(draw_against_k, i=i) for i in range(3)), draw_intervals),
             sheet("two_percent", (8, 8.4), (2, 1), draw_falls_behind, draw_definitions, height_ratios=[1, 1.9])),
)  # fmt: skip
