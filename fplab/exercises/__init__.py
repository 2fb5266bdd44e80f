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

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import door

if TYPE_CHECKING:
    from . import progress
    from .base import LEVELS, Exercise, Mutant, Solution, exercise, registry
    from .checker import Report

__all__ = ["LEVELS", "Exercise", "Mutant", "Report", "Solution", "check", "exercise", "names", "progress", "registry"]

_WHERE = {"Report": "checker"} | dict.fromkeys(
    ("LEVELS", "Exercise", "Mutant", "Solution", "exercise", "registry"), "base"
)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    elif name == "progress":
        value = importlib.import_module(".progress", __name__)
    else:
        raise AttributeError(f"module 'fplab.exercises' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


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
