"""The index of the course: from each topic of the source documents to the cell, experiment and claim that treat it.

``topics.toml`` is the table.
"""

import functools
import html
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..words import Text, given, say
from .executed import Chapter

NAME = "topics"
TITLE = say("Topics")
ABOUT = say(
    "What five documents on mixed-precision training and six papers speak of, in their order, and where the course "
    "treats it."
)
HEADS = (say("topic"), say("chapter"), say("experiment"), say("claim"))
TRIED = re.compile(r'tried\("([\w-]+)"\)')


@dataclass(frozen=True)
class Topic:
    """A topic. ``source``: the document's letter and number, as claims name it, or those of several; ``chapter``: the
    number of its chapter, as in the notebook's name; ``cell``: the id of a cell in it."""

    source: str
    document: Text
    title: Text
    chapter: str
    cell: str
    experiment: str
    claim: str


@functools.cache
def topics() -> tuple[Topic, ...]:
    """All of them, in the order of the documents."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    found = []
    for one in table["document"]:
        document = given(one["en"], zh=one["zh"])
        for row in one["topics"]:
            chapter, _, cell = row["at"].partition(" ")
            title = given(row["en"], zh=row["zh"])
            found.append(Topic(one["source"], document, title, chapter, cell, row["experiment"], row["claim"]))
    return tuple(found)


def cells(notebook: Path) -> dict[str, str]:
    """The sources of a notebook's cells, by id."""
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in found}


def claim_cells(notebook: Path) -> dict[str, str]:
    """The id of the cell that tries each claim, by the claim's name; of several the last, below its statement."""
    return {name: one for one, source in cells(notebook).items() for name in TRIED.findall(source)}


def by_number(course: Sequence[Chapter]) -> dict[str, tuple[Chapter, dict[str, str]]]:
    """The chapters with their cells, by the numbers in their names."""
    return {chapter.name.split("_")[0]: (chapter, cells(chapter.path)) for chapter in course}


def linked_cells() -> set[tuple[str, str]]:
    """The cells that the index leads to: the chapter's number, or "claims", and the cell's id."""
    return {(one.chapter, one.cell) for one in topics() if one.cell}


def linked(there: Mapping[str, tuple[Chapter, dict[str, str]]], number: str, cell: str, language: str) -> str:
    """A chapter's title, which leads to its cell; without a link where it has none, its number where it is not."""
    chapter, own = there.get(number, (None, {}))
    title = html.escape(chapter.title.into(language)) if chapter else number
    return f'<a href="course/{chapter.name}.html#{cell}">{title}</a>' if chapter and cell in own else title


def table(course: Sequence[Chapter], language: str) -> str:
    """The table of the page; a chapter or a cell that ``course`` does not have is named without a link."""
    there = by_number(course)
    claims = next((claim_cells(c.path) for c in course if c.name == "claims"), {})
    rows, document = [], None
    for one in topics():
        if one.document != document:
            document = one.document
            rows.append(f'<tr><th colspan="4" scope="rowgroup">{html.escape(document.into(language))}</th></tr>')
        place = linked(there, one.chapter, one.cell, language)
        claim = html.escape(one.claim)
        if one.claim in claims:
            claim = f'<a href="course/claims.html#{claims[one.claim]}">{claim}</a>'
        title = html.escape(one.title.into(language))
        row = (title, place, f"<code>fplab run {one.experiment}</code>", claim)
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    return as_html([head.into(language) for head in HEADS], rows)


def as_html(heads: Sequence[str], rows: Sequence[str]) -> str:
    """A table of rows that are HTML."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    inside = f"<thead><tr>{head}</tr></thead>{''.join(rows)}"
    return f'<div class="table-wrapper"><table class="docutils">{inside}</table></div>'
