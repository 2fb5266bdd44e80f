"""What a kernel does differently where a page is made: figures as SVG. Widgets see ``FPLAB_STATIC`` themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..draw.themes import STATIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST = "import fplab.pages.inside\n\nfplab.pages.inside.prepare()"  # the cell that runs before the notebook's own
__all__ = ["FIRST", "STATIC", "prepare", "svg"]


def svg(figure: Figure) -> str:
    """A figure as SVG text, the same every time, which is dark where the page is."""
    from ..draw.style import svg_of
    from ..draw.themes import adaptive

    return adaptive(svg_of(figure))


def prepare(shell: Any = None) -> None:
    """Let the notebook's shell (None: the one that runs this) show matplotlib's figures as SVG."""
    if shell is None:
        from IPython import get_ipython

        shell = get_ipython()
    shell.display_formatter.formatters["image/svg+xml"].for_type_by_name("matplotlib.figure", "Figure", svg)
