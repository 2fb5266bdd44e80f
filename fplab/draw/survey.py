"""A survey's figure: how many bits are right after each layer in each choice, and what the layers do to the loss."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .style import look, new_figure

MOST = 60  # layers of a panel: of more, those with the largest effects


def draw(rows: Sequence[Any], assignment: Mapping[str, str], title: str) -> Figure:
    """Two heat maps, forward and backward, and the effects; ``rows``: a survey's, ``assignment``: layer -> choice."""
    choices = list(dict.fromkeys(row.choice for row in rows))
    weight = {row.layer: 0.0 for row in rows if row.phase == "forward"}
    for row in rows:
        if row.layer in weight and math.isfinite(row.weight):
            weight[row.layer] = max(weight[row.layer], row.weight)
    kept = set(sorted(weight, key=lambda name: -weight[name])[:MOST])
    layers = [name for name in weight if name in kept]
    figure = new_figure(8, 3.4 + 0.22 * len(layers))
    figure.suptitle("\n".join(textwrap.wrap(title, 100)), x=0.01, ha="left", fontsize=9)
    forward, backward, effects = figure.subplots(1, 3, width_ratios=[1, 1, 1.6], sharey=True)
    finite = [row.bits for row in rows if math.isfinite(row.bits)]
    for axes, phase in ((forward, "forward"), (backward, "backward")):
        bits = np.full((len(layers), len(choices)), np.nan)
        for row in rows:
            if row.phase == phase and row.layer in kept and math.isfinite(row.bits):
                bits[layers.index(row.layer), choices.index(row.choice)] = row.bits
        image = axes.imshow(
            bits, aspect="auto", cmap="viridis", vmin=min(finite, default=0), vmax=max(finite, default=1)
        )
        axes.grid(visible=False)
        axes.set_title(f"right bits,\n{phase}", fontsize=10)
        axes.set_xticks(range(len(choices)), choices, rotation=45, ha="right")
        for i, layer in enumerate(layers):
            if phase == "forward" and assignment.get(layer) in choices:
                axes.plot(choices.index(assignment[layer]), i, "o", color="white", markersize=4)
    forward.set_yticks(range(len(layers)), layers, fontsize=9)
    figure.colorbar(image, ax=backward, fraction=0.1)
    for i, choice in enumerate(choices):
        mine = {row.layer: abs(row.effect) for row in rows if row.choice == choice and row.phase == "forward"}
        at = [k for k, name in enumerate(layers) if mine.get(name)]
        style = look(i)
        effects.plot([mine[layers[k]] for k in at], at, style.marker, color=style.color, label=choice)
    effects.set_xscale("log")
    effects.set_title("effect on the loss\n(first order)", fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, title="dots in the maps: recommended")
    return figure
