"""Running experiments: run, check the claims, compare with GPUs, draw; a failure is a row and the others go on."""

import gc
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

from ..errors import LabError, missing
from ..hardware import environment, records
from ..hardware.records import Record
from ..language import lang
from ..processes import in_processes
from ..words import CLAUSE, Text, joined, say
from . import figures, load
from .frame import Experiment
from .outcomes import Evidence, Outcome, Status, absent, failed, passed
from .progress import Tick, part_of, progress, several, silent
from .recorder import Evidenced, cases_of, known, verify_live, verify_record
from .table import WRONG, Row

CLAIM = say("the GPU cases give the very bits of the GPU")
OBJECTS = 500_000  # that a process makes between two searches for cycles: more than torch and matplotlib are made of
OF_CPUS = say("the units of recorded CPUs gave the lab's bits")
LOADS, RUNS = "the experiment can be loaded", "the experiment runs to its end"
DIED = say("its process, or one beside it, was ended: killed, or out of memory? Alone: fplab run {name}")


@dataclass(frozen=True)
class Finished:
    """One experiment that was run: its rows, the files it wrote and the seconds of one core that it took.

    Those of processes that it started count, and nothing does that others do on the machine. ``compiling``: the seconds
    that kernels took to compile, once on a machine; ``seconds`` does not count them. ``answer``: what it found, in a
    sentence, where it says that.
    """

    name: str
    rows: tuple[Row, ...]
    files: tuple[Path, ...]
    seconds: float
    budget: float | None
    compiling: float = 0.0
    title: Text | None = None
    question: Text | None = None
    answer: Text | None = None


def run_experiments(
    names: Sequence[str] | None = None, *, full: bool = False, out: Path | None = None, claims: bool = True,
    quiet: bool = False, recorded: Sequence[Path] | None = None, pictures: Sequence[str] = ("svg",), jobs: int = 1,
) -> Iterator[Finished]:  # fmt: skip
    """Run experiments, all unless named, and write their figures into ``out``; gives each as it ends.

    ``claims=False`` draws without checking. ``recorded``: folders of GPU records, the package's own by default.
    ``pictures``: how to draw, names of :data:`.figures.PICTURES`. ``jobs``: how many run side by side, each on one
    thread in a process of its own; with 1 they run here, one after the other.
    Raises :class:`LabError` for an unknown name before anything runs; what goes wrong later is a row that fails.
    """
    chosen = known(names)
    folder = figures.default_folder(full) if out is None else out
    kept, refused = gpu_records(recorded) if claims else ([], [])
    work = partial(run_one, full=full, folder=folder, gpu=kept if claims else None, pictures=pictures)
    if jobs > 1 and len(chosen) > 1:
        yield from _side_by_side(work, chosen, min(jobs, len(chosen)), quiet)
    else:
        for i, name in enumerate(chosen, start=1):
            with progress(f"[{i}/{len(chosen)}] {name}", quiet) as tick:
                done = work(name, tick)
            yield done
    if refused:
        yield Finished("records", tuple(refused), (), 0.0, None)


def _side_by_side(
    work: Callable[[str, Tick], Finished], names: Sequence[str], jobs: int, quiet: bool
) -> Iterator[Finished]:
    """Experiments in processes, as they end; those that take longest begin first, so that none is waited for alone."""
    names = sorted(names, key=_seconds, reverse=True)
    far = RawArray("d", len(names))  # memory of all processes, without a lock that one which is killed could keep

    def show(running: Sequence[str]) -> None:
        board.show({name: far[names.index(name)] for name in running})

    with (
        several(len(names), quiet) as board,
        closing(in_processes(partial(_told, work, names), names, jobs, partial(_settle, lang(), far), show)) as running,
    ):
        for name, future in running:
            done = _result(name, future)
            board.ended(name, done.seconds)
            yield done


def _seconds(name: str) -> float:
    """What an experiment may take; one that does not load is soon done."""
    try:
        return load(name).budget
    except Exception:
        return 0.0


_far: Any = None  # how far each experiment is, from 0 to 1; of a process of experiments


