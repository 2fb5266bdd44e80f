"""The experiments on collectives, schedules and real runs: claims, GPU cases, and that their checks can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from experiment_frame import computed_on_cpu, holds

from fplab import experiments
from fplab.experiments import collectives, data_parallel, schedules
from fplab.experiments.base import Status
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
    holds(check, runs[name], MODULES[name].QUICK)


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
        computed_on_cpu(case)


@pytest.mark.parametrize("name", MODULES)
def test_table_and_figure(runs, name: str) -> None:
    from fplab.draw.style import themed

    one = MODULES[name]
    columns = one.table(runs[name], one.QUICK)
    assert len({len(column) for column in columns.values()}) == 1
    with themed("dark"):
        assert one.plot(runs[name], one.QUICK).get_axes()
    assert all(array in runs[name] for array in one.DIGESTED)


def test_the_full_size_adds_in_every_way() -> None:
    """Three algorithms by ten wires, and one that sums directly; the quick size computes those that are drawn."""
    every = {(one.algorithm, one.wire) for one in collectives.Params().curves}
    assert len(every) == len(collectives.Params().curves) == 31
    small = collectives.Params(ranks=(2, 8), elements=16, shares=2, images=2, steps=2, scales=-18)
    arrays = collectives.run(small, lambda _done, _text: None)
    assert arrays["errors"].shape == (31, 2)
    assert len(collectives.table(arrays, small)["wire"]) == 62
    assert collectives.QUICK.curves == small.curves[:10]


def test_the_steps_move(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Every message of six collectives flies from its source's row to its target's; the end stays where none moves."""
    from fplab.experiments.collectives.figure import shown
    from fplab.experiments.figures import write_figures

    files = write_figures(tmp_path, "collectives", collectives, runs["collectives"], collectives.QUICK, lambda *_: None)
    assert files[-1] == tmp_path / "collectives.steps.svg"
    drawing = ElementTree.parse(files[-1]).getroot()
    parts = {name: list(drawing.iter(f"{{http://www.w3.org/2000/svg}}{name}")) for name in ("g", "rect", "animate")}
    ways = [(m.source, m.target) for line in shown() for one in line for step in one[0].steps for m in step]
    flights = [[one.get("values", "").split(";") for one in rect if one.get("attributeName") == "y"]
               for rect in parts["rect"] if rect.get("class") == "message"]  # fmt: skip
    assert [(int(a) // 32 - 1, int(d) // 32 - 1) for ((a, _, _, d),) in flights] == ways
    frames = [group for group in parts["g"] if group.get("visibility") is not None]
    assert [group.get("visibility") for group in frames].count("visible") == 6
    assert len(frames) == sum(len(one[0].steps) + 1 for line in shown() for one in line)
    for animate in parts["animate"]:
        keys = [float(key) for key in animate.get("keyTimes", "").split(";")]
        assert keys == sorted(set(keys))
        assert keys[0] == 0
        assert keys[-1] <= 1
        assert len(keys) == len(animate.get("values", "").split(";"))


def test_one_overflow_stops_all_or_one() -> None:
    """Rank 1's FP16 gradient is infinite; the others' are 8, 16 and 24 at scales of 8."""
    halves = np.array([[8.0], [np.inf], [16.0], [24.0]], np.float32)
    scales = np.full(4, 8, np.float32)
    over, mean = _reduced(halves, scales, "together")
    assert over.tolist() == [True] * 4
    over, mean = _reduced(halves, scales, "alone")
    assert over.tolist() == [False, True, False, False]
    assert mean.tolist() == [1.5]
