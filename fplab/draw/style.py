"""The lab's matplotlib style: one light and one dark theme, safe for colour-blind readers, without pyplot.

A figure is made and saved inside a theme::

    with themed("dark"):
        figure = new_figure(8, 4)
        ...
    save(figure, "out.svg", "dark")

Every series has a :class:`Look`: a colour, a line style and a marker together, so that colour is never the only cue.
The same format has the same look in every figure (:func:`look_of_format`). Text in an SVG is drawn as outlines: labels
here are laid out with the metrics of one font, which most viewers do not have, and another would not fit. English is
in DejaVu Sans, which matplotlib brings, and a figure the same on every machine; for Chinese see :mod:`.lettering`.
"""

import functools
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ..errors import LabError, one_of
from ..storage import write_bytes, write_text
from ..words import SOURCE
from .layouts import remembered, twins
from .lettering import families, language, letter
from .themes import DARK, LIGHT, STATIC, THEMES, Theme, embedded

LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), "-", (0, (4, 1.5)), (0, (1, 1)), "-")
MARKERS: tuple[str, ...] = ("o", "s", "^", "D", "v", "P", "X", "h")
FORMAT_ORDER: tuple[str, ...] = ("fp16", "bf16", "e4m3", "e5m2", "fp32", "tf32", "", "fp64")
OTHER = FORMAT_ORDER.index("")  # grey, for every other format

_current: ContextVar[Theme] = ContextVar("fplab_theme", default=LIGHT)


@dataclass(frozen=True)
class Look:
    color: str
    linestyle: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot`` for a line without markers."""
        return {"color": self.color, "linestyle": self.linestyle}

    @property
    def marked(self) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot`` for a line with markers."""
        return {**self.line, "marker": self.marker}


def theme_of(theme: str | Theme) -> Theme:
    if isinstance(theme, Theme):
        return theme
    one_of("theme", theme, THEMES)
    return THEMES[theme]


def current() -> Theme:
    return _current.get()


def look(index: int) -> Look:
    """The look of series number ``index``; after eight of them they repeat."""
    i = index % len(MARKERS)
    return Look(current().series[i], LINES[i], MARKERS[i])


def look_of_format(name: str) -> Look:
    return look(FORMAT_ORDER.index(name) if name in FORMAT_ORDER else OTHER)


def rc(theme: Theme) -> Any:
    """matplotlib's parameters: of ``lab.mplstyle``, and what is of the theme or the language."""
    colours = (
        (theme.background, "figure.facecolor savefig.facecolor savefig.edgecolor axes.facecolor legend.facecolor"),
        (theme.ink, "axes.labelcolor axes.titlecolor text.color xtick.labelcolor ytick.labelcolor"),
        (theme.muted, "axes.edgecolor xtick.color ytick.color hatch.color"),
        (theme.grid, "grid.color"),
    )
    coloured = {name: colour for colour, names in colours for name in names.split()}
    return {**_same(), **coloured, "axes.prop_cycle": cycler(color=theme.series), "font.family": families()}


@functools.cache
def _same() -> Any:
    """The parameters that no theme changes."""
    return mpl.rc_params_from_file(Path(__file__).with_name("lab.mplstyle"), use_default_template=False)


@contextmanager
def themed(theme: str | Theme) -> Iterator[Theme]:
    """Draw in a theme: sets matplotlib's parameters and :func:`current` for the block, and restores both.

    >>> with themed("dark") as colours:
    ...     figure = new_figure()
    """
    chosen = theme_of(theme)
    token = _current.set(chosen)
    try:
        with mpl.rc_context(), twins():
            mpl.rcdefaults()
            mpl.rcParams.update(rc(chosen))
            yield chosen
    finally:
        _current.reset(token)


class LabFigure(Figure):
    """A figure that a notebook shows without pyplot: where it was drawn light, dark on a dark page.

    It is lettered in the language that was chosen when it was made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.language = language()

    def draw(self, renderer: Any) -> None:
        if self.language != SOURCE:
            letter(self, self.language)
        super().draw(renderer)

    def _repr_html_(self) -> str | None:
        if os.environ.get(STATIC):  # the page has its own way
            return None
        theme = DARK if to_hex(self.get_facecolor()) == DARK.background else LIGHT
        return embedded(svg_of(self, theme), "", f"{100 * self.get_figwidth():g}px")

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=self.dpi, metadata={"Software": None})
        return picture.getvalue()


def new_figure(width: float = 8.0, height: float = 4.5) -> Figure:
    """An empty figure of ``width`` by ``height`` inches (100 pixels each) with constrained layout, free of pyplot."""
    return LabFigure(figsize=(width, height), layout="constrained")


def svg_of(figure: Figure, theme: str | Theme = "light") -> str:
    """A figure as SVG text, the same every time: no date, no version, fixed ids."""
    picture = io.StringIO()
    with themed(theme) as chosen:
        figure.patch.set(facecolor=chosen.background, edgecolor=chosen.background)
        dpi, figure.dpi = figure.dpi, 72  # of an SVG. Figure.savefig draws twice, the first time to lay out
        with remembered():
            FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None, "Creator": None})
        figure.dpi = dpi
    return picture.getvalue()


def save(figure: Figure, path: str | Path, theme: str | Theme) -> None:
    """Write a figure as ``.svg`` or ``.png`` (200 dpi), the same bytes every time: no date, no version, fixed ids.

    The file is whole or not there.
    """
    path = Path(path)
    chosen = theme_of(theme)
    with themed(chosen):
        match path.suffix.lower():
            case ".svg":
                write_text(path, svg_of(figure, chosen))
            case ".png":
                picture = io.BytesIO()
                figure.savefig(picture, format="png", dpi=200, metadata={"Software": None})
                write_bytes(path, picture.getvalue())
            case other:
                raise LabError(f"a figure cannot be saved as {other or path.name!r}; allowed: .svg, .png.")
    figure.set_layout_engine("none")  # laid out by now; doing it again for another format takes as long as drawing
