"""Chapter 6: matrix products of GPUs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...language import Text
from ..base import Chapter, Exercise, Find, Implement, Judgement, Mutant, Predict, register
from ..kinds import Floats, Lists, Options, Several
from ..shown import of_float
from .blocks import on, unusable

CHAPTER = Chapter(6, "products", Text("Products of eight GPUs", "八种 GPU 的乘积"))
LONG = Lists(Floats("fp16"), 1, 256)


def reversed_differs(value: tuple[Any, ...]) -> Judgement:
    """Whether H100's dot product changes when k runs backwards."""
    a, b = value
    if (why := unusable((a, b), (0.0,), 256)) is not None:
        return Judgement(False, says=why)
    one, other = on("H100", a, b, 0.0), on("H100", a[::-1], b[::-1], 0.0)
    lines = (("k = 0, 1, …", of_float(one, "fp32")), ("…, 1, 0", of_float(other, "fp32")))
    if math.isnan(one) or math.isinf(one) or math.isinf(other):
        return Judgement(False, lines, Text("Find it without overflow.", "请找不溢出的例子。"))
    if len(a) <= 16:
        return Judgement(
            False,
            lines,
            Text("Up to 16 products are one block, which has no order.", "至多 16 个乘积在一个块里，块内没有次序。"),
        )
    return Judgement(one != other, lines, Text("Both orders give the same bits.", "两种次序给出相同的位。"))


def split3(x):  # type: ignore[no-untyped-def]
    """Round to BF16, take the rest, and again."""
    import numpy as np

    def bf16(v):  # type: ignore[no-untyped-def]
        code = int(np.float32(v).view(np.uint32))
        return np.uint32((code + 0x7FFF + (code >> 16 & 1)) & 0xFFFF0000).view(np.float32)

    high = bf16(x)
    middle = bf16(np.float32(x) - high)
    low = bf16(np.float32(x) - high - middle)
    return float(high), float(middle), float(low)


def _cut(v: Any) -> Any:
    return np.uint32(int(np.float32(v).view(np.uint32)) & 0xFFFF0000).view(np.float32)


def _by_cutting(x: float) -> tuple[float, float, float]:
    high = _cut(x)
    middle = _cut(np.float32(x) - high)
    return float(high), float(middle), float(_cut(np.float32(x) - high - middle))


def _two_parts(x: float) -> tuple[float, float, float]:
    high, middle, _ = split3(x)
    return high, middle, 0.0


