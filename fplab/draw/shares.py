"""Shares of a whole: what becomes of the values of a tensor, against a setting, or over the plane of two magnitudes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from ..errors import LabError
from .style import current

FATE_SERIES = {"zero": 1, "subnormal": 2, "normal": 0, "overflow": 5}
FATE_HATCH = {"zero": "", "subnormal": "////", "normal": "", "overflow": "xxx"}
FATE_ALPHA = {"zero": 0.9, "subnormal": 0.5, "normal": 0.35, "overflow": 0.9}


def fate_patches(names: Mapping[str, str]) -> list[Patch]:
    """Legend handles for fates: fate -> the text beside it."""
    return [Patch(label=text, **fill(fate)) for fate, text in names.items()]


def fill(fate: str) -> dict[str, Any]:
    """How the area of a fate is drawn: keyword arguments of a patch."""
    theme = current()
    color = theme.series[FATE_SERIES[fate]]
    return {
        "facecolor": (*to_rgb(color), FATE_ALPHA[fate]),
        "edgecolor": theme.background,
        "hatch": FATE_HATCH[fate],
        "linewidth": 0,
    }


def stacked_shares(ax: Axes, x: np.ndarray, shares: Mapping[str, np.ndarray]) -> None:
    """Draw shares that add up to 1 as touching stacked bars of width 1, from the bottom up.

    ``x``: integers (N,). ``shares``: fate ("zero", "subnormal", "normal", "overflow") -> (N,) between 0 and 1.
    """
    total = np.sum(list(shares.values()), axis=0)
    if not np.allclose(total, 1):
        raise LabError(f"shares add up to {total.min():.4g} to {total.max():.4g}; they must add up to 1.")
    bottom, edges = np.zeros(len(x)), np.append(x - 0.5, x[-1] + 0.5)
    for fate, share in shares.items():
        ax.stairs(bottom + 100 * share, edges, baseline=bottom, fill=True, **fill(fate))  # one patch, not one a bar
        bottom = bottom + 100 * share
    ax.set(xlim=(x.min() - 0.5, x.max() + 0.5), ylim=(0, 100))
    ax.grid(visible=False)


def magnitude_map(
    ax: Axes, x: np.ndarray, y: np.ndarray, marked: np.ndarray, extent: tuple[float, float, float, float], cell: float
) -> None:
    """Where pairs of magnitudes lie, on binary logarithmic axes, and which of them are marked.

    ``x``, ``y``: (N,) base-2 logarithms; ``marked``: (N,) bool. ``extent``: (left, right, bottom, top) of the map in
    binades, ``cell``: the side of a cell in binades. A cell is the more opaque the more pairs it holds (logarithmic)
    and its colour mixes the two by the share that is marked: orange as "zero" elsewhere, blue as "normal".
    """
    theme = current()
    columns = round((extent[1] - extent[0]) / cell)
    rows = round((extent[3] - extent[2]) / cell)
    i = np.floor((x - extent[0]) / cell).astype(np.int64)
    j = np.floor((y - extent[2]) / cell).astype(np.int64)
    inside = (i >= 0) & (i < columns) & (j >= 0) & (j < rows)
    flat = (j * columns + i)[inside]
    all_pairs = np.bincount(flat, minlength=rows * columns).reshape(rows, columns)
    hits = np.bincount(flat[marked[inside]], minlength=rows * columns).reshape(rows, columns)
    share = hits / np.maximum(all_pairs, 1)
    lost, kept = (np.array(to_rgb(theme.series[FATE_SERIES[f]])) for f in ("zero", "normal"))
    image = np.zeros((rows, columns, 4))
    image[..., :3] = share[..., None] * lost + (1 - share[..., None]) * kept
    depth = np.log1p(all_pairs) / max(np.log1p(all_pairs.max()), 1e-9)
    image[..., 3] = np.where(all_pairs > 0, 0.2 + 0.8 * depth, 0)
    ax.imshow(image, origin="lower", extent=extent, aspect="auto", interpolation="nearest")
    ax.set_xlim(*extent[:2])
    ax.set_ylim(*extent[2:])
    ax.grid(visible=False)
