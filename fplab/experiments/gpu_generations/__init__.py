"""One training run in the bits of three GPUs: where the runs part, how far they go, and what it changes.

``data``: the runs; ``checks``: the claims; ``cases``: a step's products for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...hardware.cases import Arrays
from ..base import Columns, in_columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import QUICK, RUNS, Params, right, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "One training run on three GPUs"
QUESTION = "Where do the curves of one training run part on different GPUs, and what does it change?"
BUDGET = 8.0
DIGESTED: tuple[str, ...] = ()  # softmax and its logarithm are torch's, whose bits depend on the CPU


def plot(arrays: Arrays, params: Params) -> Figure:
    """The losses, their differences, the weights', the first step, and the right answers."""
    from .figure import draw

    return draw(arrays, params)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each seed and run: the last loss, the distance from the H100's run, the right answers."""
    rows: list[tuple[Any, ...]] = []
    counts = right(arrays)
    for seed in range(params.seeds):
        for i, name in enumerate(RUNS):
            loss, differ, distance = (float(arrays[key][seed, i, -1]) for key in ("losses", "differ", "distance"))
            rows.append((seed, name, f"{loss:.6f}", f"{differ:.4f}", f"{distance:.3e}", int(counts[seed, i])))
    names = ("seed", "run", "last loss", "weights that differ from H100", "distance from H100", "right")
    return in_columns(names, rows)
