"""The experiment on formats in training, and the statistics that it compares runs by."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.frame import Mutant, drawn, frame
from fplab import numeric
from fplab.experiments import formats_in_training, statistics
from fplab.experiments.formats_in_training import FP8, PASSES, POLICIES, ROWS
from fplab.experiments.outcomes import Status
from fplab.experiments.progress import silent
from fplab.training import DIGITS_MLP
from fplab.training.optimizers.programs import Step

QUICK = formats_in_training.E.quick
SMALL = replace(
    QUICK, digits_width=32, digits_steps=12, digits_seeds=2, characters_steps=2, characters_seeds=2,
    characters_width=8, characters_context=8, characters_tested=64, baseline_seeds=3,
)  # fmt: skip
TINY = replace(SMALL, digits_width=16, digits_steps=8, digits_seeds=1, characters_seeds=0, baseline_seeds=1)
SMALLEST = replace(SMALL, characters_steps=24, characters_seeds=4, characters_tested=512, baseline_seeds=8)
PURE = POLICIES.index("pure_fp16")


def plain_from(step: int, *policies: str) -> Callable[[Any], Any]:
    """Policies that run in plain FP32 from a step on."""

    def fault(running: Any) -> Any:
        class Mutant(running):  # type: ignore[misc]
            def computing(self) -> Any:
                return nullcontext() if self.done >= step and self.policy.name in policies else super().computing()

        return Mutant

    return fault


def plain_backward(products: Any) -> Any:
    """Backward products in plain FP32, counted as the unit's."""

    class Mutant(products):  # type: ignore[misc]
        def __call__(self, a: Any, b: Any, *rest: Any) -> Any:
            found = super().__call__(a, b, *rest)
            return a.float() @ b.float() if self.phase == "backward" else found

    return Mutant


def without_rate(program: Any) -> Any:
    """An update that is the velocity itself."""
    return (*program[:-1], Step("update", "sub", "velocity", "velocity"), Step("update", "sub", "update", "velocity"))


def cut_short(fit: Any) -> Any:
    """Runs of one step under every policy but FP32."""

    def faulty(task: Any, policy: str = "fp32", **how: Any) -> Any:
        return fit(task, policy, **(how if policy == "fp32" else how | {"steps": 1}))

    return faulty


STEPS, BOTH, RUNNING = ("single_steps",), ("single_steps", "one_unit"), "fplab.training.runs._Running"
FIT = "fplab.training.fit"
MUTANTS = (
    Mutant("BF16 in plain FP32 from step 6", BOTH, RUNNING, plain_from(6, "bf16"), params=TINY),
    Mutant("FP8 in plain FP32 from step 6", BOTH, RUNNING, plain_from(6, "fp8_hybrid"), params=TINY),
    Mutant("backward products in plain FP32", STEPS, "fplab.nn.emulation.modes.Products", plain_backward, params=TINY),
    Mutant("gradients unscaled by half", STEPS, "fplab.training.scalers.scaling.unscaled",
           lambda unscaled: lambda *given: 2 * unscaled(*given), params=TINY),
    Mutant("a velocity that does not decay", ("single_steps", "plain_torch"),
           "fplab.training.optimizers.programs.MOMENTUM", lambda program: program[1:], params=TINY),
    Mutant("an update without the rate", ("single_steps", "plain_torch"),
           "fplab.training.optimizers.programs.MOMENTUM", without_rate, params=TINY),
    Mutant("a thousandth of the rate", ("plain_torch", "fp32_learns"), "optimizer",
           lambda good: lambda name, policy, p: good(name, policy, replace(p, digits_lr=p.digits_lr / 1e3))),
    Mutant("runs of one step but in FP32", ("digits_within",), FIT, cut_short),
    Mutant("transformers of one step but in FP32", ("characters_within",), FIT, cut_short, params=SMALLEST),
    Mutant("FP32 under pure FP16's name", ("pure_fp16",), FIT,
           lambda fit: lambda task, policy="fp32", **how: fit(task, policy.replace("pure_fp16", "fp32"), **how),
           params=SMALLEST),
    Mutant("an eps that FP16 holds", ("eps",), "ADAMS_EPS", lambda eps: 1e-4, params=TINY),
)  # fmt: skip

