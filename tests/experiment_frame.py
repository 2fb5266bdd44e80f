"""What the tests of every experiment begin and end with: a small run, its claims, its drawing, its cases.

A test module names its experiment and the size that it runs::

    arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(underflow, SMALL)

``arrays`` is then a fixture of that module, and the two tests are the module's own.
"""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fplab import experiments
from fplab.experiments import recorder
from fplab.experiments.base import Evidence, Status, same_bits
from fplab.experiments.legacy import Check
from fplab.hardware.cases import Arrays, Case
from fplab.hardware.records import RecordedCase


def frame(experiment: Any, params: Any, checks: Sequence[Check] | None = None, absent: str | None = None) -> Any:
    """The fixture that runs an experiment once a module, and the tests of its name and of its claims, one a claim.

    ``checks``: the claims that hold at this size, all by default. ``absent``: see :func:`holds`.
    """

    @pytest.fixture(scope="module")
    def arrays() -> Arrays:
        return experiment.run(params, lambda share, text: None)

    def test_it_is_loaded_by_its_name() -> None:
        assert experiments.load(name_of(experiment)).quick == experiment.QUICK

    @pytest.mark.parametrize("check", experiment.CHECKS if checks is None else checks, ids=lambda check: check.claim)
    def test_every_claim_holds(check: Check, arrays: Arrays) -> None:
        holds(check, arrays, params, absent)

    return arrays, test_it_is_loaded_by_its_name, test_every_claim_holds


@dataclass(frozen=True)
class Mutant:
    """A fault in a computation, and the claims that it must turn to FAIL, each named by how it begins.

    ``target``: the name in whose place something else is put, written "module.name" below the experiment's package or
    "fplab.module.name"; ``fault``: from what stands there makes the faulty one. Then the experiment is run again, and
    its claims are checked with the fault in place. Or, where running again is dear, ``change``: from the arrays of the
    good run makes those that the fault would have given. ``params``: a size of its own.
    """

    name: str
    kills: tuple[str, ...]
    target: str = ""
    fault: Callable[[Any], Any] | None = None
    change: Callable[[Arrays], Arrays] | None = None
    params: Any = None


