"""The experiment on sensitive operations: its formulas, fates, claims, mutants that they kill, and GPU cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from experiment_frame import Mutant, forged, frame, kills

import fplab
from fplab.experiments import sensitive_operations as experiment
from fplab.experiments.base import Status
from fplab.experiments.sensitive_operations import cases, checks, data
from fplab.experiments.sensitive_operations.operations import NAMES, OPERATIONS
from fplab.hardware.cases import Arrays, Case

SMALL = data.QUICK
BY_NAME = {op.name: op for op in OPERATIONS}
LOGITS = np.random.default_rng(5).standard_normal((4096, 10)).astype(np.float32) * np.float32(4)
MANY: Arrays = {"logits": LOGITS + np.float32(8) * (np.arange(10) == 0)}  # the first is the true class's

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(experiment, SMALL)


def test_the_run_reports_progress() -> None:
    ticks: list[float] = []
    experiment.run(TINY, lambda done, _text: ticks.append(done))
    assert ticks == sorted(ticks)
    assert 0 < ticks[0] < 0.1 < 0.8 < ticks[-1] <= 1


def test_the_references_are_the_definitions() -> None:
    """In plain Python, on one row."""
    row = [0.5, -1.25, 2.0, 3.5]
    n, x = len(row), np.array([row])
    mean = math.fsum(row) / n
    var = math.fsum((v - mean) ** 2 for v in row) / n
    total = math.fsum(math.exp(v) for v in row)
    want = {
        "exp": [math.exp(v) for v in row],
        "log": [math.log(v) if v > 0 else math.nan for v in row],
        "pow": [v**3 for v in row],
        "sum": [math.fsum(row)],
        "mean": [mean],
        "variance": [var],
        "norm": [math.sqrt(math.fsum(v * v for v in row))],
        "softmax": [math.exp(v) / total for v in row],
        "layer norm": [(v - mean) / math.sqrt(var + 1e-5) for v in row],
        "cross-entropy": [math.log(total) - row[0]],
    }
    assert set(want) == set(NAMES)
    for name, values in want.items():
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(BY_NAME[name].exact(x)[0], values, rtol=1e-15)
    sure = np.array([[60.0, 0.0, 1.0]])  # log(1 + tiny), where log(sum) alone gives zero
    np.testing.assert_allclose(BY_NAME["cross-entropy"].exact(sure)[0, 0], (1 + math.e) * math.exp(-60), rtol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_with_fp64_steps_a_formula_is_its_reference(name: str) -> None:
    """The same code with FP32 steps agrees with the definition to a few roundings of FP32."""
    x = np.float32([[0.5, 1.25, 2.0, 3.5], [0.1, 0.2, 0.3, 0.4]])
    got = BY_NAME[name].run(x, "fp32")
    np.testing.assert_allclose(got, BY_NAME[name].exact(x.astype(np.float64)), rtol=2e-6)


def test_a_fate_counts_what_happens() -> None:
    exact = np.array([[1.0, 2.0], [1.0, 1e-9], [1.0, np.inf], [1.0, 1.0]])
    got = np.float32([[1.0, 2.5], [1.0, 0.0], [1.0, np.inf], [np.inf, np.nan]])
    one = data.fate(got, exact)
    assert one.overflow == 2 / 8  # an infinity that is right is no overflow
    assert one.zero == 1 / 8
    assert one.worst == 0.25
    assert one.median == (0.25 + 1e-9) / 2
    nothing = data.fate(np.float32([[np.nan]]), np.array([[1.0]]))
    assert nothing.overflow == 1
    assert math.isnan(nothing.median)


def test_the_limits_of_fp16_are_the_known_ones(arrays: Arrays) -> None:
    found = dict(zip(data.LIMITS, arrays["limits"][0], strict=True))
    assert found["largest x with exp(x) finite"] == 11.0859375  # ln(65520) is 11.08997
    assert found["smallest x with exp(x) > 0"] == -17.328125  # ln(2^-25) is -17.32868
    assert found["ones that a sum counts, every step rounded"] == 2048
    assert found["largest distance from the mean with a finite square"] == 255.875
    assert arrays["limits"][1][data.LIMITS.index("ones that a sum counts, every step rounded")] == 256
    np.testing.assert_array_equal(arrays["limits"], data.limits())


def test_the_real_values_are_of_the_shapes_described(arrays: Arrays) -> None:
    assert arrays["activations"].shape == (64, 256)
    assert (arrays["activations"] < 0).any()
    assert (arrays["positive"] > 0).all()
    assert arrays["channels"].shape == (16, 64 * 64)
    assert arrays["logits"].shape == (64, 10)
    assert (arrays["logits"].argmax(axis=1) == 0).mean() > 0.85  # the true class comes first


def test_small_losses_vanish_in_torchs_cpu_kernel() -> None:
    """One case by hand: the sum of the exponentials is 1.00003, which FP16 holds as 1."""
    logits = torch.tensor([[13.789, 3.41]], dtype=torch.float16)
    x = logits.double()
    exact = math.log1p(math.exp(float(x[0, 1] - x[0, 0])))
    assert 3.0e-5 < exact < 3.2e-5
    target = torch.tensor([0])
    assert torch.nn.functional.cross_entropy(logits, target).item() == 0
    assert abs(torch.nn.functional.cross_entropy(logits.float(), target).half().item() / exact - 1) < 2**-9


def test_the_verdict_follows_the_fates() -> None:
    def needs(steps: float, lost_every: float, lost_inside: float) -> str:
        return data.Verdict("x", steps, 0.5, lost_every, lost_inside, True).needs

    assert needs(1, 0, 0) == data.NEITHER
    assert needs(9, 0, 0) == needs(1, 0.1, 0) == data.INSIDE_ONLY
    assert needs(1, 0, 0.1) == data.RANGE


# --- mutants ----------------------------------------------------------------------------------------------------------


def changed(name: str, place: tuple[Any, ...], value: float) -> Callable[[Arrays], Arrays]:
    """A change of one array, and of what is beside it of every seed."""

    def fault(arrays: Arrays) -> Arrays:
        arrays[name][place] = value
        near = f"near_{name}"
        if near in arrays:
            arrays[near][(slice(None), *place[:-1], 0 if place[-1] is Ellipsis else NEAR.index(place[-1]))] = value
        return arrays

    return fault


def truncating(step: str) -> Callable[[Any], Any]:
    """A step that is rounded toward zero."""
    return lambda _: lambda a, b, work: np.float32(getattr(fplab, step)(a, b, work, "rtz"))


def inside_loss(_: Any) -> Any:
    """Losses that are rounded once, at the end."""
    return lambda x, fmt: [np.asarray(fplab.encode(BY_NAME["cross-entropy"].run(x, "fp32"), fmt)) & 0x7FFF]


KS = data.scales(SMALL).tolist()
ZERO = KS.index(0)
NEAR = [i for i, k in enumerate(KS) if abs(k) <= data.NEAR]
TINY = replace(SMALL, epochs=1, rows=8, few=8, step=6, seeds=1)
NEEDS, SUPPORT, CHAINS, CURVES = "FP16 needs", "The evidence supports", "Sums, means", "The curves drawn"
MUTANTS = (
    Mutant("quotients rounded toward zero", (CHAINS,), "operations.div", truncating("div"), params=TINY),
    Mutant("differences rounded toward zero", (CHAINS,), "operations.sub", truncating("sub"), params=TINY),
    Mutant("products rounded toward zero", (CHAINS, "torch's x^3"), "operations.mul", truncating("mul"), params=TINY),
    Mutant("curves by scale reversed", (CURVES,), change=lambda a: {"median": a["median"][..., ::-1]}),
    Mutant("formats in another order", (CURVES,), change=lambda a: {"zero": a["zero"][:, ::-1]}),
    Mutant("results without FP32 that FP32 has", (CURVES,), change=lambda a: {"overflow": a["overflow"][:, :, ::-1]}),
    Mutant("the mean of errors for their median", (CURVES,), "data.np.median", lambda good: np.mean, params=TINY),
    Mutant("nothing rounded", ("exp and log",), "operations.rounded",
           lambda _: lambda x, work: x.astype(np.float32), params=TINY),
    Mutant("a loss that keeps its sum in FP32", ("torch's log-softmax",), "checks.narrow_losses", inside_loss,
           params=replace(TINY, rows=64)),
    Mutant("FP32 results for kernels", ("torch's half kernels",), "checks.torch_half",
           lambda _: lambda op, x, fmt: fplab.encode(op.run(x, fmt), fmt), params=TINY),
    Mutant("an exp that ends later", ("The formats alone",), change=changed("limits", (0, 1), 11.5)),
    Mutant("a sum that counts 255 ones", ("The formats alone",), change=changed("limits", (1, 4), 255.0)),
    Mutant("a norm that vanishes", (NEEDS,), change=changed("zero", (NAMES.index("norm"), 0, 1, ZERO), 0.5)),
    Mutant("a log that every step spoils", (NEEDS, SUPPORT),
           change=changed("median", (NAMES.index("log"), 0, 0, ZERO), 0.1)),
    Mutant("an exp that is off", ("With FP32 inside",),
           change=changed("median", (NAMES.index("exp"), 1, 1, ZERO), 0.1)),
    Mutant("a BF16 sum that overflows", ("BF16 trades",),
           change=changed("overflow", (NAMES.index("sum"), 1, 0, ZERO), 0.5)),
    Mutant("a list without log", ("CUDA's autocast",), "data.listed",
           lambda listed: lambda op: op.name != "log" and listed(op), params=TINY),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(experiment, SMALL, MUTANTS)


def test_what_log_softmax_rounds_holds_for_many_rows_and_is_hardly_ever_left_open() -> None:
    assert checks.check_loss_kernel(MANY, SMALL).status is Status.PASS
    for fmt in data.FORMATS:
        x = checks.sample(MANY, BY_NAME["cross-entropy"], fmt, 10**6)
        first, *others = checks.narrow_losses(x, fmt)
        assert np.mean([(first != other).mean() for other in others]) < 0.004


# --- GPU cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", experiment.gpu_cases(SMALL), ids=lambda c: c.name)
def test_a_case_runs_on_the_cpu_and_has_every_output(case) -> None:  # type: ignore[no-untyped-def]
    given = case.inputs()
    found = case.compute(given, "cpu")
    assert set(found) == set(case.formats)
    meta = {"torch": torch.__version__}
    for hypothesis in case.hypotheses.values():
        guessed = hypothesis(given, meta)
        assert set(guessed) == set(found)
        for name, codes in guessed.items():
            assert codes.shape == found[name].shape
            assert codes.dtype == found[name].dtype
    for name, codes in case.emulate(given, meta).items():
        np.testing.assert_array_equal(codes, found[name])


@pytest.mark.parametrize("case", experiment.gpu_cases(TINY), ids=lambda c: c.name)
def test_a_forged_record_does_not_pass(case: Case) -> None:
    forged(case)


def test_widths_are_those_of_the_list() -> None:
    case = experiment.gpu_cases(SMALL)[-1]
    (widths,) = case.emulate(case.inputs(), {}).values()
    assert dict(zip(NAMES, widths.tolist(), strict=True)) == {
        **dict.fromkeys(NAMES, 32),
        "mean": 16,
        "variance": 16,
    }


def test_torchs_half_operations_are_called_as_described() -> None:
    x = np.float32([[0.5, 0.25, 1.0, 2.0]])
    for op in OPERATIONS:
        got = fplab.decode(cases.torch_half(op, x, "fp16"), "fp16")
        want = op.exact(x.astype(np.float64))
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2**-9)


def test_the_table_has_a_row_for_every_number(arrays: Arrays) -> None:
    columns = experiment.table(arrays, SMALL)
    assert {len(c) for c in columns.values()} == {len(NAMES) * 2 * 3 * len(arrays["scales"])}
    at = [i for i, n in enumerate(columns["operation"]) if n == "exp"][-1]
    assert columns["format"][at] == "bf16"
    assert columns["way"][at] == "FP32 result"
    assert columns["overflow"][at] == arrays["overflow"][0, 1, 2, -1]
