"""What ``fplab exercise`` prints."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..columns import as_csv, padded, width_of, wrapped
from ..draw.page import bracketed
from ..errors import LabError, unknown
from ..language import lang
from ..storage import demand_possible, write_text
from ..words import Text, joined, say
from . import grading, isolation, progress
from .base import Exercise, noted
from .chapters import exercise, registry
from .drawn import drawn
from .judge import judged
from .process import Child, There, run_file
from .tasks import LEVELS, Question

Arguments = argparse.Namespace
MARKS = say("✓ solved, · tried")
HINT = say("Hint: {hint}")
SCORE = say("{right} of {all} solved")
KEPT = say("kept in {path}")
STARTED = say("{n} exercises wait in {path}; fplab exercise check {path} looks at those that you have answered.")
WRITTEN = say("{n} rows in {path}")
GRADED = say("{pupil}: {points:g} points, {right} of {n} passed{note}")
FORMS = ("file", "nbgrader", "classroom")


def list_all(args: Arguments) -> int:
    """Print every exercise by chapter, with what was solved."""
    done, exercises = progress.load(), registry()
    wide = max(map(len, exercises))
    titles = max(width_of(str(question.title)) for question in exercises.values())
    chapter = 0
    for question in exercises.values():
        if question.chapter.number != chapter:
            chapter = question.chapter.number
            print(f"\n{chapter}. {question.chapter.title}")
        entry = done.get(question.name)
        mark = " " if entry is None else "✓" if entry["first_passed"] else "·"
        print(f"  {mark} {question.name:<{wide}}  {padded(str(question.title), titles)}  {LEVELS[question.level - 1]}")
    print(f"\n{bracketed(_score(), MARKS)}")
    return 0


def _score() -> Text:
    rows = progress.rows()
    return SCORE.fill(right=sum(row["passed"] == "yes" for row in rows), all=len(rows))


def start(args: Arguments) -> int:
    """Write a file with what a chapter asks, and a place for each answer; a file that is there is left alone."""
    questions, chosen = _asked(args.chapter, args.seed, args.file.stem)
    demand_possible(args.file)
    if args.file.exists():
        another = f"fplab exercise start {args.chapter} {chosen}.py"
        raise LabError(f"{str(args.file)!r} is there already, and is kept. Name another file: {another}")
    write_text(args.file, _sheet(questions))
    print(STARTED.fill(n=len(questions), path=args.file))
    return 0


def _asked(chapter: str, seed: int | None, pupil: str) -> tuple[list[Exercise], str]:
    """The exercises of a chapter, or with a seed the drawn ones of a pupil; and a name for their file."""
    if seed is not None and chapter.lower() == "drawn":
        return list(drawn(seed, pupil).values()), "drawn"
    chapters = {question.chapter.name: question.chapter for question in registry().values()}
    numbers = {form.format(question.number): question for question in chapters.values() for form in ("{}", "{:02}")}
    if (chosen := {**chapters, **numbers}.get(chapter.lower())) is None:
        listed = [f"{question.number}{say(' or ')}{name}" for name, question in chapters.items()]
        raise unknown("chapter", chapter, listed, chapters)
    return [question for question in registry().values() if question.chapter == chosen], chosen.name


def hand_out(args: Arguments) -> int:
    """Write a chapter's exercises, or drawn ones: a file a pupil, an nbgrader assignment or a Classroom template."""
    pupils = args.pupils.read_text(encoding="utf-8").split() if args.pupils else ["answers"]
    files: dict[Path, str] = {}
    for pupil in pupils if args.form == "file" else ["answers"]:
        questions, name = _asked(args.chapter, args.seed, pupil)
        if args.form == "nbgrader":
            files[args.folder / "source" / name / f"{name}.ipynb"] = grading.notebook(questions, _answer, args.teacher)
            continue
        files[args.folder / f"{pupil}.py"] = _sheet(questions)
        if args.form == "classroom":
            files[args.folder / ".github" / "classroom" / "autograding.json"] = grading.autograding(questions)
        if args.teacher:
            solved = [grading.IMPORTS, *(str(question.solution()) for question in questions)]
            files[args.folder / "solutions" / f"{pupil}.py"] = "\n\n".join(solved) + "\n"
    for file in files:
        demand_possible(file)
        if file.exists():
            raise LabError(f"{str(file)!r} is there already, and is kept. Name another folder.")
    for file, text in files.items():
        write_text(file, text)
        print(file)
    return 0


def _sheet(questions: Sequence[Question]) -> str:
    """A file of exercises that are still open, which imports what solutions use."""
    return "\n\n".join([grading.IMPORTS, *map(_stub, questions)])


