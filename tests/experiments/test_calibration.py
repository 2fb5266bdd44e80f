"""The experiment on calibration."""

from typing import Any

import numpy as np
import pytest
import torch

from experiments.frame import Mutant, Recorded, frame
from fplab import training
from fplab.errors import LabError
from fplab.experiments import calibration
from fplab.nn import fake_quantization
from fplab.training.loop import one_thread


class Blocked(fake_quantization._LearnedStep):
    """Nothing passes straight through; the scale has its gradient."""

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        through, *rest = super(Blocked, Blocked).backward(ctx, *grads)
        return torch.zeros_like(through), *rest


class Fixed(fake_quantization._LearnedStep):
    """The gradient passes straight through; the scale has none."""

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        through, scale, *rest = super(Fixed, Fixed).backward(ctx, *grads)
        return through, torch.zeros_like(scale), *rest


RECORDED = Recorded(calibration, "quantised", "trained_through")


def epochs(result: Any) -> dict[str, Any]:
    """The epochs through integers, from where they began."""
    with one_thread():
        return {"qat_right": np.stack([found["qat_right"] for found, _ in RECORDED.again("trained_through")])}


def quantised(result: Any) -> dict[str, Any]:
    """Post-training quantisation of the trained networks."""
    with one_thread():
        every = RECORDED.again("quantised")
    return {name: np.stack([found[name] for found in every]) for name in every[0]}


def kept(result: Any) -> dict[str, Any]:
    """What entropy keeps of the images' range."""
    images = training.tensors(training.digits("train"))[0].numpy()
    return {"kept": np.array([calibration.kept(images, bins) for bins in calibration.FEWER + calibration.MORE])}


def nothing(result: Any) -> dict[str, Any]:
    """What claims compute themselves."""
    return {}


STEP, DIVERGENCES = "fplab.nn.fake_quantization._LearnedStep", "fplab.integers.calibration.all_divergences"
EXCHANGED = {8: 4, 4: 8, 3: 3}
MUTANTS = (
    Mutant("a straight-through gradient of zero", ("trained_back",), STEP, lambda good: Blocked, part=epochs),
    Mutant("a straight-through gradient of zero, ranges fixed", ("torch_fake",),
           "fplab.nn.fake_quantization._FakeQuantize.backward",
           lambda good: staticmethod(lambda ctx, *grads: (torch.zeros_like(grads[0]), None, None, None)), part=nothing),
    Mutant("a scale without a gradient", ("learned",), STEP, lambda good: Fixed, part=epochs),
    Mutant("values a little too large", ("torch_fake", "integer_codes"), "fplab.integers.dequantize",
           lambda good: lambda *args: good(*args) * np.float32(1 + 2.0**-20), part=nothing),
    Mutant("INT8 and INT4 exchanged", ("int8", "four_bits", "entropy_fails"), "grid_names",
           lambda good: lambda bits, zero_point: good(EXCHANGED[bits], zero_point), part=quantised),
    Mutant("entropy by the levels of INT8", ("entropy_fails",), DIVERGENCES,
           lambda good: lambda bins, start, levels: good(bins, start, 128), part=kept),
    Mutant("entropy that cuts whatever the bins", ("entropy_fails",), DIVERGENCES,
           lambda good: lambda bins, start, levels: np.arange(len(bins) + 1 - start), part=kept),
)  # fmt: skip

globals().update(frame(calibration, calibration.QUICK, MUTANTS, recorded=RECORDED))


def test_shapes(result: Any) -> None:
    bits, schemes, rules = len(calibration.BITS), len(calibration.SCHEMES), len(calibration.RULES)
    assert result.right.shape == result.losses.shape == result.errors.shape == (4, bits, schemes, rules)
    assert np.isfinite(result.right).sum(axis=(1, 3)).tolist() == [[21] * 4, *[[14, 0, 0, 0]] * 3]
    assert result.amax.shape == (1, bits, 2, rules, 4)
    assert result.qat_right.shape == (4, len(calibration.THROUGH), 3)
    assert result.steps.tolist() == [0, 11, 22]
    assert result.counts.sum(axis=1).tolist() == [1438 * n for n in (64, 16 * 64, 32 * 16, 256)]
    assert calibration.rows(result)["right"][0] == result.right[:, 0, 0, 0].mean() / 359


def test_training_starts_from_the_quantised_net(result: Any) -> None:
    """Step 0 of an epoch through integers is post-training quantisation per tensor, symmetric."""
    for i, (bits, rule, _) in enumerate(calibration.THROUGH):
        start = result.right[0, calibration.BITS.index(bits), 0, calibration.RULES.index(rule)]
        assert result.qat_right[0, i, 0] == start


def test_the_open_case_has_the_answer_of_this_processor_among_its_hypotheses() -> None:
    case = list(calibration.cases(calibration.QUICK))[1]
    inputs = case.inputs()
    found = case.compute(inputs, "cpu")
    answers = [hypothesis(inputs, {}) for hypothesis in case.hypotheses.values()]
    assert any(all(np.array_equal(found[k], answer[k]) for k in found) for answer in answers)
    assert np.array_equal(found["tensor"], calibration.saturates(inputs, {})["tensor"])


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