globals().update(frame(formats_in_training, QUICK, MUTANTS, absent="trained at the full size"))


def judged(result: Any, task: str, top1: Any, baseline: Any = None) -> Any:
    """A result whose runs of both tasks have this top-1, by policy and seed."""
    faulty = formats_in_training.E.result(replace(result.p, characters_seeds=len(top1[0])))
    for policy, scores in zip(POLICIES, top1, strict=True):
        for seed, score in enumerate(scores):
            run = formats_in_training.run_of(result.p, "digits", policy, seed)
            faulty.p._kept["run_of", task, policy, seed] = run._replace(top1=score)
    row = result.baseline.values if baseline is None else [baseline]
    one = result.baseline.isel(seed=slice(len(row[0])))
    faulty._values["baseline"] = one.copy(data=row).assign_coords(task=[task])
    return faulty


def test_mixed_policies_pass_where_the_interval_lies_in_the_band(result: Any) -> None:
    """What the mutants change: the same top-1 for all, and a band around it; of both tasks."""
    for task in ("digits", "characters"):
        alike = judged(result, task, np.full((7, 3), 0.5), np.array([0.5, 0.48, 0.52]))
        assert formats_in_training.in_band(alike, task).status is Status.PASS


def test_pure_fp16_is_judged_by_the_same_test(result: Any) -> None:
    fp32 = result.top1.sel(policy="fp32", task="digits").values
    for shift, status in ((-0.5, Status.PASS), (0.5, Status.FAIL), (0.0, Status.FAIL), (np.nan, Status.PASS)):
        top1 = np.repeat(fp32[None], 7, 0)
        top1[PURE] += shift
        assert formats_in_training.pure_fp16(judged(result, "characters", top1)).status is status
    for outcome in (formats_in_training.pure_fp16(result), formats_in_training.in_band(result, "characters")):
        assert outcome.status is Status.ABSENT
        assert str(outcome.detail) == "characters: trained at the full size (fplab run formats_in_training --full)"


@pytest.fixture(scope="module")
def both() -> Any:
    """Both tasks, too small to learn anything."""
    return formats_in_training.E.run(SMALL, silent)


def test_the_runs_of_both_tasks_have_the_shapes_that_are_told(both: Any) -> None:
    for task, steps in (("digits", 12), ("characters", 2)):
        losses = both.losses.sel(task=task).dropna("step", how="all")
        assert losses.shape == (7, 2, steps)
        assert both.baseline.sel(task=task)[:2].values.tolist() == both.top1.sel(task=task)[0].values.tolist()
        np.testing.assert_array_equal(np.isfinite(losses).all("step"), both.stopped.sel(task=task) < 0)
    digits = both.losses.sel(task="digits").values
    assert len(np.unique(digits[:, 0, 11])) == 7  # no two policies are the same run
    assert (digits[:, 0] != digits[:, 1]).any(-1).all()
    for claim in formats_in_training.E.claims:
        if claim.id in ("single_steps", "one_unit", "plain_torch", "eps"):
            assert claim.test(both).status is Status.PASS


def test_stopped_runs_are_drawn_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(formats_in_training, "LARGER_EPS", formats_in_training.ADAMS_EPS)
    stopped = formats_in_training.E.run(replace(SMALL, digits_steps=1), silent)
    runs = {name: getattr(stopped, name).sel(task="characters", seed=0).values for name in ("stopped", "top1")}
    assert runs["stopped"].tolist() == [-1] * PURE + [0] + [-1]
    assert np.flatnonzero(np.isnan(runs["top1"])).tolist() == [PURE]
    figures = drawn(formats_in_training.E, stopped, tmp_path, "light")
    assert "stopped at step 0" in [text.get_text() for ax in figures[1].axes for text in ax.texts]
    assert [len(figure.axes) for figure in figures] == [2, 2]
    table, at = formats_in_training.rows(stopped), 14 + 2 * PURE
    assert (table["task"][at], table["top1"][at], table["stopped_at_step"][at]) == ("characters", None, 0)


