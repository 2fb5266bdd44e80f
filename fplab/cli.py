"""The command ``fplab``. Each command imports what it needs when it runs, so that the others stay fast."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from . import settings, starting
from .columns import harmless, terminal_width, wrapped
from .errors import LabError, demand, did_you_mean, integer, missing, unknown
from .language import lang
from .roundings import Rounding
from .version import __version__
from .words import COMMA, NOTHING, Message, Text, joined, mark, say

if TYPE_CHECKING:
    from .experiments.runner import Finished
    from .experiments.table import Row
    from .words import Text

Arguments = argparse.Namespace
UNSIGNED = say(
    "A record's checksum shows that the file is whole. It proves nothing about who made it, nor on which device."
)
WRITING = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EAGAIN)
UNWRITABLE = say("cannot write standard output: {why}.")
INTERRUPTED = 130  # what a shell gives a program that Ctrl-C ended


@dataclass(frozen=True)
class Command:
    """One command: what it does, in a line; the arguments of an example; its arguments; the function that does it."""

    name: str
    does: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], object]
    run: Callable[[Arguments], int]


# --- list, run, figures -----------------------------------------------------------------------------------------
def list_experiments(args: Arguments) -> int:
    """Print every experiment with the question that it answers."""
    from .experiments import NAMES, load
    from .experiments.table import colour_wanted, paint

    width, colour = terminal_width(), colour_wanted()
    for name in NAMES:
        experiment = load(name)
        about = say("{claims} claims, {cases} GPU cases, at most {seconds:g} s", claims=len(experiment.claims))
        about = about.fill(cases=len(experiment.asks(experiment.quick)), seconds=experiment.budget)
        print(paint(f"{name}: {experiment.title}", "1", colour))
        print(*(f"  {line}" for line in wrapped(str(experiment.question), width - 2)), sep="\n")
        print(paint(f"  {about}", "2", colour))
    print("\n" + str(say("fplab run runs them all, fplab run NAME one of them.")))
    return 0


def run(args: Arguments) -> int:
    """Run experiments, write their figures, say what they found; --claims shows every claim with its evidence."""
    from .experiments import findings
    from .experiments.figures import default_folder
    from .experiments.recorder import known
    from .experiments.runner import run_experiments
    from .experiments.table import Table, colour_wanted, failures
    from .storage import demand_writable
    from .threads import num_threads

    out = args.out or default_folder(args.full)
    demand("torch", "matplotlib", "xarray", "jinja2")
    names = known(args.names)  # what is wrong with the request is said before anything begins
    demand_writable(out)
    width, colour, start = terminal_width(), colour_wanted(), time.perf_counter()
    done: list[Finished] = []
    table, jobs = Table.of_claims(names, width, colour), min(num_threads(), len(names))
    seen = sys.stderr.isatty()  # a log has no progress
    with contextlib.nullcontext() if seen else settings.silent_compiler():
        for ended in run_experiments(
            args.names, full=args.full, out=out, pictures=args.pictures, jobs=jobs, quiet=not seen
        ):
            if args.claims:
                print(*([] if done else ["", *table.head()]), *table.rows(ended.rows), sep="\n", flush=True)
            done.append(ended)
    ordered = findings.in_order(done, names)
    report = findings.write(ordered, out)
    if args.claims:
        print(table.rule, *times(done, time.perf_counter() - start, jobs), "", sep="\n")
    screen = findings.screen(ordered, report, terminal_width(most=sys.maxsize), colour)
    print(*screen, *remarks(done), sep="\n")
    return int(bool(failures([row for ended in done for row in ended.rows])))


def times(done: Sequence[Finished], wall: float, jobs: int) -> list[str]:
    """How long each experiment and all of them took."""
    took: list[Text] = []
    for ended in done:
        budget = say(" of {seconds:g} s", seconds=ended.budget) if ended.budget else NOTHING
        took.append(say("{name} {seconds:.1f} s{budget}", name=ended.name, seconds=ended.seconds, budget=budget))
    cores = sum(ended.seconds + ended.compiling for ended in done)
    whole = say("in all {cores:.0f} s of cores, {wall:.0f} s by the clock, in {jobs} process{es}", cores=cores)
    took.append(whole.fill(wall=wall, jobs=jobs, es="es" * (jobs > 1)))
    line = say("seconds of one core: {took}", took=joined(took, COMMA))
    return wrapped(str(line), terminal_width(), indent=" " * 6)


def remarks(done: Sequence[Finished]) -> list[str]:
    """What compiling took, and which experiments took longer than they are meant to."""
    lines = []
    if (compiling := sum(ended.compiling for ended in done)) >= 0.1:
        lines.append(say("Compiling kernels, once on a machine, took {seconds:.0f} s of one core.", seconds=compiling))
    if over := [ended.name for ended in done if ended.budget and ended.seconds > ended.budget]:
        lines.append(say("Took longer than intended, as on a busy machine: {names}.", names=joined(over, COMMA)))
    return [part for line in lines for part in wrapped(str(line), terminal_width(), indent=" " * 6)]


def figures(args: Arguments) -> int:
    """Draw figures without checking claims, or compare the data behind them with the manifest."""
    from .experiments.figures import default_folder
    from .experiments.outcomes import Status
    from .experiments.recorder import known
    from .experiments.runner import check_manifest, run_experiments
    from .experiments.table import ARRAYS
    from .storage import demand_writable
    from .threads import num_threads

    demand("torch", "matplotlib", "xarray")
    out = args.out or default_folder(args.full)
    if args.check:
        rows = check_manifest(out, args.names)
        compared = any(row.outcome.status is not Status.ABSENT for row in rows)
        return show(rows, ARRAYS) or int(not compared)  # what compared nothing has shown nothing
    known(args.names)  # what is wrong with the request is said before anything begins
    demand_writable(out)
    rows = []
    for ended in run_experiments(
        args.names, full=args.full, out=out, claims=False, pictures=args.pictures, jobs=num_threads()
    ):
        for path in ended.files:
            print(path, flush=True)
        rows += ended.rows
    return show(rows) if rows else 0


def show(rows: Sequence[Row], headings: Sequence[Text] | None = None, after: Sequence[str] = ()) -> int:
    """Print a table; the exit status is 1 exactly when something fails."""
    from .experiments.table import HEADINGS, colour_wanted, failures, render

    print(render(rows, terminal_width(), colour_wanted(), headings or HEADINGS))
    if after:
        print(*after, sep="\n")
    return int(bool(failures(rows)))


# --- record, verify ---------------------------------------------------------------------------------------------
def record(args: Arguments) -> int:
    """Record what a device computes: the GPU cases of the experiments, and the parts of the hardware suite."""
    from .experiments.progress import progress
    from .experiments.recorder import known_to_record
    from .experiments.recorder import record as record_cases
    from .hardware.environment import torch_for
    from .hardware.records import SILICON
    from .storage import demand_writable

    if args.one_file:
        from .experiments.one_file import generate

        megabytes = generate(args.one_file) / 1e6
        print(say("{file}: {size:.1f} MB; on a machine with a GPU: python {name}", file=args.one_file, size=megabytes,
                  name=args.one_file.name))  # fmt: skip
        return 0
    if args.out is None:
        raise LabError("one of --out DIR, for records, and --one-file FILE, for a recorder, says what to write.")
    if args.cpu:
        args.names, args.device = [*args.names, SILICON], "cpu"
    known_to_record(args.names)  # what is wrong with the request is said before anything begins
    torch_for(args.device)
    demand_writable(args.out)
    with progress(str(say("recording on {device}", device=args.device))) as tick:
        done = record_cases(args.out, args.device, args.names or None, not args.full, with_lines(tick), args.resume)
    meta = done[0].record.meta
    about = say("{device}, driver {driver}, torch {torch}, CUDA {cuda}", device=meta["device"], torch=meta["torch"])
    print(about.fill(driver=meta["driver"] or "-", cuda=meta["cuda"] or "-"))
    wide = max(len(part.record.experiment) for part in done)
    for part in done:
        size = sum(size for _, size in part.files) / 1e6
        lines = [say("{n:3} cases recorded, {size:.2f} MB", n=len(part.record.cases), size=size)]
        if lacking := part.record.meta.get("not here"):
            first = next(iter(lacking.values()))
            lines.append(say("not on this device: {n} cases, such as {first}", n=len(lacking), first=first))
        lines += [say("failed on this device: {step}: {message}", step=step, message=message)
                 for step, message in part.record.failed.items()]  # fmt: skip
        for name, line in zip([part.record.experiment, *[""] * len(lines)], lines, strict=False):
            print(f"  {name:<{wide}}  {line}")
    print(say("files:"), *(f"  {path}" for part in done for path, _ in part.files), sep="\n")
    if not all(part.record.is_evidence for part in done):
        print(
            say("This CPU stands in for a GPU: fplab verify compares its bits, but they are no evidence about a GPU.")
        )
    return 0 if any(part.record.cases for part in done) else 1


def with_lines(tick: Callable[[float, str], None]) -> Callable[[float, str], None]:
    """A tick that, where no bar is shown, also prints a line as each part begins: a log shows where a recording is."""
    start, begun = time.perf_counter(), set()

    def print_part(fraction: float, text: str) -> None:
        part = text.split(":")[0]
        if part not in begun and not sys.stderr.isatty():
            begun.add(part)
            at = time.perf_counter() - start
            now = say("recording {part} (at {at:.0f} s) ...", part=part, at=at)
            print(f"\n{now} ", end="", file=sys.stderr, flush=True)
        tick(fraction, text)

    return print_part


def verify(args: Arguments) -> int:
    """Compare records, with --live the device that is present, with --corpus a public data set, with the lab's bits."""
    from .experiments.one_file import verify as verify_file
    from .experiments.progress import progress
    from .experiments.recorder import verify as verify_records
    from .experiments.table import CASES, failures, tally
    from .hardware.environment import check_device
    from .hardware.records import records_in

    if args.live:
        check_device(args.device)
    archives = [path for path in args.folders if path.suffix == ".zip"]
    folders = [path for path in args.folders if path not in archives]
    for folder in folders:
        records_in(folder)  # what is wrong with the request is said before anything begins
    compared, about = [], list[str]()
    with progress(str(say("comparing bits"))) as tick:
        if folders or not archives or args.live or args.corpus:
            compared = verify_records(folders, args.live, args.device, tick, args.corpus)
        for path in archives:
            cases, said = verify_file(path)
            compared += cases
            about += [line for text in said for line in wrapped(str(text), terminal_width())]
    rows = [case.row for case in compared]
    if not args.json:
        print()
        after = sorted({f"{say(case.row.evidence)}: {case.device}" for case in compared if case.device})
        return show(rows, CASES, [*about, *after, *wrapped(str(UNSIGNED), terminal_width())] if args.folders else after)
    import json

    print(json.dumps({"rows": [row.as_json() for row in compared], "summary": tally(rows).en}, indent=2))
    return int(bool(failures(rows)))


