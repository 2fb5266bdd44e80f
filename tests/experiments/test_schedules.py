"""The experiment on schedules."""

import numpy as np

from experiments.frame import Mutant, changed, frame
from fplab.experiments import schedules

TINY = schedules.Params(accumulated=4, images=2, rows=8, width=64, networks=2)


MUTANTS = (
    Mutant("GPipe under every name", ("bubbles", "in_flight"), "timeline",
           lambda good: lambda name, stages, micro, chunks=1: good("gpipe", stages, micro), params=TINY),
    Mutant("bytes of another schedule", ("calculated",), change=changed("activations", lambda x: x[::-1])),
    Mutant("chunks of another schedule", ("in_flight", "calculated"), change=changed("in_flight", lambda x: x[::-1])),
    Mutant("BF16 under the name of FP32", ("accumulators",), change=changed("errors", lambda x: x[:, ::-1])),
    Mutant("sums kept in FP32", ("accumulators", "chain"), "accumulate",
           lambda good: lambda parts, fmt, rounding: good(parts, "fp32", "rne"), params=TINY),
    Mutant("no slice at all", ("splitting", "shorter_chains"), change=lambda r: {
        "products": np.repeat(r.products[:, :1], r.products.shape[1], axis=1)}),
    Mutant("slices in another order", ("shorter_chains",), change=changed("products", lambda x: x[:, ::-1])),
)  # fmt: skip

globals().update(frame(schedules, schedules.QUICK, MUTANTS))
