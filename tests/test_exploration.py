"""Units that nobody has built: their points, GPUs' own among them, and the narrowest adders for an error."""

import itertools

import numpy as np
import pytest
import refusals

from fplab import tensorcore
from fplab.tensorcore.exploration import Exploration, Point, explore
from fplab.tensorcore.plan import ONE_CHAIN

A, B = np.random.default_rng(35).normal(size=(2, 16, 512))


@pytest.mark.parametrize("inputs", ["e4m3", "fp16", "bf16", "tf32"])
def test_gpus_points_are_the_errors_of_their_units(inputs):
    of_gpus = explore((A, B.T), inputs=inputs, accumulator_bits=8).of_gpus()
    assert {"H100", "B200"} <= set(of_gpus)
    exact = tensorcore.operands.read(A, "a", inputs, None, False).astype(np.float64) @ (
        tensorcore.operands.read(B.T, "b", inputs, None, False).astype(np.float64)
    )
    for gpu, (point,) in of_gpus.items():
        model = tensorcore.get(gpu, inputs)
        if model.kind == "block":  # Hopper's FP8 has an instruction of another kind as well
            assert (point.accumulator_bits, point.block) == (model.kept_bits + 1, model.length)
            error = tensorcore.matmul(A, B.T, gpu=gpu, inputs=inputs) - exact
            assert point.error == np.linalg.norm(error) / np.linalg.norm(exact)


def test_the_front_is_what_no_narrower_adder_reaches():
    e = explore((A, B.T), accumulator_bits=range(6, 24), guard_bits=range(4), block=(4, 32), rounding=("rtz", "rne"))
    front = e.pareto()
    for point in e.points:
        if point not in front:
            assert any(p.adder_bits <= point.adder_bits and p.error <= point.error for p in front)
    assert all(x.adder_bits < y.adder_bits and x.error > y.error for x, y in itertools.pairwise(front))


def test_a_measure_of_ones_own_is_given_every_unit_and_plan():
    plans = ONE_CHAIN, tensorcore.Plan(promote=128)
    e = explore(lambda model, plan: model.kept_bits + (plan.promote or 0), accumulator_bits=5, block=8, order=plans)
    assert {(p.error, p.order.promote) for p in e.points if not p.gpus} == {(4.0, None), (132.0, 128)}
    assert list(e.columns())[:5] == ["accumulator_bits", "guard_bits", "block", "rounding", "order"]


def test_equal_errors_prefer_a_gpus_own_unit():
    point = Point(8, 0, 16, "rtz", ONE_CHAIN, 0.5)
    mine, theirs = point, Point(8, 0, 32, "rtz", ONE_CHAIN, 0.5, ("H100",))
    assert Exploration("e4m3", (mine, theirs)).pareto() == (theirs,)


test_what_no_unit_has_and_what_is_no_product_is_refused = refusals.matching(
    (lambda: explore((A, B.T), inputs="int8"), r"inputs='int8' is not possible; allowed: bf16, e2m1, .*fp16, tf32"),
    (lambda: explore((A, B.T), accumulator_bits=25), r"accumulator_bits=25 is not possible; allowed: 2 to 24"),
    (lambda: explore((A, B.T), block=(16, 65)), r"block=65 is not possible; allowed: 1 to 64"),
    (lambda: explore((A, B.T), rounding="rtp"), r"unknown rounding 'rtp'. Allowed: rtz, rne"),
    (lambda: explore((A, B)), r"given has shapes \(16, 512\) and \(16, 512\); allowed: \(M, K\) and \(K, N\)"),
    (lambda: explore(A), r"given=.* is not possible; allowed: two matrices, or a function of unit and plan"),
)
