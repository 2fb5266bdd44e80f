"""Where updates go when weights are held in 16 bits: FP16 and BF16 weights with four ways of adding an update.

Everything but the weights is FP32 here, so whatever happens is the weights' doing. The same network is trained with
ever smaller steps and ever more of them, lr * steps held constant: in FP32 that changes little. Claims after
Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1, and Zamirai et al. 2020 (arXiv 2010.06192).

``data``: the runs; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import QUICK, VARIANTS, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Master weights"
QUESTION = "Which updates does a 16-bit weight lose, and which of three remedies brings them back?"
BUDGET = 8.0
DIGESTED = ("survival",)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each way of holding weights, learning rate and seed: how far it came, and what it lost on the way."""
    rows = [(v, i, s) for v in range(len(VARIANTS)) for i in range(len(params.rates)) for s in range(params.seeds)]
    return {
        "weights": [VARIANTS[v].weights for v, _, _ in rows],
        "update": [VARIANTS[v].update for v, _, _ in rows],
        "lr": [params.rates[i] for _, i, _ in rows],
        "steps": [params.steps(params.rates[i]) for _, i, _ in rows],
        "seed": [s for _, _, s in rows],
        "training_loss": [float(arrays["final"][r]) for r in rows],
        "test_accuracy": [float(arrays["top1"][r]) for r in rows],
        "updates_lost": [float(arrays["lost"][r]) for r in rows],
        "median_drift_in_ulps": [float(arrays["drift"][r][0]) for r in rows],
        "largest_drift_in_ulps": [float(arrays["drift"][r][1]) for r in rows],
    }


def plot(arrays: Arrays, params: Params) -> Figure:
    """Loss curves, what each remedy saves by learning rate, lost updates by layer and step, and the exact criterion."""
    from .figure import draw

    return draw(arrays, params)
