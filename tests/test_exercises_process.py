"""Answers run in real second processes, from a notebook and from a file, and are ended where they do not end.

No time is measured here. Where silence has to end a process, the answer is one that would take years.
"""

import json
import linecache
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import types

import pytest
from answers_here import check

import fplab
from fplab import cli
from fplab.exercises import attempts, child, exercise, judge, kinds, process, wire
from fplab.exercises.cases import boundary_cases

HOPELESS = "import re\n\ndef hopeless(*given):\n    re.match(r'(a+)+$', 'a' * 60 + 'b')\n\n"
WRONG = "def rne(x, n):\n    return x >> n\n\n"
RIGHT = "def rne(x, n):\n    return round(x / 2**n)\n\n"
LATE = "it was still running after {} s, and was stopped: an endless loop?"
posix = pytest.mark.skipif(os.name != "posix", reason="signals, descriptors and forks")


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, child.MODULE, raising=False)
    yield
    fplab.lang("en")
    sys.modules.pop(child.MODULE, None)


def written(tmp_path, text, name="mine.py", encoding="utf-8"):
    file = tmp_path / name
    file.write_text(text, encoding=encoding)
    return file


def checked(tmp_path, text, names=(), *options):
    return cli.main(["exercise", "check", str(written(tmp_path, text)), *names, "--limit", "60", *options])


def cell(text, name="rne", **options):
    """The report on what a notebook's cell defines."""
    text = textwrap.dedent(text)
    linecache.cache["<cell 7>"] = (len(text), None, text.splitlines(keepends=True), "<cell 7>")
    space = {"__name__": "__main__"}
    exec(compile(text, "<cell 7>", "exec"), space)
    return exercise(name).check(space["answer"], remember=False, **options)


def test_a_long_answer_is_read_whole_and_one_that_is_too_long_says_so():
    stalls = exercise("stalling_sum")
    assert stalls.check([1.0] * 60_000, remember=False, limit=600).passed
    unlike = [1 + i / 2**20 for i in range(90_000)]
    assert "Every number must be" in str(stalls.check(unlike, remember=False, limit=600))
    assert "at most 131,072 elements are read, not 131,073" in str(
        stalls.check([1.0] * (kinds.MOST_ITEMS + 1), remember=False)
    )


# --- from a notebook ---------------------------------------------------------------------------------------------
def test_a_function_takes_along_what_it_uses():
    report = cell("""
        import numpy as np
        from fractions import Fraction

        SIZE = 2

        class Half:
            def __init__(self, n):
                self.n = n

            def of(self, x):
                return Fraction(x, SIZE**self.n)

        def rounded(x):
            return np.int64(round(x))

        answer = lambda x, n: rounded(Half(n).of(x))
    """)
    assert report.passed, report


@pytest.mark.parametrize(("text", "message"),
                         [("import threading\nlock = threading.Lock()\nanswer = lambda x, n: lock and 0",
                           "lock cannot be sent to the"),
                          ("answer = (i for i in (1, 2))",
                           "a generator cannot be sent to the process in which answers run (")])  # fmt: skip
