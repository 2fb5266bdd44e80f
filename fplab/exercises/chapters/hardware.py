"""Chapter 13: check a GPU yourself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ...words import NOTHING, Text, say
from ..base import Exercise
from ..kinds import Among, Boxes, Codes, Floats, Integers, Lists, Options, Several
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, edited
from .blocks import unusable

CHAPTER = Chapter(13, "hardware", say("Check a GPU yourself"))

# --- which row differs first ------------------------------------------------------------------------------------
TELLING_CODES = (0x3F800000, 0x3F800001, 0x00000000, 0x80000000, 0x7F800000, 0x7FC00000, 0x7F800001, 0xFFC00000)


def first_difference(ours, recorded):  # type: ignore[no-untyped-def]
    """Bits against bits; any NaN is as good as any other."""

    def is_nan(code):  # type: ignore[no-untyped-def]
        return code & 0x7FFFFFFF > 0x7F800000

    for row, (x, y) in enumerate(zip(ours, recorded, strict=True)):
        if x != y and not (is_nan(x) and is_nan(y)):
            return row
    return -1


# --- how many fraction bits -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Block:
    """A black box that adds its terms as a Tensor Core block does. ``hidden``: the fraction bits that it keeps."""

    hidden: int

    def __call__(self, terms: Sequence[float]) -> float:
        """The sum of any number of terms, as a float that FP32 represents."""
        exact = [Fraction(t) for t in terms]
        exponents = [math.frexp(t)[1] - 1 for t in terms if t]
        if not exponents:
            return 0.0
        quantum = Fraction(2) ** (max(exponents) - self.hidden)
        units = sum(math.trunc(t / quantum) for t in exact)
        extra = max(0, abs(units).bit_length() - 24)
        return math.copysign(float((abs(units) >> extra << extra) * quantum), units) if units else 0.0


def _cuts(bits: int) -> Text:
    return say("a black box that cuts below 2^(emax−{b})").fill(b=bits)


def fraction_bits(box):  # type: ignore[no-untyped-def]
    """What is left of 1 - 1 + 2^-d says whether 2^-d was kept beside 1; the output's own 24 bits cannot hide it."""
    bits = 0
    while box([1.0, -1.0, 2.0 ** -(bits + 1)]) != 0:
        bits += 1
    return bits


# --- two models that one cannot tell apart, but where -------------------------------------------------------------
ROW = Lists(Floats("fp32"), 1, 64)
HALVES = ("fp16", "bf16", "tf32")
EIGHTS = ("e4m3", "e5m2")


def h100_b200(value: tuple[Any, ...]) -> Judgement:
    """Whether H100 and B200 give different bits for a row in a format."""
    inputs, a, b, c = value
    if (why := _unusable(inputs, a, b, c)) is not None:
        return Judgement(False, says=why)
    from ... import tensorcore

    sums = {gpu: float(tensorcore.dot(list(a), list(b), c, gpu=gpu, inputs=inputs)) for gpu in ("H100", "B200")}
    says = say("Both GPUs give the same bits.")
    if inputs in HALVES:
        says = say("Both GPUs give the same bits, as on every row in {f}: there they have one record.").fill(f=inputs)
    lines = tuple((gpu, of_float(d, "fp32")) for gpu, d in sums.items())
    return Judgement(sums["H100"] != sums["B200"], lines, says)


def _unusable(inputs: str, a: Sequence[float], b: Sequence[float], c: float) -> Text | None:
    """Why operands are no row of a format, if they are none."""
    kind = Floats(inputs, finite=True)
    if not all(kind.has(x) for x in (*a, *b)):
        return say("a and b must be finite numbers of {f}.").fill(f=inputs)
    return unusable(((0.0,) * len(a), (0.0,) * len(b)), (c,))


# --- the order of a black box -----------------------------------------------------------------------------------
ORDERS = {
    "loop": say("a loop from the first term"),
    "backwards": say("a loop from the last term"),
    "halves": say("the two halves, each alike, and then both"),
    "strands": say("terms at even places, those at odd places, and then both"),
    "blocks": say("blocks of four with what came before, fused"),
}


@dataclass(frozen=True)
class Adder:
    """A black box that adds numbers in FP32. ``hidden``: the order."""

    hidden: str

    def __call__(self, terms: Sequence[float]) -> float:
        """The sum of the terms."""
        with np.errstate(all="ignore"):
            return float(self._sum([np.float32(t) for t in terms]))

    def _sum(self, terms: list[Any]) -> Any:
        if self.hidden == "halves" and len(terms) > 1:
            half = len(terms) // 2
            return self._sum(terms[:half]) + self._sum(terms[half:])
        if self.hidden == "strands":
            return _loop(terms[::2]) + _loop(terms[1::2])
        if self.hidden == "blocks":
            total = np.float32(0)
            for start in range(0, len(terms), 4):
                total = np.float32(Block(23)([float(t) for t in (total, *terms[start : start + 4])]))
            return total
        return _loop(terms[::-1] if self.hidden == "backwards" else terms)


def _loop(terms: list[Any]) -> Any:
    total = np.float32(0)
    for term in terms:
        total = total + term
    return total


