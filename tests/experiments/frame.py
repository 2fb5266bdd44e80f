"""What the tests of every experiment begin and end with: a small run, its claims, its mutants, its files, its cases.

A test module names its experiment, the size that it runs, and the mutants::

    SMALL = schedules.Params(...)
    MUTANTS = (Mutant("GPipe under every name", ("bubbles",), "timeline", always_gpipe), ...)
    globals().update(frame(schedules, SMALL, MUTANTS))

It gets the fixture ``result``, and a test for each claim (it holds), each mutant (its claims fail), each GPU case (the
CPU gives the lab's bits; a forged record does not pass), for the table and the figures.
"""

import dataclasses
import functools
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figure_words import words_left
from gpu_cases import computed_on_cpu, forged

from fplab import experiments
from fplab.experiments.figures import array_of
from fplab.experiments.frame import Experiment
from fplab.experiments.outcomes import Claim, Evidence, Outcome, Status
from fplab.experiments.progress import silent
from fplab.hardware.cases import Case, NotHereError
from fplab.nn.emulation import context


@dataclass(frozen=True)
class Mutant:
    """A fault in a computation, and the ids of the claims that it must turn to FAIL.

    ``target``: the name in whose place something else is put: one of the experiment's module, of a class or a module
    in it, or "fplab.module.name";
    ``fault``: from what stands there makes the faulty one. Then the experiment is run again, at ``params`` if given,
    and its claims are tested with the fault in place. Without the fault, at these ``params``, the claims hold.
    ``reuse``: functions that the experiment keeps, such as its training, of which the good run's values serve.
    """

    name: str
    kills: tuple[str, ...]
    target: str
    fault: Callable[[Any], Any]
    params: Any = None
    reuse: tuple[str, ...] = ()

    def result(self, experiment: Experiment, good: Any) -> Any:
        """What the experiment finds at this mutant's parameters, with the fault in place or not."""
        faulty = experiment.result(self.params or good.params)
        faulty.params._kept.update({key: x for key, x in good.params._kept.items() if key[0] in self.reuse})
        return faulty


