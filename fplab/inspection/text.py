"""An inspection as aligned text for a terminal, in the chosen language."""

import textwrap
from collections.abc import Sequence
from fractions import Fraction

from ..columns import padded, width_of
from ..formats import Format, Rounding
from ..numerals import binary_text, near_text, shown, signed
from ..words import say, say_of
from .given import Given
from .rows import Row

WIDTH = 100
FLAGS = {
    "invalid": say("invalid"),
    "divide by zero": say("divide by zero"),
    "overflow": say_of("words", "overflow"),
    "underflow": say("underflow"),
    "inexact": say("inexact"),
}
ROUNDINGS = {mode: say("rounded {how}", how=say(mode.text)) for mode in Rounding if not mode.random}
ULP_MEANS = say("ulp: the spacing of the format's values in the binade of the stored value.")


def text_of(given: Given, rounding: Rounding, rows: Sequence[Row]) -> str:
    width = max(width_of(row.format.name) for row in rows)
    blocks = (_row_text(row, width) for row in rows)
    return "\n\n".join(
        [heading(given, rounding), *blocks, *[str(ULP_MEANS)][: any(isinstance(row.format, Format) for row in rows)]]
    )


def heading(given: Given, rounding: Rounding) -> str:
    value = given.value
    ratio = ""
    digits = str(value.value) if value.kind == "finite" and not value.is_zero else given.text
    if digits != given.text.lstrip("+"):
        if len(digits) <= 60:
            ratio = f" = {digits}"
        elif value.value.denominator & (value.value.denominator - 1) == 0 and value.magnitude >= Fraction(1, 10**400):
            product = binary_text(value.value)
            ratio = f" = {product}" if len(product) <= 60 else ""
    return f"{given.text}{ratio}{say(': ')}{given.how}\n{ROUNDINGS[rounding]}"


def _row_text(row: Row, name_width: int) -> str:
    name, indent = padded(row.format.name, name_width), " " * (name_width + 2)
    if row.code is None:
        return f"{name}  {row.reason}"
    lines = [f"{name}  {row.strip}", f"{row.hex}  {row.kind}"]
    beside = "  ".join(lines)
    lines = [beside] if width_of(beside) <= WIDTH else [lines[0], indent + lines[1]]
    labelled = facts(row)
    labels = max(width_of(label) for label, _ in labelled) + 2
    for label, text in labelled:
        lines += _wrapped(text, indent + padded(label, labels), indent + " " * labels)
    return "\n".join(lines)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    wide = width_of(first + text) - len(first + text)  # textwrap counts characters: as if all of them were on one line
    return textwrap.wrap(text, WIDTH - wide, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def facts(row: Row) -> list[tuple[str, str]]:
    """The labelled lines below a bit strip."""
    assert row.stored is not None
    value = shown(row.stored)
    if row.value is not None and (row.value.denominator > 1 or len(value) > 12):
        value += f" = {binary_text(row.value)}"
    lines = [(say("value"), value), (say("error"), error_text(row))]
    if not row.stored.is_nan:
        lines += [(say("below"), near_text(row.below)), (say("above"), near_text(row.above))]
    if not isinstance(row.format, Format):  # which raises no flags
        assert row.code is not None
        lines += [(say("made of"), str(row.format.formula(row.code))), (say("scale"), f"{row.scale:g}")]
        return [(str(label), text) for label, text in lines]
    flags = str(say_of("between items", ", ")).join(str(FLAGS[name]) for name in row.flag_names)
    return [(str(label), text) for label, text in (*lines, (say("flags"), flags or str(say_of("words", "none"))))]


def error_text(row: Row) -> str:
    """The rounding error of a row in words."""
    if row.error is None:
        same = row.stored is not None and (
            row.stored.kind == row.given.kind or (row.stored.is_nan and row.given.is_nan)
        )
        undefined = row.stored is None or row.stored.is_nan
        return str(say_of("words", "none") if same else say("undefined") if undefined else say("infinite"))
    if row.error == 0:
        return str(say("0 (exact)"))
    if row.error_ulp is None:
        text = str(say("absolute {absolute}", absolute=signed(row.error)))
    else:
        text = str(say("{ulps} ulp, absolute {absolute}", ulps=signed(row.error_ulp), absolute=signed(row.error)))
    if row.relative_error is not None:
        text += str(say(", relative {relative}", relative=signed(row.relative_error, 3)))
    return text
