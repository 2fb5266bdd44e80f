"""The site: chapters that link to one another, the cookbook, the reference, a search, and an index of all."""

import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import LabError, door, unknown
from ..storage import demand_writable, write_text
from ..words import Text, given, say, verbatim
from . import glossary, live, reference, search, topics
from .cookbook import recipes
from .executed import Chapter, cells, needed
from .offline import fetched
from .rendering import both, cell, colours, prose

HERE = Path(__file__).parent
HEADING = re.compile(r"^# (.+)$", re.M)
LINKED = re.compile(r'<a\b[^>]*\bhref="([\w.-]+\.html)[^"]*"[^>]*>(.*?)</a>', re.S)
PART = {"en": re.compile(r'<div class="fplab-en">(.*?)</div>', re.S),
        "zh": re.compile(r'<div class="fplab-zh"[^>]*>(.*?)</div>', re.S)}  # fmt: skip
COURSE, COOKBOOK, REFERENCE = say("fplab: the course"), say("Cookbook"), say("Reference")
SEARCH, NOTHING_FOUND = say("Search"), say("Nothing here holds these words.")
ABOUT = say(
    "The chapters with all their outputs, to read without running anything. make lab opens the same notebooks, live."
)
PREVIOUS, NEXT, CONTENTS = say("Previous"), say("Next"), say("Contents")
SKIP, LANGUAGE = say("Skip to the chapter"), say("Language")


