"""The experiment on calibration."""

from typing import Any

import numpy as np
import torch

from experiments.frame import Mutant, frame
from fplab.experiments import calibration
from fplab.nn import fake_quantization


class Blocked(fake_quantization._OnGrid):
    """Nothing passes straight through; the scale has its gradient."""

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        through, *rest = super(Blocked, Blocked).backward(ctx, *grads)
        return torch.zeros_like(through), *rest


class Fixed(fake_quantization._OnGrid):
    """The gradient passes straight through; the scale has none."""

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        through, scale, *rest = super(Fixed, Fixed).backward(ctx, *grads)
        return through, None if scale is None else torch.zeros_like(scale), *rest


STEP, DIVERGENCES = "fplab.nn.fake_quantization._OnGrid", "fplab.integers.calibration.all_divergences"
KEPT = ("trained", "fp32")
EXCHANGED = {8: 4, 4: 8, 3: 3}
MUTANTS = (
    Mutant("a straight-through gradient of zero", ("trained_back",), STEP, lambda good: Blocked, reuse=KEPT),
    Mutant("a straight-through gradient of zero, ranges fixed", ("torch_fake",),
           "fplab.nn.fake_quantization._OnGrid.backward",
           lambda good: staticmethod(lambda ctx, *grads: (torch.zeros_like(grads[0]), None, None, None)), reuse=KEPT),
    Mutant("a scale without a gradient", ("learned",), STEP, lambda good: Fixed, reuse=KEPT),
    Mutant("values a little too large", ("torch_fake", "integer_codes"), "fplab.integers.dequantize",
           lambda good: lambda *args: good(*args) * np.float32(1 + 2.0**-20), reuse=KEPT),
    Mutant("INT8 and INT4 exchanged", ("int8", "four_bits", "entropy_fails"), "grid_names",
           lambda good: lambda bits, zero_point: good(EXCHANGED[bits], zero_point), reuse=KEPT),
    Mutant("entropy by the levels of INT8", ("entropy_fails",), DIVERGENCES,
           lambda good: lambda bins, start, levels: good(bins, start, 128), reuse=KEPT),
    Mutant("entropy that cuts whatever the bins", ("entropy_fails",), DIVERGENCES,
           lambda good: lambda bins, start, levels: np.arange(len(bins) + 1 - start), reuse=KEPT),
)  # fmt: skip

globals().update(frame(calibration, calibration.E.quick, MUTANTS))


def test_what_was_tried(result: Any) -> None:
    """All schemes of the first network, of others the first in INT8 and INT4."""
    tried = [[28, 28, 28], [7, 7, 0], [7, 7, 0], [7, 7, 0]]
    assert np.isfinite(result.right).sum(["scheme", "rule"]).values.tolist() == tried
    assert result.qat_right.step.values.tolist() == [0, 11, 22]
    counts = [histogram.counts.sum() for histogram in calibration.trained(result.p, 0)[1].values()]
    assert counts == [1438 * n for n in (64, 16 * 64, 32 * 16, 256)]
    assert len(calibration.held_out()[1]) == calibration.TESTED


def test_training_starts_from_the_quantised_net(result: Any) -> None:
    """Step 0 of an epoch through integers is post-training quantisation per tensor, symmetric."""
    start = result.right.sel(seed=0, bits=4, scheme="tensor symmetric", rule="entropy")
    assert (result.qat_right.sel(seed=0, step=0) == start).all()


def test_the_open_case_has_the_answer_of_this_processor_among_its_hypotheses() -> None:
    case = list(calibration.cases(calibration.E.quick))[1]
    inputs = case.inputs()
    found = case.compute(inputs, "cpu")
    answers = [hypothesis(inputs, {}) for hypothesis in case.hypotheses.values()]
    assert any(all(np.array_equal(found[k], answer[k]) for k in found) for answer in answers)
    assert np.array_equal(found["tensor"], case.emulate(inputs, {})["tensor"])
