"""The experiment on formats in training: its claims, its statistics, its GPU cases, and that its checks can fail."""

from __future__ import annotations

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
from experiment_frame import Mutant, computed_on_cpu, drawn, forged, frame, kills

from fplab.experiments import formats_in_training, statistics
from fplab.experiments.base import Status
from fplab.experiments.formats_in_training import cases, checks, data
from fplab.hardware.cases import Arrays, Case
from fplab.training import DIGITS_MLP

SMALL = data.Params(
    digits_width=32, digits_hidden=1, digits_lr=0.5, digits_momentum=0.8, digits_steps=12, digits_seeds=2,
    characters_steps=2, characters_seeds=2, characters_width=8, characters_context=8,
    characters_tested=64, baseline_seeds=3,
)  # fmt: skip
TRAINED = ("normal variation", "is outside", "FP32 learns")  # of these the small size has too little to say
ALWAYS = [c for c in formats_in_training.CHECKS if not any(words in c.claim for words in TRAINED)]

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(formats_in_training, SMALL, ALWAYS)


def test_the_arrays_have_the_shapes_that_are_told(arrays: Arrays) -> None:
    for task, steps in (("digits", 12), ("characters", 2)):
        assert arrays[f"{task}_losses"].shape == (7, 2, steps)
        for name in ("top1", "held_out", "stops", "skipped"):
            assert arrays[f"{task}_{name}"].shape == (7, 2)
        assert arrays[f"{task}_baseline"].shape == (3,)
        assert arrays[f"{task}_baseline"][:2].tolist() == arrays[f"{task}_top1"][0].tolist()
        finite = np.isfinite(arrays[f"{task}_losses"])
        np.testing.assert_array_equal(finite.all(-1), arrays[f"{task}_stops"] < 0)
    assert len(np.unique(arrays["digits_losses"][:, 0, -1])) == 7  # no two policies are the same run
    assert (arrays["digits_losses"][:, 0] != arrays["digits_losses"][:, 1]).any(-1).all()


def test_a_run_that_stops_leaves_what_it_had(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(data, "LARGER_EPS", data.ADAMS_EPS)
    params = replace(SMALL, characters_seeds=1, baseline_seeds=1)
    found = data.task_runs("characters", params, lambda _done, _text: None)
    pure = data.POLICIES.index("pure_fp16")
    assert found["characters_stops"][:, 0].tolist() == [-1] * pure + [0] + [-1]
    assert np.isnan(found["characters_losses"][pure]).all()
    assert np.isnan(found["characters_top1"][pure]).all()


def test_the_first_batch_is_the_tasks_own() -> None:
    batch, own = data.first_batch(), next(DIGITS_MLP.batches(0, 1))
    np.testing.assert_array_equal(batch["first_images"] / 16, own.inputs.numpy())
    np.testing.assert_array_equal(batch["first_labels"], own.targets.numpy())


def test_the_quick_run_reports_progress() -> None:
    ticks: list[float] = []
    small = replace(SMALL, digits_steps=1, characters_seeds=0)
    formats_in_training.run(small, lambda done, _text: ticks.append(done))
    assert ticks == sorted(ticks)
    assert ticks[0] < 0.1 < 0.8 < ticks[-1] <= 1


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
    [
        ([0.001, -0.001, 0.002, 0.0], "within"),
        ([0.02, 0.02, 0.021, 0.02], "within"),
        ([-0.10, -0.09, -0.11, -0.10], "outside"),
        ([0.10, 0.09, 0.11, 0.10], "outside"),
        ([0.03, -0.03, 0.05, -0.06], "undecided"),
        ([-0.03, -0.03, -0.04, -0.03], "undecided"),
        ([0.0, 0.0, math.nan, 0.0], "outside"),
    ],
)
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


# --- mutants ----------------------------------------------------------------------------------------------------


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


def changed(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Arrays], Arrays]:
    """A change of one array, in place or by a new one."""

    def fault(arrays: Arrays) -> Arrays:
        new = change(arrays[name])
        return {name: arrays[name] if new is None else new}

    return fault


