"""For a teacher: what each chapter is for and takes, syllabuses, projects, and of each chapter a sheet and slides."""

import functools
import html
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..exercises import LEVELS, registry
from ..words import CLAUSE, joined, say, say_of
from .executed import Chapter, Run
from .topics import as_html

NAME, SHEETS = "guide", "sheets"
TITLE = say("Teacher's guide")
ABOUT = say(
    "Goals, prerequisites, minutes and difficulty of each chapter, two syllabuses, three projects. Minutes are "
    "computed: 150 words or 300 characters of prose a minute, two minutes a code cell, 5, 10 and 20 minutes for an "
    "exercise by its level. Difficulty, 1 to 5, is a fifth of the chapters each, by minutes times the exercises' mean "
    "level. fplab pages NAME --slides DIR makes slides of a chapter; a sheet to print is linked at its name."
)
HEADS = (say("chapter"), say("what one can do afterwards"), say_of("of a chapter", "needs"), say("words"), say("cells"),
         say("exercises"), say("minutes"), say("difficulty"))  # fmt: skip
WEEK = say("Week {n}: {titles} ({minutes} minutes)")
PROJECTS, RUBRIC = say("Projects"), say("Marked by, in each project:")
POINTS = say("{text} ({n} points)")
SHEET, ASKED, ANSWER = say("Sheet: {title}"), say("Exercises"), say("Answer:")
ONE = say("**{title}** ({level}): {text}")
SPEED, CELL, LEVEL_MINUTES = {"en": 150, "zh": 300}, 2, (5, 10, 20)
PART = re.compile(r'<div class="fplab-(en|zh)"[^>]*>(.*?)</div>', re.S)
WORD = {"en": re.compile(r"[A-Za-z][\w'-]*"), "zh": re.compile("[\u4e00-\u9fff]")}
STYLE = (
    "html{scroll-snap-type:y mandatory}section{min-height:100vh;box-sizing:border-box;padding:6vh 8vw;"
    "scroll-snap-align:start;page-break-after:always;font:1.5rem/1.5 system-ui,sans-serif}"
    "section img,section svg{max-width:100%;max-height:70vh}table{border-collapse:collapse}td,th{padding:.2em .6em}"
)


@functools.cache
def contents() -> dict[str, list[dict[str, Any]]]:
    """The table of goals, syllabuses, projects and what they are marked by."""
    table: dict[str, list[dict[str, Any]]] = tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    )
    return table


@dataclass(frozen=True)
class Measured:
    """What a chapter has: words of prose, code cells, exercises by level; ``minutes``, and their ``load``."""

    words: int
    cells: int
    levels: tuple[int, ...]
    minutes: int

    @property
    def load(self) -> float:
        """Minutes times the mean level of the exercises."""
        return self.minutes * sum(self.levels) / max(1, len(self.levels))


