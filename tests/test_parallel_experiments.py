"""The experiments on collectives, schedules and real runs: claims, GPU cases, and that their checks can fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fplab import experiments
from fplab.experiments import collectives, data_parallel, schedules
from fplab.experiments.base import Status, same_bits
from fplab.experiments.collectives import checks as collectives_checks
from fplab.experiments.collectives.skipping import _reduced
from fplab.experiments.data_parallel import checks as data_parallel_checks
from fplab.experiments.schedules import checks as schedules_checks
from fplab.hardware.cases import Arrays

MODULES: dict[str, Any] = {"collectives": collectives, "schedules": schedules, "data_parallel": data_parallel}
CLAIMS = [(name, check) for name, one in MODULES.items() for check in one.CHECKS]


@pytest.fixture(scope="module")
def runs() -> dict[str, Arrays]:
    return {name: one.run(one.QUICK, lambda _done, _text: None) for name, one in MODULES.items()}


@pytest.mark.parametrize("name", MODULES)
def test_it_is_loaded_by_its_name(name: str) -> None:
    assert experiments.load(name) is MODULES[name]


@pytest.mark.parametrize(("name", "check"), CLAIMS, ids=[f"{n}: {c.claim[:40]}" for n, c in CLAIMS])
def test_every_claim_holds(runs, name: str, check) -> None:  # type: ignore[no-untyped-def]
    outcome = check.check(runs[name], MODULES[name].QUICK)
    assert outcome.status is Status.PASS, outcome.detail
    assert outcome.detail


def scaled(name: str, factor: float) -> Any:
    def change(arrays: Arrays) -> Arrays:
        return {**arrays, name: arrays[name] * factor}

    return change


def swapped(name: str) -> Any:
    return lambda arrays: {**arrays, name: arrays[name][::-1]}


@pytest.mark.parametrize(
    ("name", "check", "change"),
    [
        ("collectives", collectives_checks.check_bounds, scaled("errors", 100)),
        ("collectives", collectives_checks.check_depth, scaled("errors", 0)),
        ("collectives", collectives_checks.check_stagnation, scaled("biases", 0)),
        ("collectives", collectives_checks.check_gradients, scaled("gradient_errors", 0)),
        ("collectives", collectives_checks.check_averaging, swapped("fates")),
        ("collectives", collectives_checks.check_skipping, swapped("apart")),
        ("schedules", schedules_checks.check_in_flight, swapped("in_flight")),
        ("schedules", schedules_checks.check_memory, swapped("activations")),
        ("schedules", schedules_checks.check_accumulation, swapped("errors")),
        ("schedules", schedules_checks.check_split, scaled("products", 0)),
        ("schedules", schedules_checks.check_shorter, swapped("products")),
        ("data_parallel", data_parallel_checks.check_bytes, swapped("held")),
        ("data_parallel", data_parallel_checks.check_messages, scaled("sent", 2)),
        ("data_parallel", data_parallel_checks.check_bits, lambda a: {**a, "same_order": a["same_order"] + 1}),
        ("data_parallel", data_parallel_checks.check_whole, scaled("losses", 2)),
    ],
)
def test_its_checks_can_fail(runs, name: str, check, change) -> None:  # type: ignore[no-untyped-def]
    assert check(change(runs[name]), MODULES[name].QUICK).status is Status.FAIL


@pytest.mark.parametrize("name", MODULES)
def test_its_gpu_cases_hold_on_the_cpu(name: str) -> None:
    for case in MODULES[name].gpu_cases(MODULES[name].QUICK):
        given = case.inputs()
        done, wanted = case.compute(given, "cpu"), case.emulate(given, {"torch": "2.13"})
        for key, fmt in case.formats.items():
            outcome = same_bits(done[key], wanted[key], fmt)
            assert outcome.status is Status.PASS, (case.name, key, outcome.detail)


@pytest.mark.parametrize("name", MODULES)
def test_table_and_figure(runs, name: str) -> None:
    from fplab.plots.style import themed

    one = MODULES[name]
    columns = one.table(runs[name], one.QUICK)
    assert len({len(column) for column in columns.values()}) == 1
    with themed("dark"):
        assert one.plot(runs[name], one.QUICK).get_axes()
    assert all(array in runs[name] for array in one.DIGESTED)


def test_one_overflow_stops_all_or_one() -> None:
    """Rank 1's FP16 gradient is infinite; the others' are 8, 16 and 24 at scales of 8."""
    halves = np.array([[8.0], [np.inf], [16.0], [24.0]], np.float32)
    scales = np.full(4, 8, np.float32)
    over, mean = _reduced(halves, scales, "together")
    assert over.tolist() == [True] * 4
    over, mean = _reduced(halves, scales, "alone")
    assert over.tolist() == [False, True, False, False]
    assert mean.tolist() == [1.5]
