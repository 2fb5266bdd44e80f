"""Chapter 14: block scales and four bits."""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists, Options, Several
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, edited

CHAPTER = Chapter(14, "scales", say("Block scales and four bits"))


def mx_scale(xs):  # type: ignore[no-untyped-def]
    """The exponent of the largest, less that of 6 = 1.5 · 2^2, with E8M0's bias."""

    largest = max(map(abs, xs))
    return max(math.frexp(largest)[1] - 1 - 2 + 127, 0) if largest else 0


def nvfp4_scale(a, amax):  # type: ignore[no-untyped-def]
    """Three bits after the first one, below 2^-6 multiples of 2^-9."""

    t = 448 * a / amax
    step = 2.0 ** (max(math.frexp(t)[1] - 1, -6) - 3)
    return round(t / step) * step


def four_or_six(xs):  # type: ignore[no-untyped-def]
    """The distance to the nearest element, times the scale, summed over the block."""

    def lost(top):  # type: ignore[no-untyped-def]
        scale = Fraction(max(map(abs, xs))) / top
        elements = [Fraction(n, 2) * scale for n in (0, 1, 2, 3, 4, 6, 8, 12)]
        return sum(min(abs(abs(Fraction(x)) - e) for e in elements) for x in xs)

    return 4 if lost(4) < lost(6) else 6


def delayed_scales(amaxes, length):  # type: ignore[no-untyped-def]
    """Only what earlier steps saw, and only so many of them."""
    import numpy as np

    scale, scales = 1.0, []
    for step in range(len(amaxes)):
        seen = max(amaxes[max(step - length, 0) : step], default=0.0)
        if seen > 0:
            scale = float(np.float32(448) / np.float32(seen))
        scales.append(scale)
    return scales


def parted(value: tuple[Any, ...]) -> Judgement:
    """Whether the columns of a matrix have other values from the codes of its rows than from itself."""
    from ... import scaled

    single = Floats("fp32", finite=True)
    if [len(row) for row in value] != [2, 2] or not all(single.has(v) for row in value for v in row):
        return Judgement(False, says=say("Give two rows of two finite FP32 numbers."))
    w = np.array(value, np.float32)
    once = scaled.quantize(w, "mxfp4", axis=0).dequantize()
    twice = scaled.quantize(scaled.quantize(w, "mxfp4").dequantize(), "mxfp4", axis=0).dequantize()
    differing = np.argwhere(once != twice).tolist()
    i, j = differing[0] if differing else (0, 0)
    names = f"once[{i}][{j}]", f"twice[{i}][{j}]"
    lines = tuple((name, of_float(float(x[i, j]), "fp32")) for name, x in zip(names, (once, twice), strict=True))
    return Judgement(bool(differing), lines, say("Both ways give the same values."))


