"""A light figure that is dark on a dark page: rules inside the SVG give each of its colours its twin of the dark theme.

A page says which of both it wants by ``color-scheme``, of itself or of the image; without a word the reader's system
decides. The figure draws its own ground, so it is legible where neither is understood.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re

from .themes import DARK, LIGHT, Theme

# Colours of fills and strokes as matplotlib writes them: in a style, and as an attribute of the ground of a hatching.
USED = re.compile(r"(fill|stroke)(: |=\")(#[0-9a-f]{6})\b")
# What has no colour of its own is black text. Points that were drawn as pixels have no style: they are turned over.
BARE = f"svg{{fill:{DARK.ink}}}image{{filter:invert(1) hue-rotate(180deg)}}"
OFF = 1.5  # how far a colour may be from a mixture, of 255: it was rounded, and so were both ends


def colours(theme: Theme) -> tuple[str, ...]:
    """The colours of a theme, in the order of its fields."""
    given = (getattr(theme, f.name) for f in dataclasses.fields(theme) if f.name != "name")
    return tuple(itertools.chain.from_iterable((x,) if isinstance(x, str) else x for x in given))


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


@functools.cache
def twin(colour: str) -> str | None:
    """The dark theme's colour in the place of one of the light theme, or of a mixture of two; None for any other.

    >>> twin("#ffffff"), twin("#f2d2c1"), twin("#123456")
    ('#14181f', '#4c3422', None)
    """
    known = dict(zip(colours(LIGHT), colours(DARK), strict=True)) | {"#000000": DARK.ink}
    if colour in known:
        return known[colour]
    want = _channels(colour)
    for first, second in itertools.combinations(known, 2):
        a, b = _channels(first), _channels(second)
        square = sum((y - x) ** 2 for x, y in zip(a, b, strict=True))
        share = sum((w - x) * (y - x) for w, x, y in zip(want, a, b, strict=True)) / square
        got = [x + share * (y - x) for x, y in zip(a, b, strict=True)]
        if 0 < share < 1 and max(abs(w - g) for w, g in zip(want, got, strict=True)) <= OFF:
            ends = zip(_channels(known[first]), _channels(known[second]), strict=True)
            return "#" + "".join(f"{round(x + share * (y - x)):02x}" for x, y in ends)
    return None


def adaptive(svg: str) -> str:
    """The figure with a style sheet that recolours it where dark is preferred. ``svg``: drawn in the light theme."""
    rules = [BARE]
    for kind, sign, colour in sorted(set(USED.findall(svg))):
        if (dark := twin(colour)) is not None:
            selector = f'[{kind}="{colour}"]' if sign == '="' else f'[style*="{kind}: {colour}"]'
            rules.append(f"{selector}{{{kind}:{dark}!important}}")
    sheet = f"<style>@media(prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + sheet, svg, count=1)
