"""What a run ends in: a line an experiment, and a report in one file that a browser reads offline."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from fplab.columns import width_of
from fplab.experiments import findings
from fplab.experiments.outcomes import Outcome, Status, absent, differs, failed, passed
from fplab.experiments.runner import Finished
from fplab.experiments.table import Row
from fplab.language import speaking
from fplab.words import given

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><rect width="9" height="9"/></svg>'
ANSWER = given("a quarter of the <gradients> vanish", zh="四分之一的梯度消失")


def finished(folder: Path, name: str, *outcomes: Outcome, **about: Any) -> Finished:
    """An experiment that was run, with a picture and a claim for each outcome."""
    path = folder / f"{name}.svg"
    path.write_text(PICTURE)
    rows = tuple(Row(name, given(f"claim {i}", zh=f"论断 {i}"), "proved", x) for i, x in enumerate(outcomes))
    files = (path, folder / f"{name}.dark.svg", folder / f"{name}.csv")
    return Finished(name, rows, files, 1.0, 2.0, **about)


@pytest.fixture
def run(tmp_path: Path) -> list[findings.Finding]:
    done = [
        finished(tmp_path, "late", passed("4 bits"), absent("no GPU"), answer=ANSWER, question=given("How many?")),
        finished(tmp_path, "early", passed("1"), failed("1 against 2"), title=given("Sums", zh="求和")),
        finished(tmp_path, "broken"),
    ]
    return findings.in_order(done, ["early", "broken", "late"])


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([passed(), absent("")], Status.PASS),
        ([absent("")], Status.ABSENT),
        ([], Status.ABSENT),
        ([passed(), differs("")], Status.DIFFERS),
        ([differs(""), failed(""), passed()], Status.FAIL),
    ],
)
def test_a_finding_ends_as_the_worst_of_its_claims(tmp_path: Path, outcomes: Any, status: Status) -> None:
    assert findings.Finding(finished(tmp_path, "x", *outcomes), 0).status is status


def test_the_screen_has_a_line_an_experiment_in_the_order_of_the_ladder(run: Any, tmp_path: Path) -> None:
    lines = findings.screen(run, tmp_path / "report.html", 200, colour=False)
    assert [line.split()[:2] for line in lines[:3]] == [["FAIL", "early"], ["absent", "broken"], ["pass", "late"]]
    assert lines[2] == f"pass    late    {ANSWER}"
    assert lines[3:5] == ["", f"The picture of each: {tmp_path / 'NAME.svg'}"]
    assert lines[5].startswith("4 claims: 2 pass, 1 FAIL, 1 absent. Whole sentences, figures, evidence: ")
    assert lines[6:] == ["FAIL early: claim 1 [proved]: 1 against 2"]
    painted = findings.screen(run, tmp_path / "report.html", 200, colour=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", "\n".join(painted)) == "\n".join(lines)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_line_is_longer_than_the_terminal_and_each_finding_has_one(run: Any, language: str) -> None:
    with speaking(language):
        lines = findings.screen(run, Path("r.html"), 33, colour=False)
    assert all(width_of(line) <= 33 for line in lines)
    assert (
        lines[:3]
        == {
            "en": ["FAIL    early   claim 0", "absent  broken", "pass    late    a quarter of …"],
            "zh": ["不通过  early   论断 0", "暂缺    broken", "通过    late    四分之一的梯度 …"],
        }[language]
    )


def test_what_is_absent_waits_for_a_gpu_or_for_something_else(tmp_path: Path) -> None:
    done = finished(tmp_path, "one", passed(), absent("no GPU"), absent("no GPU"), absent("at the full size"))
    kinds = ["proved", "hardware, live", "hardware, recorded", "measured here"]
    rows = tuple(dataclasses.replace(row, evidence=kind) for row, kind in zip(done.rows, kinds, strict=True))
    found = findings.in_order([dataclasses.replace(done, rows=rows)], ["one"])
    text = "\n".join(findings.screen(found, Path("r.html"), 200, colour=False))
    assert (
        "2 of the 3 absent claims wait for a GPU; on a machine that has one: fplab record --out DIR; 1 for the full"
        in text
    )


def test_the_report_is_one_file_in_both_languages(run: Any, tmp_path: Path) -> None:
    path = findings.write(run, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert "a quarter of the &lt;gradients&gt; vanish" in text
    assert "四分之一的梯度消失" in text
    assert text.count("data:image/svg+xml;base64,") == 3  # the dark ones are left out
    assert not re.search(r"(src|href)=\"(?!data:|#)|url\(|@import", text)
    assert re.findall(r"<details( open)?>", text) == [" open", "", ""]  # what fails is seen
    assert findings.write(run, tmp_path).read_text(encoding="utf-8") == text


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_a_browser_shows_searches_and_prints_it(run: Any, tmp_path: Path, chromium: Any, width: int) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900}, offline=True, locale="en-GB")
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(error))
    page.goto(findings.write(run, tmp_path).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("img").evaluate_all("all => all.every((one) => one.complete && one.naturalWidth > 0)")
    assert page.locator("#late .answer").inner_text() == ANSWER.en
    page.get_by_role("button", name="中文").click()
    assert page.locator("#late .answer").inner_text() == ANSWER.zh
    page.get_by_role("searchbox").fill("消失 late")
    assert page.locator("section:visible").evaluate_all("all => all.map((one) => one.id)") == ["late"]
    assert page.locator("ol li:visible").count() == 1
    page.get_by_role("searchbox").fill("")
    assert page.locator("section:visible").count() == 3
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#late details p").first.is_visible()
    assert not wrong
    context.close()