def add_record(args: Arguments) -> int:
    """Put a file that the one-file recorder wrote where the package finds it, with its origin."""
    from .experiments.one_file import add

    for path in add(args.file, args.origin):
        print(path)
    return 0


def vectors(args: Arguments) -> int:
    """Write golden test vectors: operands, results, and why each row is there, as text, .npz and raw little-endian."""
    from .vectors.command import run as run_vectors

    return run_vectors(args)


def conform(args: Arguments) -> int:
    """Say whether a program, a library or a Python function computes as a GPU's unit, and what it does otherwise."""
    from .vectors.command import conform as run_conform

    return run_conform(args)


# --- memory, inspect, lab ---------------------------------------------------------------------------------------
def memory(args: Arguments) -> int:
    """Count the bytes that training or running a model takes on each GPU, and say which GPUs hold it."""
    from .memory.command import run as run_memory

    return run_memory(args)


def sweep(args: Arguments) -> int:
    """Train every model under every recipe from every seed: a file a run, a table of means and spreads, and CSV.

    The runs are shared by the ranks that torchrun starts, else by --jobs processes here; any that work on the same
    folder share them. What is done stays done: the same command, killed at any moment, goes on to the same bits.
    """
    demand("torch")
    from .training.sweep_command import run as run_sweep

    return run_sweep(args)


