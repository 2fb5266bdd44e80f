"""The course in a real browser: run a chapter, move its widgets, fail and pass an exercise, change the language."""

import io
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import browser
import nbformat
import pytest

from fplab import widgets

pytest.importorskip("playwright", reason="Playwright is not installed (it is in the test extra)")
if find_spec("jupyterlab") is None:  # the tests start it: to import it here takes seconds
    pytest.skip("JupyterLab is not installed (it is in the lab extra)", allow_module_level=True)
if browser.CHROMIUM is None:
    pytest.skip("no Chromium is installed; make browser installs it on Debian and Ubuntu", allow_module_level=True)

# How far what is in a cell reaches beyond its right edge.
BEYOND = (
    "e => Math.max(0, ...[...e.querySelectorAll('.fplab-picture, .widget-hbox')]"
    ".map(p => p.getBoundingClientRect().right - e.getBoundingClientRect().right))"
)
TRY = 'rne = lambda x, n: {}\nfplab.exercises.check("rne", rne)'


# What scrolls sideways, that is hides a part: what it begins with, and how wide it is and could be.
HIDDEN = (
    "e => [...e.querySelectorAll('*')].filter(x => x.clientWidth && x.scrollWidth > x.clientWidth + 1"
    " && getComputedStyle(x).overflowX !== 'visible')"
    ".map(x => [x.innerText.slice(0, 40), x.clientWidth, x.scrollWidth])"
)
SHOWN = (
    "import fplab",
    *(f"fplab.widgets.{name}.widget()" for name in widgets.NAMES),
    'fplab.inspect("0.1")', 'fplab.course.evidence("formats")', 'fplab.course.hardware("V100")',
    'fplab.exercises.exercise("rne")', 'fplab.course.figure("underflow")',
    "fplab.draw.stepper.trace_figure(fplab.tensorcore.trace([0.1] * 16, [0.1] * 16, 1.0, gpu='V100'), steps=1)",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with browser.served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def person(chromium: Any, address: str) -> browser.Person:
    """Somebody who has opened ``00_start`` and run it."""
    found = browser.Person(chromium)
    found.open(address)
    found.run_all()
    return found


@pytest.fixture
def shot(tmp_path: Path) -> Path:
    """Where screenshots go: ``FPLAB_SCREENSHOTS``, to be looked at, or nowhere that lasts."""
    folder = Path(os.environ.get("FPLAB_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def ground(figure: Any) -> list[int]:
    """The colour of a figure a little below its upper left corner, which is rounded."""
    from matplotlib.image import imread

    pixel = imread(io.BytesIO(figure.screenshot()))[20, 3, :3]
    return [round(255 * float(channel)) for channel in pixel]


def test_every_cell_runs_without_an_error(person, shot):
    assert person.page.locator(".jp-RenderedText[data-mime-type*=stderr]").all_inner_texts() == []
    assert person.page.locator(".jp-InputPrompt", has_text="[").count() > 15
    assert person.until(lambda: person.page.locator(".fplab-picture").count() >= 3)
    person.picture(shot / "start.png")


def test_a_bit_is_toggled_and_the_value_changes(person, shot):
    cell = person.cell("fplab.widgets.bits.widget")
    value = cell.locator("input[type=text]").first
    assert person.until(lambda: value.input_value() == "0.0999755859375")
    sign = cell.locator(".widget-toggle-button").first
    sign.click()
    person.page.wait_for_function("e => e.value === '-0.0999755859375'", arg=value.element_handle())
    assert person.until(lambda: sign.inner_text() == "1")
    assert person.until(lambda: "0xae66" in cell.locator(".fplab-picture").inner_text())
    sign.press("Space")  # the keyboard does what the mouse does
    person.page.wait_for_function("e => e.value === '0.0999755859375'", arg=value.element_handle())
    value.fill("1/3")
    value.press("Enter")
    cell.get_by_text("0x3555").wait_for()
    person.picture(shot / "bits.png")


def test_the_loss_scale_is_dragged(person, shot):
    cell = person.cell("fplab.widgets.gradients.widget")
    picture, handle = cell.locator(".fplab-picture"), cell.get_by_role("slider", name="loss scale 2^")
    assert person.until(lambda: "loss scale 2⁰" in picture.inner_text())
    box, track = handle.bounding_box(), cell.locator(".noUi-target").bounding_box()
    person.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    person.page.mouse.down()
    person.page.mouse.move(track["x"] + track["width"] / 2, box["y"] + box["height"] / 2, steps=8)
    person.page.mouse.up()
    cell.get_by_text("loss scale 2²⁰").first.wait_for()
    handle.press("ArrowLeft")
    cell.get_by_text("loss scale 2¹⁹").first.wait_for()
    person.picture(shot / "loss_scale.png")


def test_the_tensor_core_is_stepped(person, shot):
    cell = person.cell("fplab.widgets.stepper.widget")
    cell.locator("select").first.select_option(label="16 × 2^-24 + 1")
    picture = cell.locator(".fplab-picture")
    cell.get_by_text("step 1 / 4").wait_for()
    cell.get_by_role("button", name="step ▶").click()
    cell.get_by_text("step 2 / 4").wait_for()
    assert person.until(lambda: "V100" in picture.inner_text())
    cell.locator("select").nth(1).select_option(label="H100")
    cell.get_by_text("H100 wgmma").first.wait_for()
    person.picture(shot / "stepper.png")


def test_a_list_is_chosen_from_with_the_keyboard(person):
    cells = person.page.locator(".jp-Cell").count()
    cell = person.cell("fplab.widgets.stepper.widget")
    gpu = cell.get_by_role("combobox", name="GPU")
    gpu.select_option(label="V100")
    cell.get_by_text("V100 mma").first.wait_for()
    gpu.press("ArrowDown")  # which in JupyterLab goes to the next cell
    cell.get_by_text("T4 mma").first.wait_for()
    gpu.press("a")  # which inserts one
    cell.get_by_text("A100 mma").first.wait_for()
    assert person.page.locator(".jp-Cell").count() == cells
    bits = person.cell("fplab.widgets.bits.widget")
    bits.get_by_role("combobox", name="right").press("ArrowUp")
    bits.get_by_text("tf32 (follows").wait_for()
    bits.get_by_role("combobox", name="right").press("ArrowDown")
    bits.get_by_text("bf16 (follows").wait_for()


def test_an_exercise_fails_with_its_smallest_counterexample_and_then_passes(person, shot):
    answer = "a first try: what does it get wrong?"
    report = person.cell(answer).locator(".jp-OutputArea .fplab-en")
    assert person.until(lambda: "not yet" in report.inner_text())  # as the chapter comes
    cell = person.page.locator(".jp-CodeCell", has=person.page.get_by_text(answer))
    index = person.page.locator(".jp-Cell").evaluate_all("(all, one) => all.indexOf(one)", cell.element_handle())
    cell, report = (person.page.locator(".jp-Cell").nth(index).locator(x) for x in ("xpath=.", ".fplab-en"))
    person.rewrite(cell, TRY.format("(x + (1 << n) // 2) >> n"))
    report.get_by_text("These are ties away from zero").wait_for()
    assert "the smallest input on which it fails" in report.inner_text()
    person.picture(shot / "exercise_fails.png")
    person.rewrite(cell, TRY.format("round(x / 2**n)"))
    report.get_by_text("passed").wait_for()
    assert "every bit" in report.inner_text()
    person.picture(shot / "exercise_passes.png")


def test_the_language_changes_prose_widgets_and_exercises(person, shot):
    first = person.cell("fplab.course.start()")
    first.get_by_role("button", name="中文").click()
    prose = person.page.locator(".fplab-zh h1").first
    prose.wait_for(state="visible")
    assert prose.inner_text() == "从这里开始"
    assert person.until(lambda: not person.page.locator(".fplab-en:visible").count())
    person.picture(shot / "chinese.png")
    cell = person.cell("fplab.widgets.gradients.widget")
    cell.get_by_text("损失缩放").first.wait_for()
    cell.get_by_role("slider", name="损失缩放 2^").wait_for()
    person.picture(shot / "chinese_widget.png")
    answer = person.cell("rne = lambda x, n: round").locator(".fplab-zh")
    assert person.until(lambda: "通过" in answer.inner_text())
    person.cell("fplab.course.start()").get_by_role("button", name="English").click()
    person.page.locator(".fplab-en h1").first.wait_for(state="visible")
    assert person.until(lambda: not person.page.locator(".fplab-zh:visible").count())


def test_nothing_complained(person):
    assert person.complaints == []


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_nothing_is_cut_off_on_a_narrow_screen(person, shot, theme):
    person.page.set_viewport_size({"width": 800, "height": 900})
    person.menu("Settings", "Theme", theme)
    dark = theme.endswith("Dark")
    body = person.page.locator(f"body[data-jp-theme-light={'false' if dark else 'true'}]")
    body.wait_for(state="attached")
    for name in ("bits", "gradients", "stepper"):
        cell = person.cell(f"fplab.widgets.{name}.widget")
        assert person.until(lambda cell=cell: cell.evaluate(BEYOND) < 1), f"{name}: {cell.evaluate(BEYOND)} pixels"
        person.picture(shot / f"narrow_{name}_{'dark' if dark else 'light'}.png")
    figure = person.cell("fplab.course.figure").locator("img.fplab-figure:visible")
    assert person.until(lambda: ground(figure) == ([0x14, 0x18, 0x1F] if dark else [0xFF] * 3))


def test_no_widget_and_no_figure_hides_a_part_on_a_narrow_screen(chromium, address, folder, shot):
    """With the list of files beside them, 800 pixels leave 364; in the dark theme."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    everything = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in SHOWN], metadata=kernel)
    nbformat.write(everything, folder / "notebooks" / "all.ipynb")
    person = browser.Person(chromium, 800)
    person.open(address.replace("/tree/00_start", "/workspaces/alone/tree/all"))
    person.menu("Settings", "Theme", "JupyterLab Dark")
    person.run_all()
    assert person.page.locator(".jp-RenderedText[data-mime-type*=stderr]").all_inner_texts() == []
    for code in SHOWN[1:]:
        output = person.cell(code).locator(".jp-OutputArea").first
        assert person.until(lambda output=output: output.locator("svg, img, table, b").count() > 0), code
        assert output.evaluate(HIDDEN) == [], code
    figures = person.page.locator("img.fplab-figure:visible")
    assert figures.count() == 2
    for i in range(2):
        assert person.until(lambda i=i: ground(figures.nth(i)) == [0x14, 0x18, 0x1F])
    person.picture(shot / "narrow_dark_figures.png")
