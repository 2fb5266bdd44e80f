"""The index of the course: from each topic of the source documents to the cell, experiment and claim that treat it.

``topics.toml`` is the table.
"""

from __future__ import annotations

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
from .rendering import both

FILE = "topics.html"
TITLE = say("Topics")
ABOUT = say("What five documents on mixed-precision training speak of, in their order, and where the course treats it.")
HEADS = (say("topic"), say("chapter"), say("experiment"), say("claim"))
TRIED = re.compile(r'tried\("([\w-]+)"\)')


@dataclass(frozen=True)
class Topic:
    """A topic. ``chapter``: the number of its chapter, as in the notebook's name; ``cell``: the id of a cell in it."""

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
            found.append(Topic(document, title, chapter, cell, row["experiment"], row["claim"]))
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


def linked(there: Mapping[str, tuple[Chapter, dict[str, str]]], number: str, cell: str) -> str:
    """A chapter's title, which leads to its cell; without a link where it has none, its number where it is not."""
    chapter, own = there.get(number, (None, {}))
    title = both(chapter.title) if chapter else number
    return f'<a href="{chapter.file}#{cell}">{title}</a>' if chapter and cell in own else title


def body(course: Sequence[Chapter]) -> str:
    """The table of a page; a chapter or a cell that ``course`` does not have is named without a link."""
    there = by_number(course)
    claims = next((claim_cells(c.path) for c in course if c.name == "claims"), {})
    rows, document = [], None
    for one in topics():
        if one.document != document:
            document = one.document
            rows.append(f'<tr><th colspan="4" scope="rowgroup">{both(document)}</th></tr>')
        place = linked(there, one.chapter, one.cell)
        claim = html.escape(one.claim)
        if one.claim in claims:
            claim = f'<a href="claims.html#{claims[one.claim]}">{claim}</a>'
        row = (both(one.title), place, f"<code>fplab run {one.experiment}</code>", claim)
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    head = "".join(f'<th scope="col">{both(name)}</th>' for name in HEADS)
    table = f'<div style="overflow-x:auto"><table class="topics"><tr>{head}</tr>{"".join(rows)}</table></div>'
    return f"<h1>{both(TITLE)}</h1>{both(ABOUT, 'p')}{table}"