def frame(
    module: Any, params: Any, mutants: Sequence[Mutant], spared: Sequence[str] = (), absent: str | None = None,
    unforged: Sequence[str] = (), asked: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """The fixture and the tests of a module, by their names.

    ``spared``: ids of claims that need what this machine lacks, and kill nothing. ``absent``: a pattern of details for
    which a claim that is absent here skips. ``unforged``: outputs of cases of which the lab knows nothing. ``asked``:
    the size of the cases, where to forge records of ``params`` is dear.
    """
    experiment: Experiment = module.E

    @pytest.fixture(scope="module")
    def result() -> Any:
        return experiment.run(params, silent)

    def test_it_is_loaded_by_its_name() -> None:
        assert experiments.load(name_of(module)) is experiment

    @pytest.mark.parametrize("claim", experiment.claims, ids=lambda claim: claim.id)
    def test_a_claim_holds(claim: Claim, result: Any) -> None:
        holding(claim, result, absent)

    @pytest.mark.parametrize("mutant", mutants, ids=lambda mutant: mutant.name)
    def test_a_mutant_is_killed(mutant: Mutant, result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        home, name = place(module, mutant.target)
        monkeypatch.setattr(home, name, mutant.fault(getattr(home, name)))
        if mutant.target == EMULATED:  # which the settings of an emulation that were checked once know already
            monkeypatch.setattr(context, "_settings", functools.cache(context._settings.__wrapped__))
        faulty = mutant.result(experiment, result)
        for id in mutant.kills:
            failing(claim_of(experiment, id), faulty)

    def test_what_mutants_compute_holds_without_their_faults(result: Any) -> None:
        kills: dict[Any, set[str]] = {}
        for mutant in mutants:
            key = mutant.params, mutant.reuse
            kills.setdefault(key, set()).update(set(mutant.kills) - set(spared))
        for (params, reuse), ids in kills.items():
            good = Mutant("none", (), "", lambda good: good, params, reuse)
            found = good.result(experiment, result) if params else result
            for id in sorted(ids):
                holding(claim_of(experiment, id), found, absent)

    def test_every_claim_kills_a_mutant() -> None:
        killing = {id for mutant in mutants for id in mutant.kills}
        assert not killing & set(spared)
        claims = {claim.id for claim in experiment.claims}
        assert killing | set(spared) <= claims, f"there are mutants for {killing - claims}, and no such claims"
        assert not claims - killing - set(spared), f"no mutant kills {', '.join(sorted(claims - killing))}"

    @pytest.mark.parametrize("case", experiment.asks(asked or params), ids=lambda case: case.name)
    def test_a_gpu_case_holds_on_the_cpu_and_forged_it_fails(case: Case) -> None:
        if not case.open:  # which hardware is asked about; this CPU may have an answer of its own
            try:
                computed_on_cpu(case, nan_equal=True)
            except NotHereError as error:
                pytest.skip(str(error))
        forged(case, spared=[name for name in unforged if name in case.formats])

    def test_answer_table_and_figures(result: Any, tmp_path: Path) -> None:
        assert len({len(column) for column in experiment.rows(result).values()}) == 1
        in_chinese = experiment.title.zh != experiment.title.en  # whoever adds an experiment needs no other language
        answer = experiment.answered(result)
        assert answer is not None
        assert not in_chinese or answer.zh != answer.en
        for figure in drawn(experiment, result, tmp_path):
            assert not in_chinese or words_left(figure) == []

    return {name: value for name, value in locals().items() if name == "result" or name.startswith("test_")}


def name_of(module: Any) -> str:
    """The name of an experiment's module."""
    return str(module.__name__).rpartition(".")[2]


def place(module: Any, target: str) -> tuple[Any, str]:
    """Where a mutant's target stands: an object and the name of its attribute."""
    owner, _, name = target.rpartition(".")
    if target.startswith("fplab."):
        return pkgutil.resolve_name(owner), name
    return (pkgutil.resolve_name(f"{module.__name__}.{owner}") if owner else module), name


def claim_of(experiment: Any, id: str) -> Claim:
    """The claim of an id."""
    (claim,) = [claim for claim in experiment.claims if claim.id == id]
    return claim


def holding(claim: Claim, result: Any, absent: str | None = None) -> None:
    """A claim passes and says what was compared; ``absent``: for which details it skips where it is absent."""
    outcome = claim.test(result)
    assert str(outcome.detail), claim.id
    if absent is not None and outcome.status is Status.ABSENT and re.search(absent, str(outcome.detail)):
        pytest.skip(str(outcome.detail))
    assert outcome.status is Status.PASS, f"{claim.id}: {outcome.detail}"
    assert (outcome.sample is not None) == (claim.evidence is Evidence.MEASURED), claim.id


def failing(claim: Claim, faulty: Any) -> Outcome:
    """What a claim says of a result on which it must fail."""
    outcome = claim.test(faulty)
    assert outcome.status is Status.FAIL, f"{claim.id}: {outcome}"
    assert str(outcome.detail)
    return outcome


def drawn(experiment: Any, result: Any, folder: Path, theme: str = "dark") -> list[Any]:
    """Its figures in one theme, each written and of at most four panels."""
    from fplab.draw.style import save, themed

    figures = []
    for draw in experiment.figures:
        path = folder / f"{draw.__name__}.svg"
        with themed(theme):
            figures.append(draw(result))
            save(figures[-1], path, theme)
        assert path.stat().st_size > 5_000
        assert sum(ax.axison and ax.get_label() != "<colorbar>" for ax in figures[-1].axes) <= 4, draw.__name__
    return figures


def repeats(module: Any, result: Any) -> None:
    """Another run gives the same bits of what is digested."""
    again = module.E.run(result.params, silent)
    for name in module.E.digested():
        assert np.asarray(array_of(again, name)).tobytes() == np.asarray(array_of(result, name)).tobytes(), name


CELLS = "fplab.tensorcore.models._cells"  # where products look up a GPU's records
EMULATED = "fplab.nn.emulation.settings._model"  # where models' products do


def record(gpu: str, *inputs: str, **other: Any) -> Callable[[Any], Any]:
    """A fault in ``CELLS`` or ``EMULATED``: a GPU whose records of FP32 results have other fields.

    ``inputs``: of which formats. A record without a floor of exponents gets none.
    """

    def altered(one: Any) -> Any:
        if one.gpu != gpu or one.output != "fp32" or one.a not in inputs:
            return one
        fields = {name: value for name, value in other.items() if name != "floor" or one.floor is not None}
        return dataclasses.replace(one, **fields)

    def fault(find: Any) -> Any:
        def found(*asked: Any) -> Any:
            records = find(*asked)
            return tuple(map(altered, records)) if isinstance(records, tuple) else altered(records)

        return found

    return fault
