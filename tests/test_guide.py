"""The teacher's guide: it knows every chapter, computes what it says of them, and makes sheets and slides."""

from pathlib import Path

import pytest

from fplab.exercises import registry
from fplab.language import marked
from fplab.pages import chapters, guide
from fplab.pages.executed import Run

nbformat = pytest.importorskip("nbformat")
COURSE = [one for one in chapters(Path(__file__).parent.parent / "notebooks") if one.name[:2].isdigit()]
NUMBERS = [one.name[:2] for one in COURSE]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_chapter_has_goals_and_what_comes_before_it(language):
    rows = guide.contents()["chapter"]
    assert [row["number"] for row in rows] == NUMBERS
    for row in rows:
        assert all(need < row["number"] for need in row["needs"])
        assert row[language]
    text = guide.page(COURSE, language)
    assert all(one.title.into(language).replace("&", "&amp;") in text for one in COURSE)
    assert text.count("### ") == len(guide.contents()["project"]) == 3


def test_syllabuses_keep_the_order_and_the_long_one_has_every_chapter():
    six, twelve = (one["weeks"] for one in guide.contents()["syllabus"])
    assert (len(six), len(twelve)) == (6, 12)
    needs = {row["number"]: row["needs"] for row in guide.contents()["chapter"]}
    for weeks in (six, twelve):
        order = [number for week in weeks for number in week]
        assert order == sorted(order)
    assert [number for week in twelve for number in week] == NUMBERS
    assert {need for week in twelve for number in week for need in needs[number]} <= set(NUMBERS)
    assert sum(one["points"] for one in guide.contents()["criterion"]) == 20


def small(tmp_path: Path) -> Path:
    """A chapter 04 of 300 words, 600 characters and three code cells, of which one is an exercise."""
    text = marked("en", "\n\n# 4. Sums\n\n## A part\n\n**It stalls.** " + "word " * 295 + "\n\n") + marked(
        "zh", "\n\n# 4. 求和\n\n## 一节\n\n**停滞。** " + "字" * 594 + "\n\n"
    )
    code = ["1", "2", 'fplab.exercises.exercise("kahan_sum")']
    cells = [nbformat.v4.new_markdown_cell(text), *map(nbformat.v4.new_code_cell, code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path := tmp_path / "04_sums.ipynb")
    return path


def test_minutes_come_from_words_cells_and_exercises(tmp_path):
    (chapter,) = chapters(small(tmp_path).parent)
    levels = [one.level for one in registry().values() if one.chapter.number == 4]
    for language in ("en", "zh"):
        found = guide.measured(chapter, language)
        assert found.cells == 2
        assert list(found.levels) == levels
        wanted = 2 + 2 * 2 + sum({1: 5, 2: 10, 3: 20}[level] for level in levels)
        assert abs(found.minutes - wanted) <= 2.5
    hard = guide.difficulties({one.name[:2]: guide.measured(one, "en") for one in COURSE})
    assert [list(hard.values()).count(level) for level in range(1, 6)] == [4, 3, 3, 3, 3]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_sheet_has_the_question_and_the_exercises(language):
    text = guide.sheet(COURSE[4], language)
    assert COURSE[4].question.into(language) in text
    for one in registry().values():
        assert (one.title.into(language) in text) >= (one.chapter.number == 4)
    assert ".ipynb" not in text


def test_slides_are_one_file_with_the_figures_themselves(tmp_path):
    path = small(tmp_path)
    notebook = nbformat.read(path, as_version=4)
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><circle r="1"/></svg>'
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": svg})]
    (chapter,) = chapters(path.parent)
    text = guide.slides(chapter, Run(notebook), "zh")
    assert text.count("<section>") == 3
    assert svg in text
    assert "求和" in text
    assert "Sums" not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
