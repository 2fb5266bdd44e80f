"""The experiment on sensitive operations: its formulas, fates, claims, mutants that they kill, and GPU cases."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from experiments.frame import Mutant, frame
from fplab.experiments import sensitive_operations
from fplab.experiments.outcomes import Status, each_of
from fplab.experiments.sensitive_operations.operations import NAMES, OPERATIONS

SMALL = sensitive_operations.E.quick
BY_NAME = {op.name: op for op in OPERATIONS}
LOGITS = np.random.default_rng(5).standard_normal((4096, 10)).astype(np.float32) * np.float32(4)
MANY = LOGITS + np.float32(8) * (np.arange(10) == 0)  # the first is the true class's


def truncating(step: str) -> Callable[[Any], Any]:
    """A step that is rounded toward zero."""
    return lambda _: lambda a, b, work: np.float32(getattr(fplab, step)(a, b, work, "rtz"))


def inside_loss(_: Any) -> Any:
    """Losses that are rounded once, at the end."""
    return lambda x, fmt: [np.asarray(fplab.encode(BY_NAME["cross-entropy"].run(x, "fp32"), fmt)) & 0x7FFF]


def in_pairs(good: Any) -> Any:
    """Sums that do not stop."""
    return lambda x, work, order: good(x, work, "pairwise")


def as_e5m2(good: Any) -> Any:
    """FP16's range with two fraction bits."""
    return lambda x, work: good(x, "e5m2" if work == "fp16" else work)


def cut(_: Any) -> Any:
    return lambda x, work: np.float32(fplab.quantize(x, work, "rtz"))


TINY = replace(SMALL, epochs=1, rows=8, few=8, step=6, seeds=1)
NEARBY = replace(SMALL, low=-6, high=6, step=6, seeds=2)
MUTANTS = (
    Mutant("quotients rounded toward zero", ("chains",), "operations.div", truncating("div"), params=TINY),
    Mutant("differences rounded toward zero", ("chains",), "operations.sub", truncating("sub"), params=TINY),
    Mutant("products rounded toward zero", ("chains", "torch_cube"), "operations.mul", truncating("mul"), params=TINY),
    Mutant("the mean of errors for their median", ("curves",), "np.median", lambda good: np.mean, params=TINY),
    Mutant("a loss that keeps its sum in FP32", ("loss_kernel",), "narrow_losses", inside_loss,
           params=NEARBY),
    Mutant("FP32 results for kernels", ("kernels",), "torch_half",
           lambda _: lambda op, x, fmt: fplab.encode(op.run(x, fmt), fmt), params=TINY),
    Mutant("sums in pairs", ("limits", "chains", "curves", "bf16_trades"), "fplab.numeric.sum", in_pairs,
           params=NEARBY),
    Mutant("FP16's exponentials and logarithms in E5M2", ("functions", "needs", "support"), "operations.rounded",
           as_e5m2, params=NEARBY),
    Mutant("the last rounding toward zero", ("inside_is_enough",), "rounded", cut, params=NEARBY),
    Mutant("a list without log", ("membership",), "listed",
           lambda listed: lambda op: op.name != "log" and listed(op), params=TINY),
)  # fmt: skip
globals().update(frame(sensitive_operations, SMALL, MUTANTS))


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
    one = sensitive_operations.fate(got, exact)
    assert one.overflow == 2 / 8  # an infinity that is right is no overflow
    assert one.zero == 1 / 8
    assert one.worst == 0.25
    assert one.median == (0.25 + 1e-9) / 2
    nothing = sensitive_operations.fate(np.float32([[np.nan]]), np.array([[1.0]]))
    assert nothing.overflow == 1
    assert math.isnan(nothing.median)


def test_the_limits_of_fp16_are_the_known_ones(result: Any) -> None:
    found = dict(zip(sensitive_operations.LIMITS, result.limits.values[0], strict=True))
    assert found["largest x with exp(x) finite"] == 11.0859375  # ln(65520) is 11.08997
    assert found["smallest x with exp(x) > 0"] == -17.328125  # ln(2^-25) is -17.32868
    assert found["ones that a sum counts, every step rounded"] == 2048
    assert found["largest distance from the mean with a finite square"] == 255.875
    assert result.limits[1][sensitive_operations.LIMITS.index("ones that a sum counts, every step rounded")] == 256


def test_the_real_values_are_of_the_shapes_described(result: Any) -> None:
    values = sensitive_operations.gathered(result.p, 0)
    assert values["activations"].shape == (64, 256)
    assert (values["activations"] < 0).any()
    assert (values["positive"] > 0).all()
    assert values["channels"].shape == (16, 64 * 64)
    assert values["logits"].shape == (64, 10)
    assert (values["logits"].argmax(axis=1) == 0).mean() > 0.85  # the true class comes first


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
        return sensitive_operations.Verdict("x", steps, 0.5, lost_every, lost_inside, True).needs

    assert needs(1, 0, 0) == sensitive_operations.NEITHER
    assert needs(9, 0, 0) == needs(1, 0.1, 0) == sensitive_operations.INSIDE_ONLY
    assert needs(1, 0, 0.1) == sensitive_operations.RANGE


def test_what_log_softmax_rounds_holds_for_many_rows_and_is_hardly_ever_left_open(result: Any) -> None:
    many = sensitive_operations.E.result(result.p)
    many.p._kept["gathered", 0] = {"logits": MANY}
    assert each_of(sensitive_operations.loss_kernel(many)).status is Status.PASS
    for fmt in sensitive_operations.FORMATS:
        x = sensitive_operations.sample(many, BY_NAME["cross-entropy"], fmt, 10**6)
        first, *others = sensitive_operations.narrow_losses(x, fmt)
        assert np.mean([(first != other).mean() for other in others]) < 0.004


# --- GPU cases ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", [*sensitive_operations.cases(TINY)], ids=lambda case: case.name)
def test_a_case_runs_on_the_cpu_and_every_hypothesis_has_its_outputs(case: Any) -> None:
    given = case.inputs()
    found, meta = case.compute(given, "cpu"), {"torch": torch.__version__}
    assert found.keys() == case.formats.keys()
    for hypothesis in case.hypotheses.values():
        guessed = hypothesis(given, meta)
        assert {n: (x.shape, x.dtype) for n, x in guessed.items()} == {n: (x.shape, x.dtype) for n, x in found.items()}


def test_widths_are_those_of_the_list() -> None:
    *_, case = sensitive_operations.cases(SMALL)
    (widths,) = case.emulate(case.inputs(), {}).values()
    assert dict(zip(NAMES, widths.tolist(), strict=True)) == {**dict.fromkeys(NAMES, 32), "mean": 16, "variance": 16}


def test_torchs_half_operations_are_called_as_described() -> None:
    x = np.float32([[0.5, 0.25, 1.0, 2.0]])
    for op in OPERATIONS:
        got = fplab.decode(sensitive_operations.torch_half(op, x, "fp16"), "fp16")
        want = op.exact(x.astype(np.float64))
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2**-9)
