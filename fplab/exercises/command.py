"""What ``fplab exercise`` prints."""

from __future__ import annotations

import argparse

from ..columns import padded, width_of
from ..errors import LabError
from ..language import lang
from ..words import Text, say

Arguments = argparse.Namespace
MARKS = say("✓ solved, · tried")
HINT = say("Hint: {hint}")
SCORE = say("{right} of {all} solved")
KEPT = say("kept in {path}")
WRITTEN = say("{n} rows in {path}")


def list_all(args: Arguments) -> int:
    """Print every exercise by chapter, with what was solved."""
    from . import progress
    from .base import LEVELS, registry

    done, found = progress.load(), registry()
    wide = max(map(len, found))
    titles = max(width_of(str(one.title)) for one in found.values())
    chapter = 0
    for one in found.values():
        if one.chapter.number != chapter:
            chapter = one.chapter.number
            print(f"\n{chapter}. {one.chapter.title}")
        entry = done.get(one.name)
        mark = " " if entry is None else "✓" if entry["first_passed"] else "·"
        print(f"  {mark} {one.name:<{wide}}  {padded(str(one.title), titles)}  {LEVELS[one.level - 1]}")
    print(f"\n{_score()}  ({MARKS})")
    return 0


def _score() -> Text:
    from . import progress

    rows = progress.rows()
    return SCORE.fill(right=sum(row["passed"] == "yes" for row in rows), all=len(rows))


def check_file(args: Arguments) -> int:
    """Check the answers of a file; the status is 1 where one is wrong."""
    if not 0 < args.limit <= 3600:
        raise LabError(f"--limit={args.limit:g} is no number of seconds; allowed: above 0, to 3600.")
    from .supervisor import check

    return check(str(args.file), args.names, args.limit, args.isolated)


def show_one(args: Arguments) -> int:
    """Print what an exercise asks."""
    from .base import exercise

    one = exercise(args.name)
    print(one)
    if args.hint:
        print(f"\n{HINT.fill(hint=one.hint)}")
    return 0


def show_solution(args: Arguments) -> int:
    """Print a reference solution."""
    from .base import exercise

    print(exercise(args.name).solution())
    return 0


def show_progress(args: Arguments) -> int:
    """Print what was solved, or write it as CSV."""
    from . import progress

    if args.csv is None:
        print(f"{_score()}; {KEPT.fill(path=progress.path())}")
        return 0
    try:
        progress.export(args.csv)
    except OSError as error:
        raise LabError(f"cannot write {str(args.csv)!r}: {error.strerror}.") from None
    print(WRITTEN.fill(n=len(progress.rows()), path=args.csv))
    return 0


ACTIONS = {
    "list": list_all,
    "check": check_file,
    "show": show_one,
    "solution": show_solution,
    "progress": show_progress,
}


def run(args: Arguments) -> int:
    """Do one action, in the language asked for."""
    if args.lang:
        lang(args.lang)
    return ACTIONS[args.action](args)
