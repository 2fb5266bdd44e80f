"""``fplab exercise``, as a learner and a teacher meet it."""

import csv
import json
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
from answers_here import ChildHere

import fplab
from fplab import cli
from fplab.exercises import command, grading, isolation
from fplab.exercises.drawn import drawn

GOOD = "def rne(x, n):\n    return round(x / 2**n)\n\nlargest_e4m3 = 448\n"


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "kept"))
    for module in (command, grading):
        monkeypatch.setattr(module, "Child", lambda limit, isolated: ChildHere(limit))
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
        ([], "arguments are required: {list,start,set,check,show,solution,progress}. See"),
    ):
        assert cli.main(["exercise", *words]) == 2
        assert message in capsys.readouterr().err


def test_show_and_solution(capsys):
    assert cli.main(["exercise", "show", "rne", "--hint"]) == 0
    text = capsys.readouterr().out
    assert "    def rne(x, n):" in text
    assert "Hint: Compare x mod 2^n" in text
    assert cli.main(["exercise", "show", "rne", "--lang", "zh"]) == 0
    assert "恰在正中时取偶" in capsys.readouterr().out
    assert cli.main(["exercise", "solution", "rne", "--lang", "en"]) == 2
    assert "the solution of 'rne' is shown with --teacher" in capsys.readouterr().err
    assert cli.main(["exercise", "solution", "rne", "--teacher"]) == 0
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
    assert "\nimport numpy as np\n" in text
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


def test_letters_are_written_as_they_are_answered(tmp_path, capsys):
    file = tmp_path / "bits.py"
    cli.main(["exercise", "start", "bits", str(file)])
    text = file.read_text(encoding="utf-8")
    assert '\n# "c": BF16 has FP32\'s range' in text
    file.write_text(text.replace("bf16_or_fp16 = ...", 'bf16_or_fp16 = "c"'), encoding="utf-8")
    assert cli.main(["exercise", "check", str(file)]) == 0


def test_an_unknown_chapter_suggests_the_nearest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["exercise", "start", "suns"]) == 2
    said = capsys.readouterr().err
    assert "unknown chapter 'suns'. Allowed: 1 or bits, " in said
    assert said.endswith("Did you mean 'sums'?\n")
    assert list(tmp_path.iterdir()) == []


# --- a class ------------------------------------------------------------------------------------------------------
def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_folder_is_graded_into_a_csv_and_enters_no_progress(tmp_path, capsys):
    folder = tmp_path / "7b"
    (folder / "cem").mkdir(parents=True)
    (folder / "ann.py").write_text(GOOD)
    (folder / "bo.py").write_text("def rne(x, n:\n")
    (folder / "cem" / "answers.py").write_text("def rne(x, n):\n    return x >> n\n\nlargest_e4m3 = 480\n")
    (folder / "=dan.py").write_text("raise SystemExit")
    grades, book = tmp_path / "grades.csv", tmp_path / "book.csv"
    assert cli.main(["exercise", "check", str(folder), "--csv", str(grades), "--nbgrader", str(book)]) == 0
    out = capsys.readouterr().out
    assert "ann: 2 points, 2 of 2 passed" in out
    assert "bo: 0 points, 0 of 0 passed; " in out
    rows = {row["name"]: row for row in rows_of(grades)}
    assert set(rows) == {"ann", "bo", "cem", "'=dan"}
    assert rows["ann"] == {"name": "ann", "points": "2.0", "of": "2", "passed": "2", "largest_e4m3": "1.0",
                           "rne": "1.0", "note": ""}  # fmt: skip
    assert 0 < float(rows["cem"]["rne"]) < 0.5, "part of the credit: truncation is right on some inputs"
    assert rows["cem"]["largest_e4m3"] == "0.0"
    assert "is not Python" in rows["bo"]["note"]
    scores = {row["student_id"]: row for row in rows_of(book)}
    assert tuple(scores["ann"]) == grading.GRADEBOOK
    assert (scores["ann"]["assignment"], scores["ann"]["score"], scores["ann"]["max_score"]) == ("7b", "2.0", "2.0")
    assert fplab.exercises.progress.load() == {}
    assert cli.main(["exercise", "check", str(folder / "cem"), "absorbed"]) == 0
    assert "answers: 0 points, 0 of 0 passed" in capsys.readouterr().out
    (tmp_path / "none").mkdir()
    assert cli.main(["exercise", "check", str(tmp_path / "none")]) == 2
    assert "has no file of answers: NAME.py, or NAME/answers.py." in capsys.readouterr().err