def _told(work: Callable[[str, Tick], Finished], names: Sequence[str], name: str) -> Finished:
    """Do the work, telling whoever shows it how far it is."""
    place = names.index(name)

    def tick(fraction: float, text: str) -> None:
        _far[place] = fraction

    return work(name, tick)


def _settle(language: str, far: Any) -> None:
    """What a process of experiments does first."""
    global _far
    _far = far
    lang(language)
    gc.set_threshold(OBJECTS)


def _result(name: str, future: Future[Finished]) -> Finished:
    """What an experiment's process gave; a row that fails where it gave nothing."""
    error = future.exception()
    if error is None:
        return future.result()
    why = DIED.fill(name=name) if isinstance(error, BrokenProcessPool) else f"{type(error).__name__}: {error}"
    return Finished(name, (Row(name, RUNS, Evidence.PROVED.value, failed(why)),), (), 0.0, None)


def run_one(
    name: str, tick: Tick = silent, *, full: bool, folder: Path, gpu: Sequence[Record] | None,
    pictures: Sequence[str] = ("svg",),
) -> Finished:  # fmt: skip
    """Run one experiment, check its claims (where ``gpu``, the records to compare with, is not None), and draw.

    Where claims are checked, figures that would be drawn the same are left; who asks for figures alone gets new ones.
    What raises is a row that fails. The seconds are those of the experiment: importing it and torch is not counted.
    """
    rows: list[Row] = []
    files: list[Path] = []
    budget: float | None = None
    about: dict[str, Text | None] = {}
    compiled = compile_clock()
    start, doing = cpu_seconds(), LOADS
    try:
        experiment = load(name)
        environment.warm_up()
        budget = None if full else experiment.budget
        start, doing = cpu_seconds(), RUNS
        params, size = figures.params_of(experiment, full), figures.size_name(full)
        about = {"title": experiment.title, "question": experiment.question}
        result = experiment.run(params, part_of(tick, 0.0, 0.7))
        about["answer"] = experiment.answered(result)
        if gpu is not None:
            rows += check_claims(name, experiment, result, part_of(tick, 0.7, 0.8))
            rows += gpu_rows(name, size, gpu, part_of(tick, 0.8, 0.85))
        doing = "its figures, table and manifest are written"
        left = part_of(tick, 0.85, 1.0)
        files += figures.write_outputs(folder, name, experiment, result, size, left, pictures, gpu is None)
    except Exception as error:
        rows.append(Row(name, doing, Evidence.PROVED.value, raised(error)))
    compiling = compiled()
    return Finished(name, tuple(rows), tuple(files), cpu_seconds() - start - compiling, budget, compiling, **about)


def cpu_seconds() -> float:
    """Seconds of cores that this process has used, with those of processes that it started and that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def compile_clock() -> Callable[[], float]:
    """Start a clock that counts while numba compiles; what it gives stops it and returns its seconds of a core."""
    try:
        from numba.core import event
    except ImportError:
        return lambda: 0.0

    class Clock(event.Listener):
        depth, seconds = 0, 0.0  # compiling a kernel compiles those that it calls

        def on_start(self, _: object) -> None:
            self.seconds -= 0.0 if self.depth else cpu_seconds()
            self.depth += 1

        def on_end(self, _: object) -> None:
            self.depth -= 1
            self.seconds += 0.0 if self.depth else cpu_seconds()

    clock = Clock()
    event.register("numba:compile", clock)

    def stop() -> float:
        event.unregister("numba:compile", clock)
        return clock.seconds

    return stop


def check_claims(name: str, experiment: Experiment, result: Any, tick: Tick) -> list[Row]:
    """Every claim of an experiment, as rows."""
    rows = []
    for i, claim in enumerate(experiment.claims):
        tick(i / len(experiment.claims), "claims")
        try:
            outcome = claim.test(result)
        except Exception as error:
            outcome = raised(error)
        rows.append(Row(name, claim.text, claim.evidence.value, outcome))
    return rows


def raised(error: Exception) -> Outcome:
    """A failure that says what was raised and where: in the innermost line that is no library's."""
    if isinstance(error, ModuleNotFoundError) and (lacks := missing(error.name)):
        return failed(str(lacks))
    frames, own = traceback.extract_tb(error.__traceback__), str(Path(__file__).parents[1])  # it may lie in a library's
    library = re.compile(r"<frozen|lib.python\d|site-packages")
    frame = [f for f in frames if f.filename.startswith(own) or not library.search(f.filename)][-1]
    return failed(f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})")