def kills(experiment: Any, params: Any, mutants: Sequence[Mutant], spared: Sequence[str] = ()) -> Any:
    """Two tests of a module that has the fixture ``arrays``: every mutant is killed, and every claim kills one.

    ``spared``: how the claims begin that need what this machine lacks. ::

        test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(underflow, SMALL, MUTANTS)
    """

    @pytest.mark.parametrize("mutant", mutants, ids=lambda mutant: mutant.name)
    def test_a_mutant_is_killed(mutant: Mutant, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
        size = params if mutant.params is None else mutant.params
        if mutant.target:
            inside = not mutant.target.startswith("fplab.")
            target = f"{experiment.__name__}.{mutant.target}" if inside else mutant.target
            module = pkgutil.resolve_name(target.rpartition(".")[0])
            name = target.rpartition(".")[2]
            monkeypatch.setattr(module, name, mutant.fault(getattr(module, name)))
            faulty = experiment.run(size, lambda share, text: None)
        else:
            faulty = {**arrays, **mutant.change({name: array.copy() for name, array in arrays.items()})}
        for claim in mutant.kills:
            failing(claim_of(experiment, claim), faulty, size)

    def test_every_claim_kills_a_mutant() -> None:
        killing = {claim_of(experiment, claim).claim for mutant in mutants for claim in mutant.kills}
        spare = {claim_of(experiment, claim).claim for claim in spared}
        assert not killing & spare
        assert killing | spare == {check.claim for check in experiment.CHECKS}

    return test_a_mutant_is_killed, test_every_claim_kills_a_mutant


def claim_of(experiment: Any, beginning: str) -> Check:
    """The one claim of an experiment that begins so."""
    (found,) = [check for check in experiment.CHECKS if check.claim.startswith(beginning)]
    return found


def name_of(experiment: Any) -> str:
    """The name of an experiment's module."""
    return str(experiment.__name__).rpartition(".")[2]


def holds(check: Check, arrays: Arrays, params: Any, absent: str | None = None) -> None:
    """A claim passes and says what was compared; what may be missing here (``absent``, a pattern) skips."""
    outcome = check.check(arrays, params)
    assert outcome.detail, check.claim
    if absent is not None and outcome.status is Status.ABSENT and re.search(absent, str(outcome.detail)):
        pytest.skip(outcome.detail)
    assert outcome.status is Status.PASS, f"{check.claim}: {outcome.detail}"
    assert (outcome.sample is not None) == (check.evidence is Evidence.MEASURED), f"{check.claim}: {outcome.sample}"


def failing(check: Any, arrays: Arrays, params: Any) -> str:
    """What a claim, or the function that checks it, says of arrays on which it must fail."""
    outcome = (check.check if isinstance(check, Check) else check)(arrays, params)
    assert outcome.status is Status.FAIL, outcome
    assert outcome.detail
    return str(outcome.detail)


def repeats(experiment: Any, arrays: Arrays, params: Any) -> None:
    """Another run gives the same names, and of what is digested the same bits."""
    again = experiment.run(params, lambda share, text: None)
    assert set(experiment.DIGESTED) <= again.keys() == arrays.keys()
    for name in experiment.DIGESTED:
        assert np.array_equal(again[name], arrays[name]), name


def drawn(experiment: Any, arrays: Arrays, params: Any, theme: str, folder: Path) -> tuple[Any, int]:
    """The figure of an experiment in one theme, and the bytes of its SVG, written into ``folder``."""
    from fplab.draw.style import save, themed

    path = folder / f"{name_of(experiment)}.{theme}.svg"
    with themed(theme):
        figure = experiment.plot(arrays, params)
        save(figure, path, theme)
    return figure, path.stat().st_size


def computed_on_cpu(case: Case, nan_equal: bool = False) -> Arrays:
    """What torch computes for a case on this CPU, which is what the lab emulates: every output, dtype and bit.

    ``nan_equal``: the bits of a NaN do not count.
    """
    from torch import __version__ as torch

    inputs = case.inputs()
    got, want = case.compute(inputs, "cpu"), case.emulate(inputs, {"kind": "cpu", "torch": torch})
    assert got.keys() == want.keys() == case.formats.keys(), case.name
    for name, fmt in case.formats.items():
        assert got[name].dtype == want[name].dtype, (case.name, name)
        outcome = same_bits(got[name], want[name], fmt, nan_equal)
        assert outcome.status is Status.PASS, (case.name, name, str(outcome.detail))
    return got


H100 = {"kind": "cuda", "device": "NVIDIA H100 80GB HBM3", "capability": "9.0", "torch": "2.11.0", "size": "quick"}


def forged(case: Case, meta: Any = H100, spared: Sequence[str] = ()) -> None:
    """A record of a GPU that gave what the lab knows passes; one with shuffled outputs, or a bit turned, does not.

    What the lab knows of an output is its model, or where it has none the first hypothesis that gives it. ``spared``:
    outputs of which it knows nothing.
    """
    inputs, known = case.inputs(), {}
    for emulate in (case.emulate, *case.hypotheses.values()):
        for name, array in emulate({key: value.copy() for key, value in inputs.items()}, meta).items():
            known.setdefault(name, array)
        if known.keys() == case.formats.keys():
            break
    assert known.keys() == case.formats.keys() - set(spared), case.name
    unknown = {name: np.zeros(1, np.uint8) for name in spared}

    def ended(outputs: Arrays) -> Status:
        done = RecordedCase(case.name, inputs, outputs | unknown, dict(case.formats))
        return recorder.compare(case, done, meta).status

    assert spared or ended(known) is Status.PASS, case.name
    order = np.random.default_rng(5)
    for name, array in known.items():
        flipped = (array ^ np.where(np.arange(array.size) == at, 1, 0).astype(array.dtype).reshape(array.shape)
                   for at in range(array.size // 2, array.size))  # fmt: skip
        fakes = [next(fake for fake in flipped if same_bits(fake, array, case.formats[name]).status is Status.FAIL)]
        if np.unique(array).size > 1:
            fakes.append(order.permuted(array.ravel()).reshape(array.shape))
        for fake in fakes:
            assert ended({**known, name: fake}) in (Status.FAIL, Status.DIFFERS), (case.name, name)


def compute_with_little_installed(experiment: Any, params: str = "QUICK") -> None:
    """Every case is computed in a process that has numpy and torch, and neither numba, matplotlib nor ml_dtypes.

    ``params``: the size, as an expression over the experiment's names.
    """
    code = (
        "import sys\n"
        "for name in ('numba', 'matplotlib', 'ml_dtypes'): sys.modules[name] = None\n"
        f"import {experiment.__name__} as experiment\n"
        "from fplab.experiments import load\n"
        f"for case in load({name_of(experiment)!r}).asks(experiment.{params}): case.compute(case.inputs(), 'cpu')\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
