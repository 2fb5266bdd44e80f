"""Running experiments: rows for every claim, files that are whole, a manifest that merges and can be checked."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy
from refusals import refuses

from fplab import experiments
from fplab.errors import LabError
from fplab.experiments import figures, recorder, runner, uptodate
from fplab.experiments import progress as steps
from fplab.experiments.frame import Result
from fplab.experiments.outcomes import Evidence, Status, absent, failed, passed
from fplab.experiments.progress import progress
from fplab.experiments.table import Row, counts, render
from fplab.hardware import environment, records
from fplab.words import say

TESTS = Path(__file__).resolve().parent
pytestmark = pytest.mark.usefixtures("only_toy")


def run(**options: Any) -> runner.Finished:
    (done,) = runner.run_experiments(quiet=True, recorded=options.pop("recorded", ()), **options)
    return done


def outcomes(rows: Any) -> list[tuple[str, str, str]]:
    return [(str(row.claim), row.evidence, row.outcome.status.value) for row in rows]


def test_a_run_checks_every_claim_and_names_the_hardware_that_is_missing(tmp_path: Path) -> None:
    done = run()
    assert outcomes(done.rows)[:3] == [
        ("every square is there", "proved", "pass"),
        ("numpy squares the same", "library", "pass"),
        (runner.CLAIM.en, "hardware, recorded", "absent"),
    ]
    assert str(done.rows[2].outcome.detail) == "no record for this hardware (2 cases to record)"
    import torch

    live = done.rows[3]
    assert live.evidence == "hardware, live"
    if not torch.cuda.is_available():
        assert live.outcome == absent(say("no CUDA device is present"))
    assert done.budget == 2.0
    assert 0 < done.seconds < 60


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda patch, folder: None, True),
        (lambda patch, folder: patch.setattr(uptodate, "package_digest", lambda: "other code"), False),
        (lambda patch, folder: patch.setattr(uptodate, "SOURCE", "de"), False),
        (lambda patch, folder: patch.setattr(Result, "__getstate__", toy.boom), False),
        (lambda patch, folder: (folder / "toy.svg").write_text("by hand"), False),
        (lambda patch, folder: (folder / "toy.svg").unlink(), False),
        (lambda patch, folder: (folder / ".toy.drawn").write_text('{"of": 1, "files": []}'), False),
        (lambda patch, folder: (folder / ".toy.drawn").write_text("[]"), False),
    ],
)
def test_a_figure_is_left_where_it_would_be_drawn_the_same(
    change: Any, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.install(run=lambda params, tick: toy.E.run(params, tick).replace(noise=0.0))
    drawn = []
    draw = figures.write_figures
    monkeypatch.setattr(figures, "write_figures", lambda *given: drawn.append(1) or draw(*given))
    first = {path: path.read_bytes() for path in run().files}
    change(monkeypatch, tmp_path / "runs/quick")
    again = {path: path.read_bytes() for path in run().files}
    assert (again == first, len(drawn)) == (True, 1 if same else 2)
    run(claims=False)  # asked for figures alone, it draws them
    assert len(drawn) == (2 if same else 3)


def test_a_run_leaves_all_files_and_nothing_else(tmp_path: Path) -> None:
    done = run()
    names = ["MANIFEST.json", "toy.csv", "toy.svg"]
    assert sorted(path.name for path in done.files) == names
    assert sorted(path.name for path in (tmp_path / "runs/quick").iterdir()) == [".toy.drawn", *names]
    before = {path.name: path.read_bytes() for path in done.files}
    assert {path.name: path.read_bytes() for path in run().files} == before


def test_other_pictures_are_drawn_on_request(tmp_path: Path) -> None:
    done = run(out=tmp_path, pictures=("dark.png", "svg", "dark.svg"))
    names = ["MANIFEST.json", "toy.csv", "toy.dark.png", "toy.dark.svg", "toy.svg"]
    assert sorted(path.name for path in done.files) == names
    assert (tmp_path / "toy.dark.png").read_bytes().startswith(b"\x89PNG")
    light, dark = ((tmp_path / f"toy{ending}").read_bytes() for ending in (".svg", ".dark.svg"))
    assert b"</svg>" in light
    assert b"</svg>" in dark
    assert light != dark


def test_the_full_size_has_its_own_folder(tmp_path: Path) -> None:
    done = run(full=True)
    assert done.budget is None
    manifest = figures.read_manifest(tmp_path / "runs" / "full")
    assert manifest["toy"]["size"] == "full"
    assert manifest["toy"]["parameters"]["count"] == 256
    assert not (tmp_path / "runs" / "quick" / "MANIFEST.json").exists()


def test_the_csv_is_exact_and_plain(tmp_path: Path) -> None:
    run(out=tmp_path)
    rows = list(csv.reader((tmp_path / "toy.csv").read_text().splitlines()))
    assert rows[0] == ["n", "square"]
    assert rows[-1] == ["15", "225"]
    assert len(rows) == 17
    text = figures.csv_text({"x": [0.1, np.float32(0.1), np.float64(1e300), float("inf"), -0.0],
                             "n": [1, np.uint64(2**64 - 1), np.int8(-1), True, np.False_],
                             "s": ["a,b", "é", None, 'q"', ""]})  # fmt: skip
    assert text == (
        'x,n,s\n0.1,1,"a,b"\n0.10000000149011612,18446744073709551615,é\n1e+300,-1,\ninf,true,"q"""\n-0.0,false,\n'
    )
    with pytest.raises(LabError, match=r"columns of a table have equal lengths; these have {'a': 1, 'b': 2}"):
        figures.csv_text({"a": [1], "b": [1, 2]})


