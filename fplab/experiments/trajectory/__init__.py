"""A whole training run of which every bit is known: FP16 with master weights and a dynamic loss scale.

Mixed precision as in Micikevicius et al. 2018 (arXiv 1710.03740), built only from operations with one right result, and
run twice from one definition: by the lab's kernels and Tensor Core models on numpy arrays, and by torch. On a GPU the
two must agree on every bit of every weight after every step; here, without one, torch computes everything but the
products. The same run in the bits of three GPU families shows what their Tensor Cores alone change.

``step``: the definition; ``ops``: its operations, twice, and ``wide``, in FP64; ``loop``: the training; ``checks``: the
claims; ``cases``: for a GPU; ``figure``: the drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays
from ..base import Columns, Tick
from .cases import gpu_cases
from .checks import CHECKS
from .loop import QUICK, Bits, Params, lab_bits, right, train
from .ops import LabOps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "A training run, bit for bit"
QUESTION = "Can a whole mixed-precision training run be predicted to the last bit, and what do three GPUs make of it?"
BUDGET = 6.0
GPUS = ("V100", "A100", "H100")  # one of each family of FP16 blocks
PAIRS = ((0, 1), (1, 2), (0, 2))
DIGESTED = ("digests", "scales", "skipped", "right", "apart", "ulps", "final")


def run(params: Params, tick: Tick) -> Arrays:
    """The run in each GPU's bits.

    ``digests`` (GPU, step) of all weights, ``scales`` and ``skipped`` (GPU, step), ``losses`` (GPU, step), ``right``
    (GPU, 2) of the test digits; ``final`` (GPU, weight), FP32 bits; ``apart`` (pair of GPUs, step): how many weights
    differ, ``ulps`` (pair, step): the median distance of all weights in FP32 ulp.
    """
    traces, every, rights = [], [], []
    for i, gpu in enumerate(GPUS):
        tick(0.95 * i / len(GPUS), f"training in the bits of {gpu}")
        kept: list[np.ndarray] = []

        def each(_step: int, weights: Bits, kept: list[np.ndarray] = kept) -> None:
            kept.append(np.concatenate([w.ravel() for w in weights]))

        ops = LabOps(gpu)
        traces.append(train(params, ops, np.asarray, lab_bits, each=each))
        rights.append(right(ops, traces[-1].final, np.asarray, lab_bits))
        every.append(np.stack(kept))
    tick(0.95, "distances")
    return {
        "digests": np.stack([t.digests for t in traces]),
        "scales": np.stack([t.scales for t in traces]),
        "skipped": np.stack([t.skipped for t in traces]),
        "losses": np.stack([t.losses for t in traces]),
        "right": np.array(rights),
        "final": np.stack([x[-1] for x in every]),
        "apart": np.stack([(every[i] != every[j]).sum(axis=1) for i, j in PAIRS]),
        "ulps": np.stack([np.median(distance(every[i], every[j]), axis=1) for i, j in PAIRS]),
        "spread": np.stack(
            [np.bincount(classes(distance(every[i][-1], every[j][-1])), minlength=32) for i, j in PAIRS]
        ),
    }


def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How many FP32 numbers lie between two, from their bits, int64."""
    ordered = [np.where(b >> 31, -(b & 0x7FFFFFFF).astype(np.int64), b.astype(np.int64)) for b in (one, other)]
    return np.asarray(np.abs(ordered[0] - ordered[1]))


def classes(ulps: np.ndarray) -> np.ndarray:
    """0 for equal, then the number of binary digits of a distance, at most 31."""
    return np.minimum(np.frexp(ulps.astype(np.float64))[1], 31)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each step: its loss scale, whether it was skipped, and what the three GPUs make of it."""
    steps = range(arrays["digests"].shape[1])
    columns: dict[str, list[object]] = {"step": list(steps)}
    for i, gpu in enumerate(GPUS):
        columns[f"loss scale {gpu}"] = arrays["scales"][i].tolist()
        columns[f"skipped {gpu}"] = arrays["skipped"][i].astype(int).tolist()
        columns[f"loss {gpu}"] = [f"{x:.6g}" for x in arrays["losses"][i].tolist()]
        columns[f"digest of the weights {gpu}"] = [f"{x:016x}" for x in arrays["digests"][i].tolist()]
    for i, pair in enumerate(("V100-A100", "A100-H100", "V100-H100")):
        columns[f"weights that differ {pair}"] = arrays["apart"][i].tolist()
        columns[f"median distance in ulp {pair}"] = arrays["ulps"][i].tolist()
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """The loss, the loss scale with its skipped steps, and how far the three GPUs' weights are apart."""
    from .figure import draw

    return draw(arrays, params)
