"""Rows of claims, and the table in which a terminal shows them, in the language that is chosen."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from ..columns import padded, width_of, wrapped
from ..words import LIST, NOTHING, Text, joined, mark, say, say_of, verbatim
from .base import Outcome, Status

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
WIDEST = 120  # longer lines are hard to read


@dataclass(frozen=True)
class Row:
    """One claim of an experiment, what it was checked against, and how that ended: as data in English."""

    experiment: str
    claim: str | Text
    evidence: str
    outcome: Outcome

    def said(self) -> tuple[Text, Text, Text, Text]:
        """The claim, the evidence, the outcome and what was found, in both languages."""
        claim, found = (x if isinstance(x, Text) else verbatim(x) for x in (self.claim, self.outcome.detail))
        return claim, say(self.evidence), STATUS[self.outcome.status], found

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


def terminal_width(stream: TextIO | None = None) -> int:
    """Columns to fill: the terminal's, ``COLUMNS``, or 100 where there is no terminal."""
    stream = stream or sys.stdout
    fallback = 80 if stream.isatty() else 100
    return max(60, min(WIDEST, shutil.get_terminal_size((fallback, 24)).columns))


def colour_wanted(stream: TextIO | None = None) -> bool:
    """Whether to colour: on a terminal, unless ``NO_COLOR`` is set."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render(rows: Sequence[Row], width: int = 100, colour: bool = False, headings: Sequence[Text] = HEADINGS) -> str:
    """The rows as a table ``width`` characters wide: claims wrapped, details below them, counts at the end.

    >>> from .base import passed
    >>> print(render([Row("sums", "1 + 1 = 2", "proved", passed("4 bits"))], width=60))
    experiment  claim                          evidence  outcome
    ────────────────────────────────────────────────────────────
    sums        1 + 1 = 2                      proved    pass
                  4 bits
    ────────────────────────────────────────────────────────────
    1 claim: 1 pass
    """
    heads, said = [str(head) for head in headings], [tuple(map(str, row.said())) for row in rows]
    first = max([width_of(heads[0]), *(width_of(row.experiment) for row in rows)])
    third = max([width_of(heads[2]), *(width_of(evidence) for _, evidence, _, _ in said)])
    fourth = max([width_of(heads[3]), *(width_of(status) for _, _, status, _ in said)])
    second = max(16, width - first - third - fourth - 6)

    def line(a: str, b: str, c: str, d: str) -> str:
        return f"{padded(a, first)}  {padded(b, second)}  {padded(c, third)}  {d}".rstrip()

    rule = "─" * min(width, first + second + third + fourth + 6)
    out = [line(*heads)]
    above = None
    for row, (text, evidence, shown, detail) in zip(rows, said, strict=True):
        if row.experiment != above:
            out.append(rule)
        claim, *more = wrapped(text, second) or [""]
        status = row.outcome.status
        name = row.experiment if row.experiment != above else ""
        out.append(line(name, claim, evidence, paint(shown, COLOURS[status], colour)))
        out += [line("", text, "", "") for text in more]
        for text in wrapped(detail, len(rule) - first - 4):
            out.append(" " * (first + 4) + paint(text, "31" if status in WRONG else "2", colour))
        above = row.experiment
    return "\n".join([*out, rule, *_endings(rows, width, colour)])


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


def _endings(rows: Sequence[Row], width: int, colour: bool) -> list[str]:
    """The counts, and every failure once more where it cannot be overlooked."""
    out = wrapped(counts(rows), width)
    for row in failures(rows):
        said = dict(zip(("claim", "evidence", "status", "found"), row.said(), strict=True))
        failure = say("{status} {experiment}: {claim} [{evidence}]: {found}", experiment=row.experiment, **said)
        lines = wrapped(str(failure), width, indent=" " * 5)
        out += [paint(line, COLOURS[row.outcome.status], colour) for line in lines]
    return out


def paint(text: str, code: str, colour: bool) -> str:
    """Text in an ANSI colour, or as it is."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
