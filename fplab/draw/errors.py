"""Error against size: measured errors beside the bounds that theory gives, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from ..errors import LabError
from .style import Look, current, label_ends, look


def error_curves(
    ax: Axes,
    n: np.ndarray,
    errors: Mapping[str, np.ndarray],
    bounds: Mapping[str, np.ndarray] | None = None,
    *,
    looks: Mapping[str, Look] | None = None,
    xlabel: str = "number of terms $n$",
    ylabel: str = "relative error",
) -> None:
    """Draw measured errors against size, log-log, with their bounds.

    ``n``: sizes (N,), positive. ``errors``: name -> (N,) non-negative; an error of exactly 0 has no place on a
    logarithmic axis and is drawn as a hollow marker on the lower edge; NaN is left out. ``bounds``: name -> (N,); a
    bound that shares a name with an error is drawn thin in its colour, another one in ink with its own label.
    """
    n = np.asarray(n, dtype=np.float64)
    bounds = dict(bounds or {})
    for name, values in [*errors.items(), *bounds.items()]:
        if np.shape(values) != n.shape:
            raise LabError(f"{name!r} has shape {np.shape(values)}, but n has {n.shape}.")
    theme = current()
    styles = {name: (looks or {}).get(name, look(i)) for i, name in enumerate(errors)}
    every = max(1, n.size // 12)
    ends: list[tuple[float, str, str]] = []
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for name, given in bounds.items():
        own = styles.get(name)
        color = own.color if own else theme.ink
        values = _positive(given)
        ax.plot(n, values, color=color, linewidth=1.0, linestyle=(0, (1, 1.5)), clip_on=False)
        ends.append((_last(values), f"bound: {name}", color))
    for name, given in errors.items():
        style, values = styles[name], _positive(given)
        ax.plot(n, values, **style.marked, markevery=every, clip_on=False)
        zero = np.asarray(given) == 0
        if zero.any():
            ax.plot(
                n[zero],
                np.full(int(zero.sum()), 0.015),
                transform=ax.get_xaxis_transform(),
                linestyle="none",
                marker=style.marker,
                markerfacecolor="none",
                color=style.color,
                markevery=every,
                clip_on=False,
            )
        ends.append((_last(values), name if np.isfinite(values).any() else f"{name}: exact", style.color))
    ax.set_xlim(n.min(), n.max())
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    lowest = ax.get_ylim()[0]
    label_ends(ax, [(y if np.isfinite(y) else lowest, text, color) for y, text, color in ends])


def _positive(values: np.ndarray) -> np.ndarray:
    """The values a logarithmic axis can show; the rest NaN."""
    values = np.asarray(values, dtype=np.float64)
    return np.where(values > 0, values, np.nan)


def _last(values: np.ndarray) -> float:
    """The last value that is drawn, or NaN."""
    drawn = values[np.isfinite(values)]
    return float(drawn[-1]) if drawn.size else float("nan")
