"""Chapter 1: bits and formats."""

from __future__ import annotations

from ...language import Text
from ..base import Chapter, Exercise, Implement, Mutant, Predict, register
from ..kinds import Bits, Codes, Floats, Options

CHAPTER = Chapter(1, "bits", Text("Bits and formats", "位与格式"))


def decode_fp16(code):  # type: ignore[no-untyped-def]
    """A sign, five bits of exponent, ten of fraction."""
    sign = -1.0 if code >> 15 else 1.0
    exponent, fraction = code >> 10 & 31, code & 1023
    if exponent == 31:
        return sign * float("inf") if fraction == 0 else float("nan")
    if exponent == 0:
        return sign * fraction * 2.0**-24
    return sign * (1024 + fraction) * 2.0 ** (exponent - 25)


def _decoder(bias: int = 15, subnormals: bool = True, specials: bool = True):  # type: ignore[no-untyped-def]
    """A decoder with one thing wrong."""

    def decode(code):  # type: ignore[no-untyped-def]
        sign = -1.0 if code >> 15 else 1.0
        exponent, fraction = code >> 10 & 31, code & 1023
        if exponent == 31 and specials:
            return sign * float("inf") if fraction == 0 else float("nan")
        if exponent == 0 and (subnormals or fraction == 0):
            return sign * fraction * 2.0 ** (-9 - bias)
        return sign * (1024 + fraction) * 2.0 ** (exponent - bias - 10)

    return decode


def next_up(code):  # type: ignore[no-untyped-def]
    """Codes of positive numbers go up with their values, those of negative numbers down."""
    if code == 0x8000:
        return 0x0001
    return code - 1 if code >> 15 else code + 1


