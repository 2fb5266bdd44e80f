"""Pipeline timelines: a row a stage, a box a pass, the backward ones hatched; what is empty is waited."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from ..words import say
from .scene import BLUE, ORANGE, Scene, patch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

WIDTH, LEFT, TOP, ROW, BOX = 920, 70, 6, 30, 24  # pixels: a box is lower than its row
Time = float | Fraction
Pass = tuple[int, str, int, int, Time, Time]  # stage, "F" or "B", chunk, micro-batch, start, end
NAMES = {
    ("F", 0): "forward",
    ("B", 0): "backward",
    ("F", 1): "forward, second chunk",
    ("B", 1): "backward, second chunk",
}


def look(kind: str, chunk: int) -> tuple[str, float]:
    return BLUE if kind == "F" else ORANGE, 0.8 if chunk % 2 == 0 else 0.3


def timeline_scene(passes: Sequence[Pass], stages: int, spoken: str = "") -> Scene:
    """All passes to scale, with the names of the stages and the time at both ends. Starts and ends may be fractions."""
    drawing, end = Scene(WIDTH, ROW * stages + 34, spoken), max(float(slot[-1]) for slot in passes)
    for stage in range(stages):
        y = TOP + stage * ROW
        drawing.text(LEFT - 8, y + 17, say("stage {n}", n=stage), "end", 12)
        drawing.rect(LEFT, y, WIDTH - LEFT - 10, BOX, "currentColor", fill_opacity=0.05)
    _boxes(drawing, passes, (WIDTH - LEFT - 10) / end)
    drawing.text(LEFT, ROW * stages + 22, "0", "middle", 11)
    drawing.text(WIDTH - 10, ROW * stages + 22, f"{end:g}", "end", 11)
    return drawing


def _boxes(drawing: Scene, passes: Sequence[Pass], scale: float) -> None:
    for stage, kind, chunk, micro_batch, start, end in passes:
        x, width, y = LEFT + float(start) * scale, (float(end) - float(start)) * scale, TOP + stage * ROW
        hue, opacity = look(kind, chunk)
        drawing.rect(x, y, width, BOX, hue, fill_opacity=opacity, stroke="currentColor", stroke_opacity=0.5,
                     class_=f"slot {kind}", data_stage=stage, data_start=str(start), data_end=str(end),
                     data_batch=micro_batch)  # fmt: skip
        if kind == "B" and width > 5:
            drawing.hatch(x, y, width, BOX, min(max(width / 2, 5), 24))
        if width > 9:
            drawing.text(x + width / 2, y + 16, micro_batch, "middle", 11 if width > 15 else 8)


def pass_patches() -> list[Patch]:
    """Legend handles of the passes in :data:`NAMES`."""
    return [patch(name, *look(*key), hatch="/" * (key[0] == "B")) for key, name in NAMES.items()]


def draw_timeline(ax: Axes, passes: Sequence[Pass], stages: int, end: float) -> None:
    """Draw the passes of a step on axes of time and stages. ``end``: where the axis of time ends."""
    from .style import current

    drawing, scale = Scene(WIDTH, ROW * stages), (WIDTH - LEFT - 10) / end
    _boxes(drawing, passes, scale)
    drawing.onto(ax, (LEFT, TOP + BOX / 2), (scale, ROW))
    ax.axvline(float(max(slot[-1] for slot in passes)), color=current().muted, linewidth=1, linestyle=(0, (3, 2)))
    ax.set(xlim=(0, end), ylim=(stages - 0.4, -0.6))
    ax.set_yticks(range(stages), [f"stage {i}" for i in range(stages)])
    ax.grid(visible=False)
