"""The catalogue of torch's bits: its claims, its examples, its orders, and that its checks can fail."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from experiments.frame import Mutant, frame
from fplab import formats
from fplab.experiments import torch_bits
from fplab.experiments.torch_bits import catalogue
from fplab.hardware import elementwise
from fplab.reveal import SumTree

FMA = torch.backends.cpu.get_cpu_capability() in torch_bits.WITH_FMA
needs_fma = pytest.mark.skipif(not FMA, reason="torch uses no fused multiply-add on this CPU")


def test_the_catalogue_has_a_row_for_every_output_and_a_word_for_every_cell(result: Any) -> None:
    rows = catalogue.rows()
    assert len(set(rows)) == len(rows) == result.wrong.shape[1]
    assert {r.fmt for r in rows} == {"fp16", "bf16", "fp32", "e4m3", "e5m2"}
    assert (result.wrong.max(axis=2) >= 0).all()  # some formula says something of each
    for place in (0, 1):
        for i, row in enumerate(rows):
            text, _ = torch_bits.says(result.wrong[place, i], row.output)
            assert text


def test_counts_are_those_of_a_comparison_by_hand(result: Any) -> None:
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
    assert result.count("add alpha", "fp32", catalogue.EACH) == differ.sum()


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


@pytest.mark.parametrize("one", catalogue.DISTINCTIONS, ids=lambda d: f"{d.output} {d.fmt}")
def test_an_example_is_short_and_tells_two_formulas_apart(one: catalogue.Distinction, result: Any) -> None:
    codes = result.codes[catalogue.DISTINCTIONS.index(one)]
    if (codes == torch_bits.NONE).all():
        pytest.skip("torch shows no difference on this CPU")
    form = formats.get("fp64" if one.case.startswith("casts") else one.fmt)
    used = [int(c) for c, name in zip(codes, "xyz", strict=True) if name in catalogue.USED[one.output]]
    fractions = [c & ((1 << form.fraction_bits) - 1) for c in used]
    lengths = [form.fraction_bits - ((f & -f).bit_length() - 1) if f else 0 for f in fractions]
    assert sum(lengths) <= 44
    assert all(2.0**-12 <= abs(float(fplab.decode(np.uint64(c), form, np.float64))) < 2.0**13 for c in used)


def test_simpler_operands_are_simpler() -> None:
    form = formats.get("fp32")
    for code in (0x3FA79680, 0xC2480000, 0x00800001, 0x3F800000):
        own = catalogue.weight(np.array([code], np.uint32), form)[0]
        found = np.array(catalogue.variants(code, form), np.uint32)
        assert (catalogue.weight(found, form) < own).all()
    assert catalogue.variants(catalogue.one_of(form), form) == []
    assert catalogue.weight(np.array([0x3F800000], np.uint32), form)[0] == 0
    assert catalogue.weight(np.array([0x3FC00000], np.uint32), form)[0] == 64  # one bit
    assert catalogue.weight(np.array([0x3F800001], np.uint32), form)[0] == 64 * 23


def test_an_order_folds_as_it_is_written() -> None:
    tree = SumTree.of(((0, 2), (1, 3)))
    terms = np.float32([2.0**24, 1.0, -(2.0**24), 1.0])
    assert catalogue.folded(tree, terms) == 2.0
    assert catalogue.folded(SumTree.of((((0, 1), 2), 3)), terms) == 1.0
    assert catalogue.folded(SumTree.of((((0, 1), 2), 3)), terms, wide=True) == 2.0


def counted_again(*groups: str) -> Callable[[Any], dict[str, Any]]:
    """The part of a run that counts what formulas get wrong, of some groups of operations."""

    def part(result: Any) -> dict[str, Any]:
        wrong, rows = result.wrong.copy(), catalogue.rows()
        for case in (case for case in catalogue.cases() if case.name.startswith(groups)):
            for p, place in enumerate(catalogue.PLACES):
                for row, name, count in catalogue.answers(case, place, torch_bits.this_machine()):
                    wrong[p, rows.index(row), catalogue.FORMULAS.index(name)] = count
        return {"wrong": wrong}

    return part


def examples_again(result: Any) -> dict[str, Any]:
    """The examples of add(alpha=) and, which every CPU has, of addcdiv."""
    codes, by_name = result.codes.copy(), {case.name: case for case in catalogue.cases()}
    for i in (0, 3):
        one = catalogue.DISTINCTIONS[i]
        found = catalogue.smallest(by_name[one.case], one, torch_bits.this_machine()) or {}
        codes[i] = [found.get(name, torch_bits.NONE) for name in torch_bits.OPERANDS]
    return {"codes": codes}


def ways_again(result: Any) -> dict[str, Any]:
    return {"ways": np.array([torch_bits.optimizer(name) for name in torch_bits.OPTIMIZERS])}


def paths_again(result: Any) -> dict[str, Any]:
    return {"paths": np.stack([catalogue.tree(name).sizes for name in catalogue.SUMS])}


def toward_zero(good: Any) -> Any:
    return lambda *of, **how: good(*of, **{"rounding": "rtz"} | how)


def in_turn(good: Any) -> Any:
    """An order that is a chain, whatever is asked."""
    return lambda f, n, *of, **how: SumTree.of(reduce(lambda nested, term: (nested, term), range(n)))


HALVES, CONTRACTED = counted_again("arithmetic", "square root", "functions"), counted_again("contraction")
NARROWED = counted_again("functions in fp16", "functions in bf16", "casts")
ALL = (
    Mutant("quotients rounded toward zero", ("arithmetic", "place"), "fplab.numeric.div", toward_zero, part=HALVES),
    Mutant("roots rounded toward zero", ("square_roots", "place"), "fplab.numeric.sqrt", toward_zero, part=HALVES),
    Mutant("quotients of addcdiv rounded toward zero", ("addcdiv",), "fplab.numeric.div", toward_zero,
           part=CONTRACTED),
    Mutant("multiply-adds that round twice", ("contraction",), "fplab.numeric.fma",
           lambda good: lambda x, y, z, fmt: fplab.add(fplab.mul(x, y, fmt), z, fmt), part=CONTRACTED),
    Mutant("codes of what is rounded toward zero", ("functions", "casts"), "fplab.numeric.encode", toward_zero,
           part=NARROWED),
    Mutant("a foreach that ascends", ("optimizers",), "fplab.hardware.elementwise.WAYS",
           lambda good: {**good, "foreach": good["foreach"] | {"maximize": True}}, part=ways_again),
    Mutant("examples that are not shrunk", ("smallest_examples",), "catalogue.variants",
           lambda good: lambda code, form: [], part=examples_again),
    Mutant("examples that tell nothing apart", ("fused_example",), "catalogue.told_apart",
           lambda good: lambda *of: ~good(*of), part=examples_again),
    Mutant("every order in turn", ("orders",), "catalogue.reveal_order", in_turn, part=paths_again),
)  # fmt: skip
SPARED = () if FMA else ("contraction", "addcdiv", "place", "fused_example")
MUTANTS = tuple(
    replace(one, kills=kills) for one in ALL if (kills := tuple(id for id in one.kills if id not in SPARED))
)
FRAME = frame(torch_bits, torch_bits.EXPERIMENT.quick, MUTANTS, SPARED, None if FMA else "^torch ")
del FRAME["test_a_gpu_case_holds_on_the_cpu_and_forged_it_fails"]  # they are the suite's own, and tested with it
globals().update(FRAME)


def test_the_digested_array_is_the_same_everywhere(result: Any) -> None:
    assert result.formats.tolist() == [6, 6, 6, 1, 1, 1, 7, 7, 7, 10, 10, 10, 5]


def test_its_cases_are_the_recorders_own_and_its_table_has_every_row(result: Any) -> None:
    names = [case.name for case in torch_bits.cases(result.params)]
    assert {case.name for case in elementwise.cases()} < set(names)
    assert any("cumsum" in name for name in names)
    columns = torch_bits.rows(result)
    assert {len(c) for c in columns.values()} == {2 * len(catalogue.rows())}
    assert len(columns) == 5 + len(catalogue.FORMULAS)
