"""A calibration histogram, and below it the ranges that rules read off it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..errors import LabError
from .style import current, look

DRAWN = 128  # bars: neighbouring bins are drawn as one


def magnitude_histogram(ax: Axes, counts: np.ndarray, width: float) -> None:
    """Draw how many values lie in each bin of a histogram of magnitudes, on a logarithmic axis.

    ``counts``: integers (B,), bin i is ``[i, i + 1) * width``; trailing empty bins are left out, and neighbours are
    added up to at most 128 bars.
    """
    counts = np.asarray(counts)
    if counts.ndim != 1 or not counts.any():
        raise LabError(f"counts have shape {counts.shape} and sum {counts.sum()}; they must be 1-d and not all zero.")
    used = counts[: np.flatnonzero(counts)[-1] + 1]
    each = -(-len(used) // DRAWN)
    bars = np.add.reduceat(used, np.arange(0, len(used), each))
    edges = np.append(np.arange(0, len(used), each), len(used)) * width
    ax.stairs(bars, edges, fill=True, color=look(0).color, alpha=0.85, baseline=0.5)
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.set_ylim(0.5, 3 * bars.max())
    ax.set_xlim(0, 1.04 * edges[-1])


def ranges(ax: Axes, names: Sequence[str], amax: Mapping[str, np.ndarray]) -> None:
    """Draw the largest magnitudes that rules chose, a row for each rule, the first on top.

    ``names``: of the rules. ``amax``: label of a series -> one number a rule.
    """
    rows = np.arange(len(names))[::-1]
    for i, (label, values) in enumerate(amax.items()):
        style = look(i)
        fill: dict[str, Any] = (
            {} if i == 0 else {"markerfacecolor": "none", "markeredgewidth": 1.6}
        )  # coinciding ones stay visible
        ax.plot(values, rows, linestyle="none", marker=style.marker, markersize=5 + 4 * i, color=style.color,
                label=label, clip_on=False, **fill)  # fmt: skip
    ax.hlines(rows, 0, np.max(list(amax.values()), axis=0), color=current().grid, linewidth=1.0, zorder=0)
    ax.set_yticks(rows, list(names))
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.grid(visible=False, axis="y")
