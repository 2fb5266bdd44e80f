"""The same training in seven precisions, over several seeds, and whether the answers differ more than seeds do.

Everything is the same from one precision to the next but the precision: initial weights, batches, learning rate. A
perceptron reads the digits; at the full size a transformer guesses characters, too. "Top-1 within the normal
variation" is what Micikevicius et al. 2018 report (arXiv 1710.03740, Table 1); ``statistics`` says what it means here.

``data``: the runs; ``by_hand``: the digits' runs without autograd; ``checks``: the claims;
``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns, in_columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import POLICIES, QUICK, Params, run, tasks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Formats in training"
QUESTION = "Does a network learn as well in TF32, FP16, BF16 or FP8 as in FP32, and in which of them does it fail?"
BUDGET = 8.0
DIGESTED = ("first_images", "first_labels")


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each task, policy and seed; below an empty top-1 the run stopped at the step that is named."""
    names = ("task", "policy", "seed", "top1", "held_out_loss", "stopped_at_step", "skipped_steps")
    rows: list[tuple[object, ...]] = []
    for task in tasks_of(params):
        for p, policy in enumerate(POLICIES):
            for seed in range(arrays[f"{task}_top1"].shape[1]):
                stop = int(arrays[f"{task}_stops"][p, seed])
                top1, held_out = (float(arrays[f"{task}_{name}"][p, seed]) for name in ("top1", "held_out"))
                ended = (top1, held_out, None) if stop < 0 else (None, None, stop)
                rows.append((task, policy, seed, *ended, int(arrays[f"{task}_skipped"][p, seed])))
    return in_columns(names, rows)


def plot(arrays: Arrays, params: Params) -> Figure:
    """For each task: the loss curves, how far they are from FP32's, and the paired differences of top-1."""
    from .figure import draw

    return draw(arrays, params)