def prose(notebook: Path, language: str) -> list[str]:
    """The text cells of a notebook in a language."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return ["".join(part for spoken, part in PART.findall(text) if spoken == language).strip() for text in texts]


def measured(chapter: Chapter, language: str) -> Measured:
    """What a chapter has and takes, in a language."""
    words = sum(len(WORD[language].findall(re.sub("<[^>]+>", "", text))) for text in prose(chapter.path, language))
    cells = json.loads(chapter.path.read_text(encoding="utf-8"))["cells"]
    shown = sum(cell["cell_type"] == "code" and "exercises." not in "".join(cell["source"]) for cell in cells)
    levels = tuple(one.level for one in registry().values() if one.chapter.number == int(chapter.name[:2]))
    minutes = words / SPEED[language] + CELL * shown + sum(LEVEL_MINUTES[level - 1] for level in levels)
    return Measured(words, shown, levels, 5 * round(minutes / 5))


def difficulties(found: dict[str, Measured]) -> dict[str, int]:
    """1 to 5 by the chapters' order of load, a fifth of them each."""
    order = sorted(found, key=lambda number: found[number].load)
    return {number: 1 + 5 * place // len(order) for place, number in enumerate(order)}


def page(course: Sequence[Chapter], language: str) -> str:
    """The guide in Markdown."""
    chapters = {chapter.name[:2]: chapter for chapter in course if chapter.name[:2].isdigit()}
    found = {number: measured(chapter, language) for number, chapter in chapters.items()}
    hard, rows = difficulties(found), []
    for one in contents()["chapter"]:
        if (number := one["number"]) not in found:
            continue
        name = f'<a href="{SHEETS}/{number}.html">{html.escape(chapters[number].title.into(language))}</a>'
        has = found[number]
        cells = (name, html.escape(one[language]), ", ".join(one["needs"]) or "–", f"{has.words:,}", has.cells,
                 len(has.levels), has.minutes, "●" * hard[number])  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    parts = [f"# {TITLE.into(language)}", ABOUT.into(language), as_html([head.into(language) for head in HEADS], rows)]
    for one in contents()["syllabus"]:
        parts.append(f"## {one[language]}")
        for week, numbers in enumerate(one["weeks"], 1):
            there = [number for number in numbers if number in found]
            minutes = sum(found[number].minutes for number in there)
            titles = joined((chapters[number].title for number in there), CLAUSE)
            parts.append("* " + WEEK.fill(n=week, titles=titles, minutes=minutes).into(language))
    parts.append(f"## {PROJECTS.into(language)}")
    parts += [f"### {one[language]}\n\n{one['task_' + language]}" for one in contents()["project"]]
    marks = ("* " + POINTS.fill(text=one[language], n=one["points"]).into(language) for one in contents()["criterion"])
    return "\n\n".join([*parts, RUBRIC.into(language), "\n".join(marks)]) + "\n"


def sheet(chapter: Chapter, language: str) -> str:
    """A chapter on a sheet to print: its question, its sections with what stands out in them, its exercises."""
    parts = ["# " + SHEET.fill(title=chapter.title).into(language), chapter.question.into(language)]
    for text in prose(chapter.path, language)[1:-1]:
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)  # links lead from where the chapter is
        strong = re.findall(r"(?<!\*)\*\*[^*\n]+\*\*", plain)
        heads = [head for head in re.findall(r"^##+ .+$", plain, re.M) if head[3:] != ASKED.into(language)]
        parts += [*heads, " · ".join(strong)]
    parts.append(f"## {ASKED.into(language)}")
    for one in registry().values():
        if one.chapter.number == int(chapter.name[:2]):
            asked = ONE.fill(title=one.title, level=LEVELS[one.level - 1], text=one.statement)
            parts.append(f"{asked.into(language)}\n\n{ANSWER.into(language)} ________")
    return "\n\n".join(filter(None, parts)) + "\n"


def slides(chapter: Chapter, run: Run, language: str) -> str:
    """A chapter as slides in one file: a section is a slide with its first lines, and so is each figure of it."""
    from markdown_it import MarkdownIt

    markdown, made = MarkdownIt("commonmark").enable("table"), []
    for cell in run.notebook.cells:
        if cell.cell_type == "markdown":
            text = "".join(part for spoken, part in PART.findall(cell.source) if spoken == language).strip()
            for section in re.split(r"(?m)^(?=##? )", text):
                blocks = [block for block in section.split("\n\n") if block.strip()]
                if blocks and blocks[0].startswith("#"):
                    made.append(markdown.render("\n\n".join(blocks[:3])))
        for out in cell.get("outputs", ()):
            data = out.get("data", {})
            if "image/svg+xml" in data or 'class="fplab-figure"' in data.get("text/html", ""):
                made.append(data.get("image/svg+xml") or data["text/html"])
    hidden = "".join(f".fplab-{one}{{display:{'block' if one == language else 'none'}!important}}" for one in SPEED)
    body = "".join(f"<section>{one}</section>\n" for one in made)
    title = html.escape(chapter.title.into(language))
    return (f'<!doctype html>\n<html lang="{language}"><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}{hidden}</style>\n{body}</html>\n")  # fmt: skip
