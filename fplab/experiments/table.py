"""Rows of claims, and the table in which a terminal shows them, in the language that is chosen."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from ..columns import padded, width_of, wrapped
from ..words import LIST, NOTHING, Text, joined, mark, say, say_of, verbatim
from .outcomes import Evidence, Outcome, Status

STAND_IN = mark("CPU stand-in")  # verified like a GPU's record, and no evidence about any GPU
COLOURS = {Status.PASS: "32", Status.FAIL: "1;31", Status.DIFFERS: "1;35", Status.ABSENT: "33"}
HEADINGS = (say("experiment"), say("claim"), say("evidence"), say("outcome"))
CASES = (HEADINGS[0], say("case"), *HEADINGS[2:])  # of the table that compares records
ARRAYS = (HEADINGS[0], say("data"), *HEADINGS[2:])  # of the table that compares figures' data
STATUS = {
    Status.PASS: say_of("outcome", "pass"),
    Status.FAIL: say_of("outcome", "FAIL"),
    Status.DIFFERS: say_of("outcome", "differs, unexplained"),
    Status.ABSENT: say_of("outcome", "absent"),
}
WRONG = (Status.FAIL, Status.DIFFERS)  # what ends in a non-zero exit status


@dataclass(frozen=True)
class Row:
    """One claim of an experiment, what it was checked against, and how that ended: as data in English."""

    experiment: str
    claim: str | Text
    evidence: str
    outcome: Outcome

    def texts(self) -> tuple[Text, Text, Text, Text]:
        """The claim, the evidence, the outcome and what was found, in both languages."""
        claim, detail = (x if isinstance(x, Text) else verbatim(x) for x in (self.claim, self.outcome.detail))
        return claim, say(self.evidence), STATUS[self.outcome.status], detail

    def as_json(self) -> dict[str, str]:
        """The row as plain JSON values."""
        return {
            "experiment": self.experiment,
            "claim": english(self.claim),
            "evidence": self.evidence,
            "outcome": self.outcome.status.value,
            "detail": english(self.outcome.detail),
        }


def english(text: str | Text) -> str:
    """A text as data: in English, whatever language is spoken."""
    return text.en if isinstance(text, Text) else text


def failures(rows: Iterable[Row]) -> list[Row]:
    """The rows that fail, or differ without an explanation."""
    return [row for row in rows if row.outcome.status in WRONG]


def colour_wanted(stream: TextIO | None = None) -> bool:
    """Whether to colour: on a terminal, unless ``NO_COLOR`` is set."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render(rows: Sequence[Row], width: int = 100, colour: bool = False, headings: Sequence[Text] = HEADINGS) -> str:
    """The rows as a table ``width`` characters wide: claims wrapped, details below them, counts at the end.

    >>> from .outcomes import passed
    >>> print(render([Row("sums", "1 + 1 = 2", "proved", passed("4 bits"))], width=60))
    experiment  claim                          evidence  outcome
    ────────────────────────────────────────────────────────────
    sums        1 + 1 = 2                      proved    pass
                  4 bits
    ────────────────────────────────────────────────────────────
    1 claim: 1 pass
    """
    names, columns = [row.experiment for row in rows], [row.texts() for row in rows]
    evidence, ended = [str(column[1]) for column in columns], [str(column[2]) for column in columns]
    return "\n".join(Table(names, evidence, ended, width, colour, headings).whole(rows))


class Table:
    """A table that can be printed part by part: ``head``, the ``rows`` of one experiment after the other, ``end``.

    ``names``, ``evidence``, ``ended``: all that the first, third and last column may have to hold.
    """

    def __init__(
        self, names: Iterable[str], evidence: Iterable[str], ended: Iterable[str], width: int, colour: bool,
        headings: Sequence[Text] = HEADINGS,
    ) -> None:  # fmt: skip
        self.headings, self.width, self.colour = [str(head) for head in headings], width, colour
        columns = (names, evidence, ended)
        heads = (self.headings[0], *self.headings[2:])
        self.first, self.third, self.fourth = (
            max([width_of(head), *map(width_of, column)]) for head, column in zip(heads, columns, strict=True)
        )
        self.second = max(16, width - self.first - self.third - self.fourth - 6)
        self.rule = "─" * min(width, self.first + self.second + self.third + self.fourth + 6)

    @classmethod
    def of_claims(cls, names: Sequence[str], width: int, colour: bool) -> Table:
        """One for rows that are still to come, of any evidence and outcome; "differs, unexplained" takes two lines."""
        evidence = [str(say(kind.value)) for kind in Evidence]
        return cls(names, evidence, " ".join(map(str, STATUS.values())).split(), width, colour)

    def head(self) -> list[str]:
        """The line of headings."""
        return [self._line(*self.headings)]

    def rows(self, rows: Iterable[Row]) -> list[str]:
        out: list[str] = []
        above = None
        for row in rows:
            text, evidence, shown, detail = map(str, row.texts())
            status, name = row.outcome.status, row.experiment if row.experiment != above else ""
            if name:
                out.append(self.rule)
            cells = zip_longest(wrapped(text, self.second) or [""], wrapped(shown, self.fourth), fillvalue="")
            for i, (claim, ended) in enumerate(cells):
                painted = paint(ended, COLOURS[status], self.colour and bool(ended))
                out.append(self._line(*((name, claim, evidence) if i == 0 else ("", claim, "")), painted))
            for part in wrapped(detail, len(self.rule) - self.first - 4):
                out.append(" " * (self.first + 4) + paint(part, "31" if status in WRONG else "2", self.colour))
            above = row.experiment
        return out

    def end(self, rows: Sequence[Row]) -> list[str]:
        """A rule, the counts of all rows, and every failure once more where it cannot be overlooked."""
        return [self.rule, *wrapped(counts(rows), self.width), *failing(rows, self.width, self.colour)]

    def whole(self, rows: Sequence[Row]) -> list[str]:
        return [*self.head(), *self.rows(rows), *self.end(rows)]

    def _line(self, a: str, b: str, c: str, d: str) -> str:
        return f"{padded(a, self.first)}  {padded(b, self.second)}  {padded(c, self.third)}  {d}".rstrip()


def counts(rows: Sequence[Row]) -> str:
    """How many claims there are and how they ended; those that only a CPU stood in for are named apart."""
    return str(tally(rows))


def tally(rows: Sequence[Row]) -> Text:
    """The counts in both languages."""
    if not rows:
        return say("no claims")
    total = Counter(row.outcome.status for row in rows)
    ended = [say("{n} {status}", n=total[status], status=STATUS[status]) for status in Status if total[status]]
    stand_ins = sum(row.evidence == STAND_IN and row.outcome.status is Status.PASS for row in rows)
    apart = say(" ({n} of the passes are a CPU stand-in and no evidence about a GPU)", n=stand_ins)
    counted = say("{n} claim{s}: {ended}{apart}", n=len(rows), s="s" * (len(rows) != 1))
    return counted.fill(ended=joined(ended, LIST), apart=apart if stand_ins else NOTHING)


def failing(rows: Sequence[Row], width: int, colour: bool) -> list[str]:
    """Every failure, in its colour."""
    out = []
    for row in failures(rows):
        parts = dict(zip(("claim", "evidence", "status", "found"), row.texts(), strict=True))
        failure = say("{status} {experiment}: {claim} [{evidence}]: {found}", experiment=row.experiment, **parts)
        lines = wrapped(str(failure), width, indent=" " * 5)
        out += [paint(line, COLOURS[row.outcome.status], colour) for line in lines]
    return out


def paint(text: str, code: str, colour: bool) -> str:
    """Text in an ANSI colour, or as it is."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
