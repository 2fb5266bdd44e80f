"""What the experiments' tests share can fail: claims, what may be absent, and cases that are not the lab's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toy
from experiment_frame import computed_on_cpu, holds

from fplab.experiments.base import Check, Evidence, Outcome, absent, failed, passed


def of(outcome: Outcome) -> Check:
    return Check("a claim", Evidence.EXACT, lambda arrays, params: outcome)


@pytest.mark.parametrize("outcome", [failed("1 against 2"), passed(""), absent("no library here")])
def test_a_claim_must_pass_and_say_what_was_compared(outcome: Outcome) -> None:
    with pytest.raises(AssertionError, match="a claim"):
        holds(of(outcome), {}, None)


def test_what_may_be_absent_is_skipped_and_nothing_else() -> None:
    holds(of(passed("3 results")), {}, None, absent="library")
    with pytest.raises(pytest.skip.Exception, match="no library here"):
        holds(of(absent("no library here")), {}, None, absent="library")
    with pytest.raises(AssertionError, match="no GPU here"):
        holds(of(absent("no GPU here")), {}, None, absent="library")


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
