"""Chapter 1: bits and formats."""

from ...words import say
from ..base import Exercise
from ..kinds import Bits, Codes, Floats, Options
from ..tasks import Chapter, Implement, Mutant, Predict, edited

CHAPTER = Chapter(1, "bits", say("Bits and formats"))


def decode_fp16(code):  # type: ignore[no-untyped-def]
    """A sign, five bits of exponent, ten of fraction."""
    sign = -1.0 if code >> 15 else 1.0
    exponent, fraction = code >> 10 & 31, code & 1023
    if exponent == 31:
        return sign * float("inf") if fraction == 0 else float("nan")
    if exponent == 0:
        return sign * fraction * 2.0**-24
    return sign * (1024 + fraction) * 2.0 ** (exponent - 25)


def next_up(code):  # type: ignore[no-untyped-def]
    """Codes of positive numbers go up with their values, those of negative numbers down."""
    if code == 0x8000:
        return 0x0001
    return code - 1 if code >> 15 else code + 1


EXERCISES = (
    Exercise("predict_bits", CHAPTER, 1,
             Predict("1 01100 0100000000", Bits("fp16"),
                     say("-1.25 * 2**-3: sign 1, exponent -3 + 15 = 12, fraction .25")),
             (Mutant("0 01100 0100000000", say("The sign bit of a negative number is 1."), "0 01100 0100000000"),
              Mutant("1 01100 1010000000", say("The leading 1 is not stored; the fraction begins after it."),
                     "1 01100 1010000000"),
              Mutant("1 01101 0100000000", say("The bias is 15, not 16: −3 is stored as 12."), "1 01101 0100000000"),
              Mutant("1 10011 0100000000",
                     say("The exponent has a bias, 15, and is no two's complement or sign and magnitude."),
                     "1 10011 0100000000")),
             "IEEE 754-2019, 3.4"),
    Exercise("largest_e4m3", CHAPTER, 1, Predict(448, Floats("e4m3"), say("1.75 * 2**(15 - 7)")),
             (Mutant(480, say("480 would be S.1111.111, which is the NaN."), "480"),
              Mutant(240, say("240 is the largest of an E4M3 with IEEE's infinities."), "0 1110 111"),
              Mutant(57344, say("57344 is E5M2's largest."), "57344")),
             "OCP 8-bit Floating Point Specification 1.0"),
    Exercise("bf16_or_fp16", CHAPTER, 1,
             Predict("c", Options(("a", "b", "c", "d")),
                     say("eight exponent bits as in FP32; 7 fraction bits against 10")),
             (Mutant("a", say("It is the other way round: 8 exponent bits against 5."), "a"),
              Mutant("b", say("The range, yes; but precision is 8 bits against 24."), "b"),
              Mutant("d", say("Range, yes; but FP16 has 11 bits of precision, BF16 8."), "d"))),
    Exercise("decode_fp16", CHAPTER, 2, Implement(decode_fp16, {"code": Codes("fp16")}, Floats("fp16")),
             (Mutant(edited(decode_fp16, "exponent == 0", "exponent == fraction == 0"),
                     say("Exponent field 0 has no implicit 1: those numbers are subnormal."), "0 00000 0000000001"),
              Mutant(edited(decode_fp16, "exponent == 31", "exponent == 32"),
                     say("Exponent field 31 is infinity and NaN, not one more binade."),
                     "0 11111 0000000000"),
              Mutant(edited(decode_fp16, "-24", "-25", "exponent - 25", "exponent - 26"),
                     say("The bias of FP16 is 15."), "0 00000 0000000001"),
              Mutant(lambda code: abs(decode_fp16(code)), say("The top bit is the sign, of zero too."),
                     "1 00000 0000000000")),
             "IEEE 754-2019, 3.4"),
    Exercise("next_up", CHAPTER, 3, Implement(next_up, {"code": Codes("fp16", numbers=True)}, Codes("fp16")),
             (Mutant(lambda code: code + 1, say("Adding 1 to a negative number's code moves it down."),
                     "1 00000 0000000001"),
              Mutant(lambda code: code - 1 if code >> 15 else code + 1,
                     say("−0 minus one code is not a code of its neighbour: its neighbour is the smallest subnormal."),
                     "1 00000 0000000000"),
              Mutant(lambda code: 0 if code == 0x8000 else next_up(code), say("+0 is not above −0: they are equal."),
                     "0 00000 0000000001")),
             "IEEE 754-2019, 5.3.1 (nextUp)"),
)  # fmt: skip
