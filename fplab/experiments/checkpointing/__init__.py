"""Checkpointing: activations that are computed again instead of kept, and what that costs.

Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174): keep the inputs of segments of a
deep network, drop the rest, and run a segment again when the backward pass comes to it. Its rule, segments of sqrt(L)
layers, is for layers that save as much as their input; a transformer's layer saves 17 times that and more, so every
layer by itself is best up to a depth that the formula gives.

``steps``: the runs and the formula; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .steps import PRECISIONS, QUICK, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Checkpointing: memory for time"
QUESTION = "What does recomputing activations save, what does it cost, and does it change the gradients?"
BUDGET = 8.0
DIGESTED = ("formula_saved", "formula_peak")


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each precision and way: bytes measured and by the formula, differing bytes, operations."""
    columns: dict[str, list[object]] = {
        "precision": [p for p in PRECISIONS for _ in params.ways],
        "recomputed": [way for _ in PRECISIONS for way in params.ways],
    }
    for name in ("saved", "formula_saved", "peak", "formula_peak", "differ"):
        columns[name] = [*arrays[name].ravel().tolist()]
    columns["operations"] = [*arrays["work"].tolist()] * len(PRECISIONS)
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """Memory through a step, bytes by segment size, work against memory."""
    from .figure import draw

    return draw(arrays, params)
