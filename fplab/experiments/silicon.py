"""The CPU as hardware: its own units of low precision against the lab, bit by bit, on the machine that is here.

A CPU rounds, multiplies and accumulates in low precision too. Each unit that this one has is called one instruction at
a time (:mod:`fplab.hardware.cpu_units`) on random and adversarial operands, and so are torch's 16-bit products, whose
order of additions is revealed from their results and then predicts their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import draw
from ..hardware import cpu_cases
from ..hardware.cases import Case, NotHereError
from ..words import CLAUSE, COMMA, joined, mark, say, verbatim
from .frame import Experiment, Params, Result
from .outcomes import Outcome, absent, failed, passed, same_bits
from .quantities import Columns, in_columns

PRODUCTS = ("bf16", "fp16")  # of torch, on the CPU
E = Experiment(
    "The CPU as hardware", "Do the lab's bits come out of the silicon that is here?", budget=4.0, on="cpu",
    # n: operands of an instruction; of conversions and dot products 16 times as many. wide: of FP64, whose other side
    # is the oracle. k: the terms of torch's products; seeds: of their operands.
    full={"n": 1 << 20, "wide": 1 << 12, "k": 200, "seeds": 8},
    quick={"n": 1 << 10, "wide": 1 << 6, "k": 64, "seeds": 2},
)  # fmt: skip


@E.cache
def units(p: Params) -> dict[str, tuple[str, Case]]:
    """The group and the case of each unit."""
    groups = cpu_cases.cases(p.n, p.wide)
    return {case.name: (group, case) for group, of in groups.items() for case in of}


@E.measure("compared", "differing", "first", "lacking", axes={"unit": units})
def called(p: Params, unit: str) -> tuple[int, int, str, str]:
    """How many results of a unit were compared and how many differ, how the first does, or what is lacking."""
    case = units(p)[unit][1]
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


@E.measure("path", "order", "predicted", "wrong", axes={"fmt": PRODUCTS})
def of_torch(p: Params, fmt: str) -> tuple[str, str, int, int]:
    """Who computes torch's products of a format, their order of additions as it was revealed, or "", how many results
    were predicted from it, and how many are others."""
    from ..hardware import cpu_products

    (path,) = cpu_products.paths((fmt,), p.k)
    tree = cpu_products.order(fmt, p.k)
    if tree is None:
        return path, "", 0, 0
    predicted = wrong = 0
    for seed in range(p.seeds):
        a, b = cpu_products.telling(p.k, fmt, cpu_cases.KEY + 50 + seed)
        got = cpu_products.product(a, b, fmt)
        want = cpu_products.predicted(tree, a, b, fmt)
        predicted, wrong = predicted + got.size, wrong + int((got.view(np.uint32) != want.view(np.uint32)).sum())
    return path, str(tree), predicted, wrong


@E.table
def rows(r: Result) -> Columns:
    """A row for each unit and each of torch's products."""
    here = zip(r.compared.unit.values.tolist(), *(x.values.tolist() for x in (r.compared, r.differing, r.lacking)),
               strict=True)  # fmt: skip
    names = (f"torch {fmt} product, {path}" for fmt, path in zip(PRODUCTS, r.path.values, strict=True))
    torchs = zip(names, *(x.values.tolist() for x in (r.predicted, r.wrong, r.order)), strict=True)
    return in_columns(("what", "compared", "differing", "note"), [*here, *torchs])


# --- claims ---------------------------------------------------------------------------------------------------------
def group(name: str) -> Callable[[Any], Outcome]:
    """Whether every unit of a group that is here gave the bits of the lab."""

    def test(r: Result) -> Outcome:
        names = [unit for unit, (of, _) in units(r.p).items() if of == name]
        compared, differing = (dict(zip(names, x.sel(unit=names).values.tolist(), strict=True))
                               for x in (r.compared, r.differing))  # fmt: skip
        if wrong := [unit for unit in names if differing[unit]]:
            unit = wrong[0]
            return failed(say("{name}: {n:,} of {all:,} differ; {first}", name=unit, n=differing[unit],
                              all=compared[unit], first=r.first.sel(unit=unit).item()))  # fmt: skip
        here, lacking = [unit for unit in names if compared[unit]], [unit for unit in names if not compared[unit]]
        left = [r.lacking.sel(unit=unit).item() for unit in lacking[:1]]
        if not here:
            return absent(
                joined([verbatim(left[0].rstrip(".")), *([RESTS_ON[name]] if name in RESTS_ON else [])], CLAUSE)
            )
        n = sum(compared.values())
        return passed(joined((say("{n:,} results, every bit: {names}", n=n, names=joined(here, COMMA)), *left), CLAUSE))

    return test


