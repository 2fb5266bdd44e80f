"""The catalogue of torch's bits: its claims, its examples, its orders, and that its checks can fail."""

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from experiments.frame import Mutant, frame
from fplab.experiments import torch_bits
from fplab.hardware import elementwise
from fplab.reveal import SumTree

FMA = torch.backends.cpu.get_cpu_capability() in torch_bits.WITH_FMA
needs_fma = pytest.mark.skipif(not FMA, reason="torch uses no fused multiply-add on this CPU")


def test_the_catalogue_has_a_word_for_every_cell(result: Any) -> None:
    every = [(o, fmt) for case in torch_bits.catalogue().values() for o, fmt in case.formats.items()]
    assert len(set(every)) == len(every) == result.wrong.sizes["result"]
    assert {fmt for _, fmt in every} == {"fp16", "bf16", "fp32", "e4m3", "e5m2"}
    assert result.wrong.notnull().any("formula").all()  # some formula says something of each
    for place in torch_bits.PLACES:
        assert all(torch_bits.says(result, output, fmt, place)[0] for output, fmt in every)


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
    assert torch_bits.count(result, "add alpha", "fp32", torch_bits.EACH) == differ.sum()


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


@pytest.mark.parametrize("one", torch_bits.DISTINCTIONS, ids=lambda d: f"{d.output} {d.fmt}")
def test_an_example_is_short_and_tells_two_formulas_apart(one: torch_bits.Distinction, result: Any) -> None:
    codes = result.examples[torch_bits.DISTINCTIONS.index(one)]
    if codes is None:
        pytest.skip("torch shows no difference on this CPU")
    form, used = one.form, [codes[name] for name in one.used]
    fractions = [c & ((1 << form.fraction_bits) - 1) for c in used]
    lengths = [form.fraction_bits - ((f & -f).bit_length() - 1) if f else 0 for f in fractions]
    assert sum(lengths) <= 44
    assert all(2.0**-12 <= abs(float(fplab.decode(np.uint64(c), form, np.float64))) < 2.0**13 for c in used)


def test_simpler_operands_are_simpler() -> None:
    root = torch_bits.DISTINCTIONS[5]

    def weight(*codes: int) -> Any:
        return torch_bits.weight({"x": np.array(codes, np.uint32)}, root)

    for code in (0x3FA79680, 0xC2480000, 0x00800001, 0x3F800000):
        simpler = torch_bits.variants(code, root.form)
        assert (weight(*simpler) < weight(code)).all()
    assert torch_bits.variants(0x3F800000, root.form) == []
    assert weight(0x3F800000, 0x3FC00000, 0x3F800001).tolist() == [0, 64, 64 * 23]  # no bit, one, all


def test_an_order_folds_as_it_is_written() -> None:
    tree = SumTree.of(((0, 2), (1, 3)))
    terms = np.float32([2.0**24, 1.0, -(2.0**24), 1.0])
    assert torch_bits.folded(tree, terms) == 2.0
    assert torch_bits.folded(SumTree.of((((0, 1), 2), 3)), terms) == 1.0
    assert torch_bits.folded(SumTree.of((((0, 1), 2), 3)), terms, wide=True) == 2.0


def toward_zero(good: Any) -> Any:
    return lambda *of, **how: good(*of, **{"rounding": "rtz"} | how)


def in_turn(good: Any) -> Any:
    """An order that is a chain, whatever is asked."""
    return lambda f, n, *of, **how: SumTree.of(reduce(lambda nested, term: (nested, term), range(n)))


ALL = (
    Mutant("quotients rounded toward zero", ("arithmetic", "place", "addcdiv"), "fplab.numeric.div", toward_zero),
    Mutant("roots rounded toward zero", ("square_roots", "place"), "fplab.numeric.sqrt", toward_zero),
    Mutant("multiply-adds that round twice", ("contraction",), "fplab.numeric.fma",
           lambda good: lambda x, y, z, fmt: fplab.add(fplab.mul(x, y, fmt), z, fmt)),
    Mutant("codes of what is rounded toward zero", ("functions",), "fplab.numeric.encode", toward_zero),
    Mutant("casts toward zero", ("casts",), "fplab.numeric.quantize", toward_zero),
    Mutant("a foreach that ascends", ("optimizers",), "fplab.hardware.elementwise.WAYS",
           lambda good: {**good, "foreach": good["foreach"] | {"maximize": True}}),
    Mutant("examples that are not shrunk", ("smallest_examples",), "variants", lambda good: lambda code, form: []),
    Mutant("examples that tell nothing apart", ("fused_example",), "told_apart",
           lambda good: lambda *of: ~good(*of)),
    Mutant("every order in turn", ("orders",), "reveal_order", in_turn),
)  # fmt: skip
SPARED = () if FMA else ("contraction", "addcdiv", "place", "fused_example")
MUTANTS = tuple(
    replace(one, kills=kills) for one in ALL if (kills := tuple(id for id in one.kills if id not in SPARED))
)
FRAME = frame(torch_bits, torch_bits.E.quick, MUTANTS, SPARED, None if FMA else "^torch ")
del FRAME["test_a_gpu_case_holds_on_the_cpu_and_forged_it_fails"]  # they are the suite's own, and tested with it
globals().update(FRAME)


def test_the_digested_array_is_the_same_everywhere(result: Any) -> None:
    assert result.outputs.values.tolist() == [6, 6, 6, 1, 1, 1, 7, 7, 7, 10, 10, 10, 5]


def test_its_cases_are_the_recorders_own_and_its_table_has_every_row(result: Any) -> None:
    names = [case.name for case in torch_bits.cases(result.params)]
    assert {case.name for case in elementwise.cases()} < set(names)
    assert any("cumsum" in name for name in names)
    columns = torch_bits.rows(result)
    assert {len(c) for c in columns.values()} == {2 * 77}
    assert len(columns) == 5 + len(torch_bits.FORMULAS)