# --- what goes wrong is a row -------------------------------------------------------------------------------------
def test_a_check_that_fails_or_raises_is_a_row_that_fails() -> None:
    checks = (
        toy.claim("no", Evidence.PROVED, lambda result: failed("0101 against 0100")),
        toy.claim("oops", Evidence.LIBRARY, toy.boom),
        toy.claim("yes", Evidence.LIBRARY, lambda result: passed()),
    )
    toy.install(claims=checks)
    done = run()
    assert [status for _, _, status in outcomes(done.rows)[:3]] == ["FAIL", "FAIL", "pass"]
    assert "RuntimeError: boom" in done.rows[1].outcome.detail
    assert "(toy.py, line " in done.rows[1].outcome.detail
    assert len(done.files) == 3


@pytest.mark.parametrize(("part", "claim", "files"),
                         [("run", "the experiment runs to its end", 0),
                          ("figures", "its figures, table and manifest are written", 0),
                          ("rows", "its figures, table and manifest are written", 0)])  # fmt: skip
def test_a_broken_part_is_a_row_that_fails(part: str, claim: str, files: int, tmp_path: Path) -> None:
    toy.install(**{part: (toy.boom,) if part == "figures" else toy.boom})
    done = run(out=tmp_path / "out")
    assert outcomes(done.rows)[-1] == (claim, "proved", "FAIL")
    assert len(done.files) == files
    assert not (tmp_path / "out" / "MANIFEST.json").exists()
    assert not list(tmp_path.rglob(".*"))


def test_an_experiment_that_does_not_load_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "NAMES", ("toy_missing", "toy"))
    missing, present = runner.run_experiments(quiet=True, recorded=())
    assert outcomes(missing.rows) == [("the experiment can be loaded", "proved", "FAIL")]
    assert "No module named 'fplab.experiments.toy_missing'" in missing.rows[0].outcome.detail
    assert present.rows[0].outcome.status is Status.PASS


def test_an_array_that_should_be_digested_and_is_not_there_fails() -> None:
    toy.install(digested=lambda: ("n", "cube"))
    assert "its result has no 'cube', which has a digest" in run().rows[-1].outcome.detail


def test_unknown_names_are_errors_before_anything_runs(tmp_path: Path) -> None:
    refuses(lambda: run(names=["tox"]), r"unknown experiment 'tox'. Allowed: toy. Did you mean 'toy'?")
    assert list(tmp_path.iterdir()) == []


# --- GPUs ---------------------------------------------------------------------------------------------------------
def gpu(tmp_path: Path, device: str, flip: bool = False) -> None:
    where = {**environment.describe("cpu"), "kind": "cuda", "device": device, "torch": "2.13.0"}
    one = recorder.record_one("toy", where, "quick", "cpu")
    if flip:
        bits = one.cases[0].outputs["y"] ^ np.uint8(1)
        one = replace(one, cases=(replace(one.cases[0], outputs={"y": bits}), *one.cases[1:]))
    records.save(tmp_path, one)


