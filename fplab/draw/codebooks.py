"""Codebooks on one number line, beside floating-point formats scaled to the same maximum."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from ..codebooks import Codebook
from ..formats import Format
from .style import current, look

Source = Codebook | Format


def values_of(source: Source) -> np.ndarray:
    """The finite values of a codebook or a format, float64, ascending, scaled to a largest magnitude of 1."""
    if isinstance(source, Codebook):
        values = source.values.astype(np.float64)
    else:
        positive = np.array([source.magnitude(code) for code in range(source.max_code + 1)])
        values = np.unique(np.concatenate([-positive, positive]) if source.signed else positive)
    scaled: np.ndarray = values / np.abs(values).max()
    return scaled


def number_lines(ax: Axes, sources: Mapping[str, Source], looks: Sequence[int], *, logarithmic: bool = False) -> None:
    """One row of ticks for each: all values in [-1, 1], or the positive ones on a logarithmic axis.

    ``looks``: the number of each row's series. A row's name is written at its left.
    """
    theme = current()
    lowest = 1e-8
    for row, (source, style) in enumerate(zip(sources.values(), looks, strict=True)):
        values = values_of(source)
        values = values[values > lowest] if logarithmic else values
        ax.hlines([-row], lowest if logarithmic else -1, 1, color=theme.grid, linewidth=0.8)
        x = np.repeat(values, 3)  # one path of strokes: hundreds of paths would be slow to draw
        y = np.tile([-row - 0.3, -row + 0.3, np.nan], values.size)
        ax.plot(x, y, color=look(style).color, linewidth=0.7, linestyle="-", solid_capstyle="butt")
    if logarithmic:
        ax.set(xscale="log", xlim=(lowest, 1.6))
    else:
        ax.set_xlim(-1.03, 1.03)
    ax.set_ylim(-len(sources) + 0.4, 0.6)
    ax.set_yticks([-row for row in range(len(sources))], labels=list(sources))
    ax.tick_params(axis="y", length=0, labelcolor=theme.ink)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="y", visible=False)
