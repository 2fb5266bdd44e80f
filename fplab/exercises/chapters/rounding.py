"""Chapter 2: rounding."""

import math
from fractions import Fraction

from ... import exact
from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Codes, Floats, Integers
from ..shown import of_code
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, edited

CHAPTER = Chapter(2, "rounding", say("Rounding"))


def rne(x, n):  # type: ignore[no-untyped-def]
    """The dropped bits against one half; a tie goes to the even quotient."""
    if n == 0:
        return x
    quotient, dropped, half = x >> n, x & ((1 << n) - 1), 1 << (n - 1)
    return quotient + (dropped > half or (dropped == half and quotient % 2 == 1))


def fp32_to_bf16(code):  # type: ignore[no-untyped-def]
    """Add what carries into the upper half exactly when it must; a NaN keeps its top bits and becomes quiet."""
    if code & 0x7FFFFFFF > 0x7F800000:
        return code >> 16 | 0x0040
    return (code + 0x7FFF + (code >> 16 & 1)) >> 16


def quantize_e4m3(x):  # type: ignore[no-untyped-def]
    """Round to a multiple of the spacing in the binade of x; the spacing stops shrinking at 2**-9."""
    if x == 0 or math.isnan(x):
        return x
    if math.isinf(x):
        return math.nan
    exponent = max(math.frexp(x)[1] - 1, -6)
    spacing = 2.0 ** (exponent - 3)
    rounded = math.copysign(round(abs(x) / spacing) * spacing, x)
    return rounded if abs(rounded) <= 448 else math.nan


def stochastic(x, word):  # type: ignore[no-untyped-def]
    """Adding a random word below one unit carries with the probability of the dropped part."""
    return (x + word) >> 8


def double_rounds(x: float) -> Judgement:
    """Whether FP16 by way of FP32 differs from FP16 at once."""
    at_once = exact.round_to(exact.from_float(x), "fp16")[0]
    code = exact.round_to(exact.from_float(x), "fp32")[0]
    single = exact.decode(code, "fp32")
    in_two = exact.round_to(single, "fp16")[0]
    lines = (("float64 → FP16", of_code(at_once, "fp16")), ("→ FP32 → FP16", of_code(in_two, "fp16")))
    if at_once != in_two:
        return Judgement(True, lines)
    value = Fraction(x) if math.isfinite(x) else Fraction(0)
    if single.kind == "finite" and single.value == value:
        says = say("FP32 holds this number: the first rounding changes nothing.")
    else:
        says = say("Both ways round to the same number.")
    return Judgement(False, (("FP32", of_code(code, "fp32")), *lines), says)


