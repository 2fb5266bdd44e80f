"""The number line: which values a format has in an interval, and where a number between two of them is rounded."""

import math
from collections.abc import Sequence
from fractions import Fraction

from matplotlib.axes import Axes

from .. import exact, formats
from ..errors import LabError
from ..formats import Format, FormatLike
from ..numerals import number_text, short
from .style import current, look

MOST = 400  # values that can be told apart on one line


def values_between(fmt: Format, low: Fraction, high: Fraction) -> list[Fraction]:
    """The finite values of a format in [low, high], ascending, zero once. More than can be drawn are an error."""

    def magnitudes(start: Fraction, stop: Fraction) -> list[Fraction]:
        if stop < 0:
            return []
        last = min(exact.floor_code(stop, fmt) if stop > 0 else 0, fmt.max_code)
        first = max(exact.floor_code(start, fmt), 0) if start > 0 else 0
        if last - first > MOST:
            span = f"between {short(low)} and {short(high)}"
            raise LabError(f"{fmt.name} has {last - first:,} values {span}; at most {MOST} can be drawn.")
        values = (exact.magnitude_of(code, fmt) for code in range(first, last + 1))
        return [m for m in values if start <= m <= stop]

    negative = [-m for m in reversed(magnitudes(max(-high, Fraction(0)), -low)) if m] if fmt.signed and low < 0 else []
    return negative + magnitudes(max(low, Fraction(0)), high)


def number_line(
    ax: Axes, fmt: FormatLike, low: float, high: float, *, x: Fraction | float | None = None,
    roundings: Sequence[str] = ("rtn", "rne", "rtp"),
) -> None:  # fmt: skip
    """Draw the values of a format between two numbers as ticks, and name as many as there is room for.

    ``x``: a number between them; its two neighbours are joined to it by arrows that name the ``roundings`` which go
    there, and the midpoint, where a tie would be, is marked.
    """
    form = formats.get(fmt)
    theme = current()
    left, right = Fraction(low), Fraction(high)
    if not left < right:
        raise LabError(f"low={low!r} must be less than high={high!r}.")
    values = values_between(form, left, right)
    margin = float(right - left) * 0.03
    ax.set(xlim=(float(left) - margin, float(right) + margin), ylim=(-0.8, 1.6 if x is not None else 0.6))
    ax.axis("off")
    ax.plot([float(left) - margin, float(right) + margin], [0, 0], color=theme.muted, linewidth=1.0)
    ax.vlines([float(v) for v in values], -0.16, 0.16, color=theme.ink, linewidth=1.4)
    _name_ticks(ax, values)
    ax.text(float(left) - margin, 0.3, form.name, fontweight="bold", color=theme.muted, va="bottom")
    if x is not None:
        _roundings(ax, form, Fraction(x), roundings)


def _name_ticks(ax: Axes, values: Sequence[Fraction]) -> None:
    """Write values below their ticks, leaving out those that would touch the one before."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    low, high = ax.get_xlim()
    letter = (high - low) * 0.085 / (figure.get_size_inches()[0] * ax.get_position().width)  # about 9 points' width
    free = -math.inf
    for v in values:
        text = short(v, 8)
        half = letter * (len(text) + 1) / 2
        if float(v) - half >= free:
            ax.text(float(v), -0.28, text, ha="center", va="top", fontsize=9)
            free = float(v) + half


def _roundings(ax: Axes, fmt: Format, x: Fraction, modes: Sequence[str]) -> None:
    """The number x, and an arrow to every value that some rounding gives."""
    theme = current()
    goals: dict[Fraction, list[str]] = {}
    for mode in modes:
        stored = exact.decode(exact.round_to(exact.of(x), fmt, mode)[0], fmt)
        if stored.kind != "finite":
            raise LabError(f"{short(x)} rounds to {number_text(stored)} in {fmt.name}, which is not on a number line.")
        goals.setdefault(stored.value, []).append(mode.upper())
    if len(goals) == 2:
        ax.plot([float(sum(goals, Fraction(0)) / 2)] * 2, [-0.1, 0.1], color=theme.muted, linewidth=1, linestyle=":")
    for i, (goal, names) in enumerate(sorted(goals.items())):
        side = 0 if goal == x else -1 if goal < x else 1
        bend = f"arc3,rad={0.25 * -side}"
        ax.annotate("", (float(goal), 0.2), (float(x), 0.85),
                    arrowprops={"arrowstyle": "-|>", "color": look(i).color, "linestyle": look(i).linestyle,
                                "connectionstyle": bend, "lw": 1.4, "shrinkA": 5})  # fmt: skip
        ax.annotate(" ".join(names), (float(goal), 0.2), (7 * side, 8), textcoords="offset points", va="center",
                    ha={-1: "right", 0: "center", 1: "left"}[side], color=look(i).color, fontsize=9)  # fmt: skip
    ax.plot([float(x)], [0.85], marker="o", color=theme.ink, markersize=6)
    ax.annotate(f"$x$ = {short(x, 8)}", (float(x), 0.85), (0, 9), textcoords="offset points", ha="center", va="bottom")
