"""Chapter 3: arithmetic and flags."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from ...language import Text
from ..base import Chapter, Exercise, Find, Implement, Judgement, Mutant, Predict, register
from ..kinds import Floats, Integers, Several
from ..shown import of_float

CHAPTER = Chapter(3, "arithmetic", Text("Arithmetic and flags", "算术与标志"))
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
        return Judgement(False, says=Text("All three must be finite FP16 numbers.", "三个数都必须是有限的 FP16 数。"))
    with np.errstate(all="ignore"):
        a, b, c = (half(v) for v in values)
        left, right = float((a + b) + c), float(a + (b + c))
    lines = (("(a + b) + c", of_float(left, "fp16")), ("a + (b + c)", of_float(right, "fp16")))
    if not (math.isfinite(left) and math.isfinite(right)):
        return Judgement(False, lines, Text("A sum overflows; find it without.", "有一个和溢出了；请找不溢出的例子。"))
    return Judgement(left != right, lines, Text("Both orders give the same sum.", "两种次序的和相同。"))


register(
    Exercise(
        "flags_of_overflow",
        CHAPTER,
        1,
        Text("Which flags?", "哪些标志？"),
        Text(
            "65504 + 16 in FP16, to nearest with ties to even: which IEEE flags are raised? "
            "Add up: 16 invalid, 8 divide by zero, "
            "4 overflow, 2 underflow, 1 inexact.",
            "在 FP16 中计算 65504 + 16（向最近舍入，平局取偶）：会触发哪些 IEEE 标志？请相加："
            "16 无效，8 除以零，4 上溢，2 下溢，1 不精确。",
        ),
        Text(
            "65504 and 65536 would be neighbours if the exponent had no end; 65520 lies half-way.",
            "若指数没有尽头，65504 与 65536 相邻；65520 恰在正中。",
        ),
        Text(
            "65520 is a tie; the even neighbour is 65536, beyond the largest number: infinity, overflow and inexact.",
            "65520 是平局；偶数邻居是 65536，超过最大数：得到无穷大，触发上溢和不精确。",
        ),
        Predict(5, Integers(0, 31, bits=5), Text("overflow 4 + inexact 1", "上溢 4 + 不精确 1")),
        (
            Mutant(4, Text("An overflow is always inexact, too.", "上溢总是同时不精确。"), "00100"),
            Mutant(
                1,
                Text("It is a tie, and the tie goes up, beyond the largest.", "这是平局，且平局向上，超过了最大数。"),
                "00001",
            ),
            Mutant(
                0,
                Text("65520 is no FP16 number: something must be inexact.", "65520 不是 FP16 的数：至少是不精确的。"),
                "00000",
            ),
            Mutant(
                16,
                Text("Invalid is for results with no meaning, such as ∞ − ∞.", "无效用于没有意义的结果，例如 ∞ − ∞。"),
                "10000",
            ),
        ),
        "IEEE 754-2019, 7.4",
    ),
    Exercise(
        "absorbed",
        CHAPTER,
        1,
        Text("Too small to add", "小到加不上"),
        Text(
            "What is the smallest positive FP16 number x for which 2048 + x, in FP16 to nearest with ties to even, "
            "is not 2048?",
            "使 2048 + x（FP16，向最近舍入，平局取偶）不等于 2048 的最小正 FP16 数 x 是多少？",
        ),
        Text("FP16 numbers lie 2 apart there. What happens to 2049?", "那里 FP16 的间距是 2。2049 会怎样？"),
        Text(
            "1 is a tie and 2048 is even; the next FP16 number above 1 is 1 + 2^-10.",
            "1 是平局而 2048 为偶；1 之上的下一个 FP16 数是 1 + 2^-10。",
        ),
        Predict(1.0009765625, Floats("fp16"), Text("1 + 2**-10, just above the tie", "1 + 2**-10，刚好超过平局")),
        (
            Mutant(
                1,
                Text(
                    "2049 is a tie, and goes to 2048, whose significand is even.", "2049 是平局，取有效数为偶的 2048。"
                ),
                "0 01111 0000000000",
            ),
            Mutant(
                2,
                Text(
                    "Less than a whole spacing suffices: anything above a half of it.",
                    "不需要一整个间距：超过一半即可。",
                ),
                "0 10000 0000000000",
            ),
        ),
    ),
    Exercise(
        "not_associative",
        CHAPTER,
        1,
        Text("Brackets matter", "括号有影响"),
        Text(
            "Find finite FP16 numbers (a, b, c) with (a + b) + c ≠ a + (b + c), each addition "
            "rounded to FP16, without overflow.",
            "找有限的 FP16 数 (a, b, c)，使 (a + b) + c ≠ a + (b + c)，每次加法都舍入到 FP16，且不溢出。",
        ),
        Text("Let a large number swallow two small ones, one by one.", "让一个大的数逐个吞掉两个小的数。"),
        Text(
            "Each addition rounds; two small numbers that are lost one by one may count together.",
            "每次加法都会舍入；逐个加会丢失的两个小的数，先加在一起就能算数。",
        ),
        Find(
            Several((Floats("fp16"),) * 3, ("a", "b", "c")),
            not_associative_judge,
            (2048.0, 1.0, 1.0),
            Text("two different sums", "两个不同的和"),
            Text("2048 + 1 is 2048, twice; 2048 + 2 is 2050", "2048 + 1 得 2048，两次都是；2048 + 2 得 2050"),
        ),
        (
            Mutant((1.0, 2.0, 3.0), Text("", ""), "Both orders give the same sum"),
            Mutant((65504.0, 65504.0, -65504.0), Text("", ""), "A sum overflows"),
            Mutant((0.1, 0.2, 0.3), Text("", ""), "must be finite FP16 numbers"),
        ),
    ),
    Exercise(
        "two_sum",
        CHAPTER,
        2,
        Text("The error of a sum", "求和的误差"),
        Text(
            "Write two_sum(a, b) for FP32 numbers: (s, e) with s = a + b rounded to FP32 and "
            "e = (a + b) − s exactly, for any order of "
            "magnitudes; where nothing is lost, e is +0. Compute in FP32 (np.float32) alone.",
            "为 FP32 数编写 two_sum(a, b)：返回 (s, e)，s 是 a + b 舍入到 FP32，e 恰为 (a + "
            "b) − s，大小次序任意；没有误差时 e 为 +0。只用 FP32（np.float32）计算。",
        ),
        Text("s − a is what b became in the sum; and what did a become?", "s − a 是 b 在和里变成的样子；那么 a 呢？"),
        Text(
            "With b' = s − a and a' = s − b': e = (a − a') + (b − b'), exact in any binary format.",
            "令 b' = s − a，a' = s − b'：e = (a − a') + (b − b')，在任何二进制格式中都精确。",
        ),
        Implement(
            two_sum,
            {
                "a": Floats("fp32", finite=True, low=2.0**-60, high=2.0**60),
                "b": Floats("fp32", finite=True, low=2.0**-60, high=2.0**60),
            },
            Several((Floats("fp32"), Floats("fp32")), ("s", "e")),
            cases=((1.0, 2.0**24 + 2), (2.0**24 + 2, 1.0), (1.0, 2.0**-30), (2.0**-30, 1.0)),
            valid=lambda a, b: a != 0 and b != 0 and a != -b,
        ),
        (
            Mutant(
                _fast_two_sum,
                Text("Three operations suffice only where |a| ≥ |b|.", "只有 |a| ≥ |b| 时三次运算才够。"),
                "e ",
            ),
            Mutant(_sum_alone, Text("The error is not 0 where the sum is rounded.", "和被舍入时误差不为 0。"), "e 0.0"),
            Mutant(
                lambda a, b: (two_sum(a, b)[0], -two_sum(a, b)[1]),
                Text("The error's sign is turned: e = (a + b) − s.", "误差的符号反了：e = (a + b) − s。"),
                "e -",
            ),
        ),
        "D. E. Knuth, The Art of Computer Programming 2, 4.2.2",
    ),
    Exercise(
        "fma_fp16",
        CHAPTER,
        3,
        Text("One rounding, not two", "只舍入一次"),
        Text(
            "Write fma_fp16(a, b, c): a·b + c for finite FP16 numbers, rounded once to FP16 "
            "(to nearest, ties to even; infinity beyond the "
            "range). An exact zero is +0, unless product and c are both −0.",
            "编写 fma_fp16(a, b, c)：有限 FP16 数的 a·b + c，只舍入一次到 FP16（向最近，平局取偶；"
            "超出范围为无穷大）。精确的零为 +0，除非乘积与 c 都是 −0。",
        ),
        Text("Fraction(a) is exact, and so is every operation with it.", "Fraction(a) 是精确的，对它的每次运算也是。"),
        Text(
            "Neither the product nor the sum may be rounded before the end: FP32 holds every "
            "product, but not every sum.",
            "乘积与和都不能提前舍入：FP32 装得下每个乘积，却装不下每个和。",
        ),
        Implement(
            fma_fp16,
            {name: Floats("fp16", finite=True) for name in ("a", "b", "c")},
            Floats("fp16"),
            cases=(
                (-1.0, 0.0, -0.0),
                (-1.0, 0.0, 0.0),
                (1 + 2.0**-10, 1 + 2.0**-10, -1.0),
                (2.0**-24, 2.0**-24, 1 + 2.0**-10),
                (65504.0, 2.0, -65504.0),
                (1 + 2.0**-5, 1 + 2.0**-6, -(2.0**-24)),
                (2.0**-24, 2.0**-24, 1.0),
                (1 + 2.0**-5, 1 + 2.0**-6, 2.0**-24),
                (2.0**15, 1 + 2.0**-10, 2.0**-24),
                (32768.0, 1 + 2.0**-10, 16.0),
            ),
        ),
        (
            Mutant(
                _rounded_product,
                Text(
                    "The product is rounded before the addition: two roundings.", "乘积在相加之前被舍入：舍入了两次。"
                ),
                "c ",
            ),
            Mutant(
                _in_single, Text("FP32 rounds the sum first: two roundings.", "FP32 先舍入了和：舍入了两次。"), "c "
            ),
            Mutant(
                _plus_zero,
                Text(
                    "An exact 0 is +0, but for (−0) + (−0), which is −0.",
                    "精确的 0 是 +0，唯独 (−0) + (−0) 是 −0。",
                ),
                "-0.0",
            ),
            Mutant(
                lambda a, b, c: abs(fma_fp16(a, b, c)) if fma_fp16(a, b, c) == 0 else fma_fp16(a, b, c),
                Text(
                    "(−0) + (−0) is −0, and what rounds to 0 keeps its sign.",
                    "(−0) + (−0) 是 −0；舍入为 0 的数保留符号。",
                ),
                "-0.0",
            ),
        ),
        "IEEE 754-2019, 5.4.1",
    ),
)
