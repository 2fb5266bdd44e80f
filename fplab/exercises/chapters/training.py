"""Chapter 9: training in low precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...language import Text
from ..base import Chapter, Exercise, Find, Implement, Judgement, Mutant, Predict, register
from ..kinds import Floats, Integers, Lists, Options
from ..shown import of_float

CHAPTER = Chapter(9, "training", Text("Training in low precision", "低精度训练"))


def naive_softmax_fails(logits: tuple[float, ...]) -> Judgement:
    """Whether exp(x) / sum(exp(x)) in FP16 has a NaN, where subtracting the maximum first has none."""
    half = Floats("fp16", finite=True)
    if not 1 <= len(logits) <= 64 or not all(half.has(x) for x in logits):
        return Judgement(False, says=Text("Give 1 to 64 finite FP16 numbers.", "请给出 1 到 64 个有限的 FP16 数。"))
    x = np.array(logits, np.float16)
    with np.errstate(all="ignore"):
        powers = np.exp(x.astype(np.float32)).astype(np.float16)
        naive = powers / powers.sum(dtype=np.float16)
    if np.isnan(naive).any():
        return Judgement(
            True, (("exp", of_float(float(powers.max()), "fp16")), ("softmax", of_float(math.nan, "fp16")))
        )
    lines = (("exp", of_float(float(powers.max()), "fp16")), ("softmax", of_float(float(naive.max()), "fp16")))
    if not naive.any():
        return Judgement(
            False,
            lines,
            Text(
                "The sum is infinite and every result 0: wrong, but no NaN.",
                "和为无穷大，结果全为 0：虽然错了，但没有 NaN。",
            ),
        )
    return Judgement(False, lines, Text("No result is NaN.", "没有结果是 NaN。"))


def fp8_scale(amaxes):  # type: ignore[no-untyped-def]
    """The largest power of two that keeps the largest amax at most 448."""
    most = max(amaxes, default=0.0)
    if most == 0:
        return 0
    s = 8 - (math.frexp(most)[1] - 1)
    return s if math.ldexp(most, s) <= 448 else s - 1


def _scale(pick: Any, guard: bool = True, rounds: Any = math.floor):  # type: ignore[no-untyped-def]
    """A scale with one thing wrong."""

    def scale(amaxes):  # type: ignore[no-untyped-def]
        most = pick(amaxes) if amaxes else 0.0
        if guard and most == 0:
            return 0
        return rounds(math.log2(448 / most))

    return scale


def _difference_of_logarithms(amaxes: list[float]) -> int:
    most = max(amaxes, default=0.0)
    return math.floor(math.log2(448) - math.log2(most)) if most else 0


register(
    Exercise(
        "fp8_roles",
        CHAPTER,
        1,
        Text("Two FP8 formats", "两种 FP8 格式"),
        Text(
            "FP8 recipes use E4M3 and E5M2. Which for what?\n"
            "a: E4M3 for weights and activations, E5M2 for gradients.\nb: E5M2 for weights "
            "and activations, E4M3 for gradients.\n"
            "c: E4M3 for the forward pass, E5M2 for master weights.",
            "FP8 训练使用 E4M3 和 E5M2。各用于什么？\n"
            "a：E4M3 用于权重和激活，E5M2 用于梯度。\nb：E5M2 用于权重和激活，E4M3 用于梯度。"
            "\nc：E4M3 用于前向，E5M2 用于主权重。",
        ),
        Text("What spreads over more binades?", "哪一类数跨越更多的二进区间？"),
        Text("Gradients need range, weights and activations precision.", "梯度需要范围，权重和激活需要精度。"),
        Predict(
            "a",
            Options(("a", "b", "c")),
            Text("32 binades with subnormals against 18", "含次正规数共 32 个二进区间，对 18 个"),
        ),
        (
            Mutant(
                "b",
                Text("Gradients spread further than E4M3's 18 binades.", "梯度的分布超出 E4M3 的 18 个二进区间。"),
                "b",
            ),
            Mutant(
                "c",
                Text(
                    "Two fraction bits would lose nearly every update of a master weight.",
                    "两位尾数会丢掉主权重的几乎每次更新。",
                ),
                "c",
            ),
        ),
        "Micikevicius et al. 2022, arXiv 2209.05433",
    ),
    Exercise(
        "keep_in_fp32",
        CHAPTER,
        1,
        Text("What autocast leaves in FP32", "autocast 保留为 FP32 的运算"),
        Text(
            "Which of these does CUDA autocast to FP16 run in FP32?\na: linear layers.\nb: "
            "convolutions.\nc: softmax.\nd: ReLU.",
            "CUDA 上 autocast 到 FP16 时，下列哪一种以 FP32 运行？\na：线性层。\nb：卷积。\nc：softmax。\nd：ReLU。",
        ),
        Text(
            "Where do exponentials and long sums occur outside a Tensor Core?",
            "在 Tensor Core 之外，哪里有指数和长求和？",
        ),
        Text(
            "exp overflows FP16 above 11.09, and sums stall: softmax, norms and losses stay in FP32.",
            "exp 在 11.09 以上使 FP16 上溢，求和会停滞：softmax、归一化和损失保留 FP32。",
        ),
        Predict(
            "c",
            Options(("a", "b", "c", "d")),
            Text("softmax is on autocast's FP32 list", "softmax 在 autocast 的 FP32 列表中"),
        ),
        (
            Mutant(
                "a",
                Text(
                    "Products are what Tensor Cores speed up; they accumulate in FP32.",
                    "矩阵乘正是 Tensor Core 加速的；其累加用 FP32。",
                ),
                "a",
            ),
            Mutant(
                "b",
                Text("Convolutions become products, which accumulate in FP32.", "卷积化为矩阵乘，累加用 FP32。"),
                "b",
            ),
            Mutant(
                "d",
                Text(
                    "ReLU rounds nothing, and runs in the format of its input.", "ReLU 不产生舍入，以输入的格式运行。"
                ),
                "d",
            ),
        ),
        "PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float32",
    ),
    Exercise(
        "softmax_overflow",
        CHAPTER,
        2,
        Text("A softmax that fails", "失败的 softmax"),
        Text(
            "Find a list of finite FP16 logits for which exp(x) / sum(exp(x)), rounded to FP16 "
            "at each step, has a NaN.",
            "找一列有限的 FP16 logits，使 exp(x) / sum(exp(x))（每一步舍入到 FP16）出现 NaN。",
        ),
        Text("∞ / ∞ is NaN. When is exp(x) above 65504?", "∞ / ∞ 是 NaN。exp(x) 何时大于 65504？"),
        Text(
            "exp(x) is infinite in FP16 from x ≈ 11.09; subtracting the maximum first keeps it at most 1.",
            "x ≈ 11.09 起 exp(x) 在 FP16 中为无穷大；先减去最大值，它就不超过 1。",
        ),
        Find(
            Lists(Floats("fp16"), 0, 64),
            naive_softmax_fails,
            (12.0, 0.0),
            Text("a NaN among the results", "结果中有 NaN"),
            Text("exp(12) = 162755 is infinite in FP16", "exp(12) = 162755 在 FP16 中是无穷大"),
        ),
        (
            Mutant((1.0, 2.0), Text("", ""), "No result is NaN"),
            Mutant((11.0,) * 4, Text("", ""), "The sum is infinite and every result 0"),
            Mutant((1e6,), Text("", ""), "finite FP16 numbers"),
        ),
    ),
    Exercise(
        "fp8_scale",
        CHAPTER,
        3,
        Text("A scale for FP8", "FP8 的缩放"),
        Text(
            "Delayed scaling: write fp8_scale(amaxes): the largest integer s for which 2^s "
            "times the largest of the recorded amaxes is at most "
            "448; 0 where nothing or only zeros were recorded. No rounding may spoil it.",
            "延迟缩放：编写 fp8_scale(amaxes)：返回最大的整数 s，使 2^s 乘以记录的最大 amax "
            "不超过 448；没有记录或全为零时返回 0。不能被舍入误差破坏。",
        ),
        Text(
            "math.frexp gives exponent and significand without rounding; 448 = 1.75 · 2^8.",
            "math.frexp 不经舍入给出指数和有效数；448 = 1.75 · 2^8。",
        ),
        Text(
            "With amax = f · 2^e, 1 ≤ f < 2: s = 8 − e if f ≤ 1.75, else 7 − e.",
            "设 amax = f · 2^e，1 ≤ f < 2：f ≤ 1.75 时 s = 8 − e，否则 s = 7 − e。",
        ),
        Implement(
            fp8_scale,
            {
                "amaxes": Lists(
                    Floats("fp64", finite=True, low=2.0**-60, high=2.0**60, signed=False, edges=(1.75, 448.0)), 0, 4
                )
            },
            Integers(-200, 200),
            cases=(
                ((1.75 + 2.0**-22,),),
                ((1.75 + 2.0**-52,),),
                ((2.0, 1.0),),
                ((1.0, 2.0),),
                *(((math.ldexp(1.75, e),),) for e in range(-60, 60)),
            ),
        ),
        (
            Mutant(
                _scale(lambda a: a[-1]),
                Text("The largest of the history decides, not the last.", "由历史中的最大值决定，而不是最后一个。"),
                "amaxes",
            ),
            Mutant(
                _scale(max, guard=False),
                Text("An amax of 0 must not be divided by.", "amax 为 0 时不能用作除数。"),
                "ZeroDivisionError",
            ),
            Mutant(
                _scale(max, rounds=math.ceil),
                Text("Rounding the exponent up lets the largest value overflow.", "指数向上取整会使最大值上溢。"),
                "expected",
            ),
            Mutant(
                _scale(max),
                Text(
                    "The quotient and its logarithm are rounded: just above 1.75 · 2^e they are those of 1.75 · 2^e.",
                    "商及其对数都有舍入误差：略大于 1.75 · 2^e 的数，算出来就像恰好等于它。",
                ),
                "1.75",
            ),
            Mutant(
                _difference_of_logarithms,
                Text(
                    "Logarithms are rounded: their difference can fall just below a whole number.",
                    "对数有舍入误差：两者之差可能略小于整数。",
                ),
                "1.75",
            ),
            Mutant(
                _scale(max, rounds=round),
                Text(
                    "Rounding the exponent to nearest can let the largest value overflow.",
                    "指数向最近取整可能使最大值上溢。",
                ),
                "expected",
            ),
        ),
        "NVIDIA Transformer Engine, delayed scaling",
    ),
)
