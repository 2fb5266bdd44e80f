"""SVG and HTML as strings: what every widget draws with, legible on light and on dark pages.

Text and lines wear the page's own colour; fills are translucent, so that they tint either ground. What a colour says is
said a second time by a word, a mark or a hatching.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable, Sequence
from fractions import Fraction

from ..errors import LabError
from ..inspection.words import FIELDS
from ..language import Text

BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#3b82d6", "#d9730d", "#2f9e62", "#9a63d6", "#e0524d", "#808890"
FILLS = {"sign": RED, "exponent": "#d69e14", "zeros": "#d69e14", "indicator": GREEN, "fraction": BLUE, "index": PURPLE}
NUMBERS = (int, float)
LEGIBLE = 0.7  # a drawing shrinks to this share of its width, and scrolls where there is less room
RULE = "1px solid rgba(128,128,128,.4)"
MONO = "ui-monospace,'DejaVu Sans Mono',monospace"


def say(en: str, zh: str) -> str:
    """The text in the current language."""
    return str(Text(en, zh))


def number(x: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{x:.2f}".rstrip("0").rstrip(".") if x % 1 else f"{x:.0f}"


@functools.lru_cache(maxsize=4096)
def escaped(text: str) -> str:
    """A text as HTML; a drawing has the same few thousands of times."""
    return html.escape(text)


@functools.cache
def attribute(name: str) -> str:
    """A keyword's name as an attribute's."""
    return name.rstrip("_").replace("_", "-")


def attributes(given: dict[str, object]) -> str:
    """Keyword arguments as attributes: ``stroke_width=2`` is ``stroke-width="2"``."""
    parts = []
    for name, value in given.items():
        text = number(value) if isinstance(value, NUMBERS) else escaped(str(value))
        parts.append(f' {attribute(name)}="{text}"')
    return "".join(parts)


class Svg:
    """A drawing of some width and height in pixels, grown element by element."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def add(self, tag: str, **given: object) -> None:
        """An element without content."""
        self.parts.append(f"<{tag}{attributes(given)}/>")

    def rect(self, x: float, y: float, width: float, height: float, fill: str = "none", **given: object) -> None:
        """A rectangle."""
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, **given)

    def line(self, x: float, y: float, to_x: float, to_y: float, **given: object) -> None:
        """A line, in the page's colour unless told otherwise."""
        self.add("line", **{"x1": x, "y1": y, "x2": to_x, "y2": to_y, "stroke": "currentColor", **given})

    def path(self, points: Iterable[tuple[float, float]], **given: object) -> None:
        """A line through points."""
        places = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.add("polyline", **{"points": places, "fill": "none", "stroke": "currentColor", **given})

    def hatch(self, x: float, y: float, width: float, height: float, step: float = 6) -> None:
        """Slanting lines over a rectangle, the second cue of a fill."""
        strokes = []
        at = x - height
        while at < x + width:  # from the lower edge to the upper one, cut off at the sides
            left, right = max(at, x), min(at + height, x + width)
            if right > left:
                strokes.append(f"M{number(left)} {number(y + height - (left - at))}L{number(right)} "
                               f"{number(y + height - (right - at))}")  # fmt: skip
            at += step
        self.add("path", d="".join(strokes), stroke="currentColor", stroke_opacity=0.55, fill="none")

    def text(self, x: float, y: float, text: object, anchor: str = "start", size: float = 12, **given: object) -> None:
        """A line of text; ``anchor``: start, middle or end."""
        shown = escaped(str(text))
        self.parts.append(f"<text{attributes({'x': x, 'y': y, 'text-anchor': anchor, 'font-size': size, **given})}>"
                          f"{shown}</text>")  # fmt: skip

    def done(self, spoken: str) -> str:
        """The element; ``spoken`` is what a screen reader says of it."""
        box = f"0 0 {number(self.width)} {number(self.height)}"
        least = number(LEGIBLE * self.width)
        style = f"display:block;max-width:100%;min-width:{least}px;height:auto;font-family:system-ui,sans-serif"
        return (
            f'<div style="overflow-x:auto"><svg role="img" aria-label="{html.escape(spoken)}" '
            f'width="{number(self.width)}" viewBox="{box}" fill="currentColor" style="{style}">'
            f"{''.join(self.parts)}</svg></div>"
        )


