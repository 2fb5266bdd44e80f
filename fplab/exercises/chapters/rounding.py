"""Chapter 2: rounding."""

from __future__ import annotations

import math
from fractions import Fraction

from ... import exact
from ...language import Text
from ..base import Chapter, Exercise, Find, Implement, Judgement, Mutant, register
from ..kinds import Codes, Floats, Integers
from ..shown import of_code

CHAPTER = Chapter(2, "rounding", Text("Rounding", "舍入"))


def rne(x, n):  # type: ignore[no-untyped-def]
    """The dropped bits against one half; a tie goes to the even quotient."""
    if n == 0:
        return x
    quotient, dropped, half = x >> n, x & ((1 << n) - 1), 1 << (n - 1)
    return quotient + (dropped > half or (dropped == half and quotient % 2 == 1))


def _ties_down(x: int, n: int) -> int:
    return (x + (1 << n) // 2 - (1 if n else 0)) >> n


def _ties_odd(x: int, n: int) -> int:
    near = (x + (1 << n) // 2) >> n
    return near - 1 if n and x % (1 << n) == 1 << (n - 1) and near % 2 == 0 else near


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


def _e4m3(emin=-6, most=448.0, saturate=False, nearest=round, flush=False):  # type: ignore[no-untyped-def]
    """A quantizer with one thing wrong."""

    def quantize(x):  # type: ignore[no-untyped-def]
        if x == 0 or math.isnan(x):
            return x
        if math.isinf(x):
            return math.copysign(most, x) if saturate else math.nan
        spacing = 2.0 ** (max(math.frexp(x)[1] - 1, emin) - 3)
        rounded = math.copysign(nearest(abs(x) / spacing) * spacing, x)
        if flush and abs(rounded) < 2.0**-6:
            return math.copysign(0.0, x)
        if abs(rounded) <= most:
            return rounded
        return math.copysign(most, x) if saturate else math.nan

    return quantize


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
        says = Text(
            "FP32 holds this number: the first rounding changes nothing.",
            "FP32 能精确表示这个数：第一次舍入什么也没改变。",
        )
    else:
        says = Text("Both ways round to the same number.", "两种方式舍入到同一个数。")
    return Judgement(False, (("FP32", of_code(code, "fp32")), *lines), says)


def _truncate_bits(code: int) -> int:
    return code >> 16


register(
    Exercise(
        "rne",
        CHAPTER,
        1,
        Text("To nearest, ties to even", "向最近舍入，平局取偶"),
        Text(
            "Write rne(x, n): the non-negative integer x divided by 2^n, rounded to the nearest "
            "integer, ties to the even one. "
            "Where no other rule is named, every rounding in this course is this one.",
            "编写 rne(x, n)：非负整数 x 除以 2^n，舍入到最近的整数，恰好一半时取偶数。"
            "本课程中凡未指明其他规则的舍入，都是这一种。",
        ),
        Text(
            "Compare x mod 2^n with 2^(n−1): below, above, or equal?",
            "把 x mod 2^n 与 2^(n−1) 比较：小于、大于还是等于？",
        ),
        Text(
            "Dropped bits above one half round up, below it down; exactly one half goes to the even quotient.",
            "舍去部分大于一半则进位，小于一半则舍去，恰为一半则使商为偶数。",
        ),
        Implement(
            rne,
            {"x": Integers(0, 4095, bits=4, edges=(2, 3, 4, 5, 6, 7, 12, 20, 24, 40)), "n": Integers(0, 8)},
            Integers(0, 4095, bits=4),
        ),
        (
            Mutant(
                lambda x, n: x >> n,
                Text("This is truncation: the dropped bits never round up.", "这是截断：舍去的位从不进位。"),
                "0011",
            ),
            Mutant(
                lambda x, n: (x + (1 << n) // 2) >> n,
                Text("These are ties away from zero: one half always goes up.", "这是平局远离零：一半总是进位。"),
                "0001",
            ),
            Mutant(
                _ties_down,
                Text("These are ties toward zero: one half never goes up.", "这是平局趋向零：一半从不进位。"),
                "0011",
            ),
            Mutant(_ties_odd, Text("Ties go to the odd quotient here.", "这里平局取了奇数。"), "0001"),
            Mutant(
                lambda x, n: x + (1 << (n - 1)) - 1 + (x >> n & 1) >> n,
                Text(
                    "n = 0 drops nothing and needs no half: 1 << (n − 1) fails there.",
                    "n = 0 不舍去任何位，也没有一半：此时 1 << (n − 1) 会出错。",
                ),
                "negative shift count",
            ),
        ),
        "IEEE 754-2019, 4.3.1",
    ),
    Exercise(
        "fp32_to_bf16",
        CHAPTER,
        2,
        Text("FP32 to BF16 on bits", "在位上把 FP32 变成 BF16"),
        Text(
            "Write fp32_to_bf16(code): the BF16 code of an FP32 code, to nearest with ties "
            "to even. Overflow carries into infinity. "
            "A NaN stays a NaN: its upper half with the quiet bit, 0x0040, set.",
            "编写 fp32_to_bf16(code)：把 FP32 编码变为 BF16 编码，向最近舍入，平局取偶。溢出进位到无穷大。"
            "NaN 仍是 NaN：取高半部分并置静默位 0x0040。",
        ),
        Text(
            "BF16 is the upper half of FP32: rounding is the exercise rne with n = 16, on the code.",
            "BF16 就是 FP32 的高半部分：舍入即习题 rne 取 n = 16，作用在编码上。",
        ),
        Text(
            "Rounding is arithmetic on codes; NaN alone must be kept out of it.",
            "舍入就是对编码做算术；只有 NaN 必须另行处理。",
        ),
        Implement(
            fp32_to_bf16,
            {"code": Codes("fp32", edges=(0x3F808000, 0x3F818000, 0x3F80C000, 0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF))},
            Codes("bf16"),
        ),
        (
            Mutant(
                _truncate_bits,
                Text(
                    "This cuts the lower half off: truncation, and a NaN can become infinity.",
                    "这直接去掉低半部分：是截断，而且 NaN 可能变成无穷大。",
                ),
                "0000000001",
            ),
            Mutant(
                lambda c: c >> 16 | 0x40 if c & 0x7FFFFFFF > 0x7F800000 else (c + 0x8000) >> 16,
                Text("Adding half a unit rounds ties away from zero.", "加半个单位会使平局远离零。"),
                "1000000000000000",
            ),
            Mutant(
                lambda c: (c + 0x7FFF + (c >> 16 & 1)) >> 16,
                Text(
                    "A NaN is not rounded: it can turn into infinity, or carry into the sign.",
                    "NaN 不能参与舍入：它会变成无穷大，或进位到符号位。",
                ),
                "NaN",
            ),
            Mutant(
                lambda c: c >> 16 | 0x40 if c & 0x7FFFFFFF > 0x7F800000 else (c + 0x7FFF) >> 16,
                Text(
                    "Ties always go down here: the last kept bit has to be added.",
                    "这里平局总是舍去：还需要加上保留部分的最低位。",
                ),
                "1000000000000000",
            ),
        ),
    ),
    Exercise(
        "quantize_e4m3",
        CHAPTER,
        3,
        Text("Quantize to E4M3", "量化到 E4M3"),
        Text(
            "Write quantize_e4m3(x): x rounded to nearest, ties to even, in OCP E4M3 (emin "
            "−6, three fraction bits, largest 448). "
            "What rounds beyond 448, and infinity, become NaN; −0.0 and the sign of what rounds to 0 stay.",
            "编写 quantize_e4m3(x)：把 x 舍入到 OCP E4M3（emin −6，三位尾数，最大 448），向最近，"
            "平局取偶。舍入后超过 448 的数和无穷大变成 NaN；−0.0 以及舍入为 0 的数的符号保留。",
        ),
        Text(
            "math.frexp gives the binade; Python's round() takes ties to even.",
            "math.frexp 给出所在的二进区间；Python 的 round() 平局取偶。",
        ),
        Text(
            "The spacing at x is 2^(e−3) with e the exponent of x, but e is at least −6; up to 464 rounds to 448.",
            "x 处的间距是 2^(e−3)，e 是 x 的指数且不小于 −6；不超过 464 的数舍入到 448。",
        ),
        Implement(
            quantize_e4m3,
            {"x": Floats("fp32", near="e4m3", edges=(448.0, 464.0, 465.0, 480.0, 1e6, 240.0, 248.0))},
            Floats("e4m3"),
        ),
        (
            Mutant(
                _e4m3(saturate=True),
                Text("This saturates: 448 where NaN was asked for.", "这是饱和：应为 NaN 处给出了 448。"),
                "448",
            ),
            Mutant(
                _e4m3(most=480.0),
                Text("480 is no number of E4M3: its code is the NaN.", "480 不是 E4M3 的数：它的编码是 NaN。"),
                "480",
            ),
            Mutant(
                _e4m3(emin=-200),
                Text(
                    "The exponent ends at −6; below it the spacing stays 2^-9.", "指数到 −6 为止；再小间距保持 2^-9。"
                ),
                "not yet",
            ),
            Mutant(
                _e4m3(flush=True),
                Text("This flushes subnormals, from 2^-9 on, to zero.", "这把次正规数（从 2^-9 起）刷新为零。"),
                "0 0000 100",
            ),
            Mutant(
                _e4m3(nearest=lambda v: math.floor(v + 0.5)),
                Text("Ties are rounded away from zero here.", "这里平局远离零。"),
                "expected",
            ),
            Mutant(_e4m3(nearest=math.floor), Text("This truncates toward zero.", "这是向零截断。"), "got"),
        ),
        "OCP 8-bit Floating Point Specification 1.0",
    ),
    Exercise(
        "stochastic",
        CHAPTER,
        2,
        Text("Stochastic rounding", "随机舍入"),
        Text(
            "Write stochastic(x, word): x/256 rounded to one of its two neighbouring integers. "
            "With word drawn evenly from 0 … 255, "
            "it must go up with a probability of exactly (x mod 256)/256, for the largest words.",
            "编写 stochastic(x, word)：把 x/256 舍入到相邻两个整数之一。word 在 0 … 255 中均匀抽取时，"
            "进位概率必须恰为 (x mod 256)/256，且由最大的那些 word 进位。",
        ),
        Text("How many of the 256 words have to round 1/256 up?", "256 个 word 中，有几个应使 1/256 进位？"),
        Text(
            "x goes up where (x mod 256) + word ≥ 256: as many words as the dropped part says.",
            "当 (x mod 256) + word ≥ 256 时进位：这样的 word 恰有舍去部分那么多个。",
        ),
        Implement(
            stochastic,
            {"x": Integers(0, 4095, edges=(128, 255, 256, 257, 384)), "word": Integers(0, 255, edges=(127, 128))},
            Integers(0, 16),
        ),
        (
            Mutant(
                lambda x, w: (x + 128) >> 8,
                Text(
                    "The word decides nothing here: this is rounding to nearest.",
                    "word 在这里不起作用：这是向最近舍入。",
                ),
                "word",
            ),
            Mutant(
                lambda x, w: (x >> 8) + (x % 256 >= w),
                Text("≥ makes exact values go up when the word is 0.", "≥ 会使精确的值在 word 为 0 时进位。"),
                "1",
            ),
            Mutant(
                lambda x, w: (x >> 8) + (x % 256 + w > 256),
                Text(
                    "One word too few goes up: 255 with a dropped 1 must.",
                    "少了一个 word 进位：舍去部分为 1、word 为 255 时必须进位。",
                ),
                "255",
            ),
        ),
        "M. Croci et al. 2022, Stochastic rounding: implementation, error analysis and applications",
    ),
    Exercise(
        "double_rounding",
        CHAPTER,
        3,
        Text("Rounded twice", "舍入两次"),
        Text(
            "Find a float64 number that becomes another FP16 number by way of FP32 than directly "
            "(to nearest, ties to even).",
            "找一个 float64 数：经 FP32 再到 FP16，与直接变为 FP16，结果不同（均为向最近舍入，平局取偶）。",
        ),
        Text(
            "Go just above a midpoint of FP16, by less than FP32 can see.",
            "取略高于 FP16 中点的数，高出的部分小到 FP32 看不见。",
        ),
        Text(
            "A first rounding can move a number onto a midpoint; the second then takes it for a tie.",
            "第一次舍入可能把数移到中点上，第二次便把它当作平局。",
        ),
        Find(
            Floats("fp64"),
            double_rounds,
            1 + 2.0**-11 + 2.0**-40,
            Text("two different FP16 codes", "两个不同的 FP16 编码"),
            Text(
                "1 + 2**-11 is a midpoint of FP16; 2**-40 above it is lost in FP32, and the tie goes to 1",
                "1 + 2**-11 是 FP16 的中点；高出的 2**-40 在 FP32 中丢失，平局取 1",
            ),
        ),
        (
            Mutant(1 + 2.0**-11, Text("", ""), "FP32 holds this number"),
            Mutant(0.1, Text("", ""), "Both ways round to the same number"),
        ),
        "S. Figueroa 1995, When is double rounding innocuous?",
    ),
)
