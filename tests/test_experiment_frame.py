"""What the experiments' tests share can fail: claims, what may be absent, and cases that are not the lab's bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import toy
from experiments.frame import Mutant, frame
from gpu_cases import computed_on_cpu

from fplab.experiments.outcomes import Evidence, Outcome, Sample, Status, absent, failed, measured, passed
from fplab.experiments.progress import silent
from fplab.experiments.statistics import both, equivalent, superior


def holds(outcome: Outcome, evidence: Evidence = Evidence.PROVED, absent: str | None = None) -> None:
    """What the frame asks of a claim that ends so."""
    test = frame(toy, toy.E.quick, (), absent=absent)["test_a_claim_holds"]
    test(toy.claim("a claim", evidence, lambda result: outcome), None)


@pytest.mark.parametrize("outcome", [failed("1 against 2"), passed(""), absent("no library here")])
def test_a_claim_must_pass_and_say_what_was_compared(outcome: Outcome) -> None:
    with pytest.raises(AssertionError, match="a claim"):
        holds(outcome)


def test_what_may_be_absent_is_skipped_and_nothing_else() -> None:
    holds(passed("3 results"), absent="library")
    with pytest.raises(pytest.skip.Exception, match="no library here"):
        holds(absent("no library here"), absent="library")
    with pytest.raises(AssertionError, match="no GPU here"):
        holds(absent("no GPU here"), absent="library")


def results(dtype: Any = np.uint8, change: int = 0, name: str = "y") -> Any:
    return lambda inputs, _: {name: (toy.squares(inputs["x"]) ^ np.uint8(change)).astype(dtype)}


def test_a_case_must_give_every_output_dtype_and_bit() -> None:
    assert computed_on_cpu(toy.case("right"))["y"][:4].tolist() == [0, 1, 4, 9]
    for wrong in (results(change=1), results(np.uint16), results(name="z")):
        with pytest.raises(AssertionError, match="wrong"):
            computed_on_cpu(toy.case("wrong", emulate=wrong))


def test_the_bits_of_a_nan_count_unless_they_are_said_not_to() -> None:
    nans = {"compute": lambda inputs, device: {"y": np.array([0x7D], np.uint8)},
            "emulate": lambda inputs, meta: {"y": np.array([0x7F], np.uint8)}}  # fmt: skip
    computed_on_cpu(toy.case("quiet", **nans), nan_equal=True)
    with pytest.raises(AssertionError, match="1 of 1 differ"):
        computed_on_cpu(toy.case("quiet", **nans))


def test_a_measured_claim_says_what_it_rests_on() -> None:
    sample = Sample(5, 0.25, 1.0)
    outcome = measured(True, "a gain of 2", sample)
    assert str(outcome.detail) == "a gain of 2; n = 5, spread 0.25, margin 1"
    holds(outcome, Evidence.MEASURED)
    for evidence, given in ((Evidence.MEASURED, passed("a gain of 2")), (Evidence.PROVED, outcome)):
        with pytest.raises(AssertionError, match="a claim"):
            holds(given, evidence)


def test_runs_are_equivalent_or_superior_by_the_whole_interval() -> None:
    """The differences 1, 2, 3: mean 2, one-sided 95% limits 2.92 / sqrt(3) = 1.686 away (Student's t, 2 degrees)."""
    one, other = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    assert equivalent(one, other, 3.69, "scores").status is Status.PASS
    assert equivalent(one, other, 3.68, "scores").status is Status.FAIL
    assert equivalent(other, one, 3.68, "scores").status is Status.FAIL
    assert superior(one, other, 0.31, "scores").status is Status.PASS
    assert superior(one, other, 0.32, "scores").status is Status.FAIL
    assert superior(other, one, 0.0, "scores").status is Status.FAIL
    alone = [test(one[:1], other[:1], 9.0, "scores") for test in (superior, equivalent)]
    assert {(o.status, str(o.detail)) for o in alone} == {(Status.ABSENT, "one seed says nothing about others")}
    assert both(alone[0], alone[1]) == alone[0]
    for test in (equivalent, superior):
        assert test(np.array([1.0, np.nan]), np.zeros(2), 1e9, "scores").status is Status.FAIL
    said = str(superior(one, other, 0.0, "scores").detail)
    assert said == "scores; mean difference 2 ± 1.7; n = 3, spread 1, margin 0"


EVERY, OTHER = "every square is there", "numpy squares the same"
UNNOTICED = Mutant("the same squares", (EVERY, OTHER), "squares", lambda good: lambda codes: good(codes))
COMPUTED = Mutant("squares plus one", (EVERY,), "squares", lambda good: lambda codes: good(codes) + np.uint8(1))
ALIKE = Mutant("no squares", (EVERY, OTHER), "squares", lambda good: lambda codes: codes)
SMALLER = replace(COMPUTED, params=replace(toy.E.quick, count=8))


def framed(*mutants: Mutant, **given: Any) -> dict[str, Any]:
    return frame(toy, toy.E.quick, mutants, **given)


def test_a_mutant_that_no_claim_notices_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    result, killed = toy.E.run(toy.E.quick, silent), framed()["test_a_mutant_is_killed"]
    for mutant in (COMPUTED, ALIKE):
        with monkeypatch.context() as patch:
            killed(mutant, result, patch)
    with pytest.raises(AssertionError, match="PASS"):
        killed(UNNOTICED, result, monkeypatch)


def test_every_claim_needs_a_fault_in_a_computation() -> None:
    of = "test_every_claim_kills_a_mutant"
    framed(COMPUTED, ALIKE)[of]()
    framed(COMPUTED, spared=(OTHER,))[of]()
    with pytest.raises(AssertionError):
        framed(COMPUTED)[of]()


def test_what_a_mutant_computes_holds_without_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that fails at a mutant's size anyway is killed by nothing."""
    result, of = toy.E.run(toy.E.quick, silent), "test_what_mutants_compute_holds_without_their_faults"
    framed(COMPUTED, ALIKE, SMALLER)[of](result)
    monkeypatch.setattr(toy, "squares", lambda codes: codes * codes if len(codes) == 16 else codes)
    with pytest.raises(AssertionError, match="every square is there"):
        framed(SMALLER)[of](result)