def test_what_cannot_be_sent_is_named(text, message):
    assert message in str(cell(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [("x / (n - n)", "ZeroDivisionError: division by zero\n    line 3: return x / (n - n)\n  x         0"),
     ("import sys; sys.exit(3)", "it raises SystemExit: 3\n    line 3: "),
     ("import os; os._exit(3)", "on which it fails: it ended the whole process (exit status 3)\n  x         0"),
     ("while True: pass", f"an input on which it fails: {LATE.format(1)}"),
     ("10**10**9", LATE.format(1)),
     ("import time; time.sleep(10**6)", LATE.format(1)),
     ("import threading; threading.Event().wait()", LATE.format(1)),
     ("import contextlib\n    while True:\n        with contextlib.suppress(BaseException): 1", LATE.format(1))],
)  # fmt: skip
def test_an_answer_that_does_not_come_back_is_reported(text, message):
    body = "return " * text.startswith("x") + text
    report = cell(f"\ndef answer(x, n):\n    {body}\n", limit=1.0)
    assert message in str(report)
    assert "Traceback" not in str(report)


def test_nobody_waits_for_the_same_loop_on_other_inputs():
    report = cell("def answer(x, n):\n    while x: pass\n    return 0", limit=1.0)
    tried = 1 + boundary_cases(exercise("rne").task).index((1, 0))
    assert (report.failure.how, report.failure.values, report.tried) == ("late", (1, 0), tried)


@pytest.mark.parametrize("name", ["largest_e4m3", "rne"])
def test_a_repr_is_the_answer_s_own_code_too(name):
    ends = "class Ends:\n    def __repr__(self): raise SystemExit(0)\n\nanswer = Ends()"
    assert "wanted" in str(cell(ends, name))
    assert "<Ends>" in str(cell(ends, name))
    assert LATE.format(0.5) in str(
        cell(ends.replace("raise SystemExit(0)", "\n        while True: pass"), name, limit=0.5)
    )


def test_what_is_printed_stays_inside_until_it_helps(capfd):
    report = cell(
        "import sys\ndef answer(x, n):\n    print('half of', x)\n    print('!', file=sys.stderr)\n    return x >> n"
    )
    assert capfd.readouterr() == ("", "")
    assert "printed: half of 3     !\nMistake" in str(report)


def test_an_answer_that_changes_its_mind_is_noticed():
    text = "calls = []\ndef answer(x, n):\n    calls.append(x)\n    return -1 if len(calls) == 1 else round(x / 2**n)"
    assert "different results for the same input" in str(cell(text))


def test_a_limit_is_a_number_of_seconds():
    with pytest.raises(fplab.LabError, match=r"limit=-1 is no number of seconds; allowed: above 0, to 3600\."):
        exercise("rne").check(lambda x, n: 0, limit=-1)


def test_compiling_and_importing_are_not_the_answer_s_time(tmp_path, monkeypatch):
    """As torch's import from a cold disk, longer than the limit on any machine."""
    written(tmp_path, "import time\ntime.sleep(2)\nfound = 4\n", "slow_to_import.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    report = cell("answer = lambda x, n: __import__('slow_to_import') and round(x / 2**n)", limit=0.5)
    assert report.passed, report


@posix
def test_an_answer_that_says_that_it_compiles_gets_that_time_once(monkeypatch):
    """As long as one import may take, at every call, would be days."""
    monkeypatch.setattr(process, "MOST", 2.0)
    report = cell("""
        import contextlib, os, time

        def answer(x, n):
            for _ in range(10):
                for number in range(3, 16):
                    with contextlib.suppress(OSError):
                        os.write(number, b'{"busy": true}\\n')
                time.sleep(0.1)
            return round(x / 2**n)
    """, limit=0.5)  # fmt: skip
    assert report.failure.how == "late"
    assert 2 <= report.tried <= 4


BOX = "def answer(box):\n    bits = 0\n    while {}:\n        bits += 1\n    return bits\n"


def test_a_black_box_stays_with_the_judge():
    """It was sent along, with what it hides."""
    right = "box([1.0, -1.0, 2.0 ** -(bits + 1)]) != 0"
    assert cell(BOX.format(right), "fraction_bits").passed
    threaded = "from concurrent.futures import ThreadPoolExecutor\n" + BOX.format(
        "[*ThreadPoolExecutor(4).map(box, [[1.0, -1.0, 2.0 ** -(bits + 1)]] * 8)][-1] != 0"
    )
    assert cell(threaded, "fraction_bits").passed
    looked = cell("import sys\nanswer = lambda box: box.hidden", "fraction_bits")
    assert "'function' object has no attribute 'hidden'" in str(looked)
    kept = "import gc\nanswer = lambda box: next(x.hidden for x in gc.get_objects() if type(x).__name__ == 'Block')"
    assert "it raises StopIteration" in str(cell(kept, "fraction_bits"))


@pytest.mark.parametrize(
    ("given", "says"),
    [("[float('inf')]", "it raises OverflowError: cannot convert Infinity to integer ratio"),
     ("['a']", "it raises ValueError: could not convert string to float: 'a'"), ("7", "it raises TypeError: 'int'")],
)  # fmt: skip
def test_what_a_black_box_cannot_take_is_the_answer_s_error(given, says):
    report = cell(f"answer = lambda box: box({given})", "fraction_bits")
    assert says in str(report)
    assert f"line 1: answer = lambda box: box({given})" in str(report)


@pytest.mark.parametrize("terms", [[0.0] * (kinds.MOST_ITEMS + 1), [1, True], "a", None])
def test_what_is_no_question_to_a_black_box_is_an_error(terms):
    packed = wire.packed(terms)
    for box in (0, 1, "0"):
        _, error = process.from_box({"box": box, "terms": packed}, (sum,))
        assert isinstance(error, ValueError | TypeError)
    assert process.from_box({"box": 0, "terms": wire.packed([1.0, 2.0])}, (sum,)) == (3.0, None)


@posix
def test_whoever_asks_black_boxes_without_end_is_stopped():
    """And one that asks and does not listen keeps nobody waiting."""
    report = cell("""
        import os

        def answer(box):
            while True:
                for number in range(3, 16):
                    try:
                        os.write(number, b'{"box": 0, "terms": [{"float": "0x1p0"}]}\\n' * 99)
                    except OSError:
                        pass
    """, "fraction_bits", limit=1.0)  # fmt: skip
    assert report.failure.how in ("late", "ended")
    assert report.tried == 1


@pytest.mark.parametrize(("place", "counts"), [("numba", True), ("numpy", False)])
def test_the_compiler_is_known_by_its_frames(place, counts):
    space = {"sys": sys, "compiling": child.compiling}
    exec(compile("found = compiling(sys._getframe())", f"/site-packages/{place}/__init__.py", "exec"), space)
    assert space["found"] is counts


def test_a_whole_check_has_a_limit_too(monkeypatch):
    reference, many = exercise("rne").task.reference, len(boundary_cases(exercise("rne").task))
    for limit, answer, wanted in (
        (10, reference, ("late", 10, "right so far, but too slow: 10 inputs took 10 s")),
        (many, lambda x, n: reference(x, n) + (x > 100), ("value", many, "\nan input on which it fails:")),
    ):
        clock = iter(range(10**6))
        monkeypatch.setattr(judge, "time", types.SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        report = check("rne", answer, limit=(limit + 0.5) / judge.PATIENCE)
        assert (report.failure.how, report.tried) == wanted[:2]
        assert wanted[2].replace("10 s", "10.5 s") in str(report)


@pytest.mark.parametrize(("library", "answer"), [("hypothesis", len), ("cloudpickle", 5)])
def test_what_the_course_needs_is_named_where_it_is_missing(monkeypatch, library, answer):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "fplab.exercises.cases", raising=False)
    with pytest.raises(
        fplab.LabError, match=rf'^{library} is not installed, which this needs: pip install "fplab\[lab\]", or'
    ):
        exercise("rne").check(answer, remember=False)


# --- from a file -------------------------------------------------------------------------------------------------
def test_an_answer_that_ends_its_process_fails_and_the_next_are_checked(tmp_path, capfd):
    text = (
        "import os, sys\n\n"
        "def rne(x, n):\n    os._exit(0)\n\n"
        'os.write(1, b\'{"error": "forged"}\\nnot for the reader\\n\')\nsys.stdout.close()\nsys.stdout = None\n'
        "largest_e4m3, absorbed = 448, 1\n"
    )
    assert checked(tmp_path, text) == 1
    out = capfd.readouterr().out
    assert "[largest_e4m3]: passed" in out
    assert "[rne]: not yet\nan input on which it fails: it ended the whole process (exit status 0)\n  x  " in out
    assert "[absorbed]: not yet" in out
    assert "not for the reader" not in out
    assert {name: entry["attempts"] for name, entry in attempts.load().items()} == dict.fromkeys(
        ("largest_e4m3", "rne", "absorbed"), 1
    )
    assert not attempts.load()["rne"]["first_passed"]


@posix
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os; os._exit(0)", "does not run: it ended the whole process (exit status 0)"),
        ("import os; os.kill(os.getpid(), 9)", "does not run: it ended the whole process (signal SIGKILL)"),
        ("import os; os.closerange(0, 64)", "does not run: it ended"),
        ("raise SystemExit(0)", "does not run: it raises SystemExit: 0"),
        ("open('/dev/tty', 'w')", "does not run: it raises OSError"),  # there is no terminal to open
    ],
)
def test_a_file_that_ends_its_process_does_not_run(tmp_path, capfd, text, why):
    assert checked(tmp_path, f"largest_e4m3 = 448\n{text}\n") == 2
    assert why in capfd.readouterr().err
    assert not attempts.load()


