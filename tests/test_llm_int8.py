"""The experiment llm_int8: planting, measures, claims that can fail, cases."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiment_frame import computed_on_cpu, drawn, frame

from fplab.experiments import llm_int8
from fplab.experiments.base import Status
from fplab.experiments.llm_int8 import checks, data, planting, published
from fplab.hardware.cases import Arrays, Case
from fplab.nn import int8_layers
from fplab.training import tasks

SMALL = replace(
    llm_int8.QUICK, steps=40, windows=8, dimensions=(0, 7), thresholds=(0.0, 6.0, 64.0), groups=(16, 64)
)  # fmt: skip

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
    first, second = (planting.trained(params, lambda f, t: None) for _ in range(2))
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


def test_checks_can_fail(arrays: Arrays) -> None:
    def failing(check, **changed: np.ndarray) -> bool:  # type: ignore[no-untyped-def]
        return check(arrays | changed, SMALL).status is Status.FAIL

    assert failing(checks.check_unchanged, unchanged=np.array([1, 0]))
    assert failing(checks.check_planted, inputs=arrays["plain_inputs"])
    assert failing(checks.check_planted, inputs=arrays["inputs"] * np.float32(4))
    assert failing(checks.check_decomposition, errors=np.ones_like(arrays["errors"]))
    assert failing(checks.check_prediction, divergences=arrays["divergences"][::-1])
    assert failing(checks.check_threshold, int8_shares=np.ones(3))
    for method in range(3):  # each of those that have a threshold
        flat = arrays["threshold_errors"].copy()
        flat[method] = 1
        assert failing(checks.check_threshold, threshold_errors=flat)
    assert failing(checks.check_table1, published=arrays["published"] + 1)


def test_a_wrong_product_is_found(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    right = checks.integers.matmul
    monkeypatch.setattr(checks.integers, "matmul", lambda *a: np.nextafter(right(*a), np.float32(9)))
    assert checks.check_oracle(arrays, SMALL).status is Status.FAIL
    exact = checks.integers.int_matmul
    monkeypatch.setattr(int8_layers, "saturates_here", lambda: False)
    monkeypatch.setattr(checks.integers, "int_matmul", lambda *a: exact(*a) + 1)
    assert checks.check_int_mm(arrays, SMALL).detail.startswith("layer 0: ")


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
