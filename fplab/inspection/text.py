"""An inspection as aligned text for a terminal, in the chosen language."""

from __future__ import annotations

import textwrap
from fractions import Fraction
from typing import TYPE_CHECKING

from ..columns import padded, width_of
from . import words
from .numerals import binary_text, near_text, shown, signed
from .rows import Row

if TYPE_CHECKING:
    from . import Inspection

WIDTH = 100


def text_of(seen: Inspection) -> str:
    """The heading, a block for each format, and what an ulp is."""
    width = max(width_of(row.format.name) for row in seen.rows)
    return "\n\n".join([heading(seen), *(_row_text(row, width) for row in seen.rows), str(words.ULP_MEANS)])


def heading(seen: Inspection) -> str:
    """What was given and how it was rounded."""
    value = seen.given.value
    ratio = ""
    digits = str(value.value) if value.kind == "finite" and not value.is_zero else seen.given.text
    if digits != seen.given.text.lstrip("+"):
        if len(digits) <= 60:
            ratio = f" = {digits}"
        elif value.value.denominator & (value.value.denominator - 1) == 0 and value.magnitude >= Fraction(1, 10**400):
            product = binary_text(value.value)
            ratio = f" = {product}" if len(product) <= 60 else ""
    return f"{seen.given.text}{ratio}{words.COLON}{seen.given.how}\n{words.ROUNDINGS[seen.rounding]}"


def _row_text(row: Row, name_width: int) -> str:
    """The block of one format."""
    name, indent = padded(row.format.name, name_width), " " * (name_width + 2)
    if row.code is None:
        return f"{name}  {row.reason}"
    lines = [f"{name}  {row.strip}", f"{row.hex}  {words.CLASSES[row.class_name]}"]
    beside = "  ".join(lines)
    lines = [beside] if width_of(beside) <= WIDTH else [lines[0], indent + lines[1]]
    found = facts(row)
    labels = max(width_of(label) for label, _ in found) + 2
    for label, text in found:
        lines += _wrapped(text, indent + padded(label, labels), indent + " " * labels)
    return "\n".join(lines)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """A labelled line, or several where it is too long."""
    wide = width_of(first + text) - len(first + text)  # textwrap counts characters: as if all of them were on one line
    return textwrap.wrap(text, WIDTH - wide, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def facts(row: Row) -> list[tuple[str, str]]:
    """The labelled lines below a bit strip."""
    assert row.stored is not None
    value = shown(row.stored)
    if row.value is not None and (row.value.denominator > 1 or len(value) > 12):
        value += f" = {binary_text(row.value)}"
    lines = [(words.VALUE, value), (words.ERROR, error_text(row))]
    if not row.stored.is_nan:
        lines += [(words.BELOW, near_text(row.below)), (words.ABOVE, near_text(row.above))]
    flags = str(words.ENUMERATION).join(str(words.FLAGS[name]) for name in row.flag_names)
    return [(str(label), text) for label, text in (*lines, (words.STATUS, flags or str(words.NONE)))]


def error_text(row: Row) -> str:
    """The rounding error of a row in words."""
    if row.error is None:
        same = row.stored is not None and (
            row.stored.kind == row.given.kind or (row.stored.is_nan and row.given.is_nan)
        )
        undefined = row.stored is None or row.stored.is_nan
        return str(words.NONE if same else words.UNDEFINED if undefined else words.INFINITE)
    if row.error == 0 or row.error_ulp is None:
        return str(words.NO_ERROR)
    text = str(words.IN_ULPS.fill(ulps=signed(row.error_ulp), absolute=signed(row.error)))
    if row.relative_error is not None:
        text += str(words.RELATIVE.fill(relative=signed(row.relative_error, 3)))
    return text
