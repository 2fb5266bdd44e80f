"""Chapter 3: arithmetic and flags."""

import math
from fractions import Fraction

import numpy as np

from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Floats, Integers, Several
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, Predict

CHAPTER = Chapter(3, "arithmetic", say("Arithmetic and flags"))
half = np.float16


def fma_fp16(a, b, c):  # type: ignore[no-untyped-def]
    """Exactly in fractions, then to a multiple of the spacing once."""
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        product = math.copysign(1, a) * math.copysign(1, b)
        both_minus = product < 0 and math.copysign(1, c) < 0
        return -0.0 if both_minus and a * b == 0 and c == 0 else 0.0
    exponent = max(math.frexp(float(total))[1] - 1, -14)
    while Fraction(2) ** exponent > abs(total) and exponent > -14:
        exponent -= 1
    spacing = Fraction(2) ** (exponent - 10)
    rounded = math.copysign(float(round(abs(total) / spacing) * spacing), total)
    return rounded if abs(rounded) <= 65504 else math.copysign(math.inf, total)


def _rounded_product(a: float, b: float, c: float) -> float:
    return float(half(a) * half(b) + half(c))


def _in_double(a: float, b: float, c: float) -> float:
    return float(half(a * b + c))


def _in_single(a: float, b: float, c: float) -> float:
    return float(half(np.float32(a) * np.float32(b) + np.float32(c)))


def _plus_zero(a: float, b: float, c: float) -> float:
    return float(fma_fp16(a, b, c)) if Fraction(a) * Fraction(b) + Fraction(c) else 0.0


def two_sum(a, b):  # type: ignore[no-untyped-def]
    """Knuth's six operations: what each operand lost on its way into the sum."""
    import numpy as np

    a, b = np.float32(a), np.float32(b)
    s = a + b
    b_in = s - a
    a_in = s - b_in
    return float(s), float((a - a_in) + (b - b_in))


def _fast_two_sum(a: float, b: float) -> tuple[float, float]:
    x, y = np.float32(a), np.float32(b)
    s = x + y
    return float(s), float(y - (s - x))


def _sum_alone(a: float, b: float) -> tuple[float, float]:
    return float(np.float32(a) + np.float32(b)), 0.0


def not_associative_judge(values: tuple[float, ...]) -> Judgement:
    """(a + b) + c against a + (b + c) in FP16."""
    if any(not math.isfinite(v) or float(half(v)) != v for v in values):
        return Judgement(False, says=say("All three must be finite FP16 numbers."))
    with np.errstate(all="ignore"):
        a, b, c = (half(v) for v in values)
        left, right = float((a + b) + c), float(a + (b + c))
    lines = (("(a + b) + c", of_float(left, "fp16")), ("a + (b + c)", of_float(right, "fp16")))
    if not (math.isfinite(left) and math.isfinite(right)):
        return Judgement(False, lines, say("A sum overflows; find it without."))
    return Judgement(left != right, lines, say("Both orders give the same sum."))


EXERCISES = (
    Exercise("flags_of_overflow", CHAPTER, 1, Predict(5, Integers(0, 31, bits=5), say("overflow 4 + inexact 1")),
             (Mutant(4, say("An overflow is always inexact, too."), "00100"),
              Mutant(1, say("It is a tie, and the tie goes up, beyond the largest."), "00001"),
              Mutant(0, say("65520 is no FP16 number: something must be inexact."), "00000"),
              Mutant(16, say("Invalid is for results with no meaning, such as ∞ − ∞."), "10000")),
             "IEEE 754-2019, 7.4"),
    Exercise("absorbed", CHAPTER, 1, Predict(1.0009765625, Floats("fp16"), say("1 + 2**-10, just above the tie")),
             (Mutant(1, say("2049 is a tie, and goes to 2048, whose significand is even."), "0 01111 0000000000"),
              Mutant(2, say("Less than a whole spacing suffices: anything above a half of it."),
                     "0 10000 0000000000"))),
    Exercise("not_associative", CHAPTER, 1,
             Find(Several((Floats("fp16"),) * 3, ("a", "b", "c")), not_associative_judge, (2048.0, 1.0, 1.0),
                  say("two different sums"), say("2048 + 1 is 2048, twice; 2048 + 2 is 2050")),
             (Mutant((1.0, 2.0, 3.0), NOTHING, "Both orders give the same sum"),
              Mutant((65504.0, 65504.0, -65504.0), NOTHING, "A sum overflows"),
              Mutant((0.1, 0.2, 0.3), NOTHING, "must be finite FP16 numbers"))),
    Exercise("two_sum", CHAPTER, 2,
             Implement(two_sum,
                       {"a": Floats("fp32", finite=True, low=2.0**-60, high=2.0**60),
                        "b": Floats("fp32", finite=True, low=2.0**-60, high=2.0**60)},
                       Several((Floats("fp32"), Floats("fp32")), ("s", "e")),
                       cases=((1.0, 2.0**24 + 2), (2.0**24 + 2, 1.0), (1.0, 2.0**-30), (2.0**-30, 1.0)),
                       valid=lambda a, b: a != 0 and b != 0 and a != -b),
             (Mutant(_fast_two_sum, say("Three operations suffice only where |a| ≥ |b|."), "e "),
              Mutant(_sum_alone, say("The error is not 0 where the sum is rounded."), "e 0.0"),
              Mutant(lambda a, b: (two_sum(a, b)[0], -two_sum(a, b)[1]),
                     say("The error's sign is turned: e = (a + b) − s."), "e -")),
             "D. E. Knuth, The Art of Computer Programming 2, 4.2.2"),
    Exercise("fma_fp16", CHAPTER, 3,
             Implement(fma_fp16, {name: Floats("fp16", finite=True) for name in ("a", "b", "c")}, Floats("fp16"),
                       cases=((-1.0, 0.0, -0.0), (-1.0, 0.0, 0.0), (1 + 2.0**-10, 1 + 2.0**-10, -1.0),
                              (2.0**-24, 2.0**-24, 1 + 2.0**-10), (65504.0, 2.0, -65504.0),
                              (1 + 2.0**-5, 1 + 2.0**-6, -(2.0**-24)),
                              (2.0**-24, 2.0**-24, 1.0),
                              (1 + 2.0**-5, 1 + 2.0**-6, 2.0**-24),
                              (2.0**15, 1 + 2.0**-10, 2.0**-24), (32768.0, 1 + 2.0**-10, 16.0))),
             (Mutant(_rounded_product, say("The product is rounded before the addition: two roundings."), "c "),
              Mutant(_in_single, say("FP32 rounds the sum first: two roundings."), "c "),
              Mutant(_plus_zero, say("An exact 0 is +0, but for (−0) + (−0), which is −0."), "-0.0"),
              Mutant(lambda a, b, c: abs(fma_fp16(a, b, c)) if fma_fp16(a, b, c) == 0 else fma_fp16(a, b, c),
                     say("(−0) + (−0) is −0, and what rounds to 0 keeps its sign."), "-0.0")),
             "IEEE 754-2019, 5.4.1"),
)  # fmt: skip
