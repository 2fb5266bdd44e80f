"""Exercises that answer with the smallest counterexample.

>>> from fplab.exercises import exercise
>>> e = exercise("rne")
>>> report = e.check(lambda x, n: x >> n, remember=False)  # truncation: a typical wrong answer
>>> report.passed, report.failure.values
(False, (3, 1))

``base``: the record; ``chapters``: the exercises; ``kind``, ``kinds``: arguments and answers; ``reading``: answers of
any type; ``checker``; ``shrink``; ``show``; ``sandbox``: time limit and kindness; ``progress``: what was solved;
``files``: answers in a file; ``command``, ``supervisor``, ``child``, ``wire``, ``isolation``: the terminal, where
another process than the judge's runs the answers. The names below are loaded when first used, so that a process that
only watches over another starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import door
from ..lazily import lazy

if TYPE_CHECKING:
    from . import progress
    from .base import LEVELS, Exercise, Mutant, Solution, exercise, registry
    from .checker import Report

__all__ = ["LEVELS", "Exercise", "Mutant", "Report", "Solution", "check", "exercise", "names", "progress", "registry"]

_HOMES = {
    "base": ("LEVELS", "Exercise", "Mutant", "Solution", "exercise", "registry"),
    "checker": ("Report",),
    "progress": (),
}

__getattr__, __dir__ = lazy(__name__, _HOMES)


def names() -> tuple[str, ...]:
    """The names of all exercises, in the order of the chapters."""
    from .base import registry

    return tuple(registry())


@door
def check(name: str, answer: Any, *, limit: float | None = None, remember: bool = True) -> Report:
    """Check an answer to the exercise of a name; see :meth:`~fplab.exercises.base.Exercise.check`.

    >>> check("largest_e4m3", 480, remember=False).passed
    False
    """
    from .base import exercise

    return exercise(name).check(answer, limit=limit, remember=remember)
