"""An inspection as an HTML fragment in the chosen language, legible on light and on dark pages."""

import html
from collections.abc import Sequence

from ..draw import page
from ..draw.strip import bit_strip
from ..formats import Rounding
from .given import Given
from .rows import Row
from .text import ULP_MEANS, facts, heading


def html_of(given: Given, rounding: Rounding, rows: Sequence[Row]) -> str:
    """The whole inspection as one fragment that needs nothing else and inherits the page's colours."""
    head, _, how = heading(given, rounding).partition("\n")
    blocks = "".join(_row_html(row) for row in rows)
    return (
        '<div style="color:inherit;line-height:1.45;max-width:62em">'
        f"<div>{page.title(head)}<br>{html.escape(how)}</div>{blocks}"
        f'<div style="border-top:{page.RULE};padding-top:.4em">{page.note(str(ULP_MEANS))}</div></div>'
    )


def _row_html(row: Row) -> str:
    """One format: name, strip, code and class in a line, the facts below it."""
    name = f'<b style="min-width:5em">{html.escape(row.format.name)}</b>'
    if row.code is None:
        below, beside = "", f"<span>{html.escape(str(row.reason))}</span>"
    else:
        strip = bit_strip(row.fields, row.format.name).svg()
        beside = f"{strip}{page.code(str(row.hex))}<span>{html.escape(str(row.kind))}</span>"
        below = f'<div style="margin-left:6em">{page.facts(facts(row))}</div>'
    return (
        f'<div style="border-top:{page.RULE};padding:.5em 0">'
        f'<div style="display:flex;flex-wrap:wrap;gap:0 1em;align-items:center">{name}{beside}</div>{below}</div>'
    )
