"""Exercises that answer with the smallest counterexample.

>>> from fplab.exercises import exercise
>>> e = exercise("rne")
>>> report = e.check(lambda x, n: x >> n, remember=False)  # truncation: a typical wrong answer
>>> report.passed, report.failure.values
(False, (3, 1))

Each file imports those before it alone. ``shown``: a value as a report shows it; ``kinds``: arguments and answers;
``tasks``: the record; ``wire``, ``child``, ``isolation``, ``process``: another process than the judge's runs the
answers; ``cases``: inputs, drawn and shrunk by hypothesis; ``report``, ``judge``: the verdict; ``attempts``: what was
solved; ``base``: an exercise that checks; ``chapters``: all of them; ``drawn``: those whose numbers are drawn;
``grading``, ``progress``, ``command``: for a teacher and the terminal. The names below are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import door
from ..lazily import index

if TYPE_CHECKING:
    from . import progress
    from .base import Exercise
    from .chapters import exercise, registry
    from .report import Report
    from .tasks import LEVELS, Mutant, Solution

__all__ = ["LEVELS", "Exercise", "Mutant", "Report", "Solution", "check", "exercise", "names", "points",
           "progress", "registry"]  # fmt: skip

index(__name__)


def names() -> tuple[str, ...]:
    """The names of all exercises, in the order of the chapters."""
    from .chapters import registry

    return tuple(registry())


@door
def check(name: str, answer: Any, *, limit: float | None = None, remember: bool = True) -> Report:
    """Check an answer to the exercise of a name; see :meth:`~fplab.exercises.base.Exercise.check`.

    >>> check("largest_e4m3", 480, remember=False).passed
    False
    """
    from .chapters import exercise

    return exercise(name).check(answer, limit=limit, remember=remember)


@door
def points(name: str, answer: Any, *, limit: float | None = None) -> float:
    """What an answer is worth, out of the exercise's level: part of it for a function that is right on some inputs.

    Nothing enters the progress.

    >>> points("largest_e4m3", 448), points("largest_e4m3", 480)
    (1.0, 0.0)
    """
    from .grading import worth

    return worth(check(name, answer, limit=limit, remember=False))
