"""The exercises, a file a chapter, each with its ``CHAPTER`` and its ``EXERCISES``."""

from importlib import import_module

from ...errors import LabError, door, unknown
from ...lazily import modules
from ..base import Exercise

_CHAPTERS = sorted((import_module(f".{name}", __name__) for name in modules(__name__)), key=lambda m: m.CHAPTER.number)
_ALL: dict[str, Exercise] = {
    exercise.name: exercise for chapter in _CHAPTERS for exercise in sorted(chapter.EXERCISES, key=lambda e: e.level)
}


def registry() -> dict[str, Exercise]:
    """All exercises by name, in the order of the chapters."""
    return dict(_ALL)


@door
def exercise(name: str) -> Exercise:
    """The exercise of a name.

    >>> exercise("rne").signature
    'def rne(x, n):'
    """
    if name not in _ALL:
        chapters = ((known.name, {known.chapter.name, str(known.chapter.number)}) for known in _ALL.values())
        if inside := [own for own, chapter in chapters if name in chapter]:
            raise LabError(f"{name!r} is a chapter; its exercises: {', '.join(inside)}.")
        raise unknown("exercise", name, _ALL)
    return _ALL[name]
