"""Summation trees: terms below, and above them what adds them, at the height of the additions they have passed."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ..errors import LabError
from ..reveal import SumTree
from .style import Look, current, look

MOST = 512  # terms that can be told apart
LABELS = 40  # term numbers that have room below a drawing of 8 inches


def sum_tree(ax: Axes, tree: SumTree, *, style: Look | None = None, labels: int = LABELS) -> None:
    """Draw a summation tree.

    A node is a bar over its children, as high as the longest way down from it. One of two children is a single
    addition; one of more is a fused sum, drawn thick in the colour of ``style``, with its number of children beside it.
    ``labels``: how many term numbers there is room for; of more, every second, fourth and so on is written.
    """
    if tree.size > MOST:
        raise LabError(f"the tree has {tree.size:,} terms; at most {MOST} can be drawn.")
    theme, style = current(), style or look(0)
    order = _in_order(tree)
    x = [0.0] * (tree.size + len(tree.nodes))
    for place, term in enumerate(order):
        x[term] = float(place)
    heights = tree.heights
    stems, single = [], []
    for number, parts in enumerate(tree.nodes, tree.size):
        left, right = min(x[p] for p in parts), max(x[p] for p in parts)
        x[number], y = (left + right) / 2, heights[number]
        stems += [[(x[p], heights[p]), (x[p], y)] for p in parts]
        if len(parts) == 2:
            single.append([(left, y), (right, y)])
        else:
            ax.plot([left, right], [y, y], color=style.color, linewidth=3.2, solid_capstyle="round", zorder=3)
            name: dict[str, Any] = {"ha": "right", "va": "bottom", "color": style.color, "fontsize": 9}
            ax.annotate(f"{len(parts)}", (right, y), (0, 3), textcoords="offset points", **name)
    thin = 1.2 if tree.size <= 64 else 0.7
    ax.add_collection(LineCollection([*stems, *single], colors=theme.muted, linewidths=thin, capstyle="round"))
    if tree.nodes:
        ax.plot([x[-1]] * 2, [heights[-1], heights[-1] + 0.5], color=theme.muted, linewidth=thin)
    if tree.size <= 64:
        ax.plot(range(tree.size), [0] * tree.size, "o", color=theme.ink, markersize=2.5, zorder=4)
    every = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if tree.size / s <= labels)
    below: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8}
    for place in range(0, tree.size, every):
        ax.annotate(f"{order[place]}", (place, 0), (0, -5), textcoords="offset points", **below)
    ax.set(xlim=(-1, tree.size), ylim=(-0.12 * max(tree.depth, 3), tree.depth + 0.6))
    ax.axis("off")


def _in_order(tree: SumTree) -> list[int]:
    """The terms from left to right, so that no two lines cross."""
    return tree.fold([[i] for i in range(tree.size)], lambda parts: [i for part in parts for i in part])
