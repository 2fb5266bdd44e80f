"""Recording what a device computes for the experiments' claims, and comparing it with what the lab says.

Recording needs numpy and torch alone, so that it runs from a bare source tree on any machine with a GPU::

    python -m fplab record --out DIR
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import experiments
from ..columns import harmless
from ..errors import LabError, unknown
from ..hardware import corpus, environment, records, suite
from ..hardware.cases import Arrays, Case, Emulate, NotHereError
from ..hardware.profiling import kernel_names
from ..hardware.records import Record, RecordedCase
from ..words import CLAUSE, NOTHING, Text, joined, mark, say
from . import load
from .figures import params_of, size_name
from .outcomes import Evidence, Outcome, Status, absent, differs, failed, passed, same_bits
from .progress import Tick, silent
from .table import STAND_IN, Row

mark("no CUDA device is present")  # what an error says, of which a row says the first clause
EVERY_GPU_CASE, EVERY_CASE = say("every GPU case"), say("every case")
# What a device that is there for minutes is asked first: instructions alone, products through torch, their order, and
# a run to its last bit.
FIRST = ("mma", "wgmma", "scalar", "products", "orders", "trajectory")
KERNELS_UNTIL = 200  # seconds of a recording after which the names of kernels are no longer asked for


def known(names: Sequence[str] | None) -> list[str]:
    """The names asked for, in the order of the ladder, or all; an unknown one is an error before anything runs."""
    return _chosen(names, experiments.NAMES)


def recorded_names() -> tuple[str, ...]:
    """All of which records are made: the experiments, and the parts of the hardware suite."""
    return (*experiments.NAMES, *suite.NAMES)


def known_to_record(names: Sequence[str] | None) -> list[str]:
    """As :func:`known`, for experiments and parts of the hardware suite, what is most worth having first.

    Of all, without those that have no cases and say why.
    """
    chosen = [name for name in _chosen(names, recorded_names()) if names or _asks_a_gpu(name)]
    return sorted(chosen, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def _asks_a_gpu(name: str) -> bool:
    """Whether an experiment has cases, or does not load, which its record says; parts of the suite have."""
    try:
        return name in suite.NAMES or not isinstance(load(name).cases, str)
    except Exception:
        return True


def _chosen(names: Sequence[str] | None, every: Sequence[str]) -> list[str]:
    for name in names or ():
        if name not in every:
            raise unknown("experiment", name, every)
    return [name for name in every if not names or name in names]


def cases_of(name: str, size: str) -> tuple[Case, ...]:
    """The GPU cases of an experiment at its "quick" or "full" size, or of a part of the hardware suite.

    Their names must be unique.
    """
    if name in suite.NAMES:
        cases = suite.cases(name)
    else:
        experiment = load(name)
        cases = experiment.asks(params_of(experiment, size == "full"))
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
    out: Path, device: str = "cuda", names: Sequence[str] | None = None, quick: bool = True, tick: Tick = silent,
    resume: bool = False,
) -> list[Recording]:  # fmt: skip
    """Compute GPU cases on a device and write a record of each experiment and part of the suite into ``out``.

    ``names``: experiments and parts of :data:`fplab.hardware.suite.NAMES`; all unless given. A case that fails there is
    recorded as failed, with its message, and the others go on; where one breaks the CUDA context, a new process does
    the names that are left. ``device``: "cuda", "cuda:N", "mps", or "cpu" as a stand-in. ``resume``: what ``out`` has
    of this device already is kept, and the others are done. Raises :class:`LabError` where there is no such device.
    """
    names = known_to_record(names)
    about, size, start = environment.describe(device), size_name(not quick), time.perf_counter()
    done: list[Recording] = []
    for i, name in enumerate(names):

        def part(fraction: float, text: str, i: int = i, name: str = name) -> None:
            tick((i + fraction) / len(names), f"{name}: {text}")

        if resume and (kept := kept_in(out, {**about, "experiment": name, "size": size})) and is_whole(kept.record):
            done.append(kept)
            continue
        recording = record_one(name, about, size, device, part)
        done.append(Recording(recording, tuple(records.save(out, recording))))
        if i + 1 < len(names) and not usable(device):
            tick((i + 1) / len(names), "the CUDA context is lost; a new process goes on")
            return done + _elsewhere(out, device, names[i + 1 :], quick, about, size)
    spent = time.perf_counter() - start
    return _with_all_kernels(out, device, done, spent, tick) if device.startswith("cuda") else done


def _with_all_kernels(out: Path, device: str, done: list[Recording], spent: float, tick: Tick) -> list[Recording]:
    """The recordings, written again with the names of kernels: last, since a profiler can take a process down."""
    recorded, start = [], time.perf_counter()
    for part in done:
        name = part.record.experiment
        in_time = spent + time.perf_counter() - start < KERNELS_UNTIL
        if part.record.cases and in_time and (name not in suite.NAMES or name in suite.PROFILED) and usable(device):
            tick(0.99, f"names of kernels: {name}")
            record = with_kernels(part.record, device)
            part = Recording(record, tuple(records.save(out, record)))
        recorded.append(part)
    return recorded


def record_one(name: str, about: Mapping[str, Any], size: str, device: str, tick: Tick = silent) -> Record:
    """The record of one experiment, or part of the suite, on a device that ``about`` describes."""
    meta = {**about, "experiment": name, "size": size}
    try:
        cases = cases_of(name, size)
    except Exception as error:
        return Record(meta, (), {"cases": _message(error)})
    done, problems, not_here = [], {}, {}
    for i, case in enumerate(cases):
        tick(i / len(cases), case.name)
        try:
            done.append(compute(case, device))
        except NotHereError as error:
            not_here[case.name] = str(error)
        except ModuleNotFoundError as error:
            if device != "cpu" or error.name != "numba":
                problems[case.name] = _message(error)
            else:
                not_here[case.name] = "numba is missing, with which the CPU stands in for a Tensor Core."
        except Exception as error:
            problems[case.name] = _message(error)
            if not usable(device):
                left = f"not run: {case.name!r} broke the CUDA context"
                problems |= {other.name: left for other in cases[i + 1 :]}
                break
    if not_here:
        meta["not here"] = not_here
    if name in suite.NAMES:
        meta["seeds"] = suite.GENERATOR
        if usable(device):
            tick(0.95, "times")
            meta |= suite.measurements(name, device)
    return Record(meta, tuple(done), problems)


def usable(device: str) -> bool:
    """Whether the device still computes: an illegal access or instruction ends a process's use of a GPU."""
    if device == "cpu":
        return True
    torch = environment.torch_for(device)
    try:
        environment.synchronize(device)
        return bool(torch.ones(2, device=device).sum().item() == 2)
    except (RuntimeError, AssertionError):  # the second where this torch has no CUDA
        return False


