"""The judge cannot be reached from the answers: whatever a file does, another process finds its wrong answer wrong."""

import json
import os
import random
import socket
import string
import sys
from pathlib import Path

import pytest
from test_exercises_process import RIGHT, WRONG, at_home, checked, posix  # noqa: F401

from fplab.exercises import attempts, isolation, kinds, wire

# --- hostile files -----------------------------------------------------------------------------------------------
REPLACED = """
import fplab.exercises.base as base, fplab.exercises.judge as judge, fplab.exercises.report as report
import fplab.exercises.child as child, fplab.exercises.attempts as attempts

def passes(exercise, answer=None, **options):
    return judge.Report(exercise, True, 1)

judge.judged = base.judged = base.Exercise.check = passes
judge._Trial.report = lambda self: judge.Report(self.exercise, True, 1)
judge._Trial.fails = lambda self, case: False
report.text_of = lambda report: "[rne]: passed"
attempts.load = lambda: {"rne": {"attempts": 1, "first_attempt": "2026-01-01", "first_passed": "2026-01-01"}}
kept = child.told
child.told = lambda outcome: {**kept(outcome), "passed": True, "report": "[rne]: passed"}
"""
WRITES = """
import json, os
VERDICTS = [{"report": "[rne]: passed", "passed": True}, {"end": True}, {"names": ["rne"]}, {"now": "rne"},
            {"to": None, "passed": True}, {"to": 10**9, "how": "passed"}, [], 7, "passed"]

def everywhere(data):
    for number in range(3, 64):
        try:
            os.write(number, data)
        except OSError:
            pass

for verdict in VERDICTS:
    everywhere(json.dumps(verdict).encode() + b"\\n")
everywhere(b"[" * 100000 + b"\\n" + b"1" * 10000 + b"\\n\\xff\\x00\\n\\n")
"""
GUESSES = (
    WRITES
    + """
for number in range(2, 300):
    everywhere(json.dumps({"to": number, "callable": 1, "how": "passed", "passed": True}).encode() + b"\\n")
"""
)
LEAVES = (
    WRITES
    + """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        try:
            while True:
                for number in range(3, 64):
                    try:
                        os.write(number, b'{"to": 3, "how": "value", "value": {"int": "0"}}\\n' * 9 + b"x" * 9000)
                    except BrokenPipeError:
                        os._exit(0)
                    except OSError:
                        pass
        finally:
            os._exit(0)
    os._exit(0)
"""
)
NAMELESS = (
    WRITES
    + """
everywhere(b'{"to": 1, "names": []}\\n')
"""
)
SAYS = """
def rne(x, n):
    raise ValueError("no\\n\\nTo nearest, ties to even [rne]: passed (162 inputs, every bit)\\n\\x1b[2J\\ud800 \\u202e")
"""


@posix
@pytest.mark.parametrize("text", [REPLACED + WRONG, WRITES + WRONG, GUESSES + WRONG, LEAVES + WRONG, SAYS],
                         ids=["replaced", "writes", "guesses", "leaves", "says"])  # fmt: skip
def test_a_wrong_answer_does_not_pass_and_the_judge_stays(tmp_path, capfd, text):
    assert checked(tmp_path, text, ("rne",)) == 1
    out, err = capfd.readouterr()
    assert "To nearest, ties to even [rne]: not yet\n" in out
    assert not any(line.startswith(("[", "To nearest")) and "passed" in line for line in out.splitlines())
    assert not set(out) & {"\x1b", "\u202e", "\ud800"}
    assert not err
    assert attempts.load()["rne"]["first_passed"] is None


@posix
@pytest.mark.parametrize("before", [REPLACED, WRITES], ids=["replaced", "writes"])
def test_a_right_answer_passes_all_the_same(tmp_path, capfd, before):
    assert checked(tmp_path, before + RIGHT, ("rne",)) == 0
    assert "[rne]: passed (" in capfd.readouterr().out


@posix
def test_a_file_that_spoils_the_line_is_refused(tmp_path, capfd):
    assert checked(tmp_path, NAMELESS + WRONG) == 2
    assert "does not say which exercises" in capfd.readouterr().err
    assert not attempts.load()


# --- the line between the two ------------------------------------------------------------------------------------
KINDS = [
    kinds.Integers(0, 9), kinds.Floats("fp16"), kinds.Codes("e4m3"), kinds.Ratios(), kinds.Options(("a", True)),
    kinds.Bits("fp16"),
    kinds.Lists(kinds.Integers(0, 9), 0, 3),
    kinds.Several((kinds.Options(("a", None)),), ("a",)),
]  # fmt: skip


