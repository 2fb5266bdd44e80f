"""Panels of figures: the verbs of :mod:`fplab.draw.verbs` on what a result has, by the measure's name or a quantity.

``line("loss", x="step", hue="fmt", title="...")`` draws ``result.loss``; ``line(of("loss", fmt="bf16"), ...)`` a part.
A title or a label that depends on the result is a function of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from .quantities import Quantity

if TYPE_CHECKING:
    from .frame import Panel

What: TypeAlias = "str | Quantity | Callable[[Any], Any]"  # a measure's name, a quantity, or a function of the result


def _panel(verb: str, what: What, how: dict[str, Any]) -> Panel:
    def draw(ax: Any, result: Any) -> None:
        from ..draw import verbs

        read = what.read if isinstance(what, Quantity) else what if callable(what) else operator.attrgetter(what)
        getattr(verbs, verb)(ax, read(result), **{key: of(result) if callable(of) else of for key, of in how.items()})

    return draw


def dots(what: What, **how: Any) -> Panel:
    """A point for each value, see :func:`fplab.draw.verbs.dots`."""
    return _panel("dots", what, how)


def line(what: What, **how: Any) -> Panel:
    """A line a series, see :func:`fplab.draw.verbs.line`."""
    return _panel("line", what, how)


def bars(what: What, **how: Any) -> Panel:
    """A bar for each value, see :func:`fplab.draw.verbs.bars`."""
    return _panel("bars", what, how)


def heat(what: What, **how: Any) -> Panel:
    """A coloured cell for each value, see :func:`fplab.draw.verbs.heat`."""
    return _panel("heat", what, how)


def with_(panel: Panel, *more: Callable[[Any, Any], None]) -> Panel:
    """A panel with more drawn on it, each ``function(ax, result)``."""

    def draw(ax: Any, result: Any) -> None:
        for part in (panel, *more):
            part(ax, result)

    return draw
