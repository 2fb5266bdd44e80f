"""The chapters: thin cells without outputs, prose in both languages, and every cell runs."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from chapter_numbers import HELD, OF_FIGURES, held, of_run, unheld, unquoted
from english_words import english_left

import fplab
from fplab.language import marked
from fplab.words.cells import commented, comments

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
run_sync = pytest.importorskip("jupyter_core.utils").run_sync

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]
PROSE = re.compile(
    re.escape(marked("en", "\n\nEN\n\n") + "\n" + marked("zh", "\n\nZH\n\n"))
    .replace("EN", "(?P<en>.+)")
    .replace("ZH", "(?P<zh>.+)"),
    re.DOTALL,
)
CHINESE = re.compile(r"[\u4e00-\u9fff]")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NUMBERS = re.compile(r"(?<![\w.])(?:\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d{3,})(?!\w|\.\d)")


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def cells(notebook, kind):
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def is_answer(cell) -> bool:
    """Whether a cell is a reader's answer to an exercise, the one kind that may define functions."""
    return "fplab.exercises.check(" in cell.source


def test_the_chapters_are_all_there():
    numbers = [int(path.stem[:2]) for path in CHAPTERS]
    assert numbers == list(range(16))
    assert (FOLDER / "claims.ipynb").exists()


def test_cells_are_thin_and_hold_no_outputs(notebook):
    for cell in cells(notebook, "code"):
        assert not cell.outputs
        assert cell.execution_count is None
        if is_answer(cell):
            continue
        assert len(cell.source.splitlines()) < 10, cell.source
        made = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        assert not made, cell.source


def test_autocast_stands_around_no_optimizer_step(notebook):
    """It keeps the casts of the weights until its block ends: around a loop the network would not train."""
    for cell in cells(notebook, "code"):
        for block in [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.With)]:
            if any("autocast" in ast.unparse(item) for item in block.items):
                assert not re.search(r"\.step\(", ast.unparse(block)), cell.source


def test_prose_is_whole_in_both_languages(notebook):
    for cell in cells(notebook, "markdown"):
        found = PROSE.fullmatch(cell.source)
        assert found, cell.source[:200]
        english, chinese = found["en"], found["zh"]
        assert not CHINESE.search(re.sub(r"[`\"“].*?[`\"”]", "", english)), english
        assert CHINESE.search(chinese), chinese
        assert sorted(LINK.findall(english)) == sorted(LINK.findall(chinese))
        # Headings, bullets, rows of tables and code spans are in the same places.
        for mark in (r"^#+ ", r"^[*-] ", r"^\|"):
            many = [len(re.findall(mark, text, re.MULTILINE)) for text in (english, chinese)]
            assert many[0] == many[1], (mark, english, chinese)
        said, told = ({re.sub("[,.]", "", number).strip("0") for number in numbers} for numbers in (
            NUMBERS.findall(english), re.findall(r"\d[\d,.]*", chinese)))  # fmt: skip
        assert said <= told, (said - told, chinese)  # 7.5 billion is 75 亿


@pytest.mark.parametrize("chapter", [6, 8])
def test_a_chapter_of_two_sittings_says_so_in_both_languages(chapter):
    text = CHAPTERS[chapter].read_text(encoding="utf-8")
    pairs = ("The chapter is two sittings", "本章分两次学习"), ("A good place to stop.", "可以在这里停下。"), (
        "## Second sitting", "## 第二次学习")  # fmt: skip
    assert [text.count(mark) for pair in pairs for mark in pair] == [1] * 6


def test_links_lead_to_chapters_that_exist(notebook):
    for cell in cells(notebook, "markdown"):
        for target in LINK.findall(cell.source):
            if not re.match(r"https?://|#", target):
                assert (FOLDER / target.partition("#")[0]).exists(), target


def test_a_chapter_begins_with_its_question_and_the_language(notebook):
    assert re.search(r"^# ", notebook.cells[0].source, re.MULTILINE)
    first = cells(notebook, "code")[0].source
    assert "fplab.course.start()" in first


