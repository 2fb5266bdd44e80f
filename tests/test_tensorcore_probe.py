"""From outputs alone: which model is in the box, and where two models part."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from tensorcore_cases import bits, distinct, exact_bits

from fplab.errors import LabError
from fplab.tensorcore import GPUS, TABLE, Model, classes, dot, get, probe, separate
from fplab.tensorcore.models import input_name

PROBED = [m for m in distinct() if not m.scale and m.a == m.b and m.a in ("fp16", "bf16", "tf32", "e4m3", "e5m2")]


GENERATIONS = ("V100", "A100", "H100")
FIELDS = ("kind", "length", "alignment_bits", "kept_bits", "rounding", "overflow", "negative_zeros", "zero_from_below")


def box(model: Model):
    """A black box with a model in it."""
    return lambda a, b, c: dot(a, b, c, gpu=model)


@pytest.mark.parametrize("model", PROBED, ids=lambda m: m.name)
def test_every_model_is_recovered(model: Model) -> None:
    found = probe(box(model), model.a, model.output)
    assert model.name in found.equals
    assert found.c_inside == (model.kind == "block")
    assert len({k for block in found.blocks for k in block}) == 64
    for field in FIELDS:
        assert getattr(found.model, field) == getattr(model, field), field
    assert "floor" in found.undecided or found.model.floor == model.floor
    assert separate(model, found.model) is None  # what is undecided no output shows


@pytest.mark.parametrize(
    ("cell", "option"),
    [
        (("A100", "fp16", "fp16"), {"c_exponent": "true"}),
        (("A100", "fp16", "fp16"), {"zero_from_below": "plus"}),
        (("H100", "bf16", "fp32"), {"overflow": "max"}),
        (("V100", "fp16", "fp32"), {"negative_zeros": "minus"}),
    ],
)
def test_answers_to_open_questions_are_recovered(cell: tuple[str, str, str], option: dict[str, str]) -> None:
    model = get(*cell).with_options(**option)
    found = probe(box(model), model.a, model.output)
    assert {name: getattr(found.model, name) for name in option} == option
    assert get(*cell).name not in found.equals


def test_functionally_equal_models() -> None:
    """What is called by many names: H100, H200, B200 and RTX PRO 6000 are one arithmetic for FP16."""
    found = probe(box(get("H200")))
    assert {name.split()[0] for name in found.equals} == {"H100", "H200", "B200", "RTXPRO6000"}
    assert separate("H100", "B200") is None
    assert separate(get("A100"), get("T4")) is None


@pytest.mark.parametrize("k", [3, 7, 16])
def test_a_row_that_one_block_may_hold_is_refused(k: int) -> None:
    match = rf"tensorcore.probe\(.*k={k}\): k={k}: all products share one block, which may be longer; pass more"
    with pytest.raises(LabError, match=match):
        probe(box(get("H100")), k=k)
    with pytest.raises(LabError, match=r"tensorcore.probe\(.*k=2\): k=2 is not possible; allowed: 3 to"):
        probe(box(get("H100")), k=2)


@pytest.mark.parametrize(("cell", "k"), [(("A100", "fp16", "fp16"), 16), (("T4", "fp16", "fp16"), 8),
                                         (("A2", "tf32"), 8), (("H100", "tf32", "fp32", "mma.k4"), 4)])  # fmt: skip
def test_the_length_of_an_instruction_is_found(cell: tuple[str, ...], k: int) -> None:
    """By the sign of zero, which only a row of whole instructions keeps."""
    found = probe(box(get(*cell)), get(*cell).a, get(*cell).output, k=40)
    assert found.model.k == get(*cell).k == k


def test_interleaving_is_found() -> None:
    found = probe(box(get("H100", "e4m3", "fp16", "mma")), "e4m3", "fp16")
    assert found.blocks[0] == tuple(k for k in range(32) if k % 4 < 2)
    assert found.blocks[1] == tuple(k for k in range(32) if k % 4 >= 2)
    assert not found.c_inside


def test_what_is_no_fused_block_is_refused() -> None:
    def sequential(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        total = c.copy()
        for k in range(a.shape[1]):
            total = total + a[:, k] * b[:, k]
        return total

    with pytest.raises(LabError, match=r"fused block|known here"):
        probe(sequential)
    with pytest.raises(LabError, match="no arithmetic that is known here gives these outputs for 'int8'"):
        probe(lambda a, b, c: sequential(a, b, c) + 1, "int8")
    with pytest.raises(LabError, match="inputs='e2m1', output='fp64' is no cell of the table, nor like one"):
        probe(sequential, "e2m1", "fp64")


OTHERS = [group[0] for group in classes() if group[0] not in PROBED]


@pytest.mark.parametrize("model", OTHERS, ids=lambda m: m.name)
def test_every_other_class_of_the_table_is_recovered(model: Model) -> None:
    """Mixed inputs, FP6 and FP4, block scales, INT8 and FP64: a member of the class comes out, and no other class."""
    found = probe(scaled_box(model), input_name(model), model.output if model.output in ("fp16", "fp32") else "fp32")
    assert model.name in found.equals
    seen = {"kind", "length", "alignment_bits", "kept_bits", "rounding", "saturate"} - set(found.undecided)
    assert {name: getattr(found.model, name) for name in seen} == {name: getattr(model, name) for name in seen}
    assert {"kind", "length", "kept_bits", "rounding", "saturate"} <= seen
    assert "alignment_bits" in seen or model.output == "fp16"  # whose 10 bits hide the crumbs of so narrow products


def scaled_box(model: Model):
    """A black box that takes block scales where its model has them."""
    return lambda a, b, c, *s: dot(a, b, c, gpu=model, **dict(zip(("scale_a", "scale_b"), s, strict=False)))


@pytest.mark.parametrize(
    ("cell", "change", "inputs"),
    [
        (("B200", "nvfp4"), {"alignment_bits": 27}, "nvfp4"),
        (("B200", "nvfp4"), {"zero_group": "skipped"}, "nvfp4"),
        (("B200", "mxfp8_e4m3"), {"alignment_bits": 22}, "mxfp8_e4m3"),
        (("RTXPRO6000", ("e2m1", "e3m2")), {"alignment_bits": 23, "length": 8, "k": 8}, ("e2m1", "e3m2")),
        (("T4", "int8"), {"saturate": True}, "int8"),
    ],
)
def test_arithmetic_that_no_gpu_of_the_table_has(cell, change, inputs) -> None:
    model = dataclasses.replace(get(*cell), **change)
    found = probe(scaled_box(model), inputs)
    assert {name: getattr(found.model, name) for name in change} == change
    assert not found.equals


def test_classes_are_what_separation_cannot_part() -> None:
    assert sum(map(len, classes())) == len(TABLE)
    groups = [g for g in classes() if (g[0].a, g[0].b) in (("fp16", "fp16"), ("e4m3", "e5m2")) and not g[0].scale]
    halves = next(g for g in groups if get("H100") in g)
    assert {m.gpu for m in halves} == {"H100", "H200", "B200", "RTXPRO6000"}
    assert separate(halves[0], halves[-1]) is None
    pairs = [(g[0], h[0]) for n, g in enumerate(groups) for h in groups[:n] if key(g[0]) == key(h[0])]
    assert len(pairs) > 12
    for x, y in [*pairs[::6], (get("A100", "bf16"), get("H100", "bf16"))]:
        assert (separate(x, y) is None) == hidden(x, y)


def key(m: Model) -> tuple[str, str, str]:
    return m.a, m.b, m.output


# Each pair once, some from the newer side.
PAIRS = {frozenset(pair): pair for pair in itertools.product((*GPUS[:3], "Ada", "H100"), GENERATIONS)
         if len(set(pair)) == 2}.values()  # fmt: skip


def hidden(x: Model, y: Model) -> bool:
    """Whether only the floor or bits that the output cannot show tell two models apart."""
    return all(getattr(x, n) == getattr(y, n) for n in ("kind", "length", "kept_bits", "alignment_bits"))


@pytest.mark.parametrize("pair", PAIRS)
def test_separations_are_real(pair: tuple[str, str]) -> None:
    one, two = get(pair[0]), get(pair[1])
    found = separate(one, two)
    same = (one.length, one.alignment_bits) == (two.length, two.alignment_bits)
    assert (found is None) == same
    if found is None:
        return
    assert found.bits != found.other_bits
    assert exact_bits(one, found.a, found.b, found.c) == found.bits
    assert exact_bits(two, found.a, found.b, found.c) == found.other_bits
    assert found.products <= 2
    live = np.flatnonzero(found.a * found.b)
    for n in live:  # no product can be left out
        a = found.a.copy()
        a[n] = 0
        rows = [bits(dot(a, found.b, found.c, gpu=m)) for m in (one, two)]
        assert rows[0] == rows[1]


def test_separation_of_block_lengths() -> None:
    """The same F in blocks of 16 and 8: it takes a second block."""
    found = separate(get("H100", instruction="mma.k16"), get("H100", instruction="mma.k8"))
    assert found is not None
    assert found.a.size > 8
    assert "or" in str(found)
    with pytest.raises(LabError, match="INT8 and FP64"):
        separate(get("H100", "int8"), get("H100"))