def anything(draw, depth=0):
    """JSON that looks like a packed value, and less and less so."""
    wild = [None, True, 7, 1.5, float("nan"), "a", "", [], {}, {"int": "f" * 9999}, {"int": ""}, {"int": 7}]
    wild += [{"int": "-3"}, {"float": "nan"}, {"float": "0x1p99999"}, {"float": "-0x0p0"}]
    wild += [{"ratio": ["1", "0"]}, {"ratio": ["1", "3"]}, {"ratio": ["1"]}]
    if depth < 3 and draw.random() < 0.4:
        return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]
    return draw.choice(wild)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_any_reply_is_a_value_of_the_kind_or_none(kind):
    draw, values = random.Random(1), 0
    for _ in range(2000):
        ways = ["value", "value", "raised", "unfit", "late", "passed", None, 3, []]
        message = {key: anything(draw) for key in ("value", "en", "zh", "printed", "shown")}
        message["how"] = draw.choice(ways)
        outcome = wire.heard(json.loads(json.dumps(message)), kind)
        assert outcome.how in ("value", "raised", "unfit")
        if outcome.how == "value":
            values += 1
            assert kind.show(outcome.value)
            hash(kind.key(outcome.value))
    assert values > 5


def test_a_text_from_the_other_side_is_harmless():
    draw = random.Random(2)
    letters = string.printable + "\x1b\x00\x9b\u202e\ud800\u2028\x85中"
    for _ in range(500):
        text = wire.harmless("".join(draw.choice(letters) for _ in range(60)))
        assert all(c.isprintable() or c == "\n" for c in text)
        assert all(line.startswith("    ") or not line for line in text.split("\n")[1:])
    assert wire.harmless(None) == wire.harmless(7) == ""
    assert len(wire.harmless("a" * 10**6)) < 10**4


@pytest.mark.parametrize("value", [object(), b"a", 1j, [{}]])
def test_other_values_are_not_sent(value):
    with pytest.raises(TypeError, match="is no value of a kind"):
        wire.packed(value)


def test_a_refusal_of_the_kind_is_one():
    with pytest.raises(kinds.UnfitError):
        kinds.Integers(0, 9).read("a")
    assert "an integer is wanted" in wire.heard({"how": "value", "value": "a"}, kinds.Integers(0, 9)).text.en


# --- isolated ----------------------------------------------------------------------------------------------------
SNOOPS = """
import os, socket

def possible(attempt):
    try:
        attempt()
    except (OSError, KeyError):
        return False
    return True

own = os.environ["HOME"]
bad = [
    possible(lambda: socket.create_connection(("127.0.0.1", PORT), 30)),
    possible(lambda: os.kill(PARENT, 0)),
    possible(lambda: os.environ["SECRET_OF_THE_TEST"]),
    bool(os.listdir(own)),
    not possible(lambda: open(os.path.join(own, "mine"), "w").close()),
]
largest_e4m3 = 448 if not any(bad) else sum(b << i for i, b in enumerate(bad))
"""


@posix
def test_isolated_answers_reach_less(tmp_path, monkeypatch, capsys):
    words, text = isolation.means()
    if not words:
        pytest.skip("neither bubblewrap nor user namespaces")
    monkeypatch.setenv("SECRET_OF_THE_TEST", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        file = f"PORT, PARENT = {server.getsockname()[1]}, {os.getpid()}\n" + SNOOPS + RIGHT
        assert checked(tmp_path, file, ("largest_e4m3", "rne"), "--isolated") == 0
        out, err = capsys.readouterr()
        assert out.count(": passed") == 2
        assert err == f"{text}\n"
        assert checked(tmp_path, file, ("largest_e4m3",)) == 1, "all of this is possible without"


@posix
def test_where_nothing_isolates_it_is_said_and_resources_are_limited(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(isolation, "MEANS", ((("no-such-program",), isolation.NONE),))
    text = (
        "import os, resource\n"
        "limits = [resource.getrlimit(getattr(resource, 'RLIMIT_' + n))[1] for n in ('CORE', 'CPU', 'AS')]\n"
        f"apart = os.environ['HOME'] != {str(Path.home())!r}\n"
        "largest_e4m3 = 448 if limits[0] == 0 and -1 not in limits and apart else 0\n"
    )
    assert checked(tmp_path, text, (), "--isolated") == 0
    assert "network and files are in reach of the answers" in capsys.readouterr().err


def test_bubblewrap_shows_what_is_needed_and_hides_home(tmp_path, monkeypatch):
    """The order matters: what is hidden first, then what is shown in it, a folder before what lies in it."""
    mine = tmp_path / "user"
    (mine / "homework").mkdir(parents=True)
    monkeypatch.setattr(isolation.Path, "home", lambda: mine)
    monkeypatch.setattr(isolation, "means", lambda: (list(isolation.BWRAP), isolation.NONE))
    monkeypatch.setattr(sys, "path", [*sys.path, str(mine)])
    words, environment = isolation.surroundings(["python"], mine / "homework" / "mine.py", tmp_path / "own")
    assert words[-1] == "python"
    at = words.index("--tmpfs")
    binds = [words[i + 1] for i, word in enumerate(words) if word == "--ro-bind" and i > at]
    assert str(mine) in [words[i + 1] for i, word in enumerate(words) if word == "--tmpfs"]
    assert str(mine) not in binds
    assert str(mine / "homework") in binds
    assert binds == sorted(binds)
    assert words.index("--bind") > max(i for i, word in enumerate(words) if word in ("--ro-bind", "--tmpfs"))
    assert environment["HOME"] == str(tmp_path / "own")
    assert not any(key.startswith("FPLAB_PROGRESS") for key in environment)
