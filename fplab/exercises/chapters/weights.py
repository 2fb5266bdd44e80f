"""Chapter 15: a checkpoint under the lens."""

from collections.abc import Callable
from typing import Any

from ...words import say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists
from ..tasks import Chapter, Implement, Mutant, edited

CHAPTER = Chapter(15, "weights", say("A checkpoint under the lens"))


def q4_0(xs):  # type: ignore[no-untyped-def]
    """The weight of largest magnitude becomes code 0; the codes of the first half lie in the low bits."""
    import numpy as np

    x = np.array(xs, np.float32)
    d = x[np.abs(x).argmax()] / np.float32(-8)
    codes = (x * (np.float32(1) / d) + np.float32(8.5)).astype(int)
    codes = np.minimum(codes, 15)
    scale = np.float16(d).tobytes()
    return [*scale, *(codes[:16] + 16 * codes[16:])]


def outlier_channel(w):  # type: ignore[no-untyped-def]
    """The largest magnitude of each column, against the median of all columns'."""
    import statistics

    tops = [max(map(abs, column)) for column in zip(*w, strict=True)]
    return tops.index(max(tops)) if 0 < 6 * statistics.median(tops) < max(tops) else -1


def mixture(sizes, errors, budget):  # type: ignore[no-untyped-def]
    """Try all eight."""
    from itertools import product

    left = []
    for wide in product((0, 1), repeat=3):
        if sum(size * w for size, w in zip(sizes, wide, strict=True)) <= budget:
            left.append(sum(error * (1 - w) for error, w in zip(errors, wide, strict=True)))
    return min(left)


def _greedy(rank: Callable[[int, int], float]) -> Callable[..., int]:
    """One tensor after the other, in an order, as long as there is room."""

    def mixture(sizes: list[int], errors: list[int], budget: int) -> int:
        left = sum(errors)
        for size, error in sorted(zip(sizes, errors, strict=True), key=lambda one: rank(*one)):
            if size <= budget:
                budget, left = budget - size, left - error
        return left

    return mixture


WEIGHTS = Lists(Floats("fp32", finite=True, low=2.0**-6, high=2.0**6), 32, 32)
ROWS = Lists(Lists(Integers(-64, 64, origin=1), 4, 4), 1, 3)
ZEROS: tuple[Any, ...] = (0.0,) * 30
EXERCISES = (
    Exercise("outlier_channel", CHAPTER, 1,
             Implement(outlier_channel, {"w": ROWS}, Integers(-1, 3),
                       cases=((((1, 1, 8, 1),),), (((1, 1, -8, 1),),), (((1, 1, 6, 1),),), (((1, 2, 12, 1),),),
                              (((1, 8, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),), (((0, 0, 4, 1),),), (((0, 0, 4, 0),),))),
             (Mutant(edited(outlier_channel, "zip(*w, strict=True)", "w"),
                     say("That is the largest of each row, an output channel: inputs are columns."), "w "),
              Mutant(edited(outlier_channel, "max(map(abs, column))", "abs(max(column))"),
                     say("An outlier may be negative: magnitudes count."), "-"),
              Mutant(edited(outlier_channel, "statistics.median", "statistics.mean"),
                     say("A mean grows with the outlier itself; the median does not."), "w "),
              Mutant(edited(outlier_channel, "statistics.median", "statistics.median_high"),
                     say("The median of four is the mean of the two in the middle."), "w "),
              Mutant(edited(outlier_channel, "< max(tops)", "<= max(tops)"),
                     say("Exactly 6 times the median is no outlier: more than that is."), "got"))),
    Exercise("mixture", CHAPTER, 2,
             Implement(mixture, {"sizes": Lists(Integers(1, 6, origin=1), 3, 3), "errors": Lists(Integers(0, 9), 3, 3),
                                 "budget": Integers(0, 12)}, Integers(0, 27),
                       cases=(((1, 1, 2), (2, 2, 3), 2), ((1, 2, 2), (2, 3, 3), 4), ((3, 2, 1), (9, 5, 3), 3))),
             (Mutant(_greedy(lambda size, error: -error / size),
                     say("The most error per weight first leaves room that is too small for what comes next."),
                     "budget"),
              Mutant(_greedy(lambda size, error: -error),
                     say("The largest error first may be the most expensive: two small tensors can be better."),
                     "budget"),
              Mutant(edited(mixture, "<= budget", "< budget + (budget == 0)"), say("The budget may be used up."),
                     "budget"),
              Mutant(edited(mixture, "size * w", "w"),
                     say("Eight bits are counted for each weight, not for each tensor."), "budget"))),
    Exercise("q4_0", CHAPTER, 3,
             Implement(q4_0, {"xs": WEIGHTS}, Lists(Integers(0, 255, bits=8), 18, 18),
                       cases=(((-8.0, 0.5, *ZEROS),), ((8.0, 0.5, *ZEROS),), ((-8.0, 8.0, *ZEROS),),
                              ((-8 * (1 + 2.0**-12), 0.5, *ZEROS),), ((*ZEROS, 1.0, -8.0),)),
                       valid=any),
             (Mutant(edited(q4_0, "x[np.abs(x).argmax()] / np.float32(-8)", "np.abs(x).max() / np.float32(7)"),
                     say("The largest keeps its sign: divided by −8 it is d, so that its code is 0."), "xs "),
              Mutant(edited(q4_0, "+ np.float32(8.5)).astype(int)", ").round().astype(int) + 8"),
                     say("A half goes up: 8.5 is added and the fraction dropped."), "xs "),
              Mutant(edited(q4_0, "codes = np.minimum(codes, 15)", "codes = codes % 16"),
                     say("A weight opposite to the largest would get the code 16: it gets 15."), "xs "),
              Mutant(edited(q4_0, "codes[:16] + 16 * codes[16:]", "codes[::2] + 16 * codes[1::2]"),
                     say("A byte holds weights i and i + 16, not neighbours."), "xs "),
              Mutant(edited(q4_0, "np.float32(1) / d", "np.float32(1) / np.float32(np.float16(d))"),
                     say("Codes are made with d in FP32; FP16 is only how it is stored."), "xs ")),
             "llama.cpp, ggml-quants.c"),
)  # fmt: skip
