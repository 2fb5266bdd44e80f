"""What a claim is, and how its verdict comes about: computed from its parts, never written down.

A source says something; taken apart, it says one thing or several (:class:`Part`), and each is held against what the
lab finds. A claim is worth what its weakest part is worth.
"""

import enum
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..words import Text, mark, say, verbatim


class Verdict(enum.Enum):
    """What a claim is worth. The order is from good to bad."""

    TRUE = mark("TRUE")  # holds as it is said
    LOOSE = mark("LOOSE")  # holds in size only, or under a condition that is not said
    WRONG = mark("WRONG")  # does not hold
    UNTRIED = mark("UNTRIED")  # there is nothing here to try it with

    @property
    def sign(self) -> str:
        return {"TRUE": "✓", "LOOSE": "≈", "WRONG": "✗", "UNTRIED": "?"}[self.value]

    @property
    def word(self) -> Text:
        return say(self.value)

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)


@dataclass(frozen=True)
class Part:
    """One thing that a claim says. ``claimed``: what it says of it; ``found``: what the lab finds.

    ``verdict``: UNTRIED where there is nothing to try it with, such as a GPU; None for what the claim leaves unsaid and
    the lab adds. Neither counts.
    """

    about: Text
    claimed: Text
    found: Text
    verdict: Verdict | None


def text(given: str | Text) -> Text:
    """A text that is the same in both languages, such as a number."""
    return given if isinstance(given, Text) else verbatim(given)


def part(about: Text, claimed: str | Text, found: str | Text, holds: bool, loosely: bool = False) -> Part:
    """A part with its verdict: TRUE where it ``holds`` as said, LOOSE where it does ``loosely``, else WRONG."""
    verdict = Verdict.TRUE if holds else Verdict.LOOSE if loosely else Verdict.WRONG
    return Part(about, text(claimed), text(found), verdict)


NO_RECORD = say("no record of a GPU here")
UNSAID = say("not said")


def untried(about: Text, claimed: str | Text, found: str | Text = NO_RECORD) -> Part:
    """A part that cannot be tried here, and what is missing."""
    return Part(about, text(claimed), text(found), Verdict.UNTRIED)


def beside(about: Text, found: str | Text) -> Part:
    """What a claim leaves unsaid, and the lab finds."""
    return Part(about, UNSAID, text(found), None)


def equal(about: Text, claimed: object, found: object) -> Part:
    """A part that holds where two things are the same."""
    return part(about, shown(claimed), shown(found), claimed == found)


def shown(x: object) -> str:
    if isinstance(x, tuple | list):
        return "/".join(shown(part) for part in x)
    return (
        f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else f"{x:.6g}" if isinstance(x, float) else str(x)
    )


TRIES: dict[str, Callable[[], tuple[Part, ...]]] = {}
"""The function that tries a claim, by the claim's name."""


def tries(name: str) -> Callable[[Callable[[], Iterator[Part]]], Callable[[], Iterator[Part]]]:
    """Say of a function that it tries the claim of this name, part by part."""

    def register(function: Callable[[], Iterator[Part]]) -> Callable[[], Iterator[Part]]:
        TRIES[name] = lambda: tuple(function())
        return function

    return register


@dataclass(frozen=True)
class SourceClaim:
    """A statement of the source documents.

    ``name``; ``chapter``: of the course; ``source``: the documents, D1 to D5, and papers, P1 to P6; ``statement``: in
    our own words; ``why``: what to think of it.
    """

    name: str
    chapter: int
    source: str
    statement: Text
    why: Text

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that it says, each tried once in a session."""
        return _tried(self.name)

    @property
    def verdict(self) -> Verdict:
        """That of the weakest part; UNTRIED where no part could be tried."""
        verdicts = [v for part in self.parts if (v := part.verdict) is not None and v is not Verdict.UNTRIED]
        return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.UNTRIED)


@functools.cache
def _tried(name: str) -> tuple[Part, ...]:
    return TRIES[name]()
