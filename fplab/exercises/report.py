"""How a check ended, as text and as HTML: the counterexample as bit strips, what was expected, what came."""

import html
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..columns import padded, width_of
from ..draw.page import Html, after_colon, bracketed, code, table
from ..draw.scene import GREEN, RED
from ..draw.strip import bit_strip
from ..language import in_each
from ..words import Text, say
from .kinds import Many
from .shown import Shown
from .tasks import Find, Implement, Question
from .wire import GONE

Line = tuple[str, Shown]
WIDTH = 96

RIGHT = say("that is right")
EXPECTED, GOT = say("expected"), say("got")
MISTAKE, RULE, HINT = say("Mistake"), say("Rule"), say("Hint")


@dataclass(frozen=True)
class Failure:
    """The smallest counterexample. ``how``: "value", "raised", "unfit", "late", "ended" (with its process), or
    "changes" (two runs differ).

    ``arguments``: labelled values; ``expected``, ``got``: what should and did come back; ``says``: what is wrong;
    ``mistake``: the typical mistake that errs just so, if one does; ``values``: the arguments themselves; ``least``:
    whether the search for a smaller one came to its end.
    """

    how: str
    arguments: tuple[tuple[str, Many], ...] = ()
    expected: Many = ()
    got: Many = ()
    says: Text | None = None
    mistake: Text | None = None
    printed: str = ""
    values: tuple[Any, ...] = ()
    least: bool = True


@dataclass(frozen=True)
class Report:
    """How a check ended; ``str`` and a notebook show it in the chosen language.

    ``passed``: whether the answer is right. ``tried``: on how many inputs it ran. ``note``: what else is to be said.
    ``share``: of the inputs before the search for the smallest, those on which a wrong function is right.
    """

    exercise: Question
    passed: bool
    tried: int
    failure: Failure | None = None
    note: Text | None = field(default=None, compare=False)
    share: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return text_of(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return in_each(lambda: html_of(self))

    def __bool__(self) -> bool:
        return self.passed


def headline(report: Report) -> str:
    """The first line: which exercise, and how it ended."""
    about = say("{n} inputs, every bit", n=report.tried) if isinstance(report.exercise.task, Implement) else RIGHT
    verdict = bracketed(say("passed"), about) if report.passed else say("not yet")
    return after_colon(f"{report.exercise.title} [{report.exercise.name}]", verdict)


def lines(report: Report) -> Iterator[Line]:
    """The labelled values of a counterexample, or of what was found."""
    failure = report.failure
    if failure is None:
        return
    for name, many in failure.arguments:
        for i, shown in enumerate(many):
            yield (name or str(say("yours"))) if i == 0 else "", shown
    task, is_find = report.exercise.task, any(not name for name, _ in failure.arguments)
    # What is wanted is said in words, and in the language of now.
    wanted = (Shown(str(task.wanted)),) if isinstance(task, Find) and failure.expected else failure.expected
    for label, many in ((say("wanted") if is_find else EXPECTED, wanted), (GOT, failure.got)):
        for i, shown in enumerate(many):
            yield str(label) if i == 0 else "", shown


def remarks(report: Report) -> list[tuple[str, str]]:
    """What is said below: what was printed, the mistake, a hint; the rule, which often is the answer, once it is found.

    Who gives up asks for the solution, which says the rule too.
    """
    failure, exercise = report.failure, report.exercise
    if report.passed:
        return [(str(RULE), str(exercise.rule))]
    if failure is None:
        return []
    labelled: list[tuple[str, str]] = []
    if failure.printed.strip():
        labelled.append((str(say("printed")), failure.printed.strip()))
    if failure.mistake:
        labelled.append((str(MISTAKE), str(failure.mistake)))
    return [*labelled, (str(HINT), str(exercise.hint))]


def caption(report: Report) -> str:
    failure = report.failure
    if failure is None or report.passed:
        return ""
    if not isinstance(report.exercise.task, Implement):
        return str(failure.says or say("that is not it"))
    if not failure.arguments:
        return str(failure.says)
    least = failure.least and failure.how not in GONE
    above = say("the smallest input on which it fails") if least else say("an input on which it fails")
    return after_colon(above, failure.says or "").rstrip()


def legend(shown: Shown) -> str:
    """The letters of the fields, as wide as the fields: ``s eeeee ffffffffff``."""
    letters = {"sign": "s", "exponent": "e", "fraction": "f"}
    return " ".join(letters.get(name, " ") * len(digits) for name, digits in shown.fields)


def marks(expected: Shown, got: Shown) -> str:
    """Carets below the bits in which two codes of one format differ."""
    if [len(d) for _, d in expected.fields] != [len(d) for _, d in got.fields]:
        return ""
    return "".join("^" if a != b else " " for a, b in zip(expected.strip, got.strip, strict=True)).rstrip()


def text_of(report: Report) -> str:
    parts = [headline(report)]
    if above := caption(report):
        parts.append(above)
    parts += _table(list(lines(report)), report)
    for label, text in remarks(report):
        first = label + str(say(": "))
        parts.append(
            textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * width_of(first))
            if width_of(text) == len(text)
            else first + text
        )
    if report.note:
        parts.append(str(report.note))
    return "\n".join(parts)


