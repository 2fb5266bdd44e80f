"""The experiment on schedules."""

from dataclasses import replace

from experiments.frame import Mutant, frame
from fplab.experiments import schedules

TINY = replace(schedules.E.quick, images=2, rows=8, width=64)
SLICED = replace(schedules.E.quick, accumulated=2, images=1)


MUTANTS = (
    Mutant("GPipe under every name", ("bubbles", "in_flight", "calculated"), "timeline",
           lambda good: lambda name, stages, micro, chunks=1: good("gpipe", stages, micro), params=TINY),
    Mutant("the calculator without interleaving", ("calculated",), "fplab.memory.estimate",
           lambda good: lambda model, schedule, chunks, **how: good(model, schedule="1f1b", **how), params=TINY),
    Mutant("sums kept in FP32", ("accumulators", "chain"), "accumulate",
           lambda good: lambda parts, fmt, rounding: good(parts, "fp32", "rne"), params=TINY),
    Mutant("sums rounded once at the end", ("accumulators", "chain"), "accumulate",
           lambda good: lambda parts, fmt, rounding: good(parts.sum(axis=0, keepdims=True), fmt, rounding),
           params=TINY),
    Mutant("no slice at all", ("splitting", "shorter_chains"), "fplab.tensorcore.Plan",
           lambda good: lambda split_k: good(), params=SLICED),
    Mutant("most slices where the fewest are due", ("shorter_chains",), "fplab.tensorcore.Plan",
           lambda good: lambda split_k: good(split_k=max(schedules.SPLITS) // split_k), params=SLICED),
)  # fmt: skip

globals().update(frame(schedules, schedules.E.quick, MUTANTS))
