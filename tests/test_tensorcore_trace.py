"""The stepper adds up: every bit that the result lacks is accounted for."""

from fractions import Fraction

import numpy as np
import pytest
from refusals import refuses
from tensorcore_cases import bits, distinct, operand

from fplab.tensorcore import dot, get, trace


@pytest.mark.parametrize("seed", range(40))
def test_steps_account_for_the_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = [m for m in [*distinct(), get("B200", "nvfp4")] if not m.scale or m.scale[0] == "e4m3"]
    model = models[int(rng.integers(len(models)))]
    k = int(rng.integers(1, 100))
    a, b = operand(model.a, (k,), "sparse", rng), operand(model.b, (k,), "uniform", rng)
    c = operand("fp16", (1,), "near", rng)[0]
    found = trace(a, b, c, gpu=model)
    assert found.bits == bits(dot(a, b, c, gpu=model))
    if not np.isfinite(found.result):
        return
    lost = Fraction(0)
    for step in found.steps:
        if step.what == "add":
            continue
        assert sum(t.units for t in step.terms) == step.units
        assert sum((t.value for t in step.terms), Fraction(0)) == step.total + step.lost_to_truncation
        assert Fraction(step.result) + step.lost_to_rounding == step.total
        assert all(abs(t.lost) < step.quantum for t in step.terms)
        lost += step.lost_to_truncation + step.lost_to_rounding
    if all(step.what == "block" for step in found.steps):
        assert found.error == -lost


def test_a_block_by_hand() -> None:
    """Ada, FP8: beside c = 1024 the quantum is 2**-3, and 0.25 * 0.25 = 2**-4 is gone."""
    step = trace([0.25] * 16, [0.25] * 16, 1024.0, gpu="Ada", inputs="e4m3").steps[0]
    assert (step.emax, step.quantum, step.units, step.result) == (10, Fraction(1, 8), 8192, 1024.0)
    first, last = step.terms[0], step.terms[-1]
    assert (first.k, first.exponent, first.shift, first.units) == (0, -4, 14, 0)
    assert (first.lost, first.bits_lost) == (Fraction(1, 16), 1)
    assert (last.k, last.a, last.shift, last.units, last.bits_lost) == (-1, 1024.0, 0, 8192, 0)
    assert step.lost_to_truncation == 1


def test_products_are_not_renormalised() -> None:
    """1.5 * 1.5 and 1 * 2.25 are the same number and align differently."""
    one, two = (trace([x], [y], 0.0, gpu="A100").steps[0] for x, y in ((1.5, 1.5), (1.0, 2.25)))
    assert (one.emax, two.emax) == (0, 1)


def test_widened_fp8_has_two_blocks_and_an_addition() -> None:
    found = trace([1.0] * 32, [1.0] * 32, 5.0, gpu="H100", inputs="e4m3", instruction="mma")
    assert [s.what for s in found.steps] == ["block", "block", "add"]
    assert [t.k for t in found.steps[0].terms][:4] == [0, 1, 4, 5]
    assert [t.k for t in found.steps[1].terms][:4] == [2, 3, 6, 7]
    assert [s.result for s in found.steps] == [16, 32, 37]
    assert found.steps[1].terms[-1].a == 16


def test_text_and_errors() -> None:
    text = str(trace([1.0, 2.0], [1.0, 2.0], 0.5, gpu="V100"))
    assert "V100 mma.k4 fp16->fp32" in text
    assert "k=1  4 shift" in text
    refuses(lambda: trace([1], [1], inputs="int8"), "int8 has no blocks to trace")
    refuses(lambda: trace([1.0], [1.0, 2.0]), r"both must be \(K,\)")