def with_kernels(record: Record, device: str) -> Record:
    """The record with the names of the kernels that each of its cases ran, in ``meta["kernels"]``."""
    cases = {case.name: case for case in cases_of(record.experiment, record.meta["size"])}
    kernels: dict[str, Any] = {}
    for done in record.cases:
        given = {name: array.copy() for name, array in suite.shortened(record.experiment, done.inputs).items()}
        try:
            kernels[done.name] = kernel_names(partial(cases[done.name].compute, given, device), device)
        except Exception as error:  # a profiler that does not work here costs no result
            kernels["failed"] = _message(error)
            break
    return replace(record, meta={**record.meta, "kernels": kernels})


def _elsewhere(
    out: Path, device: str, names: Sequence[str], quick: bool, about: Mapping[str, Any], size: str
) -> list[Recording]:
    """Record in a new process, and read what it wrote."""
    source = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "fplab", "record", "--out", str(out), "--device", device, *names]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
    ran = subprocess.run([*command, *([] if quick else ["--full"])], env=environ, capture_output=True, text=True)
    done = []
    for name in names:
        meta = {**about, "experiment": name, "size": size}
        kept = kept_in(out, meta)
        if kept is None:
            detail = " ".join((ran.stderr or ran.stdout).split())[-300:]
            record = Record(meta, (), {"process": f"the process that went on ended with {ran.returncode}: {detail}"})
            kept = Recording(record, tuple(records.save(out, record)))
        done.append(kept)
    return done


def kept_in(out: Path, meta: Mapping[str, Any]) -> Recording | None:
    """What a folder has of an experiment on a device, all parts; None where there is nothing of this size."""
    stem = records.filename(meta).removesuffix(".npz")
    files = [path for path in sorted(out.glob("*.npz")) if re.fullmatch(re.escape(stem) + r"(--\d+)?", path.stem)]
    try:
        parts = [records.read(path) for path in files]
    except LabError:  # damaged: it is made again
        return None
    if not parts or any(part.meta["size"] != meta["size"] for part in parts):
        return None
    cases = tuple(case for part in parts for case in part.cases)
    return Recording(
        Record(parts[0].meta, cases, parts[0].failed), tuple((path, path.stat().st_size) for path in files)
    )


