"""The README is true: its Python says what its comments say, its commands and files exist, both languages agree."""

from __future__ import annotations

import re
from pathlib import Path

import fplab
from fplab.cli import COMMANDS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_both_languages_show_the_same_code():
    english, chinese = (re.sub(r"\s*#.*", "", block) for block in BLOCKS)
    assert english == chinese
    commands = [re.sub(r"\s{2,}#.*", "", line) for line in TEXT.splitlines() if line.startswith("$ ")]
    half = TEXT.index("# fplab（中文）")
    theirs = [re.sub(r"\s{2,}#.*", "", line) for line in TEXT[half:].splitlines() if line.startswith("$ ")]
    assert set(theirs) <= set(commands)
    assert {"$ make run", "$ make test"} <= set(theirs)


def test_the_code_gives_what_the_comments_say():
    assert fplab.quantize(0.1, "bf16") == 0.10009765625
    assert fplab.add(2048, 1, "fp16", flags=True) == (2048.0, 1)
    assert fplab.sum([0.1] * 4096, "fp16") == 256.0
    row = [2**-12] * 16
    assert fplab.tensorcore.dot(row, row, 1, gpu="V100") == 1.0
    assert fplab.tensorcore.dot(row, row, 1, gpu="H100") == 1.0000009536743164
    for number in ("0.10009765625", "(2048.0, 1)", "256.0", "1.0000009536743164"):
        assert all(number in block for block in BLOCKS), number
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), {})


def test_its_commands_and_files_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|\$ )make (\w+)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    known = {command.name for command in COMMANDS}
    assert set(re.findall(r"\bfplab (list|run|figures|record|verify|memory|inspect|lab)\b", TEXT)) <= known
    for path in re.findall(r"\]\((figures/[^)]+)\)", TEXT):
        assert (ROOT / path).is_file(), path


def test_the_numbers_of_the_course_are_true():
    exercises, widgets = len(fplab.exercises.names()), len(fplab.widgets.NAMES)
    assert f"{widgets} widgets, {exercises} exercises" in TEXT
    assert f"{widgets} 个组件、{exercises} 道习题" in TEXT
    assert len(list((ROOT / "notebooks").glob("[0-9]*.ipynb"))) == 13


def test_the_version_is_said_alike_everywhere():
    citation, changes = ((ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md"))
    assert f"version: {fplab.__version__}\n" in citation
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == fplab.__version__
    assert "BSD 3-Clause" in (ROOT / "LICENSE").read_text(encoding="utf-8")
