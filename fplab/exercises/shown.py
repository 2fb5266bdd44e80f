"""A value as a report shows it: its text, and its bits by field where it has a format."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import exact
from ..formats import get
from ..inspection import bit_fields

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Shown:
    """``text``: the value in words or digits. ``fields``: (name, binary digits) pairs. ``of``: the format's name."""

    text: str
    fields: Fields = ()
    of: str = ""

    @property
    def strip(self) -> str:
        """The bits, a space between fields."""
        return " ".join(digits for _, digits in self.fields)


def number(x: float) -> str:
    """A float with every digit that matters, and as an integer times a power of two where that is short.

    >>> number(2.0**-24), number(0.5), number(float("-inf"))
    ('5.960464477539063e-08 = 2^-24', '0.5', '-inf')
    """
    plain = repr(float(x))
    if not math.isfinite(x) or x == 0:
        return plain.replace("nan", "NaN")
    value = Fraction(x)
    odd, shift = value.numerator, 1 - value.denominator.bit_length()
    while odd % 2 == 0:
        odd, shift = odd // 2, shift + 1
    if -8 <= shift <= 16 or abs(odd) > 4095:
        return plain.removesuffix(".0")
    power = f"2^{shift}"
    return f"{plain.removesuffix('.0')} = {({1: '', -1: '-'}).get(odd, f'{odd}·')}{power}"


def of_code(code: int, fmt: str) -> Shown:
    """A code with the number that it stands for."""
    form, value = get(fmt), exact.decode(code, fmt)
    if value.kind != "finite":
        text = ("-" if value.negative else "") + {"inf": "inf"}.get(value.kind, "NaN")
    else:
        text = number(-float(value.magnitude) if value.negative else float(value.magnitude))
    return Shown(text, bit_fields(code, form), form.name)


def of_float(x: float, fmt: str) -> Shown:
    """A float with its bits in a format, if the format represents it."""
    code = code_of(x, fmt)
    return Shown(number(x)) if code is None else Shown(number(x), of_code(code, fmt).fields, fmt)


def code_of(x: float, fmt: str) -> int | None:
    """The code of a float that a format represents (NaN: the canonical one), else None."""
    form = get(fmt)
    if math.isnan(x):
        return form.nan_code
    if math.isinf(x):
        return None if form.inf_code is None else form.inf_code | (form.sign_mask if x < 0 else 0)
    if (x < 0 or math.copysign(1, x) < 0) and not form.has_negative_zero and (x == 0 or not form.signed):
        return None
    if x == 0:
        return None if not form.zero else form.sign_mask if math.copysign(1, x) < 0 else 0
    exponent = max(math.frexp(x)[1] - 1, form.emin)
    units = math.ldexp(abs(x), form.fraction_bits - exponent)
    code = int(units) + (exponent - form.emin - (not form.zero) << form.fraction_bits)
    if units % 1 or not 0 <= code <= form.max_code:
        return None
    return code | (form.sign_mask if x < 0 else 0)


def of_whole(value: int, hexadecimal: bool = False) -> str:
    """An integer's digits, or its size where they would fill the page.

    >>> of_whole(255, hexadecimal=True), of_whole(-(10**5000))
    ('0xff', '≈ -2^16610')
    """
    if abs(value) < 1 << 256:
        return f"{value:#x}" if hexadecimal else str(value)
    return f"≈ {'-' if value < 0 else ''}2^{round(math.log2(abs(value)))}"


def of_integer(value: int, bits: int) -> Shown:
    """An integer with its binary digits, at least ``bits`` of them (none where ``bits`` is 0)."""
    if not bits or value < 0 or value >> 256:
        return Shown(of_whole(value))
    return Shown(str(value), (("bits", f"{value:0{bits}b}"),), "")


def of_any(value: Any) -> Shown:
    """Whatever an answer returned, briefly."""
    try:
        text = repr(value)
    except (Exception, SystemExit):  # a class of the answer's own may fail at this, too
        text = f"<{type(value).__name__}>"
    return Shown(text if len(text) <= 200 else text[:197] + "...")
