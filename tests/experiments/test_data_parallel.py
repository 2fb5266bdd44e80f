"""The experiment on real parallel runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from experiments.frame import Mutant, frame
from fplab import parallel
from fplab.experiments import data_parallel


@pytest.fixture(autouse=True, scope="module")
def launched_once() -> Iterator[None]:
    """The mutants are of what one process computes, and of what is read from the runs: the runs are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "launch", functools.cache(parallel.launch))
        yield


MUTANTS = (
    Mutant("gloo's order reversed", ("same_bits",), "fplab.parallel.gloo._taken",
           lambda good: lambda chunk, hop, ranks: good(chunk, ranks - 1 - hop, ranks)),
    Mutant("parameters that every rank is said to keep", ("held_bytes", "messages"), "STAGES",
           lambda good: {**good, "zero3": 2}),
    Mutant("one process with another rate", ("same_bits", "whole_batch"), "fplab.parallel.reference.adamw",
           lambda good: lambda parameters, rate: good(parameters, 1.01 * rate)),
    Mutant("one process on other batches", ("whole_batch",), "fplab.parallel.reference.whole",
           lambda good: lambda setting: good(replace(setting, seed=1))),
)  # fmt: skip

globals().update(frame(data_parallel, data_parallel.E.quick, MUTANTS))
