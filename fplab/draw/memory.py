"""Who takes what: bytes by kind as stacked bars, against the memory of GPUs; the looks that kinds have everywhere."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..columns import width_of
from .scene import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Scene, figure_of_scenes, of_hue, patch

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

Bars = Mapping[str, Mapping[str, int]]
LOOKS: Mapping[str, tuple[str, str, float]] = {  # kind -> (hue, hatch, opacity)
    "parameters": (BLUE, "", 0.9),
    "gradients": (ORANGE, "", 0.9),
    "master": (PURPLE, "\\", 0.55),
    "states": (GREEN, "", 0.8),
    "activations": (RED, "/", 0.45),
    "kv cache": (RED, "/", 0.45),
    "temporary": (GREY, ".", 0.45),
    "buffers": (GREY, "x", 0.5),
    "other": (GREY, ".", 0.45),
}
NAMES = {"master": "FP32 master weights", "states": "optimizer states", "kv cache": "keys and values"}
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
WIDTH, TOP, ROW, BOX = 880, 14, 40, 26  # pixels: a bar is lower than its row
OPACITY = 0.55  # of a part that words are written on


def kinds_of(bars: Bars) -> list[str]:
    return [kind for kind in LOOKS if any(bar.get(kind, 0) for bar in bars.values())]


def unit_of(bars: Bars) -> tuple[int, str]:
    """The unit in which the longest bar reads best."""
    longest = max(sum(bar.values()) for bar in bars.values())
    return next((unit for unit in UNITS if longest >= unit[0]), (1, "bytes"))


def bars_scene(bars: Bars, sizes: Sequence[int], chosen: str = "", names: Mapping[str, object] | None = None) -> Scene:
    """Bars of bytes, with a name or, without ``names``, a number in every part that has room.

    ``bars``: name -> kind -> bytes. ``sizes``: of GPUs in GB, each a line. ``chosen``: the bar that is marked.
    """
    unit, unit_name = unit_of(bars)
    totals = [sum(parts.values()) for parts in bars.values()]
    left, foot = 24 + 7.2 * max(map(len, bars)), ROW * len(bars) + 12
    per = (WIDTH - left - 96) / max(*totals, *(size * 10**9 for size in sizes), 1)
    ends = [f"{total / unit:,.1f} {unit_name}" for total in totals]
    spoken = "; ".join(f"{name}: {end}" for name, end in zip(bars, ends, strict=True))
    drawing, lines = Scene(WIDTH, foot + 18, spoken), [left + size * 10**9 * per for size in sizes]
    _parts(drawing, bars, left, per, lines, names)
    for row, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        y, x, mark = TOP + ROW * row + 18, left + totals[row] * per, bar == chosen
        drawing.text(left - 8, y, "▶ " * mark + bar, "end", 12, font_weight="bold" if mark else "normal")
        clear = max((line for line in lines if x - 4 < line < x + 64), default=x)  # not across a line
        drawing.text(clear + 6, y, end, size=12)
    for size, line in zip(sizes, lines, strict=True):
        drawing.line(line, 6, line, foot, stroke_width=2, stroke_dasharray="6 3")
        drawing.text(line, foot + 14, f"{size} GB", "middle", 12)
    return drawing


def _parts(
    drawing: Scene, bars: Bars, left: float, per: float, lines: Sequence[float] = (),
    names: Mapping[str, object] | None = None,
) -> None:  # fmt: skip
    """Every bar's parts from ``left`` on, ``per`` pixels a byte, labelled clear of the ``lines``."""
    unit, _ = unit_of(bars)
    for row, bar in enumerate(bars.values()):
        x, y = left, TOP + float(ROW) * row
        for kind, n in bar.items():
            hue, hatch, _ = LOOKS[kind]
            drawing.rect(x, y, n * per, BOX, hue, fill_opacity=OPACITY, stroke="currentColor", stroke_opacity=0.5,
                         class_="part", data_kind=kind, data_bytes=n, data_row=row)  # fmt: skip
            if hatch:
                drawing.hatch(x, y, n * per, BOX, pattern=hatch)
            label = str(names[kind]) if names else f"{n / unit:.3g}"
            half, end = 3.75 * width_of(label), x + n * per
            spots = [(x + end) / 2, *(line + side * (half + 2) for line in lines for side in (1, -1))]
            for at in spots:
                if x + half < at < end - half and all(abs(at - line) > half for line in lines):
                    drawing.text(at, y + 17, label, "middle", 11)
                    break
            x = end


def fill(kind: str) -> dict[str, Any]:
    """How the area of a kind is drawn: keyword arguments of a patch."""
    from matplotlib.colors import to_rgba

    from .style import current

    hue, hatch, opacity = LOOKS[kind]
    face = to_rgba(of_hue(hue), opacity)
    return {"facecolor": face, "edgecolor": current().background, "hatch": 4 * hatch, "linewidth": 0.8}


def kind_patches(kinds: Sequence[str]) -> list[Patch]:
    return [patch(NAMES.get(kind, kind), LOOKS[kind][0], OPACITY, LOOKS[kind][1]) for kind in kinds]


def figure_of(title: str, bars: Bars, sizes: Sequence[int] = ()) -> Figure:
    """A figure of bars, with the GPUs of ``sizes`` GB that they fill, or the smallest where they come near."""
    most = max(sum(bar.values()) for bar in bars.values()) / 10**9
    shown = [size for size in sizes if size <= most] or [size for size in sizes[:1] if size < 3 * most]
    scene = bars_scene({name.replace("\n", " "): bar for name, bar in bars.items()}, shown)
    scene.height += 40  # of the legend
    figure = figure_of_scenes([(textwrap.fill(title, 100), scene)])
    figure.legend(handles=kind_patches(kinds_of(bars)), loc="lower center", ncols=6)
    return figure
