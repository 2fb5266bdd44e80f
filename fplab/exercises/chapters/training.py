"""Chapter 9: training in low precision."""

import math
from typing import Any

import numpy as np

from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists, Options
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, Predict

CHAPTER = Chapter(9, "training", say("Training in low precision"))


def naive_softmax_fails(logits: tuple[float, ...]) -> Judgement:
    """Whether exp(x) / sum(exp(x)) in FP16 has a NaN, where subtracting the maximum first has none."""
    half = Floats("fp16", finite=True)
    if not 1 <= len(logits) <= 64 or not all(half.has(x) for x in logits):
        return Judgement(False, says=say("Give 1 to 64 finite FP16 numbers."))
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
        return Judgement(False, lines, say("The sum is infinite and every result 0: wrong, but no NaN."))
    return Judgement(False, lines, say("No result is NaN."))


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


EXERCISES = (
    Exercise("fp8_roles", CHAPTER, 1,
             Predict("a", Options(("a", "b", "c")), say("32 binades with subnormals against 18")),
             (Mutant("b", say("Gradients spread further than E4M3's 18 binades."), "b"),
              Mutant("c", say("Two fraction bits would lose nearly every update of a master weight."), "c")),
             "Micikevicius et al. 2022, arXiv 2209.05433"),
    Exercise("keep_in_fp32", CHAPTER, 1,
             Predict("c", Options(("a", "b", "c", "d")), say("softmax is on autocast's FP32 list")),
             (Mutant("a", say("Products are what Tensor Cores speed up; they accumulate in FP32."), "a"),
              Mutant("b", say("Convolutions become products, which accumulate in FP32."), "b"),
              Mutant("d", say("ReLU rounds nothing, and runs in the format of its input."), "d")),
             "PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float32"),
    Exercise("softmax_overflow", CHAPTER, 2,
             Find(Lists(Floats("fp16"), 0, 64), naive_softmax_fails, (12.0, 0.0), say("a NaN among the results"),
                  say("exp(12) = 162755 is infinite in FP16")),
             (Mutant((1.0, 2.0), NOTHING, "No result is NaN"),
              Mutant((11.0,) * 4, NOTHING, "The sum is infinite and every result 0"),
              Mutant((1e6,), NOTHING, "finite FP16 numbers"))),
    Exercise("fp8_scale", CHAPTER, 3,
             Implement(fp8_scale,
                       {"amaxes": Lists(Floats("fp64", finite=True, low=2.0**-60, high=2.0**60, signed=False,
                                               edges=(1.75, 448.0)),
                                        0, 4)},
                       Integers(-200, 200),
                       cases=(((1.75 + 2.0**-22,),), ((1.75 + 2.0**-52,),), ((2.0, 1.0),), ((1.0, 2.0),),
                              *(((math.ldexp(1.75, e),),) for e in range(-60, 60)))),
             (Mutant(_scale(lambda a: a[-1]), say("The largest of the history decides, not the last."), "amaxes"),
              Mutant(_scale(max, guard=False), say("An amax of 0 must not be divided by."), "ZeroDivisionError"),
              Mutant(_scale(max, rounds=math.ceil), say("Rounding the exponent up lets the largest value overflow."),
                     "expected"),
              Mutant(_scale(max),
                     say("The quotient and its logarithm are rounded: just above 1.75 · 2^e they are those of 1.75 · "
                         "2^e."),
                     "1.75"),
              Mutant(_difference_of_logarithms,
                     say("Logarithms are rounded: their difference can fall just below a whole number."), "1.75"),
              Mutant(_scale(max, rounds=round),
                     say("Rounding the exponent to nearest can let the largest value overflow."), "expected")),
             "NVIDIA Transformer Engine, delayed scaling"),
)  # fmt: skip
