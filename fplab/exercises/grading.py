"""A class: a folder of files graded into a CSV, and exercises as nbgrader and GitHub Classroom take them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..columns import as_csv, harmless
from ..errors import LabError
from . import isolation
from .base import Exercise
from .chapters import registry
from .drawn import drawn
from .judge import judged
from .process import Child, There, run_file
from .report import Report
from .tasks import Question

# The columns of nbgrader's own export, nbgrader/plugins/export.py, and its schema of a cell's metadata, version 3.
GRADEBOOK = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
             "late_submission_penalty", "score", "max_score")  # fmt: skip
BARE = {"schema_version": 3, "grade": False, "locked": True, "solution": False, "task": False}
IMPORTS = "import math\nfrom fractions import Fraction\n\nimport numpy as np\n"  # what solutions use
INSTALL, ANSWERS = "python -m pip install 'fplab[lab]'", "answers.py"


@dataclass(frozen=True)
class Graded:
    """A pupil's file. ``points``: by exercise, of those that it answers; ``note``: why it gives none."""

    pupil: str
    points: Mapping[str, float]
    note: str = ""


def worth(report: Report) -> float:
    """The points of an answer: an exercise's level where it is right; of a wrong function, half of the share of the
    inputs on which it is right."""
    level = report.exercise.level
    return float(level) if report.passed else round(level * report.share / 2, 2)


def files_of(folder: Path) -> dict[str, Path]:
    """The files of a folder by pupil: ``ann.py``, or ``ann/answers.py`` where a folder in it holds one file."""
    own = {path.stem: path for path in sorted(folder.glob("*.py"))}
    below = {path.name: list(path.glob("*.py")) for path in sorted(folder.iterdir()) if path.is_dir()}
    files = {**own, **{name: paths[0] for name, paths in below.items() if len(paths) == 1}}
    if not files:
        raise LabError(f"{str(folder)!r} has no file of answers: NAME.py, or NAME/answers.py.")
    return files


def questions_for(seed: int | None, pupil: str) -> dict[str, Exercise]:
    """The exercises, and with a seed those whose numbers are this pupil's."""
    return registry() if seed is None else {**registry(), **drawn(seed, pupil)}


def grade(
    folder: Path, names: Sequence[str] = (), *, seed: int | None = None, limit: float = 5.0, isolated: bool = False,
    tick: Callable[[Graded], None] = lambda graded: None,
) -> list[Graded]:  # fmt: skip
    """Grade the files of a folder; a file that does not run has no points and a note, and the next one is graded.

    ``names``: of exercises, all unless given. ``seed``: of a set whose numbers are drawn. Nothing enters anybody's
    progress. The next file's process starts while one is graded.
    """
    graded, files = [], list(files_of(folder).items())
    children = [Child(limit, path.absolute() if isolated else None) for _, path in files]
    try:
        for i, (pupil, path) in enumerate(files):
            for child in children[i : i + 2]:
                if not isolated:
                    child.start()
            questions = questions_for(seed, pupil)
            try:
                if isolated:
                    isolation.demand(path)
                wanted = {name: questions[name] for name in names or questions}
                graded.append(Graded(pupil, _points(children[i], path.absolute(), wanted)))
            except LabError as error:
                graded.append(Graded(pupil, {}, harmless(str(error), " ")))
            children[i].close()
            tick(graded[-1])
    finally:
        for child in children:
            child.close()
    return graded


def _points(child: Child, path: Path, questions: Mapping[str, Exercise]) -> dict[str, float]:
    points = {}
    for name in run_file(child, str(path), tuple(questions)):
        if child.process is None:  # it ended at the answer before
            run_file(child, str(path), tuple(questions))
        points[name] = worth(judged(questions[name], There(questions[name], child)))
    return points


def table(graded: Sequence[Graded], names: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Rows with a head: name, points, of how many, exercises passed, each exercise's points, a note."""
    asked = list(names) or [name for name in _levels() if any(name in who.points for who in graded)]
    levels, most = _levels(), sum(_levels()[name] for name in asked)
    rows: list[tuple[Any, ...]] = [("name", "points", "of", "passed", *asked, "note")]
    for who in graded:
        right = sum(points == levels[name] for name, points in who.points.items())
        each = (who.points.get(name, "") for name in asked)
        rows.append((_text(who.pupil), round(sum(who.points.values()), 2), most, right, *each, _text(who.note)))
    return rows


def gradebook(graded: Sequence[Graded], assignment: str, names: Sequence[str] = ()) -> str:
    """The same as nbgrader's ``export`` writes it."""
    before, after = (assignment, "", ""), ("", "", "")  # neither due date nor time stamp, neither names nor address
    rows = ((*before, name, *after, points, 0.0, points, float(most))
            for name, points, most, *_ in table(graded, names)[1:])  # fmt: skip
    return as_csv([GRADEBOOK, *rows])


def _text(cell: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _levels() -> dict[str, int]:
    return {name: question.level for name, question in questions_for(0, "").items()}


# --- what is handed out -------------------------------------------------------------------------------------------
def autograding(questions: Iterable[Question]) -> str:
    """GitHub Classroom's ``.github/classroom/autograding.json``: a test an exercise, worth its level."""
    tests = [{"name": question.name, "setup": INSTALL, "run": f"fplab exercise check {ANSWERS} {question.name}",
              "input": "", "output": "", "comparison": "included", "timeout": 10, "points": question.level}
             for question in questions]  # fmt: skip
    return json.dumps({"tests": tests}, indent=2) + "\n"


def notebook(questions: Iterable[Question], stub: Callable[[Question], str], teacher: bool) -> str:
    """An nbgrader assignment: of each exercise what it asks, a cell for the answer, a cell that gives its points.

    ``teacher``: with the solutions between nbgrader's marks, which its ``generate_assignment`` takes out again.
    """
    cells = [_cell("setup", f"{IMPORTS}\nimport fplab", "code")]
    for question in questions:
        answer = stub(question)
        if teacher:
            solved = str(question.solution()).partition("\n\n# ")[0]
            answer = f"### BEGIN SOLUTION\n{solved}\n### END SOLUTION"
        asked = f"### {question.title}\n\n{question.statement}"
        check = f'score = fplab.exercises.points("{question.name}", {question.name})\nassert score > 0\nscore'
        cells.append(_cell(f"{question.name}-text", asked, "markdown"))
        cells.append(_cell(question.name, answer, "code", locked=False, solution=True))
        cells.append(_cell(f"{question.name}-points", check, "code", grade=True, points=question.level))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1,
                      ensure_ascii=False) + "\n"  # fmt: skip


def _cell(name: str, source: str, kind: str, **marks: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": name.replace("_", "-"), "source": source, **own,
            "metadata": {"nbgrader": {**BARE, "grade_id": name, **marks}}}  # fmt: skip
