"""The experiment's figure: an operation a panel, its errors above its losses, and the verdicts beside the list."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from ... import formats
from ...draw.style import Look, current, look, new_figure
from ...hardware.cases import Arrays
from .data import EVERY, FORMATS, INSIDE, INSIDE_ONLY, NEAR, NEITHER, RANGE, RESULT, Params, Verdict, verdicts
from .operations import OPERATIONS

OVERFLOW, ZERO = 1, 5  # series whose colours stand for the two losses
TOP = 12.0  # log2 of the error axis' end


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 13.5)
    grid = figure.add_gridspec(2, 1, height_ratios=[2.5, 1.1])
    top, bottom = (figure.add_subfigure(grid[i]) for i in range(2))
    top.suptitle(caption(arrays), x=0.01, ha="left", fontsize=10, color=current().muted)
    axes = top.subplots(4, 5, sharex=True, height_ratios=[2.1, 1, 2.1, 1], squeeze=False)
    for i, op in enumerate(OPERATIONS):
        row, column = 2 * (i // 5), i % 5
        errors(axes[row, column], arrays, i, first=column == 0)
        losses(axes[row + 1, column], arrays, i, first=column == 0, last=row == 2)
        axes[row, column].set_title({"pow": "$x^3$", "log": "log"}.get(op.name, op.name))
    top.legend(handles=legend(), loc="outside lower center", ncols=4)
    judged(bottom.subplots(), verdicts(arrays))
    return figure


def caption(arrays: Arrays) -> str:
    """One line on where the numbers come from."""
    right, tested = arrays["right"]
    return (
        f"Activations and logits of a convolutional net that reads {right / tested:.1%} of the test digits, times "
        f"powers of two; shaded: within $2^{{±{NEAR}}}$ of the values as they are. "
        "2048 half-ulps of FP16 are 100%"
    )


def style(fmt: str, way: int) -> Look:
    """How a format and way are drawn: colour by format, a dashed line for FP32 inside."""
    base = look(FORMATS.index(fmt) * 2)
    return Look(base.color, "-" if way == EVERY else (0, (3, 1.5)), base.marker)


def errors(ax: Axes, arrays: Arrays, i: int, first: bool) -> None:
    """Median error in half-ulps against the scale, two formats in two ways."""
    ks = arrays["scales"]
    shade(ax)
    for f, fmt in enumerate(FORMATS):
        unit = 2.0 ** -formats.get(fmt).significand_bits
        for way in (EVERY, INSIDE):
            values = arrays["median"][i, f, way] / unit
            values = np.log2(np.where(values > 2.0**-4, values, np.nan))
            own = style(fmt, way)
            ax.plot(ks, values, color=own.color, linestyle=own.linestyle, linewidth=1.8 if way == EVERY else 1.5)
    ax.axhline(0, color=current().muted, linewidth=0.8)
    ax.set_ylim(-4, TOP)
    ax.set_yticks([-3, 0, 3, 6, 9, 11], ["⅛", "1", "8", "64", "512", "2048"])
    ax.set_xlim(ks[0], ks[-1])
    ax.tick_params(labelleft=first)
    if first:
        ax.set_ylabel("median error (half-ulps)")


def losses(ax: Axes, arrays: Arrays, i: int, first: bool, last: bool) -> None:
    """The share of FP16 results that overflow or become zero, with FP32 inside; a line where every step rounds."""
    ks, theme = arrays["scales"], current()
    shade(ax)
    kinds = {name: 100 * arrays[name][i, 0] for name in ("overflow", "zero")}
    for name, series in (("overflow", OVERFLOW), ("zero", ZERO)):
        ax.fill_between(ks, kinds[name][INSIDE], color=theme.series[series], alpha=0.55, linewidth=0)
        ax.plot(ks, kinds[name][EVERY], color=theme.series[series], linewidth=1.3)
        ax.plot(ks, kinds[name][RESULT], color=theme.ink, linewidth=1.0, linestyle=(0, (1, 1.5)))
    ax.set_ylim(0, 104)
    ax.set_yticks([0, 50, 100])
    ax.set_xlim(ks[0], ks[-1])
    ax.set_xticks(range(-16, 9, 8), [f"$2^{{{k}}}$" for k in range(-16, 9, 8)])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.tick_params(labelleft=first)
    if first:
        ax.set_ylabel("lost (%)")
    if last:
        ax.set_xlabel("values times")


def shade(ax: Axes) -> None:
    """The scales by which the verdicts go."""
    ax.axvspan(-NEAR, NEAR, color=current().grid, alpha=0.45, linewidth=0)
    ax.axvline(0, color=current().muted, linewidth=0.8)


def legend() -> list[Line2D | Patch]:
    """Lines and fills."""
    theme = current()
    found: list[Line2D | Patch] = []
    for fmt in FORMATS:
        for way, text in ((EVERY, "every step rounded"), (INSIDE, "FP32 inside")):
            own = style(fmt, way)
            found.append(Line2D([], [], color=own.color, linestyle=own.linestyle, label=f"{fmt.upper()}, {text}"))
    for series, text in ((OVERFLOW, "infinite or NaN"), (ZERO, "zero instead of a number")):
        found.append(Patch(color=theme.series[series], alpha=0.55, label=f"FP16, FP32 inside: {text}"))
    found.append(Line2D([], [], color=theme.ink, linewidth=1.3, label="FP16, every step (in the colour of the loss)"))
    found.append(Line2D([], [], color=theme.ink, linewidth=1.0, linestyle=(0, (1, 1.5)), label="FP32 result"))
    return found


COLUMNS = (  # x in the table, heading
    (0.0, "operation"),
    (0.15, "error, every\nstep rounded"),
    (0.27, "error, FP32\ninside"),
    (0.39, "lost, every\nstep rounded"),
    (0.51, "lost, FP32\ninside"),
    (0.62, "what it needs"),
    (0.76, "on CUDA's list:\nFP32 result"),
    (0.9, "does that support it?"),
)


def judged(ax: Axes, found: list[Verdict]) -> None:
    """The verdicts as a table."""
    theme = current()
    colors = {RANGE: theme.series[OVERFLOW], INSIDE_ONLY: theme.series[0], NEITHER: theme.muted}
    ax.set_axis_off()
    ax.set_xlim(0, 1.1)
    ax.set_ylim(len(found) + 0.2, -1.7)
    ax.set_title("FP16 on the real values (errors in half-ulps) and within the shaded scales (largest share lost)")
    for x, text in COLUMNS:
        ax.text(x, -0.75, text, va="center", fontsize=9, color=theme.muted)
    ax.axhline(-0.1, color=theme.grid, linewidth=1)
    for row, one in enumerate(found):
        y = row + 0.4
        cells = (
            one.name, number(one.every_step), number(one.inside), percent(one.lost_every), percent(one.lost_inside),
            one.needs, "yes" if one.listed else "no", answer(one),
        )  # fmt: skip
        for (x, _), text in zip(COLUMNS, cells, strict=True):
            bold = text == one.needs
            color = colors[one.needs] if bold else theme.ink
            ax.text(x, y, text, va="center", fontsize=9.5, color=color, fontweight="bold" if bold else "normal")
        ax.axhline(row + 0.9, color=theme.grid, linewidth=0.6)


def answer(one: Verdict) -> str:
    """Whether the evidence supports what the list does."""
    if one.listed:
        return {RANGE: "yes", INSIDE_ONLY: "in part: inside will do", NEITHER: "no"}[one.needs]
    return "no: it would belong there" if one.needs == RANGE else "yes: the kernel does it"


def number(x: float) -> str:
    """An error in half-ulps."""
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"


def percent(x: float) -> str:
    """A share; a dash for none."""
    return "–" if x == 0 else f"{x:.0%}" if x >= 0.01 else "< 1%"
