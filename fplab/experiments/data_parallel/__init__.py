"""Real training on several processes: the bytes each holds, what it sends, and the bits it ends with.

Processes under torchrun train a perceptron with plain data parallelism, a parameter server, ZeRO's stages, torch's
own sharding, tensor parallelism and pipelines; the quick size starts two processes and fewer strategies, the full size
four.

``data``: the runs; ``checks``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import KINDS, QUICK, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Parallel training for real"
QUESTION = "Do real processes hold and send the bytes the calculator says, and end with the bits of one process?"
BUDGET = 8.0
DIGESTED = ("held", "estimated", "sent")


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each strategy and rank: bytes held by kind, and by the calculator; what it sent; bits against one."""
    rows = [(s, r) for s in range(len(params.strategies)) for r in range(params.ranks)]
    columns: dict[str, list[object]] = {
        "strategy": [params.strategies[s] for s, _ in rows],
        "rank": [r for _, r in rows],
    }
    for k, kind in enumerate(KINDS):
        columns[f"{kind}, held"] = [int(arrays["held"][s, r, k]) for s, r in rows]
        columns[f"{kind}, estimated"] = [int(arrays["estimated"][s, r, k]) for s, r in rows]
    columns["message bytes a step"] = [int(arrays["sent"][s]) for s, _ in rows]
    columns["weights that differ from one process in the same order"] = [int(arrays["same_order"][s]) for s, _ in rows]
    columns["weights that differ from the whole batch"] = [int(arrays["whole"][s]) for s, _ in rows]
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """Bytes of every rank by strategy, messages, and how far the weights are from those of one process."""
    from .figure import draw

    return draw(arrays, params)