def test_a_file_that_holds_the_interpreter_is_ended_too(tmp_path):
    fplab.lang("zh")
    file = str(written(tmp_path, HOPELESS + "hopeless()\n"))
    with process.Child(1.0) as one, pytest.raises(fplab.LabError, match="秒后仍未结束，已被中止"):
        process.run_file(one, file, ("rne",))


@posix
def test_without_a_parent_the_alarm_ends_a_child(tmp_path):
    start = process.START.replace("child.main()", "child.LONGER = 0.5; child.main()")
    options = {"limit": 0.1, "lang": "en", "isolated": False}
    words = [sys.executable, "-P", "-c", start, json.dumps(sys.path), json.dumps(options)]
    request = pickle.dumps((1, "run", (str(written(tmp_path, HOPELESS + "hopeless()\n")), ())))
    done = subprocess.run(words, input=request, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == -signal.SIGALRM


@pytest.mark.parametrize(
    ("encoding", "first"), [("utf-8", ""), ("utf-8-sig", ""), ("gbk", "# -*- coding: gbk -*-\n"), ("utf-8", "\r\n")]
)
def test_a_file_is_read_as_python_reads_it(tmp_path, encoding, first):
    file = written(tmp_path, first + "# 最大的数\nlargest_e4m3 = 448\n", encoding=encoding)
    assert child.answers(file, ("largest_e4m3",)) == {"largest_e4m3": 448}


@pytest.mark.parametrize(
    ("text", "message"),
    [("# 最大\n".encode("gbk"), "is not UTF-8 text, nor in an encoding that its first line names"),
     ("x = 1\n".encode("utf-16"), "is not UTF-8 text, nor in an encoding that its first line names"),
     (b"# coding: nonsense\n", "is not UTF-8 text, nor in an encoding that its first line names"),
     (b"rne = " + b"-" * 200_000 + b"448\n", "is nested too deeply for Python"),
     (b"rne = " + b"(" * 5000 + b"448" + b")" * 5000, "is not Python: too many nested parentheses"),
     (b"rne = 448\0", "is not Python: source code string cannot contain null bytes"),
     (b"", "answers no exercise"), (None, "cannot read")],
)  # fmt: skip
def test_other_files_cannot_be_checked(tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_bytes(text) if text is not None else file.mkdir()
    with pytest.raises(fplab.LabError, match=message):
        child.answers(file, ("rne",))


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_file_may_have_dataclasses_and_import_its_neighbours(tmp_path, future):
    written(tmp_path, "SIZE = 2\n", "beside_mine.py")
    text = (
        f"{future}from dataclasses import dataclass\nimport beside_mine\n\n@dataclass\nclass P:\n    x: int\n\n"
        "def rne(x, n):\n    return round(P(x).x / beside_mine.SIZE**n)\n"
    )
    assert child.answers(written(tmp_path, text), ("rne",))["rne"](3, 1) == 2
    assert sys.path[-1] == str(tmp_path)


def test_of_a_long_traceback_one_line_is_read(monkeypatch):
    """A recursion whose limit was lifted has millions of entries."""
    read, getline = [], linecache.getline
    monkeypatch.setattr(linecache, "getline", lambda *at: read.append(at) or getline(*at))

    def answer(x, n):
        return answer(x, n)

    with pytest.raises(RecursionError) as caught:
        answer(1, 1)
    assert "return answer(x, n)" in str(child.raised(caught.value))
    assert len(read) == 1
