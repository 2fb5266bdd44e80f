"""The benchmarks run to their end, and a missed goal, or one that fails, is their exit status."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def toy(*names):
    """What benchmarks print at toy size, run to their end."""
    run = subprocess.run([sys.executable, "-m", "benchmarks", "--toy", *names], cwd=ROOT, capture_output=True,
                         text=True, timeout=900, env=os.environ | {"FPLAB_FEW": "1000"}, check=False)  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "failed" not in run.stdout
    assert "Traceback" not in run.stderr
    return run


def test_the_benchmark_of_first_calls_runs_to_its_end_at_toy_size():
    assert toy("first").stdout


def test_every_other_benchmark_runs_to_its_end_at_toy_size():
    from benchmarks.__main__ import NAMES

    run = toy(*(name for name in NAMES if name != "first"))
    goals = int(run.stdout.splitlines()[-1].partition(" goals, not judged")[0])
    assert goals > 150
    assert set(NAMES) == {"capture", "checkpoint", "codebooks", "collectives", "first", "memory", "nn", "rounding",
                          "scaled", "shadow", "sweep", "tensorcore", "watch", "widgets"}  # fmt: skip
    for said in ("GPT-2 small (124M)", "x numpy", "FP64 passes", "slowest input", "processes", "watched"):
        assert said in run.stdout


@pytest.fixture
def benchmarks(monkeypatch):
    sys.path.insert(0, str(ROOT))
    from benchmarks import __main__ as main
    from benchmarks import memory, timing

    monkeypatch.setattr(timing, "GOALS", [])
    monkeypatch.setattr(main, "GOALS", timing.GOALS)
    monkeypatch.setattr(main, "import_seconds", lambda *_: [0.1, 1.0])
    monkeypatch.setenv("FPLAB_BENCHMARKS", "")
    yield main, memory, timing
    sys.path.remove(str(ROOT))


def test_a_missed_goal_is_the_exit_status(benchmarks, monkeypatch, capsys):
    main, memory, timing = benchmarks
    monkeypatch.setattr(memory, "main", lambda: print(timing.judged("a thing", 2.0, 2.0)))
    assert main.main(["memory"]) == 0
    monkeypatch.setattr(memory, "main", lambda: print(timing.judged("a thing", 2.1, 2.0)))
    assert main.main(["memory"]) == 1
    assert "2.10 > 2" in capsys.readouterr().out
    assert main.main(["memory", "--toy"]) == 0
    monkeypatch.setattr(memory, "main", lambda: print(timing.judged("nothing", float("nan"), 2.0)))
    assert main.main(["memory"]) == 1


def test_peers_beside_the_lab_are_kept_when_asked_and_the_site_shows_them(benchmarks, monkeypatch, tmp_path):
    from fplab.pages.benchmarks import MEANING, page

    main, memory, timing = benchmarks
    monkeypatch.setattr(timing, "COMPARED", found := [])
    monkeypatch.setattr(main, "COMPARED", found)
    monkeypatch.setattr(memory, "main", lambda: timing.compared("rounding", "fp16", {"fplab": 0.8219, "numpy": 6.83}))
    assert main.main(["memory"]) == 0
    assert not list(tmp_path.iterdir())
    assert main.main(["memory", "--out", str(tmp_path / "kept.csv")]) == 0
    lines = (tmp_path / "kept.csv").read_text().splitlines()
    assert lines[0] == "benchmark,work,who,times"
    assert [line.split(",")[1] for line in lines[1:5]] == ["date", "processor", "cores", "cores used"]
    assert lines[-2:] == ["rounding,fp16,fplab,0.822", "rounding,fp16,numpy,6.83"]
    for language, program in (("en", "np.copyto of the same"), ("zh", "以单核 np.copyto 复制同一个")):
        text = page(tmp_path / "kept.csv", language)
        assert "<td>fp16</td><td>0.822</td><td>6.83</td>" in text
        assert program in text
        assert text.count("\n## ") == 1  # of what was measured
    kept = page(ROOT / "figures" / "benchmarks.csv", "en")
    assert all(f"## {heading.en}\n" in kept for heading, _ in MEANING.values())
    assert {"numpy", "torch", "ml_dtypes", "gfloat", "torchao"} <= set(re.findall(r">([\w ]+)</th>", kept))


def test_one_that_fails_is_the_exit_status_and_the_others_run(benchmarks, monkeypatch, capsys):
    main, memory, _ = benchmarks
    monkeypatch.setattr(main, "NAMES", ["memory", "timing"])
    monkeypatch.setattr(memory, "main", lambda: 1 // 0)
    monkeypatch.setattr(benchmarks[2], "main", lambda: print("the other"), raising=False)
    assert main.main([]) == 1
    printed = capsys.readouterr()
    assert "the other" in printed.out
    assert "failed: memory" in printed.out
    assert "ZeroDivisionError" in printed.err


def test_the_peak_of_a_process_is_its_own():
    """That which getrusage gives begins with the peak of the process that started it."""
    code = "from benchmarks.shadow import _peak; print(_peak())"
    big = f"import subprocess, sys; x = b'1' * 2**30; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    run = subprocess.run([sys.executable, "-c", big], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2**30
