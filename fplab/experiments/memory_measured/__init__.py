"""Memory of real training steps, counted byte by byte, against the calculator of :mod:`fplab.memory`.

``measure``: the runs; ``checks``: the claims; ``cases``: for a GPU, by its allocator's count; ``figure``: the drawing;
Activations are set beside the formula of Korthikanti et al. 2022 (arXiv 2205.05198), and every byte beyond it is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hardware.cases import Arrays, Case
from ...memory.published import TORCHTITAN
from ...memory.units import GIB
from ..base import Columns
from .checks import CHECKS
from .measure import HELD, QUICK, RECIPES, TERMS, Params, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "Where the memory goes"
QUESTION = "Does a training step hold the bytes that the calculator says, kind by kind, and what are they for?"
BUDGET = 6.0
DIGESTED = ("estimated", "held", "published")


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each recipe, measured and calculated, then one for each published run (bytes; a peak as reserved)."""
    names = ["measured here"] * len(RECIPES) + ["torchtitan"] * len(TORCHTITAN)
    blank: list[object] = [None] * len(TORCHTITAN)
    columns: dict[str, list[object]] = {
        "source": [*names],
        "run": [*(recipe.name for recipe in RECIPES), *(one.name for one in TORCHTITAN)],
    }
    for k, kind in enumerate(HELD):
        columns[f"{kind}, measured"] = [*arrays["held"][:, k].tolist(), *blank]
        columns[f"{kind}, estimated"] = [*arrays["estimated"][:, k].tolist(), *arrays["published"][:, k].tolist()]
    columns["activations, measured"] = [*arrays["activations"].tolist(), *blank]
    columns["activations, traced"] = [*arrays["traced"].tolist(), *blank]
    for k, name in enumerate(TERMS):
        columns[f"activations: {name}"] = [*arrays["terms"][:, k].tolist(), *blank]
    whole = arrays["held"].sum(axis=1) + arrays["traced"] + arrays["temporary"]
    columns["peak, estimated"] = [*whole.tolist(), *arrays["published"].sum(axis=1).tolist()]
    measured = [round(peak * GIB) for peak in arrays["published_gib"].tolist()]
    columns["peak, measured"] = [*arrays["peak"].tolist(), *measured]
    return columns


def plot(arrays: Arrays, params: Params) -> Figure:
    """Bytes by recipe, the activations beyond the formula, shares by batch size, and published runs."""
    from .figure import draw

    return draw(arrays, params)


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """Bytes by kind as a GPU's allocator counts them, and what autograd saves there."""
    from .cases import gpu_cases as cases

    return cases(params)
