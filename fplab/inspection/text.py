"""An inspection as aligned text for a terminal."""

from __future__ import annotations

import textwrap
from fractions import Fraction
from typing import TYPE_CHECKING

from ..formats import Rounding
from .numerals import binary_text, near_text, number_text, signed
from .rows import Row

if TYPE_CHECKING:
    from . import Inspection

ROUNDING_WORDS = {
    Rounding.RNE: "to nearest, ties to even",
    Rounding.RNA: "to nearest, ties away from zero",
    Rounding.RTZ: "toward zero",
    Rounding.RTP: "toward +infinity",
    Rounding.RTN: "toward -infinity",
    Rounding.ODD: "to odd",
}
ULP_MEANS = "ulp: the spacing of the format's values in the binade of the stored value."
WIDTH = 100


def text_of(seen: Inspection) -> str:
    """The heading, a block for each format, and what an ulp is."""
    width = max(len(row.format.name) for row in seen.rows)
    return "\n\n".join([heading(seen), *(_row_text(row, width) for row in seen.rows), ULP_MEANS])


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
    return f"{seen.given.text}{ratio}: {seen.given.how}\nrounded {ROUNDING_WORDS[seen.rounding]}"


def _row_text(row: Row, name_width: int) -> str:
    """The block of one format."""
    indent = " " * (name_width + 2)
    if row.code is None:
        return f"{row.format.name:<{name_width}}  {row.problem}"
    lines = [f"{row.format.name:<{name_width}}  {row.strip}", f"{row.hex}  {row.class_name}"]
    beside = "  ".join(lines)
    lines = [beside] if len(beside) <= WIDTH else [lines[0], indent + lines[1]]
    for label, text in facts(row):
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"{indent}{label:<6} ",
            subsequent_indent=indent + " " * 7,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def facts(row: Row) -> list[tuple[str, str]]:
    """The labelled lines below a bit strip."""
    assert row.stored is not None
    value = number_text(row.stored)
    if row.value is not None and (row.value.denominator > 1 or len(value) > 12):
        value += f" = {binary_text(row.value)}"
    lines = [("value", value), ("error", error_text(row))]
    if not row.stored.is_nan:
        lines += [("below", near_text(row.below)), ("above", near_text(row.above))]
    return [*lines, ("flags", ", ".join(row.flag_names) or "none")]


def error_text(row: Row) -> str:
    """The rounding error of a row in words."""
    if row.error is None:
        same = row.stored is not None and (
            row.stored.kind == row.given.kind or (row.stored.is_nan and row.given.is_nan)
        )
        return "none" if same else "undefined" if row.stored is None or row.stored.is_nan else "infinite"
    if row.error == 0 or row.error_ulp is None:
        return "0 (exact)"
    relative = "" if row.relative_error is None else f", relative {signed(row.relative_error, 3)}"
    return f"{signed(row.error_ulp)} ulp, absolute {signed(row.error)}{relative}"
