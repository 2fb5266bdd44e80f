"""The experiment on schedules: claims, a mutant for each, GPU cases, drawings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiment_frame import Mutant, computed_on_cpu, drawn, frame, kills

from fplab.experiments import schedules
from fplab.hardware.cases import Arrays

QUICK = schedules.QUICK
TINY = schedules.Params(accumulated=4, images=2, rows=8, width=64, networks=2)

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(schedules, QUICK)


def swapped(name: str, axis: int = 0) -> Any:
    return lambda arrays: {name: np.flip(arrays[name], axis)}


def always_gpipe(good: Any) -> Any:
    return lambda name, stages, micro, chunks=1: good("gpipe", stages, micro)


def exact_sums(good: Any) -> Any:
    """Running sums kept in FP32, whatever the format."""
    return lambda parts, fmt, rounding: good(parts, "fp32", "rne")


MUTANTS = (
    Mutant("GPipe under every name", ("bubbles are", "the timelines hold"), "data.timeline", always_gpipe, params=TINY),
    Mutant("bytes of another schedule", ("the calculator's",), change=swapped("activations")),
    Mutant("chunks of another schedule", ("the timelines hold", "the calculator's"), change=swapped("in_flight")),
    Mutant("BF16 under the name of FP32", ("a BF16 accumulator",), change=swapped("errors", 1)),
    Mutant("sums kept in FP32", ("the 16-bit sums",), "checks.accumulate", exact_sums, params=TINY),
    Mutant("sums drawn that are kept in FP32", ("a BF16 accumulator",), "data.accumulate", exact_sums, params=TINY),
    Mutant("no slice at all", ("splitting k", "in an H100's"), change=lambda a: {
        "products": np.repeat(a["products"][:, :1], a["products"].shape[1], axis=1)}),
    Mutant("slices in another order", ("in an H100's",), change=swapped("products", 1)),
)  # fmt: skip

test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(schedules, QUICK, MUTANTS)


def test_its_gpu_cases_hold_on_the_cpu() -> None:
    for case in schedules.gpu_cases(QUICK):
        computed_on_cpu(case)


def test_table_and_figure(arrays: Arrays, tmp_path: Path) -> None:
    assert len({len(column) for column in schedules.table(arrays, QUICK).values()}) == 1
    assert drawn(schedules, arrays, QUICK, "dark", tmp_path)[1] > 30_000
