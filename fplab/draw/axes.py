"""What many figures share: panels, notes, a caption, ticks at powers of two."""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from .style import current, new_figure


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **how: Any) -> tuple[Figure, Any]:
    """A new figure of ``width`` by ``height`` inches, and its axes as ``Figure.subplots`` gives them."""
    figure = new_figure(width, height)
    return figure, figure.subplots(rows, columns, **how)


def caption(figure: Figure, text: str, **how: Any) -> None:
    """What a figure is of: small, above it, at its left."""
    figure.suptitle(text, x=0.01, ha="left", **{"fontsize": 10, "color": current().muted, **how})


def note(ax: Axes, text: str, at: tuple[Any, Any], away: tuple[float, float], **how: Any) -> None:
    """Small text beside a point: ``at`` in units of the data, or of ``xycoords``, and ``away`` from it in points."""
    ax.annotate(text, at, away, textcoords="offset points", **{"fontsize": 9, **how})


def power_ticks(axis: Axis, exponents: Iterable[int]) -> None:
    """Ticks at these base-2 logarithms, labelled as powers of two."""
    at = list(exponents)
    axis.set_ticks(at, labels=[f"$2^{{{e}}}$" for e in at])
