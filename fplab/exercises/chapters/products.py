"""Chapter 6: matrix products of GPUs."""

import math
from typing import Any

import numpy as np

from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Codes, Floats, Lists, Options, Several
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, Predict, edited
from .blocks import on, unusable

CHAPTER = Chapter(6, "products", say("Products of eight GPUs"))
LONG = Lists(Floats("fp16"), 1, 256)


def reversed_differs(value: tuple[Any, ...]) -> Judgement:
    """Whether H100's dot product changes when k runs backwards."""
    a, b = value
    if (why := unusable((a, b), (0.0,), 256)) is not None:
        return Judgement(False, says=why)
    forward, backward = on("H100", a, b, 0.0), on("H100", a[::-1], b[::-1], 0.0)
    lines = (("k = 0, 1, …", of_float(forward, "fp32")), ("…, 1, 0", of_float(backward, "fp32")))
    if math.isnan(forward) or math.isinf(forward) or math.isinf(backward):
        return Judgement(False, lines, say("Find it without overflow."))
    if len(a) <= 16:
        return Judgement(False, lines, say("Up to 16 products are one block, which has no order."))
    return Judgement(forward != backward, lines, say("Both orders give the same bits."))


def split3(x):  # type: ignore[no-untyped-def]
    """Round to BF16, take the rest, and again."""

    def bf16(v):  # type: ignore[no-untyped-def]
        code = int(np.float32(v).view(np.uint32))
        return np.uint32((code + 0x7FFF + (code >> 16 & 1)) & 0xFFFF0000).view(np.float32)

    high = bf16(x)
    middle = bf16(np.float32(x) - high)
    low = bf16(np.float32(x) - high - middle)
    return float(high), float(middle), float(low)


EXERCISES = (
    Exercise("fp8_accumulator", CHAPTER, 2,
             Predict(1024, Floats("fp32"), say("each of the 32 products is below the quantum")),
             (Mutant(1026, say("Terms are cut before they are added, one by one."), "1026"),
              Mutant(1028, say("No term is rounded up: the cut is toward zero."), "1028"),
              Mutant(1025, say("The 32 products are one block on H100, not two of 16."), "1025")),
             "DeepSeek-V3 Technical Report, arXiv 2412.19437, 3.3.2"),
    Exercise("rounding_down", CHAPTER, 2,
             Predict(0x3F7FFFFF, Codes("fp32"), say("c counts 64 times as much as it is, because it is negative")),
             (Mutant(0x3F800000, say("Truncation and rounding to nearest make c vanish; rounding down does not."),
                     "0x3f800000"),
              Mutant(0x3F7FFFFE, say("One multiple of 2^-24 is one place below 1, not two."), "0x3f7ffffe")),
             "Xie et al. 2025, MMA-Sim, arXiv 2511.10909"),
    Exercise("order_of_k", CHAPTER, 2,
             Find(Several((LONG, LONG), ("a", "b")), reversed_differs,
                  ((2.0**-13,) * 16 + (1.0,), (2.0**-13,) * 16 + (1.0,)), say("different bits"),
                  say("sixteen products of 2^-26, and 1 before or after them")),
             (Mutant(((1.0,) * 32, (1.0,) * 32), NOTHING, "Both orders give the same bits"),
              Mutant(((1.0, 2.0**-13), (1.0, 2.0**-13)), NOTHING, "one block, which has no order"),
              Mutant(((60000.0,) * 32, (60000.0,) * 16), NOTHING, "same length"))),
    Exercise("torch_half", CHAPTER, 1, Predict("b", Options(("a", "b", "c")), say("output fp32, store fp16")),
             (Mutant("a", say("Then a sum of 4,096 ones would stall at 2048."), "a"),
              Mutant("c", say("FP32 accumulation rounds, or cuts, at every block."), "c")),
             "Micikevicius et al. 2018, arXiv 1710.03740, 3.3"),
    Exercise("split3", CHAPTER, 3,
             Implement(split3,
                       {"x": Floats("fp32", finite=True, low=2.0**-20, high=2.0**20, near="bf16",
                                    edges=(1 + 2.0**-23, 2 - 2.0**-23))},
                       Several((Floats("bf16"),) * 3, ("high", "middle", "low")),
                       valid=lambda x: 2.0**-20 <= abs(x) <= 2.0**20),
             (Mutant(edited(split3, "(code + 0x7FFF + (code >> 16 & 1)) &", "code &"),
                     say("The parts are cut, not rounded to nearest."), "high"),
              Mutant(edited(split3, "float(low)", "0.0"), say("Two parts hold 16 bits of 24."), "low")),
             "Henry, Tang and Heinecke 2019, arXiv 1904.06376"),
)  # fmt: skip
