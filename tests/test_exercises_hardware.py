"""The exercises of chapter 13 against the lab: their black boxes are the arithmetic that they say they are."""

import numpy as np
import pytest
from answers_here import cases_of

import fplab
from fplab import tensorcore
from fplab.exercises.chapters import hardware
from fplab.experiments.outcomes import Status, same_bits


@pytest.mark.parametrize(("gpu", "inputs"), [("V100", "fp16"), ("A100", "bf16"), ("H100", "bf16")])
def test_a_black_box_adds_as_a_tensor_core_block_of_as_many_bits(gpu, inputs):
    model = tensorcore.get(gpu, inputs)
    box, rng = hardware.Block(model.alignment_bits), np.random.default_rng(1)
    for _ in range(200):
        rows = np.ldexp(rng.integers(-3, 4, model.length), rng.integers(-9, 9, model.length)).astype(np.float32)
        c = float(np.float32(rng.standard_normal() * 2.0 ** rng.integers(-20, 20)))
        wanted = float(tensorcore.dot(rows, np.ones(model.length), c, gpu=model))
        assert box([*rows.tolist(), c]) == wanted


@pytest.mark.parametrize(("gpu", "inputs"), [("V100", "fp16"), ("A100", "bf16"), ("H100", "bf16")])
def test_the_reference_counts_the_bits_of_the_models(gpu, inputs):
    def box(terms):
        return float(tensorcore.dot(terms, [1.0] * len(terms), 0.0, gpu=gpu, inputs=inputs))

    assert hardware.fraction_bits(box) == tensorcore.get(gpu, inputs).alignment_bits


@pytest.mark.parametrize("order", hardware.ORDERS)
@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_the_reference_finds_the_sizes_of_the_tree_that_the_lab_reveals(order, n):
    add = hardware.Adder(order)
    sizes = revealed(add, n).sizes
    found = {(i, j): hardware.met_in(add, n, i, j) for j in range(n) for i in range(j)}
    assert found == {(i, j): sizes[i, j] for i, j in found}


def revealed(add, n):
    return fplab.reveal_order(lambda x: np.float32(add(x.tolist())), n)


def test_the_orders_are_different_sums():
    trees = {order: str(revealed(hardware.Adder(order), 9)) for order in hardware.ORDERS}
    assert len(set(trees.values())) == len(trees)
    assert trees["blocks"] == "(((0..3) 4..7) 8)"


def test_the_first_difference_is_the_one_that_a_comparison_reports():
    for ours, recorded in cases_of("first_difference"):
        outcome = same_bits(*(np.array(x, np.uint32) for x in (ours, recorded)), "fp32")
        found = hardware.first_difference(list(ours), list(recorded))
        assert (outcome.status is Status.PASS) == (found == -1)
        assert found == -1 or f"first at {found}:" in str(outcome.detail)


def test_h100_and_b200_part_in_fp8_alone():
    for inputs in hardware.HALVES:
        assert tensorcore.separate(tensorcore.get("H100", inputs), tensorcore.get("B200", inputs)) is None
    for inputs in hardware.EIGHTS:
        found = tensorcore.separate(tensorcore.get("H100", inputs), tensorcore.get("B200", inputs))
        assert hardware.h100_b200((inputs, tuple(found.a.tolist()), tuple(found.b.tolist()), found.c)).holds
