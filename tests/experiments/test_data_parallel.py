"""The experiment on real parallel runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from experiments.frame import Mutant, changed, frame
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
    Mutant("bytes of another strategy", ("held_bytes",), change=lambda result: {"held": result.held[::-1]}),
    Mutant("messages counted twice", ("messages",), change=changed("sent", lambda x: x * 2)),
    Mutant("weights 1e-5 away", ("whole_batch",), "fplab.experiments.data_parallel.of_strategy",
           lambda good: lambda one, plain: good(one, plain + np.float32(1e-5))),
    Mutant("losses of another run", ("whole_batch",), change=changed("losses", lambda x: x * 1.001)),
)  # fmt: skip

globals().update(frame(data_parallel, data_parallel.QUICK, MUTANTS))
