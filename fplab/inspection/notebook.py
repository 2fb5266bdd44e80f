"""An inspection as an HTML fragment in the chosen language, legible on light and on dark pages."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from . import words
from .rows import Row
from .text import facts, heading

if TYPE_CHECKING:
    from . import Inspection

FILLS = {"sign": "rgba(214,69,65,.30)", "exponent": "rgba(222,160,20,.34)", "fraction": "rgba(46,125,224,.30)"}
CELL, TALL, GAP = 14, 21, 8  # pixels: a bit's width and height, the space between fields
RULE = "1px solid rgba(128,128,128,.4)"


def strip_svg(row: Row) -> str:
    """The bit strip of a row as an SVG element: fields apart, tinted and named; text in the page's own colour."""
    x, parts = 4, []
    for name, digits in row.fields:
        width = CELL * len(digits)
        for i, digit in enumerate(digits):
            parts.append(
                f'<rect x="{x + i * CELL}" y="1" width="{CELL}" height="{TALL}" fill="{FILLS[name]}" '
                f'stroke="currentColor" stroke-opacity=".35"/>'
                f'<text x="{x + i * CELL + CELL / 2}" y="16" text-anchor="middle">{digit}</text>'
            )
        title = str(words.FIELDS[name])
        if width < 6 * len(title):  # two Chinese characters have room everywhere, with the gaps beside a single bit
            title = title[:4] if len(digits) > 1 else title[0]
        parts.append(
            f'<text x="{x + width / 2}" y="34" font-size="10" text-anchor="middle" opacity=".75">{title}</text>'
        )
        x += width + GAP
    told = str(words.COMMA).join(f"{words.FIELDS[name]} {digits}" for name, digits in row.fields)
    spoken = html.escape(f"{row.format.name}{words.COLON}{told}")
    return (
        f'<svg role="img" aria-label="{spoken}" width="{x}" height="38" viewBox="0 0 {x} 38" fill="currentColor" '
        f'style="max-width:100%;font:13px ui-monospace,monospace">{"".join(parts)}</svg>'
    )


def html_of(seen: Inspection) -> str:
    """The whole inspection as one fragment that needs nothing else and inherits the page's colours."""
    head, _, how = heading(seen).partition("\n")
    blocks = "".join(_row_html(row) for row in seen.rows)
    return (
        '<div style="color:inherit;line-height:1.45;max-width:62em">'
        f"<div><b>{html.escape(head)}</b><br>{html.escape(how)}</div>{blocks}"
        f'<div style="border-top:{RULE};padding-top:.4em;opacity:.75">{html.escape(str(words.ULP_MEANS))}</div></div>'
    )


def _row_html(row: Row) -> str:
    """One format: name, strip, code and class in a line, the facts below it."""
    name = f'<b style="min-width:5em">{html.escape(row.format.name)}</b>'
    if row.code is None:
        problem = f"<span>{html.escape(str(row.reason))}</span>"
        return f'<div style="border-top:{RULE};padding:.5em 0;display:flex;gap:1em">{name}{problem}</div>'
    shown = "".join(
        f'<span style="opacity:.75">{label}</span><span style="overflow-wrap:anywhere">{html.escape(text)}</span>'
        for label, text in facts(row)
    )
    code = f'<code style="color:inherit;background:none">{row.hex}</code><span>{words.CLASSES[row.class_name]}</span>'
    return (
        f'<div style="border-top:{RULE};padding:.5em 0">'
        f'<div style="display:flex;flex-wrap:wrap;gap:0 1em;align-items:center">{name}{strip_svg(row)}{code}</div>'
        f'<div style="display:grid;grid-template-columns:4em 1fr;gap:0 1em;margin-left:6em">{shown}</div></div>'
    )
