"""Chapter 10: INT8, INT4 and 8-bit optimizers."""

import math
from fractions import Fraction

import numpy as np

from ...words import say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists, Options, Ratios
from ..tasks import Chapter, Implement, Mutant

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


def _tree(divisor: int = 1, shift: int = 0, signed: bool = True, zero: bool = True):  # type: ignore[no-untyped-def]
    """A decoder with one thing wrong."""

    def decode(code):  # type: ignore[no-untyped-def]
        rest = code & 127
        if rest == 0:
            return Fraction(0) if zero else Fraction(1, 10**7)
        width = rest.bit_length() - 1
        most = (1 << width) - divisor
        share = Fraction(rest - (1 << width), most) if width and most else Fraction(1)
        return (-share if code >> 7 and signed else share) / Fraction(10) ** (6 - width + shift)

    return decode


def blockwise(xs, block):  # type: ignore[no-untyped-def]
    """Each block in units of its own largest magnitude, on 127 steps."""
    codes = []
    for start in range(0, len(xs), block):
        part = xs[start : start + block]
        most = max(abs(Fraction(x)) for x in part)
        codes += [round(Fraction(x) / most * 127) if most else 0 for x in part]
    return codes


def _half_up(x: Fraction) -> int:
    return math.floor(x + Fraction(1, 2))


def _blocks(*, whole: bool = False, short: bool = True, guard: bool = True, step=round):  # type: ignore[no-untyped-def]
    """Block-wise quantisation with one thing wrong."""

    def quantize(xs, block):  # type: ignore[no-untyped-def]
        block = max(1, len(xs)) if whole else block
        codes: list[int] = []
        for start in range(0, len(xs) if short else len(xs) // block * block, block):
            part = xs[start : start + block]
            most = max(abs(Fraction(x)) for x in part)
            codes += [step(Fraction(x) / most * 127) if most or not guard else 0 for x in part]
        return codes

    return quantize


def _by_inverse(xs: list[float], block: int) -> list[int]:
    codes: list[int] = []
    for start in range(0, len(xs), block):
        part = xs[start : start + block]
        most = max(map(abs, part))
        codes += [round(x * (127 / most)) if most else 0 for x in part]
    return codes


def _in_single(xs: list[float], block: int) -> list[int]:
    codes: list[int] = []
    for start in range(0, len(xs), block):
        part = np.array(xs[start : start + block], np.float32)
        most = np.abs(part).max()
        codes += [round(float(x / most * np.float32(127))) if most else 0 for x in part]
    return codes


def pack_int4(codes):  # type: ignore[no-untyped-def]
    """Two's complement in four bits; the first of two is the low half."""
    if len(codes) % 2:
        codes = [*codes, 0]
    return [(low & 15) | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]


def _high_first(codes: list[int]) -> list[int]:
    codes = [*codes, 0] if len(codes) % 2 else codes
    return [(high & 15) | (low & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]


def _unmasked(codes: list[int]) -> list[int]:
    codes = [*codes, 0] if len(codes) % 2 else codes
    return [(low | high << 4) & 255 for low, high in zip(codes[::2], codes[1::2], strict=True)]


def _pairs_only(codes: list[int]) -> list[int]:
    return [(low & 15) | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=False)]


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
             (Mutant(_tree(divisor=0), say("The fraction is f / (2^n − 1), so that all ones are 1."), "code"),
              Mutant(_tree(shift=1), say("k zeros before the indicator say 10^-k; the indicator does not count."),
                     "code"),
              Mutant(_tree(signed=False), say("The first bit is the sign."), "1000000"),
              Mutant(_tree(zero=False), say("Without an indicator the value is 0."), "0000000")),
             "Dettmers et al. 2022, arXiv 2110.02861, 1.3"),
    Exercise("pack_int4", CHAPTER, 2,
             Implement(pack_int4, {"codes": Lists(Integers(-8, 7), 0, 7)}, Lists(Integers(0, 255, bits=8), 0, 4)),
             (Mutant(_high_first, say("The first code belongs into the low half."), "0001"),
              Mutant(_unmasked, say("A negative low code fills the high half with ones: mask it."), "-1"),
              Mutant(_pairs_only, say("The last of an odd number of codes is dropped."), "[]"))),
    Exercise("blockwise", CHAPTER, 3,
             Implement(blockwise, {"xs": Lists(BLOCK_VALUES, 0, 9), "block": Integers(1, 4)},
                       Lists(Integers(-127, 127), 0, 9),
                       cases=(((1.0, 64.0, 1.0, 1.0), 2), ((0.0, 0.0, 1.0), 2), ((1.0, 0.25, 2.0), 2),
                              ((63.5, 0.25, 1.25, -0.75), 4), (NEARLY_A_TIE, 2), ((48.6171875, 0.57421875), 2))),
             (Mutant(_blocks(whole=True), say("One scale for all: an outlier takes every other number's codes."), "xs"),
              Mutant(_blocks(short=False), say("The last, shorter block is dropped."), "xs"),
              Mutant(_blocks(guard=False), say("A block of zeros must not be divided by 0."), "ZeroDivisionError"),
              Mutant(_blocks(step=math.trunc), say("The codes are truncated, not rounded to nearest."), "xs"),
              Mutant(_blocks(step=_half_up), say("floor(v + 0.5) rounds ties up."), "xs"),
              Mutant(_by_inverse, say("127 / maximum is rounded: multiplied by it, a tie can fall to one side."), "xs"),
              Mutant(_in_single, say("In FP32 the quotient is rounded first, which can make a tie of what is none."),
                     "xs")),
             "Dettmers et al. 2022, arXiv 2110.02861, 2.1"),
)  # fmt: skip
