"""All-reduce in low precision: what travels, in which order it is added, and what that costs.

Sums of values that thousands of ranks have, and of a network's true gradients, by ring, tree and recursive doubling;
averaging before or after the sum; and what happens to replicas that do not skip an overflowed step together.

``data``: the sums; ``skipping``: the replicas; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import QUICK, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "BUDGET",
    "CHECKS",
    "DIGESTED",
    "QUESTION",
    "QUICK",
    "TITLE",
    "Params",
    "animation",
    "gpu_cases",
    "plot",
    "run",
    "table",
]

TITLE = "Collectives in low precision"
QUESTION = "What does adding gradients over thousands of ranks in BF16, FP16 or FP8 cost, and who must skip a step?"
BUDGET = 6.0
DIGESTED = ("errors", "biases")


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each way to add and number of ranks: relative error, and bias (mean of the signed error)."""
    curves = params.curves
    rows = [(c, r) for c in range(len(curves)) for r in range(len(params.ranks))]
    return {
        "algorithm": [curves[c].algorithm for c, _ in rows],
        "wire": [curves[c].wire.format for c, _ in rows],
        "rounding": [curves[c].wire.rounding for c, _ in rows],
        "addition": [curves[c].wire.add for c, _ in rows],
        "ranks": [params.ranks[r] for _, r in rows],
        "relative_error": [float(arrays["errors"][c, r]) for c, r in rows],
        "bias": [float(arrays["biases"][c, r]) for c, r in rows],
    }


def animation() -> str:
    """The steps of the collectives as one SVG file that moves."""
    from .figure import moving

    return moving()


def plot(arrays: Arrays, params: Params) -> Figure:
    """The steps of the collectives, the error against ranks, averaging before and after, replicas that part."""
    from .figure import draw

    return draw(arrays, params)
