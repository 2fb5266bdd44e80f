"""What Sphinx reads for the site in one language: the chapters as notebooks, the rest as Markdown."""

import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import sums
from ..storage import write_text
from ..widgets.shell import picture
from ..words import Text, given, say
from ..words.cells import commented
from . import benchmarks, cookbook, glossary, guide, live, reference, topics
from .executed import Chapter, Run

PART = {language: re.compile(rf'<div class="fplab-{language}"[^>]*>(.*?)</div>', re.S) for language in ("en", "zh")}
HEADING = re.compile(r"^# (.+)$", re.M)
LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./course/)?(\w+)\.ipynb(?:#[^)]*)?\)")
IMAGE = re.compile(r"(!\[[^\]]*\]\(|<img\b[^>]*?\bsrc=\")(?!data:|\w+:)([^)\"]+)")
COURSE, COOKBOOK, REFERENCE = say("The course"), say("Cookbook"), say("Reference")
MORE, CHANGES = say("More"), say("Changes")
TITLE = say("fplab: a numerical-precision laboratory")
SURPRISE = say(
    "Add 0.1 to itself 4,096 times in FP16, and the sum is **{total:g}**, not {right:.1f}: from 256 on it stands still."
)
TRY = say("A number, bit by bit. Toggle a bit, type a value, step to the neighbours:")
LEARN = (say("Learn"), say("Sixteen chapters, from one bit to a training run, with things to move and exercises."))
DOORS = (
    (say("Debug my model"), say("Which layers stand FP8, where an error is born, why two runs differ."),
     "cookbook/own_model.html"),
    (say("Check my GPU"), say("What its Tensor Cores compute, bit by bit, against what is known of them."),
     "cookbook/check_a_gpu.html"),
)  # fmt: skip
WIDGETS = "fplab.widgets."  # their pages are below that of all widgets
ENGLISH = say("This page is in English.")


class Source:
    """A folder of pages in a language; a file is written where it changes, so that Sphinx makes anew only what did."""

    def __init__(self, folder: Path, language: str) -> None:
        self.folder, self.language = folder, language
        self.written: set[Path] = set()

    def say(self, text: Text) -> str:
        """A text in the language."""
        return text.into(self.language)

    def put(self, name: str, text: str) -> None:
        """A file; left alone where it has this text already."""
        path = self.folder / name
        self.written.add(path)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)

    def copy(self, file: Path, name: str) -> None:
        """A picture."""
        path = self.folder / name
        self.written.add(path)
        if not path.is_file() or path.read_bytes() != file.read_bytes():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, path)

    def clean(self) -> None:
        """Remove what an earlier site had."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.written:
                path.unlink()


def write(
    source: Source, course: Sequence[Chapter], runs: Mapping[str, Run], changes: str = "", measured: Path | None = None
) -> None:
    """The pages of chapters with what ran of them, of cookbook, reference, topics and glossary, and their contents.

    ``runs``: by the chapter's name. ``changes``: the changelog, in Markdown. ``measured``: of benchmarks, a CSV.
    """
    there = {chapter.name for chapter in course}
    for chapter in course:
        notebook = chapter_in(source, chapter, runs[chapter.name], there)
        source.put(f"course/{chapter.name}.ipynb", json.dumps(notebook, ensure_ascii=False, indent=1))
    for recipe in cookbook.recipes():
        source.put(f"cookbook/{recipe.name}.md", _linked(recipe.source(source.language), there))
    for module in reference.modules():
        below = [name for name in reference.modules() if name.startswith(f"{module}.") and module == WIDGETS[:-1]]
        listed = f"\n```{{toctree}}\n\n{chr(10).join(below)}\n```\n" if below else ""
        source.put(f"reference/{module}.md", reference.page(module, source.language) + listed)
    for one in (topics, glossary):
        source.put(f"{one.NAME}.md", _page(source, one.TITLE, one.ABOUT, one.table(course, source.language)))
    more = [topics.NAME, glossary.NAME, guide.NAME]
    source.put(f"{guide.NAME}.md", guide.page(course, source.language))
    for chapter in course:
        if chapter.name[:2].isdigit():
            text = "---\norphan: true\n---\n\n" + guide.sheet(chapter, source.language)
            source.put(f"{guide.SHEETS}/{chapter.name[:2]}.md", _linked(text, there))
    if measured is not None and measured.is_file():
        more.append(benchmarks.NAME)
        source.put(f"{benchmarks.NAME}.md", benchmarks.page(measured, source.language))
    if changes:
        more.append("changes")
        note = "" if source.language == "en" else f"*{source.say(ENGLISH)}*\n\n"
        source.put("changes.md", f"# {source.say(CHANGES)}\n\n{note}{changes}")
    source.put("index.md", _start(source, course, more))
    source.clean()


def _linked(text: str, there: set[str]) -> str:
    """Markdown in which a chapter that is not there is named without a link."""
    return LINK.sub(lambda one: one[0] if one[2] in there else one[1], text)


def chapter_in(source: Source, chapter: Chapter, run: Run, there: set[str]) -> dict[str, Any]:
    """A notebook in one language: its prose, its code, its outputs with widgets that move, its pictures beside it."""
    cells = []
    linked = topics.linked_cells() | glossary.linked_cells()
    for cell in run.notebook.cells:
        anchor = f'<a id="{cell.id}"></a>\n\n' if (chapter.name.split("_")[0], cell.id) in linked else ""
        if cell.cell_type == "markdown":
            text = "\n\n".join(PART[source.language].findall(cell.source)) or cell.source
            text = anchor + _linked(text.strip(), there)
            cells.append({"cell_type": "markdown", "id": cell.id, "metadata": {}, "source": text})
        elif cell.cell_type == "code":
            if anchor:
                cells.append({"cell_type": "markdown", "id": f"{cell.id}-at", "metadata": {}, "source": anchor})
            text = commented(cell.source, source.language)
            cells.append({"cell_type": "code", "id": cell.id, "metadata": {}, "source": text,
                          "execution_count": None, "outputs": cell.get("outputs", [])})  # fmt: skip
    for cell in cells:
        if cell["cell_type"] == "markdown":
            cell["source"] = IMAGE.sub(lambda one: one[1] + _picture(source, chapter, one[2]), cell["source"])
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def _picture(source: Source, chapter: Chapter, address: str) -> str:
    """Copy a picture of a notebook beside the site's pages, and give its address there."""
    file = (chapter.path.parent / address).resolve()
    if file.is_file():
        source.copy(file, f"pictures/{file.name}")
        return f"../pictures/{file.name}"
    return address  # of which Sphinx warns


