"""``fplab exercise check --isolated``: answers of others reach nothing, use up little, take no result from fplab."""

import os
import platform
import sys
import time
from pathlib import Path

import psutil
import pytest
from fresh import python
from test_exercises_process import at_home, written  # noqa: F401
from withstand import attacks

from fplab import cli
from fplab.exercises import chapters, isolation
from fplab.exercises.tasks import Find, Implement


@pytest.fixture(scope="module")
def isolating():
    """Tests that ask for it are skipped where answers cannot be isolated."""
    if why := attacks.absent():
        pytest.skip(why)


def checked(tmp_path: Path, text: str, *options: str) -> int:
    return cli.main(["exercise", "check", str(written(tmp_path, text)), "--isolated", *options])


# --- what is reached ----------------------------------------------------------------------------------------------
ROOTS_ALONE = {"the system's settings", "writing to the system", "a namespace of its own"}


@pytest.mark.usefixtures("isolating")
def test_answers_reach_nothing_of_what_they_reach_otherwise():
    with attacks.surroundings() as (folder, where):
        text = attacks.text_of(where, list(attacks.REACHES), attacks.RIGHT)
        status, out, err = attacks.checked(folder / "mine.py", text, "--isolated")
        assert (status, err) == (0, f"{isolation.ISOLATED}\n"), err
        assert "[rne]: passed" in out
        assert attacks.checked(folder / "mine.py", text)[0] == 2
        worked = (folder.parent / "worked").read_text().splitlines()
    assert set(attacks.REACHES) - set(worked) <= (set() if os.getuid() == 0 else ROOTS_ALONE)


WALK = """
import os
strays = []
for folder, names, files in os.walk("/"):
    names[:] = [name for name in names if os.path.join(folder, name) not in BOUND]
    strays += [path for path in (os.path.join(folder, name) for name in files) if path not in BOUND]
own = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
right = not strays and len(processes) == 2 and own.keys() <= VARIABLES and open("/proc/self/status").read().count(NONE)
largest_e4m3 = 448 if right else f"{strays}, {processes}, {own}"
"""


@pytest.mark.usefixtures("isolating")
def test_the_root_holds_python_the_package_and_the_file_alone(tmp_path, capsys):
    """Two processes: bubblewrap's and the answers', which has no capability."""
    file, words = written(tmp_path, ""), list(isolation._root(tmp_path / "mine.py"))
    bound = {to for how, _, to in zip(words, words[1:], words[2:], strict=False) if how.startswith("--ro-bind")}
    assert str(file) in bound
    assert str(tmp_path) not in bound
    (tmp_path / "beside.py").touch()
    given = {"BOUND": {*bound, "/proc", "/dev"}, "NONE": "CapEff:\t0000000000000000"}
    given["VARIABLES"] = {"PATH", "HOME", "FPLAB_CACHE_DIR", "LANG", "LC_ALL", "PWD", "PYTHONDONTWRITEBYTECODE"}
    text = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + WALK
    assert checked(tmp_path, text) == 0, capsys.readouterr().out


@pytest.mark.usefixtures("isolating")
@pytest.mark.parametrize(
    "taken", ["fplab.exercises.exercise(NAME)", "import_module('fplab.exercises.chapters').registry()[NAME]"]
)
def test_what_exercises_expect_is_not_there(tmp_path, capsys, taken):
    """Neither the reference of a function, nor a value that has to be said."""
    text = f"""
from importlib import import_module
import fplab

def rne(x, n, NAME="rne"):
    return {taken}.task.reference(x, n)

class Value(float):
    def __float__(self, NAME="largest_e4m3"):
        return float({taken}.task.answer)

largest_e4m3 = Value(7)
"""
    assert checked(tmp_path, text) == 1
    out = capsys.readouterr().out
    assert out.count("]: not yet") == 2
    assert "it raises AttributeError: module 'fplab.exercises.chapters' has no attribute" in out
    assert cli.main(["exercise", "check", str(tmp_path / "mine.py")]) == 0, "it passes without"


KERNEL = """
import os
os.environ["FPLAB_FEW"] = "0"
import numpy as np
from fplab.kernels import convert

def largest(x):
    found = convert.convert
    fplab.encode(np.float32(1), "e4m3")
    return sum(found.stats.cache_hits.values()), sum(found.stats.cache_misses.values())

import fplab
hits = largest(1)
largest_e4m3 = 448 if hits == (1, 0) else str(hits)
"""


@pytest.mark.usefixtures("isolating")
def test_kernels_that_are_kept_are_not_compiled_again(tmp_path, monkeypatch, capsys):
    cache = tmp_path / "cache"
    monkeypatch.setenv("FPLAB_CACHE_DIR", str(cache))
    assert python(KERNEL + "print(hits)") == "(0, 1)\n"
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert before
    assert checked(tmp_path, KERNEL, "--limit", "60") == 0, capsys.readouterr().out
    assert {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} == before


