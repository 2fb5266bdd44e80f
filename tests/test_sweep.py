"""fplab sweep: a file a cell, with the bits of a run by itself; kills, other settings, and what is asked wrongly."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sweep_ranks
from refusals import refuses
from withstand import apart

from fplab import cli
from fplab.training import fit, sweep_command, sweeps
from fplab.training.sweep_command import seeds_in, summary

ROOT = Path(__file__).parent.parent
SMALL = ("--models", "sweep_ranks:SMALL", "--gpu", "B200", "--steps", "6", "--jobs", "1")


def results(folder: Path) -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def started(folder: Path, *words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command in processes of its own."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "KILLED": str(folder / "killed"), "COLUMNS": "100"}
    command = [sys.executable, *before, "-m", "fplab", "sweep", "--out", str(folder / "out"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_cell_is_the_run_that_its_settings_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "--out", str(tmp_path), *SMALL, "--recipes", "fp16", "NVFP4", "--seeds", "0-1", "7"]
    assert cli.main(words) == 0
    found = results(tmp_path)
    assert list(found) == [f"sweep_ranks%3ASMALL.{r}.{s}" for r in ("fp16", "nvfp4") for s in (0, 1, 7)]
    for name, one in found.items():
        _, recipe, seed = name.split(".")
        run = fit(sweep_ranks.SMALL, recipe, seed=int(seed), steps=6, gpu="B200")
        losses = np.array([float.fromhex(x) for x in one["losses"]], np.float32)
        assert losses.tobytes() == run.losses.tobytes()
        assert float.fromhex(one["top1"]) == run.scores.top1
        assert float.fromhex(one["held-out loss"]) == run.scores.loss
        assert (one["stopped"], one["settings"]["steps"], one["settings"]["seed"]) == ("", 6, int(seed))
    assert len({one["weights"] for one in found.values()}) == len({one["digest"] for one in found.values()}) == 6
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == "[1/6] sweep_ranks%3ASMALL.fp16.0"
    assert captured.out.splitlines()[0].split()[:4] == ["model", "recipe", "seeds", "stopped"]
    rows = list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))
    assert [float(row["top1"]).hex() for row in rows[::2]] == [found[f"sweep_ranks%3ASMALL.fp16.{s}"]["top1"]
                                                              for s in (0, 1, 7)]  # fmt: skip
    means = list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))
    assert float(means[0]["top1"]) == pytest.approx(np.mean([float(row["top1"]) for row in rows[::2]]), rel=1e-15)
    spread = np.std([float(row["held-out loss"]) for row in rows[1::2]], ddof=1)
    assert float(means[1]["held-out loss spread"]) == pytest.approx(spread, rel=1e-12)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    left = tmp_path / "sweep_ranks%3ASMALL.nvfp4.1.checkpoint.npz"
    left.touch()  # as by a process that was killed between the result and its end
    assert cli.main(words) == 0  # nothing is left to compute
    assert not left.exists()
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == before
    assert capsys.readouterr().err == ""


def test_a_run_that_stops_is_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--models", "sweep_ranks:SMALL", "--recipes", "fp32", "--seeds", "0", "--gpu", "none", "--steps", "2"]
    cell = sweeps.Cell("sweep_ranks:SMALL", "fp32", 0, 2, None)
    found = {"settings": cell.settings, "losses": [(0.5).hex()], "stopped": "step 1: the loss is NaN."}
    found |= dict.fromkeys(("skipped", "top1", "held-out loss", "weights"), "")
    text = json.dumps({**found, "digest": sweeps._digest(found)})
    (tmp_path / "sweep_ranks%3ASMALL.fp32.0.json").write_text(text)
    assert cli.main(["sweep", "--out", str(tmp_path), *words]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["sweep_ranks:SMALL", "fp32", "1", "1"]


@pytest.mark.skipif(not apart(), reason="this system lets no process have a PID namespace of its own")
def test_ranks_with_process_numbers_of_their_own_are_none_lost(tmp_path: Path) -> None:
    """As in a container each: the parts of one were leftovers of nobody to the other."""
    words = ["--models", "sweep_ranks:SMALL", "--recipes", "fp32", "--seeds", "0-9", "--gpu", "none", "--steps", "40"]
    command = [*apart(), sys.executable, "-m", "fplab", "sweep", "--out", str(tmp_path), "--every", "1", *words]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": rank}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in ("0", "1")
    ]
    said = [one.communicate(timeout=300)[1].decode() for one in ranks]
    assert [one.returncode for one in ranks] == [0, 0], said
    assert all("/10] sweep_ranks%3ASMALL.fp32." in text for text in said)
    assert len(results(tmp_path)) == 10
    assert not list(tmp_path.glob(".part-*"))


def test_twenty_kills_lose_nothing_that_was_done(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.sweep_ranks", str(tmp_path), "20", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert [fault for _, fault in kills if fault] == []
    assert len(kills) == 20
    assert len({count for count, _ in kills}) >= 3  # they came early and late


@pytest.mark.parametrize("way", ["jobs", "torchrun"])
def test_a_rank_that_dies_loses_its_cell_alone(way: str, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1",
                "--local-addr=127.0.0.1", "--monitor-interval=0.1")  # fmt: skip
    words = ["--recipes", "fp16", "fp8_delayed", "--seeds", "0-1", "--steps", "6", "--gpu", "H100", "--every", "1"]
    before = torchrun if way == "torchrun" else ()
    done = started(tmp_path, "--models", "sweep_ranks:DEADLY", *words, "--jobs", "2", before=before)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "killed").exists()
    if way == "jobs":
        assert "ended with status -9; its cell went to another rank, or is left." in done.stderr
    assert (
        cli.main(["sweep", "--out", str(tmp_path / "alone"), "--models", "sweep_ranks:SMALL", *words, "--jobs", "1"])
        == 0
    )
    found, alone = results(tmp_path / "out"), results(tmp_path / "alone")
    assert [*found.values()] == [*alone.values()]
    assert len(found) == 4


def test_without_locks_a_rank_computes_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    cells = [sweeps.Cell("sweep_ranks:SMALL", "fp32", seed, 1, None) for seed in range(3)]
    for rank, names in ((1, [1]), (0, [0, 2])):
        said: list[str] = []
        sweeps.work(cells, tmp_path, 1, rank, 2, said.append)
        assert [line.split(".")[-1] for line in said] == list(map(str, names))


def test_one_process_writes_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that the command launched leaves them to it; what is written is not written again."""
    words = ["sweep", "--out", str(tmp_path), *SMALL, "--recipes", "fp32", "--seeds", "0"]
    tables = [tmp_path / f"{name}.csv" for name in ("cells", "summary")]
    monkeypatch.setattr(sweep_command, "end_with_launcher", lambda: None)
    monkeypatch.setattr(sweep_command.signal, "signal", lambda *_: None)
    with monkeypatch.context() as rank:
        for name, value in {sweep_command.LAUNCHED: "1", "WORLD_SIZE": "1", "RANK": "0"}.items():
            rank.setenv(name, value)
        assert cli.main(words) == 0
    assert results(tmp_path)
    assert not any(table.exists() for table in tables)
    assert cli.main(words) == 0
    before = [table.stat().st_mtime_ns for table in tables]
    assert cli.main(words) == 0
    assert before == [table.stat().st_mtime_ns for table in tables]


