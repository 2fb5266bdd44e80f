"""Exercises that answer with the smallest counterexample.

>>> from fplab.exercises import exercise
>>> e = exercise("rne")
>>> report = e.check(lambda x, n: x >> n, remember=False)  # truncation: a typical wrong answer
>>> report.passed, report.failure.values
(False, (3, 1))

``base``: the record; ``chapters``: the exercises; ``kind``, ``kinds``: arguments and answers; ``checker``;
``shrink``; ``show``; ``sandbox``: time limit and kindness; ``progress``: what was solved; ``files``: answers in a file.
"""

from __future__ import annotations

from typing import Any

from . import progress
from .base import LEVELS, Exercise, Mutant, Solution, exercise, registry
from .checker import Report

__all__ = ["LEVELS", "Exercise", "Mutant", "Report", "Solution", "check", "exercise", "names", "progress", "registry"]


def names() -> tuple[str, ...]:
    """The names of all exercises, in the order of the chapters."""
    return tuple(registry())


def check(name: str, answer: Any, *, limit: float | None = None, remember: bool = True) -> Report:
    """Check an answer to the exercise of a name; see :meth:`~fplab.exercises.base.Exercise.check`.

    >>> check("largest_e4m3", 480, remember=False).passed
    False
    """
    return exercise(name).check(answer, limit=limit, remember=remember)
