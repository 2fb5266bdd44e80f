"""Chapter 10: INT8, INT4 and 8-bit optimizers."""

import math
from fractions import Fraction

from ...words import say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists, Options, Ratios
from ..tasks import Chapter, Implement, Mutant, edited

CHAPTER = Chapter(10, "integers", say("INT8, INT4 and 8-bit optimizers"))
CODES = Integers(0, 255, bits=8, edges=(0b0001_1001, 0b0000_0010, 0b1001_1001, 64, 65, 127, 128, 129))
BLOCK_VALUES = Floats("fp32", finite=True, low=2.0**-12, high=64.0)
NEARLY_A_TIE = (114_559 * 2.0**-19, 1.5)  # 127 times their quotient is 18.5000013, and 18.5 in FP32


def quantize_int8(x, scale):  # type: ignore[no-untyped-def]
    """To nearest, ties to even, and clipped to a range without -128."""
    return max(-127, min(127, round(x / scale)))


def tree_decode(code):  # type: ignore[no-untyped-def]
    """Sign; zeros that say a power of ten; an indicator 1; a fraction of what is left."""
    rest = code & 127
    if rest == 0:
        return Fraction(0)
    width = rest.bit_length() - 1
    zeros = 6 - width
    share = Fraction(rest - (1 << width), (1 << width) - 1) if width else Fraction(1)
    return (-share if code >> 7 else share) / 10**zeros


def blockwise(xs, block):  # type: ignore[no-untyped-def]
    """Each block in units of its own largest magnitude, on 127 steps."""
    codes = []
    for start in range(0, len(xs), block):
        part = xs[start : start + block]
        most = max(abs(Fraction(x)) for x in part)
        codes += [round(Fraction(x) / most * 127) if most else 0 for x in part]
    return codes


def pack_int4(codes):  # type: ignore[no-untyped-def]
    """Two's complement in four bits; the first of two is the low half."""
    if len(codes) % 2:
        codes = [*codes, 0]
    return [(low & 15) | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]


def state_bytes(n, block):  # type: ignore[no-untyped-def]
    """Two states, a byte an element, and an FP32 scale for each block begun."""
    return 2 * (n + 4 * -(-n // block))


EXERCISES = (
    Exercise("state_bytes", CHAPTER, 1,
             Implement(state_bytes, {"n": Integers(0, 10**6, edges=(2047, 2048, 2049)), "block": Integers(1, 4096)},
                       Integers(0, 10**9)),
             (Mutant(lambda n, block: 2 * (n + 4 * (n // block)), say("A last, shorter block has a scale, too."), "n "),
              Mutant(lambda n, block: n + 4 * -(-n // block), say("Adam has two states."), "n "),
              Mutant(lambda n, block: 2 * n, say("The scales are bytes, too."), "n "),
              Mutant(lambda n, block: 2 * (n + -(-n // block)), say("A scale in FP32 takes four bytes."), "n ")),
             "Dettmers et al. 2022, arXiv 2110.02861"),
    Exercise("quantize_int8", CHAPTER, 1,
             Implement(quantize_int8,
                       {"x": Floats("fp32", finite=True, low=2.0**-10, high=1024.0,
                                    edges=(0.5, 1.5, 2.5, 127.5, 128.0, 200.0)),
                        "scale": Options((1.0, 0.5, 0.25, 2.0))},
                       Integers(-127, 127)),
             (Mutant(lambda x, s: max(-127, min(127, int(x / s))), say("int() truncates."), "got"),
              Mutant(lambda x, s: max(-128, min(127, round(x / s))), say("The symmetric grid has no −128."), "-128"),
              Mutant(lambda x, s: (round(x / s) + 128) % 256 - 128,
                     say("What is too large wraps round; it must be clipped."), "got"),
              Mutant(lambda x, s: max(-127, min(127, math.floor(x / s + 0.5))), say("floor(v + 0.5) rounds ties up."),
                     "0.5"))),
    Exercise("tree_decode", CHAPTER, 2, Implement(tree_decode, {"code": CODES}, Ratios()),
             (Mutant(edited(tree_decode, "(1 << width) - 1)", "1 << width)"),
                     say("The fraction is f / (2^n − 1), so that all ones are 1."), "code"),
              Mutant(edited(tree_decode, "6 - width", "7 - width"),
                     say("k zeros before the indicator say 10^-k; the indicator does not count."), "code"),
              Mutant(edited(tree_decode, "-share if code >> 7 else share", "share"),
                     say("The first bit is the sign."), "1000000"),
              Mutant(edited(tree_decode, "return Fraction(0)", "return Fraction(1, 10**7)"),
                     say("Without an indicator the value is 0."), "0000000")),
             "Dettmers et al. 2022, arXiv 2110.02861, 1.3"),
    Exercise("pack_int4", CHAPTER, 2,
             Implement(pack_int4, {"codes": Lists(Integers(-8, 7), 0, 7)}, Lists(Integers(0, 255, bits=8), 0, 4)),
             (Mutant(edited(pack_int4, "for low, high in", "for high, low in"),
                     say("The first code belongs into the low half."), "0001"),
              Mutant(edited(pack_int4, "(low & 15) | (high & 15) << 4", "(low | high << 4) & 255"),
                     say("A negative low code fills the high half with ones: mask it."), "-1"),
              Mutant(edited(pack_int4, "*codes, 0", "*codes", "strict=True", "strict=False"),
                     say("The last of an odd number of codes is dropped."), "[]"))),
    Exercise("blockwise", CHAPTER, 3,
             Implement(blockwise, {"xs": Lists(BLOCK_VALUES, 0, 9), "block": Integers(1, 4)},
                       Lists(Integers(-127, 127), 0, 9),
                       cases=(((1.0, 64.0, 1.0, 1.0), 2), ((0.0, 0.0, 1.0), 2), ((1.0, 0.25, 2.0), 2),
                              ((63.5, 0.25, 1.25, -0.75), 4), (NEARLY_A_TIE, 2), ((48.6171875, 0.57421875), 2))),
             (Mutant(edited(blockwise, "codes = []", "block, codes = max(1, len(xs)), []"),
                     say("One scale for all: an outlier takes every other number's codes."), "xs"),
              Mutant(edited(blockwise, "range(0, len(xs), block)", "range(0, len(xs) // block * block, block)"),
                     say("The last, shorter block is dropped."), "xs"),
              Mutant(edited(blockwise, " if most else 0", ""),
                     say("A block of zeros must not be divided by 0."), "ZeroDivisionError"),
              Mutant(edited(blockwise, "round", "math.trunc"),
                     say("The codes are truncated, not rounded to nearest."), "xs"),
              Mutant(edited(blockwise, "round(Fraction(x) / most * 127)",
                            "math.floor(Fraction(x) / most * 127 + Fraction(1, 2))"),
                     say("floor(v + 0.5) rounds ties up."), "xs"),
              Mutant(edited(blockwise, "abs(Fraction(x))", "abs(x)", "Fraction(x) / most * 127", "x * (127 / most)"),
                     say("127 / maximum is rounded: multiplied by it, a tie can fall to one side."), "xs"),
              Mutant(edited(blockwise, "codes = []", "import numpy as np\n\n    codes = []",
                            "xs[start : start + block]", "np.array(xs[start : start + block], np.float32)",
                            "max(abs(Fraction(x)) for x in part)", "np.abs(part).max()", "Fraction(x) / most * 127",
                            "float(x / most * np.float32(127))"),
                     say("In FP32 the quotient is rounded first, which can make a tie of what is none."), "xs")),
             "Dettmers et al. 2022, arXiv 2110.02861, 2.1"),
)  # fmt: skip
