"""The experiment on trainers and rollouts."""

from experiments.frame import Mutant, changed, frame
from fplab.experiments import rollout_gap

MUTANTS = (
    Mutant("BF16 under the name of FP16", ("fp16_remedy",), change=changed("gaps", lambda x: x[:, [0, 0, 2, 3, 4]])),
    Mutant("a rollout in BF16 under the name of FP8", ("fp8_is_further", "head_kept"),
           change=changed("gaps", lambda x: x[:, [0, 1, 0, 3, 4]])),
    Mutant("half a gap", ("no_remedy_for_fp8",), change=changed("gaps", lambda x: x * [1, 1, 1, 0.5, 1])),
    Mutant("the head in FP8 all the same", ("head_kept",), change=changed("gaps", lambda x: x[:, [0, 1, 2, 3, 2]])),
    Mutant("a layer that is left out", ("explained",), change=changed("alone", lambda x: x * (x != x.max()))),
    Mutant("layers under each other's names", ("explained",), change=changed("names", lambda x: x[::-1])),
)  # fmt: skip

globals().update(frame(rollout_gap, rollout_gap.QUICK, MUTANTS))