register(
    Exercise(
        "fp8_accumulator",
        CHAPTER,
        2,
        Text("FP8 on H100", "H100 上的 FP8"),
        Text(
            "32 products 0.25 · 0.25 in E4M3 and c = 1024, one wgmma instruction of H100: terms "
            "are cut to multiples of 2^(emax−13). "
            "What is the result? (Exactly it would be 1026.)",
            "E4M3 中 32 个乘积 0.25 · 0.25，c = 1024，由 H100 的一条 wgmma 指令计算：各项截断到 "
            "2^(emax−13) 的倍数。结果是多少？（精确值为 1026。）",
        ),
        Text("emax is 10: compare the quantum with 1/16.", "emax 为 10：把量子与 1/16 比较。"),
        Text(
            "The quantum is 2^-3 and each product is 2^-4: all are cut to 0.",
            "量子是 2^-3，每个乘积是 2^-4：全部截为 0。",
        ),
        Predict(1024, Floats("fp32"), Text("each of the 32 products is below the quantum", "32 个乘积每个都小于量子")),
        (
            Mutant(1026, Text("Terms are cut before they are added, one by one.", "各项在相加之前逐个截断。"), "1026"),
            Mutant(
                1028, Text("No term is rounded up: the cut is toward zero.", "没有哪一项进位：截断是向零的。"), "1028"
            ),
            Mutant(
                1025,
                Text(
                    "The 32 products are one block on H100, not two of 16.",
                    "在 H100 上 32 个乘积是一个块，不是两个 16。",
                ),
                "1025",
            ),
        ),
        "DeepSeek-V3 Technical Report, arXiv 2412.19437, 3.3.2",
    ),
    Exercise(
        "order_of_k",
        CHAPTER,
        2,
        Text("The order of k", "k 的次序"),
        Text(
            "Find (a, b), equally long lists of 17 to 256 FP16 numbers, whose dot product on "
            "H100 changes its bits when both are reversed.",
            "找 (a, b)：17 到 256 个 FP16 数的等长列表，两者都反转后，H100 上点积的位会改变。",
        ),
        Text(
            "A block of 16 adds onto the result of the block before it. Where do small products survive?",
            "每 16 个一块，加到前一块的结果上。小的乘积在哪里能存活？",
        ),
        Text(
            "Small products count if they are added before the large one comes, and are lost after it.",
            "小乘积若在大数到来之前相加就算数，在它之后则丢失。",
        ),
        Find(
            Several((LONG, LONG), ("a", "b")),
            reversed_differs,
            ((2.0**-13,) * 16 + (1.0,), (2.0**-13,) * 16 + (1.0,)),
            Text("different bits", "不同的位"),
            Text("sixteen products of 2^-26, and 1 before or after them", "十六个 2^-26 的乘积，1 在它们之前或之后"),
        ),
        (
            Mutant(((1.0,) * 32, (1.0,) * 32), Text("", ""), "Both orders give the same bits"),
            Mutant(((1.0, 2.0**-13), (1.0, 2.0**-13)), Text("", ""), "one block, which has no order"),
            Mutant(((60000.0,) * 32, (60000.0,) * 16), Text("", ""), "same length"),
        ),
    ),
    Exercise(
        "torch_half",
        CHAPTER,
        1,
        Text("torch.matmul on half tensors", "半精度张量的 torch.matmul"),
        Text(
            "On a GPU, torch.matmul(a, b) of FP16 tensors gives an FP16 tensor. In which precision "
            "are products accumulated, normally?\n"
            "a: in FP16, rounded at every product.\nb: in FP32, rounded to FP16 once at the "
            "end.\nc: exactly, rounded to FP16 once.",
            "在 GPU 上，两个 FP16 张量的 torch.matmul(a, b) 得到 FP16 张量。通常乘积以何种精度累加？\n"
            "a：FP16，每个乘积后舍入。\nb：FP32，最后舍入到 FP16 一次。\nc：精确，最后舍入到 FP16 一次。",
        ),
        Text("Storing and accumulating are two questions.", "存储与累加是两个问题。"),
        Text(
            "FP16 partial products are accumulated in FP32 and stored as FP16 at the end.",
            "FP16 部分积在 FP32 中累加，最后存为 FP16。",
        ),
        Predict("b", Options(("a", "b", "c")), Text("output fp32, store fp16", "output fp32，store fp16")),
        (
            Mutant("a", Text("Then a sum of 4,096 ones would stall at 2048.", "那样 4096 个 1 的和会停在 2048。"), "a"),
            Mutant(
                "c",
                Text("FP32 accumulation rounds, or cuts, at every block.", "FP32 累加在每个块都会舍入或截断。"),
                "c",
            ),
        ),
        "Micikevicius et al. 2018, arXiv 1710.03740, 3.3",
    ),
    Exercise(
        "split3",
        CHAPTER,
        3,
        Text("FP32 as three BF16", "三个 BF16 表示 FP32"),
        Text(
            "Write split3(x): (high, middle, low) for a normal FP32 number x: high is x rounded "
            "to BF16 (to nearest, ties to even), middle is "
            "x − high rounded likewise, low is x − high − middle. Their sum is x.",
            "编写 split3(x)：对正规的 FP32 数 x 返回 (high, middle, low)：high 是 x 舍入到 BF16（向最近，"
            "平局取偶），middle 是 x − high 同样舍入，low 是 x − high − middle。三者之和为 x。",
        ),
        Text("Both differences are exact in FP32 (np.float32).", "两个差在 FP32（np.float32）中都是精确的。"),
        Text(
            "Three times 8 bits hold 24; rounding to nearest lets a part be negative.",
            "三个 8 位装得下 24 位；向最近舍入时某一部分可以为负。",
        ),
        Implement(
            split3,
            {
                "x": Floats(
                    "fp32", finite=True, low=2.0**-20, high=2.0**20, near="bf16", edges=(1 + 2.0**-23, 2 - 2.0**-23)
                )
            },
            Several((Floats("bf16"),) * 3, ("high", "middle", "low")),
            valid=lambda x: 2.0**-20 <= abs(x) <= 2.0**20,
        ),
        (
            Mutant(
                _by_cutting,
                Text("The parts are cut, not rounded to nearest.", "各部分是截断的，没有向最近舍入。"),
                "high",
            ),
            Mutant(_two_parts, Text("Two parts hold 16 bits of 24.", "两部分只装得下 24 位中的 16 位。"), "low"),
        ),
        "Henry, Tang and Heinecke 2019, arXiv 1904.06376",
    ),
)