def survey(args: Arguments) -> int:
    """Say what every layer of a model loses in formats and recipes, worst first, and which mixture to take."""
    demand("torch", "matplotlib")
    from .nn.diagnose.command import survey as run_survey

    return run_survey(args)


def checkpoint(args: Arguments) -> int:
    """Say what every tensor of a file of weights loses in formats, worst first, and the best mixture for a budget.

    The file is read in pieces, and nothing in it is run. Killed at any moment, the same command goes on; under torchrun
    ranks share the tensors.
    """
    from .checkpoint.command import run as run_checkpoint

    return run_checkpoint(args)


def explain(args: Arguments) -> int:
    """Say why two ways of computing a model's output differ: by layer, by setting, and where the bits first part."""
    demand("torch", "matplotlib")
    from .nn.diagnose.command import explain as run_explain

    return run_explain(args)


def watch(args: Arguments) -> int:
    """Train a model for some steps with AdamW, and say what the run needs of formats and recipes."""
    demand("torch", "matplotlib")
    from .nn.diagnose.command import watch as run_watch

    return run_watch(args)


def inspect(args: Arguments) -> int:
    """Show a value in formats: bits, exact value, error, neighbours, flags."""
    from .inspection import DEFAULT_FORMATS
    from .inspection import inspect as inspected

    print(inspected(args.value.strip(), args.format or DEFAULT_FORMATS, args.rounding, args.overflow, args.scale))
    return 0


def exercise(args: Arguments) -> int:
    """List the exercises of the course, check answers in a file, show a statement, a solution or the progress."""
    from .exercises.command import run as run_exercise

    return run_exercise(args)


def pages(args: Arguments) -> int:
    """Write the course with all its outputs, the cookbook and the reference as a site that is read offline."""
    from .copying import notebooks
    from .pages import slides, write

    folder = here if (here := Path("notebooks")).is_dir() else notebooks()
    limit = integer("--limit", args.limit, 1, 86400)
    if args.slides:
        print(*slides(args.names, args.slides, folder, limit), sep="\n")
        return 0
    problems = write(
        args.names, args.out, folder, lambda text: print(text, file=sys.stderr, flush=True), limit,
        changes=Path("CHANGELOG.md"), measured=Path("figures/benchmarks.csv"),
    )  # fmt: skip
    for problem in problems:
        complain(str(problem))
    print(args.out / "index.html")
    return int(bool(problems))