def test_answers_of_others_are_nobodys_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "demand", lambda file: None)
    assert cli.main(["exercise", "check", answers(tmp_path, GOOD), "--isolated"]) == 0
    assert fplab.exercises.progress.load() == {}


FORMULAS = {  # what the answers are, a second time
    "drawn_count": lambda low, binades: 1024 * binades,
    "drawn_tie": lambda x: x + 1 if x % 4 == 3 else x - 1,
    "drawn_stop": lambda k: Fraction(2**11, 2**k),
    "drawn_scale": lambda k: k - 14,
    "drawn_update": lambda e: e - 11,
    "drawn_bytes": lambda ranks, share, stage, parameters: (
        parameters * {1: 4 * ranks + 12, 2: 2 * ranks + 14, 3: 16}[stage] // ranks
    ),
    "drawn_ring": lambda ranks, share, width, parameters: 2 * (ranks - 1) * share * width,
    "drawn_idle": lambda stages, micro_batches: Fraction(stages - 1, micro_batches + stages - 1),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_drawn_answers_are_what_the_rule_says_and_pupils_have_other_numbers(name):
    seen = [drawn(7, f"pupil {i}")[name] for i in range(40)]
    for one in seen:
        numbers = {field: value for field, value in one.numbers if field in FORMULAS[name].__code__.co_varnames}
        assert FORMULAS[name](**numbers) == one.task.answer
    assert seen[0].check(seen[0].task.answer, remember=False).passed
    assert len({str(one.statement) for one in seen}) >= 8
    assert {one.level for one in seen} == {seen[0].level}
    assert str(drawn(7, "pupil 0")[name].statement) == str(seen[0].statement)


def test_a_drawn_set_is_handed_out_and_graded_by_its_seed(tmp_path, capsys):
    pupils, folder = tmp_path / "pupils.txt", tmp_path / "sets"
    pupils.write_text("ann\nbo\n")
    asked = ["exercise", "set", "drawn", str(folder), "--seed", "7", "--pupils", str(pupils), "--teacher"]
    assert cli.main(asked) == 0
    assert (folder / "ann.py").read_text() != (folder / "bo.py").read_text()
    assert cli.main(asked) == 2
    assert "is there already, and is kept" in capsys.readouterr().err
    solutions = str(folder / "solutions")
    assert cli.main(["exercise", "check", solutions, "--seed", "7", "--csv", str(tmp_path / "g.csv")]) == 0
    assert [(row["name"], row["points"], row["of"]) for row in rows_of(tmp_path / "g.csv")] == [
        ("ann", "12.0", "12"), ("bo", "12.0", "12"),
    ]  # fmt: skip
    (folder / "solutions" / "ann.py").replace(folder / "solutions" / "copied.py")
    capsys.readouterr()
    cli.main(["exercise", "check", solutions, "--seed", "7"])
    assert "copied: 12 points" not in capsys.readouterr().out


AUTOGRADING = {  # as GitHub's documentation and its runner, education/autograding, have it
    "type": "object", "required": ["tests"], "additionalProperties": False,
    "properties": {"tests": {"type": "array", "items": {
        "type": "object", "additionalProperties": False,
        "required": ["name", "setup", "run", "input", "output", "comparison", "timeout", "points"],
        "properties": {
            **{key: {"type": "string"} for key in ("name", "setup", "run", "input", "output")},
            "comparison": {"enum": ["included", "exact", "regex"]}, "timeout": {"type": "number", "maximum": 60},
            "points": {"type": "integer", "minimum": 0},
        },
    }}},
}  # fmt: skip
NBGRADER = {  # jupyter/nbgrader, nbgrader/nbgraderformat/v3.json
    "type": "object", "required": ["schema_version", "grade", "locked", "solution"], "additionalProperties": False,
    "properties": {
        "schema_version": {"const": 3}, "grade_id": {"type": "string", "pattern": r"^[a-zA-Z0-9_\-]*$"},
        **{key: {"type": "boolean"} for key in ("grade", "locked", "solution", "task")},
        "points": {"type": "number", "minimum": 0},
    },
}  # fmt: skip


def test_a_classroom_template_is_of_its_schema_and_its_commands_are_there(tmp_path):
    assert cli.main(["exercise", "set", "sums", str(tmp_path), "--form", "classroom"]) == 0
    tests = json.loads((tmp_path / ".github" / "classroom" / "autograding.json").read_text())
    jsonschema.validate(tests, AUTOGRADING)
    named = [one.name for one in fplab.exercises.registry().values() if one.chapter.name == "sums"]
    assert [one["name"] for one in tests["tests"]] == named
    assert (tmp_path / "answers.py").is_file()
    assert cli.main(tests["tests"][0]["run"].replace("answers.py", str(tmp_path / "answers.py")).split()[1:]) == 2


@pytest.mark.parametrize("teacher", [False, True])
def test_an_nbgrader_assignment_has_its_metadata_and_hides_the_solutions(tmp_path, teacher):
    nbformat = pytest.importorskip("nbformat")
    asked = ["exercise", "set", "bits", str(tmp_path), "--form", "nbgrader"] + ["--teacher"] * teacher
    assert cli.main(asked) == 0
    notebook = nbformat.read(tmp_path / "source" / "bits" / "bits.ipynb", as_version=4)
    nbformat.validate(notebook)
    marks = [cell.metadata.nbgrader for cell in notebook.cells]
    for one in marks:
        jsonschema.validate(one, NBGRADER)
    assert len({one.grade_id for one in marks}) == len(marks)
    named = [one for one in fplab.exercises.registry().values() if one.chapter.name == "bits"]
    assert [one.points for one in marks if one.grade] == [one.level for one in named]
    text = "\n".join(cell.source for cell in notebook.cells)
    assert ("### BEGIN SOLUTION" in text) is teacher
    assert ("largest_e4m3 = 448" in text) is teacher


def test_the_cell_that_grades_gives_the_points(tmp_path):
    """Run as nbgrader runs it: the last value of the cell is the part of the credit."""
    text = json.loads(grading.notebook([fplab.exercises.exercise("rne")], command._answer, True))
    space: dict[str, object] = {}
    setup, _, answer, check = (cell["source"] for cell in text["cells"])
    exec(setup + "\n" + answer + "\n" + check, space)
    assert space["score"] == 1.0
    with pytest.raises(AssertionError):
        exec(setup + "\nrne = 3\n" + check, {})


def test_every_chapters_solutions_have_all_points(tmp_path, capsys):
    chapters = list(dict.fromkeys(one.chapter.name for one in fplab.exercises.registry().values()))
    for name in chapters:
        assert cli.main(["exercise", "set", name, str(tmp_path / name), "--teacher"]) == 0
        (tmp_path / name / "solutions" / "answers.py").rename(tmp_path / f"{name}.py")
        (tmp_path / name / "answers.py").unlink()
    graded = [one for one in grading.grade(tmp_path) if one.pupil in chapters]
    worth = {name: points for one in graded for name, points in one.points.items()}
    assert worth == {name: one.level for name, one in fplab.exercises.registry().items()}