def _table(rows: list[Line], report: Report) -> list[str]:
    """Rows of label, value and bits; the fields' letters stand above where the format changes, carets below."""
    if not rows:
        return []
    labels = max(width_of(label) for label, _ in rows)
    values = max([width_of(shown.text) for _, shown in rows if shown.fields], default=0)
    parts: list[str] = []
    before = ("", "")
    for label, shown in rows:
        fields = legend(shown)
        if fields.strip() and (fields, shown.of) != before:
            parts.append(" " * (labels + values + 6) + f"{fields}   {shown.of}")
        if shown.fields:
            before = (fields, shown.of)
        text = padded(shown.text, values) if shown.fields else shown.text
        parts.append(f"  {padded(label, labels)}  {text}  {shown.strip}".rstrip())
    failure = report.failure
    pair = failure is not None and len(failure.expected) == len(failure.got) == 1
    if failure and pair and (under := marks(failure.expected[0], failure.got[0])):
        parts.append(" " * (labels + values + 6) + under)
    return parts


# --- HTML ------------------------------------------------------------------------------------------------------
def html_of(report: Report) -> str:
    """The report as one fragment in the page's own colours; a sign stands beside every colour."""
    sign, colour = ("✓", GREEN) if report.passed else ("✗", RED)
    parts = [
        f'<div style="border-left:4px solid {colour};padding:.3em .8em;line-height:1.5;max-width:62em">'
        f'<div><b><span style="color:{colour}">{sign}</span> {html.escape(headline(report))}</b></div>'
    ]
    if above := caption(report):
        parts.append(f'<div style="white-space:pre-wrap">{html.escape(above)}</div>')
    if rows := list(lines(report)):
        parts.append(_rows_html(rows, report))
    for label, text in remarks(report):
        parts.append(f'<div style="white-space:pre-wrap"><b>{html.escape(label)}</b> {html.escape(text)}</div>')
    if report.note:
        parts.append(f"<div>{html.escape(str(report.note))}</div>")
    return "".join(parts) + "</div>"


def _rows_html(rows: list[Line], report: Report) -> str:
    """The labelled values with their bits; the bits that differ from a single expected value are marked."""
    failure = report.failure
    pair = failure is not None and len(failure.expected) == len(failure.got) == 1
    expected = failure.expected[0].fields if failure is not None and pair else ()
    cells = []
    for i, (label, shown) in enumerate(rows):
        strip = bit_strip(shown.fields, shown.of, expected if i == len(rows) - 1 else ()).svg() if shown.fields else ""
        cells.append((label, code(shown.text), Html(strip), shown.of))
    heads, formats = (0.7 * max(width_of(str(row[column])) for row in cells) + 1 for column in (0, 3))
    return table((), cells, (min(heads, 7), 0, 0, min(formats, 7)))  # in em: short names are not broken
