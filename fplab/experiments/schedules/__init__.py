"""Pipelines and split products: timelines with their bubbles and memory, and the bits that dividing work changes.

GPipe, 1F1B and interleaved schedules as timelines; gradients of micro-batches accumulated in 16 bits; and a matrix
product whose k is divided among tensor-parallel ranks. Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.

``data``: timelines and sums; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import QUICK, SCHEDULES, Params, run, timelines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Pipeline schedules, micro-batches and split products"
QUESTION = "What does a pipeline's schedule cost in time and memory, and what does dividing a batch or k do to bits?"
BUDGET = 6.0
DIGESTED = ("in_flight", "activations")


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each schedule and stage: bubble, model chunks in flight, bytes of GPT-3's activations."""
    lines = timelines(params)
    rows = [(i, stage) for i in range(len(SCHEDULES)) for stage in range(params.stages)]
    return {
        "schedule": [SCHEDULES[i][0] for i, _ in rows],
        "stage": [stage for _, stage in rows],
        "bubble": [str(lines[i].bubble) for i, _ in rows],
        "chunks_in_flight": [int(arrays["in_flight"][i, stage]) for i, stage in rows],
        "activation_bytes": [int(arrays["activations"][i, stage]) for i, stage in rows],
    }


def plot(arrays: Arrays, params: Params) -> Figure:
    """Three timelines with the memory of each stage, accumulation in 16 bits, split k."""
    from .figure import draw

    return draw(arrays, params)
