"""Texts and ticks measured and made once: matplotlib does so a dozen times, labels of a log axis more often still.

A layout in two rounds asks every text how large it is, each axis for itself and for its label, every title for all of
its axis, and then the figure is drawn. Where a text stands changes on the way, how it is laid out does not; which ticks
an axis has depends on what it shows and where it stands. What a text is made of, its measures and the outlines of its
letters, is found once a process: numbers and powers of ten stand on the axes of most figures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from typing import Any

from matplotlib.axis import Axis
from matplotlib.cbook import CallbackRegistry
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

MEASURE: Any = Text._get_layout  # type: ignore[attr-defined]
PARSE: Any = MathTextParser._parse_cached  # type: ignore[attr-defined]
TICKS: Any = Axis._update_ticks  # type: ignore[attr-defined]
BOXES: Any = Axis._get_ticklabel_bboxes  # type: ignore[attr-defined]
OUTLINE: Any = TextToPath.get_glyphs_with_font
NEVER = (None,)
PARTS = ("tick1line", "tick2line", "gridline", "label1", "label2")  # of a tick
MOST = 1 << 12  # texts that are remembered

_measured: dict[Any, Any] = {}


@lru_cache(MOST)
def _parsed(*looks: Any) -> Any:
    """A formula as an SVG's parser sees it."""
    return PARSE.__wrapped__(MathTextParser("path"), *looks)


@lru_cache(MOST)
def _outlined(font: Any, text: str, features: Any, language: Any) -> Any:
    """Where the letters of a text stand, and the outline of each."""
    positions, outlines, _ = OUTLINE(TextToPath(), font, text, {}, True, features=features, language=language)
    return positions, outlines


def _twin(tick: Any) -> Any:
    """A tick that looks as another does: its own lines and labels, which share what nobody changes in place."""
    twin = _copied(tick)
    for name in PARTS:
        setattr(twin, name, _copied(getattr(tick, name)))
    for label in (twin.label1, twin.label2):
        label._fontproperties = label._fontproperties.copy()
    return twin


def _copied(artist: Any) -> Any:
    """An artist that nobody listens to, otherwise alike."""
    other = copy(artist)
    other._callbacks = CallbackRegistry(signals=["pchanged"])
    return other


@contextmanager
def twins() -> Iterator[None]:
    """Within the block the ticks of an axis are copies of its first: of new ones all but that are given its looks."""

    def grown(ticks: list[Any], count: int) -> list[Any]:
        ticks += [_twin(ticks[0]) for _ in range(count - len(ticks))]
        return ticks[:count]

    def major(axis: Any, numticks: int | None = None) -> Any:
        return grown(axis.majorTicks, len(axis.get_majorticklocs()) if numticks is None else numticks)

    def minor(axis: Any, numticks: int | None = None) -> Any:
        return grown(axis.minorTicks, len(axis.get_minorticklocs()) if numticks is None else numticks)

    before = Axis.get_major_ticks, Axis.get_minor_ticks
    Axis.get_major_ticks, Axis.get_minor_ticks = major, minor  # type: ignore
    try:
        yield
    finally:
        Axis.get_major_ticks, Axis.get_minor_ticks = before  # type: ignore


@contextmanager
def remembered() -> Iterator[None]:
    """Within the block a text that looks like one before is laid out, or parsed, as that was: all of them in an SVG.

    An axis that shows what it showed where it stood has the same ticks, and their labels have the same boxes.
    """
    if len(_measured) > MOST:
        _measured.clear()
    ticked: dict[Axis, Any] = {}
    boxed: dict[Axis, Any] = {}

    def layout(text: Any, renderer: Any) -> Any:
        if text.get_wrap():  # whose lines depend on where it stands
            return MEASURE(text, renderer)
        looks = (
            text.get_text(), hash(text.get_fontproperties()), text.get_rotation(), text.get_rotation_mode(),
            text.get_horizontalalignment(), text.get_verticalalignment(), text._multialignment, text._linespacing,
            text.get_usetex(), text.get_parse_math(), text.get_figure(root=True).dpi, type(renderer),
        )  # fmt: skip
        if looks not in _measured:
            _measured[looks] = MEASURE(text, renderer)
        return _measured[looks]

    def glyphs(
        reader: Any, font: Any, text: str, glyph_map: Any = None, return_new_glyphs_only: bool = False, **how: Any
    ) -> Any:
        if not return_new_glyphs_only:
            return OUTLINE(reader, font, text, glyph_map, **how)
        positions, outlines = _outlined(font, text, how.get("features"), how.get("language"))
        return positions, {glyph: path for glyph, path in outlines.items() if glyph not in glyph_map}, []

    def state(axis: Any) -> Any:
        """What an axis shows, and where it and the one whose locator it shares stand: they have room for so many."""
        beside = axis.major.locator.axis.axes
        return *axis.get_view_interval(), *axis.axes.bbox.bounds, *beside.bbox.bounds

    def ticks(axis: Any) -> Any:
        if (now := state(axis)) != ticked.get(axis, NEVER)[0]:
            ticked[axis] = now, TICKS(axis)
        return ticked[axis][1]

    def boxes(axis: Any, of: Any, renderer: Any) -> Any:
        now = *state(axis), *map(id, of)
        if now != boxed.get(axis, NEVER)[0]:
            boxed[axis] = now, BOXES(axis, of, renderer)
        return boxed[axis][1]

    Axis._update_ticks, Axis._get_ticklabel_bboxes = ticks, boxes  # type: ignore[attr-defined]
    Text._get_layout, TextToPath.get_glyphs_with_font = layout, glyphs  # type: ignore
    MathTextParser._parse_cached = lambda _parser, *looks: _parsed(*looks)  # type: ignore
    try:
        yield
    finally:
        Axis._update_ticks, Axis._get_ticklabel_bboxes = TICKS, BOXES  # type: ignore[attr-defined]
        MathTextParser._parse_cached = PARSE  # type: ignore[attr-defined]
        Text._get_layout, TextToPath.get_glyphs_with_font = MEASURE, OUTLINE  # type: ignore
