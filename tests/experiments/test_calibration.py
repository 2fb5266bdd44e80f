"""The experiment on calibration."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from experiments.frame import Mutant, frame, put
from fplab.errors import LabError
from fplab.experiments import calibration
from fplab.experiments.calibration import ENTROPY, INT4, INT8, Params
from fplab.nn import fake_quantization
from fplab.training.loop import one_thread

TINY = Params(epochs=1, seeds=1, every=22)


class Blocked(fake_quantization._LearnedStep):
    """Nothing passes straight through; the scale has its gradient."""

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        through, *rest = super(Blocked, Blocked).backward(ctx, *grads)
        return torch.zeros_like(through), *rest


trained: list[tuple[Any, ...]] = []  # what the run gives to its epochs through integers, seed by seed


@pytest.fixture(scope="module", autouse=True)
def recorded() -> Iterator[None]:
    original = calibration.trained_through
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "trained_through", lambda *given: trained.append(given) or original(*given))
        yield
    trained.clear()


def blocked(result: Any) -> Any:
    """The epochs of the run anew, from where they began."""
    through = calibration.trained_through
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(fake_quantization, "_LearnedStep", Blocked)
        runs = [through(*given) for given in trained[: result.params.seeds]]
    return {"qat_right": np.stack([found["qat_right"] for found, _ in runs])}


def spared_by_entropy(result: Any) -> Any:
    right = result.right.copy()
    right[:, INT4, :, ENTROPY] = result.fp32_right[:, None] - 20
    return {"right": right}


MUTANTS = (
    Mutant("a straight-through gradient of zero", ("trained_back",), change=blocked),
    Mutant("learned ranges that stay", ("learned",), change=lambda r: {"qat_right": r.qat_right[:, [0, 0]]}),
    Mutant("values a little too large", ("torch_fake", "integer_codes"), "fplab.integers.dequantize",
           lambda good: lambda *args: good(*args) * np.float32(1 + 2.0**-20), params=TINY),
    Mutant("five digits lost in INT8", ("int8",), change=put("right", np.s_[:, INT8, 0, 2], lambda x: x - 5)),
    Mutant("five bits fewer", ("four_bits",), change=put("errors", np.s_[:, INT4], lambda x: x * 2.5)),
    Mutant("entropy harmless", ("entropy_fails",), change=spared_by_entropy),
    Mutant("entropy that cuts whatever the bins", ("entropy_fails",),
           change=lambda r: {"kept": np.minimum(r.kept, 0.07)}),
)  # fmt: skip

globals().update(frame(calibration, calibration.QUICK, MUTANTS))


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
