"""Bad answers are reported kindly: exceptions, wrong types, endless loops, a progress file in any state."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import fplab
from fplab.exercises import checker, exercise, progress, sandbox


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "kept"))
    fplab.lang("en")
    yield
    fplab.lang("en")


def check(answer, name="rne", **options):
    return exercise(name).check(answer, remember=False, **options)


def test_an_exception_names_its_line_and_no_traceback():
    def answer(x, n):
        return x / (n - n)

    report = check(answer)
    assert report.failure.how == "raised"
    assert "it raises ZeroDivisionError: division by zero" in str(report)
    assert "return x / (n - n)" in str(report)
    assert "Traceback" not in str(report)
    assert report.failure.values == (0, 0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda x, n: None, "an integer is wanted, not None"),
        (lambda x, n: "1", "an integer is wanted, not '1' (str)"),
        (lambda x, n: True, "an integer is wanted, not True (bool)"),
        (lambda x, n: 0.5, "an integer is wanted, not 0.5 (float)"),
        (lambda x, n: [x], "an integer is wanted, not [0] (list)"),
        (lambda x: x, "takes 1 positional argument but 2 were given"),
        (lambda x, n: sys.exit(3), "it raises SystemExit: 3"),
        (5, "a function is wanted (def rne(x, n):), not 5"),
        (None, "a function is wanted (def rne(x, n):), not None"),
    ],
)
def test_wrong_types_are_said_kindly(answer, text):
    report = check(answer)
    assert not report.passed
    assert text in str(report)


def test_wrong_types_of_values():
    assert "a string of 16 binary digits is wanted, not '101' (str)" in str(check("101", "predict_bits"))
    assert "one number is wanted, not 'x' (str)" in str(check("x", "largest_e4m3"))
    assert "a tuple (a, b, c) is wanted, not 3 (int)" in str(check(3, "a100_or_h100"))
    assert "one of 'a', 'b', 'c', 'd' is wanted" in str(check("e", "bf16_or_fp16"))


def test_an_endless_loop_is_stopped_and_said():
    entered = []

    def answer(x, n):
        if x:
            entered.append((x, n))
        while x:
            pass
        return 0

    report = check(answer, limit=1.0)  # long enough for the first input on any machine
    assert report.failure.how == "late"
    assert "still running after 1 s, and was stopped" in str(report)
    assert entered == [(1, 0)]  # nobody waits for the same loop on other inputs
    assert report.failure.values == (1, 0)
    assert not [t for t in threading.enumerate() if t.name == "fplab answer" and t.is_alive()]


def test_a_loop_that_swallows_exceptions_is_stopped_too():
    def answer(x, n):
        while True:
            with contextlib.suppress(Exception):
                sum(range(100))

    assert check(answer, limit=0.2).failure.how == "late"


def test_a_call_that_cannot_be_stopped_is_said_to_run_on():
    release = threading.Event()
    report = check(lambda x, n: release.wait(30), limit=0.2)
    release.set()
    assert report.failure.how == "late"
    assert "in a call that cannot be stopped" in str(report)
    assert "was stopped" not in str(report)


def test_a_whole_check_has_a_limit_too(monkeypatch):
    task = exercise("rne").task
    many, clock = len(checker.boundary_cases(task)), itertools.count()
    monkeypatch.setattr(checker, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # a second a call
    report = check(task.reference, limit=10 / checker.PATIENCE)
    assert (report.failure.how, report.tried) == ("late", 10)
    assert "right so far, but too slow: 10 inputs took 10 s" in str(report)
    wrong = check(lambda x, n: task.reference(x, n) + (x > 100), limit=(many + 2) / checker.PATIENCE)
    assert (wrong.failure.how, wrong.tried) == ("value", many)
    assert "\nan input on which it fails:" in str(wrong)


@pytest.mark.parametrize(
    ("name", "answer", "text"),
    [
        ("rne", lambda x, n: 10**5000, "≈ 2^16610"),
        ("rne", lambda x, n: -(10**5000), "≈ -2^16610"),
        ("next_up", lambda code: 10**5000, "≈ 2^16610  (no code of fp16)"),
        ("rne", lambda x, n: np.array([1, 2]), "an integer is wanted, not array([1, 2]) (ndarray)"),
    ],
)
def test_answers_of_any_size_can_be_shown(name, answer, text):
    assert text in str(check(answer, name))


def test_it_works_outside_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(check(lambda x, n: x >> n)))
    thread.start()
    thread.join()
    assert found[0].failure.values == (3, 1)


def test_what_is_printed_stays_inside_until_it_helps(capsys):
    def answer(x, n):
        print("half of", x)
        return x >> n

    report = check(answer)
    assert capsys.readouterr().out == ""
    assert "printed: half of 3" in str(report)
    report = check(lambda x, n: print("half", file=sys.stderr) or x >> n)
    assert capsys.readouterr().err == ""
    assert "printed: half" in str(report)
    assert check(lambda x, n: print("noise") or exercise("rne").task.reference(x, n)).passed
    print("heard")
    assert capsys.readouterr().out == "heard\n"


def test_arguments_are_the_answers_own():
    def answer(xs, block):
        result = exercise("blockwise").task.reference(list(xs), block)
        xs.clear()
        return result

    assert check(answer, "blockwise").passed


def test_an_answer_that_changes_its_mind_is_noticed():
    calls = []

    def answer(x, n):
        calls.append(x)
        return -1 if len(calls) == 1 else exercise("rne").task.reference(x, n)

    assert "different results for the same input" in str(check(answer))


def test_a_limit_is_a_number_of_seconds():
    with pytest.raises(fplab.LabError, match=r"limit=-1 is no number of seconds; allowed: above 0, to 3600\."):
        check(lambda x, n: 0, limit=-1)


# --- progress ----------------------------------------------------------------------------------------------------


def test_progress_is_kept_and_exported():
    one = exercise("largest_e4m3")
    one.check(480)
    one.check(448)
    one.check(240)
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
    assert exercise("largest_e4m3").check(448).passed
    assert set(progress.load()) == {"largest_e4m3"}
    assert progress.path().with_suffix(".damaged.json").read_text(encoding="utf-8") == "{ not json"


@pytest.mark.parametrize("text", ["[]", '{"exercises": []}', '{"exercises": {"rne": {"attempts": "x"}}}'])
def test_a_file_of_another_shape_counts_as_none(text):
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text(text, encoding="utf-8")
    assert progress.load() == {}
    assert exercise("largest_e4m3").check(448).passed
    assert json.loads(progress.path().read_text(encoding="utf-8"))["exercises"]["largest_e4m3"]["attempts"] == 1


def test_progress_that_cannot_be_kept_does_not_stop_a_lesson(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "file"))
    report = exercise("largest_e4m3").check(448)
    assert report.passed
    assert "(progress is not kept: " in str(report)


# --- the language ------------------------------------------------------------------------------------------------


def test_reports_follow_the_language():
    report = check(lambda x, n: x >> n)
    assert "expected" in str(report)
    fplab.lang("zh")
    assert "应为" in str(report)
    assert "提示" in str(report)
    assert "这是截断" in str(report)
    fplab.lang("en")
    found = check(1 + 2**-11, "double_rounding")
    assert "two different FP16 codes" in str(found)
    fplab.lang("zh")
    assert "两个不同的 FP16 编码" in str(found)


def test_the_language_is_chosen_by_name():
    assert fplab.lang("中文") == fplab.lang() == "zh"
    assert fplab.lang("EN") == "en"
    with pytest.raises(fplab.LabError, match=r"unknown language 'fr'\. Allowed: en, zh\."):
        fplab.lang("fr")
    assert fplab.lang() == "en"


def test_compiling_a_kernel_is_not_the_answer_s_time():
    """The first use of an operation on a machine compiles for seconds; an endless loop is late all the same."""
    import numba
    from numba.extending import overload

    def halved(x):
        raise AssertionError("only its compiled form is called")

    @overload(halved)
    def halved_slowly(x):  # numba calls this while it compiles
        while not box.compiled:  # for longer than the limit, on any machine
            time.sleep(0.01)
        return lambda x: x >> 1

    with sandbox.Sandbox(limit=1.0) as box:
        outcome = box.call(lambda: int(numba.njit(lambda x: halved(x))(8)))
        assert (outcome.how, outcome.value) == ("value", 4)
        assert box.compiled > 0
        assert box.call(lambda: all(True for _ in iter(int, 1))).how == "late"


def test_importing_a_module_is_not_the_answer_s_time(tmp_path, monkeypatch):
    """As torch's from a cold disk: longer than the limit, on any machine, and no endless loop."""
    (tmp_path / "slow_to_import.py").write_text(
        "import time\nfrom fplab_test_box import box\nwhile not box.compiled:\n    time.sleep(0.01)\nfound = 4\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with sandbox.Sandbox(limit=1.0) as box:
        monkeypatch.setitem(sys.modules, "fplab_test_box", SimpleNamespace(box=box))
        outcome = box.call(lambda: __import__("slow_to_import").found)
        assert (outcome.how, outcome.value) == ("value", 4)
        assert box.call(lambda: all(True for _ in iter(int, 1))).how == "late"


@pytest.mark.parametrize(("place", "counts"), [("numba", True), ("numpy", False)])
def test_importing_the_compiler_is_not_the_answer_s_time(place, counts):
    code = compile("found = box._compiling()", f"/somewhere/site-packages/{place}/__init__.py", "exec")
    with sandbox.Sandbox() as box:
        space = {"box": box}
        assert box.call(lambda: exec(code, space)).how == "value"
    assert space["found"] is counts


# --- progress, by several hands ----------------------------------------------------------------------------------


def test_two_at_once_lose_no_attempt(monkeypatch):
    """Both read before either writes, unless one has to wait for the other; then the first waits in vain."""
    meeting, load = threading.Barrier(2, timeout=0.3), progress.load

    def met():
        entries = load()
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait()
        return entries

    monkeypatch.setattr(progress, "load", met)
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
    assert exercise("largest_e4m3").check(448).passed
    assert set(progress.load()) == {"largest_e4m3"}
    assert progress.path().with_suffix(".damaged.json").exists()


@pytest.mark.parametrize(
    "row",
    [
        {"attempts": 1, "first_attempt": "=HYPERLINK(1)", "first_passed": None},
        {"attempts": 1, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": "yes"},
        {"attempts": True, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": None},
        {"attempts": -5, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": None},
    ],
)
def test_a_teacher_gets_counts_and_times_and_nothing_else(row):
    progress.path().parent.mkdir(parents=True)
    good = {"attempts": 2, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": None}
    progress.path().write_text(json.dumps({"exercises": {"rne": row, "absorbed": good}}), encoding="utf-8")
    rows = {one["exercise"]: one for one in csv.DictReader(io.StringIO(progress.csv_text()))}
    assert (rows["rne"]["attempts"], rows["rne"]["first_attempt"], rows["rne"]["passed"]) == ("0", "", "no")
    assert rows["absorbed"]["attempts"] == "2"