@pytest.mark.parametrize("path", CHAPTERS[1:], ids=lambda p: p.stem)
def test_a_chapter_names_every_exercise_of_its_own(path):
    text = path.read_text(encoding="utf-8")
    own = [e for e in fplab.exercises.registry().values() if e.chapter.number == int(path.stem[:2])]
    assert len(own) >= 3
    asked = [e.name for e in own if f'fplab.exercises.check(\\"{e.name}\\"' in text]
    assert len(asked) >= 2
    assert [e.name for e in own if e.name not in text] in ([], ["rne"])  # rne is worked through in 00_start


def test_every_exercise_that_a_notebook_names_exists(notebook):
    for cell in cells(notebook, "code"):
        for name in re.findall(r"fplab\.exercises\.(?:exercise|check)\(\"(\w+)\"", cell.source):
            assert name in fplab.exercises.names()


def test_a_chapter_shows_a_figure_something_to_move_and_hardware():
    for path in CHAPTERS[1:]:
        text = path.read_text(encoding="utf-8")
        assert "fplab.widgets." in text, path.stem
        assert re.search(r"fplab\.(course\.figure|draw|experiments)\b", text), path.stem


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks: what each takes is seconds of importing torch and drawing."""
    manager = nbclient.NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3").create_kernel_manager()
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs_and_its_numbers_hold(notebook, path, tmp_path, kernel):
    # No name of the notebook before is left; no search for cycles walks through the modules, which stay.
    fresh = "__import__('gc').freeze(); get_ipython().reset(); __import__('os').environ['FPLAB_PROGRESS_DIR'] = "
    notebook.cells.insert(0, nbformat.v4.new_code_cell(fresh + repr(str(tmp_path))))
    client = nbclient.NotebookClient(notebook, kernel, timeout=None, resources={"metadata": {"path": str(FOLDER)}})
    client.execute(cleanup_kc=False)
    client.kc.stop_channels()
    for cell in cells(notebook, "code"):
        said = [o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stderr"]
        assert not [text for text in said if "compiling kernels" not in text], said
    assert any(cell.get("outputs") for cell in notebook.cells)
    if path in CHAPTERS:
        assert unheld(notebook, int(path.stem[:2])) == []
        assert unquoted(notebook) == []


# What a cell prints that is code in either language: names of classes and flags of numbers, of layers and of acts that
# real processes wrote down, and what an answer or an exercise's solution holds.
PRINTED_NAMES = re.compile(
    r"normal|subnormal|zero|overflow|nan|inf|divide by zero|output head|free parameters|order of products|bitsandbytes "
    r"cpu|flush_\w+|\bfloor\b|products a step, c none|\breturn\b.*|\w+ = .*"
)


def english_lines(notebook) -> list[str]:
    """What cells print in English where Chinese was asked for."""
    printed = [out.text for cell in cells(notebook, "code") for out in cell.outputs
               if out.output_type == "stream" and out.name == "stdout"]  # fmt: skip
    lines = [line for text in printed for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in lines if english_left(PRINTED_NAMES.sub(" · ", line))]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_no_cell_prints_english_in_the_chinese_course(notebook, path, tmp_path, monkeypatch):
    monkeypatch.setenv("FPLAB_LANG", "zh")
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path))
    client = nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    assert any("\u4e00" <= letter <= "\u9fff" for cell in cells(notebook, "code") for letter in str(cell.outputs))
    assert english_lines(notebook) == []


def test_english_that_is_printed_is_found():
    notebook = nbformat.v4.new_notebook()
    out = nbformat.v4.new_output("stream", text="误差 1.2\nthe loss of it\n")
    notebook.cells = [nbformat.v4.new_code_cell("", outputs=[out])]
    assert english_lines(notebook) == ["the loss of it"]


def test_comments_are_in_the_language_of_the_page():
    sources = [cell.source for path in NOTEBOOKS for cell in cells(nbformat.read(path, as_version=4), "code")]
    for source in sources:
        chinese = commented(source, "zh")
        assert commented(source, "en") == source
        assert all(CHINESE.search(text) for *_, text in comments(chinese)), source
        assert ast.dump(ast.parse(chinese)) == ast.dump(ast.parse(source)), "the code is the same"


@pytest.mark.parametrize(("chapter", "english", "chinese", "holds"), OF_FIGURES, ids=[said[1] for said in OF_FIGURES])
def test_what_is_said_of_a_figure_is_what_it_shows(chapter, english, chinese, holds):
    assert said_in(CHAPTERS[chapter], english, chinese)
    assert holds()


def test_every_loss_scale_beside_a_figure_is_in_it():
    drawn = {row["loss_scale"] for row in of_run("loss_scaling")}
    for path in CHAPTERS:
        prose = ""
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                prose = cell.source
            elif cell.source == 'fplab.course.figure("loss_scaling")':
                assert {f"2^{n}" for n in re.findall("2<sup>(.+?)</sup>", prose)} <= drawn, path


def said_in(path, *parts):
    """Whether a chapter says every one of these."""
    text = path.read_text(encoding="utf-8")
    return all(part in text for part in parts)


def test_a_number_that_nothing_holds_is_found():
    chapter = nbformat.v4.new_notebook()
    prose = marked("en", "It takes 12.34 GB, 57% of 8,765; 99.5 is held, as in arXiv 1234.56789.") + marked(
        "zh", "12.34"
    )
    chapter.cells = [nbformat.v4.new_markdown_cell(prose)]
    assert unheld(chapter, 0) == []  # the whole line names a source
    chapter.cells[0].source = prose.replace(", as in arXiv 1234.56789", "")
    assert unheld(chapter, 0) == ["12.34", "57%", "8,765", "99.5"]
    out = nbformat.v4.new_output("stream", text="12.341 0.5712 99.4")
    chapter.cells.append(nbformat.v4.new_code_cell("8_765", outputs=[out]))
    assert unheld(chapter, 0) == ["99.5"]
    assert held("409.6", 0)
    assert not held("409.7", 0)
    for chapter, numbers in HELD.items():
        for number in numbers:
            assert held(number, chapter), (chapter, number)


def test_what_is_quoted_and_nowhere_shown_is_found():
    chapter = nbformat.v4.new_notebook()
    chapter.cells = [nbformat.v4.new_markdown_cell(marked("en", 'it says "arrives 1.0"') + marked("zh", "“1.0”"))]
    assert unquoted(chapter) == ["arrives 1.0"]
    out = nbformat.v4.new_output("stream", text="arrives  1.0\n")
    chapter.cells.append(nbformat.v4.new_code_cell("", outputs=[out]))
    assert unquoted(chapter) == []


def test_chapter_10_says_which_table_errs_least_as_its_figure_shows():
    errors = {(r["data"], r["codebook"], int(r["block"])): r for r in of_run("quantisation_error")}

    def error(data, book, block, kind):
        return float(errors[data, book, block][f"mean_{kind}"])

    assert said_in(CHAPTERS[10], "a table of the data's own quantiles has a smaller absolute error still")
    for block in (64, 256, 1024, 2048, 4096, 0):
        for kind in ("absolute", "relative"):
            assert error("heavy", "linear", block, kind) > error("heavy", "dynamic", block, kind)
        assert error("normal", "linear", block, "absolute") < error("normal", "dynamic", block, "absolute")
        assert error("normal", "linear", block, "relative") > error("normal", "dynamic", block, "relative")
    assert error("normal", "quantile", 0, "absolute") < error("normal", "linear", 0, "absolute")


def test_chapter_7_says_why_the_dynamic_scale_ends_elsewhere():
    """FP32 that leaves out the steps which the dynamic scale skipped ends where that does, and not where FP32 does."""
    from fplab.experiments.loss_scaling import E, data
    from fplab.training import DynamicScaler, StaticScaler

    class Skipping(StaticScaler):
        """No loss scale; the loss of some steps is made infinite."""

        def __init__(self, steps):
            super().__init__(1.0)
            self.left_out, self.step_number = steps, -1

        def scale(self, outputs):
            self.step_number += 1
            return super().scale(outputs) * (np.inf if self.step_number in self.left_out else 1.0)

    assert said_in(CHAPTERS[7], "FP32 that leaves out the same steps ends where the dynamic scale does")
    params = E.quick
    job = data.autoencoder(params)
    dynamic = data.train(job, params, 0, DynamicScaler(growth_interval=params.growth_interval), half=True)
    (steps,) = dynamic.skipped.nonzero()
    assert len(steps) > 1
    without, fp32 = (data.train(job, params, 0, Skipping(s), half=False).score for s in (steps, ()))
    assert abs(dynamic.score - without) < abs(dynamic.score - fp32) / 5
