"""Gradient underflow and loss scaling, on the true gradients of a network that is trained in FP32.

The mean cross-entropy of a batch is the loss, and nothing else shrinks the gradients: what falls below FP16's range
does so because a trained network is sure of its answers. After Micikevicius et al. 2018, Mixed Precision Training
(arXiv 1710.03740), sections 3.1 and 3.2, Figures 2 and 3.

``data``: the training run and the counts; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import FATES, FORMATS, KINDS, QUICK, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Gradient underflow and loss scaling"
QUESTION = "Which gradients of a real network does a narrow format lose, and what does a loss scale save?"
BUDGET = 8.0
DIGESTED = ("thresholds",)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each kind of gradient, format and loss scale: how many of the non-zero gradients meet each fate."""
    counts = arrays["counts"]
    rows = [(k, f, s) for k in range(len(KINDS)) for f in range(len(FORMATS)) for s in range(params.scales + 1)]
    columns: dict[str, list[object]] = {
        "gradients": [KINDS[k] for k, _, _ in rows],
        "format": [FORMATS[f] for _, f, _ in rows],
        "log2_loss_scale": [s for _, _, s in rows],
        "zero_in_fp32": [int(arrays["zeros"][k]) for k, _, _ in rows],
    }
    for i, fate in enumerate(FATES):
        columns[fate] = [int(counts[k, f, s, i]) for k, f, s in rows]
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """The histogram by binade, the shares against the loss scale, the product with lr, the sums with the weights."""
    from .figure import draw

    return draw(arrays, params)
