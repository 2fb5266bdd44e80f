"""The experiment on schedules."""

from typing import Any

import numpy as np

from experiments.frame import Mutant, changed, frame
from fplab.experiments import schedules

TINY = schedules.Params(accumulated=4, images=2, rows=8, width=64, networks=2)


def always_gpipe(good: Any) -> Any:
    return lambda name, stages, micro, chunks=1: good("gpipe", stages, micro)


def exact_sums(good: Any) -> Any:
    """Running sums kept in FP32, whatever the format."""
    return lambda parts, fmt, rounding: good(parts, "fp32", "rne")


MUTANTS = (
    Mutant("GPipe under every name", ("bubbles", "in_flight"), "timeline", always_gpipe, params=TINY),
    Mutant("bytes of another schedule", ("calculated",), change=changed("activations", lambda x: x[::-1])),
    Mutant("chunks of another schedule", ("in_flight", "calculated"), change=changed("in_flight", lambda x: x[::-1])),
    Mutant("BF16 under the name of FP32", ("accumulators",), change=changed("errors", lambda x: x[:, ::-1])),
    Mutant("sums kept in FP32", ("accumulators", "chain"), "accumulate", exact_sums, params=TINY),
    Mutant("no slice at all", ("splitting", "shorter_chains"), change=lambda r: {
        "products": np.repeat(r.products[:, :1], r.products.shape[1], axis=1)}),
    Mutant("slices in another order", ("shorter_chains",), change=changed("products", lambda x: x[:, ::-1])),
)  # fmt: skip

globals().update(frame(schedules, schedules.QUICK, MUTANTS))