def is_whole(record: Record) -> bool:
    """Whether every case was tried: a recording can be killed between two of its files."""
    tried = {case.name for case in record.cases} | {*record.failed} | {*record.meta.get("not here", {})}
    return "cases" in tried or {case.name for case in cases_of(record.experiment, record.meta["size"])} <= tried


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
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


# --- verifying --------------------------------------------------------------------------------------------------
def compare(case: Case, done: RecordedCase, meta: Mapping[str, Any]) -> Outcome:
    """What a device computed against what the lab says, bit by bit, from the inputs that the device had.

    Where something differs, the case's hypotheses are tried. A case that asks an open question is answered where one
    of them agrees in every bit, and fails where none of them does. It differs without an explanation where there is
    none to try; what the lab has no model of at all is absent. Open questions are about GPUs: a CPU that stands in
    for one and does it in a way of its own neither answers nor contradicts.
    """
    try:
        wanted = _emulated(case.emulate, done, meta)
        lacking = [name for name in done.formats if name not in wanted]
        if lacking and not case.open:
            return failed(say("the emulation has no output {name!r}", name=lacking[0]))
        differing, results = _differing(done, wanted)
        if not differing:
            return passed(say("{n:,} results, every bit", n=results))
        tried = {name: _tried(emulate, done, meta) for name, emulate in case.hypotheses.items()}
        answers = {name: _answer(done.outputs[name], done.formats[name], name, tried) for name in differing}
    except Exception as error:
        return failed(say("the emulation raised {error}", error=_message(error)))
    text = joined([how.fill(answer=answers[name][1]) for name, how in differing.items()], CLAUSE)
    if not case.open:
        return failed(text)
    left = {name for name, (outputs, _) in answers.items() if not outputs}
    if not left:
        return passed(say("open question, answered: {question} {text}", question=case.open, text=text))
    if meta["kind"] == "cpu":
        return absent(say("open, and no GPU was asked: {question} {text}", question=case.open, text=text))
    if meta["kind"] == "cuda" and any(name in arrays for name in left for arrays in tried.values()):
        return failed(say("open, and no hypothesis agrees: {question} {text}", question=case.open, text=text))
    still = say("open: {question} {text}", question=case.open, text=text)
    return (differs if left & wanted.keys() else absent)(still)


def _emulated(emulate: Emulate, done: RecordedCase, meta: Mapping[str, Any]) -> Arrays:
    return emulate({name: array.copy() for name, array in done.inputs.items()}, meta)


def _differing(done: RecordedCase, wanted: Arrays) -> tuple[dict[str, Text], int]:
    """The outputs that differ from what is wanted or are not modelled, each with how, and how many were compared."""
    differing: dict[str, Text] = {}
    results = 0
    for name, fmt in done.formats.items():
        if name not in wanted:
            differing[name] = say("{name}:{answer}", name=name)
            continue
        outcome = same_bits(done.outputs[name], wanted[name], fmt)
        results += done.outputs[name].size
        if outcome.status is not Status.PASS:
            differing[name] = say("{name} (device against lab): {found}{answer}", name=name, found=outcome.detail)
    return differing, results


def _tried(emulate: Emulate, done: RecordedCase, meta: Mapping[str, Any]) -> Arrays:
    """What a hypothesis gives; nothing where it cannot be computed for this device."""
    try:
        return _emulated(emulate, done, meta)
    except LabError:
        return {}


def _answer(got: np.ndarray, fmt: str, output: str, tried: Mapping[str, Arrays]) -> tuple[bool, Text]:
    """Whether a hypothesis agrees with an output in every bit, and which do, or which comes nearest."""
    agree: list[str] = []
    nearest: Text = NOTHING
    fewest = got.size
    for name, arrays in tried.items():
        given = arrays.get(output)
        if given is None or given.shape != got.shape:
            continue
        if same_bits(got, given, fmt).status is Status.PASS:
            agree.append(name)
        elif (wrong := int((got != given).sum())) < fewest:
            fewest, nearest = (
                wrong,
                say(" nearest is {name!r}, {n:,} of {all:,} differ", name=name, n=wrong, all=got.size),
            )
    if agree:
        return True, say(" as {names}", names=joined(map(repr, agree), say(" and ")))
    return False, nearest


def evidence_of(record: Record, live: bool) -> str:
    """What a comparison is evidence of. A CPU stands in for a GPU and is never counted as one."""
    if not record.is_evidence:
        return STAND_IN
    return str((Evidence.LIVE if live else Evidence.RECORDED).value)


