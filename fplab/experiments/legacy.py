"""Experiments that are not yet one file: their module's parts as an :class:`~fplab.experiments.base.Experiment`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..hardware.cases import Arrays
from . import base, wording
from .base import Claim, Evidence, Experiment, Outcome, Tick


@dataclass(frozen=True)
class Check:
    """A claim and what it is checked against. ``check(arrays, params)`` gives the outcome."""

    claim: str
    evidence: Evidence
    check: Any


@dataclass(frozen=True)
class Legacy:
    """Arrays by name, and the parameters that they were made with."""

    params: Any
    arrays: Arrays


def experiment_of(name: str, module: Any) -> Experiment:
    """The record of a module that has TITLE, QUESTION, BUDGET, Params, QUICK, CHECKS and the functions."""
    digested = tuple(module.DIGESTED)

    class Old(Experiment):
        def digested(self) -> tuple[str, ...]:
            return digested

    def run(params: Any, tick: Tick) -> Legacy:
        return Legacy(params, module.run(params, tick))

    def test(check: Check, result: Legacy) -> Outcome:
        outcome: Outcome = check.check(result.arrays, result.params)
        return replace(outcome, detail=wording.found(name, str(outcome.detail)))

    return Old(
        wording.title(name, module.TITLE), wording.question(name, module.QUESTION), module.BUDGET, module.Params(),
        module.QUICK, Legacy, run, lambda result: module.table(result.arrays, result.params),
        [Claim(c.claim, c.evidence, wording.claim(name, c.claim), partial(test, c)) for c in module.CHECKS],
        (lambda result: module.plot(result.arrays, result.params),), module.gpu_cases,
        getattr(module, "animation", None),
    )  # fmt: skip


def array_of(result: Any, name: str) -> Any:
    """An array of a result by its name; None where there is none."""
    return result.arrays.get(name) if isinstance(result, Legacy) else base.array_of(result, name)
