"""Adam with 8-bit states on a character transformer: the ablation of the paper, in small.

After Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861), Table 3: linear states diverge,
the dynamic map, blocks and the stable embedding each take instability away. Its models have 209 million parameters and
more, so what this one shows of it is measured here, and not presumed.

``data``: the runs; ``checks``, ``peer``: the claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays
from ..base import Columns
from .cases import gpu_cases
from .checks import CHECKS
from .data import NAMES, QUICK, Params, finals, run, unstable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Adam with 8-bit states"
QUESTION = "Which parts of an 8-bit Adam does a training run need: the map, the blocks, the embedding, the rounding?"
BUDGET = 6.0
DIGESTED = ("traces",)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each run: its states, learning rate and seed, its last loss, and whether it was unstable."""
    end, bad = finals(arrays["losses"]), unstable(arrays["losses"])
    rows = [(v, r, s) for v in range(len(NAMES)) for r in range(len(params.rates)) for s in range(len(params.seeds))]
    return {
        "states": [NAMES[v] for v, _, _ in rows],
        "lr": [params.rates[r] for _, r, _ in rows],
        "seed": [params.seeds[s] for _, _, s in rows],
        "final_loss": [float(end[i]) if end[i] == end[i] else None for i in rows],
        "unstable": [bool(bad[i]) for i in rows],
        "state_bytes": [int(arrays["state_bytes"][v]) for v, _, _ in rows],
    }


def plot(arrays: Arrays, params: Params) -> Figure:
    """Final losses by learning rate, loss curves, unstable runs, and the state that rounding holds in place."""
    from .figure import draw

    return draw(arrays, params)