def panel(*blocks: str) -> str:
    """A widget's whole picture."""
    inside = "".join(f'<div style="margin:.35em 0">{block}</div>' for block in blocks if block)
    # One grid column that may be narrower than a table in it, which then scrolls by itself.
    style = "color:inherit;line-height:1.45;max-width:70em;display:grid;grid-template-columns:minmax(0,1fr)"
    return f'<div class="fplab-picture" style="{style}">{inside}</div>'


def beside(*blocks: str) -> str:
    """Blocks side by side, below one another where the page is narrow."""
    inside = "".join(f'<div style="flex:1 1 22em;min-width:0">{block}</div>' for block in blocks)
    return f'<div style="display:flex;flex-wrap:wrap;gap:.5em 2em">{inside}</div>'


def note(text: str) -> str:
    """A line of prose below a drawing."""
    return f'<div style="opacity:.85">{html.escape(text)}</div>'


def title(text: str) -> str:
    """A line of bold text."""
    return f"<b>{html.escape(text)}</b>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Labelled lines; a text may be long."""
    inside = "".join(
        f'<span style="opacity:.8">{html.escape(label)}</span>'
        f'<span style="overflow-wrap:anywhere">{html.escape(text)}</span>'
        for label, text in pairs
    )
    return f'<div style="display:grid;grid-template-columns:max-content 1fr;gap:0 1em">{inside}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column is to the left and whose others are to the right."""

    def cell(tag: str, i: int, text: object) -> str:
        side = "left" if i == 0 else "right"
        style = f"text-align:{side};padding:.1em .7em;background:none;border-bottom:{RULE}"
        return f'<{tag} style="{style}">{html.escape(str(text))}</{tag}>'

    lines = ["".join(cell("th", i, t) for i, t in enumerate(head))]
    lines += ["".join(cell("td", i, t) for i, t in enumerate(row)) for row in rows]
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums;color:inherit"
    return f'<div style="overflow-x:auto"><table style="{style}">{body}</table></div>'


def refusal(error: LabError | str) -> str:
    """What a widget says of a wish that cannot be met: kindly, with what is allowed, and without a traceback."""
    head = say("Not possible:", "无法做到：")
    text = str(error)
    if isinstance(error, LabError) and error.call is not None:  # the call is the widget's, not the reader's
        text = text.removeprefix(f"{error.call}: ")
    return (
        f'<div role="alert" style="border-left:4px solid {ORANGE};padding:.4em .8em;margin:.4em 0">'
        f"<b>⚠ {head}</b> {html.escape(text)}</div>"
    )


def power(x: Fraction | float) -> str:
    """A power of two as text with a superscript: ``2⁻²⁴``; other numbers to six digits."""
    ratio = Fraction(x)
    up, down = abs(ratio.numerator), ratio.denominator
    if ratio and not up & (up - 1) and not down & (down - 1):
        sign = "−" if ratio < 0 else ""
        return f"{sign}{two_to(up.bit_length() - down.bit_length())}"
    return f"{float(x):.6g}"


def two_to(exponent: int) -> str:
    """``2⁻²⁴``, in characters that every page can show."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def bit_strip(fields: Sequence[tuple[str, str]], spoken: str, cell: int = 16) -> str:
    """The bits of a code: fields apart, tinted and named below, a full box a 1."""
    drawing = Svg(8 + sum(cell * len(digits) + 8 for _, digits in fields), 42)
    x = 4.0
    for name, digits in fields:
        for i, digit in enumerate(digits):
            drawing.rect(x + i * cell, 1, cell, 23, FILLS.get(name, BLUE), fill_opacity=0.5 if digit == "1" else 0.16,
                         stroke="currentColor", stroke_opacity=0.4)  # fmt: skip
            drawing.text(x + (i + 0.5) * cell, 17, digit, "middle", 13, font_family=MONO, class_="bit")
        width = cell * len(digits)
        shown = field_name(name)
        short = shown if width >= 6 * len(name) else shown[:4] if len(digits) > 1 else shown[0]
        drawing.text(x + width / 2, 38, short, "middle", 11, opacity=0.85)
        x += width + 8
    return drawing.done(spoken)


FIELD_NAMES = FIELDS | {
    "zeros": Text("zeros", "零"),
    "indicator": Text("indicator", "指示"),
    "integer": Text("integer", "整数"),
    "index": Text("index", "序号"),
}


def field_name(name: str) -> str:
    """A field's name in the current language."""
    return str(FIELD_NAMES.get(name, name))
