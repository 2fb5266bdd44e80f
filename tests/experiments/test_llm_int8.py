"""The experiment on LLM.int8()."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.frame import Mutant, frame
from fplab.experiments import llm_int8
from fplab.experiments.llm_int8 import E, planting
from fplab.nn import int8_layers
from fplab.training import tasks

SMALL = replace(E.quick, dimensions=(0, 7))
TINY = replace(SMALL, layers=1, steps=2, seeds=(0, 1), windows=2)
NO_VNNI = int8_layers.saturates_here()


MUTANTS = (
    Mutant("a gain that is no power of two", ("unchanged",), "planting.planted",
           lambda good: lambda model, n: good(model, n, 15.0), params=TINY),
    Mutant("a gain of 2", ("criterion", "decomposition", "threshold_6"), "planting.planted",
           lambda good: lambda model, n: good(model, n, 2.0), params=TINY),
    Mutant("one dimension more is planted", ("criterion", "threshold_6"), "planting.planted",
           lambda good: lambda model, n: good(model, n + 1), params=TINY),
    Mutant("outliers stay in INT8", ("decomposition", "threshold_6"), "planting.product_error",
           lambda good: lambda reading, exact, name, threshold=6.0: good(reading, exact, name, float("inf")),
           params=TINY),
    Mutant("a network whose outliers stay in INT8", ("prediction",), "fplab.nn.int8_linears",
           lambda good: lambda model, name, threshold=6.0, **how: good(model, name, float("inf"), **how), params=TINY),
    Mutant("one scale for all groups", ("int4_groups", "recounted"), "fplab.nn.Int4Linear",
           lambda good: lambda linear, group: good(linear, linear.in_features), params=TINY),
    Mutant("16.48 in Table 1 is 16.84", ("table1",), "TABLE1",
           lambda good: {**good, "vectorwise": (*good["vectorwise"][:-1], 16.84)}, params=TINY),
    *(() if NO_VNNI else (
        Mutant("INT32 sums off by one", ("int32_sums",), "fplab.integers.int_matmul",
               lambda good: lambda a, b: good(a, b) + 1, params=TINY),)),
)  # fmt: skip

spared = ("int32_sums",) if NO_VNNI else ()
globals().update(frame(llm_int8, SMALL, MUTANTS, spared, absent=r"^torch\._int_mm saturates"))


def test_planting_changes_no_bit_and_only_what_it_says() -> None:
    model = tasks.characters(width=32, layers=1, heads=2, context=16).model(1)
    tokens = torch.arange(32).reshape(2, 16)
    outlying = planting.planted(model, 3)
    with torch.no_grad():
        assert torch.equal(outlying(tokens), model(tokens))
        assert not torch.equal(planting.planted(model, 3, gain=15.0)(tokens), model(tokens))
    at = planting.outlier_dimensions(32, 3)
    for (_, x), (_, y) in zip(planting.readers(model, tokens), planting.readers(outlying, tokens), strict=True):
        ratio = (y / x).numpy()
        assert (ratio[:, at] == planting.GAIN).all()
        assert (np.delete(ratio, at, axis=1) == 1).all()
    assert len(planting.readers(model, tokens)) == 2


@pytest.mark.parametrize("width", [64, 128, 100])
def test_outlier_dimensions_are_distinct_and_nested(width: int) -> None:
    seven = planting.outlier_dimensions(width, 7)
    assert len(set(seven)) == 7
    assert planting.outlier_dimensions(width, 4) == seven[:4]


def test_training_is_the_same_each_time() -> None:
    first, second = (planting.trained(replace(SMALL, steps=3), 0) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[0].parameters(), second[0].parameters(), strict=True))
    assert first[1].shape == first[2].shape == (8, 32)
    assert torch.equal(first[1][:, 1:], first[2][:, :-1])


def test_divergence_is_the_definition() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    p, q = (np.exp(x.astype(np.float64)) for x in (a, b))
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    assert planting.divergence(a, b) == pytest.approx((p * np.log(p / q)).sum(axis=1).mean(), rel=1e-12)
    assert planting.divergence(a, a) == 0
