"""The claims about FP8 accumulation, each against fractions, integers or numpy's float32."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, failed, passed, same_bits, verdict
from .operands import DEFINITIONS, DISTRIBUTIONS, RMS, SERIES, UNIT, numbers, product, relative, significant_bits

if TYPE_CHECKING:
    from . import Params

NAMES = list(SERIES)
CHAIN, PROMOTED, ADA, B200 = range(4)
NORMAL, BOTH, POSITIVE = range(3)
OWN, OF_RMS, OF_LARGEST, NORM = range(4)
ORACLE_ELEMENT = (3, 7)  # which the oracle adds up,
ORACLE_LONG, ORACLE_SHORT = POSITIVE, 512  # over K = 4096 for this distribution, and so many for the others
SIDE = 512  # of the square of results by which definitions are compared
SPREAD = 7  # every so many elements are summed by integers


def at(arrays: Arrays, k: int) -> int:
    """The place of a K in the sweep."""
    return int(arrays["sizes"].tolist().index(k))


def errors(arrays: Arrays, i: int, s: int) -> np.ndarray:
    """The relative error, of the r.m.s. result, by K."""
    return np.array([relative(arrays["results"][i, s, j], arrays["exact"][i, j]) for j in range(arrays["sizes"].size)])


def percent(x: float) -> str:
    """A share for a message."""
    return f"{100 * x:.3g}%"


def oracle_agrees(arrays: Arrays, params: Params) -> Outcome:
    """Elements at K = 4096, instruction by instruction, on integers and fractions."""
    from ...tensorcore import get, oracle
    from . import K

    compared = 0
    for i, (s, name) in itertools.product(range(len(DISTRIBUTIONS)), enumerate(NAMES)):
        if s == PROMOTED:
            continue
        model, k = get(name, "e4m3"), K if i == ORACLE_LONG else ORACLE_SHORT
        x, y = (numbers(arrays[side][i, row, :k]).tolist() for side, row in zip("ab", ORACLE_ELEMENT, strict=True))
        want = oracle.result_bits(oracle.dot(x, y, 0.0, model), model)
        got = int(arrays["results"][i, s, at(arrays, k)][ORACLE_ELEMENT])
        if got != want:
            return failed(f"{name}, element {ORACLE_ELEMENT} at K = {k}: {got:08x}, the oracle {want:08x}")
        compared += 1
    return passed(f"{compared} sums of {ORACLE_SHORT} and of {K:,} products")


def exact_is_exact(arrays: Arrays, params: Params) -> Outcome:
    """Python's integers, in units of the grid on which all products lie."""
    compared = 0
    for i, j in itertools.product(range(len(DISTRIBUTIONS)), range(arrays["sizes"].size)):
        k = int(arrays["sizes"][j])
        for row in range(0, params.rows, SPREAD):
            column = (5 * row + j) % params.rows
            x, y = (
                np.ldexp(numbers(arrays[side][i, place, :k]), -UNIT // 2).astype(np.int64).tolist()
                for side, place in (("a", row), ("b", column))
            )
            want = sum(p * q for p, q in zip(x, y, strict=True))
            got = int(np.ldexp(arrays["exact"][i, j, row, column], -UNIT))
            if got != want or abs(want) >= 1 << 53:
                return failed(f"element {row}, {column} at K = {k}: {got} units, integers give {want}")
            compared += 1
    return passed(f"{compared} sums of up to {int(arrays['sizes'][-1]):,} products")


def fourteen_bits(arrays: Arrays, params: Params) -> Outcome:
    """How many bits of FP32 are ever used: one chain on Hopper or Ada, promotion, Blackwell."""
    used = [significant_bits(arrays["results"][:, s]) for s in range(len(NAMES))]
    return verdict(
        used[CHAIN] == used[ADA] == 14 and min(used[PROMOTED], used[B200]) > 20,
        ", ".join(f"{name}: {n}" for name, n in zip(NAMES, used, strict=True)),
    )


def promotion_by_hand(arrays: Arrays, params: Params) -> Outcome:
    """Chains of 128 products, added by numpy's float32, in order."""
    from . import K

    j = at(arrays, K)
    for i in range(len(DISTRIBUTIONS)):
        a, b = (numbers(arrays[side][i, :, :K]) for side in "ab")
        total = np.zeros((params.rows, params.rows), np.float32)
        for k in range(0, K, 128):
            total = total + product(a[:, k : k + 128], b[:, k : k + 128], "H100").view(np.float32)
        outcome = same_bits(arrays["results"][i, PROMOTED, j], total.view(np.uint32), "fp32")
        if outcome.status.name != "PASS":
            return failed(f"{list(DISTRIBUTIONS)[i]}: {outcome.detail}")
    return passed(f"{3 * params.rows**2:,} results, every bit")


def truncation_shrinks(arrays: Arrays, params: Params) -> Outcome:
    """Sums of positive products are never above the exact ones, and all but the shortest are below."""
    values = arrays["results"][POSITIVE].view(np.float32).astype(np.float64)
    want = arrays["exact"][POSITIVE]
    for s in (CHAIN, ADA, B200):
        if (values[s] > want).any():
            return failed(f"{NAMES[s]}: {int((values[s] > want).sum())} sums are too large")
    below = float((values[CHAIN] < want)[arrays["sizes"] >= 128].mean())
    return verdict(
        below == 1.0, f"{3 * want.size:,} sums; on H100 {percent(below)} of those from K = 128 on are too small"
    )


def grows_with_k(arrays: Arrays, params: Params) -> Outcome:
    """With one sign the errors add up, in proportion to K; with both they partly cancel."""
    from . import K

    first, last = at(arrays, 512), at(arrays, K)
    ratio = [errors(arrays, i, CHAIN)[last] / errors(arrays, i, CHAIN)[first] for i in (POSITIVE, NORMAL)]
    holds = 8 <= ratio[0] <= 16 and 2 <= ratio[1] < 8
    return verdict(holds, f"from K = 512 to {K:,}: {ratio[0]:.1f} times with one sign, {ratio[1]:.1f} with both")


def positive_passes(arrays: Arrays, params: Params) -> Outcome:
    """Where one chain of positive products passes 2%, and what it has come to at K = 4096."""
    from . import K

    error = dict(zip(arrays["sizes"].tolist(), errors(arrays, POSITIVE, CHAIN).tolist(), strict=True))
    holds = error[1024] < 0.02 < error[2048] and 0.07 < error[K] < 0.09
    return verdict(holds, ", ".join(f"K = {k:,}: {percent(error[k])}" for k in (1024, 2048, K)))


def nearly_two_percent(arrays: Arrays, params: Params) -> Outcome:
    """The definition and the operands that give the report's figure."""
    side = params.sides.index(SIDE)
    found = [float(arrays["defined"][i, side, 0, OF_RMS]) for i in (NORMAL, BOTH)]
    names = list(DISTRIBUTIONS)
    text = ", ".join(f"{names[i]} {percent(x)}" for i, x in zip((NORMAL, BOTH), found, strict=True))
    sizes = [percent(float(arrays["defined"][NORMAL, j, 0, OF_RMS])) for j in range(len(params.sides))]
    grows = ", ".join(f"{n}x{n} {x}" for n, x in zip(params.sides, sizes, strict=True))
    return verdict(all(0.015 < x < 0.025 for x in found), f"{text} of the r.m.s.; it grows with the matrix: {grows}")


def no_other_definition(arrays: Arrays, params: Params) -> Outcome:
    """The other largest and mean errors of operands of both signs, and all of positive ones."""
    side = params.sides.index(SIDE)
    found = arrays["defined"][:, side, 0]
    both = found[[NORMAL, BOTH]]
    holds = (
        bool((both[:, OWN] > 1).all())
        and bool((both[:, [OF_LARGEST, NORM]] < 0.005).all())
        and bool((found[POSITIVE] > 0.05).all())
    )
    parts = [f"{name}: {percent(low)} to {percent(high)}" for name, low, high in zip(
        DEFINITIONS, both.min(axis=0), both.max(axis=0), strict=True) if name != RMS]  # fmt: skip
    return verdict(holds, f"{'; '.join(parts)}; positive operands: {percent(found[POSITIVE].min())} and more")


def promotion_repairs(arrays: Arrays, params: Params) -> Outcome:
    """The error at K = 4096 against one chain's, and that it stays what it is at K = 128."""
    from . import K

    texts = []
    for i, (name, least) in enumerate(zip(DISTRIBUTIONS, (10, 10, 50), strict=True)):
        chain, promoted = errors(arrays, i, CHAIN), errors(arrays, i, PROMOTED)
        gain = chain[at(arrays, K)] / promoted[at(arrays, K)]
        if gain < least or promoted[at(arrays, 256) :].max() > promoted[at(arrays, 128)]:
            return failed(f"{name}: {gain:.1f} times less; {percent(promoted.max())} at most")
        texts.append(f"{name}: {gain:.0f} times less, {percent(promoted[at(arrays, K)])}")
    return passed("; ".join(texts))


def shorter_is_better(arrays: Arrays, params: Params) -> Outcome:
    """Errors by promotion interval on positive products: each doubling adds to it."""
    from . import INTERVALS, K

    want = arrays["exact"][:, at(arrays, K)]
    found = [relative(bits, want[POSITIVE]) for bits in arrays["promoted"][POSITIVE]]
    rising = all(x < y for x, y in itertools.pairwise(found))
    same = np.array_equal(arrays["promoted"][:, INTERVALS.index(K)], arrays["results"][:, CHAIN, at(arrays, K)])
    return verdict(rising and same, ", ".join(f"{n}: {percent(x)}" for n, x in zip(INTERVALS, found, strict=True)))


def ada_too(arrays: Arrays, params: Params) -> Outcome:
    """From K = 512 on Ada, which adds 16 products at a time, loses as much as Hopper, which adds 32."""
    ratios = [errors(arrays, i, ADA)[at(arrays, 512) :] / errors(arrays, i, CHAIN)[at(arrays, 512) :] for i in range(3)]
    low, high = min(map(np.min, ratios)), max(map(np.max, ratios))
    return verdict(bool(low > 0.75 and high < 1.33), f"{low:.2f} to {high:.2f} times Hopper's error")


def blackwell_keeps(arrays: Arrays, params: Params) -> Outcome:
    """Blackwell's 25 bits against Hopper's 13, at every K from 128 on."""
    ratios = [errors(arrays, i, CHAIN)[2:] / errors(arrays, i, B200)[2:] for i in range(3)]
    worst = max(float(errors(arrays, i, B200).max()) for i in range(3))
    low, high = min(map(np.min, ratios)), max(map(np.max, ratios))
    holds = bool(low > 1000 and worst < 2e-5)
    return verdict(holds, f"{low:,.0f} to {high:,.0f} times smaller, {percent(worst)} at most")


EXACT = Evidence.EXACT
CHECKS: tuple[Check, ...] = (
    Check("fractions and integers give the same bits at K = 4096: H100, Ada, B200", EXACT, oracle_agrees),
    Check("the reference has no error: Python's integers", EXACT, exact_is_exact),
    Check("one chain leaves 14 significant bits on Hopper and Ada; promoted, or on Blackwell, over 20", EXACT,
          fourteen_bits),
    Check("promotion every 128 is numpy's float32 sum of chains of 128", Evidence.LIBRARY, promotion_by_hand),
    Check("positive sums are too small, never too large", EXACT, truncation_shrinks),
    Check("errors of one sign grow with K, of both signs more slowly", EXACT, grows_with_k),
    Check("positive operands pass 2% between K = 1,024 and 2,048, and err by 7 to 9% at 4,096", EXACT, positive_passes),
    Check("Compatible with DeepSeek-V3's 'nearly 2%' at K = 4096: largest error over r.m.s. result, 512x512",
          EXACT, nearly_two_percent),
    Check("no other definition gives it: over 100%, or below 0.5%; and positive operands over 5%", EXACT,
          no_other_definition),
    Check("promoted every 128, the error at K = 4096 is at least 10 times smaller and no larger than at K = 128", EXACT,
          promotion_repairs),
    Check("the longer the interval of promotion, the larger the error; 4,096 is one chain", EXACT, shorter_is_better),
    Check("Ada errs as much as Hopper from K = 512 on, within a third", EXACT, ada_too),
    Check("Blackwell errs a thousand times less from K = 128 on", EXACT, blackwell_keeps),
)  # fmt: skip
