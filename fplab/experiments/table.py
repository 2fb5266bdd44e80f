"""Rows of claims, and the table in which a terminal shows them."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from .base import Outcome, Status

STAND_IN = "CPU stand-in"  # verified like a GPU's record, and no evidence about any GPU
HEADINGS = ("experiment", "claim", "evidence", "outcome")
COLOURS = {Status.PASS: "32", Status.FAIL: "1;31", Status.ABSENT: "33"}
WIDEST = 120  # longer lines are hard to read


@dataclass(frozen=True)
class Row:
    """One claim of an experiment, what it was checked against, and how that ended."""

    experiment: str
    claim: str
    evidence: str
    outcome: Outcome

    def as_json(self) -> dict[str, str]:
        """The row as plain JSON values."""
        return {
            "experiment": self.experiment,
            "claim": self.claim,
            "evidence": self.evidence,
            "outcome": self.outcome.status.value,
            "detail": self.outcome.detail,
        }


def failures(rows: Iterable[Row]) -> list[Row]:
    """The rows that say FAIL."""
    return [row for row in rows if row.outcome.status is Status.FAIL]


def terminal_width(stream: TextIO | None = None) -> int:
    """Columns to fill: the terminal's, ``COLUMNS``, or 100 where there is no terminal."""
    stream = stream or sys.stdout
    fallback = 80 if stream.isatty() else 100
    return max(60, min(WIDEST, shutil.get_terminal_size((fallback, 24)).columns))


def colour_wanted(stream: TextIO | None = None) -> bool:
    """Whether to colour: on a terminal, unless ``NO_COLOR`` is set."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render(rows: Sequence[Row], width: int = 100, colour: bool = False, headings: Sequence[str] = HEADINGS) -> str:
    """The rows as a table ``width`` characters wide: claims wrapped, details below them, counts at the end.

    >>> from .base import passed
    >>> print(render([Row("sums", "1 + 1 = 2", "exact", passed("4 bits"))], width=60))
    experiment  claim                          evidence  outcome
    ────────────────────────────────────────────────────────────
    sums        1 + 1 = 2                      exact     pass
                  4 bits
    ────────────────────────────────────────────────────────────
    1 claim: 1 pass
    """
    first = max([len(headings[0]), *(len(r.experiment) for r in rows)])
    third = max([len(headings[2]), *(len(r.evidence) for r in rows)])
    fourth = max(len(headings[3]), *(len(s.value) for s in Status))
    second = max(20, width - first - third - fourth - 6)

    def line(a: str, b: str, c: str, d: str) -> str:
        return f"{a:<{first}}  {b:<{second}}  {c:<{third}}  {d}".rstrip()

    rule = "─" * min(width, first + second + third + fourth + 6)
    out = [line(*headings)]
    above = None
    for row in rows:
        if row.experiment != above:
            out.append(rule)
        claim, *more = textwrap.wrap(row.claim, second) or [""]
        status = row.outcome.status
        shown = paint(status.value, COLOURS[status], colour)
        out.append(line(row.experiment if row.experiment != above else "", claim, row.evidence, shown))
        out += [line("", text, "", "") for text in more]
        for text in textwrap.wrap(row.outcome.detail, len(rule) - first - 4):
            out.append(" " * (first + 4) + paint(text, "31" if status is Status.FAIL else "2", colour))
        above = row.experiment
    return "\n".join([*out, rule, *_endings(rows, width, colour)])


def counts(rows: Sequence[Row]) -> str:
    """How many claims there are and how they ended; those that only a CPU stood in for are named apart."""
    total = Counter(row.outcome.status for row in rows)
    parts = [f"{total[status]} {status.value}" for status in Status if total[status]]
    stand_ins = sum(row.evidence == STAND_IN and row.outcome.status is Status.PASS for row in rows)
    text = f"{len(rows)} claim{'s' * (len(rows) != 1)}: {', '.join(parts)}" if rows else "no claims"
    return text + (f" ({stand_ins} of the passes are a {STAND_IN} and no evidence about a GPU)" if stand_ins else "")


def _endings(rows: Sequence[Row], width: int, colour: bool) -> list[str]:
    """The counts, and every failure once more where it cannot be overlooked."""
    out = textwrap.wrap(counts(rows), width)
    for row in failures(rows):
        text = f"FAIL {row.experiment}: {row.claim} [{row.evidence}]: {row.outcome.detail}"
        lines = textwrap.wrap(text, width, subsequent_indent="     ")
        out += [paint(line, COLOURS[Status.FAIL], colour) for line in lines]
    return out


def paint(text: str, code: str, colour: bool) -> str:
    """Text in an ANSI colour, or as it is."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
