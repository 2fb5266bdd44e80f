"""The judge cannot be reached from the answers: whatever a file does, another process finds its wrong answer wrong."""

import json
import random
import string

import pytest
from test_exercises_process import RIGHT, WRONG, at_home, checked, posix  # noqa: F401

from fplab.exercises import attempts, kinds, wire

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
        text = wire.legible("".join(draw.choice(letters) for _ in range(60)))
        assert all(c.isprintable() or c == "\n" for c in text)
        assert all(line.startswith("    ") or not line for line in text.split("\n")[1:])
    assert wire.legible(None) == wire.legible(7) == ""
    assert len(wire.legible("a" * 10**6)) < 10**4


@pytest.mark.parametrize("value", [object(), b"a", 1j, [{}]])
def test_other_values_are_not_sent(value):
    with pytest.raises(TypeError, match="is no value of a kind"):
        wire.packed(value)


def test_a_refusal_of_the_kind_is_one():
    with pytest.raises(kinds.UnfitError):
        kinds.Integers(0, 9).read("a")
    assert "an integer is wanted" in wire.heard({"how": "value", "value": "a"}, kinds.Integers(0, 9)).text.en
