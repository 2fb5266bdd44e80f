"""The experiment calibration: its measures, claims that can fail, cases, drawings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from experiment_frame import computed_on_cpu, drawn, frame

from fplab import training
from fplab.errors import LabError
from fplab.experiments import calibration
from fplab.experiments.base import Status
from fplab.experiments.calibration import cases, checks, data
from fplab.hardware.cases import Arrays
from fplab.nn import observe

QUICK = calibration.QUICK

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(calibration, QUICK, absent="^seeds differ")


def test_the_histogram_that_checks_read_is_the_one_collected(arrays: Arrays) -> None:
    images, _ = training.tensors(training.digits("train"))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    seen = observe(model, torch.split(images, QUICK.collect))["1"]
    again = checks.histogram(arrays, 0)
    assert np.array_equal(seen.counts, again.counts)
    assert (seen.width, seen.amax) == (again.width, again.amax)
    for rule in ("max", "p99.99", "entropy", "mse"):
        amax = arrays["amax"][0, data.BITS.index(8), 0, data.RULES.index(rule), 0]
        assert next(r for r in checks.CALIBRATORS if r.name == rule).amax(seen, "int8") == amax


def test_shapes(arrays: Arrays) -> None:
    bits, schemes, rules = len(data.BITS), len(data.SCHEMES), len(data.RULES)
    assert arrays["right"].shape == arrays["losses"].shape == arrays["errors"].shape == (1, bits, schemes, rules)
    assert arrays["amax"].shape == (1, bits, 2, rules, 4)
    assert arrays["qat_right"].shape == (1, len(data.THROUGH), 7)
    assert arrays["steps"].tolist() == [0, 4, 8, 12, 16, 20, 22]
    assert arrays["counts"].sum(axis=1).tolist() == [1438 * n for n in (64, 16 * 64, 32 * 16, 256)]


def test_training_starts_from_the_quantised_net(arrays: Arrays) -> None:
    """Step 0 of an epoch through integers is post-training quantisation per tensor, symmetric."""
    for i, (bits, rule, _) in enumerate(data.THROUGH):
        start = arrays["right"][0, data.BITS.index(bits), 0, data.RULES.index(rule)]
        assert arrays["qat_right"][0, i, 0] == start


def test_checks_can_fail(arrays: Arrays) -> None:
    def failing(check, **changed: np.ndarray) -> bool:  # type: ignore[no-untyped-def]
        return check(arrays | changed, QUICK).status is Status.FAIL

    assert failing(checks.check_percentiles, amax=arrays["amax"] * 1.001)
    spoiled = arrays["amax"].copy()
    spoiled[..., data.RULES.index("entropy"), 1] *= 0.4
    assert failing(checks.check_entropy, amax=spoiled)
    assert failing(checks.check_int8, right=arrays["right"] - 4)
    assert failing(checks.check_four_bits, errors=np.ones_like(arrays["errors"]))
    assert failing(checks.check_entropy_fails, right=np.full_like(arrays["right"], arrays["fp32_right"][0]))
    assert failing(checks.check_trained, qat_right=arrays["qat_right"] - 6)
    assert failing(checks.check_learned, qat_right=arrays["qat_right"][:, [0, 1, 1, 3, 3]])


@pytest.mark.parametrize(("end", "status"), [(0.04, Status.PASS), (0.06, Status.FAIL)])
def test_a_single_network_does_not_say_how_much_loss_comes_back(end: float, status: Status, arrays: Arrays) -> None:
    losses = np.broadcast_to(arrays["fp32_loss"] + np.array([0.1, end]), (3, len(data.THROUGH), 2))
    assert checks.check_three_bits(arrays | {"qat_losses": losses}, QUICK).status is status
    assert checks.check_three_bits(arrays, QUICK).status is Status.ABSENT


def test_wrong_arithmetic_is_found(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    right = checks.integers.dequantize
    monkeypatch.setattr(checks.integers, "dequantize", lambda *a: np.nextafter(right(*a), np.float32(9)))
    assert checks.check_torch(arrays, QUICK).status is Status.FAIL
    monkeypatch.undo()
    monkeypatch.setattr(checks.integers, "int_matmul", lambda a, b: a.astype(int) @ b.astype(int) + 1)
    assert checks.check_integers(arrays, QUICK).status is Status.FAIL


def test_the_case_of_fake_quantisation_is_the_labs_bits_on_the_cpu() -> None:
    for name, found in computed_on_cpu(calibration.gpu_cases(QUICK)[0]).items():
        assert not name.endswith("gradient") or 0 < found.view(np.float32).mean() < 1


def test_the_open_case_has_the_answer_of_this_processor_among_its_hypotheses() -> None:
    case = calibration.gpu_cases(QUICK)[1]
    inputs = case.inputs()
    found = case.compute(inputs, "cpu")
    answers = [hypothesis(inputs, {}) for hypothesis in case.hypotheses.values()]
    assert any(all(np.array_equal(found[k], answer[k]) for k in found) for answer in answers)
    assert case.open
    assert np.array_equal(found["tensor"], cases.saturates(inputs, {})["tensor"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_and_the_table(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    assert drawn(calibration, arrays, QUICK, theme, tmp_path)[1] > 50_000
    table = calibration.table(arrays, QUICK)
    assert {len(column) for column in table.values()} == {3 * 4 * 7}
    assert table["right"][0] == arrays["right"][0, 0, 0, 0] / 359


def test_a_histogram_of_nothing_is_not_drawn() -> None:
    from matplotlib.figure import Figure

    from fplab.draw.calibration import magnitude_histogram

    with pytest.raises(LabError, match=r"counts have shape \(3,\) and sum 0; they must be 1-d and not all zero"):
        magnitude_histogram(Figure().subplots(), np.zeros(3, np.int64), 0.1)


def test_bars_add_up_neighbouring_bins() -> None:
    from matplotlib.figure import Figure

    from fplab.draw.calibration import DRAWN, magnitude_histogram

    ax = Figure().subplots()
    magnitude_histogram(ax, np.r_[np.arange(1, 1001), np.zeros(50, np.int64)], 0.5)
    (patch,) = ax.patches
    values, edges, _ = patch.get_data()
    assert len(values) <= DRAWN
    assert values.sum() == 500500
    assert edges[-1] == 500.0
