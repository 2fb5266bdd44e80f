"""``fplab exercise``, as a learner and a teacher meet it."""

import csv

import pytest
from answers_here import ChildHere

import fplab
from fplab import cli
from fplab.exercises import command

GOOD = "def rne(x, n):\n    return round(x / 2**n)\n\nlargest_e4m3 = 448\n"


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(command, "Child", lambda limit, isolated: ChildHere(limit))
    fplab.lang("en")
    yield
    fplab.lang("en")


def answers(tmp_path, text):
    file = tmp_path / "answers.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_list_shows_every_exercise_and_what_is_solved(tmp_path, capsys):
    assert cli.main(["exercise", "check", answers(tmp_path, GOOD + "absorbed = 1\n")]) == 1
    capsys.readouterr()
    assert cli.main(["exercise", "list"]) == 0
    text = capsys.readouterr().out
    assert "2. Rounding" in text
    assert "  ✓ rne " in text
    assert "  · absorbed " in text
    assert "    v100_block " in text
    assert f"2 of {len(fplab.exercises.names())} solved" in text


def test_check_passes_and_fails(tmp_path, capsys):
    assert cli.main(["exercise", "check", answers(tmp_path, GOOD)]) == 0
    text = capsys.readouterr().out
    assert "[rne]: passed" in text
    assert "[largest_e4m3]: passed" in text
    file = answers(tmp_path, GOOD.replace("round(x / 2**n)", "x >> n"))
    assert cli.main(["exercise", "check", file]) == 1
    assert "Mistake: This is truncation" in capsys.readouterr().out
    assert cli.main(["exercise", "check", file, "largest_e4m3"]) == 0
    assert "rne" not in capsys.readouterr().out


@pytest.mark.parametrize(("text", "message", "limit"),
                         [("def rne(x, n)\n", "is not Python: expected ':' (line 1).", ()),
                          ("1 / 0\n", "does not run: it raises ZeroDivisionError", ()),
                          ("x = 1\n", "answers no exercise. Name a function or a value as the exercise is named",
                           ())])  # fmt: skip
def test_files_that_cannot_be_checked(tmp_path, capsys, text, message, limit):
    assert cli.main(["exercise", "check", *limit, answers(tmp_path, text)]) == 2
    assert message in capsys.readouterr().err


def test_requests_that_cannot_be_honoured(tmp_path, capsys):
    for words, message in (
        (["check", str(tmp_path / "none.py")], "cannot read"),
        (["check", answers(tmp_path, GOOD), "absorbed"], "has no answer to absorbed. It has: largest_e4m3, rne."),
        (["show", "rnn"], "unknown exercise 'rnn'"),
        (["show", "4"], "'4' is a chapter; its exercises: stalling_sum, harmonic_stop, pairwise_sum, kahan_sum."),
        (["check", "x.py", "sums"], "'sums' is a chapter; its exercises: stalling_sum, harmonic_stop, pairwise_sum, "),
        (["check", answers(tmp_path, GOOD), "--limit", "-1"], "--limit=-1 is no number of seconds"),
        (["progress", "--csv", str(tmp_path)], "cannot write"),
        (["progress", "--csv", "."], "fplab: cannot write '.': it is a folder."),
        (["progress", "--csv", "/"], "fplab: cannot write '/': it is a folder."),
        ([], "the following arguments are required: ACTION"),
    ):
        assert cli.main(["exercise", *words]) == 2
        assert message in capsys.readouterr().err


def test_show_and_solution(capsys):
    assert cli.main(["exercise", "show", "rne", "--hint"]) == 0
    text = capsys.readouterr().out
    assert "    def rne(x, n):" in text
    assert "Hint: Compare x mod 2^n" in text
    assert cli.main(["exercise", "show", "rne", "--lang", "zh"]) == 0
    assert "平局取偶" in capsys.readouterr().out
    assert cli.main(["exercise", "solution", "rne", "--lang", "en"]) == 0
    assert "quotient % 2 == 1" in capsys.readouterr().out


def test_progress_as_csv(tmp_path, capsys):
    cli.main(["exercise", "check", answers(tmp_path, GOOD)])
    file = tmp_path / "progress.csv"
    assert cli.main(["exercise", "progress", "--csv", str(file)]) == 0
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = {row["exercise"]: row["passed"] for row in csv.DictReader(lines)}
    assert rows["rne"] == rows["largest_e4m3"] == "yes"
    assert rows["absorbed"] == "no"
    assert cli.main(["exercise", "progress"]) == 0
    assert "2 of " in capsys.readouterr().out


@pytest.mark.parametrize("chapter", ["4", "04", "sums", "Sums"])
def test_a_chapter_is_started_and_what_is_still_open_is_not_judged(tmp_path, capsys, chapter):
    file = tmp_path / "my answers.py"
    assert cli.main(["exercise", "start", chapter, str(file)]) == 0
    named = [one for one in fplab.exercises.registry().values() if one.chapter.name == "sums"]
    out = capsys.readouterr().out
    assert out.startswith(f"{len(named)} exercises wait in {file}; fplab exercise check {file} looks at those")
    text = file.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100
    for one in named:
        assert f"\n{one.signature}" in text
    assert cli.main(["exercise", "check", str(file)]) == 2
    assert "answers no exercise" in capsys.readouterr().err
    implemented = next(one for one in named if one.signature.startswith("def"))
    dots = f"{implemented.signature}\n    ..."
    assert dots in text
    file.write_text(text.replace(dots, dots.replace("...", "return 0.0")), encoding="utf-8")
    assert cli.main(["exercise", "check", str(file)]) == 1
    out = capsys.readouterr().out
    assert [f"[{one.name}]" in out for one in named] == [one is implemented for one in named]
    assert cli.main(["exercise", "start", chapter, str(file)]) == 2
    wanted = f"{str(file)!r} is there already, and is kept. Name another file: fplab exercise start {chapter} sums.py"
    assert wanted in capsys.readouterr().err
    assert "return 0.0" in file.read_text(encoding="utf-8")


def test_every_chapter_can_be_started_in_chinese_and_answered_by_its_solutions(tmp_path, capsys):
    for one in fplab.exercises.registry().values():
        file = tmp_path / f"{one.chapter.name}.py"
        if not file.exists():
            assert cli.main(["exercise", "start", one.chapter.name, str(file), "--lang", "zh"]) == 0
        compile(file.read_text(encoding="utf-8"), str(file), "exec")
    assert "道习题" in capsys.readouterr().out


def test_an_unknown_chapter_suggests_the_nearest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["exercise", "start", "suns"]) == 2
    said = capsys.readouterr().err
    assert "unknown chapter 'suns'. Allowed: 1 or bits, " in said
    assert said.endswith("Did you mean 'sums'?\n")
    assert list(tmp_path.iterdir()) == []
