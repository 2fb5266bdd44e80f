"""``python -m tests.screenshots``: pictures of screens.

A widget and a table of claims as JupyterLab shows them; the site's start and a run's report at the widths of a
telephone, a tablet and a desk.
"""

import sys
import tempfile
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).parent))
from browser import SOURCE, Person, chromium, served

CELLS = {
    "widget": 'fplab.widgets.bits.widget(left="fp16", right="e4m3")',
    "claims": 'fplab.course.evidence("underflow")',
}
FOLDER = SOURCE / "figures" / "screens"
CUT = "e => Object.assign(e.style, {maxHeight: '364px', overflow: 'hidden'})"  # of a long table the beginning


WIDTHS = (390, 800, 1280)


def pages(chromium: object, folder: Path) -> None:
    """The start page of the site, and the report of the last quick run (or of one experiment, where there was none)."""
    from fplab import cli
    from fplab.pages import write

    report = SOURCE / "runs" / "quick" / "report.html"
    if not report.exists():
        report = folder / "report.html"
        cli.main(["run", "formats", "--out", str(folder)])
    write(["00"], folder / "site", SOURCE / "notebooks")
    for name, path in {"site": folder / "site" / "en" / "index.html", "report": report}.items():
        for width in WIDTHS:
            person = Person(chromium, width, 1000)
            person.page.goto(path.as_uri())
            person.page.screenshot(path=FOLDER / f"{name}-{width}.png")
            person.page.close()
            print(FOLDER / f"{name}-{width}.png")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        pages(browser, Path(folder))
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as address, chromium() as browser:
        codes = ["import fplab", *CELLS.values()]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in codes])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}  # else JupyterLab asks
        nbformat.write(notebook, Path(folder) / "notebooks" / "readme.ipynb")
        person = Person(browser, 1180, 1500)
        person.open(address.replace("00_start", "readme"))
        person.run_all()
        for name, code in CELLS.items():
            shown = person.cell(code).locator(".jp-OutputArea-output").first
            shown.wait_for()
            shown.evaluate(CUT)
            person.page.wait_for_timeout(500)  # fonts
            shown.screenshot(path=FOLDER / f"{name}.png")
            print(FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