GROUPS = {
    "conversions": mark("F16C converts between FP32 and FP16 as the lab does: four roundings, every special value"),
    # +, -, x, / and the square root under 16 settings of MXCSR; NaNs with their payloads
    "arithmetic": mark("FP32 arithmetic of the CPU: the lab's bits and flags, four roundings, subnormals kept and "
                       "flushed"),
    "fused": mark("the fused multiply-add rounds once, as the lab's"),  # FMA3 on FP32
    # Against the oracle, number by number
    "double": mark("FP64 arithmetic of the CPU has the bits and flags of exact fractions, rounded once"),
    "bfloat16": mark("a BF16 dot product of the CPU is fused multiply-adds in turn, the odd element first, without "
                     "subnormals"),
    # On x86-64 in four roundings with flags, on AArch64 to nearest; NaNs as each gives them
    "halves": mark("FP16 arithmetic of the CPU, AVX512-FP16's or AArch64's, rounds once, with the lab's bits"),
    # By the manual's pseudocode of TDPBF16PS and TDPFP16PS
    "tiles": mark("AMX adds the even and the odd products apart, by fused multiply-adds, then both, then c"),
    # By the manual's pseudocode of BFDotAdd
    "odd_pairs": mark("AArch64's BFDOT and BFMMLA round the products of a pair, their sum and the total to odd, "
                      "without subnormals"),
    # By the manual's FPDotAdd and FPMatMulAdd
    "arm_products": mark("AArch64's BFMOPA adds pairs as BFDOT does; FMOPA, FMMLA and, with FPCR.EBF, pairs of BF16 "
                         "round every sum to nearest"),
    "widened": mark("RISC-V's widening multiply-add rounds once, in each of five roundings"),
    "integers": mark("INT8 and INT16 dot products of the CPU are exact, and wrap or saturate once, at the end"),
}  # fmt: skip
# What the lab's bits of a unit rest on where no CPU has it.
RESTS_ON = {
    "tiles": say("the lab has the bits of Intel's specification"),
    **dict.fromkeys(("odd_pairs", "arm_products", "widened"), say("the lab has the bits of QEMU's emulation")),
}  # fmt: skip
for name, text in GROUPS.items():
    E.live(text, name)(group(name))


@E.live("torch's 16-bit products on this CPU: their order, where it is revealed, predicts their bits")
def products(r: Result) -> Outcome:
    detail = []
    for fmt in PRODUCTS:
        path, wrong, n = (x.sel(fmt=fmt).item() for x in (r.path, r.wrong, r.predicted))
        if wrong:
            return failed(say("{fmt}, {path}: {n:,} of {all:,} differ", fmt=fmt, path=path, n=wrong, all=n))
        sentence = say("{fmt}, {path}: {all:,} results, every bit") if n else say("{fmt}, {path}: no order found")
        detail.append(sentence.fill(fmt=fmt, path=path, all=n))
    return (passed if r.predicted.any() else absent)(joined(detail, CLAUSE))


E.answer(
    "of {n:,} results of this CPU's units {wrong:,} differ from the lab's, bit by bit",
    n=lambda r: int(r.compared.sum() + r.predicted.sum()),
    wrong=lambda r: int(r.differing.sum() + r.wrong.sum()),
)


# --- figure and cases -----------------------------------------------------------------------------------------------
@E.picture
def bars(r: Result) -> draw.Figure:
    figure, ax = draw.panels(8, 5.4)
    table = rows(r)
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


@E.hardware
def cases(p: Params) -> list[Case]:
    return [case for _, case in units(p).values()]
