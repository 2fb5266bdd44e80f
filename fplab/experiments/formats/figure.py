"""The atlas as a figure: density, spacing, ranges, and what becomes of 0.1."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.style import current, look_of_format, new_figure
from ...formats import NAMES, TABLE, Format, get
from ...hardware.cases import Arrays

SKYLINE = ("fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2")
LOW, HIGH = -165, 140  # exponents shown; FP64 goes on


def draw(arrays: Arrays) -> Figure:
    """Four panels; the lower two share their rows, a format each."""
    figure = new_figure(9.0, 9.6)
    grid = figure.add_gridspec(2, 2, height_ratios=[1, 1.35], width_ratios=[1.25, 1])
    density(figure.add_subplot(grid[0, 0]), arrays)
    spacing(figure.add_subplot(grid[0, 1]), arrays)
    left = figure.add_subplot(grid[1, 0])
    ranges(left)
    errors_of_tenth(figure.add_subplot(grid[1, 1], sharey=left), arrays)
    return figure


def powers(low: int, high: int, step: int) -> tuple[list[int], list[str]]:
    """Tick positions and labels at powers of two."""
    ticks = list(range(low, high + 1, step))
    return ticks, [f"$2^{{{t}}}$" for t in ticks]


def density(ax: Axes, arrays: Arrays) -> None:
    """How many values each binade holds: a plateau as high as the precision, as wide as the range."""
    theme = current()
    for name in SKYLINE:
        exponents, counts = arrays[f"exponents_{name}"], arrays[f"density_{name}"]
        edges = np.append(exponents, exponents[-1] + 1)
        style = look_of_format(name)
        ax.stairs(np.log2(counts), edges, baseline=-1, color=style.color, linewidth=1.8, linestyle=style.linestyle)
    for name, x in {"fp32": 0, "tf32": -70, "bf16": -70, "fp16": 1}.items():
        _name(ax, name, (x, get(name).fraction_bits), (0, 4), ha="center", va="bottom")
    for name, up in {"e4m3": 9, "e5m2": -1}.items():
        _name(ax, name, (get(name).emax + 1, get(name).fraction_bits - 0.4), (16, up), leader=True)
    ax.text(-122, 2.2, "subnormals:\nhalf as many in\neach binade below", fontsize=8, color=theme.muted, va="center")
    ax.set_xlim(LOW, HIGH)
    ax.set_ylim(-1, 26)
    ax.set_xticks(*powers(-150, 120, 30))
    ax.set_yticks(*powers(0, 24, 4))
    ax.set_xlabel("magnitude, by binade")
    ax.set_ylabel("values in the binade")
    ax.set_title("Density: height is precision, width is range", fontsize=10)


def _name(
    ax: Axes, name: str, at: tuple[float, float], offset: tuple[float, float], leader: bool = False, **align: Any
) -> None:
    """A format's name and the values it has in a binade, in its colour, at a point or led to it by a line."""
    color = look_of_format(name).color
    ax.annotate(
        f"{name}: $2^{{{get(name).fraction_bits}}}$",
        at,
        offset,
        textcoords="offset points",
        color=color,
        fontsize=9,
        arrowprops={"arrowstyle": "-", "color": color, "lw": 0.7} if leader else None,
        **align,
    )


def spacing(ax: Axes, arrays: Arrays) -> None:
    """The ulp against the magnitude: slope 1 for normal numbers, flat for subnormals, an end at the largest."""
    theme = current()
    low, high = -30, 20
    names_at = {"e5m2": (-17, -15), "e4m3": (-10, -8), "fp16": (-20, -23), "bf16": (-24.5, -38.5), "fp32": (-9, -38)}
    for name, (at, height) in names_at.items():
        exponents, ulps = arrays[f"exponents_{name}"], arrays[f"log2_ulp_{name}"]
        shown = (exponents >= low) & (exponents < high)
        x, y = exponents[shown], ulps[shown]
        style = look_of_format(name)
        ax.stairs(
            y, np.append(x, x[-1] + 1), baseline=None, color=style.color, linewidth=1.8, linestyle=style.linestyle
        )
        if x[-1] + 1 < high:
            ax.plot([x[-1] + 1], [y[-1]], marker="|", color=style.color, markersize=10, markeredgewidth=2)
        if x[0] > low:
            ax.plot([x[0]], [y[0]], marker=style.marker, color=style.color, markersize=5)
        ax.text(
            at,
            height,
            name,
            color=style.color,
            fontsize=9,
            ha="left" if name in ("fp32", "bf16") else "right",
            va="bottom",
        )
    ax.set_xlim(low, high)
    ax.set_ylim(-54, 16)
    ax.set_xticks(*powers(-30, 20, 10))
    ax.set_yticks(*powers(-50, 10, 10))
    ax.set_xlabel("magnitude")
    ax.set_ylabel("ulp: distance to the next value")
    ax.set_title("Spacing: grows with the number", fontsize=10)
    ax.text(
        0.97,
        0.05,
        "marker: smallest subnormal\nbar: largest value",
        transform=ax.transAxes,
        ha="right",
        va="bottom",
        fontsize=8,
        color=theme.muted,
    )


