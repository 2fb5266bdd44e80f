"""``fplab exercise check`` with its real second process, and what files of answers may look like.

No time is measured here. Where silence has to end a process, the answer is one that would take years.
"""

from __future__ import annotations

import json
import linecache
import os
import signal
import subprocess
import sys

import pytest

import fplab
from fplab.exercises import exercise, files, progress, sandbox, supervisor

HOPELESS = "import re\n\ndef hopeless(*given):\n    re.match(r'(a+)+$', 'a' * 60 + 'b')\n\n"
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, files.MODULE, raising=False)
    fplab.lang("en")
    yield
    fplab.lang("en")
    sys.modules.pop(files.MODULE, None)


def written(tmp_path, text, name="mine.py", encoding="utf-8"):
    file = tmp_path / name
    file.write_text(text, encoding=encoding)
    return file


def check(file, names=(), limit=60.0):
    return supervisor.check(str(file), list(names), limit)


# --- a second process --------------------------------------------------------------------------------------------


def test_an_answer_that_ends_its_process_fails_and_the_next_are_checked(tmp_path, capfd):
    file = written(
        tmp_path,
        "import os, sys\n\n"
        "def rne(x, n):\n    os._exit(0)\n\n"
        'os.write(1, b\'{"error": "forged"}\\nnot for the reader\\n\')\nsys.stdout.close()\nsys.stdout = None\n'
        "largest_e4m3, absorbed = 448, 1\n",
    )
    assert check(file) == 1
    text = capfd.readouterr().out
    assert "[largest_e4m3]: passed" in text
    assert "[rne]: not yet\nan input on which it fails: it ended the whole process (exit status 0)\n  x  0\n" in text
    assert "Hint: Compare x mod 2^n" in text
    assert "[absorbed]: not yet" in text
    assert "not for the reader" not in text
    assert {name: entry["attempts"] for name, entry in progress.load().items()} == {
        "largest_e4m3": 1, "rne": 1, "absorbed": 1,
    }  # fmt: skip
    assert not progress.load()["rne"]["first_passed"]


@posix
@pytest.mark.parametrize(
    ("code", "how"), [("os._exit(0)", "exit status 0"), ("os.kill(os.getpid(), 9)", "signal SIGKILL")]
)
def test_a_file_that_ends_its_process_does_not_run(tmp_path, code, how):
    file = written(tmp_path, f"import os\n\nlargest_e4m3 = 448\n{code}\n")
    with pytest.raises(fplab.LabError, match=r"mine\.py' does not run: it ended the whole process \(" + how):
        check(file)


@pytest.fixture
def impatient(monkeypatch):
    """Little patience with one request, once the file runs; much otherwise."""

    def with_(**wanted):
        ask = supervisor.Child.ask

        def asked(self, **request):
            self.request = request
            return ask(self, **request)

        def patience(self):
            return 0.5 if self.running and wanted.items() <= self.request.items() else 600.0

        monkeypatch.setattr(supervisor.Child, "ask", asked)
        monkeypatch.setattr(supervisor.Child, "patience", patience)

    return with_


def test_an_operation_that_holds_the_interpreter_is_ended_from_outside(tmp_path, capsys, impatient):
    impatient(do="call", name="next_up")
    file = written(tmp_path, HOPELESS + "next_up = hopeless\nflags_of_overflow = 5\n")
    assert check(file, limit=30) == 1
    text = capsys.readouterr().out
    assert (
        "[next_up]: not yet\nan input on which it fails: it was still running after 30 s, inside one operation" in text
    )
    assert "  code  0\n" in text
    assert "[flags_of_overflow]: passed" in text
    assert progress.load()["next_up"]["attempts"] == 1


def test_a_file_that_holds_the_interpreter_is_ended_too(tmp_path, impatient):
    impatient(do="run")
    fplab.lang("zh")
    with pytest.raises(fplab.LabError, match="停在一个无法中断的操作中"):
        check(written(tmp_path, HOPELESS + "hopeless()\n"), limit=30)


def test_patience_begins_when_the_file_runs(tmp_path):
    child = supervisor.Child(str(written(tmp_path, "largest_e4m3 = 448\n")), 60.0, False)
    try:
        assert child.patience() == supervisor.STARTING
        assert child.ask(do="run")["names"] == ["largest_e4m3"]
        assert child.patience() == 60.0 + supervisor.PATIENCE
    finally:
        child.close()