MAGNITUDES = Floats("bf16", finite=True, signed=False, low=2.0**-20, high=2.0**20)
PAIR = Lists(Floats("fp32"), 2, 2)
ROUNDED = "round(t / step) * step"
TE = "Transformer Engine; arXiv 2509.25149"
EXERCISES = (
    Exercise("mx_scale", CHAPTER, 1,
             Implement(mx_scale, {"xs": Lists(Floats("fp32", finite=True), 1, 4)}, Integers(0, 254),
                       cases=(((1.0, 7.0),), ((-8.0, 1.0),), ((2.0**-127,),))),
             (Mutant(edited(mx_scale, "[1] - 1", "[1] - (math.frexp(largest)[0] == 0.5)"),
                     say("This rounds up, which saturates nothing: OCP's rule rounds down."), "xs "),
              Mutant(edited(mx_scale, "max(map(abs, xs))", "abs(max(xs))"),
                     say("The largest magnitude counts: the sign does not."), "xs "),
              Mutant(edited(mx_scale, "- 1 - 2", "- 1"),
                     say("The largest becomes 4 to 8, not 1 to 2: E2M1 reaches up to 6."), "got"),
              Mutant(edited(mx_scale, "127, 0)", "127, -999)"), say("E8M0 has no code below 0."), "got -1")),
             "OCP Microscaling Formats (MX) 1.0, 6.3"),
    Exercise("nvfp4_scale", CHAPTER, 2,
             Implement(nvfp4_scale, {"a": MAGNITUDES, "amax": MAGNITUDES}, Floats("e4m3"),
                       cases=((0.0, 1.0), (1.0, 1.0), (1.0, 3.0), (1.0, 512.0), (1.0, 2.0**18), (1.0, 2.0**17)),
                       valid=lambda a, amax: a <= amax != 0),
             (Mutant(edited(nvfp4_scale, "448 * a / amax", "a / 6", ROUNDED, f"min({ROUNDED}, 448.0)"),
                     say("That is the scale without the tensor's: it takes 448 / amax of it."), "got"),
              Mutant(edited(nvfp4_scale, "-6) - 3", "-6)", ROUNDED, f"min({ROUNDED}, 448.0)"),
                     say("That is a power of two, as E8M0 would have it: E4M3 has a fraction."), "got"),
              Mutant(edited(nvfp4_scale, "round(", "math.floor("),
                     say("The scale is rounded to nearest, not down."), "got"),
              Mutant(edited(nvfp4_scale, ROUNDED, f"max({ROUNDED}, 2.0**-6)"),
                     say("At least 2^-6 is torchao's rule; here subnormals and 0 count."), "got")), TE),
    Exercise("four_or_six", CHAPTER, 3,
             Implement(four_or_six, {"xs": Lists(Floats("fp16", finite=True, low=0.25, high=8.0), 1, 4)},
                       Options((6, 4)), cases=(((4.0, 3.0),), ((0.25, 1.25, 3.0),), ((0.25, 0.5, 1.75),)),
                       valid=lambda xs: any(xs)),
             (Mutant(lambda xs: 6, say("The 6 is not always better: try both."), "expected 4"),
              Mutant(edited(four_or_six, "lost(4) < lost(6)", "lost(4) <= lost(6)"),
                     say("At a tie it is the 6."), "got 4"),
              Mutant(edited(four_or_six, "in elements) for", "in elements) ** 2 for"),
                     say("These are squared errors; absolute ones are asked for."), "xs "),
              Mutant(edited(four_or_six, "return sum", "return max"),
                     say("This is the largest error; the sum is asked for."), "xs "),
              Mutant(edited(four_or_six, "sum(min", "sum(1 / scale * min"),
                     say("An error counts times the scale, which is larger for the 4."), "xs ")),
             "Transformer Engine, NVFP4"),
    Exercise("both_uses", CHAPTER, 2,
             Find(Several((PAIR, PAIR), ("row 0", "row 1")), parted, ((1.0, 64.0), (1.0, 1.0)),
                  say("other values the second time"), say("beside 64 the 1 becomes 0; beside 1 it would be kept")),
             (Mutant(((1.0, 1.0), (1.0, 1.0)), NOTHING, "same values"),
              Mutant(((1.0,), (1.0, 64.0)), NOTHING, "two rows of two")), TE),
    Exercise("delayed_scales", CHAPTER, 2,
             Implement(delayed_scales, {"amaxes": Lists(MAGNITUDES, 1, 5), "length": Integers(1, 3, origin=1)},
                       Lists(Floats("fp32"), 1, 5),
                       cases=(((1.0, 2.0, 1.0, 1.0), 2), ((1.0, 0.0, 0.0), 1), ((2.0, 1.0, 1.0), 1))),
             (Mutant(edited(delayed_scales, "step - length, 0) : step", "step - length + 1, 0) : step + 1"),
                     say("A step's own amax is for current scaling: delayed scaling does not wait for it."), "amaxes"),
              Mutant(edited(delayed_scales, "max(step - length, 0) : step", ": step"),
                     say("An amax is forgotten after length steps."), "amaxes"),
              Mutant(edited(delayed_scales, "max(step - length, 0)", "step - 1"),
                     say("The largest of the history counts, not the last."), "amaxes"),
              Mutant(edited(delayed_scales, "if seen", "scale = 1.0\n        if seen"),
                     say("Where a is 0, the scale stays as it was."), "amaxes")),
             "Transformer Engine, DelayedScaling"),
)  # fmt: skip
