"""What a chapter begins with: the language selector, committed figures, claims with evidence, recorded hardware."""

import base64
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import fplab
from fplab import course, language
from fplab.experiments.outcomes import absent
from fplab.experiments.table import Row
from fplab.widgets import bits, evidence, lossscale


@pytest.fixture(autouse=True)
def _english():
    fplab.lang("en")
    yield
    fplab.lang("en")


def test_the_selector_and_the_code_choose_the_same_language():
    selector = course.start()
    assert ".fplab-zh{display:none!important}" in selector.style.value
    selector.buttons.value = "zh"
    assert fplab.lang() == "zh"
    assert ".fplab-en{display:none!important}" in selector.style.value
    assert ".fplab-zh{display:block!important}" in selector.style.value
    fplab.lang("en")
    assert selector.buttons.value == "en"
    assert ".fplab-en{display:block!important}" in selector.style.value


def test_the_next_chapter_begins_in_the_language_of_the_last(monkeypatch, tmp_path):
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "own"))
    monkeypatch.delenv("FPLAB_LANG", raising=False)

    def begun() -> str:
        monkeypatch.setattr(language, "_chosen", [])  # as in a kernel of its own
        return str(course.start().buttons.value)

    assert begun() == "en"
    course.start().buttons.value = "zh"
    assert begun() == "zh"
    fplab.lang("en")  # the buttons follow
    assert begun() == "en"
    monkeypatch.setenv("FPLAB_LANG", "en")
    course.choose("zh")
    assert begun() == "en"
    monkeypatch.delenv("FPLAB_LANG")
    (tmp_path / "own" / "language").write_bytes(b"\xff klingon")
    assert begun() == "en"
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path / "own" / "language" / "no folder"))
    course.choose("zh")
    assert fplab.lang() == "zh"


def test_widgets_on_the_screen_are_drawn_anew_in_another_language():
    board, editor = lossscale.widget(), bits.widget()
    english = board.view.value
    fplab.lang("zh")
    assert board.view.value != english
    assert board.buttons[0].description == board.actions[0].label.zh
    assert board.buttons[0].tooltip == (board.actions[0].hint or board.actions[0].label).zh
    assert editor.names[0].description == "左"
    fplab.lang("en")
    assert board.view.value == english
    assert editor.names[0].description == "left"


def test_speaking_leaves_the_choice_and_its_followers_alone():
    told = []
    language.follow(lambda: told.append(fplab.lang()))
    try:
        both = language.in_each(lambda: fplab.lang())
        assert told == []
        assert fplab.lang() == "en"
        fplab.lang("zh")
        fplab.lang("zh")  # no change: nobody is told twice
        assert told == ["zh"]
    finally:
        language._followers.pop()
    assert both == '<div class="fplab-en">en</div><div class="fplab-zh" lang="zh" style="display:none">zh</div>'


def test_exercises_show_both_languages():
    one = fplab.exercises.exercise("rne")
    for shown in (one, one.check(lambda x, n: x >> n, remember=False)):
        page = shown._repr_html_()
        english, chinese = page.split('<div class="fplab-zh"')
        assert one.title.en in english
        assert one.title.zh in chinese
        assert one.title.en not in chinese


def test_a_figure_is_the_file_that_was_drawn():
    shown = course.figure("underflow")
    data = re.search(r'base64,([^"]+)"', shown._repr_html_())
    drawn = base64.b64decode(data[1]).decode()
    sheet = re.search(r"<style>@media\(prefers-color-scheme:dark\)\{.*?\}</style>", drawn)[0]
    assert drawn.replace(sheet, "") == shown.path.read_text(encoding="utf-8")
    assert "fplab run underflow" in shown._repr_html_()


def test_a_figure_is_in_chinese_where_it_was_drawn_so(monkeypatch, tmp_path):
    kept = Path(__file__).parents[1] / "figures"
    monkeypatch.setattr(course, "folders", lambda: (kept,))  # those of runs/quick may be in English alone
    english, chinese = course.figure("underflow")._repr_html_().split('<div class="fplab-zh"')
    assert 'alt="Gradient underflow and loss scaling: Which' in english
    assert 'alt="梯度下溢与损失缩放：' in chinese
    assert re.search(r'base64,([^"]+)"', english)[1] != re.search(r'base64,([^"]+)"', chinese)[1]
    alone = course.Picture("underflow", shutil.copy(course.figure("underflow").path, tmp_path / "underflow.svg"))
    assert alone._repr_html_().count("<img") == 1  # no Chinese one was drawn: both texts are with the one there is
    assert re.search('alt="Gradient underflow[^"]*梯度下溢', alone._repr_html_())


