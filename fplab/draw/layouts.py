"""Texts measured once a figure: matplotlib measures each a dozen times, tick labels of a log axis more often still.

A layout in two rounds asks every text how large it is, each axis for itself and for its label, every title for all of
its axis, and then the figure is drawn. Where a text stands changes on the way, how it is laid out does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib.text import Text

MEASURE: Any = Text._get_layout  # type: ignore[attr-defined]


@contextmanager
def remembered() -> Iterator[None]:
    """Within the block a text that looks like one before is laid out as that was: all of them in an SVG."""
    found: dict[Any, Any] = {}

    def layout(text: Any, renderer: Any) -> Any:
        if text.get_wrap():  # whose lines depend on where it stands
            return MEASURE(text, renderer)
        looks = (
            text.get_text(), hash(text.get_fontproperties()), text.get_rotation(), text.get_rotation_mode(),
            text.get_horizontalalignment(), text.get_verticalalignment(), text._multialignment, text._linespacing,
            text.get_usetex(), text.get_parse_math(), text.get_figure(root=True).dpi,
        )  # fmt: skip
        if looks not in found:
            found[looks] = MEASURE(text, renderer)
        return found[looks]

    Text._get_layout = layout  # type: ignore[attr-defined]
    try:
        yield
    finally:
        Text._get_layout = MEASURE  # type: ignore[attr-defined]