@door
def chapters(folder: Path) -> tuple[Chapter, ...]:
    """The notebooks of a folder, in the order of their names."""
    nbformat, _ = needed()
    found = []
    for path in sorted(folder.glob("*.ipynb")):
        first = next((c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"), "")
        parts = {language: _head(pattern.search(first), path.stem) for language, pattern in PART.items()}
        title, question = (given(parts["en"][i], zh=parts["zh"][i]) for i in (0, 1))
        found.append(Chapter(path.stem, path, title, question))
    return tuple(found)


def _head(part: re.Match[str] | None, name: str) -> tuple[str, str]:
    """The heading, and the question below it: up to the paragraph in bold, or else the first."""
    heading = HEADING.search(part[1]) if part else None
    if part is None or heading is None:
        return name, ""
    paragraphs = [p.strip() for p in part[1][heading.end() :].split("\n\n") if p.strip()]
    last = next((i for i, p in enumerate(paragraphs) if p.startswith("**")), 0)
    question = " ".join(paragraphs[: last + 1])
    return heading[1].strip(), re.sub(r"<[^>]+>|[*`]|(?<=[。？]) ", "", question)


# --- pages ------------------------------------------------------------------------------------------------------
def link(chapter: Chapter, before: Text | None = None, rel: str = "") -> str:
    how = f' rel="{rel}"' if rel else ""
    says = f"<small>{both(before)}</small> " if before else ""
    return f'<a href="{chapter.file}"{how}>{says}{both(chapter.title)}</a>'


def around(at: int, course: Sequence[Chapter], written: set[str]) -> str:
    """Links to the chapters before and after, as far as they have pages."""
    parts = []
    for i, says, rel in ((at - 1, PREVIOUS, "prev"), (at + 1, NEXT, "next")):
        there = 0 <= i < len(course) and course[i].name in written
        parts.append(link(course[i], says, rel) if there else "<span></span>")
    return f'<nav class="around">{parts[0]}<a href="index.html">{both(CONTENTS)}</a>{parts[1]}</nav>'


def page(title: Text, body: str) -> str:
    """A whole page. Raises LabError where it would fetch anything from elsewhere."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    script = (HERE / "language.js").read_text(encoding="utf-8")
    find = f"{SEARCH.en} {SEARCH.zh}"
    choices = "".join(
        f'<input type="radio" name="language" id="language-{language}" value="{language}"{checked}>'
        f'<label for="language-{language}" lang="{language}">{name}</label>'
        for language, name, checked in (("en", "English", " checked"), ("zh", "中文", ""))
    )
    text = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title.en)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>\n{style}{colours()}\n</style>\n</head>\n"
        f'<body data-en="{html.escape(title.en)}" data-zh="{html.escape(title.zh)}">\n'
        f'<a class="skip" href="#main">{both(SKIP)}</a>\n'
        f'<header><a href="index.html">fplab</a>'
        f'<form action="{search.FILE}" role="search">'
        f'<input type="search" name="q" aria-label="{find}" placeholder="{find}"></form>'
        f'<fieldset class="language"><legend>{both(LANGUAGE)}</legend>{choices}</fieldset></header>\n'
        f'<main id="main">\n{body}\n</main>\n<script>\n{script}</script>\n{live.scripts_of(body)}</body>\n</html>\n'
    )
    if outside := fetched(text):
        raise LabError(f"the page {title.en!r} would fetch {outside[0][:200]!r}; pages are read offline.")
    return text


def chapter_page(at: int, course: Sequence[Chapter], written: set[str], run: bool = True) -> str:
    """The page of a chapter; chapters that have no page are named in it without a link."""
    chapter = course[at]
    body = "\n".join(cell(one, chapter.path.parent) for one in cells(chapter.path, run))
    absent = {c.file for c in course if c.name not in written}
    body = live.moving(LINKED.sub(lambda found: found[2] if found[1] in absent else found[0], body))
    links = around(at, course, written)
    return page(chapter.title, f"{links}\n<article>\n{body}\n</article>\n{links}")


def index_page(course: Sequence[Chapter], written: set[str], whole: bool = False) -> str:
    """The list of chapters; those without a page are named only. ``whole``: the cookbook and the reference too."""
    rows = "".join(f"<li>{link(c) if c.name in written else both(c.title)}{both(c.question, 'p')}</li>" for c in course)
    if whole:
        for one in (topics, glossary):
            rows += f'<li><a href="{one.FILE}">{both(one.TITLE)}</a>{both(one.ABOUT, "p")}</li>'
    course_list = f'<h1>{both(COURSE)}</h1>{both(ABOUT, "p")}<ul class="contents">{rows}</ul>'
    return page(COURSE, f"<article>{course_list}{_further() if whole else ''}</article>")


def _article(body: str, kind: str = "") -> str:
    return f'<article class="prose{kind}">{body}</article>'


def _further() -> str:
    """The contents of the cookbook and of the reference."""
    cookbook = [(r.file, r.title, r.about) for r in recipes()]
    modules = [(f"{m}.html", m, reference.summary(m)) for m in reference.modules()]
    parts = []
    for title, rows in ((COOKBOOK, cookbook), (REFERENCE, modules)):
        listed = "".join(f'<li><a href="{file}">{name}</a>{prose(about, HERE)}</li>' for file, name, about in rows)
        parts.append(f'<h1>{both(title)}</h1><ul class="contents">{listed}</ul>')
    return "".join(parts)


@door
def write(
    names: Sequence[str] = (), out: Path = Path("pages"), folder: Path = Path("notebooks"),
    tick: Callable[[str], None] = lambda text: None, run: bool = True, whole: bool = False,
) -> list[Path]:  # fmt: skip
    """Write the pages of chapters (default: all) and the index, and return their paths.

    ``whole``: topics, glossary, cookbook, reference and search, too, which a site that has them keeps.

    ``names``: of notebooks in ``folder``, or their beginnings, such as "04". ``tick`` is told each chapter's name
    before it runs; ``run=False`` leaves out the outputs. Raises LabError for a name that is unknown, a notebook that
    fails, a page that would need the network.
    """
    course = chapters(folder)
    wanted = [_named(name, course) for name in names] or list(course)
    demand_writable(out)
    written = {c.name for c in course if (out / c.file).exists()} | {c.name for c in wanted}
    paths = []
    for chapter in wanted:
        tick(chapter.name)
        paths.append(out / chapter.file)
        write_text(paths[-1], chapter_page(course.index(chapter), course, written, run))
    if whole:
        tick("cookbook")
        made = {r.file: page(given(r.title), _article(prose(r.source, HERE))) for r in recipes()}
        there = [c for c in course if c.name in written]
        made |= {one.FILE: page(one.TITLE, _article(one.body(there))) for one in (topics, glossary)}
        tick("reference")
        for name, body in reference.bodies().items():
            made[f"{name}.html"] = page(verbatim(name), _article(body, " reference"))
        for file, text in made.items():
            paths.append(out / file)
            write_text(paths[-1], text)
    whole = whole or (out / search.FILE).exists()
    paths.append(out / "index.html")
    write_text(paths[-1], index_page(course, written, whole))
    if whole:
        found = {p.name: p.read_text(encoding="utf-8") for p in sorted(out.glob("*.html"))
                 if p.is_file() and p.name not in (search.FILE, "index.html")}  # fmt: skip
        paths.append(out / search.FILE)
        write_text(paths[-1], page(SEARCH, search.body(found, [both(NOTHING_FOUND)])))
    return paths


def _named(name: str, course: Sequence[Chapter]) -> Chapter:
    stem = Path(name).stem if name.endswith(".ipynb") else name
    exact = [c for c in course if c.name == stem] or [c for c in course if c.name.split("_")[0] == stem]
    if not exact:
        raise unknown("notebook", name, [c.name for c in course])
    return exact[0]