def lab(args: Arguments) -> int:
    """Copy the course into a folder, never over what was changed there, and open it in JupyterLab."""
    from .copying import HERE, KEPT, chosen, copy_course
    from .lab import serve

    demand("jupyterlab", "psutil")
    port = integer("--port", args.port, 1, 65535)
    folder = chosen(args.folder)
    kept = copy_course(folder)
    print(HERE.fill(folder=f"{folder.resolve()}{os.sep}"), flush=True)
    if kept:
        print(*wrapped(str(KEPT.fill(names=", ".join(kept))), terminal_width()), sep="\n", flush=True)
    return serve(folder, port, not args.no_browser)


# --- the parser -------------------------------------------------------------------------------------------------
def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def _names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all; fplab list shows them)")


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    _drawing_arguments(parser)
    parser.add_argument("--claims", action="store_true", help="print every claim with its evidence, too")


def _drawing_arguments(parser: argparse.ArgumentParser) -> None:
    _names(parser)
    parser.add_argument("--full", action="store_true", help="the full size instead of the quick one")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where figures go (default: runs/quick, or runs/full)")
    kinds = ("svg", "png", "dark.svg", "dark.png", "zh.svg")
    parser.add_argument("--pictures", nargs="+", choices=kinds, default=["svg"], help="how to draw (default: svg)")


def _figures_arguments(parser: argparse.ArgumentParser) -> None:
    _drawing_arguments(parser)
    parser.add_argument("--check", action="store_true", help="rerun as MANIFEST.json says and compare the data")


def _record_arguments(parser: argparse.ArgumentParser) -> None:
    suite = (
        "experiments, or parts of the hardware suite: elementwise reductions products orders scalar mma wgmma "
        "(default: all)"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=suite)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the records go")
    one_file = "write the recorder itself, as one Python file that needs torch and numpy and no install"
    parser.add_argument("--one-file", type=Path, metavar="FILE", help=one_file)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N, mps, or cpu as a stand-in")
    parser.add_argument("--cpu", action="store_true", help="this CPU itself: what its own units compute")
    parser.add_argument("--resume", action="store_true", help="keep what DIR has of this device, and do what is left")
    parser.add_argument("--full", action="store_true", help="the cases of the full size instead of the quick one")


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="records, or a file of one (default: the package's)"
    )
    parser.add_argument("--live", action="store_true", help="also compute the cases on the device that is present, now")
    parser.add_argument("--device", default="cuda", help="the device of --live: cuda (default), cuda:N, mps or cpu")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="a copy of the data set MATLAB-tensor-core, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _records_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("add",), help="add: keep it where every verification finds it")
    parser.add_argument("file", type=Path, metavar="FILE", help="what fplab_record.py wrote")
    parser.add_argument("--origin", required=True, metavar="TEXT", help="who made it, and where")


def _unit_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--unit", metavar="GPU", help="a matrix unit's products, such as H100 or MI300X")
    add("--format", default="fp16", metavar="FORMAT", help="of the unit's operands (default: fp16)")
    add("--output", metavar="FORMAT", help="of the unit's c and result (default: fp32, or the only one)")
    add("--instruction", metavar="NAME", help="of the unit, such as mma or mma.k8 (default: torch's)")
    add("--rows", type=int, default=2000, metavar="N", help="of each file (default: 2000)")
    add("--seed", type=int, default=1, metavar="S", help="of the rows (default: 1)")


def _vectors_arguments(parser: argparse.ArgumentParser) -> None:
    _unit_arguments(parser)
    add = parser.add_argument
    add("--convert", nargs=2, metavar="FORMAT", help="a conversion from one format to another, every rounding")
    add("--quantiser", metavar="SCHEME", help="a scaled quantiser, such as mxfp8 or nvfp4")
    add("--rule", metavar="RULE", help="by which the quantiser chooses scales (default: the scheme's)")
    add("--variant", metavar="NAME", help="the library in whose bits it does (default: the scheme's)")
    add("--stored", metavar="NAME", help="a format of weights in files, such as q4_k, nf4 or gptq: both ways")
    add("--all", action="store_true", help="the corpus: all of these, with digests")
    kinds = ("txt", "npz", "bin")
    add("--kinds", nargs="+", choices=kinds, default=list(kinds), help="of files: txt, npz, bin (default: all)")
    add("--out", type=Path, required=True, metavar="DIR", help="where the files go")