def _stub(question: Question) -> str:
    """What an exercise asks as a comment, and an answer that is still open; letters stand as they are written in it."""
    statement = re.sub("^([a-z]): ", r'"\1": ', str(question.statement), flags=re.MULTILINE)
    about = [f"--- {bracketed(question.title, LEVELS[question.level - 1])}", *statement.split("\n")]
    lines = [f"# {line}".rstrip() for text in about for line in wrapped(text, 98) or [""]]
    return "\n".join([*lines, _answer(question), ""])


def _answer(question: Question) -> str:
    """An answer that is still open."""
    return question.signature + ("\n    ..." if question.signature.endswith(":") else "")


def check_file(args: Arguments) -> int:
    """Check the answers of a file; the status is 1 where one is wrong."""
    if not 0 < args.limit <= 3600:
        raise LabError(f"--limit={args.limit:g} is no number of seconds; allowed: above 0, to 3600.")
    if args.file.is_dir():
        return check_folder(args)
    questions = grading.questions_for(args.seed, args.file.stem)
    file, names = str(args.file), [name if name in questions else exercise(name).name for name in args.names]
    if args.isolated:
        isolation.demand(Path(file))
        file = os.path.abspath(file)  # it runs in another folder
    failed = 0
    with Child(args.limit, Path(file) if args.isolated else None) as child:
        answered = run_file(child, file, tuple(questions))
        if args.isolated:
            print(isolation.ISOLATED, file=sys.stderr)
        if missing := [name for name in names if name not in answered]:
            raise LabError(f"{file!r} has no answer to {', '.join(missing)}. It has: {', '.join(answered)}.")
        for i, name in enumerate(names or answered):
            if child.process is None:  # it ended at the answer before
                run_file(child, file, tuple(questions))
            report = judged(questions[name], There(questions[name], child))
            own = report if args.isolated else noted(report)  # answers of others are nobody's own progress
            print(("\n" if i else "") + str(own), flush=True)  # at once: the next may take its time
            failed |= not report.passed
    return int(failed)


def check_folder(args: Arguments) -> int:
    """Grade a folder of files, print a line for each, and write the CSV that is asked for."""
    for file in filter(None, (args.csv, args.nbgrader)):
        demand_possible(file)

    def tick(graded: grading.Graded) -> None:
        row = grading.table([graded])[1]
        note = say("; {why}", why=graded.note) if graded.note else ""
        print(GRADED.fill(pupil=graded.pupil, points=row[1], right=row[3], n=len(graded.points), note=note), flush=True)

    graded = grading.grade(args.file, args.names, seed=args.seed, limit=args.limit, isolated=args.isolated, tick=tick)
    if args.csv:
        rows = grading.table(graded, args.names)
        write_text(args.csv, "\ufeff" + as_csv(rows))  # the mark by which spreadsheets know UTF-8
        print(WRITTEN.fill(n=len(rows) - 1, path=args.csv))
    if args.nbgrader:
        write_text(args.nbgrader, grading.gradebook(graded, args.file.resolve().name, args.names))
        print(WRITTEN.fill(n=len(graded), path=args.nbgrader))
    return 0


def show_one(args: Arguments) -> int:
    question = exercise(args.name)
    print(question)
    if args.hint:
        print(f"\n{HINT.fill(hint=question.hint)}")
    return 0


def show_solution(args: Arguments) -> int:
    if not args.teacher:
        name = exercise(args.name).name
        raise LabError(f"the solution of {name!r} is shown with --teacher; --hint of fplab exercise show helps before.")
    print(exercise(args.name).solution())
    return 0


def show_progress(args: Arguments) -> int:
    """Print what was solved, or write it as CSV."""
    if args.csv is None:
        print(joined((_score(), KEPT.fill(path=progress.path())), say("; ")))
        return 0
    if args.csv.is_dir():
        raise LabError(f"cannot write {str(args.csv)!r}: it is a folder.")
    try:
        progress.export(args.csv)
    except OSError as error:
        raise LabError(f"cannot write {str(args.csv)!r}: {error.strerror}.") from None
    print(WRITTEN.fill(n=len(progress.rows()), path=args.csv))
    return 0


ACTIONS = {
    "list": list_all, "start": start, "check": check_file, "show": show_one, "solution": show_solution, "set": hand_out,
    "progress": show_progress,
}  # fmt: skip


def run(args: Arguments) -> int:
    """Do one action, in the language asked for."""
    if args.lang:
        lang(args.lang)
    return ACTIONS[args.action](args)