@dataclass(frozen=True)
class Evidenced:
    """One case of one record, compared. ``device`` is empty where nothing was recorded."""

    row: Row
    device: str

    def as_json(self) -> dict[str, str]:
        """The row and its device as plain JSON values."""
        return {**self.row.as_json(), "device": self.device}


def verify(
    folders: Sequence[Path] = (), live: bool = False, device: str = "cuda", tick: Tick = silent,
    data_set: Path | None = None,
) -> list[Evidenced]:  # fmt: skip
    """Compare every record in the folders with the emulation, case by case; without folders, the package's own.

    With ``live``, the cases are also computed on ``device`` now; with ``data_set``, the folder of a copy of "MATLAB
    Tensor & Matrix Core models", every cell of it is compared, too. Without folders, or where
    they hold none, every experiment that no GPU record covers has a row that says so. A record that is damaged or
    foreign is a failure with the reason. That a record is whole proves nothing about who made it: where it comes from
    a stranger, so does what it says of its device.
    """
    compared = [] if data_set is None else [_of_cell(cell) for cell in corpus.verify(data_set)]
    paths = [path for folder in folders or records.folders() for path in records.records_in(folder)]
    covered = set()
    for i, path in enumerate(paths):
        name = harmless(path.name, " ")
        tick(i / (len(paths) + live), name)
        try:
            record = records.read(path)
        except LabError as error:
            row = Row("records", name, Evidence.RECORDED.value, failed(str(error)))
            compared.append(Evidenced(row, ""))
            continue
        if record.is_evidence and record.cases:
            covered.add(record.experiment)
        compared += verify_record(record)
    for name in () if folders and paths else recorded_names():
        if name not in covered:
            row = Row(name, EVERY_GPU_CASE, Evidence.RECORDED.value, absent(say("no record for this hardware")))
            compared.append(Evidenced(row, ""))
    if live:
        compared += verify_live(device, tick=lambda f, text: tick((len(paths) + f) / (len(paths) + 1), text))
    order = {name: i for i, name in enumerate(recorded_names())}
    return sorted(compared, key=lambda e: order.get(e.row.experiment, -1))


def _of_cell(outcome: corpus.Outcome) -> Evidenced:
    """A cell of the public data set, compared."""
    ended = failed(str(outcome)) if outcome.wrong else passed(say("{n:,} results, every bit", n=outcome.rows))
    return Evidenced(Row("MATLAB-tensor-core", outcome.cell.name, Evidence.RECORDED.value, ended), outcome.cell.gpu)


def verify_record(record: Record, live: bool = False) -> list[Evidenced]:
    """Compare every case of one record; ``live``: it was made just now."""
    name, evidence = record.experiment, evidence_of(record, live)

    def row(case: str | Text, outcome: Outcome) -> Evidenced:
        return Evidenced(Row(name, case, evidence, outcome), record.where)

    if name not in recorded_names():
        unknown_here = say("there is no experiment {name!r} in this version ({where})", name=name, where=record.where)
        return [row(EVERY_CASE, absent(unknown_here))]
    try:
        cases = {case.name: case for case in cases_of(name, record.meta["size"])}
    except Exception as error:
        raised = say("the experiment's cases raised {error} ({where})", error=_message(error), where=record.where)
        return [row(EVERY_CASE, failed(raised))]
    rows = []
    for done in record.cases:
        case = cases.get(done.name)
        lacking = absent(say("the experiment has no such case any more"))
        rows.append(row(done.name, lacking if case is None else compare(case, done, record.meta)))
    broken = say("failed on the device: {message}")
    return rows + [row(step, absent(broken.fill(message=message))) for step, message in record.failed.items()]


def verify_live(
    device: str = "cuda", names: Sequence[str] | None = None, size: str = "quick", tick: Tick = silent
) -> Iterator[Evidenced]:
    """Compute the cases on a device that is present and compare; rows that say so where there is none."""
    names = known_to_record(names)
    try:
        about = environment.describe(device)
    except LabError as error:
        if device == "cpu":
            raise
        for name in names:
            why = say(str(error).split(";")[0])
            yield Evidenced(Row(name, EVERY_GPU_CASE, Evidence.LIVE.value, absent(why)), "")
        return
    for i, name in enumerate(names):
        tick(i / len(names), f"{name} on {about['device']}")
        yield from verify_record(record_one(name, about, size, device), live=True)
