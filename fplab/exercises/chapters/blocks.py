"""Chapter 5: Tensor Core blocks."""

import math
import struct
from fractions import Fraction
from typing import Any

from ...words import NOTHING, Text, say
from ..base import Exercise
from ..kinds import Codes, Floats, Lists, Several
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, Predict, edited

CHAPTER = Chapter(5, "blocks", say("Tensor Core blocks"))
HALF = Floats("fp16", finite=True, low=2.0**-14, high=64.0)
ROW = Lists(Floats("fp16"), 1, 64)


def v100_block(a, b, c):  # type: ignore[no-untyped-def]
    """Align everything to the largest exponent, cut, add exactly, cut again to 24 bits."""

    def exponent(x):  # type: ignore[no-untyped-def]
        return math.frexp(x)[1] - 1

    exponents = [exponent(x) + exponent(y) for x, y in zip(a, b, strict=True) if x and y]
    exponents += [exponent(c)] if c else []
    if not exponents:
        return 0.0
    quantum = Fraction(2) ** (max(exponents) - 23)
    terms = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)] + [Fraction(c)]
    units = sum(math.trunc(term / quantum) for term in terms)
    extra = max(0, abs(units).bit_length() - 24)
    kept = abs(units) >> extra << extra
    return math.copysign(float(kept * quantum), units) if units else 0.0


def _float32(x: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def _exact_once(a: list[float], b: list[float], c: float) -> float:
    return _float32(float(sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(c))))


def on(gpu: str, a: Any, b: Any, c: float) -> float:
    """One row through a GPU's FP16 Tensor Core, in FP32."""
    from ... import tensorcore

    return float(tensorcore.dot(list(a), list(b), c, gpu=gpu))


def unusable(rows: tuple[tuple[float, ...], ...], cs: tuple[float, ...], most: int = 64) -> Text | None:
    """Why operands cannot be put into one FP16 row, if they cannot."""
    if len({len(row) for row in rows}) > 1 or not 1 <= len(rows[0]) <= most:
        return say("a and b must have the same length, 1 to {most}.", most=most)
    half, single = Floats("fp16", finite=True), Floats("fp32", finite=True)
    if not all(half.has(x) for row in rows for x in row):
        return say("a and b must be finite FP16 numbers.")
    if not all(single.has(c) for c in cs):
        return say("c must be a finite FP32 number.")
    return None


def a100_h100(value: tuple[Any, ...]) -> Judgement:
    """Whether A100 and H100 give different bits."""
    a, b, c = value
    if (why := unusable((a, b), (c,))) is not None:
        return Judgement(False, says=why)
    first, second = on("A100", a, b, c), on("H100", a, b, c)
    lines = (("A100", of_float(first, "fp32")), ("H100", of_float(second, "fp32")))
    return Judgement(first != second, lines, say("Both GPUs give the same bits."))


def not_monotonic(value: tuple[Any, ...]) -> Judgement:
    """Whether V100 gives less for more."""
    a, b, c1, c2 = value
    if (why := unusable((a, b), (c1, c2), 4)) is not None:
        return Judgement(False, says=why)
    if not c1 < c2:
        return Judgement(False, says=say("c1 must be below c2."))
    first, second = on("V100", a, b, c1), on("V100", a, b, c2)
    lines = (("D(c1)", of_float(first, "fp32")), ("D(c2)", of_float(second, "fp32")))
    return Judgement(first > second, lines, say("The result does not go down."))


