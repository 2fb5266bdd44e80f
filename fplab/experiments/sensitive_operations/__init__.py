"""Sensitive operations: which of a network's operations need FP32 inside, which an FP32 result, and which neither.

CUDA's autocast computes a list of operations in FP32. Here ten operations, eight of them on that list, run on a
trained network's activations and logits, as they are and times powers of two, in three ways: every elementary step
rounded to a half format; FP32 inside and one rounding of the result, as torch's half kernels do; and with the FP32
result that autocast gives. Where the second way loses nothing, the list saves a last rounding and no more.

``operations``: the ten, as formulas; ``data``: the network's values and the fates; ``checks``: the claims; ``cases``:
for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import FORMATS, QUICK, WAYS, Params, run
from .operations import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Sensitive operations"
QUESTION = "Which operations fail in half precision, what mends them, and does that support autocast's list?"
BUDGET = 8.0
DIGESTED = ("limits",)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each operation, format, way and scale: errors relative to the largest result, shares lost."""
    shape = arrays["median"].shape
    places = [
        (i, f, w, s) for i in range(shape[0]) for f in range(shape[1]) for w in range(shape[2]) for s in range(shape[3])
    ]
    columns: dict[str, list[object]] = {
        "operation": [NAMES[i] for i, _, _, _ in places],
        "format": [FORMATS[f] for _, f, _, _ in places],
        "way": [WAYS[w] for _, _, w, _ in places],
        "log2_scale": [int(arrays["scales"][s]) for _, _, _, s in places],
    }
    for name in ("median", "worst", "overflow", "zero"):
        columns[name] = [None if (x := float(arrays[name][p])) != x else x for p in places]
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """Errors and shares lost against the scale, an operation a panel, and the verdicts beside the list."""
    from .figure import draw

    return draw(arrays, params)
