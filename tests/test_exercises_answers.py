"""Right answers pass however they are written; wrong ones that are no listed mistake fail all the same."""

import math
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from answers_here import check

import fplab
from fplab import exact
from fplab.exercises import exercise

half, single = np.float16, np.float32


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
    ("name", "answer", "text"),
    [("flags_of_overflow", np.array(5.5), "an integer is wanted, not array(5.5) (ndarray)"),
     ("flags_of_overflow", single(5.5), "an integer is wanted, not np.float32(5.5) (float32)"),
     ("flags_of_overflow", Fraction(11, 2), "an integer is wanted, not Fraction(11, 2) (Fraction)"),
     ("flags_of_overflow", np.array([5]), "an integer is wanted, not array([5]) (ndarray)"),
     ("flags_of_overflow", b"5", "an integer is wanted, not b'5' (bytes)"),
     ("flags_of_overflow", np.True_, "an integer is wanted, not np.True_ (bool)"),
     ("flags_of_overflow", math.nan, "an integer is wanted, not nan (float)"),
     ("largest_e4m3", b"448", "one number is wanted, not b'448' (bytes)"),
     ("largest_e4m3", np.complex64(448), "one number is wanted, not np.complex64(448+0j) (complex64)"),
     ("largest_e4m3", "x", "one number is wanted, not 'x' (str)"),
     ("predict_bits", "101", "a string of 16 binary digits is wanted, not '101' (str)"),
     ("a100_or_h100", 3, "a tuple (a, b, c) is wanted, not 3 (int)"),
     ("bf16_or_fp16", "e", "one of 'a', 'b', 'c', 'd' is wanted"),
     ("rne", lambda x, n: None, "an integer is wanted, not None"),
     ("rne", lambda x, n: "1", "an integer is wanted, not '1' (str)"),
     ("rne", lambda x, n: True, "an integer is wanted, not True (bool)"),
     ("rne", lambda x, n: 0.5, "an integer is wanted, not 0.5 (float)"),
     ("rne", lambda x, n: [x], "an integer is wanted, not [0] (list)"),
     ("rne", lambda x: x, "takes 1 positional argument but 2 were given"),
     ("rne", lambda x, n: sys.exit(3), "it raises SystemExit: 3"),
     ("rne", 5, "a function is wanted (def rne(x, n):), not 5"),
     ("rne", None, "a function is wanted (def rne(x, n):), not None"),
     ("rne", lambda x, n: 10**5000, "≈ 2^16610"),
     ("rne", lambda x, n: -(10**5000), "≈ -2^16610"),
     ("next_up", lambda code: 10**5000, "≈ 2^16610  (no code of fp16)"),
     ("rne", lambda x, n: np.array([1, 2]), "an integer is wanted, not array([1, 2]) (ndarray)")],
)  # fmt: skip
def test_what_is_no_answer_of_the_kind_is_said_kindly_and_of_any_size(name, answer, text):
    report = check(name, answer)
    assert not report.passed
    assert text in str(report)


def test_arguments_are_the_answers_own():
    def answer(xs, block):
        result = exercise("blockwise").task.reference(list(xs), block)
        xs.clear()
        return result

    assert check("blockwise", answer).passed


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
    "a logarithm to the base 2 by division": ("fp8_scale",
                                              lambda amaxes: math.floor(
                                                  math.log(448 / max(amaxes), 2)
                                              ) if any(amaxes) else 0),
    "ties away from zero": ("blockwise",
                            of_blocks(lambda x, m: int(math.copysign(math.floor(abs(x / m * 127) + 0.5), x)))),
    "the inverse rounded first": ("blockwise", of_blocks(lambda x, m: round(x * (127 / m)))),
    "quotients in FP32": ("blockwise", of_blocks(lambda x, m: int(np.rint(single(x) / single(m) * single(127))))),
    "never a scale below 1": ("choose_scale",
                              lambda counts: max([0, 46 - max([i for i, n in enumerate(counts) if n], default=46)])),
}  # fmt: skip


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


def test_reports_follow_the_language():
    report = check("rne", lambda x, n: x >> n)
    assert "expected" in str(report)
    fplab.lang("zh")
    assert "应为" in str(report)
    assert "提示" in str(report)
    assert "这是截断" in str(report)
    fplab.lang("en")
    found = check("double_rounding", 1 + 2**-11)
    assert "two different FP16 codes" in str(found)
    fplab.lang("zh")
    assert "两个不同的 FP16 编码" in str(found)


def test_the_language_is_chosen_by_name():
    assert fplab.lang("中文") == fplab.lang() == "zh"
    assert fplab.lang("EN") == "en"
    with pytest.raises(fplab.LabError, match=r"unknown language 'fr'\. Allowed: en, zh\."):
        fplab.lang("fr")
    assert fplab.lang() == "en"


def test_other_ways_of_writing_an_answer_are_right():
    assert check("rne", lambda x, n: np.int64(round(x / 2**n))).passed
    assert check("predict_bits", "1011000100000000").passed
    assert check("predict_bits", 0xB100).passed
    assert check("bf16_or_fp16", " C ").passed
    assert check("decode_fp16", lambda c: np.uint16(c).view(np.float16)).passed
    assert check("fma_fp16", lambda a, b, c: fplab.fma(a, b, c, "fp16")).passed
