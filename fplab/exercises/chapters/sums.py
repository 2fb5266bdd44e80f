"""Chapter 4: sums."""

import math

import numpy as np

from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists
from ..shown import Shown, number, of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, Predict, edited

CHAPTER = Chapter(4, "sums", say("Sums"))
TERMS = Floats("fp16", finite=True, low=2.0**-10, high=1024.0)


def sequential(xs):  # type: ignore[no-untyped-def]
    """One after the other, each addition rounded to FP16."""
    total = np.float16(0)
    for x in xs:
        total += np.float16(x)
    return float(total)


def stalls(xs: tuple[float, ...]) -> Judgement:
    """Whether a sequential FP16 sum of positive numbers ends below half of the exact one."""
    if len(xs) > 100_000 or not xs:
        return Judgement(False, says=say("Give 1 to 100,000 numbers."))
    if any(not (0 < x <= 65504) or float(np.float16(x)) != x for x in xs):
        return Judgement(False, says=say("Every number must be a positive FP16 number."))
    exactly = math.fsum(xs)
    with np.errstate(over="ignore"):
        total = sequential(xs)
    lines = (("Σ", Shown(number(exactly))), ("FP16", of_float(total, "fp16")))
    if math.isinf(total):
        return Judgement(False, lines, say("This one overflows; a stalled sum is finite."))
    return Judgement(total < exactly / 2, lines, say("The sum is still above half of the exact one."))


def kahan_sum(xs):  # type: ignore[no-untyped-def]
    """What an addition lost is subtracted from the next term; every operation rounds to FP16."""
    import numpy as np

    total = lost = np.float16(0)
    for x in xs:
        term = np.float16(x) - lost
        grown = total + term
        lost = (grown - total) - term
        total = grown
    return float(total)


def pairwise_sum(xs):  # type: ignore[no-untyped-def]
    """Halves first, the first half the shorter one; a single number is itself."""
    import numpy as np

    if len(xs) == 1:
        return xs[0]
    middle = len(xs) // 2
    return float(np.float16(pairwise_sum(xs[:middle])) + np.float16(pairwise_sum(xs[middle:])))


EXERCISES = (
    Exercise("harmonic_stop", CHAPTER, 2,
             Predict(513, Integers(1, 10**7),
                     say("1/512 is still a tie that rounds up; 1/513 is below half a spacing")),
             (Mutant(512, say("1/512 is a tie, and the tie goes up here."), "512"),
              Mutant(65, say("That is BF16, which stops at 5.0625."), "65"),
              Mutant(2049, say("2049 is where a sum of ones stops."), "2049"),
              Mutant(2097152, say("That is FP32, which stops at 15.4036827."), "2097152"))),
    Exercise("stalling_sum", CHAPTER, 1,
             Find(Lists(Floats("fp16"), 0, 10**5), stalls, (1.0,) * 5000, say("FP16 sum < exact sum / 2"),
                  say("[1.0] * 5000 sums to 2048")),
             (Mutant((1.0,) * 2048, NOTHING, "still above half"),
              Mutant((60000.0,) * 5, NOTHING, "overflows"),
              Mutant((0.1,) * 5000, NOTHING, "positive FP16 number"),
              Mutant((), NOTHING, "Give 1 to 100,000"))),
    Exercise("pairwise_sum", CHAPTER, 2,
             Implement(pairwise_sum, {"xs": Lists(TERMS, 1, 9)}, Floats("fp16"),
                       cases=(((1024.0, 0.5, 0.5),), ((0.5, 0.5, 1024.0),), ((1024.0, 0.25, 0.25, 0.25, 0.25),))),
             (Mutant(sequential, say("This adds one after the other."), "xs "),
              Mutant(lambda xs: float(np.float16(math.fsum(xs))), say("This is the exact sum, rounded once."), "xs "),
              Mutant(edited(pairwise_sum, "len(xs) // 2", "(len(xs) + 1) // 2"),
                     say("For an odd count the first part is the shorter one."), "xs ")),
             "N. J. Higham 1993, The accuracy of floating point summation"),
    Exercise("kahan_sum", CHAPTER, 3,
             Implement(kahan_sum, {"xs": Lists(TERMS, 0, 12)}, Floats("fp16"),
                       cases=(((1024.0, *(0.25,) * 8),), ((1024.0, 0.5, 0.5),))),
             (Mutant(sequential, say("Nothing is compensated: this is the plain sum."), "xs "),
              Mutant(edited(kahan_sum, "(grown - total) - term", "-((grown - total) - term)"),
                     say("The sign of what was lost is turned: errors add up."), "xs "),
              Mutant(lambda xs: float(np.float16(math.fsum(xs))),
                     say("This is the exact sum, rounded once; Kahan's is not always that."), "xs ")),
             "W. Kahan 1965, Further remarks on reducing truncation errors"),
)  # fmt: skip