def test_a_figure_is_as_dark_as_jupyterlab():
    page = course.figure("underflow")._repr_html_()
    assert '<img class="fplab-figure"' in page
    assert "[data-jp-theme-light=false] .fplab-figure{color-scheme:dark}" in page
    assert "background:white" not in page


def test_a_figure_that_is_not_there_says_how_to_draw_it(monkeypatch, tmp_path):
    monkeypatch.setattr(course, "folders", lambda: (tmp_path,))
    refuses(lambda: course.figure("underflow"), r"no figure of 'underflow'.*fplab run underflow draws it")
    refuses(lambda: course.figure("underflows"), "Did you mean 'underflow'")


def test_claims_are_those_of_the_experiment():
    claims = course.evidence("formats")
    experiment = fplab.experiments.load("formats")
    assert [row.claim for row in claims.rows][: len(experiment.claims)] == [c.text for c in experiment.claims]
    page = claims._repr_html_()
    assert all(row.outcome.status.value in page for row in claims.rows)
    assert "论断" in page
    assert all(word in str(claims) for word in experiment.claims[0].text.en.split())


def test_claims_of_several_experiments_name_each():
    rows = [Row(name, "it holds", "exact", absent("nothing here")) for name in ("formats", "schedules")]
    assert "<td" in course.Claims(tuple(rows))._repr_html_()
    assert all(f">{row.experiment}</td>" in course.Claims(tuple(rows))._repr_html_() for row in rows)
    assert ">formats</td>" not in course.Claims((rows[0], rows[0]))._repr_html_()


def test_hardware_without_a_record_says_so(monkeypatch):
    monkeypatch.delenv(evidence.CORPUS_VARIABLE, raising=False)
    monkeypatch.setattr(evidence, "rows_of", lambda model: ())
    found = course.hardware(["V100", "h100"])
    assert found.rows == (("V100", "mma fp16 -> fp32", "", 0, 0), ("H100", "wgmma fp16 -> fp32", "", 0, 0))
    assert "no record here" in str(found)
    assert "fplab record" in found._repr_html_()


def test_hardware_counts_the_rows_that_differ(monkeypatch):
    one, zero = np.ones((3, 4), np.float32).view(np.uint32), np.zeros(3, np.uint32)
    four = np.full(3, 4, np.float32).view(np.uint32)
    wrong = four.copy()
    wrong[1] ^= 1
    monkeypatch.setattr(evidence, "rows_of", lambda model: (evidence.Rows(one, one, zero, wrong, "a GPU"),))
    found = course.hardware("V100")
    assert found.rows == (("V100", "mma fp16 -> fp32", "a GPU", 3, 2),)
    assert "✗ 2" in str(found)


def test_hardware_of_the_public_data_set(monkeypatch):
    corpus = Path(__file__).parent.parent.parent / "shared" / "tensor-core-corpus"
    if not corpus.is_dir():
        pytest.skip("the recorded data set is not here")
    monkeypatch.setenv(evidence.CORPUS_VARIABLE, str(corpus))
    (row,) = course.hardware("V100").rows
    assert row == ("V100", "mma fp16 -> fp32", "MATLAB-tensor-core", 1000, 1000)


def test_the_figures_are_found_from_the_notebooks(monkeypatch, tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "notebooks").mkdir()
    shutil.copy("figures/formats.svg", tmp_path / "figures")
    monkeypatch.chdir(tmp_path / "notebooks")
    assert course.figure("formats").path.resolve() == (tmp_path / "figures" / "formats.svg").resolve()
    shutil.copytree(tmp_path / "figures", tmp_path / "runs" / "quick")  # a run of one's own comes before the gallery
    assert course.figure("formats").path.resolve() == (tmp_path / "runs" / "quick" / "formats.svg").resolve()


def test_what_a_cell_prints_is_said_in_the_chosen_language(capsys):
    fplab.lang("zh")
    course.tell("neighbours of 256:", 255.75, 256.25)
    course.tell("mine", 1, sep="-", end="!\n")
    course.tell(f"{'dx, outputs divided':20}: 3 of 1,000 differ")
    course.tell(Path("this against that"))  # what is no text speaks for itself
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["256 的相邻数：255.75 256.25", "mine-1!"]
    assert said[2:] == ["dx，切分输出        ：1,000 个中有 3 个不同", "this against that"]
    fplab.lang("en")
    course.tell("neighbours of 256:", 255.75)
    assert capsys.readouterr().out == "neighbours of 256: 255.75\n"
