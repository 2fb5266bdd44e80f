"""Calibration: INT8 and INT4 for a trained network, the ranges read off histograms, then training through them.

A convolutional net for the digits is trained in FP32. Histograms of every layer's inputs are collected over batches of
the training data, seven rules read a largest magnitude off them, and the net is run with integer weights and inputs:
post-training quantisation. Where that costs accuracy, one more epoch is trained through the quantisers, gradients
passing straight through, with the ranges fixed or learned. After H. Wu et al., Integer Quantization for Deep Learning
Inference (arXiv 2004.09602), and S. Esser et al., Learned Step Size Quantization (arXiv 1902.08153).

This net is so small a task that INT4 costs it little: the epoch starts from a range that the entropy rule spoils.
``data``: the runs;
``checks``, ``cases``, ``figure``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import BITS, QUICK, RULES, SCHEMES, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Calibration: INT8 and INT4 after training, and training for them"
QUESTION = "Which range should a tensor of integers have, and what does one epoch of training through it give back?"
BUDGET = 8.0
DIGESTED = ("levels",)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each width, scheme and rule: accuracy, loss and error of the logits, averages over the seeds."""
    rows = [(b, s, r) for b in range(len(BITS)) for s in range(len(SCHEMES)) for r in range(len(RULES))]
    tested = int(arrays["tested"][0])

    def mean(name: str) -> list[object]:
        return [float(np.nanmean(arrays[name][:, b, s, r])) for b, s, r in rows]

    return {
        "bits": [BITS[b] for b, _, _ in rows],
        "weights_along": [SCHEMES[s].along for _, s, _ in rows],
        "inputs": ["affine" if SCHEMES[s].zero_point else "symmetric" for _, s, _ in rows],
        "calibrator": [RULES[r] for _, _, r in rows],
        "right": [float(np.nanmean(arrays["right"][:, b, s, r])) / tested for b, s, r in rows],
        "right_fp32": [
            float(arrays["fp32_right"][np.isfinite(arrays["right"][:, b, s, r])].mean()) / tested for b, s, r in rows
        ],
        "loss": mean("losses"),
        "logit_error": mean("errors"),
    }


def plot(arrays: Arrays, params: Params) -> Figure:
    """Histograms with the ranges, errors and accuracy by rule, why entropy fails, and the epoch of training."""
    from .figure import draw

    return draw(arrays, params)
