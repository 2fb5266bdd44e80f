"""Chapter 7: underflow and loss scaling."""

from ...words import say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists, Options, Several
from ..tasks import Chapter, Implement, Mutant, Predict, edited

CHAPTER = Chapter(7, "underflow", say("Underflow and loss scaling"))
SCALES = Floats("fp32", finite=True, low=1.0, high=2.0**127, signed=False, edges=(65536.0, 2.0**126, 2.0**127))


def choose_scale(counts):  # type: ignore[no-untyped-def]
    """The highest binade that is not empty decides."""
    filled = [i for i, count in enumerate(counts) if count > 0]
    return 15 + 32 - (filled[-1] + 1) if filled else 0


def grad_scaler(scale, good, found_inf, interval):  # type: ignore[no-untyped-def]
    """Back off by half at once; grow by two after so many good steps in a row, unless that is infinite."""
    if found_inf:
        return scale * 0.5, 0
    good += 1
    if good == interval:
        return scale * 2.0 if scale < 2.0**127 else scale, 0
    return scale, good


EXERCISES = (
    Exercise("flushed_gradient", CHAPTER, 1,
             Predict(2.0**-25, Floats("fp32"), say("2**-25, a tie that goes to the even 0")),
             (Mutant(2.0**-24, say("2^-24 is an FP16 number, the smallest."), "2^-24"),
              Mutant(2.0**-14, say("2^-14 is the smallest normal number; there are subnormals below it."), "2^-14"),
              Mutant(2.0**-26, say("Larger numbers than 2^-26 are lost, too."), "2^-26"))),
    Exercise("order_of_a_step", CHAPTER, 1,
             Predict("b", Options(("a", "b", "c")), say("scaler.unscale_(optimizer), clip_grad_norm_, scaler.step")),
             (Mutant("a", say("The threshold would then be S times too small."), "a"),
              Mutant("c", say("An infinite gradient would already be in the weights."), "c")),
             "Micikevicius et al. 2018, arXiv 1710.03740, 3.2"),
    Exercise("choose_scale", CHAPTER, 2,
             Implement(choose_scale, {"counts": Lists(Integers(0, 50), 0, 48)}, Integers(-100, 100)),
             (Mutant(edited(choose_scale, "filled[-1] + 1", "len(counts)"),
                     say("An empty binade at the end counts for nothing."), "counts"),
              Mutant(edited(choose_scale, "(filled[-1] + 1)", "filled[-1]"),
                     say("One too many: the binade reaches up to 2^(i−31)."), "47"),
              Mutant(edited(choose_scale, "filled[-1]", "filled[0]"),
                     say("The largest gradients overflow, not the smallest."), "counts"),
              Mutant(edited(choose_scale, "filled[-1]", "counts.index(max(counts))"),
                     say("The fullest binade does not decide: a single large gradient overflows."), "counts"))),
    Exercise("grad_scaler", CHAPTER, 2,
             Implement(grad_scaler,
                       {"scale": SCALES,
                        "good": Integers(0, 5),
                        "found_inf": Options((False, True)),
                        "interval": Integers(1, 6)},
                       Several((Floats("fp32"), Integers(0, 6)), ("scale", "good")),
                       valid=lambda scale, good, found, interval: scale > 0 and good < interval),
             (Mutant(edited(grad_scaler, "good == interval", "good > interval"),
                     say("It grows one step late: the step that completes the interval counts."), "good"),
              Mutant(edited(grad_scaler, "scale * 0.5, 0", "scale * 0.5, good"),
                     say("A skipped step must set the count back to 0."), "True"),
              Mutant(edited(grad_scaler, "else scale, 0", "else scale, good"),
                     say("After growing, the count begins again at 0."), "good 1"),
              Mutant(edited(grad_scaler, "else scale, 0", "else float('inf'), 0"),
                     say("2^127 doubled is infinite in FP32: it must stay."), "inf")),
             "PyTorch, torch.amp.GradScaler"),
)  # fmt: skip
