"""What the axes of many figures share: ticks at powers of two, and losses that are smoothed to be seen."""

from collections.abc import Iterable

import numpy as np
from matplotlib.axis import Axis


def power_ticks(axis: Axis, exponents: Iterable[int]) -> None:
    """Ticks at these base-2 logarithms, labelled as powers of two."""
    at = list(exponents)
    axis.set_ticks(at, labels=[f"$2^{{{e}}}$" for e in at])


def smoothed(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where up to 60 stretches of a run lie, and their mean losses: float64 and the losses' dtype, (stretches,)."""
    width = max(1, len(losses) // 60)
    whole = losses[: len(losses) // width * width].reshape(-1, width)
    return (np.arange(len(whole)) + 0.5) * width, whole.mean(axis=1)
