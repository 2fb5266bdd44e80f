"""LLM.int8(): why one large feature spoils an INT8 product, and what taking it apart in FP16 gives back.

A small transformer is trained here, and outlier features are planted in it: a few dimensions of the layer norms' output
are made 16 times as large and the weights that read them 16 times as small, which changes not one bit of what the model
computes. Their size and how often they appear are those that the paper measured in models of 6.7 billion parameters
and more; that they are planted, that they lie on both sides of zero, and that they are a larger share of so narrow a
model are differences. After T. Dettmers et al., LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale
(arXiv 2208.07339), whose Table 1 stands beside.

``planting``: the model; ``data``: errors and losses; ``published``: the paper's numbers; ``checks``, ``cases``,
``figure``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns, in_columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import DECOMPOSED, NAMES, QUICK, Params, run
from .published import SIZES, TABLE1

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "LLM.int8() and outlier features"
QUESTION = "What do a few large features do to an INT8 product, and which method stands them?"
BUDGET = 8.0
DIGESTED = ("published",)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each method and number of outlier dimensions, or threshold; for each group size, and of the paper."""
    rows: list[tuple[object, ...]] = []
    base = float(arrays["fp32_loss"][0])
    for i, name in enumerate(NAMES):
        for j, n in enumerate(arrays["dimensions"].tolist()):
            error, loss = float(arrays["errors"][i, j]), float(arrays["losses"][i, j])
            rows.append(("method", name, n, None, error, loss - base, float(arrays["divergences"][i, j]), None))
    for i, name in enumerate(DECOMPOSED):
        for j, threshold in enumerate(arrays["thresholds"].tolist()):
            error, loss = float(arrays["threshold_errors"][i, j]), float(arrays["threshold_losses"][i, j])
            share = float(arrays["int8_shares"][j])
            rows.append(("threshold", name, params.planted, threshold, error, loss - base, None, share))
    four = (arrays[n].tolist() for n in ("groups", "int4_errors", "int4_losses", "int4_divergences"))
    for group, error, loss, moved in zip(*four, strict=True):
        rows.append(("int4 weights", f"groups of {group}", 0, None, error, loss - base, moved, None))
    for name, line in TABLE1.items():
        for size, perplexity in zip(SIZES, line, strict=True):
            rows.append(("paper, C4 perplexity", name, size, None, None, perplexity, None, None))
    names = ("what", "method", "outlier_dimensions_or_size", "threshold", "relative_error", "excess_loss_or_perplexity",
             "divergence", "share_in_int8")  # fmt: skip
    return in_columns(names, rows)


def plot(arrays: Arrays, params: Params) -> Figure:
    """The features, errors and losses by number of outliers and by threshold, INT4 weights, and the paper's table."""
    from .figure import draw

    return draw(arrays, params)