def test_the_first_batch_is_the_tasks_own() -> None:
    (images, labels), own = formats_in_training.first_batch(), next(DIGITS_MLP.batches(0, 1))
    np.testing.assert_array_equal(images / 16, own.inputs.numpy())
    np.testing.assert_array_equal(labels, own.targets.numpy())


# --- statistics -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("df", "t"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (4, 2.776445), (7, 2.364624), (15, 2.131450), (60, 2.000298)],
)
def test_quantiles_are_the_published_ones(df: int, t: float) -> None:
    assert statistics.quantile(0.975, df) == pytest.approx(t, abs=1e-6)


BASELINE = np.array([0.90, 0.91, 0.92, 0.93, 0.94])  # a standard deviation of 0.0158: the band is 0.0316


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [([0.001, -0.001, 0.002, 0.0], "within"),
     ([0.02, 0.02, 0.021, 0.02], "within"),
     ([-0.10, -0.09, -0.11, -0.10], "outside"),
     ([0.10, 0.09, 0.11, 0.10], "outside"),
     ([0.03, -0.03, 0.05, -0.06], "undecided"),
     ([-0.03, -0.03, -0.04, -0.03], "undecided"),
     ([0.0, 0.0, math.nan, 0.0], "outside")],
)  # fmt: skip
def test_verdicts(differences: list[float], verdict: str) -> None:
    fp32 = BASELINE[:4]
    found = statistics.compared(fp32 + np.array(differences), fp32, BASELINE)
    assert found.verdict == verdict
    assert found.band == pytest.approx(2 * np.std(BASELINE, ddof=1))
    if not math.isnan(found.mean):
        assert found.low <= found.mean <= found.high
        n, spread = 4, np.std(differences, ddof=1)
        assert found.high - found.mean == pytest.approx(3.182446 * spread / math.sqrt(n), rel=1e-6)


def test_two_seeds_say_little() -> None:
    """The same two small differences that 20 seeds would call within."""
    few, many = BASELINE[:2], np.resize(BASELINE, 20)
    nudge = np.resize([0.004, -0.004], 20)
    assert statistics.compared(few + nudge[:2], few, BASELINE).verdict == "undecided"
    assert statistics.compared(many + nudge, many, BASELINE).verdict == "within"


# --- GPU cases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", PASSES)
def test_the_factors_of_a_pass_multiply_to_what_autograd_gives(which: str) -> None:
    v = {k: torch.from_numpy(x.copy()).double().requires_grad_() for k, x in formats_in_training.step_values().items()}
    y = v["images"] @ v["weights"].T
    y.backward(v["gradient"].detach())
    whole = {"forward": y.detach(), "input gradient": v["images"].grad, "weight gradient": v["weights"].grad}[which]
    a, b = formats_in_training.factors(which)
    want = whole[:ROWS, -ROWS:].numpy()
    np.testing.assert_allclose(a.astype(np.float64) @ b.T.astype(np.float64), want, rtol=1e-12, atol=1e-12)


def test_case_operands_are_the_labs_casts() -> None:
    pairs = [*FP8.items(), ("forward", ("fp16", "fp16")), ("forward", ("bf16", "bf16"))]
    for which, formats in pairs:
        factors = formats_in_training.factors(which)
        for got, value, fmt in zip(formats_in_training.operands(which, formats), factors, formats, strict=True):
            assert got.tobytes() == numeric.encode(value, fmt).tobytes()
            assert len(np.unique(got)) >= 2
