"""The experiment on one sequence alone and in a batch."""

from dataclasses import replace

from experiments.frame import EMULATED, Mutant, frame, record
from fplab.experiments import batch_invariance
from fplab.experiments.batch_invariance import FIXED, PLANS, RULE
from fplab.tensorcore import Plan, PlanByRows

QUICK = batch_invariance.E.quick
TINY = replace(QUICK, width=32, steps=2, networks=2)
THREE = PlanByRows(((16, FIXED), (64, Plan(split_k=2))))
AGAIN = ("trained",)

MUTANTS = (
    Mutant("the rule in the place of one plan", ("fixed",), "PLANS",
           lambda good: dict.fromkeys(PLANS, RULE), params=TINY),
    Mutant("one plan in the place of the rule", ("by_rule", "hidden", "eight_bits", "probabilities"), "PLANS",
           lambda good: dict.fromkeys(PLANS, FIXED), reuse=AGAIN),
    Mutant("another plan for four sequences", ("by_rule",), "PLANS", lambda good: {**good, "by the rule": THREE},
           params=TINY),
    Mutant("sums of BF16 products cut as E4M3's", ("hidden", "eight_bits"), EMULATED,
           record("H100", "bf16", alignment_bits=13, kept_bits=13), reuse=AGAIN),
    Mutant("sums of E4M3 products that are not cut", ("eight_bits", "probabilities"), EMULATED,
           record("H100", "e4m3", alignment_bits=25, kept_bits=23), reuse=AGAIN),
    Mutant("sums of E4M3 products cut to seven bits", ("spreading",), EMULATED,
           record("H100", "e4m3", kept_bits=7), reuse=AGAIN),
)  # fmt: skip

globals().update(frame(batch_invariance, QUICK, MUTANTS))
