"""The catalogue of torch's bits: its claims, its examples, its orders, and that its checks can fail."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from experiments.frame import Mutant, changed, frame, put
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


def one_more(output: str, fmt: str, formula: str, place: int, count: int = 1) -> Callable[[Any], dict[str, Any]]:
    """One result of torch that is another than a formula says."""

    def change(result: Any) -> dict[str, Any]:
        index, wrong = catalogue.FORMULAS.index(formula), result.wrong.copy()
        rows = enumerate(catalogue.rows())
        (row,) = [i for i, r in rows if (r.output, r.fmt) == (output, fmt) and wrong[0, i, index] >= 0]
        wrong[place, row, index] += count
        return {"wrong": wrong}

    return change


WITH_FMA = (
    Mutant("lerp in two steps", ("contraction",), change=one_more("lerp", "fp32", catalogue.LAST, 1)),
    Mutant("addcdiv fused", ("addcdiv",), change=one_more("addcdiv", "fp32", catalogue.FIRST, 0)),
    Mutant("one rsqrt", ("place",), change=one_more("rsqrt", "fp16", catalogue.NARROW, 1)),
    Mutant("an add in two steps", ("fused_example",), change=put("codes", 0, 0x3F800000)),  # 1 + 0.3 * 1
)
MUTANTS = (
    Mutant("one product", ("arithmetic",), change=one_more("mul", "bf16", catalogue.ONCE, 1)),
    Mutant("one root", ("square_roots",), change=one_more("sqrt", "fp16", catalogue.ONCE, 0)),
    Mutant("five exponentials", ("functions",), change=one_more("exp", "fp16", catalogue.TWICE, 0, 5)),
    Mutant("one cast", ("casts",), change=one_more("bf16", "bf16", catalogue.TWICE, 0)),
    Mutant("foreach adds otherwise", ("optimizers",), change=put("ways", (1, 1), 5)),
    Mutant("an example that tells nothing", ("smallest_examples",), change=put("codes", 0, 0x3F800000)),
    Mutant("another order", ("orders",), change=changed("paths", lambda x: x[[2, *range(1, len(x))]])),
    *(WITH_FMA if FMA else ()),
)
SPARED = () if FMA else tuple(claim for mutant in WITH_FMA for claim in mutant.kills)
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
