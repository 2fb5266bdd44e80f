"""What block-wise quantisation loses: by codebook, by block size, on normal data, heavy tails and real tensors.

After Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861), whose table of errors by data
type this rebuilds on a training run of its own.

``data``: the arrays and their errors; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import BLOCKS, KINDS, METRICS, QUICK, SIGNED, UNSIGNED, WHOLE, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Codebooks and blocks"
QUESTION = "What does an 8-bit codebook lose, and what do small blocks save?"
BUDGET = 6.0
DIGESTED = ("tables",)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each kind of data, codebook and block size (0: the whole array), with its four errors."""
    blocks = (*BLOCKS, WHOLE)
    rows = [(k, b, i) for k in range(len(KINDS)) for b in range(len(SIGNED)) for i in range(len(blocks))]
    columns: dict[str, list[object]] = {
        "data": [KINDS[k] for k, _, _ in rows],
        "codebook": [(UNSIGNED if KINDS[k] == "v" else SIGNED)[b] for k, b, _ in rows],
        "block": [blocks[i] for _, _, i in rows],
    }
    for m, metric in enumerate(METRICS):
        columns[metric.replace(" ", "_")] = [float(arrays["errors"][k, b, i, m]) for k, b, i in rows]
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """The codebooks on one line beside floats, errors by block size, errors by data, and an outlier's reach."""
    from .figure import draw

    return draw(arrays, params)