def test_recorded_gpus_are_compared_and_named(tmp_path: Path) -> None:
    gpu(tmp_path / "rec", "GPU B")
    gpu(tmp_path / "rec", "GPU A")
    recorder.record(tmp_path / "rec", "cpu")  # beside them, and not counted
    row = run(recorded=[tmp_path / "rec"]).rows[2]
    assert str(row.outcome.detail) == "4 cases, every bit: GPU A, torch 2.13.0; GPU B, torch 2.13.0"
    toy.install(cases=toy.asking(toy.case("squares"), toy.case("renamed")))
    row = run(recorded=[tmp_path / "rec"]).rows[2]
    assert row.outcome.status is Status.PASS
    assert str(row.outcome.detail).endswith(
        "; 2 absent, first 'squares again': the experiment has no such case any more"
    )
    toy.install()
    gpu(tmp_path / "rec", "GPU C", flip=True)
    row = run(recorded=[tmp_path / "rec"]).rows[2]
    assert row.outcome.status is Status.FAIL
    assert str(row.outcome.detail).startswith(
        "1 of 6 cases; first 'squares' on GPU C, torch 2.13.0: y (device against lab)"
    )


def test_a_refused_record_is_a_row_that_fails(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "bad.npz").write_bytes(b"?")
    _, refused = runner.run_experiments(quiet=True, recorded=[tmp_path / "rec"])
    assert outcomes(refused.rows) == [("bad.npz", "hardware, recorded", "FAIL")]


# --- the manifest -------------------------------------------------------------------------------------------------
def test_the_manifest_says_how_the_data_was_made(tmp_path: Path) -> None:
    run(out=tmp_path)
    said = json.loads((tmp_path / "MANIFEST.json").read_text())["toy"]
    assert said["parameters"] == {"count": 16, "labels": ["n", "square"]}
    assert said["size"] == "quick"
    assert set(said["versions"]) == {"fplab", "numpy", "numba", "torch", "matplotlib", "python"}
    assert said["versions"]["numpy"] == np.__version__
    assert set(said["arrays"]) == {"n", "square"}  # not the array that differs from run to run
    assert said["arrays"]["n"]["dtype"] == "|u1"
    assert said["arrays"]["n"]["shape"] == [16]


def test_the_manifest_keeps_the_entries_of_other_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(out=tmp_path)
    toy.install("toy_other")
    run(out=tmp_path)
    assert set(figures.read_manifest(tmp_path)) == {"toy", "toy_other"}


def test_check_says_which_array_differs(tmp_path: Path) -> None:
    run(out=tmp_path)
    same = runner.check_manifest(tmp_path, quiet=True)
    assert [(str(row.claim), row.outcome.status) for row in same] == [
        ("array 'n' as in the manifest", Status.PASS),
        ("array 'square' as in the manifest", Status.PASS),
    ]

    def other(params: Any, tick: Any) -> Any:
        result = toy.E.run(params, tick)
        return result.replace(square=result.square + np.uint8(params.count == 16))

    toy.install(run=other)
    n, square = runner.check_manifest(tmp_path, quiet=True)
    assert n.outcome.status is Status.PASS
    assert square.outcome.status is Status.FAIL
    assert str(square.outcome.detail).startswith("sha256 differs: ")
    toy.install(run=lambda params, tick: types.SimpleNamespace(params=params, n=np.arange(16, dtype=np.uint16)))
    n, square = runner.check_manifest(tmp_path, quiet=True)
    assert str(n.outcome.detail) == "dtype differs: <u2 now, |u1 in the manifest"
    assert str(square.outcome.detail) == "the experiment does not return it any more"


def test_check_runs_with_the_parameters_of_the_manifest(tmp_path: Path) -> None:
    run(out=tmp_path)
    toy.install(quick=replace(toy.E.quick, count=17))
    assert all(row.outcome.status is Status.PASS for row in runner.check_manifest(tmp_path, quiet=True))
    manifest = figures.read_manifest(tmp_path)
    del manifest["toy"]["parameters"]["count"]
    (tmp_path / "MANIFEST.json").write_text(json.dumps(manifest))
    (row,) = runner.check_manifest(tmp_path, quiet=True)
    assert "the manifest has parameters ['labels'], the experiment takes ['count', 'labels']" in row.outcome.detail


