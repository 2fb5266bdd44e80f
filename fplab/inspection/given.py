"""What a user asks about: a number, a text or a code, taken exactly."""

import decimal
import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import exact
from ..errors import LabError
from ..exact import Exact, Kind
from ..formats import Format, get
from ..numerals import hex_code, short
from ..words import Text, say

LARGEST_EXPONENT, LONGEST_TEXT, MOST_BITS = 3000, 250, 11_000  # what is worked out exactly; no format comes near

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)
_RATIO = re.compile(r"([+-]?\d+)\s*/\s*(\d+)", re.ASCII)
_HEX = re.compile(r"([+-]?)0x([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?\d+))?", re.ASCII)
_POWER = re.compile(r"([+-]?)(?:(\d+\.?\d*|\.\d+)\s*[*·×]\s*)?2\s*(?:\^|\*\*)\s*([+-]?\d+)", re.ASCII)
ALLOWED = say(
    'a number; a decimal text such as "0.1" or "-2.5e-8", taken exactly; a ratio "1/3"; a power of two "2^-14" or '
    '"1.5·2^-14"; a hexadecimal float "0x1.8p3"; "inf", "nan"; or a code of a format, "fp16:0x3c00" or '
    '"fp16:0b0011110000000000"'
)
_KINDS = say("cannot inspect {type}; allowed: {allowed}.", allowed=ALLOWED)


@dataclass(frozen=True)
class Given:
    """The value that was asked for: ``text``, as given; ``how`` it was taken, in words; its ``code``, if it was one."""

    text: str
    how: Text
    value: Exact
    code: tuple[Format, int] | None = None


def parse(value: Any, formats: Sequence[Format] = ()) -> Given:
    """What the user gave as an exact number. ``formats``: records whose names a code may use, before the table's."""
    given = _parse(value, formats)
    number = given.value.magnitude
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > MOST_BITS:
        rule = say("the number is too large, small or long: inspect works out at most {bits} bits exactly.")
        raise LabError(rule.fill(bits=MOST_BITS))
    return given


def _parse(value: Any, formats: Sequence[Format]) -> Given:
    if isinstance(value, str):
        return _parse_text(value, formats)
    if isinstance(value, bool) or getattr(value, "ndim", 0) != 0:
        raise LabError(_KINDS.fill(type=type(value).__name__))
    if isinstance(value, decimal.Decimal):
        return _parse_text(str(value), formats)
    if isinstance(value, numbers.Rational):
        ratio = Fraction(int(value.numerator), int(value.denominator))
        return Given(short(ratio, 17), say("exact"), exact.of(ratio))
    name = "float64" if type(value) is float else type(value).__name__
    how = say("a {type}, which is already rounded", type=name)
    try:
        ratio = Fraction(*value.as_integer_ratio())  # wider than float for numpy's longdouble
        return Given(str(value), how, exact.of(ratio, math.copysign(1.0, value) < 0))
    except (AttributeError, TypeError, ValueError, OverflowError):  # no such method, a class, NaN, infinity
        pass
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise LabError(_KINDS.fill(type=type(value).__name__)) from None
    return Given(repr(number), how, exact.from_float(number))


def _parse_text(text: str, formats: Sequence[Format]) -> Given:
    word = text.strip().lower().replace("_", "")
    if len(word) > LONGEST_TEXT:
        rule = say("a text of {n} characters is too long; allowed: {most}, or a Fraction.", n=len(word))
        raise LabError(rule.fill(most=LONGEST_TEXT))
    if ":" in word:
        return _parse_code(text.strip(), formats)
    if (bare := word.lstrip("+-")) in ("inf", "infinity", "nan", "snan"):
        negative = word.startswith("-")
        kind: Kind = "inf" if bare.startswith("inf") else "snan" if bare == "snan" else "nan"
        return Given(word, say("as written"), Exact(negative, kind=kind))
    if match := _RATIO.fullmatch(word):
        if int(match[2]) == 0:
            raise LabError(say("{text} divides by zero; allowed: {allowed}.", text=repr(text), allowed=ALLOWED))
        ratio = Fraction(int(match[1]), int(match[2]))
        return Given(word, say("the exact ratio"), exact.of(ratio, word.startswith("-")))
    if (match := _POWER.fullmatch(word)) and _exponent_is_sane(match[3], text):
        value = Fraction(match[2] or 1) * Fraction(2) ** int(match[3]) * (-1 if match[1] == "-" else 1)
        return Given(word, say("the exact multiple of a power of two"), exact.of(value, match[1] == "-"))
    if match := _HEX.fullmatch(word):
        sign, whole, part, power = match.groups()
        if (whole or part) and _exponent_is_sane(power or "0", text):
            digits = int((whole or "") + (part or ""), 16) * (-1 if sign == "-" else 1)
            value = digits * Fraction(2) ** (int(power or 0) - 4 * len(part or ""))
            return Given(word, say("the exact hexadecimal number"), exact.of(value, sign == "-"))
    if match := _DECIMAL.fullmatch(word):
        _exponent_is_sane((match[2] or "e0")[1:], text)
        how = say("the exact decimal as written, not its nearest float")
        return Given(word, how, exact.of(Fraction(word), word[0] == "-"))
    raise LabError(say("cannot read {text} as a value; allowed: {allowed}.", text=repr(text), allowed=ALLOWED))


def _exponent_is_sane(power: str, text: str) -> bool:
    """Whether an exponent is of a size that exact arithmetic can hold; an error if not."""
    if len(power) > 8 or abs(int(power)) > LARGEST_EXPONENT:
        rule = say("the exponent of {text} is beyond ±{most}, the largest that inspect works out exactly.")
        raise LabError(rule.fill(text=repr(text), most=LARGEST_EXPONENT))
    return True


def _parse_code(text: str, formats: Sequence[Format]) -> Given:
    """``FORMAT:0x...``, ``FORMAT:0b...`` or ``FORMAT:123`` as the number that code stands for."""
    name, _, digits = (part.strip() for part in text.partition(":"))
    own = {f.name.lower(): f for f in formats}
    fmt = own.get(name.lower()) or get(name)
    try:
        code = int(digits.replace(" ", ""), 0)
    except ValueError:
        rule = say(
            'cannot read {text} as a code of {format}; allowed: "{format}:0x..." in hexadecimal, "{format}:0b..." in '
            "binary, or a plain integer."
        )
        raise LabError(rule.fill(text=repr(digits), format=fmt.name)) from None
    if not 0 <= code < 1 << fmt.bits:
        last = hex_code((1 << fmt.bits) - 1, fmt)
        rule = say("{text} is not a code of {format}, which has {bits} bits; allowed: 0 to {last}.", text=digits)
        raise LabError(rule.fill(format=fmt.name, bits=fmt.bits, last=last))
    how = say("the number this code of {format} stands for", format=fmt.name)
    return Given(f"{fmt.name}:{hex_code(code, fmt)}", how, exact.decode(code, fmt), (fmt, code))
