"""What a kernel does differently where a page is made: figures as SVG. Widgets see ``FPLAB_STATIC`` themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..widgets.shell import STATIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST = "import fplab.pages.inside\n\nfplab.pages.inside.prepare()"  # the cell that runs before the notebook's own
__all__ = ["FIRST", "STATIC", "prepare", "svg"]


def svg(figure: Figure) -> str:
    """A figure as SVG text, the same every time, which is dark where the page is."""
    from ..draw.style import save
    from ..draw.themes import adaptive

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        save(figure, path, "light")
        return adaptive(path.read_text(encoding="utf-8"))


def prepare(shell: Any = None) -> None:
    """Let the notebook's shell (None: the one that runs this) show matplotlib's figures as SVG."""
    if shell is None:
        from IPython import get_ipython

        shell = get_ipython()
    shell.display_formatter.formatters["image/svg+xml"].for_type_by_name("matplotlib.figure", "Figure", svg)
