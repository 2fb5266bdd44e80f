"""Chapter 8: master weights and optimizers."""

from typing import Any

import numpy as np

from ...words import NOTHING, say
from ..base import Exercise
from ..kinds import Floats, Lists, Several
from ..shown import of_float
from ..tasks import Chapter, Find, Implement, Judgement, Mutant, Predict, edited

CHAPTER = Chapter(8, "optimizers", say("Master weights and optimizers"))


def saved_by_rounding(value: tuple[Any, ...]) -> Judgement:
    """Whether a weight is at least 2048 times its update, and the update counts all the same."""
    w, u = value
    half = Floats("fp16", finite=True)
    if not (half.has(w) and half.has(u)) or w <= 0 or u <= 0:
        return Judgement(False, says=say("w and u must be positive FP16 numbers."))
    if w < 2048 * u:
        return Judgement(False, says=say("w / u is below 2048."))
    total = float(np.float16(w) + np.float16(u))
    lines = (("w", of_float(w, "fp16")), ("w + u", of_float(total, "fp16")))
    return Judgement(total != w, lines, say("The update is lost: w + u is w."))


def with_master(w, updates):  # type: ignore[no-untyped-def]
    """The sum is kept in FP32; FP16 sees only a copy of it."""
    import numpy as np

    master = np.float32(w)
    for u in updates:
        master = master - np.float32(u)
    return float(np.float16(master))


EXERCISES = (
    Exercise("stalled_weight", CHAPTER, 1, Predict(1.0, Floats("bf16"), say("1: every step rounds 1.003 back to 1")),
             (Mutant(1.296875, say("That is the whole sum rounded once: what an FP32 master copy would give."),
                     "1.296875"),
              Mutant(1.3, say("1.3 is the exact sum, and no BF16 number."), "no value of bf16"),
              Mutant(1.78125, say("There every update is rounded up to a whole spacing; it rounds to the nearer end."),
                     "1.78125")),
             "Micikevicius et al. 2018, arXiv 1710.03740, 3.1"),
    Exercise("vanishing_variance", CHAPTER, 2, Predict(2.0**-8, Floats("fp32"), say("0.001 * 2**-16 < 2**-25")),
             (Mutant(2.0**-7, say("There v is just above 2^-24."), "0.0078125"),
              Mutant(2.0**-13, say("That is where g² itself becomes 0; 0.001 · g² does so much earlier."), "2^-13"),
              Mutant(2.0**-9, say("A larger gradient is lost, too."), "2^-9"))),
    Exercise("beyond_2048", CHAPTER, 2,
             Find(Several((Floats("fp16"), Floats("fp16")), ("w", "u")), saved_by_rounding, (1.5, 1.5 / 2048),
                  say("w + u ≠ w with w ≥ 2048 u"),
                  say("at 1.5 half a spacing is 2^-11, and u = 1.5 · 2^-11 is above it")),
             (Mutant((1.0, 2.0**-11), NOTHING, "The update is lost"),
              Mutant((1.0, 0.25), NOTHING, "below 2048"),
              Mutant((1.0, 0.1), NOTHING, "positive FP16 numbers")),
             "Micikevicius et al. 2018, arXiv 1710.03740, 3.1"),
    Exercise("with_master", CHAPTER, 2,
             Implement(with_master,
                       {"w": Floats("fp16", finite=True, low=2.0**-6, high=16.0),
                        "updates": Lists(Floats("fp32", finite=True, low=2.0**-20, high=1.0), 0, 10)},
                       Floats("fp16"),
                       cases=((1.0, (-(2.0**-12),) * 6), (1.0, (-(2.0**-11) - 2.0**-23,)),
                              (1.0, (2.0**-12, 2.0**-14, 2.0**-14)),
                              (16.0, (-(2.0**-7), -(2.0**-20))))),
             (Mutant(edited(with_master, "np.float32(w)", "np.float16(w)", "np.float32(u)", "np.float16(u)"),
                     say("The weight is kept in FP16: small updates are lost one by one."), "updates"),
              Mutant(edited(with_master, "master - np.float32(u)", "np.float32(np.float16(master - np.float32(u)))"),
                     say("The rounded copy is written back into the master after each update."), "updates"),
              Mutant(edited(with_master, "np.float32(u)", "np.float32(np.float16(u))"),
                     say("The updates are rounded to FP16 before they are applied."), "updates"),
              Mutant(edited(with_master, "np.float32(w)", "w", "np.float32(u)", "u"),
                     say("Python's floats keep 53 bits: the master copy has FP32's 24, and rounds at every update."),
                     "updates")),
             "Micikevicius et al. 2018, arXiv 1710.03740, 3.1"),
)  # fmt: skip