def _conform_arguments(parser: argparse.ArgumentParser) -> None:
    _unit_arguments(parser)
    add = parser.add_argument
    add("--vectors", type=Path, metavar="FILE", help="of fplab vectors, in the place of a unit's")
    add("--library", type=Path, metavar="FILE", help="a shared library with a function of C under test")
    add("--function", default="unit", metavar="NAME", help="of the library (default: unit)")
    add("--python", metavar="NAME", help="MODULE:NAME or FILE.py:NAME of a function f(a, b, c) under test")
    add("--single", action="store_true", help="it takes single instructions alone: longer rows are chained here")
    add("--limit", type=float, default=300, metavar="S", help="seconds that a program may take (default: 300)")
    add("--json", action="store_true", help="print JSON instead of lines")
    text = "a program under test, behind --; it runs with your rights"
    add("command_line", nargs="*", metavar="COMMAND", help=text)


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("value", metavar="VALUE", help="0.1, 1e-7, 1/3, 0x1.8p3, inf, nan; or a code: fp16:0x3c00")
    parser.add_argument("--format", nargs="+", metavar="FORMAT", help="such as fp16 bf16 e4m3 int8 nf4 dynamic")
    roundings = ", ".join(mode.value for mode in Rounding if not mode.random)
    parser.add_argument("--rounding", default="rne", help=str(say("{names} (default: rne)", names=roundings)))
    parser.add_argument("--overflow", help="inf, saturate or nan (default: the format's own)")
    scale = "what one unit of an integer is worth, or a codebook's largest magnitude (default: 1)"
    parser.add_argument("--scale", type=float, default=1.0, metavar="S", help=scale)


def _exercise_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)

    def action(name: str, does: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, prog=f"fplab exercise {name}", description=does, help=does)
        sub.add_argument("--lang", choices=("en", "zh"), help="English or Chinese (default: FPLAB_LANG, or English)")
        return sub

    action("list", "Print every exercise by chapter, with what was solved.")
    sub = action("start", "Write a file with what a chapter asks and a place for each answer.")
    sub.add_argument("chapter", metavar="CHAPTER", help="its number or name, such as 4 or sums")
    sub.add_argument(
        "file", nargs="?", type=Path, default=Path("answers.py"), metavar="FILE", help="answers.py unless named"
    )
    drawn = "of the set whose numbers are drawn for each pupil, known by the file's name"
    sub.add_argument("--seed", type=int, metavar="N", help=drawn)
    sub = action(
        "set", "Write what a class is handed: a file for each pupil, an nbgrader assignment, a Classroom template."
    )
    sub.add_argument("chapter", metavar="CHAPTER", help="its number or name, or with --seed drawn")
    sub.add_argument("folder", type=Path, metavar="FOLDER", help="where the files go")
    sub.add_argument("--form", choices=("file", "nbgrader", "classroom"), default="file", help="for whom it is")
    sub.add_argument("--seed", type=int, metavar="N", help=drawn)
    sub.add_argument("--pupils", type=Path, metavar="FILE", help="their names, a line each")
    sub.add_argument("--teacher", action="store_true", help="with the solutions")
    sub = action("check", "Check the answers of a file, where the exit status is 1 if one is wrong, or grade a folder.")
    sub.epilog = "The file runs with your rights, like any program. For answers of others there is --isolated."
    sub.add_argument("file", type=Path, metavar="FILE", help="Python: functions and values named as the exercises are")
    sub.add_argument("names", nargs="*", metavar="NAME", help="check these alone")
    sub.add_argument("--csv", type=Path, metavar="FILE", help="of a folder: a row a pupil, with points by exercise")
    sub.add_argument("--nbgrader", type=Path, metavar="FILE", help="of a folder: the CSV of nbgrader's gradebook")
    sub.add_argument("--seed", type=int, metavar="N", help=drawn)
    sub.add_argument("--limit", type=float, default=5, metavar="S", help="seconds that a call may take (default: 5)")
    sub.add_argument(
        "--isolated",
        action="store_true",
        help="keep the answers from the network, from your files and from all else (on Linux, with bubblewrap)",
    )
    sub = action("show", "Print what an exercise asks.")
    sub.add_argument("name", metavar="NAME")
    sub.add_argument("--hint", action="store_true", help="with a hint")
    sub = action("solution", "Print a reference solution.")
    sub.add_argument("name", metavar="NAME")
    sub.add_argument("--teacher", action="store_true", help="needed, so that nobody sees it by mistake")
    sub = action(
        "progress", "Print how much was solved and in which file that is kept (delete it to start anew), or write CSV."
    )
    sub.add_argument("--csv", type=Path, metavar="FILE", help="a row an exercise, for a teacher")
    actions.metavar = f"{{{','.join(actions.choices)}}}"


def _pages_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="notebooks to run, such as 00_start or 00 (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("pages"), metavar="DIR", help="where they go (default: pages)")
    parser.add_argument("--limit", type=int, default=120, metavar="N", help="seconds a cell may take (default: 120)")
    parser.add_argument("--slides", type=Path, metavar="DIR", help="slides of these chapters alone, into this folder")


def _lab_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="where (default: fplab-course, here)")
    parser.add_argument("--port", type=int, default=8888, help="default: 8888")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")