# --- pages around the course --------------------------------------------------------------------------------------
def _page(source: Source, title: Text, about: Text, body: str) -> str:
    return f"# {source.say(title)}\n\n{source.say(about)}\n\n{body}\n"


def contents(title: str, names: Sequence[str], depth: int = 1) -> str:
    """Pages in the list at the side."""
    listed = "\n".join(names)
    return f"```{{toctree}}\n:hidden:\n:maxdepth: {depth}\n:caption: {title}\n\n{listed}\n```\n"


def _start(source: Source, course: Sequence[Chapter], more: Sequence[str]) -> str:
    """What the laboratory is, at one sight: a number that surprises, a widget that moves, three doors; the contents."""
    from ..widgets import bits

    say, state = source.say, bits.State()
    total = float(sums.sum([0.1] * 4096, "fp16"))
    data = {"widget": "bits", "state": json.dumps(state.__dict__)}
    mark = " ".join(f'data-{name}="{html.escape(value)}"' for name, value in data.items())
    widget = live.moving(f'<div class="fplab-live" {mark}>{picture(bits.render, state)}</div>')
    doors = "".join(
        f'<a class="fplab-door" href="{at}"><b>{html.escape(say(name))}</b><span>{html.escape(say(about))}</span></a>'
        for name, about, at in ((*LEARN, f"course/{course[0].name}.html"), *DOORS)
    )
    parts = (
        f"# {say(TITLE)}", say(SURPRISE.fill(total=total, right=409.6)), f'<div class="fplab-doors">{doors}</div>',
        say(TRY), f"<div>{widget}</div>", *_overview(source, course),
        contents(say(COURSE), [f"course/{c.name}" for c in course]),
        contents(say(COOKBOOK), [f"cookbook/{r.name}" for r in cookbook.recipes()]),
        contents(say(REFERENCE), [f"reference/{m}" for m in reference.modules() if not m.startswith(WIDGETS)]),
        contents(say(MORE), more),
    )  # fmt: skip
    return "\n\n".join(parts)


def _overview(source: Source, course: Sequence[Chapter]) -> list[str]:
    """The chapters with their questions."""
    links = [(f"* [{source.say(c.title)}](course/{c.name}.ipynb)", source.say(c.question)) for c in course]
    rows = [source.say(say("{first}: {then}", first=link, then=question)) for link, question in links]
    return [f"## {source.say(COURSE)}", "\n".join(rows)]


def head(path: Path) -> tuple[Text, Text]:
    """The title of a notebook, and the question below it: up to the paragraph in bold, or else the first."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first = next(("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"), "")
    parts = {language: _head(pattern.search(first), path.stem) for language, pattern in PART.items()}
    title, question = (given(parts["en"][i], zh=parts["zh"][i]) for i in (0, 1))
    return title, question


def _head(part: re.Match[str] | None, name: str) -> tuple[str, str]:
    heading = HEADING.search(part[1]) if part else None
    if part is None or heading is None:
        return name, ""
    paragraphs = [p.strip() for p in part[1][heading.end() :].split("\n\n") if p.strip()]
    last = next((i for i, p in enumerate(paragraphs) if p.startswith("**")), 0)
    question = " ".join(paragraphs[: last + 1])
    return heading[1].strip(), re.sub(r"<[^>]+>|[*`]|(?<=[。？]) ", "", question)
