"""Right answers pass however they are written; wrong ones that are no listed mistake fail all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fplab
from fplab import exact
from fplab.exercises import exercise

half, single = np.float16, np.float32


@pytest.fixture(autouse=True)
def english():
    before = fplab.lang()
    fplab.lang("en")
    yield
    fplab.lang(before)


def check(name, answer):
    return exercise(name).check(answer, remember=False)


def each(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same way of writing for every number of an answer that has one."""

    def rewritten(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(rewritten(v) for v in value)
        minus_zero = value == 0 and math.copysign(1, value) < 0
        return value if minus_zero or (isinstance(value, float) and not math.isfinite(value)) else write(value)

    return rewritten


WAYS = {
    "as numpy's float64": each(np.float64),
    "as Fractions": each(Fraction),
    "as arrays without dimensions": each(np.array),
    "as whole numbers where they are": each(lambda v: int(v) if v == int(v) else v),
    "lists as arrays": lambda v: np.array(v) if isinstance(v, list) else v,
    "tuples as arrays": lambda v: np.array(v) if isinstance(v, tuple) else v,
    "tuples as lists": lambda v: list(v) if isinstance(v, tuple) else v,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["rne", "decode_fp16", "tree_decode", "pack_int4", "two_sum", "shard", "grad_scaler"])
def test_a_right_answer_passes_however_it_is_written(name, way):
    if name == "tree_decode" and "float64" in way:
        return  # a Fraction is asked for: most of these are no floats
    reference = exercise(name).task.reference
    report = check(name, lambda *arguments: WAYS[way](reference(*arguments)))
    assert report.passed, report


@pytest.mark.parametrize(
    "whole", [single(3), half(3), Decimal(3), Fraction(3), np.array(3.0), np.array(3), np.uint8(3), 3.0]
)
def test_a_whole_number_of_any_type_is_an_integer(whole):
    assert exercise("rne").task.result.read(whole) == 3
    assert type(exercise("rne").task.result.read(whole)) is int


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("flags_of_overflow", np.array(5.5), "an integer is wanted, not array(5.5) (ndarray)"),
        ("flags_of_overflow", single(5.5), "an integer is wanted, not np.float32(5.5) (float32)"),
        ("flags_of_overflow", Fraction(11, 2), "an integer is wanted, not Fraction(11, 2) (Fraction)"),
        ("flags_of_overflow", np.array([5]), "an integer is wanted, not array([5]) (ndarray)"),
        ("flags_of_overflow", b"5", "an integer is wanted, not b'5' (bytes)"),
        ("flags_of_overflow", np.True_, "an integer is wanted, not np.True_ (bool)"),
        ("flags_of_overflow", math.nan, "an integer is wanted, not nan (float)"),
        ("largest_e4m3", b"448", "one number is wanted, not b'448' (bytes)"),
        ("largest_e4m3", np.complex64(448), "one number is wanted, not np.complex64(448+0j) (complex64)"),
    ],
)
def test_what_is_no_number_of_the_kind_is_refused(name, given, text):
    assert text in str(check(name, given))


def test_a_float_for_a_fraction_is_called_one():
    text = str(check("bubble", lambda stages, micro_batches, chunks: (stages - 1) / (micro_batches * chunks)))
    assert "expected       1/3 ≈ 0.333333333" in text
    assert "got            0.3333333333333333  (a float, which is rounded: a Fraction is exact)" in text


def fma_without_sign(a, b, c):
    exactly = Fraction(a) * Fraction(b) + Fraction(c)
    return float(half(a * b + c)) if exactly else 0.0


def of_blocks(code: Callable[[float, float], int]) -> Callable[[list[float], int], list[int]]:
    def quantize(xs, block):
        most = [max(map(abs, xs[i // block * block :][:block])) for i in range(len(xs))]
        return [code(x, m) if m else 0 for x, m in zip(xs, most, strict=True)]

    return quantize


WRONG = {
    "a sum of zeros without its sign": ("fma_fp16", fma_without_sign),
    "a logarithm to the base 2 by division": (
        "fp8_scale",
        lambda amaxes: math.floor(math.log(448 / max(amaxes), 2)) if any(amaxes) else 0,
    ),
    "ties away from zero": (
        "blockwise",
        of_blocks(lambda x, m: int(math.copysign(math.floor(abs(x / m * 127) + 0.5), x))),
    ),
    "the inverse rounded first": ("blockwise", of_blocks(lambda x, m: round(x * (127 / m)))),
    "quotients in FP32": ("blockwise", of_blocks(lambda x, m: int(np.rint(single(x) / single(m) * single(127))))),
    "never a scale below 1": (
        "choose_scale",
        lambda counts: max([0, 46 - max([i for i, n in enumerate(counts) if n], default=46)]),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_fails(name):
    of, answer = WRONG[name]
    assert not check(of, answer).passed


def test_an_exact_quotient_in_floats_is_right():
    """x · 127 is exact in double precision, and one rounding of the quotient cannot reach a tie."""
    assert check("blockwise", of_blocks(lambda x, m: round(x * 127 / m))).passed


@pytest.mark.parametrize("x", [math.nan, -1e300, 1e300])
def test_a_judge_shows_what_single_precision_holds(x):
    report = check("double_rounding", x)
    shown = dict(report.failure.arguments)["FP32"][0]
    assert shown.strip.replace(" ", "") == f"{exact.round_to(exact.from_float(x), 'fp32')[0]:032b}"


@pytest.mark.filterwarnings("error")
def test_a_judge_warns_of_nothing():
    assert check("beyond_2048", (65504.0, 31.0)).passed
    assert not check("not_associative", (1e9, 1.0, 1.0)).passed


def test_the_largest_gradient_whose_square_is_lost_is_named_as_such():
    """The typical mistake of vanishing_variance: g² is 0 in FP16 at 2^-13, and not yet at 2^-12."""
    assert half(2.0**-26) == 0 < half(2.0**-24)
    assert "g² itself becomes 0" in str(check("vanishing_variance", 2.0**-13))


def test_absorbed_asks_for_a_positive_number():
    assert "smallest positive FP16 number" in exercise("absorbed").statement.en
