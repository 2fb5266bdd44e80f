"""HTML as strings: the blocks that widgets, reports and pages are made of, legible on light and on dark pages."""

import html
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from ..errors import LabError
from ..words import Text, say
from .scene import ORANGE

Said = str | Text
Facts = Sequence[tuple[Said, Said]]
RULE = "1px solid rgba(128,128,128,.4)"


def after_colon(first: object, then: object) -> str:
    return str(say("{first}: {then}", first=first, then=then))


def listed(*texts: object) -> str:
    return str(say(", ")).join(map(str, texts))


def bracketed(before: object, text: object) -> str:
    return str(say("{before} ({text})", before=before, text=text))


def panel(*blocks: str) -> str:
    inside = "".join(f'<div style="margin:.35em 0">{block}</div>' for block in blocks if block)
    # One grid column that may be narrower than a table in it, which then scrolls by itself.
    style = "color:inherit;line-height:1.45;max-width:70em;display:grid;grid-template-columns:minmax(0,1fr)"
    return f'<div class="fplab-picture" style="{style}">{inside}</div>'


def beside(*blocks: str) -> str:
    """Blocks side by side, below one another where the page is narrow."""
    inside = "".join(f'<div style="flex:1 1 22em;min-width:0">{block}</div>' for block in blocks)
    return f'<div style="display:flex;flex-wrap:wrap;gap:.5em 2em">{inside}</div>'


def note(text: object) -> str:
    return f'<div style="opacity:.85">{html.escape(str(text))}</div>'


def title(text: object) -> str:
    return f"<b>{html.escape(str(text))}</b>"


def facts(pairs: Facts) -> str:
    """Labelled lines; a text may be long."""
    inside = "".join(
        f'<span style="opacity:.8">{html.escape(str(label))}</span>'
        f'<span style="overflow-wrap:anywhere">{html.escape(str(text))}</span>'
        for label, text in pairs
    )
    return f'<div style="display:grid;grid-template-columns:max-content 1fr;gap:0 1em">{inside}</div>'


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


def code(text: str) -> Html:
    return Html(f'<code style="color:inherit;background:none;white-space:pre-wrap">{html.escape(text)}</code>')


def table(head: Sequence[object], rows: Iterable[Sequence[object]], words: Sequence[float] = ()) -> str:
    """A table of numbers, the first column to the left and the others to the right; or of words.

    ``words``: how wide each column is at least, in em, as Chinese would break anywhere in a narrow one. Without a head
    the first column heads the rows.
    """

    def cell(tag: str, i: int, text: object) -> str:
        style = (
            f"text-align:left;vertical-align:top;padding:.25em .6em .25em 0;white-space:normal;overflow-wrap:anywhere;"
            f"min-width:{words[i]}em"
            if words
            else f"text-align:{'right' if i else 'left'};padding:.1em .4em"
        )
        inside = text if isinstance(text, Html) else html.escape(str(text))
        return f'<{tag} style="{style};background:none;border-bottom:{RULE}">{inside}</{tag.split()[0]}>'

    first = "td" if head else 'th scope="row"'
    lines = ["".join(cell('th scope="col"', i, t) for i, t in enumerate(head))] if head else []
    lines += ["".join(cell("td" if i else first, i, t) for i, t in enumerate(row)) for row in rows]
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums;color:inherit;font-size:1em;max-width:70em"
    return f'<div style="overflow-x:auto"><table style="{style}">{body}</table></div>'


def refusal(error: LabError | str) -> str:
    """What a widget says of a wish that cannot be met: kindly, with what is allowed, and without a traceback."""
    head = str(say("Not possible:"))
    text = str(error)
    if isinstance(error, LabError) and error.call is not None:  # the call is the widget's, not the reader's
        text = text.removeprefix(f"{error.call}: ")
    return (
        f'<div role="alert" style="border-left:4px solid {ORANGE};padding:.4em .8em;margin:.4em 0;'
        'overflow-wrap:anywhere">'
        f"<b>⚠ {head}</b> {html.escape(text)}</div>"
    )


def power(x: Fraction | float) -> str:
    """A power of two as text with a superscript: ``2⁻²⁴``; other numbers to six digits."""
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    ratio = Fraction(x)
    up, down = abs(ratio.numerator), ratio.denominator
    if ratio and not up & (up - 1) and not down & (down - 1):
        sign = "−" if ratio < 0 else ""
        return f"{sign}{two_to(up.bit_length() - down.bit_length())}"
    return f"{float(x):.6g}"


def two_to(exponent: int) -> str:
    """``2⁻²⁴``, in characters that every page can show."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
