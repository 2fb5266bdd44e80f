"""What ``fplab exercise`` prints."""

import argparse
import os
import sys
from pathlib import Path

from ..columns import padded, width_of, wrapped
from ..errors import LabError, unknown
from ..language import lang
from ..storage import demand_possible, write_text
from ..words import Text, say
from . import isolation, progress
from .base import noted
from .chapters import exercise, registry
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
    print(f"\n{_score()}  ({MARKS})")
    return 0


def _score() -> Text:
    rows = progress.rows()
    return SCORE.fill(right=sum(row["passed"] == "yes" for row in rows), all=len(rows))


def start(args: Arguments) -> int:
    """Write a file with what a chapter asks, and a place for each answer; a file that is there is left alone."""
    chapters = {question.chapter.name: question.chapter for question in registry().values()}
    numbers = {form.format(question.number): question for question in chapters.values() for form in ("{}", "{:02}")}
    if (chosen := {**chapters, **numbers}.get(args.chapter.lower())) is None:
        raise unknown(
            "chapter", args.chapter, [f"{question.number} or {name}" for name, question in chapters.items()], chapters
        )
    demand_possible(args.file)
    if args.file.exists():
        another = f"fplab exercise start {args.chapter} {chosen.name}.py"
        raise LabError(f"{str(args.file)!r} is there already, and is kept. Name another file: {another}")
    questions = [question for question in registry().values() if question.chapter == chosen]
    write_text(args.file, "\n\n".join(map(_stub, questions)))
    print(STARTED.fill(n=len(questions), path=args.file))
    return 0


def _stub(question: Question) -> str:
    """What an exercise asks as a comment, and an answer that is still open."""
    about = [f"--- {question.title} ({LEVELS[question.level - 1]})", *str(question.statement).split("\n")]
    lines = [f"# {line}".rstrip() for text in about for line in wrapped(text, 98) or [""]]
    open_one = "\n    ..." if question.signature.endswith(":") else ""
    return "\n".join([*lines, f"{question.signature}{open_one}", ""])


def check_file(args: Arguments) -> int:
    """Check the answers of a file; the status is 1 where one is wrong."""
    if not 0 < args.limit <= 3600:
        raise LabError(f"--limit={args.limit:g} is no number of seconds; allowed: above 0, to 3600.")
    file, names = str(args.file), [exercise(name).name for name in args.names]
    if args.isolated:
        isolation.demand(Path(file))
        file = os.path.abspath(file)  # it runs in another folder
    failed = 0
    with Child(args.limit, Path(file) if args.isolated else None) as child:
        answered = run_file(child, file, tuple(registry()))
        if args.isolated:
            print(isolation.ISOLATED, file=sys.stderr)
        if missing := [name for name in names if name not in answered]:
            raise LabError(f"{file!r} has no answer to {', '.join(missing)}. It has: {', '.join(answered)}.")
        for i, name in enumerate(names or answered):
            if child.process is None:  # it ended at the answer before
                run_file(child, file, tuple(registry()))
            report = judged(exercise(name), There(exercise(name), child))
            print(("\n" if i else "") + str(noted(report)), flush=True)  # at once: the next may take its time
            failed |= not report.passed
    return int(failed)


def show_one(args: Arguments) -> int:
    question = exercise(args.name)
    print(question)
    if args.hint:
        print(f"\n{HINT.fill(hint=question.hint)}")
    return 0


def show_solution(args: Arguments) -> int:
    print(exercise(args.name).solution())
    return 0


def show_progress(args: Arguments) -> int:
    """Print what was solved, or write it as CSV."""
    if args.csv is None:
        print(f"{_score()}; {KEPT.fill(path=progress.path())}")
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
    "list": list_all, "start": start, "check": check_file, "show": show_one, "solution": show_solution,
    "progress": show_progress,
}  # fmt: skip


def run(args: Arguments) -> int:
    """Do one action, in the language asked for."""
    if args.lang:
        lang(args.lang)
    return ACTIONS[args.action](args)
