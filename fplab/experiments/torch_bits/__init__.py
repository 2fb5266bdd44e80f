"""Which bits torch really computes: a catalogue, by operation and format, with the smallest example of each surprise.

Anyone who writes an oracle for a training step must know which of torch's operations round once, which twice, and
which are fused; the documentation says none of it, and it changes with the compiler, the vector instructions and the
device. Here every operation is compared with the formulas it might follow, on the CPU now and on a GPU by record.

``catalogue``: operations against formulas; ``examples``: the smallest operands that tell two apart; ``orders``: how
torch sums; ``data``, ``checks``, ``figure``. The GPU cases are the recorder's own elementwise ones and its sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware import elementwise, order
from ...hardware.cases import Arrays, Case
from ..base import Columns
from .catalogue import FORMULAS, PLACES, rows
from .checks import CHECKS
from .data import QUICK, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "The bits torch computes"
QUESTION = "Which of torch's operations are fused, rounded twice or not correctly rounded, and where?"
BUDGET = 8.0
DIGESTED = ("formats",)


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """Every elementwise operation, cast and optimizer of the catalogue, and the orders of torch's own sums."""
    sums = tuple(order.order_case(one) for one in order.SUMMATIONS if one.call in ("sum", "mean", "cumsum", "sum all"))
    return (*elementwise.cases(), *sums)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each operation, format and place: how many results each formula gets wrong."""
    import torch

    places = [(p, i) for p in range(len(PLACES)) for i in range(len(rows()))]
    columns: dict[str, list[object]] = {
        "device": [f"CPU, {torch.backends.cpu.get_cpu_capability()}"] * len(places),
        "torch": [str(torch.__version__)] * len(places),
        "case": [rows()[i].case for _, i in places],
        "operation": [rows()[i].output for _, i in places],
        "tensor": [PLACES[p] for p, _ in places],
    }
    for j, name in enumerate(FORMULAS):
        counts = [int(arrays["wrong"][p, i, j]) for p, i in places]
        columns[f"wrong if {name}"] = [None if n < 0 else n for n in counts]
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """The catalogue as a matrix, the smallest examples, and the orders of two sums."""
    from .figure import draw

    return draw(arrays, params)
