"""The statements of the exercises, in both languages, are whole sentences that name what is to be written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fplab.exercises import registry
from fplab.exercises.base import Implement


@pytest.mark.parametrize("name", registry())
def test_statements_are_whole(name):
    exercise = registry()[name]
    for text in (exercise.statement.en, exercise.statement.zh):
        assert text.count("（") == text.count("）")
        assert text.rstrip().endswith((".", "?", ")", "。", "？", "）", ":", "：")), text
        if isinstance(exercise.task, Implement):
            assert f"{name}(" in text


CHAPTERS = {exercise.chapter for exercise in registry().values()}
NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


@pytest.mark.parametrize("chapter", sorted(CHAPTERS, key=lambda c: c.number), ids=lambda c: c.name)
def test_a_chapter_is_called_as_its_notebook(chapter):
    (path,) = NOTEBOOKS.glob(f"{chapter.number:02}_*.ipynb")
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    english, chinese = re.findall(r"^# (.*)$", first, re.MULTILINE)
    assert english == f"{chapter.number}. {chapter.title.en}"
    assert chinese == f"{chapter.number}. {chapter.title.zh}"


def test_every_chapter_has_a_notebook_and_every_notebook_its_exercises():
    numbers = [int(path.name[:2]) for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))]
    assert numbers == [0, *sorted(chapter.number for chapter in CHAPTERS)]  # 0 is the start
