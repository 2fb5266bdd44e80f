"""Who takes what: bytes by kind as stacked bars, against the memory of GPUs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .style import current, new_figure

Bars = Mapping[str, Mapping[str, int]]
# kind -> (series, hatch, opacity); the same kind looks the same in every figure
LOOKS: Mapping[str, tuple[int, str, float]] = {
    "parameters": (0, "", 0.9),
    "gradients": (1, "", 0.9),
    "master": (3, "\\\\\\\\", 0.55),
    "states": (2, "", 0.8),
    "activations": (5, "////", 0.45),
    "kv cache": (5, "////", 0.45),
    "temporary": (6, "....", 0.45),
    "buffers": (7, "xxxx", 0.5),
    "other": (6, "....", 0.45),
}
NAMES = {"master": "FP32 master weights", "states": "optimizer states", "kv cache": "keys and values"}
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def fill(kind: str) -> dict[str, Any]:
    """How the area of a kind is drawn: keyword arguments of a patch."""
    series, hatch, opacity = LOOKS[kind]
    theme = current()
    return {
        "facecolor": (*to_rgb(theme.series[series]), opacity),
        "edgecolor": theme.background,
        "hatch": hatch,
        "linewidth": 0.8,
    }


def kind_patches(kinds: Sequence[str]) -> list[Patch]:
    """Legend handles of kinds."""
    return [Patch(label=NAMES.get(kind, kind), **fill(kind)) for kind in kinds]


def kinds_of(bars: Bars) -> list[str]:
    """The kinds that some bar has, in the order of stacking."""
    return [kind for kind in LOOKS if any(one.get(kind, 0) for one in bars.values())]


def stacked_bytes(ax: Axes, bars: Bars, *, share: bool = False, total: bool = True) -> None:
    """Draw horizontal bars of bytes, one a row from the top, stacked by kind.

    ``bars``: name -> kind -> bytes. ``share``: as percentages of each bar's total. ``total``: write it at the end.
    """
    theme = current()
    totals = {name: sum(one.values()) for name, one in bars.items()}
    unit, unit_name = next((u for u in UNITS if max(totals.values()) >= u[0]), (1, "bytes"))
    longest = 100.0 if share else max(totals.values()) / unit
    for row, (name, one) in enumerate(bars.items()):
        left, scale = 0.0, 100 / max(totals[name], 1) if share else 1 / unit
        for kind in kinds_of(bars):
            width = one.get(kind, 0) * scale
            ax.barh(row, width, left=left, height=0.68, **fill(kind))
            if width > 0.07 * longest:
                label = f"{width:.0f}%" if share else f"{width:.3g}"
                ax.text(left + width / 2, row, label, ha="center", va="center", fontsize=8.5, bbox=plate(), zorder=5)
            left += width
        if total and not share:
            ax.annotate(f"{left:.3g} {unit_name}", (left, row), (5, 0), textcoords="offset points", va="center",
                        fontsize=9, fontweight="bold", color=theme.ink, bbox=plate(), zorder=5)  # fmt: skip
    ax.set_yticks(range(len(bars)), list(bars))
    ax.set_ylim(len(bars) - 0.4, -0.6)
    ax.set_xlim(0, 100 if share else 1.16 * longest)
    ax.set_xlabel("share (%)" if share else unit_name)
    ax.grid(axis="y", visible=False)


def plate() -> dict[str, Any]:
    """A background for text, so that lines behind it do not cross it."""
    return {"boxstyle": "round,pad=0.12", "fc": current().background, "ec": "none", "alpha": 0.85}


def capacity_lines(ax: Axes, sizes: Sequence[int]) -> None:
    """Mark the memory of GPUs (GB) on an axis in GB, those that the axis reaches and the next one."""
    right = ax.get_xlim()[1]
    shown = [size for size in sizes if size <= right]
    if not shown and sizes and right > sizes[0] / 3:
        shown = [sizes[0]]
        ax.set_xlim(0, 1.06 * sizes[0])
    theme = current()
    for size in shown:
        ax.axvline(size, color=theme.ink, linewidth=1.1, linestyle=(0, (3, 2)), zorder=3)
        ax.annotate(f"{size} GB", (size, 1), (0, 2), xycoords=ax.get_xaxis_transform(), textcoords="offset points",
                    ha="center", va="bottom", fontsize=9, color=theme.ink)  # fmt: skip


def figure_of(title: str, bars: Bars, sizes: Sequence[int] = ()) -> Figure:
    """A figure of one stacked bar a row, with the GPUs that hold it."""
    figure = new_figure(10, 1.9 + (0.5 if len(bars) < 9 else 0.34) * len(bars))
    ax = figure.subplots()
    stacked_bytes(ax, bars)
    if ax.get_xlabel() == "GB":
        capacity_lines(ax, sizes)
    figure.suptitle(textwrap.fill(title, 100), x=0.01, ha="left", fontsize=10.5, fontweight="bold")
    figure.legend(handles=kind_patches(kinds_of(bars)), loc="outside lower center", ncols=6)
    return figure
