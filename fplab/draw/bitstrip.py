"""The bit strip: a code drawn bit by bit, its fields tinted, bracketed and named."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..formats import Format, get
from ..inspection import bit_fields
from .style import current

GAP = 0.5  # between fields, in cells
SHORT = {"sign": "sgn", "exponent": "exp", "fraction": "frac"}


def bit_strip(ax: Axes, code: int, fmt: str | Format, *, x: float = 0.0, y: float = 0.0, names: bool = True) -> float:
    """Draw one code with its top-left corner at (x, y), a bit a unit wide and high; returns where it ends.

    ``names``: write the fields' names below. Limits and aspect are the caller's; :func:`bit_strips` sets them.
    """
    theme = current()
    fills = {"sign": theme.sign, "exponent": theme.exponent, "fraction": theme.fraction}
    for name, digits in bit_fields(code, get(fmt)):
        for i, digit in enumerate(digits):
            ax.add_patch(
                Rectangle((x + i, y - 1), 1, 1, facecolor=fills[name], edgecolor=theme.background, linewidth=1.2)
            )
            ax.text(x + i + 0.5, y - 0.52, digit, ha="center", va="center", fontsize=9, family="DejaVu Sans Mono")
        if names:
            middle, half = x + len(digits) / 2, len(digits) / 2 - 0.12
            ax.plot([middle - half, middle + half], [y - 1.14] * 2, color=theme.muted, linewidth=0.8)
            title = next(t for t in (name, SHORT[name], name[0]) if 0.5 * len(t) <= len(digits))
            ax.text(middle, y - 1.24, title, ha="center", va="top", fontsize=7.5, color=theme.muted)
        x += len(digits) + GAP
    return x - GAP


def bit_strips(ax: Axes, rows: Sequence[tuple[str, int, str | Format, str]]) -> None:
    """Draw codes below one another: each row is (label at the left, code, format, note at the right)."""
    theme = current()
    height = 2.3
    ends = []
    for i, (label, code, fmt, note) in enumerate(rows):
        end = bit_strip(ax, code, fmt, y=-i * height)
        ax.text(-0.6, -i * height - 0.5, label, ha="right", va="center", fontweight="bold")
        ax.text(end + 0.6, -i * height - 0.5, note, ha="left", va="center", color=theme.muted, fontsize=9)
        ends.append(end)
    cells = 0.75  # a letter's width at most, so that labels stay inside the axes
    widest = max((len(label) for label, *_ in rows), default=0)
    ax.set_xlim(
        -0.8 - cells * widest, max((e + 0.8 + cells * len(r[3]) for e, r in zip(ends, rows, strict=True)), default=1)
    )
    ax.set_ylim(-height * len(rows) + 0.2, 0.2)
    ax.set_aspect("equal")
    ax.axis("off")
