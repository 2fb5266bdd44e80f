"""The cookbook is true: its Python prints what it shows, its links lead somewhere, and every source is named in it."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from fplab.cli import COMMANDS
from fplab.pages import cookbook, reference

ROOT = Path(__file__).parent.parent
RECIPES = cookbook.recipes()
SOURCE = re.compile(r"(?:arXiv[: ]*|doi\.org/)(\d{4}\.\d{4,5}|10\.\d+/[\w./]*\w)", re.I)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_the_code_prints_what_is_shown(recipe):
    space: dict[str, object] = {}
    for code, shown in recipe.snippets():
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(code, recipe.path.name, "exec"), space)
        assert said.getvalue() == shown
    assert recipe.source().count("```python") == len(recipe.snippets())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_links_lead_to_pages_and_names_that_there_are(recipe):
    import fplab

    chapters = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    text = recipe.source()
    assert not re.search(r"\]\((?!https?:)[^)]*\.html", text)
    assert set(re.findall(r"\]\(\.\./course/(\w+)\.ipynb\)", text)) <= chapters
    assert set(re.findall(r"\]\((\w+)\.md\)", text)) <= {r.name for r in RECIPES}
    for role, name in re.findall(r"\{py:(obj|mod)\}`[^<`]*<([\w.]+)>`", text):
        page, _, public = (name, "", "") if role == "mod" else name.rpartition(".")
        assert page in reference.modules(), name
        assert not public or public in getattr(fplab, page.removeprefix("fplab.")).__all__, name
    commands = re.findall(r"(?:\$ |`)fplab (\w+)", text)
    assert set(commands) <= {command.name for command in COMMANDS}


def test_what_a_newcomer_asks_for_is_there():
    assert [r.name for r in RECIPES] == [
        "own_model", "fp8", "two_gpus", "watch_report", "will_it_diverge", "size_a_run", "cluster", "check_a_gpu",
        "shadow", "survey", "explain", "conform", "tracker_questions", "bounds", "papers_and_data",
    ]  # fmt: skip
    assert all(r.title and r.about.endswith(".") for r in RECIPES)


def test_every_paper_and_data_set_that_is_cited_is_linked():
    files = [*(ROOT / "fplab").rglob("*.py"), *(ROOT / "fplab").rglob("*.toml"), *(ROOT / "notebooks").glob("*.ipynb"),
             *(ROOT / "fplab" / "training" / "datasets").glob("*.txt")]  # fmt: skip
    cited = {one for path in files for one in SOURCE.findall(path.read_text(encoding="utf-8"))}
    linked = set(re.findall(r"\(https://(?:arxiv\.org/abs|doi\.org)/([^)]+)\)", RECIPES[-1].source()))
    assert len(cited) > 30
    assert cited <= linked
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for reading in re.findall(r"Further reading\n(.*?)</div>", "".join(cell["source"]), re.S):
                lines = [line for line in reading.splitlines() if line.startswith("* ") and "arXiv" not in line]
                for title in (one for line in lines for one in re.findall(r"(?<=[^*])\*([^*]+)\*", line)):
                    assert title.lower() in RECIPES[-1].source().lower(), (path.name, title)
    data = [p.stem for p in (ROOT / "fplab" / "training" / "datasets").glob("*.txt")]
    assert all(f"`{name}." in RECIPES[-1].source() for name in data)
