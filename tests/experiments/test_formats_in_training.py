"""The experiment on formats in training, and the statistics that it compares runs by."""

import math
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.frame import Mutant, drawn, frame, silent
from fplab import numeric
from fplab.experiments import formats_in_training, statistics
from fplab.experiments.formats_in_training import FP8, PASSES, POLICIES, QUICK, ROWS, Params, Result
from fplab.experiments.outcomes import Status
from fplab.training import DIGITS_MLP
from fplab.training.optimizers.programs import Step

SMALL = Params(
    digits_width=32, digits_hidden=1, digits_lr=0.5, digits_momentum=0.8, digits_steps=12, digits_seeds=2,
    characters_steps=2, characters_seeds=2, characters_width=8, characters_context=8,
    characters_tested=64, baseline_seeds=3,
)  # fmt: skip
TINY = replace(SMALL, digits_width=16, digits_steps=8, digits_seeds=1, characters_seeds=0, baseline_seeds=1)
SMALLEST = replace(
    SMALL, characters_steps=24, characters_seeds=4, characters_width=8, characters_context=8, characters_tested=512,
    baseline_seeds=8,
)  # fmt: skip
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


def slowed(*spared: str) -> Callable[[Any], Any]:
    """A rate that is a thousandth of what it should be, but under some policies."""

    def fault(good: Any) -> Any:
        def made(name: str, policy: str, params: Params, eps: float | None = None) -> Any:
            rate = params.digits_lr * (1 if policy in spared else 1e-3)
            return good(name, policy, replace(params, digits_lr=rate), eps)

        return made

    return fault


def of_policies(task: str, params: Params, *policies: str) -> Any:
    """Runs under some policies alone, the others' being NaN."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats_in_training, "POLICIES", policies)
        found = formats_in_training.task_runs(task, params, silent)
    top1 = np.full((len(POLICIES), found.top1.shape[1]), np.nan)
    top1[[POLICIES.index(policy) for policy in policies]] = found.top1
    return replace(found, top1=top1)


def in_fp32(result: Result) -> dict[str, Any]:
    """The digits in FP32 alone."""
    return {"digits": of_policies("digits", result.params, "fp32")}


def as_both(result: Result) -> dict[str, Any]:
    """The digits under every policy, as the runs of both tasks: the same is said of the transformer's."""
    runs = formats_in_training.task_runs("digits", result.params, silent)
    return {"digits": runs, "characters": runs}


def in_pure_fp16(result: Result) -> dict[str, Any]:
    """A transformer in FP32 and in pure FP16."""
    return {"characters": of_policies("characters", SMALLEST, "fp32", "pure_fp16")}


STEPS, BOTH, RUNNING = ("single_steps",), ("single_steps", "one_unit"), "fplab.training.runs._Running"
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
    Mutant("a thousandth of the rate", ("plain_torch", "fp32_learns"), "optimizer", slowed(), part=in_fp32),
    Mutant("a thousandth of the rate but in FP32", ("digits_within", "characters_within"), "optimizer",
           slowed("fp32"), part=as_both),
    Mutant("FP32 under pure FP16's name", ("pure_fp16",), "fplab.training.fit",
           lambda fit: lambda task, policy="fp32", **how: fit(task, policy.replace("pure_fp16", "fp32"), **how),
           part=in_pure_fp16),
    Mutant("an eps that FP16 holds", ("eps",), "ADAMS_EPS", lambda eps: 1e-4, params=TINY),
)  # fmt: skip

globals().update(frame(formats_in_training, QUICK, MUTANTS, absent="trained at the full size"))


def test_mixed_policies_pass_where_the_interval_lies_in_the_band(result: Result) -> None:
    """What the mutants change: the same top-1 for all, and a band around it; of both tasks."""
    alike = replace(result.digits, top1=np.full((7, 3), 0.5), baseline=np.array([0.5, 0.48, 0.52]))
    both = replace(result, digits=alike, characters=alike)
    assert formats_in_training.digits_within(both).status is Status.PASS
    assert formats_in_training.characters_within(both).status is Status.PASS


def test_pure_fp16_is_judged_by_the_same_test(result: Result) -> None:
    for shift, status in ((-0.5, Status.PASS), (0.5, Status.FAIL), (0.0, Status.FAIL), (np.nan, Status.PASS)):
        top1 = result.digits.top1.copy()
        top1[PURE] = top1[0] + shift
        runs = replace(result, characters=replace(result.digits, top1=top1))
        assert formats_in_training.pure_fp16(runs).status is status
    for claim in (formats_in_training.pure_fp16, formats_in_training.characters_within):
        outcome = claim(result)
        assert outcome.status is Status.ABSENT
        assert str(outcome.detail) == "characters: trained at the full size (fplab run formats_in_training --full)"


@pytest.fixture(scope="module")
def both() -> Result:
    """Both tasks, too small to learn anything."""
    return formats_in_training.run(SMALL, silent)


