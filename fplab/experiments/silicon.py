"""The CPU as hardware: its own units of low precision against the lab, bit by bit, on the machine that is here.

A CPU rounds, multiplies and accumulates in low precision too. Each unit that this one has is called one instruction at
a time (:mod:`fplab.hardware.cpu_units`) on random and adversarial operands, and so are torch's 16-bit products, whose
order of additions is revealed from their results and then predicts their bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import draw
from ..hardware import cpu_cases
from ..hardware.cases import Case, NotHereError
from ..words import CLAUSE, COMMA, joined, say
from .base import Claims, Columns, Experiment, Tick, in_columns
from .outcomes import Outcome, absent, failed, passed, same_bits

PRODUCTS = ("bf16", "fp16")  # of torch, on the CPU


@dataclass(frozen=True)
class Params:
    """``n``: operands of an instruction; of conversions and dot products 16 times as many. ``wide``: of FP64, whose
    other side is the oracle. ``k``: the terms of torch's products. ``seeds``: of their operands."""

    n: int = 1 << 20
    wide: int = 1 << 12
    k: int = 200
    seeds: int = 8


QUICK = Params(n=1 << 10, wide=1 << 6, k=64, seeds=2)


@dataclass(frozen=True)
class Result:
    """``compared``, ``differing``: int64 (case,), results of each of ``names``, 0 where this CPU lacks the unit, as
    ``lacking`` says; ``first``: of a case that differs, how. ``paths``: who computes torch's products of
    ``PRODUCTS``; ``orders``: their order of additions as it was revealed, or ""; ``predicted``, ``wrong``: int64
    (format,), how many of their results were predicted and how many of these are others."""

    params: Params
    names: tuple[str, ...]
    groups: tuple[str, ...]
    compared: np.ndarray
    differing: np.ndarray
    first: tuple[str, ...]
    lacking: tuple[str, ...]
    paths: tuple[str, ...]
    orders: tuple[str, ...]
    predicted: np.ndarray
    wrong: np.ndarray


def run(params: Params, tick: Tick) -> Result:
    from ..hardware import cpu_products

    groups = cpu_cases.cases(params.n, params.wide)
    listed = [(group, case) for group, of in groups.items() for case in of]
    found = []
    for i, (_, case) in enumerate(listed):
        tick(0.8 * i / len(listed), case.name)
        found.append(called(case))
    compared, differing, first, lacking = zip(*found, strict=True)
    tick(0.8, "torch")
    paths = cpu_products.paths(PRODUCTS, params.k)
    torchs = [of_torch(fmt, params) for fmt in PRODUCTS]
    orders, predicted, wrong = zip(*torchs, strict=True)
    return Result(params, tuple(case.name for _, case in listed), tuple(group for group, _ in listed),
                  np.array(compared), np.array(differing), first, lacking, paths, orders, np.array(predicted),
                  np.array(wrong))  # fmt: skip


def called(case: Case) -> tuple[int, int, str, str]:
    """How many results of a case were compared and how many differ, how the first does, or what is lacking."""
    given = case.inputs()
    try:
        got = case.compute(given, "cpu")
    except NotHereError as error:
        return 0, 0, "", str(error)
    want = case.emulate(given, {})
    differing, first = 0, ""
    for name, fmt in case.formats.items():
        outcome = same_bits(got[name], want[name], fmt)
        if not outcome.holds:
            differing += int((got[name] != want[name]).sum())
            first = first or f"{name}: {outcome.detail}"
    return sum(array.size for array in got.values()), differing, first, ""


def of_torch(fmt: str, params: Params) -> tuple[str, int, int]:
    """The order of torch's products of a format, how many results were predicted from it, and how many are others."""
    from ..hardware import cpu_products

    tree = cpu_products.order(fmt, params.k)
    if tree is None:
        return "", 0, 0
    predicted = wrong = 0
    for seed in range(params.seeds):
        a, b = cpu_products.telling(params.k, fmt, cpu_cases.KEY + 50 + seed)
        got = cpu_products.product(a, b, fmt)
        want = cpu_products.predicted(tree, a, b, fmt)
        predicted, wrong = predicted + got.size, wrong + int((got.view(np.uint32) != want.view(np.uint32)).sum())
    return str(tree), predicted, wrong


def rows(result: Result) -> Columns:
    units = zip(result.names, result.compared.tolist(), result.differing.tolist(), result.lacking, strict=True)
    names = (f"torch {fmt} product, {path}" for fmt, path in zip(PRODUCTS, result.paths, strict=True))
    torchs = zip(names, result.predicted.tolist(), result.wrong.tolist(), result.orders, strict=True)
    return in_columns(("what", "compared", "differing", "note"), [*units, *torchs])


# --- claims ---------------------------------------------------------------------------------------------------------
CLAIMS = Claims()


