"""Recording what a device computes for the experiments' claims, and comparing it with what the lab says.

Recording needs numpy and torch alone, so that it runs from a bare source tree on any machine with a GPU::

    python -m fplab record --out DIR
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import experiments
from ..errors import LabError, unknown
from ..hardware import environment, records
from ..hardware.cases import Arrays, Case
from ..hardware.records import Record, RecordedCase
from . import load
from .base import Evidence, Outcome, Status, Tick, absent, failed, passed, same_bits
from .figures import params_of, size_name
from .table import STAND_IN, Row

NO_RECORD = "no record for this hardware"


def silent(fraction: float, text: str) -> None:
    """A tick that shows nothing."""


def known(names: Sequence[str] | None) -> list[str]:
    """The names asked for, in the order of the ladder, or all; an unknown one is an error before anything runs."""
    for name in names or ():
        if name not in experiments.NAMES:
            raise unknown("experiment", name, experiments.NAMES)
    return [name for name in experiments.NAMES if not names or name in names]


def cases_of(name: str, size: str) -> tuple[Case, ...]:
    """The GPU cases of an experiment at its "quick" or "full" size; their names must be unique."""
    experiment = load(name)
    cases = tuple(experiment.gpu_cases(params_of(experiment, size == "full")))
    names = [case.name for case in cases]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise LabError(f"experiment {name!r} has several GPU cases called {', '.join(map(repr, twice))}.")
    return cases


# --- recording --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """What was recorded of one experiment: the record and its files with their sizes in bytes."""

    record: Record
    files: tuple[tuple[Path, int], ...]


def record(
    out: Path, device: str = "cuda", names: Sequence[str] | None = None, quick: bool = True, tick: Tick = silent
) -> list[Recording]:
    """Compute the GPU cases of the experiments on a device and write a record of each experiment into ``out``.

    A case that fails there is recorded as failed, with its message, and the others go on. ``device``: "cuda",
    "cuda:N", or "cpu" as a stand-in. Raises :class:`LabError` where there is no such device.
    """
    names = known(names)
    where, size = environment.describe(device), size_name(not quick)
    done = []
    for i, name in enumerate(names):

        def part(fraction: float, text: str, i: int = i, name: str = name) -> None:
            tick((i + fraction) / len(names), f"{name}: {text}")

        one = record_one(name, where, size, device, part)
        done.append(Recording(one, tuple(records.save(out, one))))
    return done


def record_one(name: str, where: Mapping[str, Any], size: str, device: str, tick: Tick = silent) -> Record:
    """The record of one experiment on a device that ``where`` describes."""
    meta = {**where, "experiment": name, "size": size}
    try:
        cases = cases_of(name, size)
    except Exception as error:
        return Record(meta, (), {"cases": _message(error)})
    done, problems = [], {}
    for i, case in enumerate(cases):
        tick(i / len(cases), case.name)
        try:
            done.append(compute(case, device))
        except Exception as error:
            problems[case.name] = _message(error)
    return Record(meta, tuple(done), problems)


def compute(case: Case, device: str) -> RecordedCase:
    """Do one case on a device; the outputs must be the ones whose formats the case names, as unsigned integers."""
    inputs = case.inputs()
    outputs = case.compute({name: array.copy() for name, array in inputs.items()}, device)
    if set(outputs) != set(case.formats):
        raise LabError(f"it computed {sorted(outputs)} and names formats of {sorted(case.formats)}.")
    for name, array in {**inputs, **outputs}.items():
        if array.dtype.kind != "u":
            raise LabError(f"{name!r} is {array.dtype}; inputs and outputs of a case are bits: unsigned integers.")
    return RecordedCase(case.name, inputs, outputs, dict(case.formats))


def _message(error: Exception) -> str:
    """An error as one line: a compiler's or CUDA's message can have hundreds."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}"


# --- verifying --------------------------------------------------------------------------------------------------


def compare(case: Case, done: RecordedCase, meta: Mapping[str, Any]) -> Outcome:
    """What a device computed against what the lab says, bit by bit, from the inputs that the device had."""
    try:
        wanted = case.emulate({name: array.copy() for name, array in done.inputs.items()}, meta)
        return _same(done.outputs, wanted, done.formats)
    except Exception as error:
        return failed(f"the emulation raised {_message(error)}")