def _sweep_arguments(parser: argparse.ArgumentParser) -> None:
    def several(name: str, default: str, text: str) -> None:
        words = default.split()
        parser.add_argument(f"--{name}", nargs="+", metavar=name[:-1].upper(), default=words, help=text)

    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    several("models", "digits_mlp", "digits, digits_mlp (default), characters, or MODULE:NAME of a training.Task")
    several("recipes", "fp32 bf16 fp16", "policies of training, or recipes of nn (default: fp32 bf16 fp16)")
    several("seeds", "0-2", "numbers and ranges (default: 0-2)")
    parser.add_argument("--steps", type=int, metavar="N", help="of each run (default: the model's own)")
    gpu = "whose matrix products are emulated (default: H100; mxfp8 and nvfp4 need B200), or none"
    parser.add_argument("--gpu", default="H100", metavar="GPU", help=gpu)
    parser.add_argument("--jobs", type=int, metavar="N", help="processes, where torchrun starts none (default: cores)")
    parser.add_argument("--every", type=int, default=50, metavar="N", help="steps between checkpoints (default: 50)")


MODEL = (
    "MODULE:NAME or FILE.py:NAME of a function that gives (model, batches) or (model, batches, loss); loss(model, "
    "batch) gives a tensor of one number; without it: the output's loss, or the cross-entropy for a batch's last part"
)


def _model_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help="where HTML, JSON and CSV go")


def _survey_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser, "survey")
    parser.add_argument("--gpu", default="H100", metavar="GPU", help="whose units multiply (default: H100)")
    fallback = "where that GPU has no unit for a recipe: bf16 multiplies what was quantised in BF16"
    parser.add_argument("--fallback", metavar="FORMAT", help=fallback)
    formats = "of all operands, without a scale (default: bf16)"
    parser.add_argument("--formats", nargs="*", metavar="FORMAT", default=["bf16"], help=formats)
    parser.add_argument("--recipes", nargs="*", metavar="RECIPE", default=[], help="such as fp8_current mxfp8 nvfp4")
    budget = "by how much the loss may change (default: 0.01)"
    parser.add_argument("--budget", type=float, default=0.01, metavar="LOSS", help=budget)


def _checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    files = "safetensors, GGUF, torch's .pt, .npy, .npz, an index of shards, or a folder of them"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=files)
    formats = "of numbers, with scales, or as files store them (default: bf16 e4m3 mxfp8 nvfp4 mxfp4 q8_0)"
    parser.add_argument("--formats", nargs="+", metavar="FORMAT", help=formats)
    budget = parser.add_mutually_exclusive_group()
    bits = "the mixture has the least error within these bits a weight (default: 6)"
    budget.add_argument("--bits", type=float, metavar="BITS", help=bits)
    budget.add_argument("--error", type=float, metavar="ERROR", help="or the fewest bits within this relative error")
    against = "instead: what the files changed against this one, and by which rule"
    parser.add_argument("--against", type=Path, metavar="ORIGINAL", help=against)
    out = "where HTML, JSON and CSV go"
    parser.add_argument("--out", type=Path, default=Path("checkpoint"), metavar="DIR", help=out)


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser, "explain")
    other = "or two programs, each the folder of a dump (fplab.nn.capture) or FILE.py:NAME of a function that computes"
    parser.add_argument("other", nargs="?", metavar="B", help=other)
    for name in ("a", "b"):
        text = (
            "a way of computing it, as NAME=VALUE: gpu, inputs, recipe, fallback, split_k, rows; none: torch's own "
            "arithmetic"
        )
        parser.add_argument(f"--{name}", nargs="*", metavar="SETTING", default=[], help=text)


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser, "watch")
    parser.add_argument("--recipes", nargs="*", metavar="RECIPE", default=[], help="such as fp8_current mxfp8 nvfp4")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps of AdamW (default: 20)")
    parser.add_argument("--horizon", type=int, metavar="N", help="foretell a run of so many steps in the recipes")
    parser.add_argument("--rate", type=float, default=1e-3, metavar="RATE", help="learning rate (default: 0.001)")