register(
    Exercise(
        "predict_bits",
        CHAPTER,
        1,
        Text("A number as bits", "把一个数写成位"),
        Text(
            "Write −0.15625 in FP16 as a string of 16 binary digits; spaces are allowed.",
            "把 −0.15625 写成 FP16 的 16 位二进制串，可以有空格。",
        ),
        Text("0.15625 = 5/32 = 1.25 · 2^-3.", "0.15625 = 5/32 = 1.25 · 2^-3。"),
        Text(
            "FP16 is a sign, five bits of exponent + 15, and ten bits of what follows the leading 1.",
            "FP16 由符号位、五位指数（加偏置 15）和首位 1 之后的十位尾数组成。",
        ),
        Predict(
            "1 01100 0100000000",
            Bits("fp16"),
            Text(
                "-1.25 * 2**-3: sign 1, exponent -3 + 15 = 12, fraction .25",
                "-1.25 * 2**-3：符号 1，指数 -3 + 15 = 12，尾数 .25",
            ),
        ),
        (
            Mutant(
                "0 01100 0100000000",
                Text("The sign bit of a negative number is 1.", "负数的符号位是 1。"),
                "0 01100 0100000000",
            ),
            Mutant(
                "1 01100 1010000000",
                Text(
                    "The leading 1 is not stored; the fraction begins after it.",
                    "首位的 1 不存储，尾数从它之后开始。",
                ),
                "1 01100 1010000000",
            ),
            Mutant(
                "1 01101 0100000000",
                Text("The bias is 15, not 16: −3 is stored as 12.", "偏置是 15 而不是 16：−3 存为 12。"),
                "1 01101 0100000000",
            ),
            Mutant(
                "1 10011 0100000000",
                Text(
                    "The exponent has a bias, 15, and is no two's complement or sign and magnitude.",
                    "指数使用偏置 15，不是补码，也不是原码。",
                ),
                "1 10011 0100000000",
            ),
        ),
        "IEEE 754-2019, 3.4",
    ),
    Exercise(
        "largest_e4m3",
        CHAPTER,
        1,
        Text("The largest E4M3", "最大的 E4M3 数"),
        Text(
            "What is the largest finite number of OCP E4M3 (bias 7, no infinity, S.1111.111 is NaN)?",
            "OCP E4M3（偏置 7，没有无穷大，S.1111.111 是 NaN）的最大有限数是多少？",
        ),
        Text(
            "The top exponent, 15, is in use; only one fraction of it is not.",
            "最高指数 15 也被使用，只有一种尾数除外。",
        ),
        Text("S.1111.110 is 1.75 · 2^8; S.1111.111 is NaN.", "S.1111.110 是 1.75 · 2^8；S.1111.111 是 NaN。"),
        Predict(448, Floats("e4m3"), Text("1.75 * 2**(15 - 7)", "1.75 * 2**(15 - 7)")),
        (
            Mutant(480, Text("480 would be S.1111.111, which is the NaN.", "480 对应 S.1111.111，那是 NaN。"), "480"),
            Mutant(
                240,
                Text("240 is the largest of an E4M3 with IEEE's infinities.", "240 是带 IEEE 无穷大的 E4M3 的最大值。"),
                "0 1110 111",
            ),
            Mutant(57344, Text("57344 is E5M2's largest.", "57344 是 E5M2 的最大值。"), "57344"),
        ),
        "OCP 8-bit Floating Point Specification 1.0",
    ),
    Exercise(
        "bf16_or_fp16",
        CHAPTER,
        1,
        Text("BF16 or FP16?", "BF16 还是 FP16？"),
        Text(
            "All four are heard. Which is true?\n"
            "a: BF16 has a smaller range and more precision than FP16.\n"
            "b: BF16 has FP32's range and FP32's precision, nearly.\n"
            "c: BF16 has FP32's range, and three bits of precision less than FP16.\n"
            "d: FP16 has both less range and less precision than BF16.",
            "下面四种说法都有人讲。哪一种正确？\n"
            "a：BF16 的范围比 FP16 小，精度比 FP16 高。\n"
            "b：BF16 的范围和精度都接近 FP32。\n"
            "c：BF16 的范围同 FP32，精度比 FP16 少三位。\n"
            "d：FP16 的范围和精度都不如 BF16。",
        ),
        Text("Count: FP16 is 1/5/10, BF16 1/8/7.", "数一数：FP16 是 1/5/10，BF16 是 1/8/7。"),
        Text("Exponent bits give range, fraction bits precision.", "指数位决定范围，尾数位决定精度。"),
        Predict(
            "c",
            Options(("a", "b", "c", "d")),
            Text("eight exponent bits as in FP32; 7 fraction bits against 10", "指数位与 FP32 同为 8；尾数位 7 对 10"),
        ),
        (
            Mutant(
                "a", Text("It is the other way round: 8 exponent bits against 5.", "正好相反：指数位是 8 对 5。"), "a"
            ),
            Mutant(
                "b",
                Text("The range, yes; but precision is 8 bits against 24.", "范围接近；但精度是 8 位对 24 位。"),
                "b",
            ),
            Mutant(
                "d",
                Text(
                    "Range, yes; but FP16 has 11 bits of precision, BF16 8.",
                    "范围如此；但 FP16 有 11 位精度，BF16 只有 8 位。",
                ),
                "d",
            ),
        ),
    ),
    Exercise(
        "decode_fp16",
        CHAPTER,
        2,
        Text("Decode FP16", "解码 FP16"),
        Text(
            "Write decode_fp16(code): the float that a 16-bit code stands for, infinities, NaN and −0.0 included.",
            "编写 decode_fp16(code)：返回 16 位编码所代表的浮点数，包括无穷大、NaN 和 −0.0。",
        ),
        Text(
            "Three cases by exponent field: 0, 31, and the rest. Shifts and masks take the fields apart.",
            "按指数字段分三种情况：0、31 和其余。用移位和掩码取出各字段。",
        ),
        Text(
            "Field 1 to 30: (1 + f/1024) · 2^(e−15). Field 0: f · 2^-24. Field 31: infinity if f = 0, else NaN.",
            "字段 1 到 30：(1 + f/1024) · 2^(e−15)。字段 0：f · 2^-24。字段 31：f = 0 为无穷大，否则为 NaN。",
        ),
        Implement(decode_fp16, {"code": Codes("fp16")}, Floats("fp16")),
        (
            Mutant(
                _decoder(subnormals=False),
                Text(
                    "Exponent field 0 has no implicit 1: those numbers are subnormal.",
                    "指数字段 0 没有隐含的 1：这些数是次正规数。",
                ),
                "0 00000 0000000001",
            ),
            Mutant(
                _decoder(specials=False),
                Text(
                    "Exponent field 31 is infinity and NaN, not one more binade.",
                    "指数字段 31 表示无穷大和 NaN，不是又一个二进区间。",
                ),
                "0 11111 0000000000",
            ),
            Mutant(_decoder(bias=16), Text("The bias of FP16 is 15.", "FP16 的偏置是 15。"), "0 00000 0000000001"),
            Mutant(
                lambda code: abs(decode_fp16(code)),
                Text("The top bit is the sign, of zero too.", "最高位是符号位，零也有符号。"),
                "1 00000 0000000000",
            ),
        ),
        "IEEE 754-2019, 3.4",
    ),
    Exercise(
        "next_up",
        CHAPTER,
        3,
        Text("The next number up", "下一个更大的数"),
        Text(
            "Write next_up(code): the FP16 code of the smallest number above the finite number with that code. "
            "Above the largest is infinity; −0 and +0 are the same number.",
            "编写 next_up(code)：给定有限数的 FP16 编码，返回大于它的最小的数的编码。最大数之上是无穷大；"
            "−0 与 +0 是同一个数。",
        ),
        Text("Try it on 0x8000, 0x8001 and 0xBC00.", "用 0x8000、0x8001 和 0xBC00 试一试。"),
        Text(
            "The magnitude is ordered like the code: positive codes go up by 1, negative ones go down by 1; −0 is 0.",
            "绝对值的次序与编码相同：正数编码加 1，负数编码减 1；−0 就是 0。",
        ),
        Implement(next_up, {"code": Codes("fp16", numbers=True)}, Codes("fp16")),
        (
            Mutant(
                lambda code: code + 1,
                Text("Adding 1 to a negative number's code moves it down.", "负数的编码加 1，值会变小。"),
                "1 00000 0000000001",
            ),
            Mutant(
                lambda code: code - 1 if code >> 15 else code + 1,
                Text(
                    "−0 minus one code is not a code of its neighbour: its neighbour is the smallest subnormal.",
                    "−0 的编码减 1 并不是它的邻居：它的邻居是最小的次正规数。",
                ),
                "1 00000 0000000000",
            ),
            Mutant(
                lambda code: 0 if code == 0x8000 else next_up(code),
                Text("+0 is not above −0: they are equal.", "+0 并不大于 −0：两者相等。"),
                "0 00000 0000000001",
            ),
        ),
        "IEEE 754-2019, 5.3.1 (nextUp)",
    ),
)