def test_the_runs_of_both_tasks_have_the_shapes_that_are_told(both: Result) -> None:
    for runs, steps in ((both.tasks["digits"], 12), (both.tasks["characters"], 2)):
        assert runs.losses.shape == runs.own.shape == (7, 2, steps)
        assert {getattr(runs, name).shape for name in ("top1", "held_out", "stops", "skipped")} == {(7, 2)}
        assert runs.baseline.shape == (3,)
        assert runs.baseline[:2].tolist() == runs.top1[0].tolist()
        np.testing.assert_array_equal(np.isfinite(runs.losses).all(-1), runs.stops < 0)
    assert len(np.unique(both.digits.losses[:, 0, -1])) == 7  # no two policies are the same run
    assert (both.digits.losses[:, 0] != both.digits.losses[:, 1]).any(-1).all()
    for claim in ("single_steps", "one_unit", "plain_torch", "eps"):
        assert getattr(formats_in_training, claim)(both).status is Status.PASS


def test_a_run_that_stops_leaves_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats_in_training, "LARGER_EPS", formats_in_training.ADAMS_EPS)
    params = replace(SMALL, characters_seeds=1, baseline_seeds=1)
    found = formats_in_training.task_runs("characters", params, silent)
    assert found.stops[:, 0].tolist() == [-1] * PURE + [0] + [-1]
    assert np.isnan(found.losses[PURE]).all()
    assert np.isnan(found.top1[PURE]).all()


def test_stopped_runs_are_drawn_and_told(both: Result, tmp_path: Path) -> None:
    runs = both.tasks["characters"]
    top1, losses, stops = runs.top1.copy(), runs.losses.copy(), runs.stops.copy()
    top1[PURE], losses[PURE], stops[PURE] = np.nan, np.nan, 2
    stopped = replace(both, characters=replace(runs, top1=top1, losses=losses, stops=stops))
    figures = drawn(formats_in_training.EXPERIMENT, stopped, tmp_path, "light")
    assert "stopped at step 2" in [text.get_text() for ax in figures[1].axes for text in ax.texts]
    assert [len(figure.axes) for figure in figures] == [4, 2]
    table = formats_in_training.rows(stopped)
    at = 14 + 2 * PURE
    assert (table["task"][at], table["top1"][at], table["stopped_at_step"][at]) == ("characters", None, 2)
    looks = [formats_in_training.look_of(policy) for policy in POLICIES]
    assert len({(look.color, look.linestyle if isinstance(look.linestyle, str) else None) for look in looks}) == 7


def test_the_first_batch_is_the_tasks_own() -> None:
    (images, labels), own = formats_in_training.first_batch(), next(DIGITS_MLP.batches(0, 1))
    np.testing.assert_array_equal(images / 16, own.inputs.numpy())
    np.testing.assert_array_equal(labels, own.targets.numpy())


def test_the_run_reports_progress() -> None:
    ticks: list[float] = []
    formats_in_training.run(replace(TINY, digits_steps=1), lambda done, _text: ticks.append(done))
    assert ticks == sorted(ticks)
    assert ticks[0] < 0.1 < 0.7 < ticks[-1] <= 1


# --- statistics -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("df", "t"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (4, 2.776445), (7, 2.364624), (15, 2.131450), (60, 2.000298)],
)
def test_quantiles_are_the_published_ones(df: int, t: float) -> None:
    assert statistics.quantile(0.975, df) == pytest.approx(t, abs=1e-6)
    assert statistics.distribution(-t, df) == pytest.approx(0.025, abs=1e-7)


@pytest.mark.parametrize("df", [1, 2, 5, 8])
def test_the_distribution_is_the_integral_of_its_density(df: int) -> None:
    t = np.linspace(0, 1.7, 20001)
    density = (1 + t * t / df) ** (-(df + 1) / 2)
    factor = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
    assert statistics.distribution(1.7, df) == pytest.approx(0.5 + factor * np.trapezoid(density, t), abs=1e-8)


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
def test_there_is_a_case_for_every_pass_and_format() -> None:
    assert [c.name for c in formats_in_training.cases(SMALL)] == [
        "forward in TF32", "input gradient in TF32", "weight gradient in TF32", "forward in FP16",
        "input gradient in FP16", "weight gradient in FP16", "forward in BF16", "input gradient in BF16",
        "weight gradient in BF16", "forward in E4M3 * E4M3", "input gradient in E5M2 * E4M3",
        "weight gradient in E5M2 * E4M3", "cross-entropy under autocast in FP16",
        "cross-entropy under autocast in BF16",
    ]  # fmt: skip


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


def test_cases_need_numpy_and_torch_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('numba', 'matplotlib', 'ml_dtypes', 'tqdm'): sys.modules[name] = None\n"
        "from fplab.experiments import formats_in_training as one\n"
        "for case in one.cases(one.QUICK): case.inputs()\n"
        "*_, losses = one.cases(one.QUICK)\n"
        "print(losses.compute(losses.inputs(), 'cpu')['is_half'].all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