EXERCISES = (
    Exercise("v100_predict", CHAPTER, 1,
             Predict(0x3F800001, Codes("fp32"), say("1 + 3·2^-24 cut to 24 bits is 1 + 2^-23")),
             (Mutant(1, say("That is a value; read as a code, it is 2^-149. The code of 1 is 0x3F800000."), "2^-149"),
              Mutant(0x3F800000, say("That is c = 1, where the quantum is 2^-23 and every product is lost."),
                     "0x3f800000"),
              Mutant(0x3F800002, say("The sum is cut, not rounded to nearest even."), "0x3f800002"),
              Mutant(0x3F7FFFFF, say("That is c alone: here the products count."), "0x3f7fffff")),
             "Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ CS 7:e330"),
    Exercise("a100_or_h100", CHAPTER, 2,
             Find(Several((ROW, ROW, Floats("fp32")), ("a", "b", "c")), a100_h100,
                  ((2.0**-13,) * 16, (2.0**-12,) * 16, 1.0), say("two different codes"),
                  say("sixteen products of 2^-25 with c = 1")),
             (Mutant(((2.0**-12,) * 16, (2.0**-12,) * 16, 1.0), NOTHING, "same bits"),
              Mutant(((1.0,), (1.0, 1.0), 0.0), NOTHING, "same length"),
              Mutant(((1e9,), (1.0,), 0.0), NOTHING, "finite FP16 numbers"),
              Mutant(((1.0,), (1.0,), 0.1), NOTHING, "finite FP32 number")),
             "Khattak and Mikaitis 2025, arXiv 2512.07004"),
    Exercise("break_monotonicity", CHAPTER, 2,
             Find(Several((ROW, ROW, Floats("fp32"), Floats("fp32")), ("a", "b", "c1", "c2")), not_monotonic,
                  ((2.0**-12,) * 4, (2.0**-12,) * 4, 1 - 2.0**-24, 1.0), say("D(c1) > D(c2)"),
                  say("c = 1 − 2^-24 gives 1 + 2^-23, c = 1 gives 1")),
             (Mutant(((1.0,), (1.0,), 1.0, 2.0), NOTHING, "does not go down"),
              Mutant(((2.0**-12,) * 4, (2.0**-12,) * 4, 1.0, 1 - 2.0**-24), NOTHING, "c1 must be below c2")),
             "Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ CS 7:e330"),
    Exercise("v100_block", CHAPTER, 3,
             Implement(v100_block,
                       {"a": Lists(HALF, 4, 4),
                        "b": Lists(HALF, 4, 4),
                        "c": Floats("fp32", finite=True, low=2.0**-30, high=2.0**16)},
                       Floats("fp32"),
                       cases=(((2.0**-12,) * 4, (2.0**-12,) * 4, 1.0),
                              ((2.0**-12,) * 4, (2.0**-12,) * 4, 1 - 2.0**-24),
                              ((-(2.0**-12), 0.0, 0.0, 0.0), (2.0**-12, 0.0, 0.0, 0.0), 1.0),
                              ((1.5, 2.0**-12, 0.0, 0.0), (1.5, 2.0**-11, 0.0, 0.0), 0.0),
                              ((1.5, 2.0**-11, 0.0, 0.0), (1.5, 1.5 * 2.0**-12, 0.0, 0.0), 0.0),
                              ((1.0, 2.0**-12, 2.0**-12, 2.0**-12), (1.0, 2.0**-11, 2.0**-11, 2.0**-11), 1.0),
                              ((0.0, 0.0, 1.5, -(2.0**-5)), (0.0, 0.0, -1.5, -17 * 2.0**-18), 0.0))),
             (Mutant(_exact_once, say("This is the exact sum rounded once: better than V100."), "got"),
              Mutant(edited(v100_block, "max(exponents) - 23", "max(exponents) - 24"),
                     say("24 bits below emax are Turing's and Ampere's; V100 keeps 23."), "got"),
              Mutant(edited(v100_block, "math.trunc", "math.floor"),
                     say("math.floor cuts negative terms away from zero."), "-"),
              Mutant(edited(v100_block, "abs(units) >> extra << extra",
                            "round(Fraction(abs(units), 1 << extra)) << extra"),
                     say("The sum is cut to 24 bits, not rounded to nearest."), "got"),
              Mutant(edited(v100_block, "exponent(x) + exponent(y)", "exponent(x * y)"),
                     say("Products are not renormalised before they are aligned: 1.5 · 1.5 has exponent 0."), "got")),
             "Khattak and Mikaitis 2025, arXiv 2512.07004"),
)  # fmt: skip
