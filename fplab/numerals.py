"""Exact numbers as text: every digit, as a ratio, or short."""

import decimal
from fractions import Fraction
from typing import Protocol

from .errors import door, integer
from .exact import Exact
from .words import say, say_of


def decimal_text(x: Fraction) -> str:
    """Every digit of a number whose denominator is a power of two; scientific where that is shorter to read.

    >>> decimal_text(Fraction(819, 8192))
    '0.0999755859375'
    """
    sign, x = ("-" if x < 0 else ""), abs(x)
    fraction_digits = x.denominator.bit_length() - 1
    assert x.denominator == 1 << fraction_digits, "only binary fractions end in decimal"
    digits = str(x.numerator * 5**fraction_digits)
    if len(digits) > fraction_digits and len(digits) <= 25 + fraction_digits:
        whole, part = digits[: len(digits) - fraction_digits], digits[len(digits) - fraction_digits :]
        return f"{sign}{whole}" + (f".{part}" if fraction_digits else "")
    if x and fraction_digits - len(digits) < 6 and len(digits) <= fraction_digits:
        return f"{sign}0.{digits.rjust(fraction_digits, '0')}"
    exponent = len(digits) - 1 - fraction_digits
    rest = digits[1:].rstrip("0")
    return f"{sign}{digits[0]}{'.' if rest else ''}{rest}e{exponent:+d}"


def binary_text(x: Fraction) -> str:
    """A binary fraction as a ratio while that is short, and as an odd integer times a power of two."""
    if x == 0:
        return "0"
    digits = x.denominator.bit_length() - 1
    shift = (abs(x.numerator) & -abs(x.numerator)).bit_length() - 1 - digits
    scaled = x / Fraction(2) ** shift
    product = f"2^{shift}" if scaled == 1 else f"-2^{shift}" if scaled == -1 else f"{scaled.numerator}·2^{shift}"
    if abs(x.numerator) < 10**9 and x.denominator < 10**9:
        return str(x) if shift == 0 else f"{x} = {product}"
    return product


@door
def short(x: Fraction, digits: int = 6) -> str:
    """A rational number to some significant digits, whatever its exponent."""
    x, digits = Fraction(int(x.numerator), int(x.denominator)), integer("digits", digits, 1, 1000)
    context = decimal.Context(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
    quotient = context.divide(decimal.Decimal(x.numerator), decimal.Decimal(x.denominator))
    if x and not -5 <= quotient.adjusted() < digits:
        mantissa, _, exponent = f"{quotient:.{digits - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent):+d}"
    plain = f"{quotient:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def signed(x: Fraction, digits: int = 6) -> str:
    return "0" if x == 0 else ("+" if x > 0 else "") + short(x, digits)


@door
def number_text(x: Exact) -> str:
    """A stored number with every digit, and its sign where zero or infinity has one; data, so in English."""
    sign = "-" if x.negative else ""
    if x.kind == "finite":
        return f"{sign}0" if x.is_zero else decimal_text(x.value)
    return {"inf": f"{sign}inf", "nan": "NaN", "snan": "signalling NaN"}[x.kind]


def shown(x: Exact) -> str:
    return str(say("signalling NaN")) if x.kind == "snan" else number_text(x)


def near_text(x: Exact | None) -> str:
    """A neighbour: exact while that is short, else to 17 digits with a sign that it goes on."""
    if x is None:
        return str(say_of("words", "none"))
    text = shown(x)
    return text if len(text) <= 28 or x.kind != "finite" else f"≈ {short(x.value, 17)}"


class Coded(Protocol):
    """Whatever has codes of so many bits."""

    @property
    def bits(self) -> int: ...


def hex_code(code: int, fmt: Coded) -> str:
    """A code in hexadecimal, as many digits as the format's bits need."""
    return f"0x{code:0{-(-fmt.bits // 4)}x}"
