"""The bit strip: a code drawn bit by bit, its fields apart, tinted and named."""

from collections.abc import Sequence

from ..words import say
from .page import after_colon, listed
from .scene import BLUE, GREEN, MONO, PURPLE, RED, Scene

Fields = Sequence[tuple[str, str]]
DIFFERS = {"font_weight": "bold", "text_decoration": "underline"}
YELLOW = "#d69e14"
FILLS = {"sign": RED, "exponent": YELLOW, "zeros": YELLOW, "indicator": GREEN, "fraction": BLUE, "index": PURPLE}
FIELD_NAMES = {
    "sign": say("sign"), "exponent": say("exponent"), "fraction": say("fraction"), "zeros": say("zeros"),
    "indicator": say("indicator"), "integer": say("integer"), "index": say("index"), "bits": say("bits"),
}  # fmt: skip


BIT = "fplab-bit"  # the class of a button that is a bit; its field's name follows in another
BUTTONS = "".join(  # as the boxes below: a 1 is full
    f".jupyter-widgets.{BIT}-{name}{{background:{fill}29;color:inherit}}"
    f".jupyter-widgets.{BIT}-{name}.mod-active{{background:{fill}80;color:inherit;font-weight:bold}}"
    for name, fill in {**FILLS, "integer": BLUE}.items()
)


def field_name(name: str) -> str:
    return str(FIELD_NAMES.get(name, name))


def bit_strip(fields: Fields, of: str, other: Fields = ()) -> Scene:
    """The digits of a code by field, a full box a 1. ``of``: whose code it is, for those who hear it.

    ``other``: a code with the same fields; digits that differ from its are bold and underlined.
    """
    spoken = after_colon(of, listed(*(f"{field_name(name)} {digits}" for name, digits in fields)))
    bits = sum(len(digits) for _, digits in fields)
    cell = 16 if bits <= 16 else 13 if bits <= 32 else 8
    drawing = Scene(8 + sum(cell * len(digits) + 8 for _, digits in fields), 42, spoken)
    x, alike = 4.0, [len(digits) for _, digits in other] == [len(digits) for _, digits in fields]
    for field, (name, digits) in enumerate(fields):
        for i, digit in enumerate(digits):
            drawing.rect(x + i * cell, 1, cell, 23, FILLS.get(name, BLUE), fill_opacity=0.5 if digit == "1" else 0.16,
                         stroke="currentColor", stroke_opacity=0.4)  # fmt: skip
            differs = DIFFERS if alike and digit != other[field][1][i] else {}
            drawing.text(x + (i + 0.5) * cell, 17, digit, "middle", 13, font_family=MONO, class_="bit", **differs)
        width = cell * len(digits)
        shown = field_name(name)
        short = shown if width >= 6 * len(shown) else shown[:4] if len(digits) > 1 else shown[0]
        drawing.text(x + width / 2, 38, short, "middle", 11, opacity=0.85)
        x += width + 8
    return drawing