def rows(ax: Axes) -> None:
    """One row a format, from the top, named with the widths of its fields."""
    names = [f"{f.name}  {int(f.signed)}+{f.exponent_bits}+{f.fraction_bits}" for f in TABLE]
    ax.set_yticks(range(len(TABLE)), names, fontsize=8.5)
    ax.set_ylim(len(TABLE) - 0.4, -0.7)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)


def ranges(ax: Axes) -> None:
    """From the smallest to the largest magnitude, the subnormal part hatched."""
    theme = current()
    for i, fmt in enumerate(TABLE):
        color = look_of_format(fmt.name).color
        low, normal, high = bounds(fmt)
        shown_low, shown_high = max(low, LOW), min(high, HIGH)
        ax.barh(i, shown_high - max(normal, LOW), left=max(normal, LOW), height=0.52, color=color)
        if max(normal, LOW) > shown_low:
            ax.barh(
                i,
                normal - shown_low,
                left=shown_low,
                height=0.52,
                facecolor="none",
                edgecolor=color,
                hatch="//////",
                linewidth=0.9,
            )
        if low < LOW:
            ends: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "color": theme.background}
            ax.text((LOW + HIGH) / 2, i, f"to $2^{{{int(low)}}}$  \u2190   \u2192  to {largest(fmt)}", **ends)
            continue
        wide = high > 100
        ax.text(
            high - 3 if wide else high + 4,
            i,
            largest(fmt),
            ha="right" if wide else "left",
            va="center",
            fontsize=8.5,
            color=theme.background if wide else theme.ink,
        )
        ax.text(
            normal + 3 if wide else low - 4,
            i,
            f"$2^{{{int(low)}}}$",
            ha="left" if wide else "right",
            va="center",
            fontsize=8.5,
            color=theme.background if wide else theme.ink,
        )
    rows(ax)
    ax.set_xlim(LOW, HIGH)
    ax.set_xticks(*powers(-150, 120, 30))
    ax.set_xlabel("magnitude (hatched: subnormal)")
    ax.set_title("Range: from the smallest value to the largest", fontsize=10)


def bounds(fmt: Format) -> tuple[float, float, float]:
    """log2 of the smallest value, the smallest normal one, and the end of the top binade."""
    return float(np.log2(fmt.smallest_subnormal)), float(fmt.emin), float(fmt.emax + 1)


def largest(fmt: Format) -> str:
    """The largest value, short."""
    if fmt.max < 1e6:
        return f"{fmt.max:.6g}"
    digits, exponent = f"{fmt.max:.2e}".split("e+")
    return f"${digits}\\times10^{{{exponent}}}$"


def errors_of_tenth(ax: Axes, arrays: Arrays) -> None:
    """How far 0.1 moves in each format, and what it becomes."""
    theme = current()
    sizes = np.abs(arrays["tenth_error"])
    for i, (name, size) in enumerate(zip(NAMES, sizes, strict=True)):
        style = look_of_format(name)
        at, end = float(np.log2(size)), -58
        ax.plot([end, at], [i, i], color=style.color, linewidth=1.2, alpha=0.7)
        ax.plot([at], [i], marker=style.marker, color=style.color, markersize=6)
        value = float(arrays["tenth_value"][i])
        text = f"{value:.20f}"[:21] + "\u2026" if get(name).significand_bits > 20 else f"{value:.12g}"
        ax.annotate(
            text, (at, i), (8, 0), textcoords="offset points", ha="left", va="center", fontsize=8.5, color=theme.ink
        )
    rows(ax)
    ax.tick_params(labelleft=False)
    ax.set_xlim(-58, 34)
    ax.set_xticks(*powers(-50, 0, 10))
    ax.set_xlabel("relative error of 0.1, and its value")
    ax.set_title("0.1 in each: exact in none", fontsize=10)