def test_a_damaged_manifest_is_refused_in_words(tmp_path: Path) -> None:
    for damaged, why in (
        (3, "the manifest's entry of 'toy' is damaged; fplab figures toy writes it anew."),
        ({"arrays": {}}, "entry of 'toy' is damaged"),
        ({"arrays": {"n": 3}, "parameters": {}}, "entry of 'toy' is damaged"),
        ({"arrays": {}, "parameters": []}, "entry of 'toy' is damaged"),
        ({"arrays": {}, "parameters": {"count": "16", "labels": []}},
         "count='16' is not possible; allowed: an integer."),
    ):  # fmt: skip
        (tmp_path / "MANIFEST.json").write_text(json.dumps({"toy": damaged}))
        (row,) = runner.check_manifest(tmp_path, ["toy"], quiet=True)
        assert why in str(row.outcome.detail)
    (tmp_path / "MANIFEST.json").write_text("[" * 100_000)
    refuses(lambda: runner.check_manifest(tmp_path, quiet=True), r"MANIFEST.json' is no JSON")
    (tmp_path / "MANIFEST.json").unlink()
    (tmp_path / "MANIFEST.json").mkdir()
    refuses(lambda: runner.check_manifest(tmp_path, quiet=True), r"cannot read .*MANIFEST.json': Is a directory")
    (tmp_path / "MANIFEST.json").rmdir()


def test_check_without_a_manifest_or_an_entry_says_so(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"there is no .*MANIFEST.json' to check against; fplab figures makes it"):
        runner.check_manifest(tmp_path, quiet=True)
    run(out=tmp_path)
    toy.install("toy_other")
    (row,) = runner.check_manifest(tmp_path, quiet=True)
    assert str(row.outcome.detail) == "not in MANIFEST.json; fplab figures toy_other adds it"
    (tmp_path / "MANIFEST.json").write_text("{")
    with pytest.raises(LabError, match=r"MANIFEST.json' is no JSON .*; delete it, and the next run writes a new one"):
        runner.check_manifest(tmp_path, quiet=True)


# --- interruption -------------------------------------------------------------------------------------------------
INTERRUPTED = """
import sys
sys.path.insert(0, {tests!r})
import toy
from fplab.cli import main
from fplab.hardware import environment
environment.warm_up = lambda: None
{change}
toy.install({parts})
sys.exit(main(["run", "--out", "out"]))
"""
SLOW_SAVE = """
import pathlib
whole = pathlib.Path.replace
def replace(part, path):
    if path.name == "toy.svg":
        toy.hang()
    return whole(part, path)
pathlib.Path.replace = replace
"""


def start(tmp_path: Path, change: str = "", parts: str = "") -> subprocess.Popen[str]:
    code = INTERRUPTED.format(tests=str(TESTS), change=change, parts=parts)
    environ = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert any("hanging" in line for line in process.stdout)
    return process


def end(process: subprocess.Popen[str], by: signal.Signals) -> tuple[int, str]:
    process.send_signal(by)
    _, error = process.communicate()
    return process.returncode, error


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_an_interrupted_run_leaves_whole_files_and_the_next_one_no_strays(tmp_path: Path, by: signal.Signals) -> None:
    out = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in run(out=out).files}
    code, error = end(start(tmp_path, SLOW_SAVE), by)
    strays = [path.name for path in out.iterdir() if path.name not in {*before, ".toy.drawn"}]
    if by is signal.SIGINT:
        assert code == 130
        assert strays == []
        assert error.splitlines()[-1] == "fplab: interrupted; files already written are whole."
        assert "Traceback" not in error
    else:
        assert code == -signal.SIGKILL
        assert len(strays) == 1
        assert strays[0].endswith("-toy.svg")
    assert {name: (out / name).read_bytes() for name in before} == before
    run(out=out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.name != ".toy.drawn"} == before


def test_a_first_run_that_is_killed_leaves_no_manifest_and_no_figure(tmp_path: Path) -> None:
    end(start(tmp_path, parts="figures=(toy.hang,)"), signal.SIGKILL)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


