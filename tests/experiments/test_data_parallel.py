"""The experiment on real parallel runs."""

from __future__ import annotations

from typing import Any

from experiments.frame import Mutant, frame
from fplab.experiments import data_parallel

TINY = data_parallel.Params(strategies=("ddp",), ranks=3, steps=1, batch=9)


def scaled(name: str, factor: float) -> Any:
    return lambda result: {name: getattr(result, name) * factor}


def drifted(result: Any) -> Any:
    distance = result.distance.copy()
    distance[1, 1] += 1e-5
    return {"distance": distance}


MUTANTS = (
    Mutant("gloo's order reversed", ("same_bits",), "fplab.parallel.gloo._taken",
           lambda good: lambda chunk, hop, ranks: good(chunk, ranks - 1 - hop, ranks), params=TINY),
    Mutant("bytes of another strategy", ("held_bytes",), change=lambda result: {"held": result.held[::-1]}),
    Mutant("messages counted twice", ("messages",), change=scaled("sent", 2)),
    Mutant("one strategy's weights 1e-5 away", ("whole_batch",), change=drifted),
    Mutant("losses of another run", ("whole_batch",), change=scaled("losses", 1.001)),
)  # fmt: skip

globals().update(frame(data_parallel, data_parallel.QUICK, MUTANTS))