EXERCISES = (
    Exercise("rne", CHAPTER, 1,
             Implement(rne,
                       {"x": Integers(0, 4095, bits=4, edges=(2, 3, 4, 5, 6, 7, 12, 20, 24, 40)), "n": Integers(0, 8)},
                       Integers(0, 4095, bits=4)),
             (Mutant(lambda x, n: x >> n, say("This is truncation: the dropped bits never round up."), "0011"),
              Mutant(lambda x, n: (x + (1 << n) // 2) >> n,
                     say("These are ties away from zero: one half always goes up."), "0001"),
              Mutant(edited(rne, " or (dropped == half and quotient % 2 == 1)", ""),
                     say("These are ties toward zero: one half never goes up."), "0011"),
              Mutant(edited(rne, "quotient % 2 == 1", "quotient % 2 == 0"),
                     say("Ties go to the odd quotient here."), "0001"),
              Mutant(lambda x, n: x + (1 << (n - 1)) - 1 + (x >> n & 1) >> n,
                     say("n = 0 drops nothing and needs no half: 1 << (n − 1) fails there."), "negative shift count")),
             "IEEE 754-2019, 4.3.1"),
    Exercise("fp32_to_bf16", CHAPTER, 2,
             Implement(fp32_to_bf16,
                       {"code": Codes("fp32",
                                      edges=(0x3F808000, 0x3F818000, 0x3F80C000, 0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF))},
                       Codes("bf16")),
             (Mutant(lambda c: c >> 16, say("This cuts the lower half off: truncation, and a NaN can become infinity."),
                     "0000000001"),
              Mutant(lambda c: c >> 16 | 0x40 if c & 0x7FFFFFFF > 0x7F800000 else (c + 0x8000) >> 16,
                     say("Adding half a unit rounds ties away from zero."), "1000000000000000"),
              Mutant(lambda c: (c + 0x7FFF + (c >> 16 & 1)) >> 16,
                     say("A NaN is not rounded: it can turn into infinity, or carry into the sign."), "NaN"),
              Mutant(lambda c: c >> 16 | 0x40 if c & 0x7FFFFFFF > 0x7F800000 else (c + 0x7FFF) >> 16,
                     say("Ties always go down here: the last kept bit has to be added."), "1000000000000000"))),
    Exercise("quantize_e4m3", CHAPTER, 3,
             Implement(quantize_e4m3,
                       {"x": Floats("fp32", near="e4m3", edges=(448.0, 464.0, 465.0, 480.0, 1e6, 240.0, 248.0))},
                       Floats("e4m3")),
             (Mutant(edited(quantize_e4m3, "return math.nan", "return math.copysign(448.0, x)", "else math.nan",
                            "else math.copysign(448.0, x)"),
                     say("This saturates: 448 where NaN was asked for."), "448"),
              Mutant(edited(quantize_e4m3, "<= 448", "<= 480"),
                     say("480 is no number of E4M3: its code is the NaN."), "480"),
              Mutant(edited(quantize_e4m3, "-6)", "-200)"),
                     say("The exponent ends at −6; below it the spacing stays 2^-9."), "not yet"),
              Mutant(edited(quantize_e4m3, "return rounded", "rounded *= abs(rounded) >= 2.0**-6\n    return rounded"),
                     say("This flushes subnormals, from 2^-9 on, to zero."), "0 0000 100"),
              Mutant(edited(quantize_e4m3, "round(abs(x) / spacing)", "math.floor(abs(x) / spacing + 0.5)"),
                     say("Ties are rounded away from zero here."), "expected"),
              Mutant(edited(quantize_e4m3, "round(abs", "math.floor(abs"), say("This truncates toward zero."), "got")),
             "OCP 8-bit Floating Point Specification 1.0"),
    Exercise("stochastic", CHAPTER, 2,
             Implement(stochastic,
                       {"x": Integers(0, 4095, edges=(128, 255, 256, 257, 384)),
                        "word": Integers(0, 255, edges=(127, 128))},
                       Integers(0, 16)),
             (Mutant(lambda x, w: (x + 128) >> 8, say("The word decides nothing here: this is rounding to nearest."),
                     "word"),
              Mutant(lambda x, w: (x >> 8) + (x % 256 >= w), say("≥ makes exact values go up when the word is 0."),
                     "1"),
              Mutant(lambda x, w: (x >> 8) + (x % 256 + w > 256),
                     say("One word too few goes up: 255 with a dropped 1 must."), "255")),
             "M. Croci et al. 2022, Stochastic rounding: implementation, error analysis and applications"),
    Exercise("double_rounding", CHAPTER, 3,
             Find(Floats("fp64"), double_rounds, 1 + 2.0**-11 + 2.0**-40, say("two different FP16 codes"),
                  say("1 + 2**-11 is a midpoint of FP16; 2**-40 above it is lost in FP32, and the tie goes to 1")),
             (Mutant(1 + 2.0**-11, NOTHING, "FP32 holds this number"),
              Mutant(0.1, NOTHING, "Both ways round to the same number")),
             "S. Figueroa 1995, When is double rounding innocuous?"),
)  # fmt: skip
