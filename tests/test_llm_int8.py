"""The experiment llm_int8: planting, measures, claims that can fail, cases."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiment_frame import Mutant, computed_on_cpu, drawn, frame, kills

from fplab.experiments import llm_int8
from fplab.experiments.llm_int8 import data, planting, published
from fplab.hardware.cases import Arrays, Case
from fplab.nn import int8_layers
from fplab.training import tasks

SMALL = replace(
    llm_int8.QUICK, steps=40, windows=8, dimensions=(0, 7), thresholds=(0.0, 6.0, 64.0), groups=(8, 64)
)  # fmt: skip
TINY = replace(SMALL, steps=2, seeds=(0, 1), windows=2)
NO_VNNI = int8_layers.saturates_here()

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(
    llm_int8, SMALL, absent=r"^torch\._int_mm saturates"
)


def test_planting_changes_no_bit_and_only_what_it_says() -> None:
    model = tasks.characters(width=32, layers=1, heads=2, context=16).model(1)
    tokens = torch.arange(32).reshape(2, 16)
    outlying = planting.planted(model, 3)
    with torch.no_grad():
        assert torch.equal(outlying(tokens), model(tokens))
    at = planting.outlier_dimensions(32, 3)
    for (_, x), (_, y) in zip(planting.readers(model, tokens), planting.readers(outlying, tokens), strict=True):
        ratio = (y / x).numpy()
        assert (ratio[:, at] == planting.GAIN).all()
        assert (np.delete(ratio, at, axis=1) == 1).all()
    assert len(planting.readers(model, tokens)) == 2


def test_a_gain_that_is_no_power_of_two_changes_bits() -> None:
    model = tasks.characters(width=32, layers=1, heads=2, context=16).model(1)
    tokens = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        assert not torch.equal(planting.planted(model, 3, gain=15.0)(tokens), model(tokens))


def test_outlier_dimensions_are_distinct_and_nested() -> None:
    for width in (64, 128, 100):
        seven = planting.outlier_dimensions(width, 7)
        assert len(set(seven)) == 7
        assert planting.outlier_dimensions(width, 4) == seven[:4]


def test_training_is_the_same_each_time() -> None:
    params = replace(SMALL, steps=3)
    first, second = (planting.trained(params, 0, lambda f, t: None) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[0].parameters(), second[0].parameters(), strict=True))
    assert first[1].shape == first[2].shape == (8, 32)
    assert torch.equal(first[1][:, 1:], first[2][:, :-1])


def test_divergence_is_the_definition() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 7)).astype(np.float32)
    p, q = (np.exp(x.astype(np.float64)) for x in (a, b))
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    assert data.divergence(a, b) == pytest.approx((p * np.log(p / q)).sum(axis=1).mean(), rel=1e-12)
    assert data.divergence(a, a) == 0


def test_the_published_table_is_complete() -> None:
    assert set(published.TABLE1) == {published.BASELINE, *data.NAMES}
    assert all(len(line) == len(published.SIZES) for line in published.TABLE1.values())
    assert published.TABLE1["absmax"][-1] == 19.08
    assert published.TABLE1["llm_int8"] == (25.83, 15.93, 14.44, 13.24, 12.45)


def one_digit(arrays: Arrays) -> Arrays:
    arrays["published"][arrays["published"] == 16.48] = 16.84
    return arrays


def without_decomposition(good):  # type: ignore[no-untyped-def]
    """Products with outliers in INT8, whatever the threshold."""
    return lambda reading, exact, name, threshold=6.0: good(reading, exact, name, data.INFINITY)


COUNTED = "errors, losses and divergences"
MUTANTS = (
    Mutant("a gain that is no power of two", ("planted outliers",), "data.planted",
           lambda good: lambda model, n: good(model, n, 15.0), params=TINY),
    Mutant("a gain of 2", ("the planted dimensions", "with outliers", "at the paper's"), "data.planted",
           lambda good: lambda model, n: good(model, n, 2.0), params=TINY),
    Mutant("one dimension more is planted", ("the planted dimensions", "at the paper's"), "data.planted",
           lambda good: lambda model, n: good(model, n + 1), params=TINY),
    Mutant("outliers stay in INT8", ("with outliers", "at the paper's"), "data.product_error", without_decomposition,
           params=TINY),
    Mutant("methods in another order", ("LLM.int8() predicts", "with outliers"),
           change=lambda a: {n: a[n][:, ::-1] for n in ("each_divergences", "each_errors")}),
    Mutant("losses by method in another order", (COUNTED,), change=lambda a: {"losses": a["losses"][::-1]}),
    Mutant("losses by threshold reversed", (COUNTED,),
           change=lambda a: {"threshold_losses": a["threshold_losses"][:, ::-1]}),
    Mutant("INT4 losses in another order", (COUNTED,), change=lambda a: {"int4_losses": a["int4_losses"][::-1]}),
    Mutant("a loss in FP32 of another run", (COUNTED,), change=lambda a: {"fp32_loss": a["fp32_loss"] + 1e-3}),
    Mutant("groups in another order", ("INT4 weights",),
           change=lambda a: {"each_int4_errors": a["each_int4_errors"][:, ::-1]}),
    Mutant("16.48 in Table 1 changed", ("the paper's Table 1",), change=one_digit),
    *(() if NO_VNNI else (
        Mutant("INT32 sums off by one", ("INT32 sums",), "fplab.integers.int_matmul",
               lambda good: lambda a, b: good(a, b) + 1, params=TINY),)),
)  # fmt: skip

test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(
    llm_int8, SMALL, MUTANTS, spared=("INT32 sums",) if NO_VNNI else ()
)


@pytest.mark.parametrize("case", llm_int8.gpu_cases(SMALL), ids=lambda c: c.name)
def test_cases_on_the_cpu_are_the_labs_bits(case: Case) -> None:
    assert all(x.any() for x in computed_on_cpu(case).values())


def test_cases_need_numpy_and_torch_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('numba', 'matplotlib', 'ml_dtypes'): sys.modules[name] = None\n"
        "from fplab.experiments import calibration, llm_int8\n"
        "for one in (calibration, llm_int8):\n"
        "    for case in one.gpu_cases(one.QUICK):\n"
        "        inputs = case.inputs(); case.compute(inputs, 'cpu'); case.emulate(inputs, {})\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "done"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_and_the_table(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    assert drawn(llm_int8, arrays, SMALL, theme, tmp_path)[1] > 50_000
    table = llm_int8.table(arrays, SMALL)
    assert {len(column) for column in table.values()} == {8 * 2 + 3 * 3 + 2 + 9 * 5}
