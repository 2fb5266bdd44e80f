"""Shares of a whole over the plane of two magnitudes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from .style import current

FATE_SERIES = {"zero": 1, "subnormal": 2, "normal": 0, "overflow": 5}


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