# --- side by side -------------------------------------------------------------------------------------------------
SIDE_BY_SIDE = """
import os, sys, time
sys.path.insert(0, {tests!r})
import toy
from fplab import experiments
from fplab.cli import main
from fplab.experiments import progress
from fplab.hardware import environment

def dies(*given):
    os.kill(os.getpid(), 9)

def half(params, tick):
    tick(0.5, "half")
    until = time.monotonic() + 600
    while not os.path.exists("seen") and time.monotonic() < until:
        time.sleep(0.1)
    return toy.E.run(params, tick)

progress.EVERY = 1.0

environment.warm_up = lambda: None
parts = {parts}
for name in parts:
    toy.install(name, **parts[name])
experiments.NAMES = tuple(parts)
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def side_by_side(tmp_path: Path, jobs: int, parts: str, *words: str) -> subprocess.Popen[str]:
    """A command in a process group of its own, of a file that every process reads: these are spawned."""
    file = tmp_path / "main.py"
    file.write_text(SIDE_BY_SIDE.format(tests=str(TESTS), parts=parts))
    environ = os.environ | {"PYTHONPATH": str(TESTS.parent), "FPLAB_NUM_THREADS": str(jobs)}
    return subprocess.Popen(
        [sys.executable, str(file), *words], cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_experiments_side_by_side_leave_what_they_leave_one_by_one(tmp_path: Path) -> None:
    parts = "{'toy': {}, 'toy_fails': {'run': toy.boom}, 'toy_other': {}}"
    found = []
    for jobs in (1, 2):
        with side_by_side(tmp_path, jobs, parts, "run", "--claims", "--out", f"out{jobs}") as run:
            out, err = run.communicate()
        assert run.returncode == 1, err
        assert err == ""  # no progress where nobody watches
        blocks = re.findall(r"─\n(toy.*?\n)(?=─)", out, re.DOTALL)
        files = {path.name: path.read_bytes() for path in (tmp_path / f"out{jobs}").glob("[!.]*")}
        found.append((sorted(re.sub(" +", " ", block) for block in blocks), files))
        assert "RuntimeError: boom" in out
        assert "in 2 processes" in out if jobs == 2 else "in 1 process" in out
    assert found[0] == found[1]
    assert len(found[0][0]) == 3
    assert {"toy.svg", "toy_other.svg", "MANIFEST.json"} < found[0][1].keys()


def test_those_that_may_take_longest_begin_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of eight seconds may begin when all others have ended; one that does not load is soon done."""
    begun: list[str] = []

    def in_processes(_: object, names: list[str], *others: object) -> Iterator[Any]:
        begun.extend(names)
        yield from ()

    for name, budget in {"toy_short": 1.0, "toy_long": 8.0, "toy_middle": 3.0}.items():
        toy.install(name, budget=budget)
    monkeypatch.setattr(experiments, "NAMES", ("toy_broken", "toy_short", "toy_long", "toy_middle"))
    monkeypatch.setattr(runner, "in_processes", in_processes)
    assert not [*runner.run_experiments(jobs=2, quiet=True, recorded=())]
    assert begun == ["toy_long", "toy_middle", "toy_short", "toy_broken"]


def test_an_experiment_whose_process_dies_is_a_row_that_fails(tmp_path: Path) -> None:
    # The second still runs when the first dies, so that the third begins after that, in other processes.
    parts = "{'toy_dies': {'run': dies}, 'toy_second': {'run': half}, 'toy_third': {'run': toy.boom}}"
    with side_by_side(tmp_path, 2, parts, "figures") as run:
        out, err = run.communicate()
    assert run.returncode == 1, err
    assert "FAIL toy_dies: the experiment runs to its end [proved]: its process, or one beside it, was ended" in (
        " ".join(out.split())
    )
    assert "FAIL toy_third: the experiment runs to its end [proved]: RuntimeError: boom" in " ".join(out.split())
    assert "Traceback" not in err


def test_those_that_run_side_by_side_are_named_with_how_far_they_are(tmp_path: Path) -> None:
    with side_by_side(tmp_path, 2, "{'toy': {'run': half}, 'toy_other': {'run': half}}", "figures") as run:
        assert run.stderr is not None
        assert "[0/2] ... toy 35%, toy_other 35%\n" in run.stderr  # running is 70 % of an experiment
        (tmp_path / "seen").touch()
        _, err = run.communicate()
    assert run.returncode == 0, err