def by_policy(*shifts: float) -> Callable[[np.ndarray], np.ndarray]:
    """Top-1 of a mixed policy: FP32's and a shift for each seed."""
    return lambda top1: np.concatenate([top1[:2], [top1[0] + shifts], top1[3:]])


PURE = data.POLICIES.index("pure_fp16")
STEPS, UNITS, RUNNING = "digits, first seed", "no product of any step", "fplab.training.runs._Running"
DIGITS, CHARACTERS = "digits: top-1", "characters: top-1"
TINY = replace(SMALL, digits_width=16, digits_steps=8, digits_seeds=1, characters_seeds=0, baseline_seeds=1)
MUTANTS = (
    Mutant("BF16 in plain FP32 from step 6", (STEPS, UNITS), RUNNING, plain_from(6, "bf16"), params=TINY),
    Mutant("FP8 in plain FP32 from step 6", (STEPS, UNITS), RUNNING, plain_from(6, "fp8_hybrid"), params=TINY),
    Mutant("backward products in plain FP32", (STEPS,), "fplab.nn.emulation.modes.Products", plain_backward,
           params=TINY),
    Mutant("gradients unscaled by half", (STEPS,), "fplab.training.scalers.scaling.unscaled",
           lambda unscaled: lambda *given: 2 * unscaled(*given), params=TINY),
    Mutant("a velocity that does not decay", (STEPS,), "fplab.training.optimizers.programs.MOMENTUM",
           lambda program: program[1:], params=TINY),
    Mutant("another policy's top-1", (STEPS,), change=changed("digits_top1", lambda x: x - 0.25)),
    Mutant("an FP32 that is off in a last bit", ("FP32 is plain torch",),
           change=changed("digits_losses", lambda x: x.view(np.uint32).__iadd__(1).view(np.float32))),
    Mutant("an FP32 that learns nothing", ("FP32 learns",), change=changed("digits_losses", lambda x: x.fill(2.3))),
    Mutant("a policy that is worse", (DIGITS,), change=changed("digits_top1", by_policy(-0.5, -0.49))),
    Mutant("a policy that nobody can judge", (DIGITS,), change=changed("digits_top1", by_policy(0.02, -0.03))),
    Mutant("a worse transformer", (CHARACTERS,), change=changed("characters_top1", by_policy(-0.5, -0.49))),
    Mutant("a pure FP16 like FP32", ("characters: pure",),
           change=changed("characters_top1", lambda x: np.concatenate([x[:PURE], x[:1], x[PURE + 1 :]]))),
    Mutant("an eps that FP16 holds", ("with Adam's own eps",), "data.ADAMS_EPS", lambda eps: 1e-4, params=TINY),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(formats_in_training, SMALL, MUTANTS)


def test_mixed_policies_pass_where_the_interval_lies_in_the_band(arrays: Arrays) -> None:
    """What the mutants change: the same top-1 for all, and a band around it."""
    for task in ("digits", "characters"):
        alike = {f"{task}_top1": np.full((7, 2), 0.5), f"{task}_baseline": np.array([0.5, 0.48, 0.52])}
        assert checks.check_within(task)(arrays | alike, SMALL).status is Status.PASS


def test_pure_fp16_is_judged_by_the_same_test(arrays: Arrays) -> None:
    pure = data.POLICIES.index("pure_fp16")
    for shift, status in ((-0.5, Status.PASS), (0.5, Status.FAIL), (0.0, Status.FAIL), (np.nan, Status.PASS)):
        top1 = arrays["characters_top1"].copy()
        top1[pure] = top1[0] + shift
        assert checks.check_pure_fp16(arrays | {"characters_top1": top1}, SMALL).status is status
    assert checks.check_pure_fp16(arrays, replace(SMALL, characters_seeds=0)).status is Status.ABSENT


def test_a_task_that_was_not_trained_is_absent(arrays: Arrays) -> None:
    outcome = checks.check_within("characters")(arrays, replace(SMALL, characters_seeds=0))
    assert outcome.status is Status.ABSENT
    assert outcome.detail == "characters: trained at the full size (fplab run formats_in_training --full)"


# --- GPU cases --------------------------------------------------------------------------------------------------

CASES = formats_in_training.gpu_cases(SMALL)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_forged_record_does_not_pass(case: Case) -> None:
    forged(case)


def test_there_is_a_case_for_every_pass_and_format() -> None:
    assert [c.name for c in CASES] == [
        "forward in TF32", "input gradient in TF32", "weight gradient in TF32", "forward in FP16",
        "input gradient in FP16", "weight gradient in FP16", "forward in BF16", "input gradient in BF16",
        "weight gradient in BF16", "forward in E4M3 * E4M3", "input gradient in E5M2 * E4M3",
        "weight gradient in E5M2 * E4M3", "cross-entropy under autocast in FP16",
        "cross-entropy under autocast in BF16",
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gpu_cases_on_the_cpu_equal_the_lab(case: Case) -> None:
    computed_on_cpu(case)


@pytest.mark.parametrize("which", cases.PASSES)
def test_the_factors_of_a_pass_multiply_to_what_autograd_gives(which: str) -> None:
    v = {k: torch.from_numpy(x.copy()).double().requires_grad_() for k, x in cases.step_values().items()}
    y = v["images"] @ v["weights"].T
    y.backward(v["gradient"].detach())
    whole = {"forward": y.detach(), "input gradient": v["images"].grad, "weight gradient": v["weights"].grad}[which]
    a, b = cases.factors(which)
    want = whole[: cases.ROWS, -cases.ROWS :].numpy()
    np.testing.assert_allclose(a.astype(np.float64) @ b.T.astype(np.float64), want, rtol=1e-12, atol=1e-12)


def test_case_operands_are_the_labs_casts() -> None:
    import fplab

    for which, formats in cases.FP8.items():
        for got, value, fmt in zip(cases.operands(which, formats), cases.factors(which), formats, strict=True):
            assert got.tobytes() == fplab.encode(value, fmt).tobytes()
            assert len(np.unique(got)) >= 2
    for fmt in ("fp16", "bf16"):
        for got, value in zip(cases.operands("forward", (fmt, fmt)), cases.factors("forward"), strict=True):
            assert got.tobytes() == fplab.encode(value, fmt).tobytes()


def test_cases_need_numpy_and_torch_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('numba', 'matplotlib', 'ml_dtypes', 'tqdm'): sys.modules[name] = None\n"
        "from fplab.experiments import formats_in_training as one\n"
        "for case in one.gpu_cases(one.QUICK): case.inputs()\n"
        "losses = one.gpu_cases(one.QUICK)[-1]\n"
        "print(losses.compute(losses.inputs(), 'cpu')['is_half'].all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


# --- output -----------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_run(arrays: Arrays) -> None:
    table = formats_in_training.table(arrays, SMALL)
    assert {len(column) for column in table.values()} == {2 * 7 * 2}
    assert table["policy"][:4] == ["fp32", "fp32", "tf32", "tf32"]
    stopped = arrays | {"digits_stops": np.full((7, 2), 5, np.int32)}
    table = formats_in_training.table(stopped, SMALL)
    assert (table["top1"][0], table["stopped_at_step"][0]) == (None, 5)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_draws_in_both_themes(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    pure = data.POLICIES.index("pure_fp16")
    stopped = {name: x.copy() for name, x in arrays.items()}
    for name, value in (("top1", np.nan), ("losses", np.nan), ("stops", 2)):
        stopped[f"characters_{name}"][pure] = value
    figure, size = drawn(formats_in_training, stopped, SMALL, theme, tmp_path)
    assert size > 50_000
    texts = [t.get_text() for ax in figure.get_axes() for t in ax.texts]
    assert "stopped at step 2" in texts
    assert len(figure.get_axes()) == 3 * len(data.tasks_of(SMALL))  # nothing of another model, bytes for one
    looks = [formats_in_training.figure.look_of(p) for p in data.POLICIES]
    assert len({(look.color, look.linestyle if isinstance(look.linestyle, str) else None) for look in looks}) == 7