def _memory_arguments(parser: argparse.ArgumentParser) -> None:
    def group(title: str, *rows: tuple[str, type, str, str]) -> Any:
        part = parser.add_argument_group(title)
        for name, kind, metavar, text in rows:
            part.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
        return part

    shape = group(
        "the model",
        ("preset", str, "NAME", "gpt2, gpt2-xl, gpt3, bloom-176b, llama3-8b, llama3-70b or llama3-405b"),
        ("parameters", str, "N", "a number of parameters instead, such as 7B or 1.3e9: model states alone"),
        *((name, int, "N", "of a transformer") for name in ("layers", "hidden", "heads", "vocabulary")),
        *((name, int, "N", "of a transformer (default: as heads, 4 hidden)") for name in ("kv-heads", "ffn")),
        ("positions", str, "KIND", "of a transformer: learned (default), rotary or alibi"),
    )
    for name, text in (
        ("gated", "an MLP of three matrices, as SwiGLU (default: no)"),
        ("rms", "RMSNorm, a scale without a shift (default: LayerNorm)"),
        ("bias", "on every linear layer (default: yes)"),
        ("tied", "the output projection is the embedding (default: yes)"),
        ("embedding-norm", "a norm behind the embedding (default: no)"),
        ("dropout", "training keeps dropout's masks (default: yes)"),
    ):
        about = str(say("of a transformer: {what}", what=Message(text)))
        shape.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=about)
    group(
        "how it is run",
        ("gpus", int, "N", "all of them (default: 1)"),
        ("zero", int, "0-3", "ZeRO's stage (default: 0, plain data parallelism)"),
        ("partition", str, "HOW", "how ZeRO divides tensors: flat (default), rows or tensors"),
        ("tensor", int, "N", "degree of tensor parallelism"),
        ("pipeline", int, "N", "pipeline stages"),
        ("schedule", str, "NAME", "gpipe, 1f1b (default) or interleaved"),
        ("chunks", int, "N", "model chunks on each stage of an interleaved schedule"),
        ("micro-batch", int, "N", "sequences in one forward pass (default: 1)"),
        ("micro-batches", int, "N", "of them in one step (default: 1)"),
        ("sequence", int, "N", "tokens of a sequence (default: the model's context)"),
        ("precision", str, "NAME", "fp32, mixed (default), mixed+fp32grads, amp, bf16 or fp8"),
        ("recipe", str, "NAME", "how operands of products are held: mxfp8, nvfp4, fp8_block, fp8_current, ..."),
        ("optimizer", str, "NAME", "sgd, momentum, adam, adamw (default), momentum8bit or adamw8bit"),
        ("block", int, "N", "elements that share a scale in 8-bit states (default: 256)"),
        ("recompute", str, "HOW", "activations that are recomputed: none (default), selective or full"),
        ("offload", str, "WHAT", "to CPU memory: none (default), optimizer, parameters or chunks"),
        ("chunk-budget", int, "BYTES", "GPU memory that chunks may take (default: one chunk)"),
        ("inference", str, "FORMAT", "no training: weights in fp32, fp16, bf16, int8 or int4, and keys and values"),
    )
    parser.add_argument("--sequence-parallel", action="store_true", default=None, help="along with tensor parallelism")
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction, help="attention without s-by-s matrices")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also draw it, as FILE.svg or FILE.png")
    parser.add_argument("--theme", choices=("light", "dark"), help="of the figure (default: light)")


COMMANDS: tuple[Command, ...] = (
    Command("list", "show the experiments and what they ask", "", _no_arguments, list_experiments),
    Command("run", "run experiments: findings, figures, checked claims", "formats", _run_arguments, run),
    Command("figures", "draw figures, or --check the data behind them", "--check", _figures_arguments, figures),
    Command("record", "record what a GPU computes", "--out records", _record_arguments, record),
    Command("verify", "compare recorded or --live hardware bit by bit", "--live", _verify_arguments, verify),
    Command("records", "keep a record that others made", "add FILE --origin TEXT", _records_arguments,
            add_record),
    Command("vectors", "golden test vectors of a unit or a conversion", "--unit H100 --out DIR", _vectors_arguments,
            vectors),
    Command("conform", "does your simulator or hardware compute as it should", "--unit H100 -- ./mine",
            _conform_arguments, conform),
    Command("survey", "which layers of your model stand which format", "my.py:f --recipes fp8_current",
            _survey_arguments, survey),
    Command("checkpoint", "what a file of weights loses in every format", "model.safetensors --bits 5",
            _checkpoint_arguments, checkpoint),
    Command("explain", "why two ways of computing your model differ",
            "my.py:f --b gpu=H100", _explain_arguments, explain),
    Command("watch", "what a training run of your model needs", "my.py:f", _watch_arguments, watch),
    Command("sweep", "train seeds x recipes x models", "--out sweep --seeds 0-4", _sweep_arguments,
            sweep),
    Command("memory", "count the bytes of a run", "--preset bloom-176b", _memory_arguments, memory),
    Command("inspect", "look at a number in formats", "0.1 --format fp16 e4m3", _inspect_arguments, inspect),
    Command("exercise", "start on exercises, and check answers", "start sums", _exercise_arguments, exercise),
    Command("pages", "write the course, a cookbook and a reference as HTML", "00_start", _pages_arguments, pages),
    Command("lab", "the course, in JupyterLab", "my-course", _lab_arguments, lab),
)  # fmt: skip


# What argparse says itself: of help, and what is wrong with a command line.
OWN = (mark("usage: "), mark("positional arguments"), mark("options"), mark("show this help message and exit"))
WRONG = tuple(
    (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(message))), message)
    for message in (
        "the following arguments are required: {names}", "unrecognized arguments: {words}",
        "argument {name}: expected one argument", "argument {name}: expected at least one argument",
        "argument {name}: invalid {kind} value: {value}",
        "argument {name}: invalid choice: {value} (choose from {all})",
    )
)  # fmt: skip