def test_those_that_run_are_named_only_where_nothing_else_was_said_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(steps, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    for quiet, wanted in ((False, "[1/3] a 2.0 s\n[1/3] ... b 25%, c 0%\n"), (True, "")):
        clock[0], board = 0.0, steps.Board(3, quiet)
        for clock[0] in (0.0, 4.0):
            board.show({"a": 0.5, "b": 0.0})
        board.ended("a", 2.0)
        for clock[0] in (8.0, 9.0, 13.0):
            board.show({"b": 0.25, "c": 0.0})
        assert capsys.readouterr().err == wanted


def test_an_interrupt_ends_all_that_run_side_by_side(tmp_path: Path) -> None:
    """It comes from a terminal, to the whole group, while a figure is half written: 130, one line, nothing is left."""
    parts = "{'toy': {'figures': (toy.hang,)}, 'toy_other': {'rows': toy.hang}}"
    run = side_by_side(tmp_path, 2, parts, "figures", "--out", "out")
    assert run.stdout is not None
    assert [run.stdout.readline() for _ in range(2)] == ["hanging\n"] * 2
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode == 130
    said = [line for line in err.splitlines() if not line.startswith("[0/2] ... ")]
    assert said == ["fplab: interrupted; files already written are whole."]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["toy_other.svg"]
    with contextlib.suppress(ProcessLookupError):  # multiprocessing's tracker leaves a little later
        for _ in range(600):
            os.killpg(run.pid, 0)
            time.sleep(0.1)
        pytest.fail("a process is left")


# --- the table ----------------------------------------------------------------------------------------------------
ROWS = [
    Row("sums", "a claim " + "that is long " * 8, "proved", passed("1,024 results, every bit")),
    Row("sums", "short", "hardware, recorded", absent("no record for this hardware")),
    Row("formats", "wrong", "library", failed("1 of 9 differ; first at 3: 0101 (1.25) against 0100 (1)")),
]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_its_width_and_its_columns_align(width: int) -> None:
    lines = render(ROWS, width).splitlines()
    assert max(map(len, lines)) <= width
    heading = lines[0]
    for name, at in (("sums", 0), ("a claim", heading.index("claim")), ("proved", heading.index("evidence"))):
        assert any(line[at:].startswith(name) for line in lines[2:]), name
    end = heading.index("outcome")
    above = [line for line in lines[1:] if line[end - 2 : end] == "  "]
    assert [line[end:] for line in above] == ["pass", "absent", "FAIL"]
    flat = " ".join(" ".join(lines).split())
    assert flat.endswith(
        "3 claims: 1 pass, 1 FAIL, 1 absent "
        "FAIL formats: wrong [library]: 1 of 9 differ; first at 3: 0101 (1.25) against 0100 (1)"
    )


def test_colour_changes_nothing_but_colour() -> None:
    coloured = render(ROWS, 100, colour=True)
    assert "\x1b[1;31mFAIL" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render(ROWS, 100)


def test_stand_ins_are_counted_apart() -> None:
    rows = [Row("a", "b", "CPU stand-in", passed()), Row("a", "c", "proved", passed())]
    assert counts(rows) == "2 claims: 2 pass (1 of the passes are a CPU stand-in and no evidence about a GPU)"
    assert counts([]) == "no claims"


def test_progress_is_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("[1/2] toy") as tick:
        tick(0.5, "half")
    text = capsys.readouterr().err
    assert re.fullmatch(r"\[1/2\] toy \.\.\. \d+\.\d s\n", text)
    with progress("toy", quiet=True) as tick:
        tick(0.5, "half")
    assert capsys.readouterr().err == ""


def test_a_bar_is_no_wider_than_a_line_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm", reason="tqdm draws the bar")
    monkeypatch.setenv("COLUMNS", "2000000000")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = steps._bar("toy")
    bar.close()
    assert bar.ncols == 120


def test_progress_is_a_bar_on_a_terminal(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    code = (
        "from fplab.experiments.progress import progress\n"
        "with progress('toy') as tick:\n    tick(0.25, 'a quarter')\n    tick(1.5, 'more than all')\n"
    )
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PYTHONPATH": str(TESTS.parent), "COLUMNS": "80", "LINES": "24"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, stderr=theirs, check=True)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody writes any more
        while part := os.read(ours, 10_000):
            said += part
    os.close(ours)
    shown = said.decode().replace("\r", "\n").splitlines()
    assert any(line.startswith("toy  25%|") and line.rstrip().endswith("a quarter") for line in shown), shown
    assert any(line.startswith("toy 100%|") for line in shown)
    assert re.fullmatch(r"toy \d+\.\d s", [line for line in shown if line.strip()][-1].strip())