def met_in(add, n, i, j):  # type: ignore[no-untyped-def]
    """All ones that are lost came to M or -M before these met."""
    terms = [1.0] * n
    terms[i], terms[j] = 2.0**60, -(2.0**60)
    return n - round(add(terms))


EXERCISES = (
    Exercise("first_difference", CHAPTER, 1,
             Implement(first_difference,
                       {name: Lists(Among(Codes("fp32"), TELLING_CODES), 0, 4) for name in ("ours", "recorded")},
                       Integers(-1, 3), cases=tuple(((x,), (y,)) for x in TELLING_CODES for y in TELLING_CODES),
                       random=1200, paired=True),
             (Mutant(edited(first_difference, "x != y and not (is_nan(x) and is_nan(y))",
                            "np.uint32(x).view(np.float32) != np.uint32(y).view(np.float32)"),
                     say("These are compared as numbers: −0 equals +0 then, and a NaN not even itself."), "ours"),
              Mutant(edited(first_difference, " and not (is_nan(x) and is_nan(y))", ""),
                     say("Two NaNs count as equal, whatever their payload."), "NaN"),
              Mutant(edited(first_difference, "x != y", "(x ^ y) & 0x7FFFFFFF"),
                     say("The sign is a bit, too: −0 is not +0."), "-0"),
              Mutant(edited(first_difference, "> 0x7F800000", ">= 0x7F800000"),
                     say("0x7F800000 is infinity, not a NaN."), "inf"),
              Mutant(edited(first_difference, "0x7FFFFFFF > 0x7F800000", "0x7FC00000 == 0x7FC00000"),
                     say("A NaN need not have the quiet bit."), "0x7f800001"),
              Mutant(edited(first_difference, "return -1", "return 0"),
                     say("0 is a row; where none differs the answer is −1."), "-1"))),
    Exercise("fraction_bits", CHAPTER, 2,
             Implement(fraction_bits,
                       {"box": Boxes(Integers(8, 40, edges=(10, 13, 22, 23, 24, 25, 35), origin=8), Block, _cuts)},
                       Integers(0, 64)),
             (Mutant(edited(fraction_bits, "[1.0, -1.0,", "[1.0,", "!= 0", "!= 1"),
                     say("1 + 2^-d stops at d = 23 because the output has 24 bits, whatever F is."), "24)"),
              Mutant(edited(fraction_bits, "return bits", "return bits + 1"),
                     say("This is the first place that is lost, not the last that is kept."), "9"),
              Mutant(edited(fraction_bits, "[1.0, -1.0,", "[1.0, 1.0, -2.0,"),
                     say("The largest term here is 2: emax is 1, and places count from there."), "7")),
             "Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ CS 7:e330"),
    Exercise("h100_or_b200", CHAPTER, 2,
             Find(Several((Options((*HALVES, *EIGHTS)), ROW, ROW, Floats("fp32")), ("inputs", "a", "b", "c")),
                  h100_b200, ("e4m3", (448.0, 1.0), (448.0, 1.0), 0.0), say("two different codes"),
                  say("448 · 448 + 1 · 1: the exponents are 16 and 0, and 16 places are more than 13")),
             (Mutant(("fp16", (2.0**-13,) * 16, (2.0**-12,) * 16, 1.0), NOTHING, "every row in fp16"),
              Mutant(("e4m3", (1.0,), (1.0,), 1.0), NOTHING, "give the same bits."),
              Mutant(("e4m3", (1000.0,), (1.0,), 0.0), NOTHING, "finite numbers of e4m3"),
              Mutant(("e5m2", (1.0,), (1.0, 1.0), 0.0), NOTHING, "same length"),
              Mutant(("e5m2", (1.0,), (1.0,), 0.1), NOTHING, "finite FP32 number")),
             "Khattak and Mikaitis 2025, arXiv 2512.07004"),
    Exercise("met_in", CHAPTER, 3,
             Implement(met_in,
                       {"add": Boxes(Options(tuple(ORDERS)), Adder, ORDERS.__getitem__),
                        "n": Integers(2, 24, origin=2),
                        "i": Integers(0, 22),
                        "j": Integers(1, 23, origin=1)},
                       Integers(0, 24),
                       cases=tuple((Adder(name), 9, i, j) for name in ORDERS for i, j in (
                                       (0, 1), (2, 5), (0, 8), (7, 8),
                                   )),
                       random=900, valid=lambda add, n, i, j: i < j < n),
             (Mutant(lambda add, n, i, j: j + 1, say("That is a loop from the first term; others add differently."),
                     "add"),
              Mutant(edited(met_in, "2.0**60, -(2.0**60)", "2.0**24, -(2.0**24)"),
                     say("M is too small: 2^24 + 2 and −2^24 + 1 are numbers of FP32, so some ones count beside it."),
                     "add"),
              Mutant(edited(met_in, "n - round", "round"),
                     say("The sum counts the terms outside: take it from n."), "add"),
              Mutant(edited(met_in, "2.0**60, -(2.0**60)", "1024.0, -1024.0"),
                     say("1024 + 1 is exact: no 1 is lost, and nothing is seen."), "add")),
             "FPRev, arXiv 2411.00442"),
)  # fmt: skip
