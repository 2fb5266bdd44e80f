"""Pipeline timelines: a row a stage, a box a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from .style import current

Pass = tuple[int, str, int, int, float, float]  # stage, "F" or "B", chunk, micro-batch, start, end
NAMES = {
    ("F", 0): "forward",
    ("B", 0): "backward",
    ("F", 1): "forward, second chunk",
    ("B", 1): "backward, second chunk",
}


def fill(kind: str, chunk: int) -> dict[str, Any]:
    """How a pass is drawn."""
    theme = current()
    colour = to_rgb(theme.series[0 if kind == "F" else 1])
    return {"facecolor": (*colour, 0.75 if chunk % 2 == 0 else 0.3), "edgecolor": theme.background, "linewidth": 0.8}


def pass_patches() -> list[Patch]:
    """Legend handles."""
    return [Patch(label=name, **fill(*key)) for key, name in NAMES.items()]


def draw_timeline(ax: Axes, passes: Sequence[Pass], stages: int, end: float) -> None:
    """Draw the passes of a step; what is empty is waited. ``end``: where the axis ends."""
    theme = current()
    for stage, kind, chunk, micro_batch, start, stop in passes:
        ax.add_patch(Rectangle((start, stage - 0.42), stop - start, 0.84, **fill(kind, chunk)))
        ax.text((start + stop) / 2, stage, str(micro_batch), ha="center", va="center", fontsize=7, color=theme.ink)
    last = max(one[-1] for one in passes)
    ax.axvline(last, color=theme.muted, linewidth=1, linestyle=(0, (3, 2)))
    ax.set_xlim(0, end)
    ax.set_ylim(stages - 0.4, -0.6)
    ax.set_yticks(range(stages), [f"stage {i}" for i in range(stages)])
    ax.grid(visible=False)
