"""The catalogue of torch's bits: its claims, its examples, its orders, and that its checks can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from experiment_frame import Mutant, frame, kills

import fplab
from fplab import formats
from fplab.experiments import torch_bits as experiment
from fplab.experiments.torch_bits import catalogue, checks, examples, figure, orders
from fplab.hardware import elementwise
from fplab.hardware.cases import Arrays
from fplab.reveal import SumTree

FMA = torch.backends.cpu.get_cpu_capability() in checks.WITH_FMA
needs_fma = pytest.mark.skipif(not FMA, reason="torch uses no fused multiply-add on this CPU")
ABSENT = None if FMA else "^torch "

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(experiment, experiment.QUICK, absent=ABSENT)


def test_the_catalogue_has_a_row_for_every_output_and_a_word_for_every_cell(arrays: Arrays) -> None:
    rows = catalogue.rows()
    assert len(set(rows)) == len(rows) == arrays["wrong"].shape[1]
    assert {r.fmt for r in rows} == {"fp16", "bf16", "fp32", "e4m3", "e5m2"}
    assert (arrays["wrong"].max(axis=2) >= 0).all()  # some formula says something of each
    for place in (0, 1):
        for i, row in enumerate(rows):
            text, _ = figure.says(arrays["wrong"][place, i], row.output)
            assert text


def test_counts_are_those_of_a_comparison_by_hand(arrays: Arrays) -> None:
    """FP32 add(alpha=) against numpy's two steps, which round as the lab's do."""
    given = elementwise.triple("fp32")
    x, y = (given[n].view(np.float32) for n in "xy")
    with np.errstate(all="ignore"):
        steps = x + np.float32(elementwise.ALPHA) * y
    long = (
        torch.cat([torch.from_numpy(v) for v in (x, x[:128])]),
        torch.cat([torch.from_numpy(v) for v in (y, y[:128])]),
    )
    got = torch.add(*long, alpha=elementwise.ALPHA)[: len(x)].numpy()
    differ = (got.view(np.uint32) != steps.view(np.uint32)) & ~(np.isnan(got) & np.isnan(steps))
    assert checks.wrong(arrays, "add alpha", "fp32", catalogue.EACH) == differ.sum()


@needs_fma
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["FP16", "BF16"])
def test_the_bits_of_a_half_sum_depend_on_the_place(dtype: torch.dtype) -> None:
    """The same operands at every place of one tensor: the elements left over from whole registers differ."""
    raw = np.random.Philox(key=4).random_raw(200)
    for pair in np.ldexp(1 + (raw & np.uint64(1023)) / 1024, 1).reshape(-1, 2):
        x, y = (torch.full((71,), v, dtype=dtype) for v in pair.tolist())
        found = torch.add(x, y, alpha=elementwise.ALPHA)
        if found.unique().numel() > 1:
            assert found[:64].unique().numel() == found[64:].unique().numel() == 1
            return
    pytest.fail("every place has the same bits: torch has changed, and the catalogue's claim with it")


@pytest.mark.parametrize("one", examples.DISTINCTIONS, ids=lambda d: f"{d.output} {d.fmt}")
def test_an_example_is_short_and_tells_two_formulas_apart(one: examples.Distinction, arrays: Arrays) -> None:
    codes = arrays["codes"][examples.DISTINCTIONS.index(one)]
    if (codes == checks.NONE).all():
        pytest.skip("torch shows no difference on this CPU")
    form = formats.get("fp64" if one.case.startswith("casts") else one.fmt)
    used = [int(c) for c, name in zip(codes, "xyz", strict=True) if name in examples.USED[one.output]]
    fractions = [c & ((1 << form.fraction_bits) - 1) for c in used]
    lengths = [form.fraction_bits - ((f & -f).bit_length() - 1) if f else 0 for f in fractions]
    assert sum(lengths) <= 44
    assert all(2.0**-12 <= abs(float(fplab.decode(np.uint64(c), form, np.float64))) < 2.0**13 for c in used)


def test_simpler_operands_are_simpler() -> None:
    form = formats.get("fp32")
    for code in (0x3FA79680, 0xC2480000, 0x00800001, 0x3F800000):
        own = examples.weight(np.array([code], np.uint32), form)[0]
        found = np.array(examples.variants(code, form), np.uint32)
        assert (examples.weight(found, form) < own).all()
    assert examples.variants(examples.one_of(form), form) == []
    assert examples.weight(np.array([0x3F800000], np.uint32), form)[0] == 0
    assert examples.weight(np.array([0x3FC00000], np.uint32), form)[0] == 64  # one bit
    assert examples.weight(np.array([0x3F800001], np.uint32), form)[0] == 64 * 23


def test_an_order_folds_as_it_is_written() -> None:
    tree = SumTree.of(((0, 2), (1, 3)))
    terms = np.float32([2.0**24, 1.0, -(2.0**24), 1.0])
    assert orders.folded(tree, terms) == 2.0
    assert orders.folded(SumTree.of((((0, 1), 2), 3)), terms) == 1.0
    assert orders.folded(SumTree.of((((0, 1), 2), 3)), terms, wide=True) == 2.0


def one_more(output: str, fmt: str, formula: str, place: int, count: int = 1) -> Callable[[Arrays], Arrays]:
    """One result of torch that is another than a formula says."""

    def change(arrays: Arrays) -> Arrays:
        index = catalogue.FORMULAS.index(formula)
        rows = enumerate(catalogue.rows())
        (row,) = [i for i, r in rows if (r.output, r.fmt) == (output, fmt) and arrays["wrong"][0, i, index] >= 0]
        arrays["wrong"][place, row, index] += count
        return {"wrong": arrays["wrong"]}

    return change


def off(name: str, place: Any, value: Any) -> Callable[[Arrays], Arrays]:
    def change(arrays: Arrays) -> Arrays:
        arrays[name][place] = value
        return {name: arrays[name]}

    return change


def another_order(arrays: Arrays) -> Arrays:
    arrays["paths"][0] = arrays["paths"][2]
    return {"paths": arrays["paths"]}


WITH_FMA = (
    Mutant("lerp in two steps", ("FP32 add(alpha=)",), change=one_more("lerp", "fp32", catalogue.LAST, 1)),
    Mutant("addcdiv fused", ("addcdiv",), change=one_more("addcdiv", "fp32", catalogue.FIRST, 0)),
    Mutant("one rsqrt", ("Half add(alpha=)",), change=one_more("rsqrt", "fp16", catalogue.NARROW, 1)),
    Mutant("an add in two steps", ("torch's add(alpha=)",), change=off("codes", 0, 0x3F800000)),  # 1 + 0.3 * 1
)
MUTANTS = (
    Mutant("one product", ("+, -, *, /",), change=one_more("mul", "bf16", catalogue.ONCE, 1)),
    Mutant("one root", ("Half square roots",), change=one_more("sqrt", "fp16", catalogue.ONCE, 0)),
    Mutant("five exponentials", ("Half exp",), change=one_more("exp", "fp16", catalogue.TWICE, 0, 5)),
    Mutant("one cast", ("Casts from FP64",), change=one_more("bf16", "bf16", catalogue.TWICE, 0)),
    Mutant("foreach adds otherwise", ("An optimizer's",), change=off("ways", (1, 1), 5)),
    Mutant("an example that tells nothing", ("Each smallest",), change=off("codes", 0, 0x3F800000)),
    Mutant("another order", ("Random sums",), change=another_order),
    *(WITH_FMA if FMA else ()),
)
SPARED = () if FMA else tuple(claim for mutant in WITH_FMA for claim in mutant.kills)
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(experiment, experiment.QUICK, MUTANTS, SPARED)


def test_the_digested_array_is_the_same_everywhere(arrays: Arrays) -> None:
    assert arrays["formats"].tolist() == [6, 6, 6, 1, 1, 1, 7, 7, 7, 10, 10, 10, 5]


def test_its_cases_are_the_recorders_own_and_its_table_has_every_row(arrays: Arrays) -> None:
    names = [case.name for case in experiment.gpu_cases(experiment.QUICK)]
    assert {case.name for case in elementwise.cases()} < set(names)
    assert any("cumsum" in name for name in names)
    columns = experiment.table(arrays, experiment.QUICK)
    assert {len(c) for c in columns.values()} == {2 * len(catalogue.rows())}
    assert len(columns) == 5 + len(catalogue.FORMULAS)
