"""Chapter 11: memory."""

from ...words import say
from ..base import Exercise
from ..kinds import Integers, Options
from ..tasks import Chapter, Implement, Mutant, Predict, edited

CHAPTER = Chapter(11, "memory", say("Memory"))


def zero_bytes(parameters, ranks, stage):  # type: ignore[no-untyped-def]
    """2 bytes of weights, 2 of gradients, 12 of FP32 states; each stage shards one more of them."""
    weights, gradients, states = 2 * parameters, 2 * parameters, 12 * parameters
    if stage >= 1:
        states //= ranks
    if stage >= 2:
        gradients //= ranks
    if stage >= 3:
        weights //= ranks
    return weights + gradients + states


def activation_bytes(s, b, h, a, recompute):  # type: ignore[no-untyped-def]
    """A transformer layer in 16 bits: everything, without the attention's core, or its input alone."""
    if recompute == "full":
        return 2 * s * b * h
    core = 5 * a * s * s * b if recompute == "none" else 0
    return 34 * s * b * h + core


SMALL = Integers(1, 64, origin=1)
EXERCISES = (
    Exercise("bloom_cards", CHAPTER, 1, Predict(5, Integers(0, 1000), say("176e9 * 2 / 80e9 = 4.4")),
             (Mutant(4, say("Four hold 320 of 352 GB."), "4"),
              Mutant(8, say("Eight are used to run it; the weights alone need fewer."), "8"),
              Mutant(9, say("That is FP32, four bytes a parameter."), "9"),
              Mutant(36, say("36 hold 16 bytes a parameter: training with Adam."), "36"))),
    Exercise("zero_bytes", CHAPTER, 2,
             Implement(zero_bytes,
                       {"parameters": Integers(0, 960), "ranks": Integers(1, 16, origin=1), "stage": Integers(0, 3)},
                       Integers(0, 10**6), cases=((12, 4, 0), (12, 4, 1), (12, 4, 2), (12, 4, 3)), random=400,
                       valid=lambda parameters, ranks, stage: parameters % ranks == 0),
             (Mutant(lambda p, n, s: 16 * p // n if s else 16 * p, say("Stage 1 shards the states alone."), "stage"),
              Mutant(lambda p, n, s: zero_bytes(p, n, s) - 4 * p // (n if s else 1),
                     say("The FP32 master weights are states, too: 12 bytes, not 8."), "stage"),
              Mutant(lambda p, n, s: zero_bytes(p, n, min(s, 2)), say("Stage 3 shards the weights as well."), "stage")),
             "Rajbhandari et al. 2020, arXiv 1910.02054, figure 1"),
    Exercise("activation_bytes", CHAPTER, 3,
             Implement(activation_bytes,
                       {"s": SMALL,
                        "b": SMALL,
                        "h": SMALL,
                        "a": SMALL,
                        "recompute": Options(("none", "selective", "full"))},
                       Integers(0, 10**9)),
             (Mutant(edited(activation_bytes, "a * s * s * b", "a * s * b"),
                     say("Attention's matrices are s by s."), "s "),
              Mutant(edited(activation_bytes, "5 * a", "4 * a"),
                     say("Per score: two softmax tensors of 2 bytes and a mask of 1."), "none"),
              Mutant(edited(activation_bytes, "34 * s", "32 * s"),
                     say("The two dropout masks, s b h bytes each, are missing."), "none"),
              Mutant(edited(activation_bytes, "return 2 * s", "return s"),
                     say("A number in 16 bits takes two bytes."), "full")),
             "Korthikanti et al. 2022, arXiv 2205.05198, section 4"),
)  # fmt: skip
