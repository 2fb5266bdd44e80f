"""Every experiment has the parts that ``frame`` lists, GPU cases and a budget; it imports where little is installed."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from fplab import experiments, formats
from fplab.experiments.frame import Experiment
from fplab.experiments.outcomes import Claim, Evidence
from fplab.hardware.cases import Case

SOURCE = Path(__file__).resolve().parent.parent
ALLOWED = 8.0  # seconds of one quick run
ALL = 150.0  # seconds of all of them


@pytest.fixture(params=experiments.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_has_every_part(name: str) -> None:
    one = experiments.load(name)
    assert isinstance(one, Experiment)
    assert importlib.import_module(f"fplab.experiments.{name}").__doc__
    assert one.question.en.endswith("?")
    for params in (one.full, one.quick):
        assert type(params).__dataclass_params__.frozen
        assert type(params) is type(one.full)
    assert len(set(one.digested())) == len(one.digested())
    if isinstance(one.cases, str):
        assert one.cases.endswith("."), "a sentence says why a GPU has nothing to say"


def test_its_claims_are_distinct_and_have_evidence(name: str) -> None:
    claims = experiments.load(name).claims
    assert claims
    assert all(isinstance(claim, Claim) for claim in claims)
    assert len({claim.id for claim in claims}) == len({claim.text.en for claim in claims}) == len(claims)
    # the frame itself adds the rows about GPUs, from cases
    own = {Evidence.LIVE} if experiments.load(name).on == "cpu" else set()  # what the machine itself says
    assert not {claim.evidence for claim in claims} & {Evidence.RECORDED, Evidence.LIVE} - own


@pytest.mark.parametrize("full", [False, True], ids=["quick", "full"])
def test_a_gpu_can_be_asked_about_it(name: str, full: bool) -> None:
    one = experiments.load(name)
    cases = one.asks(one.full if full else one.quick)
    assert bool(cases) == callable(one.cases)
    assert all(isinstance(case, Case) for case in cases)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        assert case.formats
        assert all(fmt.startswith("bits") or formats.get(fmt) for fmt in case.formats.values())


def test_the_inputs_of_its_cases_are_bits_and_the_same_each_time(name: str) -> None:
    one = experiments.load(name)
    for case in one.asks(one.quick):
        first, second = case.inputs(), case.inputs()
        assert first.keys() == second.keys()
        for key, array in first.items():
            assert array.dtype.kind == "u", f"{case.name}: {key} is {array.dtype}"
            assert array.dtype == second[key].dtype
            assert (array == second[key]).all()


def test_its_parameters_survive_a_manifest(name: str) -> None:
    import json

    from fplab.experiments.figures import restore

    one = experiments.load(name)
    for params in (one.quick, one.full):
        assert restore(one, json.loads(json.dumps(dataclasses.asdict(params)))) == params


def test_every_budget_and_their_sum_is_kept() -> None:
    budgets = {name: experiments.load(name).budget for name in experiments.NAMES}
    assert all(0 < seconds <= ALLOWED for seconds in budgets.values()), budgets
    assert sum(budgets[name] for name in experiments.LADDER) <= ALL, budgets  # others join when they get their place


def test_every_module_of_the_folder_is_an_experiment_or_the_frame() -> None:
    frame = {
        "__init__", "chain_bounds", "figures", "findings", "frame", "long_products", "lost_updates", "one_file",
        "outcomes", "panels", "progress", "quantities", "recorder", "runner", "statistics", "table", "uptodate",
    }  # fmt: skip
    there = {path.stem for path in (SOURCE / "fplab" / "experiments").glob("[!_]*") if path.suffix in ("", ".py")}
    assert there - frame - {"__init__"} == set(experiments.NAMES)


def test_its_claims_kill_mutants(name: str) -> None:
    """The module that tests it says so of every claim (``frame``)."""
    path = Path(__file__).parent / "experiments" / f"test_{name}.py"
    assert path.exists(), (
        f"{name} has no mutants: they are written in tests/experiments/{path.name}, as its neighbours'"
    )
    assert re.search(rf"\bframe\({name},", path.read_text(encoding="utf-8"))