@posix
def test_without_a_supervisor_the_alarm_ends_a_child(tmp_path):
    start = supervisor.START.replace("child.main()", "child.LONGER = 0.5; child.main()")
    file = str(written(tmp_path, HOPELESS + "hopeless()\n"))
    given = {"file": file, "limit": 0.1, "lang": "en", "isolated": False}
    words = [sys.executable, "-P", "-c", start, json.dumps(sys.path), json.dumps(given)]
    request = b'{"number": 1, "do": "run"}\n'
    done = subprocess.run(words, input=request, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == -signal.SIGALRM


def test_the_supervisor_imports_little():
    code = (
        "import sys, fplab.cli, fplab.exercises.command, fplab.exercises.supervisor\n"
        "print(sorted({'numpy', 'fplab.exercises.base', 'fplab.exercises.checker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "first"), [("utf-8", ""), ("utf-8-sig", ""), ("gbk", "# -*- coding: gbk -*-\n"), ("utf-8", "\r\n")]
)
def test_a_file_is_read_as_python_reads_it(tmp_path, encoding, first):
    file = written(tmp_path, first + "# 最大的数\nlargest_e4m3 = 448\n", encoding=encoding)
    assert files.answers(file) == {"largest_e4m3": 448}


@pytest.mark.parametrize("data", ["# 最大\n".encode("gbk"), "x = 1\n".encode("utf-16"), b"# coding: nonsense\n"])
def test_a_file_in_an_unknown_encoding_is_refused(tmp_path, data):
    (tmp_path / "mine.py").write_bytes(data)
    with pytest.raises(fplab.LabError, match="is not UTF-8 text, nor in an encoding that its first line names"):
        files.answers(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("largest_e4m3 = " + "-" * 200_000 + "448\n", "is nested too deeply for Python"),
        ("largest_e4m3 = " + "(" * 5000 + "448" + ")" * 5000, "is not Python: too many nested parentheses"),
        ("largest_e4m3 = 448\0", "is not Python: source code string cannot contain null bytes"),
        ("raise SystemExit(0)", "does not run: it raises SystemExit: 0"),
        ("", "answers no exercise"),
    ],
)
def test_other_files_that_cannot_be_checked(tmp_path, text, message):
    with pytest.raises(fplab.LabError, match=message):
        files.answers(written(tmp_path, text))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(fplab.LabError, match="cannot read"):
        files.answers(tmp_path)


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_file_may_have_dataclasses_and_import_its_neighbours(tmp_path, future):
    written(tmp_path, "SIZE = 2\n", "beside_mine.py")
    text = (
        f"{future}from dataclasses import dataclass\nimport beside_mine\n\n@dataclass\nclass P:\n    x: int\n\n"
        "def rne(x, n):\n    return round(P(x).x / beside_mine.SIZE**n)\n"
    )
    found = files.answers(written(tmp_path, text))
    assert exercise("rne").check(found["rne"], remember=False).passed
    assert sys.path[-1] == str(tmp_path)


# --- hostile answers ---------------------------------------------------------------------------------------------


class Ends:
    def __repr__(self):
        raise SystemExit(0)


class Loops:
    def __repr__(self):
        while True:
            pass


@pytest.mark.parametrize(
    ("name", "text"),
    [("largest_e4m3", "it raises SystemExit: 0"), ("rne", "a function is wanted (def rne(x, n):), not <Ends>")],
)
def test_a_repr_that_ends_the_program_does_not(name, text):
    assert text in str(exercise(name).check(Ends(), remember=False))


@pytest.mark.parametrize(("name", "text"), [("largest_e4m3", "it was still running"), ("rne", "not <Loops>")])
def test_a_repr_without_end_is_stopped(name, text):
    assert text in str(exercise(name).check(Loops(), remember=False, limit=0.2))


def test_of_a_long_traceback_one_line_is_read(monkeypatch):
    """A recursion whose limit was lifted has millions of entries."""
    read, getline = [], linecache.getline
    monkeypatch.setattr(linecache, "getline", lambda *at: read.append(at) or getline(*at))

    def answer(x, n):
        return answer(x, n)

    with pytest.raises(RecursionError) as caught:
        answer(1, 1)
    assert "return answer(x, n)" in str(sandbox.raised(caught.value))
    assert len(read) == 1
