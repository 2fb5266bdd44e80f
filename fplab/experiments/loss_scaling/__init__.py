"""Training with FP16 gradients at every loss scale: where they underflow, where they overflow, and the dynamic scale.

Two networks on the digits with their natural losses, torch's default means and default initialisation. The classifier
needs no scale, like most networks of Micikevicius et al. 2018 (arXiv 1710.03740). The autoencoder hardly learns
without one: its loss is a mean over the 64 values of each of 512 densities, and twelve layers of tanh, initialised as
torch does, shrink the gradient on its way to the encoder. (It is no law: with the learning rate 5e-3 for 300 steps the
decoder's weights grow until enough of the gradient survives, and the unscaled run catches up in part.)

``data``: the runs; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import QUICK, TASKS, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Loss scaling"
QUESTION = "At which loss scales does FP16 training work, and how does a dynamic scale find them?"
BUDGET = 8.0
DIGESTED = ()


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each task and scale: what was learned, the share of zero gradients, the share of skipped steps."""
    names = [*(f"2^{e}" for e in params.exponents), "dynamic", "FP32"]
    rows = [(task, i) for task in TASKS for i in range(len(names))]
    static = len(params.exponents)
    blank = float("nan")
    return {
        "task": [task for task, _ in rows],
        "loss_scale": [names[i] for _, i in rows],
        "score": [float(arrays[f"{task}_score"][i]) for task, i in rows],
        "zero_gradients": [float(arrays[f"{t}_zeros"][i].mean()) if i < static else blank for t, i in rows],
        "skipped_steps": [float(arrays[f"{t}_skipped"][i]) if i < static else blank for t, i in rows],
    }


def plot(arrays: Arrays, params: Params) -> Figure:
    """Scores, zero gradients and skipped steps against the scale, the loss curves, and the dynamic scale's trace."""
    from .figure import draw

    return draw(arrays, params)
