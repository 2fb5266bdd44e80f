"""Chapter 6: matrix products of GPUs."""

import math
from typing import Any

import numpy as np

from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Codes, Floats, Lists, Options, Several
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, Predict
from .blocks import on, unusable

CHAPTER = Chapter(6, "products", say("Products of eight GPUs"))
LONG = Lists(Floats("fp16"), 1, 256)


def reversed_differs(value: tuple[Any, ...]) -> Judgement:
    """Whether H100's dot product changes when k runs backwards."""
    a, b = value
    if (why := unusable((a, b), (0.0,), 256)) is not None:
        return Judgement(False, says=why)
    one, other = on("H100", a, b, 0.0), on("H100", a[::-1], b[::-1], 0.0)
    lines = (("k = 0, 1, …", of_float(one, "fp32")), ("…, 1, 0", of_float(other, "fp32")))
    if math.isnan(one) or math.isinf(one) or math.isinf(other):
        return Judgement(False, lines, say("Find it without overflow."))
    if len(a) <= 16:
        return Judgement(False, lines, say("Up to 16 products are one block, which has no order."))
    return Judgement(one != other, lines, say("Both orders give the same bits."))


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


EXERCISES = (
    Exercise("fp8_accumulator", CHAPTER, 2, say("FP8 on H100"),
             say("32 products 0.25 · 0.25 in E4M3 and c = 1024, one wgmma instruction of H100: terms are cut to "
                 "multiples of 2^(emax−13). What is the result? (Exactly it would be 1026.)"),
             say("emax is 10: compare the quantum with 1/16."),
             say("The quantum is 2^-3 and each product is 2^-4: all are cut to 0."),
             Predict(1024, Floats("fp32"), say("each of the 32 products is below the quantum")),
             (Mutant(1026, say("Terms are cut before they are added, one by one."), "1026"),
              Mutant(1028, say("No term is rounded up: the cut is toward zero."), "1028"),
              Mutant(1025, say("The 32 products are one block on H100, not two of 16."), "1025")),
             "DeepSeek-V3 Technical Report, arXiv 2412.19437, 3.3.2"),
    Exercise("rounding_down", CHAPTER, 2, say("MI300X rounds down"),
             say("One product 1 · 1 and c = −2^-30 on AMD's MI300X: the sum of products is rounded down, toward minus "
                 "infinity, to a multiple of 2^(m−31), c down to one of 2^(m−24), m being the largest exponent; their "
                 "sum is rounded to FP32, to nearest. Give the result's FP32 code, an integer such as 0x3F800000."),
             say("m is 0. Which multiple of 2^-24 lies below −2^-30?"),
             say("c becomes −2^-24, and 1 − 2^-24 is a number of FP32."),
             Predict(0x3F7FFFFF, Codes("fp32"), say("c counts 64 times as much as it is, because it is negative")),
             (Mutant(0x3F800000, say("Truncation and rounding to nearest make c vanish; rounding down does not."),
                     "0x3f800000"),
              Mutant(0x3F7FFFFE, say("One multiple of 2^-24 is one place below 1, not two."), "0x3f7ffffe")),
             "Xie et al. 2025, MMA-Sim, arXiv 2511.10909"),
    Exercise("order_of_k", CHAPTER, 2, say("The order of k"),
             say("Find (a, b), equally long lists of 17 to 256 FP16 numbers, whose dot product on H100 changes its "
                 "bits when both are reversed."),
             say("A block of 16 adds onto the result of the block before it. Where do small products survive?"),
             say("Small products count if they are added before the large one comes, and are lost after it."),
             Find(Several((LONG, LONG), ("a", "b")), reversed_differs,
                  ((2.0**-13,) * 16 + (1.0,), (2.0**-13,) * 16 + (1.0,)), say("different bits"),
                  say("sixteen products of 2^-26, and 1 before or after them")),
             (Mutant(((1.0,) * 32, (1.0,) * 32), NOTHING, "Both orders give the same bits"),
              Mutant(((1.0, 2.0**-13), (1.0, 2.0**-13)), NOTHING, "one block, which has no order"),
              Mutant(((60000.0,) * 32, (60000.0,) * 16), NOTHING, "same length"))),
    Exercise("torch_half", CHAPTER, 1, say("torch.matmul on half tensors"),
             say("On a GPU, torch.matmul(a, b) of FP16 tensors gives an FP16 tensor. In which precision are "
                 "products accumulated, normally?\na: in FP16, rounded at every product.\nb: in FP32, rounded to "
                 "FP16 once at the end.\nc: exactly, rounded to FP16 once."),
             say("Storing and accumulating are two questions."),
             say("FP16 partial products are accumulated in FP32 and stored as FP16 at the end."),
             Predict("b", Options(("a", "b", "c")), say("output fp32, store fp16")),
             (Mutant("a", say("Then a sum of 4,096 ones would stall at 2048."), "a"),
              Mutant("c", say("FP32 accumulation rounds, or cuts, at every block."), "c")),
             "Micikevicius et al. 2018, arXiv 1710.03740, 3.3"),
    Exercise("split3", CHAPTER, 3, say("FP32 as three BF16"),
             say("Write split3(x): (high, middle, low) for a normal FP32 number x: high is x rounded to BF16 (to "
                 "nearest, ties to even), middle is x − high rounded likewise, low is x − high − middle. Their sum is "
                 "x."),
             say("Both differences are exact in FP32 (np.float32)."),
             say("Three times 8 bits hold 24; rounding to nearest lets a part be negative."),
             Implement(split3,
                       {"x": Floats("fp32", finite=True, low=2.0**-20, high=2.0**20, near="bf16",
                                    edges=(1 + 2.0**-23, 2 - 2.0**-23))},
                       Several((Floats("bf16"),) * 3, ("high", "middle", "low")),
                       valid=lambda x: 2.0**-20 <= abs(x) <= 2.0**20),
             (Mutant(_by_cutting, say("The parts are cut, not rounded to nearest."), "high"),
              Mutant(_two_parts, say("Two parts hold 16 bits of 24."), "low")),
             "Henry, Tang and Heinecke 2019, arXiv 1904.06376"),
)  # fmt: skip