class Formatter(argparse.HelpFormatter):
    """Help in the reader's language: whatever is shown is looked up."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, str(Message(prefix or "usage: ")))

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and str(Message(heading)))

    def add_text(self, text: str | None) -> None:
        super().add_text(text and str(Message(text)))

    def _get_help_string(self, action: argparse.Action) -> str:
        return str(Message(action.help or ""))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in wrapped(" ".join(text.split()), width - len(indent)))


class Whole(Formatter):
    """Help whose lines are kept."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are the lab's own, and that takes no option for another's beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": Formatter} | kwargs | {"allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; what a command does not know is refused by that command, with the nearest of its options."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            options = {option.lstrip("-"): option for option in self._option_string_actions}
            slip = next((word.lstrip("-").partition("=")[0] for word in rest if word.startswith("-")), "")
            begun = {name: option for name, option in options.items() if slip and name.startswith(slip)}
            message = "unrecognized arguments: {words}".format(words=" ".join(rest))
            self.error(message, did_you_mean(slip, begun or options))
        return known, rest

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's own keeps silent about what it cannot write."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str, asks: str = "") -> None:  # type: ignore[override]
        message = harmless(message, " ")  # it quotes what was typed
        match = next(((m, own) for pattern, own in WRONG if (m := pattern.fullmatch(message))), None)
        wrong = Message(match[1], match[0].groupdict()) if match else message
        raise LabError(f"{say('{prog}: {message}. See {prog} --help.', prog=self.prog, message=wrong)}{asks}")


def build_parser() -> Parser:
    examples = [f"fplab {c.name} {c.example}".strip() for c in COMMANDS]
    wide = max(map(len, examples))
    rows = [f"  {example:<{wide}}   {Message(c.does)}" for example, c in zip(examples, COMMANDS, strict=True)]
    each, more = say("commands, each with an example:"), say("fplab COMMAND --help says more of one.")
    parser = Parser(
        prog="fplab",
        usage="fplab COMMAND [...]",
        description="A laboratory for numerical precision: what FP16, BF16, FP8 and Tensor Cores do to every bit.",
        epilog="\n".join([str(each), *rows, "", str(more)]),
        formatter_class=Whole,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", parser_class=Parser, help=argparse.SUPPRESS)
    for command, example in zip(COMMANDS, examples, strict=True):
        shown = str(say("example: {example}", example=example))
        sub = commands.add_parser(
            command.name, prog=f"fplab {command.name}", description=command.run.__doc__, epilog=shown
        )
        command.arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def parse(argv: Sequence[str]) -> Arguments:
    """The arguments of a command line; an unknown command suggests the nearest."""
    names = [command.name for command in COMMANDS]
    if argv and not argv[0].startswith("-") and argv[0] not in names:
        raise unknown("command", argv[0], names)
    if argv and argv[0] == "inspect":  # argparse takes -1e-7 and -inf for options, and words with a space for none
        argv = [f" {word}" if re.match(r"-(\d|\.|inf|nan)", word.lower()) else word for word in argv]
    return build_parser().parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit status: 0; 1 where something fails; 2 for a request it cannot honour."""
    if sys.stderr is None:  # closed: what is said there is said to nobody
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        complain(str(UNWRITABLE.fill(why=os.strerror(errno.EBADF))))
        return 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        try:
            return answered(argv)
        finally:
            sys.stdout.flush()  # so that a closed pipe or a full disk is noticed here
    except OSError as error:
        if error.filename is not None or error.errno not in WRITING:  # of something else than standard output
            raise
        _nowhere(sys.stdout)
        if isinstance(error, BrokenPipeError):  # the reader, such as head, has seen enough
            return 0
        complain(str(UNWRITABLE.fill(why=error.strerror)))
        return 1


def answered(argv: Sequence[str] | None) -> int:
    """The exit status of a command line; whatever a person can mend is one sentence."""
    try:
        starting.ended()  # an interrupt that came while this was imported is heard now
        lang()  # as FPLAB_LANG asks, before anything is said
        args = parse(sys.argv[1:] if argv is None else argv)
        if args.version:
            print(f"fplab {__version__}")
            return 0
        if args.command is None:
            build_parser().print_help()
            return 0
        settings.demand_all()
        return int(args.run(args))
    except (Exception, KeyboardInterrupt) as error:
        if starting.came or isinstance(error, KeyboardInterrupt):  # an import may have made another error of it
            complain(str(say("interrupted; files already written are whole.")))
            return INTERRUPTED
        known = missing(error.name) if isinstance(error, ModuleNotFoundError) else error
        if not isinstance(known, LabError):
            raise
        text = str(known)
        if known.call and text.startswith(known.call):  # a Python call: quote the command that was typed instead
            typed = harmless(shlex.join(argv or sys.argv[1:]), " ")
            text = f"fplab {typed}{text.removeprefix(known.call)}"
        complain(text)
        return 2


def complain(text: str) -> None:
    """Say on standard error what went wrong, where anybody can still read it."""
    try:
        print(text if text.startswith("fplab") else f"fplab: {text}", file=sys.stderr, flush=True)
    except OSError:
        _nowhere(sys.stderr)


def _nowhere(stream: TextIO) -> None:
    """Send what is left to be written to a stream nowhere: Python would try again as it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
