"""Arrays with named axes as panels: dots, lines, bars, a histogram, a heat map. A legend and ticks are the axes' names.

An array is an :class:`xarray.DataArray`. ``x``, ``y``, ``hue``, ``marker`` name its axes; the axis of the value is left
out. ``log``: "x", "y" or "xy". ``names``: what coordinates are called where their own names do not serve. ``xlabel``,
``ylabel``, ``title`` and whatever else ``Axes.set`` takes follow as keywords.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .memory import LOOKS as KINDS
from .memory import fill
from .style import Look, current, look, look_of_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xarray import DataArray

Names: TypeAlias = Mapping[Any, str] | None
DODGE = 0.8  # of the room of a category, which its series share
FORMATS = ("format", "fmt")  # axes whose coordinates have looks of their own


def dots(
    ax: Axes, array: DataArray, x: str = "", y: str = "", hue: str = "", marker: str = "", log: str = "",
    names: Names = None, **how: Any,
) -> None:  # fmt: skip
    """A point for each value: a category along ``x`` (values upwards) or down ``y`` (values to the right)."""
    category = x or y
    positions = np.arange(array.sizes[category])
    hues, marks = _coordinates(array, hue), _coordinates(array, marker)
    shares = len(hues) * len(marks)
    for i, h in enumerate(hues):
        for j, m in enumerate(marks):
            part = _at(_at(array, hue, h), marker, m).transpose(category, ...)
            values = part.values.reshape(len(positions), -1)
            at = positions + (DODGE * ((i * len(marks) + j + 0.5) / shares - 0.5) if shares > 1 else 0.0)
            at = np.broadcast_to(at[:, None], values.shape)
            own = not hue and not marker  # each category has a look of its own
            for k, (place, row) in enumerate(zip(at, values, strict=True)):
                colour = _look(hue, h, i) if hue else _look(category, array[category].values[k], k) if own else look(0)
                mark = look(j if marker else i if hue else k).marker
                ends = (place, row) if x else (row, place)
                ax.plot(*ends, color=colour.color, marker=mark, linestyle="none", markersize=7 if shares == 1 else 5.5)
    _ticks(ax, "x" if x else "y", array[category].values, names)
    if not x:
        ax.set_ylim(len(positions) - 0.5, -0.5)
    _legend(ax, ((hue, hues), (marker, marks)), names)
    _scales(ax, log, how)


def line(
    ax: Axes, array: DataArray, x: str, hue: str = "", over: str = "seed", log: str = "", names: Names = None,
    marked: bool = False, band: bool = True, legend: Mapping[str, Any] | None = None, ticks: bool = False, **how: Any,
) -> None:  # fmt: skip
    """A line a series along ``x``: the mean over ``over``, if there is such an axis, in a band to the extremes.

    ``ticks``: at the coordinates.
    """
    for i, h in enumerate(_coordinates(array, hue)):
        part, style = _at(array, hue, h), _look(hue, h, i)
        at = part[x].values
        several = over in part.dims
        mean = part.mean(over) if several else part
        if several and band:
            ax.fill_between(
                at, part.min(over).values, part.max(over).values, color=style.color, alpha=0.15, linewidth=0
            )
        ax.plot(at, mean.values, label=_name(h, names) if hue else None, **(style.marked if marked else style.line))
    if hue:
        ax.legend(**(legend or {}))
    _scales(ax, log, how)
    if ticks:
        ax.set_xticks(array[x].values, [_name(at, names) for at in array[x].values.tolist()])
        ax.set_xticks([], minor=True)


def bars(
    ax: Axes, array: DataArray, x: str = "", y: str = "", hue: str = "", log: str = "", names: Names = None,
    legend: Mapping[str, Any] | None = None, numbers: str = "", stacked: bool = False, **how: Any,
) -> None:  # fmt: skip
    """A bar for each value, upwards along ``x`` or to the right down ``y``; series beside each other, hatched.

    ``numbers``: how the values are written at the bars' ends, such as "{:.0f}". ``stacked``: series one on another,
    with the sum at the end.
    """
    category = x or y
    positions, hues = np.arange(array.sizes[category]), _coordinates(array, hue)
    width, start = DODGE / (1 if stacked else len(hues)), np.zeros(len(positions))
    for i, h in enumerate(hues):
        at = positions if stacked else positions + width * (i + 0.5) - DODGE / 2
        values = _at(array, hue, h).values
        how_drawn: dict[str, Any] = {**_area(hue, h, i), "label": _name(h, names) if hue else None}
        if x:
            drawn = ax.bar(at, values, 0.9 * width, bottom=start, **how_drawn)
        else:
            drawn = ax.barh(at, values, 0.9 * width, left=start, **how_drawn)
        ends = start + values
        if numbers and (not stacked or i + 1 == len(hues)):
            ax.bar_label(drawn, [numbers.format(end) for end in ends], padding=3, fontsize=9)
        start = ends if stacked else start
    _ticks(ax, "x" if x else "y", array[category].values, names)
    if not x:
        ax.set_ylim(len(positions) - 0.4, -0.6)
    if hue:
        ax.legend(**(legend or {}))
    _scales(ax, log, how)


def histogram(ax: Axes, counts: np.ndarray, edges: np.ndarray, log: str = "", **how: Any) -> None:
    """Counts as steps between edges, one more than counts."""
    ax.stairs(counts, edges, fill=True, color=look(0).color, alpha=0.8)
    _scales(ax, log, how)


def heat(
    ax: Axes, array: DataArray, x: str, y: str, names: Names = None, label: str = "", numbers: str = "",
    most: float | None = None, **how: Any,
) -> None:  # fmt: skip
    """A coloured cell for each value, with a bar of colours.

    ``numbers``: how the values are written in the cells; ``most``: from which value on colours stay the same.
    """
    values = array.transpose(y, x).values
    image = ax.imshow(values, aspect="auto", interpolation="nearest", cmap="viridis", vmax=most)
    for (row, column), value in np.ndenumerate(values) if numbers else ():
        dark = float(image.norm(float(value))) < 0.5  # type: ignore[arg-type]
        ax.text(column, row, numbers.format(value), ha="center", va="center", color="white" if dark else "black")
    for side, axis in (("x", x), ("y", y)):
        _ticks(ax, side, array[axis].values, names)
    ax.grid(visible=False)
    bar = ax.figure.colorbar(image, ax=ax, label=label)
    bar.ax.set_label("<colorbar>")
    _scales(ax, "", how)


# --- parts ------------------------------------------------------------------------------------------------------
def _coordinates(array: DataArray, axis: str) -> Sequence[Any]:
    return array[axis].values.tolist() if axis else (None,)


def _at(array: DataArray, axis: str, value: Any) -> DataArray:
    return array.sel({axis: value}) if axis else array


def _look(axis: str, value: Any, index: int) -> Look:
    return look_of_format(value) if axis in FORMATS else look(index)


def _area(axis: str, value: Any, index: int) -> dict[str, Any]:
    """How a bar is filled; kinds of memory have looks of their own."""
    if axis == "kind" and value in KINDS:
        return fill(value)
    return {"color": _look(axis, value, index).color, "hatch": "//" * index}


def _name(value: Any, names: Names) -> str:
    return (names or {}).get(value, str(value))


def _ticks(ax: Axes, side: str, values: np.ndarray, names: Names) -> None:
    set_ticks = ax.set_xticks if side == "x" else ax.set_yticks
    set_ticks(range(len(values)), [_name(value, names) for value in values.tolist()])


def _legend(ax: Axes, series: Sequence[tuple[str, Sequence[Any]]], names: Names) -> None:
    """What colours and markers mean; nothing where there is one of each."""
    handles = [handle for i, (axis, values) in enumerate(series) if axis for handle in _handles(i, axis, values, names)]
    if handles:
        ax.legend(handles=handles)


def _handles(kind: int, axis: str, values: Sequence[Any], names: Names) -> Iterator[Any]:
    from matplotlib.lines import Line2D

    for i, value in enumerate(values):
        style = _look(axis, value, i)
        shown: dict[str, Any] = {"color": style.color, "linewidth": 5} if kind == 0 else {
            "color": current().ink, "linestyle": "none", "marker": style.marker}  # fmt: skip
        yield Line2D([], [], label=_name(value, names), **shown)


def _scales(ax: Axes, log: str, how: Mapping[str, Any]) -> None:
    ax.set(**{f"{side}scale": "log" for side in log}, **how)
