"""The glossary: each term of the course in Chinese and English, what textbooks call it, and where it first stands.

``glossary.toml`` is the table; a test holds the Chinese of the whole project to it.
"""

import functools
import html
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..words import say, say_of
from .executed import Chapter
from .topics import as_html, by_number, linked

NAME = "glossary"
TITLE = say("Glossary")
ABOUT = say("The terms of the course in Chinese and English, and what else textbooks call them.")
HEADS = (say_of("of a glossary", "term"), say("English"), say("in textbooks also"), say("chapter"))


@dataclass(frozen=True)
class Term:
    """A term. ``also``: what textbooks say, too. ``never``: a pattern of what is not said. ``at``: chapter and cell."""

    zh: str
    en: str
    also: str = ""
    never: str = ""
    at: str = ""

    @property
    def chapter(self) -> str:
        """The number of the chapter that introduces it, as in the notebook's name."""
        return self.at.partition(" ")[0]


@functools.cache
def terms() -> tuple[Term, ...]:
    """All of them, in the order of the chapters that introduce them."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(Term(**row) for row in table["terms"])


def linked_cells() -> set[tuple[str, str]]:
    """The cells that the terms lead to: the chapter's number and the cell's id."""
    return {(one.chapter, one.at.partition(" ")[2]) for one in terms()}


def table(course: Sequence[Chapter], language: str) -> str:
    """The table of the page; a chapter that ``course`` does not have is named by its number."""
    there = by_number(course)
    rows = []
    for one in terms():
        place = linked(there, one.chapter, one.at.partition(" ")[2], language)
        row = (f'<span lang="zh">{one.zh}</span>', html.escape(one.en), f'<span lang="zh">{one.also}</span>', place)
        rows.append("<tr>" + "".join(f"<td>{part}</td>" for part in row) + "</tr>")
    return as_html([head.into(language) for head in HEADS], rows)