def test_a_cell_that_another_has_is_left_to_it(tmp_path: Path) -> None:
    cells = [sweeps.Cell("sweep_ranks:SMALL", "fp32", seed, 1, None) for seed in range(2)]
    code = ("import sys; from fplab.training.sweeps import Claims; claims = Claims(open(sys.argv[1], 'ab')); "
            "claims.take(sys.argv[2]); print(flush=True); sys.stdin.read()")  # fmt: skip
    command = [sys.executable, "-c", code, str(tmp_path / ".claims"), cells[0].name]
    said: list[str] = []

    def told(line: str) -> None:
        said.append(line)
        other.communicate()  # the other process ends without a result

    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        sweeps.work(cells, tmp_path, 1, 0, 1, told if not said else said.append)
    assert said == [f"[1/2] {cells[1].name}", f"[2/2] {cells[0].name}"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--seeds", "4-0"], "fplab: --seeds '4-0' is not possible; allowed: numbers, and ranges such as 0-4."),
        (["--seeds", "one"], "fplab: --seeds 'one' is not possible; allowed: numbers, and ranges such as 0-4."),
        (["--recipes", "nvfp5"], "unknown policy 'nvfp5'. Allowed: fp32, tf32, fp16, bf16,"),
        (["--models", "digit"], "unknown task 'digit'. Allowed: digits, digits_mlp, characters. Did you mean 'digits'"),
        (["--models", "no.such:THING"], "fplab: model 'no.such:THING' cannot be imported (ModuleNotFoundError: No mo"),
        (["--models", ":THING"], "fplab: model ':THING' cannot be imported (ValueError: Empty module name); all"),
        (["--models", ".x:THING"], "fplab: model '.x:THING' cannot be imported (TypeError: the 'package' argument is"),
        (["--models", "json:"], "fplab: model 'json:' cannot be imported (AttributeError: module 'json' has no attr"),
        (["--models", "digit", "--steps", "3"], " --models digit --steps 3: unknown task 'digit'. Allowed: digits,"),
        (["--models", ""], "unknown task ''. Allowed: digits, digits_mlp, characters."),
        (["--models", "sweep_ranks:RECIPES"], "allowed: a fplab.training.Task."),
        (["--recipes", "nvfp4"], "--recipes nvfp4: recipe='nvfp4': H100"),
        (["--steps", "0"], "fplab: steps=0 is not possible; allowed: 1 to 1073741824."),
        (["--jobs", "0"], "fplab: --jobs=0 is not possible; allowed: 1 to 1024."),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_before_anything_begins(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", "--out", str(tmp_path / "out"), *words]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_no_two_models_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("a_b", "a.b", "a-b")
    for name in names:
        monkeypatch.setattr(sweep_ranks, name, sweep_ranks.SMALL, raising=False)
    cells = [sweeps.Cell(f"sweep_ranks:{name}", "fp32", 0, 1, None) for name in names]
    assert len({cell.name for cell in cells}) == 3


def test_results_of_other_settings_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    cell = sweeps.Cell("sweep_ranks:SMALL", "fp32", 0, 1, None)
    cell.compute(tmp_path, 1)
    other = sweeps.Cell("sweep_ranks:SMALL", "fp32", 0, 2, None)
    refuses(lambda: other.result(tmp_path), r"is a result of another run: steps is 1 in the file and 2 here\.")
    path = cell.file(tmp_path)
    path.write_text(path.read_text().replace('"stopped": ""', '"stopped": "x"'))
    refuses(lambda: cell.result(tmp_path), r"is no result of a sweep, or a damaged one \(.* of something else\); del")


def test_seeds_and_the_spread_of_one() -> None:
    assert [*seeds_in("3"), *seeds_in("5-7")] == [3, 5, 6, 7]
    row = {"model": "m", "recipe": "r", "stopped": "", "top1": 0.5, "held-out loss": 1.0}
    assert summary([row])[0]["top1 spread"] == ""
