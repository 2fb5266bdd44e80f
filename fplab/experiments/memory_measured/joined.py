"""Bytes and accuracy side by side: what a recipe takes for a large model, and what it did to one that was trained.

The bytes are the calculator's, for any model that it knows. The accuracy is measured: the paired differences of top-1
to FP32, over seeds, of the experiment ``formats_in_training`` (a small network on real digits; it says whether a
precision harms training, not by how much it would harm another model).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import LabError, unknown
from ...hardware.cases import Arrays
from ...memory import Estimate, estimate
from ...memory.recipes import PRECISIONS, Precision

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Of the experiment's policies, how weights, gradients, states and products are held; activations of the FP8 recipe are
# FP32, as the policy says: its products alone have 8-bit operands.
RECIPES: dict[str, Precision] = {
    "fp32": PRECISIONS["fp32"],
    "tf32": PRECISIONS["fp32"],
    "fp16": PRECISIONS["amp"],
    "bf16": PRECISIONS["amp"],
    "fp8_hybrid": Precision("fp8_hybrid", "FP32 but for the operands of products", 4, 4, 0, 0, 4, 1, 4),
    "pure_fp16": PRECISIONS["bf16"],
    "pure_bf16": PRECISIONS["bf16"],
}


def estimates(model: Any, recipes: Sequence[str] = tuple(RECIPES), **options: Any) -> dict[str, Estimate]:
    """The calculator's estimate for each recipe; ``options`` are those of :func:`fplab.memory.estimate`.

    >>> found = estimates("gpt2", ["fp32", "pure_bf16"], recompute="full")
    >>> found["fp32"].fullest.states == 2 * found["pure_bf16"].fullest.states
    True
    """
    for name in recipes:
        if name not in RECIPES:
            raise unknown("recipe", name, RECIPES)
    if "precision" in options or options.get("inference") is not None:
        raise LabError("precision= and inference= are no options here: each recipe is a precision that is trained.")
    return {name: estimate(model, precision=RECIPES[name], **options) for name in recipes}


def bytes_and_accuracy(
    model: Any,
    recipes: Sequence[str] = tuple(RECIPES),
    trained: tuple[Arrays, Any] | None = None,
    **options: Any,
) -> Figure:
    """The figure, to be drawn inside ``fplab.plots.style.themed``.

    ``trained``: arrays and parameters of ``formats_in_training`` (None: it runs at its quick size, some seconds).
    """
    found = estimates(model, recipes, **options)  # a wrong request ends here, before anything is trained
    from .. import formats_in_training

    if trained is None:
        params = formats_in_training.QUICK
        trained = formats_in_training.run(params, lambda _done, _text: None), params
    return draw(found, *trained)


def draw(found: dict[str, Estimate], arrays: Arrays, params: Any) -> Figure:
    """A figure of the panels."""
    from ...plots.style import new_figure

    figure = new_figure(13, height(found))
    panels(figure, found, arrays, params)
    return figure


def height(found: dict[str, Estimate]) -> float:
    """Inches that the panels need."""
    return 2.2 + 0.52 * len(found)


def panels(figure: Figure | SubFigure, found: dict[str, Estimate], arrays: Arrays, params: Any) -> None:
    """Two panels that share their rows: bytes by kind, and the measured effect on accuracy."""
    from ...plots.memory import capacity_lines, kind_patches, kinds_of, stacked_bytes
    from ...plots.style import current
    from ..formats_in_training.data import NAMES

    bars = {NAMES[name]: dict(one.fullest.device) for name, one in found.items()}
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.7, 1])
    stacked_bytes(left, bars)
    if left.get_xlabel() == "GB":
        capacity_lines(left, (24, 40, 80, 141))
    first = next(iter(found.values()))
    title = first.table().splitlines()[0].split(", ")
    how = ", ".join([title[0], *title[3:]]) if len(title) > 4 else first.model.name
    figure.suptitle(f"What each recipe takes: {how}", x=0.01, ha="left", fontsize=10.5, fontweight="bold")
    accuracy(right, list(found), arrays, params)
    figure.legend(handles=kind_patches(kinds_of(bars)), loc="outside lower center", ncols=6)
    right.tick_params(axis="y", labelleft=False, colors=current().muted)


def accuracy(ax: Axes, recipes: Sequence[str], arrays: Arrays, params: Any) -> None:
    """Mean difference of top-1 to FP32 with its 95% interval, and the band of FP32's own seeds."""
    from ...plots.style import current, look
    from ..formats_in_training.checks import comparison
    from ..formats_in_training.data import sizes, tasks_of

    theme, task = current(), tasks_of(params)[-1]
    compared = [comparison(task, name, arrays) for name in recipes]
    band = 100 * compared[0].band
    reach = [abs(100 * x) for one in compared for x in (one.low, one.high) if np.isfinite(x)]
    width = 1.25 * max(band, *reach)
    ax.axvspan(-band, band, color=theme.grid, alpha=0.6, linewidth=0, label="normal variation of FP32's seeds")
    ax.axvline(0, color=theme.muted, linewidth=1)
    for row, (name, one) in enumerate(zip(recipes, compared, strict=True)):
        if name == "fp32":
            ax.plot(0, row, marker="|", markersize=14, color=theme.ink, linestyle="none")
        elif not np.isfinite(one.mean):
            ax.text(-0.96 * width, row, "a run did not come to its end", va="center", fontsize=9, fontweight="bold",
                    color=look(1).color)  # fmt: skip
            continue
        else:
            ax.plot([100 * one.low, 100 * one.high], [row, row], color=look(0).color, linewidth=2)
            ax.plot(100 * one.mean, row, marker="o", color=look(0).color, linestyle="none")
        ax.annotate("the baseline" if name == "fp32" else one.verdict, (1, row), (-2, 0), textcoords="offset points",
                    xycoords=ax.get_yaxis_transform(), ha="right", va="center", fontsize=9)  # fmt: skip
    ax.set_xlim(-width, 1.5 * width)
    ax.set_xlabel(f"top-1, difference to FP32 (percentage points): {task}, {sizes(task, params)[1]} seeds")
    ax.set_title("Measured effect on accuracy")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)
