"""The README is true: its Python says what its comments say, its commands and files exist, both languages agree."""

import contextlib
import doctest
import io
import os
import re
import subprocess
from pathlib import Path

import fplab
from fplab.cli import COMMANDS
from fplab.language import speaking

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```pycon\n(.*?)```", TEXT, re.DOTALL)


def test_both_languages_show_the_same_code():
    english, chinese = (re.sub(r"\s*#.*", "", block) for block in BLOCKS)
    assert english == chinese
    commands = [re.sub(r"\s{2,}#.*", "", line) for line in TEXT.splitlines() if line.startswith("$ ")]
    half = TEXT.index("# fplab（中文）")
    theirs = [re.sub(r"\s{2,}#.*", "", line) for line in TEXT[half:].splitlines() if line.startswith("$ ")]
    assert set(theirs) <= set(commands)
    assert {"$ make run", "$ make test"} <= set(theirs)


def test_python_prints_what_is_shown():
    for block in BLOCKS:
        test = doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0)
        assert len(test.examples) > 5
        assert doctest.DocTestRunner().run(test).failed == 0


def test_the_survey_of_a_model_says_what_is_shown():
    """Its words; its numbers within a tenth, since torch's FP32 sums depend on the processor."""
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)
    assert len(shown) == 2
    assert shown[0][0] == shown[1][0]
    number = re.compile(r"\d+\.\d+(?:e-\d+)?")
    for language, (code, text) in zip(("en", "zh"), shown, strict=True):
        told = io.StringIO()
        with contextlib.redirect_stdout(told), speaking(language):
            exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
        one, other = ("".join(words.split()) for words in (told.getvalue(), text))
        assert number.sub("#", one) == number.sub("#", other)
        for found, said in zip(number.findall(one), number.findall(other), strict=True):
            assert abs(float(found) - float(said)) <= 0.1 * float(said)


def test_its_pictures_are_of_modest_size():
    pictures = set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT))
    assert {"figures/screens/widget.png", "figures/screens/claims.png"} <= pictures
    for path in pictures:
        assert (ROOT / path).stat().st_size < 150_000, path


def test_its_commands_and_files_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|\$ )make (\w+)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    known = {command.name for command in COMMANDS}
    assert set(re.findall(r"\bfplab (list|run|figures|record|verify|memory|inspect|lab)\b", TEXT)) <= known
    for path in re.findall(r"\]\((figures/[^)]+)\)", TEXT):
        assert (ROOT / path).is_file(), path


def test_makes_list_is_in_both_languages():
    def listed(**chosen):
        given = subprocess.run(["make", "-s"], cwd=ROOT, env=os.environ | chosen, capture_output=True, text=True)
        return [line.removeprefix("make ").split(maxsplit=1) for line in given.stdout.splitlines()]

    english, chinese = listed(FPLAB_LANG="en"), listed(FPLAB_LANG="zh")
    assert [name for name, _ in english] == [name for name, _ in chinese]
    assert {"run", "lab", "test", "bench-first"} <= {name for name, _ in english}
    assert not any(re.search("[\u4e00-\u9fff]", text) for _, text in english)
    assert all(re.search("[\u4e00-\u9fff]", text) for name, text in chinese if name != "lint")


def test_the_numbers_of_the_course_are_true():
    exercises, widgets = len(fplab.exercises.names()), len(fplab.widgets.NAMES)
    assert f"{widgets} widgets, {exercises} exercises" in TEXT
    assert f"{widgets} 个组件、{exercises} 道习题" in TEXT
    assert len(list((ROOT / "notebooks").glob("[0-9]*.ipynb"))) == 16


def test_the_version_is_said_alike_everywhere():
    citation, changes = ((ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md"))
    assert f"version: {fplab.__version__}\n" in citation
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == fplab.__version__
    assert "BSD 3-Clause" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_rows_of_the_walk_throughs_are_those_that_strangers_add():
    guide = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    tried = (ROOT / "tests" / "test_strangers.py").read_text(encoding="utf-8")
    rows = re.findall(r"Add a row to `[\w.]+`: `([^`]+)`", guide)
    assert len(rows) == 3
    for row in rows:
        assert row in tried, row