def _same(got: Arrays, wanted: Arrays, formats: Mapping[str, str]) -> Outcome:
    """Compare every output of a case; the first that differs decides."""
    results = 0
    for name, fmt in formats.items():
        if name not in wanted:
            return failed(f"the emulation has no output {name!r}")
        outcome = same_bits(got[name], wanted[name], fmt)
        if outcome.status is not Status.PASS:
            return failed(f"{name} (device against lab): {outcome.detail}")
        results += got[name].size
    return passed(f"{results:,} results, every bit")


def evidence_of(kind: str, live: bool) -> str:
    """What a comparison is evidence of. A CPU stands in for a GPU and is never counted as one."""
    if kind != "cuda":
        return STAND_IN
    return str((Evidence.LIVE_GPU if live else Evidence.RECORDED_GPU).value)


@dataclass(frozen=True)
class Evidenced:
    """One case of one record, compared. ``device`` is empty where nothing was recorded."""

    row: Row
    device: str

    def as_json(self) -> dict[str, str]:
        """The row and its device as plain JSON values."""
        return {**self.row.as_json(), "device": self.device}


def verify(
    folders: Sequence[Path] = (), live: bool = False, device: str = "cuda", tick: Tick = silent
) -> list[Evidenced]:
    """Compare every record in the folders with the emulation, case by case; without folders, the package's own.

    With ``live``, the cases are also computed on ``device`` now. Every experiment that no GPU record covers has a row
    that says so; a record that is damaged or foreign is a failure with the reason.
    """
    paths = [path for folder in folders or (records.FOLDER,) for path in records.records_in(folder)]
    found: list[Evidenced] = []
    covered = set()
    for i, path in enumerate(paths):
        tick(i / (len(paths) + live), path.name)
        try:
            one = records.read(path)
        except LabError as error:
            row = Row("records", path.name, Evidence.RECORDED_GPU.value, failed(str(error)))
            found.append(Evidenced(row, ""))
            continue
        if one.on_gpu and one.cases:
            covered.add(one.experiment)
        found += verify_record(one)
    for name in experiments.NAMES:
        if name not in covered:
            row = Row(name, "every GPU case", Evidence.RECORDED_GPU.value, absent(NO_RECORD))
            found.append(Evidenced(row, ""))
    if live:
        found += verify_live(device, tick=lambda f, text: tick((len(paths) + f) / (len(paths) + 1), text))
    order = {name: i for i, name in enumerate(experiments.NAMES)}
    return sorted(found, key=lambda e: order.get(e.row.experiment, -1))


def verify_record(one: Record, live: bool = False) -> list[Evidenced]:
    """Compare every case of one record; ``live``: it was made just now."""
    name, evidence = one.experiment, evidence_of(one.meta["kind"], live)

    def row(case: str, outcome: Outcome) -> Evidenced:
        return Evidenced(Row(name, case, evidence, outcome), one.where)

    if name not in experiments.NAMES:
        return [row("every case", absent(f"there is no experiment {name!r} in this version ({one.where})"))]
    try:
        cases = {case.name: case for case in cases_of(name, one.meta["size"])}
    except Exception as error:
        return [row("every case", failed(f"the experiment's cases raised {_message(error)} ({one.where})"))]
    rows = []
    for done in one.cases:
        case = cases.get(done.name)
        outcome = absent("the experiment has no such case any more") if case is None else compare(case, done, one.meta)
        rows.append(row(done.name, outcome))
    return rows + [row(step, absent(f"failed on the device: {message}")) for step, message in one.failed.items()]


def verify_live(
    device: str = "cuda", names: Sequence[str] | None = None, size: str = "quick", tick: Tick = silent
) -> Iterator[Evidenced]:
    """Compute the cases on a device that is present and compare; rows that say so where there is none."""
    names = known(names)
    try:
        where = environment.describe(device)
    except LabError as error:
        if device == "cpu":
            raise
        for name in names:
            row = Row(name, "every GPU case", Evidence.LIVE_GPU.value, absent(str(error).split(";")[0]))
            yield Evidenced(row, "")
        return
    for i, name in enumerate(names):
        tick(i / len(names), f"{name} on {where['device']}")
        yield from verify_record(record_one(name, where, size, device), live=True)