# --- GPUs -------------------------------------------------------------------------------------------------------
def gpu_records(folders: Sequence[Path] | None = None) -> tuple[list[Record], list[Row]]:
    """The GPU records in folders (the package's own by default), and a failing row for each file that is refused."""
    kept, refused = [], []
    for folder in records.folders() if folders is None else folders:
        for path in records.records_in(folder):
            try:
                record = records.read(path)
            except LabError as error:
                refused.append(Row("records", path.name, Evidence.RECORDED.value, failed(str(error))))
                continue
            if record.is_evidence:
                kept.append(record)
    return kept, refused


def gpu_rows(name: str, size: str, kept: Sequence[Record], tick: Tick) -> list[Row]:
    """Two rows: the GPU cases against every record there is, and against the GPU that is present.

    One row where the cases are of CPUs: what this machine's gives are claims of the experiment.
    """

    def recorded() -> list[Evidenced]:
        return [e for record in kept if record.experiment == name for e in verify_record(record)]

    def live() -> Iterable[Evidenced]:
        return verify_live("cuda", (name,), size)

    rows = []
    sources: tuple[tuple[Evidence, Callable[[], Iterable[Evidenced]]], ...] = (
        (Evidence.RECORDED, recorded),
        (Evidence.LIVE, live),
    )
    lacking = say("no record for this hardware ({n} cases to record)")
    on_cpu = load(name).on == "cpu"
    for i, (evidence, source) in enumerate(sources[:1] if on_cpu else sources):
        tick(i / 2, evidence.value)
        try:
            compared = list(source())
            outcome = summed(compared) if compared else absent(lacking.fill(n=len(cases_of(name, size))))
        except Exception as error:
            outcome = raised(error)
        rows.append(Row(name, OF_CPUS if on_cpu else CLAIM, evidence.value, outcome))
    return rows


def summed(compared: Sequence[Evidenced]) -> Outcome:
    """Many comparisons as one outcome: a pass only where no case fails or differs, and one passes."""
    by = {status: [e for e in compared if e.row.outcome.status is status] for status in Status}
    for status in WRONG:
        if bad := by[status]:
            detail = say("{n} of {all} cases; first '{case}' on {device}: {found}", n=len(bad), all=len(compared))
            row = bad[0].row
            return Outcome(status, detail.fill(case=row.claim, device=bad[0].device, found=row.outcome.detail))
    good, lacking = by[Status.PASS], by[Status.ABSENT]
    if not good:
        return lacking[0].row.outcome
    devices = "; ".join(sorted({e.device for e in good}))
    text: list[Text] = [say("{n} cases, every bit: {devices}", n=len(good), devices=devices)]
    if lacking:
        row = lacking[0].row
        text.append(
            say("{n} absent, first '{case}': {found}", n=len(lacking), case=row.claim, found=row.outcome.detail)
        )
    return passed(joined(text, CLAUSE))


# --- runs held to a manifest ------------------------------------------------------------------------------------
def check_manifest(folder: Path, names: Sequence[str] | None = None, quiet: bool = False) -> list[Row]:
    """Rerun experiments as the manifest of a folder says, and compare the digests of their arrays."""
    chosen = known(names)
    manifest = figures.read_manifest(folder)
    if not manifest:
        raise LabError(f"there is no {str(folder / figures.MANIFEST)!r} to check against; fplab figures makes it.")
    rows: list[Row] = []
    for i, name in enumerate(chosen, start=1):
        with progress(f"[{i}/{len(chosen)}] {name}", quiet) as tick:
            try:
                rows += figures.compare(name, load(name), manifest, tick)
            except Exception as error:
                rows.append(Row(name, figures.AS_BEFORE, Evidence.PROVED.value, raised(error)))
    return rows