def of_group(result: Result, group: str) -> Outcome:
    """Whether every unit of a group that is here gave the bits of the lab."""
    at = [i for i, name in enumerate(result.groups) if name == group]
    if wrong := [i for i in at if result.differing[i]]:
        i = wrong[0]
        return failed(say("{name}: {n:,} of {all:,} differ; {first}", name=result.names[i],
                          n=int(result.differing[i]), all=int(result.compared[i]), first=result.first[i]))  # fmt: skip
    here = [i for i in at if result.compared[i]]
    if not here:
        return absent(result.lacking[at[0]])
    n = int(result.compared[here].sum())
    said = say("{n:,} results, every bit: {names}", n=n, names=joined([result.names[i] for i in here], COMMA))
    if len(here) < len(at):
        left = next(result.lacking[i] for i in at if not result.compared[i])
        return passed(joined((said, left), CLAUSE))
    return passed(said)


@CLAIMS.live("F16C converts between FP32 and FP16 as the lab does: four roundings, every special value")
def conversions(result: Result) -> Outcome:
    return of_group(result, "conversions")


@CLAIMS.live("FP32 arithmetic of the CPU: the lab's bits and flags, four roundings, subnormals kept and flushed")
def arithmetic(result: Result) -> Outcome:
    """+, -, x, / and the square root under 16 settings of MXCSR; NaNs with their payloads."""
    return of_group(result, "arithmetic")


@CLAIMS.live("the fused multiply-add rounds once, as the lab's")
def fused(result: Result) -> Outcome:
    """FMA3 on FP32."""
    return of_group(result, "fused")


@CLAIMS.live("FP64 arithmetic of the CPU has the bits and flags of exact fractions, rounded once")
def double(result: Result) -> Outcome:
    """Against the oracle, number by number."""
    return of_group(result, "double")


@CLAIMS.live("a BF16 dot product of the CPU is fused multiply-adds in turn, the odd element first, without subnormals")
def bfloat16(result: Result) -> Outcome:
    return of_group(result, "bfloat16")


@CLAIMS.live("FP16 arithmetic of the CPU, AVX512-FP16's or AArch64's, rounds once, with the lab's bits")
def halves(result: Result) -> Outcome:
    """On x86-64 in four roundings with flags, on AArch64 to nearest; NaNs as each gives them."""
    return of_group(result, "halves")


@CLAIMS.live("AMX adds the even and the odd BF16 products apart, by fused multiply-adds, then both, then c")
def tiles(result: Result) -> Outcome:
    """By the manual's pseudocode of TDPBF16PS."""
    return of_group(result, "tiles")


@CLAIMS.live("INT8 and INT16 dot products of the CPU are exact, and wrap or saturate once, at the end")
def integers(result: Result) -> Outcome:
    return of_group(result, "integers")


@CLAIMS.live("torch's 16-bit products on this CPU: their order, where it is revealed, predicts their bits")
def products(result: Result) -> Outcome:
    said = []
    for i, (fmt, path) in enumerate(zip(PRODUCTS, result.paths, strict=True)):
        wrong, all_ = int(result.wrong[i]), int(result.predicted[i])
        if wrong:
            return failed(say("{fmt}, {path}: {n:,} of {all:,} differ", fmt=fmt, path=path, n=wrong, all=all_))
        told = say("{fmt}, {path}: {all:,} results, every bit") if all_ else say("{fmt}, {path}: no order found")
        said.append(told.fill(fmt=fmt, path=path, all=all_))
    return (passed if result.predicted.any() else absent)(joined(said, CLAUSE))


# --- figure ---------------------------------------------------------------------------------------------------------
def units(result: Result) -> draw.Figure:
    figure, ax = draw.panels(8, 5.4)
    table = rows(result)
    place = np.arange(len(table["what"]))
    counts = np.array(table["compared"], float)
    colours = [draw.look(1 if wrong else 0).color for wrong in table["differing"]]
    ax.barh(place, np.maximum(counts, 1), color=colours, height=0.7)
    for y, n, wrong in zip(place, counts, table["differing"], strict=True):
        text = "absent" if not n else f"{int(n):,} results, " + (f"{wrong:,} differ" if wrong else "every bit")
        draw.note(ax, text, (max(n, 1), y), (4, 0), va="center")
    ax.set(xscale="log", xlim=(1, counts.max() * 1000))
    ax.set_yticks(place, [str(what).partition(",")[0] for what in table["what"]])
    ax.invert_yaxis()
    ax.set_xlabel("results compared with the lab, on this CPU")
    ax.grid(visible=False, axis="y")
    return figure


def cases(params: Params) -> tuple[Case, ...]:
    return tuple(case for of in cpu_cases.cases(params.n, params.wide).values() for case in of)


EXPERIMENT = Experiment(
    title=say("The CPU as hardware"),
    question=say("Do the lab's bits come out of the silicon that is here?"),
    budget=4.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS, figures=(units,),
    cases=cases, on="cpu",
)  # fmt: skip
