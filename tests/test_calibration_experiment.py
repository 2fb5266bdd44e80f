"""The experiment calibration: its measures, claims that can fail, cases, drawings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from experiment_frame import Mutant, computed_on_cpu, drawn, forged, frame, kills

from fplab.errors import LabError
from fplab.experiments import calibration
from fplab.experiments.calibration import cases, checks, data
from fplab.hardware.cases import Arrays
from fplab.nn import fake_quantization

QUICK = calibration.QUICK

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(calibration, QUICK)


def test_shapes(arrays: Arrays) -> None:
    bits, schemes, rules = len(data.BITS), len(data.SCHEMES), len(data.RULES)
    assert arrays["right"].shape == arrays["losses"].shape == arrays["errors"].shape == (4, bits, schemes, rules)
    assert np.isfinite(arrays["right"]).sum(axis=(1, 3)).tolist() == [[21] * 4, *[[14, 0, 0, 0]] * 3]
    assert arrays["amax"].shape == (1, bits, 2, rules, 4)
    assert arrays["qat_right"].shape == (4, len(data.THROUGH), 3)
    assert arrays["steps"].tolist() == [0, 11, 22]
    assert arrays["counts"].sum(axis=1).tolist() == [1438 * n for n in (64, 16 * 64, 32 * 16, 256)]


def test_training_starts_from_the_quantised_net(arrays: Arrays) -> None:
    """Step 0 of an epoch through integers is post-training quantisation per tensor, symmetric."""
    for i, (bits, rule, _) in enumerate(data.THROUGH):
        start = arrays["right"][0, data.BITS.index(bits), 0, data.RULES.index(rule)]
        assert arrays["qat_right"][0, i, 0] == start


class Blocked(fake_quantization._LearnedStep):
    """Nothing passes straight through; the scale has its gradient."""

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        through, *rest = super(Blocked, Blocked).backward(ctx, *grads)
        return torch.zeros_like(through), *rest


def one_combination(arrays: Arrays) -> Arrays:
    arrays["right"][:, data.BITS.index(8), 0, 2] -= 5
    return arrays


def wider(arrays: Arrays) -> Arrays:
    arrays["errors"][:, data.BITS.index(4)] *= 2.5
    return arrays


def spared_by_entropy(arrays: Arrays) -> Arrays:
    arrays["right"][:, data.BITS.index(4), :, checks.ENTROPY] = arrays["fp32_right"][:, None] - 20
    return arrays


TINY = data.Params(epochs=1, seeds=1, every=22)
MUTANTS = (
    Mutant("a straight-through gradient of zero", ("one epoch",), "fplab.nn.fake_quantization._LearnedStep",
           lambda good: Blocked),
    Mutant("learned ranges that stay", ("a learned range",),
           change=lambda a: {"qat_right": a["qat_right"][:, [0, 0]]}),
    Mutant("values a little too large", ("fake quantisation", "integer codes"), "fplab.integers.dequantize",
           lambda good: lambda *args: good(*args) * np.float32(1 + 2.0**-20), params=TINY),
    Mutant("five digits lost in INT8", ("in INT8",), change=one_combination),
    Mutant("five bits fewer", ("four bits fewer",), change=wider),
    Mutant("entropy harmless", ("in INT4",), change=spared_by_entropy),
    Mutant("entropy that cuts whatever the bins", ("in INT4",), change=lambda a: {"kept": np.minimum(a["kept"], 0.07)}),
)  # fmt: skip

test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(calibration, QUICK, MUTANTS)


def test_the_case_of_fake_quantisation_is_the_labs_bits_on_the_cpu() -> None:
    for name, found in computed_on_cpu(calibration.gpu_cases(QUICK)[0]).items():
        assert not name.endswith("gradient") or 0 < found.view(np.float32).mean() < 1


def test_the_open_case_has_the_answer_of_this_processor_among_its_hypotheses() -> None:
    case = calibration.gpu_cases(QUICK)[1]
    inputs = case.inputs()
    found = case.compute(inputs, "cpu")
    answers = [hypothesis(inputs, {}) for hypothesis in case.hypotheses.values()]
    assert any(all(np.array_equal(found[k], answer[k]) for k in found) for answer in answers)
    forged(case)
    assert np.array_equal(found["tensor"], cases.saturates(inputs, {})["tensor"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_and_the_table(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    assert drawn(calibration, arrays, QUICK, theme, tmp_path)[1] > 50_000
    table = calibration.table(arrays, QUICK)
    assert {len(column) for column in table.values()} == {3 * 4 * 7}
    assert table["right"][0] == arrays["right"][:, 0, 0, 0].mean() / 359


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
