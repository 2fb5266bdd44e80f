"""Chapter 5: Tensor Core blocks."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

from ...language import Text
from ..base import Chapter, Exercise, Find, Implement, Judgement, Mutant, Predict, register
from ..kinds import Codes, Floats, Lists, Several
from ..shown import of_float

CHAPTER = Chapter(5, "blocks", Text("Tensor Core blocks", "Tensor Core 的块"))
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


def _block(bits: int = 23, cut: Any = math.trunc, last: str = "rtz", renormalise: bool = False):  # type: ignore[no-untyped-def]
    """A block with one thing wrong."""

    def compute(a, b, c):  # type: ignore[no-untyped-def]
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)] + [Fraction(c)]
        pairs = [(x * y, math.frexp(x)[1] + math.frexp(y)[1] - 2) for x, y in zip(a, b, strict=True) if x and y]
        exponents = [math.frexp(p)[1] - 1 if renormalise else e for p, e in pairs] + (
            [math.frexp(c)[1] - 1] if c else []
        )
        if not exponents:
            return 0.0
        quantum = Fraction(2) ** (max(exponents) - bits)
        units = sum(cut(term / quantum) for term in terms)
        extra = max(0, abs(units).bit_length() - 24)
        kept = abs(units) >> extra << extra if last == "rtz" else round(Fraction(abs(units), 1 << extra)) << extra
        return math.copysign(float(kept * quantum), units) if units else 0.0

    return compute


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
        return Text(f"a and b must have the same length, 1 to {most}.", f"a 与 b 长度必须相同，1 到 {most}。")
    half, single = Floats("fp16", finite=True), Floats("fp32", finite=True)
    if not all(half.has(x) for row in rows for x in row):
        return Text("a and b must be finite FP16 numbers.", "a 与 b 必须是有限的 FP16 数。")
    if not all(single.has(c) for c in cs):
        return Text("c must be a finite FP32 number.", "c 必须是有限的 FP32 数。")
    return None


def a100_h100(value: tuple[Any, ...]) -> Judgement:
    """Whether A100 and H100 give different bits."""
    a, b, c = value
    if (why := unusable((a, b), (c,))) is not None:
        return Judgement(False, says=why)
    one, other = on("A100", a, b, c), on("H100", a, b, c)
    lines = (("A100", of_float(one, "fp32")), ("H100", of_float(other, "fp32")))
    return Judgement(one != other, lines, Text("Both GPUs give the same bits.", "两种 GPU 给出相同的位。"))


def not_monotonic(value: tuple[Any, ...]) -> Judgement:
    """Whether V100 gives less for more."""
    a, b, c1, c2 = value
    if (why := unusable((a, b), (c1, c2), 4)) is not None:
        return Judgement(False, says=why)
    if not c1 < c2:
        return Judgement(False, says=Text("c1 must be below c2.", "c1 必须小于 c2。"))
    one, other = on("V100", a, b, c1), on("V100", a, b, c2)
    lines = (("D(c1)", of_float(one, "fp32")), ("D(c2)", of_float(other, "fp32")))
    return Judgement(one > other, lines, Text("The result does not go down.", "结果没有变小。"))


register(
    Exercise(
        "v100_predict",
        CHAPTER,
        1,
        Text("What V100 keeps", "V100 保留了什么"),
        Text(
            "c = 1 − 2^-24 and four products of 2^-24, in one block of V100 (terms cut to multiples "
            "of 2^(emax−23), sum cut to 24 bits). "
            "Give the result's FP32 code, an integer such as 0x3F800000.",
            "c = 1 − 2^-24，加四个等于 2^-24 的乘积，在 V100 的一个块中计算（各项截断到 2^(emax−23) "
            "的倍数，和截断到 24 位）。给出结果的 FP32 编码，例如 0x3F800000。",
        ),
        Text("emax is the exponent of c, −1: what is the quantum?", "emax 是 c 的指数 −1：量子是多少？"),
        Text(
            "The quantum is 2^-24: nothing is lost, the sum is 1 + 3·2^-24, and its last bit is cut.",
            "量子是 2^-24：各项都没有丢失，和为 1 + 3·2^-24，最后一位被截去。",
        ),
        Predict(
            0x3F800001,
            Codes("fp32"),
            Text("1 + 3·2^-24 cut to 24 bits is 1 + 2^-23", "1 + 3·2^-24 截断到 24 位是 1 + 2^-23"),
        ),
        (
            Mutant(
                0x3F800000,
                Text(
                    "That is c = 1, where the quantum is 2^-23 and every product is lost.",
                    "那是 c = 1 的情形：量子为 2^-23，所有乘积都丢失。",
                ),
                "0x3f800000",
            ),
            Mutant(
                0x3F800002,
                Text("The sum is cut, not rounded to nearest even.", "和是截断的，不是向最近偶数舍入。"),
                "0x3f800002",
            ),
            Mutant(
                0x3F7FFFFF,
                Text("That is c alone: here the products count.", "那只是 c：这里乘积是起作用的。"),
                "0x3f7fffff",
            ),
        ),
        "Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ CS 7:e330",
    ),
    Exercise(
        "a100_or_h100",
        CHAPTER,
        2,
        Text("Tell A100 from H100", "分辨 A100 与 H100"),
        Text(
            "Find (a, b, c): two equally long lists of FP16 numbers (at most 64) and an FP32 "
            "number, on which A100 and H100 differ.",
            "找 (a, b, c)：两列等长的 FP16 数（至多 64 个）和一个 FP32 数，使 A100 与 H100 的结果不同。",
        ),
        Text(
            "A100: blocks of 8, terms cut below 2^(emax−24). H100: blocks of 16, 2^(emax−25).",
            "A100：每块 8 个，截到 2^(emax−24)。H100：每块 16 个，截到 2^(emax−25)。",
        ),
        Text(
            "Products of 2^-25 beside c = 1 are lost on A100 and count on H100.",
            "c = 1 时，2^-25 的乘积在 A100 上丢失，在 H100 上算数。",
        ),
        Find(
            Several((ROW, ROW, Floats("fp32")), ("a", "b", "c")),
            a100_h100,
            ((2.0**-13,) * 16, (2.0**-12,) * 16, 1.0),
            Text("two different codes", "两个不同的编码"),
            Text("sixteen products of 2^-25 with c = 1", "十六个 2^-25 的乘积，c = 1"),
        ),
        (
            Mutant(((2.0**-12,) * 16, (2.0**-12,) * 16, 1.0), Text("", ""), "same bits"),
            Mutant(((1.0,), (1.0, 1.0), 0.0), Text("", ""), "same length"),
            Mutant(((1e9,), (1.0,), 0.0), Text("", ""), "finite FP16 numbers"),
            Mutant(((1.0,), (1.0,), 0.1), Text("", ""), "finite FP32 number"),
        ),
        "Khattak and Mikaitis 2025, arXiv 2512.07004",
    ),
    Exercise(
        "break_monotonicity",
        CHAPTER,
        2,
        Text("More in, less out", "输入更大，结果更小"),
        Text(
            "Find (a, b, c1, c2): four or fewer products and c1 < c2, for which V100 gives more with c1 than with c2.",
            "找 (a, b, c1, c2)：至多四个乘积，且 c1 < c2，使 V100 用 c1 得到的结果大于用 c2 的。",
        ),
        Text(
            "Let c2 have the larger exponent, so that its quantum swallows the products.",
            "让 c2 的指数更大，使它的量子吞掉乘积。",
        ),
        Text(
            "Crossing a power of two doubles the quantum, and products that counted are cut to nothing.",
            "跨过 2 的幂，量子加倍，原先算数的乘积被截为零。",
        ),
        Find(
            Several((ROW, ROW, Floats("fp32"), Floats("fp32")), ("a", "b", "c1", "c2")),
            not_monotonic,
            ((2.0**-12,) * 4, (2.0**-12,) * 4, 1 - 2.0**-24, 1.0),
            Text("D(c1) > D(c2)", "D(c1) > D(c2)"),
            Text("c = 1 − 2^-24 gives 1 + 2^-23, c = 1 gives 1", "c = 1 − 2^-24 得 1 + 2^-23，c = 1 得 1"),
        ),
        (
            Mutant(((1.0,), (1.0,), 1.0, 2.0), Text("", ""), "does not go down"),
            Mutant(((2.0**-12,) * 4, (2.0**-12,) * 4, 1.0, 1 - 2.0**-24), Text("", ""), "c1 must be below c2"),
        ),
        "Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ CS 7:e330",
    ),
    Exercise(
        "v100_block",
        CHAPTER,
        3,
        Text("The block dot-add of V100", "V100 的块点积加"),
        Text(
            "Write v100_block(a, b, c): four FP16 products and an FP32 accumulator, finite "
            "and normal or zero. emax is the largest of "
            "exponent(a) + exponent(b) of the non-zero products (not renormalised) and exponent(c). "
            "Cut every term toward zero to a multiple "
            "of 2^(emax−23), add exactly, cut the sum toward zero to 24 bits. A sum of zero is +0.",
            "编写 v100_block(a, b, c)：四个 FP16 乘积和一个 FP32 累加数，均为有限的正规数或零。"
            "emax 是各非零乘积的 exponent(a) + exponent(b)（不重新规格化）与 exponent(c) 中的最大者。"
            "把每一项向零截断到 2^(emax−23) 的倍数，精确相加，再把和向零截断到 24 位。和为零时得 +0。",
        ),
        Text("Fraction and math.trunc say it almost literally.", "用 Fraction 和 math.trunc 几乎可以逐字写出。"),
        Text(
            "Align to emax, cut, add exactly, cut: no rounding to nearest anywhere.",
            "对齐到 emax、截断、精确相加、再截断：哪里都没有向最近舍入。",
        ),
        Implement(
            v100_block,
            {
                "a": Lists(HALF, 4, 4),
                "b": Lists(HALF, 4, 4),
                "c": Floats("fp32", finite=True, low=2.0**-30, high=2.0**16),
            },
            Floats("fp32"),
            cases=(
                ((2.0**-12,) * 4, (2.0**-12,) * 4, 1.0),
                ((2.0**-12,) * 4, (2.0**-12,) * 4, 1 - 2.0**-24),
                ((-(2.0**-12), 0.0, 0.0, 0.0), (2.0**-12, 0.0, 0.0, 0.0), 1.0),
                ((1.5, 2.0**-12, 0.0, 0.0), (1.5, 2.0**-11, 0.0, 0.0), 0.0),
                ((1.5, 2.0**-11, 0.0, 0.0), (1.5, 1.5 * 2.0**-12, 0.0, 0.0), 0.0),
                ((1.0, 2.0**-12, 2.0**-12, 2.0**-12), (1.0, 2.0**-11, 2.0**-11, 2.0**-11), 1.0),
            ),
        ),
        (
            Mutant(
                _exact_once,
                Text("This is the exact sum rounded once: better than V100.", "这是精确的和只舍入一次：比 V100 更好。"),
                "got",
            ),
            Mutant(
                _block(bits=24),
                Text(
                    "24 bits below emax are Turing's and Ampere's; V100 keeps 23.",
                    "emax 以下 24 位是 Turing 和 Ampere 的；V100 保留 23 位。",
                ),
                "got",
            ),
            Mutant(
                _block(cut=math.floor),
                Text("math.floor cuts negative terms away from zero.", "math.floor 会把负项往远离零的方向截。"),
                "-",
            ),
            Mutant(
                _block(last="rne"),
                Text("The sum is cut to 24 bits, not rounded to nearest.", "和截断到 24 位，不是向最近舍入。"),
                "got",
            ),
            Mutant(
                _block(renormalise=True),
                Text(
                    "Products are not renormalised before they are aligned: 1.5 · 1.5 has exponent 0.",
                    "乘积在对齐之前不重新规格化：1.5 · 1.5 的指数是 0。",
                ),
                "got",
            ),
        ),
        "Khattak and Mikaitis 2025, arXiv 2512.07004",
    ),
)
