"""The experiment on real parallel runs: claims, a mutant for each, its GPU case, drawings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiment_frame import Mutant, computed_on_cpu, drawn, frame, kills

from fplab.experiments import data_parallel
from fplab.hardware.cases import Arrays

QUICK = data_parallel.QUICK
TINY = data_parallel.Params(strategies=("ddp",), ranks=3, steps=1, batch=9)

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(data_parallel, QUICK)


def swapped(name: str) -> Any:
    """Strategies in another order."""
    return lambda arrays: {name: arrays[name][::-1]}


def scaled(name: str, factor: float) -> Any:
    return lambda arrays: {name: arrays[name] * factor}


def drifted(arrays: Arrays) -> Arrays:
    arrays["distance"][1, 1] += 1e-5
    return arrays


MUTANTS = (
    Mutant("gloo's order reversed", ("every strategy ends",), "fplab.parallel.gloo._taken",
           lambda good: lambda chunk, hop, ranks: good(chunk, ranks - 1 - hop, ranks), params=TINY),
    Mutant("bytes of another strategy", ("every rank holds",), change=swapped("held")),
    Mutant("messages counted twice", ("ZeRO's messages",), change=scaled("sent", 2)),
    Mutant("one strategy's weights 1e-5 away", ("training on the whole",), change=drifted),
    Mutant("losses of another run", ("training on the whole",), change=scaled("losses", 1.001)),
)  # fmt: skip

test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(data_parallel, QUICK, MUTANTS)


def test_its_gpu_case_holds_on_the_cpu() -> None:
    (case,) = data_parallel.gpu_cases(QUICK)
    computed_on_cpu(case)


def test_table_and_figure(arrays: Arrays, tmp_path: Path) -> None:
    assert len({len(column) for column in data_parallel.table(arrays, QUICK).values()}) == 1
    assert drawn(data_parallel, arrays, QUICK, "dark", tmp_path)[1] > 30_000
