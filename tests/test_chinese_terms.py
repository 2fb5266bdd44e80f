"""The Chinese of the whole project: one term for one thing, full-width marks, a space between Chinese and Latin."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from english_words import STAYS, english_left
from figure_words import english, texts_drawn

from fplab.pages import glossary
from fplab.words import catalogues

ROOT = Path(__file__).parent.parent
HAN = "[\u4e00-\u9fff]"
TERMS = {one.never: f"{one.zh} ({one.en})" for one in glossary.terms() if one.never}  # what is not said, and what is
MARKS = {
    "a half-width mark": rf"{HAN}[,;:!?]|[,;!] ?{HAN}|{HAN}\.(?=\s|$)",
    "half-width parentheses": rf"(?<![\w\]^])\([^()]*{HAN}[^()]*\)",
    "no space between Chinese and Latin": rf"{HAN}[A-Za-z0-9]|[A-Za-z0-9%]{HAN}",
    "a space beside a full-width mark": r"[，。；：！？、（）《》] (?!\|)|(?<=[\w”）]) [，。；：！？、（）《》]",
    "straight quotes": rf"\"{HAN}|{HAN}\"",
    "a mark or a particle twice": "，，|。。|；；|的的|了了|是是",
}


def documented(tree: ast.AST) -> set[int]:
    """The docstrings of a module, by identity."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    heads = [node.body[0] for node in ast.walk(tree) if isinstance(node, owners) and node.body]
    return {id(head.value) for head in heads if isinstance(head, ast.Expr)}


def leaves(table: Any) -> Iterator[str]:
    """The texts of a TOML table, without its keys."""
    if isinstance(table, dict | list):
        for one in table.values() if isinstance(table, dict) else table:
            yield from leaves(one)
    elif isinstance(table, str):
        yield table


def texts() -> Iterator[tuple[str, str]]:
    """Every Chinese text and the file it is in."""
    for path in sorted((ROOT / "fplab").rglob("*.py")):
        if not re.search(HAN, source := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(source)
        skipped = documented(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                yield path.name, node.value
    for path in sorted(set((ROOT / "fplab").rglob("*.toml")) - {ROOT / "fplab" / "pages" / "glossary.toml"}):
        yield from ((path.name, text) for text in leaves(tomllib.loads(path.read_text(encoding="utf-8"))))
    for path in sorted((ROOT / "fplab").rglob("zh.po")):
        for entry in catalogues.read(path):
            yield path.name, str(entry.string) if entry.id else ""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            prose = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
            yield f"{path.name} {cell['id']}", prose.partition('<div class="fplab-zh"')[2]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    yield "README.md", re.sub(r"```.*?```", "", readme[readme.index("# fplab（中文）") :], flags=re.DOTALL)


TEXTS = tuple(texts())


def chinese() -> list[tuple[str, str]]:
    """Lines that hold Chinese, without code, links and emphasis."""
    lines = [(where, line) for where, text in TEXTS for line in text.splitlines() if re.search(HAN, line)]
    plain = r"`[^`]*`|(?<=\])\([^()]*\)|(?<=[。：？！])\*\* |\*\*|<[^>]*>"  # Markdown needs that space
    return [(where, re.sub(plain, lambda found: "`" if "`" in found[0] else "", line)) for where, line in lines]


LINES = chinese()


def test_an_entry_has_one_translation() -> None:
    """A merge can leave two, which Babel reads without a word."""
    for path in (ROOT / "fplab").rglob("zh.po"):
        assert re.findall(r"^msgstr .*\nmsgstr .*", path.read_text(encoding="utf-8"), re.MULTILINE) == []


def test_there_is_chinese_everywhere() -> None:
    files = {where.split()[0] for where, _ in LINES}
    assert {"README.md", "claims.toml", "zh.po", "00_start.ipynb", "claims.ipynb"} <= files
    assert len(LINES) > 2000


def test_three_values_side_by_side_in_a_print_keep_their_order() -> None:
    """Where one is padded, blanks shift the fields that they are found as: the line is right in that order alone."""
    beside = re.compile(r"\{\w+\}(?: +\{\w+\}){2,}")
    entries = [entry for entry in catalogues.read(catalogues.FOLDER / "zh.po") if entry.context == "cell"]
    rows = [(row, str(entry.string)) for entry in entries for row in beside.findall(str(entry.id))]
    assert rows
    assert [row for row, said in rows if " ".join(row.split()) not in " ".join(said.split())] == []


@pytest.mark.parametrize(("wrong", "right"), TERMS.items())
def test_one_thing_has_one_name(wrong: str, right: str) -> None:
    found = [f"{where}: {line}" for where, line in LINES if re.search(wrong, line)]
    assert not found, f"say {right}:\n" + "\n".join(found)


@pytest.mark.parametrize("term", [one for one in glossary.terms() if one.at], ids=lambda one: one.en)
def test_a_term_has_its_english_beside_it_where_the_course_introduces_it(term: glossary.Term) -> None:
    (prose,) = (
        text for where, text in TEXTS if re.fullmatch(rf"{term.chapter}_\w+\.ipynb {term.at.split()[1]}", where)
    )
    assert re.search(rf"{term.zh}[^，。（）：；]{{0,4}}（[^）]*{term.en.removesuffix(' number')}", prose), prose


@pytest.mark.parametrize("rule", MARKS)
def test_marks_and_spaces(rule: str) -> None:
    found = [f"{where}: {line}" for where, line in LINES if re.search(MARKS[rule], line)]
    assert not found, f"{rule}:\n" + "\n".join(found)


def test_no_english_is_left_in_what_is_said_in_chinese() -> None:
    """Of the command line, experiments, pages, widgets, figures and refusals: all that the catalogue translates."""
    said = [str(entry.string) for path in catalogues.FOLDER.glob("zh.po") for entry in catalogues.read(path)
            if entry.id and entry.string != entry.id]  # fmt: skip
    assert len(said) > 3000
    assert [(text, left) for text in said if (left := english_left(text))] == []
    assert all(any(re.search(one, text) for text in said) for one in STAYS), "an exception that nothing needs"
    assert english_left("损失 is not finite。") == ["is not finite"]


@pytest.mark.parametrize("svg", sorted((ROOT / "figures").glob("*.zh.svg")), ids=lambda svg: svg.name)
def test_a_figure_of_the_gallery_is_lettered_in_chinese(svg: Path) -> None:
    drawn = texts_drawn(svg)
    assert any(re.search(HAN, text) for text in drawn)
    assert list(filter(english, drawn)) == []
    wrong = "|".join(TERMS)
    assert [text for text in drawn if re.search(HAN, text) and re.search(wrong, text)] == []
