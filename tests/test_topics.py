"""The index of topics: every row leads to a cell, an experiment and a claim that there are."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from fplab import claims, experiments
from fplab.pages import topics

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
ROWS = topics.topics()


@functools.cache
def cells(chapter: str) -> dict[str, str]:
    """The cells of a chapter, by id."""
    (path,) = NOTEBOOKS.glob(f"{chapter}*.ipynb")
    return topics.cells(path)


def test_every_topic_of_the_documents_is_a_row():
    by_document = [[row for row in ROWS if row.document == one] for one in dict.fromkeys(row.document for row in ROWS)]
    assert [len(rows) for rows in by_document] == [24, 17, 23, 16, 12, 6]
    assert len({(row.document, row.title) for row in ROWS}) == len(ROWS)
    assert all(re.search("[\u4e00-\u9fff]", row.title.zh) or row.title.en == row.title.zh for row in ROWS)


def test_every_row_leads_to_a_cell_an_experiment_and_a_claim():
    for row in ROWS:
        assert row.cell in cells(row.chapter), row.title.en
        assert row.experiment in experiments.NAMES, row.title.en
        assert claims.get(row.claim).name == row.claim


def test_the_claim_of_a_row_has_a_cell_of_its_own():
    found = topics.claim_cells(NOTEBOOKS / "claims.ipynb")
    assert {row.claim for row in ROWS} <= found.keys()


def test_the_page_has_every_row_and_links_what_has_a_page():
    pytest.importorskip("nbformat")
    from fplab.pages import chapters

    course = chapters(NOTEBOOKS)
    text = topics.table(course, "en")
    files = {chapter.name for chapter in course}
    assert text.count("<tr>") == len(ROWS) + 6 + 1
    links = re.findall(r'href="course/(\w+)\.html#(\w+)"', text)
    assert len(links) == 2 * len(ROWS)
    for file, anchor in links:
        assert file in files
        assert anchor in cells(file)
    assert "href" not in topics.table((), "en")


def test_a_row_names_a_claim_of_its_own_document_and_every_claim_has_a_row():
    for row in ROWS:
        said_by = claims.get(row.claim).source.split(", ")
        assert set(said_by) & set(row.source.split()), (row.title.en, row.source, said_by)
    assert {row.claim for row in ROWS} == {claim.name for claim in claims.claims()}