# --- what is used up ----------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("isolating")
def test_answers_use_up_little_and_the_next_is_heard(tmp_path, capsys):
    functions = [one.name for one in chapters.registry().values() if isinstance(one.task, Implement)]
    used = dict(zip(functions, attacks.USES_UP, strict=False))
    assert len(used) == len(attacks.USES_UP)
    text = "".join(f"@once\ndef {name}():\n    {attacks.USES_UP[what]}\n" for name, what in used.items())
    last = [one for one in chapters.registry().values() if isinstance(one.task, Find)][-1]
    text += f"{last.name} = {last.task.example!r}\n"
    assert checked(tmp_path, attacks.START + text, "--limit", "1") == 1
    reports = {text.partition("]: ")[0].rpartition("[")[2]: text for text in capsys.readouterr().out.split("\n\n")}
    assert {name for name, report in reports.items() if "]: passed" in report} == {last.name}
    how = {what: reports[name].partition(": not yet\n")[2] for name, what in used.items()}
    for what, says in {
        "memory": "it raises MemoryError", "memory of no heap": "it raises OSError: [Errno 12]",
        "the folder for temporary files": "it raises OSError: [Errno 28]", "a file": "it raises OSError: [Errno 27]",
        "processes": "it raises PermissionError", "time as if it compiled": "it writes on the line on which its res",
        "time": "it was still running after 1 s", "what is printed": "it was still running after 1 s",
    }.items():  # fmt: skip
        assert says in how[what], what
    for _ in range(200):  # what was killed may take a moment to be gone
        commands = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
        if not (left := [words for words in commands if str(tmp_path / "mine.py") in words]):
            break
        time.sleep(0.1)
    assert not left


@pytest.mark.usefixtures("isolating")
def test_limits_cannot_be_raised(tmp_path, capsys):
    text = """
import resource
for name, most in LIMITS.items():
    assert resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) <= (most, most), name
    try:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most + 1))
    except (ValueError, PermissionError):
        continue
    raise AssertionError(name)
largest_e4m3 = 448
"""
    assert checked(tmp_path, f"LIMITS = {isolation.LIMITS}\n{text}") == 0, capsys.readouterr()


# --- where it is not possible -------------------------------------------------------------------------------------
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], file: Path | None = None) -> str:
    """What is said in place of a check; nothing of the file has run."""
    text = f"open({str(tmp_path / 'ran')!r}, 'w')\nlargest_e4m3 = 448\n"
    assert cli.main(["exercise", "check", str(file or written(tmp_path, text)), "--isolated"]) == 2
    assert not (tmp_path / "ran").exists()
    said = capsys.readouterr()
    assert not said.out
    return said.err


@pytest.fixture
def linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(("where", "what"), [("platform", "darwin"), ("platform", "win32"), ("machine", "riscv64")])
def test_elsewhere_it_is_refused(tmp_path, monkeypatch, capsys, linux, where, what):
    monkeypatch.setattr(sys, "platform", what) if where == "platform" else monkeypatch.setattr(
        platform, "machine", lambda: what
    )
    assert "--isolated needs Linux on x86-64 or 64-bit ARM" in refused(tmp_path, capsys)


def test_without_bubblewrap_it_is_refused_and_how_to_install_it_is_said(tmp_path, monkeypatch, capsys, linux):
    monkeypatch.setattr(isolation.shutil, "which", lambda name: None)
    said = refused(tmp_path, capsys)
    for how in ("apt install bubblewrap (Debian, Ubuntu)", "dnf install bubblewrap", "pacman -S bubblewrap (Arch)"):
        assert how in said


@pytest.mark.parametrize(
    "why", ["bwrap: Unknown option --disable-userns", "bwrap: No permissions to create a namespace."]
)
def test_where_bubblewrap_cannot_begin_its_reason_is_said(tmp_path, monkeypatch, capsys, linux, why):
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho '{why}' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert f"--isolated is not possible here: {why.rstrip('.')}. It needs bubblewrap 0.8 or later" in refused(
        tmp_path, capsys
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [(lambda path: path.symlink_to("other.py"), "a link may lead to what others have handed in"),
     (os.mkfifo, "--isolated reads a plain file"), (Path.mkdir, "has no file of answers"),
     (lambda path: None, "mine.py': No such file or directory.")],
    ids=["link", "pipe", "folder", "nothing"],
)  # fmt: skip
def test_what_is_no_plain_file_is_refused(tmp_path, capsys, make, says):
    (tmp_path / "other.py").write_text("largest_e4m3 = 448\n")
    make(tmp_path / "mine.py")
    assert says in refused(tmp_path, capsys, tmp_path / "mine.py")
