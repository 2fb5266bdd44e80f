"""Progress is kept in one file, whatever its state and however many write it; a teacher gets it as CSV."""

import contextlib
import csv
import io
import json
import threading

import pytest

import fplab
from fplab.exercises import attempts, exercise, progress


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "kept"))


def test_progress_is_kept_and_exported():
    one = exercise("largest_e4m3")
    assert [one.check(value).passed for value in (480, 448, 240)] == [False, True, False]
    entry = progress.load()["largest_e4m3"]
    assert entry["attempts"] == 3
    assert entry["first_passed"] >= entry["first_attempt"]
    rows = {row["exercise"]: row for row in csv.DictReader(io.StringIO(progress.csv_text()))}
    assert set(rows) == set(fplab.exercises.names())
    assert rows["largest_e4m3"]["passed"] == "yes"
    assert rows["largest_e4m3"]["attempts"] == "3"
    assert rows["rne"] | {"title": ""} == {
        "exercise": "rne", "chapter": "2", "level": "1", "title": "", "passed": "no", "attempts": "0",
        "first_attempt": "", "first_passed": "",
    }  # fmt: skip
    assert not list(progress.path().parent.glob(".part-*"))


def test_a_damaged_file_is_set_aside():
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text("{ not json", encoding="utf-8")
    assert progress.remember("largest_e4m3", True) is None
    assert set(progress.load()) == {"largest_e4m3"}
    assert progress.path().with_suffix(".damaged.json").read_text(encoding="utf-8") == "{ not json"


@pytest.mark.parametrize("text", ["[]", '{"exercises": []}', '{"exercises": {"rne": {"attempts": "x"}}}'])
def test_a_file_of_another_shape_counts_as_none(text):
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text(text, encoding="utf-8")
    assert progress.load() == {}
    assert progress.remember("largest_e4m3", True) is None
    assert json.loads(progress.path().read_text(encoding="utf-8"))["exercises"]["largest_e4m3"]["attempts"] == 1


def test_progress_that_cannot_be_kept_does_not_stop_a_lesson(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "file"))
    report = exercise("largest_e4m3").check(448)
    assert report.passed
    assert "(progress is not kept: " in str(report)


def test_two_at_once_lose_no_attempt(monkeypatch):
    """Both read before either writes, unless one has to wait for the other; then the first waits in vain."""
    meeting, load = threading.Barrier(2, timeout=0.3), attempts.load

    def met():
        entries = load()
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait()
        return entries

    monkeypatch.setattr(attempts, "load", met)
    threads = [threading.Thread(target=progress.remember, args=(name, True)) for name in ("rne", "absorbed")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(load()) == {"rne", "absorbed"}


def test_a_file_nested_without_end_is_set_aside():
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text("[" * 200_000, encoding="utf-8")
    assert progress.load() == {}
    assert progress.remember("largest_e4m3", True) is None
    assert set(progress.load()) == {"largest_e4m3"}
    assert progress.path().with_suffix(".damaged.json").exists()


@pytest.mark.parametrize(
    "row",
    [{"attempts": 1, "first_attempt": "=HYPERLINK(1)", "first_passed": None},
     {"attempts": 1, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": "yes"},
     {"attempts": True, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": None},
     {"attempts": -5, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": None}],
)  # fmt: skip
def test_a_teacher_gets_counts_and_times_and_nothing_else(row):
    progress.path().parent.mkdir(parents=True)
    good = {"attempts": 2, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": None}
    progress.path().write_text(json.dumps({"exercises": {"rne": row, "absorbed": good}}), encoding="utf-8")
    rows = {one["exercise"]: one for one in csv.DictReader(io.StringIO(progress.csv_text()))}
    assert (rows["rne"]["attempts"], rows["rne"]["first_attempt"], rows["rne"]["passed"]) == ("0", "", "no")
    assert rows["absorbed"]["attempts"] == "2"
