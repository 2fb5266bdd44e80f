"""One value in many formats: its bits, what they hold exactly, how far that is from what was given, and the flags.

>>> seen = inspect("0.1", "fp16")
>>> seen.rows[0].strip, seen.rows[0].value
('0 01011 1001100110', Fraction(819, 8192))

Everything is computed on Python integers and Fractions (:mod:`fplab.exact`); nothing passes through a float.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import LabError, quotes_call, unknown
from ..formats import Format, FormatLike, Overflow, Rounding, get, spelt
from ..formats import rounding as rounding_of
from ..language import in_each
from ..lazily import index
from ..numerals import number_text, short
from ..words import say
from .given import Given, parse
from .notebook import html_of
from .rows import Encoding, Row, bit_fields, look_up
from .text import text_of

__all__ = ["Given", "Inspection", "Row", "bit_fields", "inspect", "number_text", "short"]

index(__name__)

OTHERS = ("int8", "int4", "uint8", "dynamic_tree", "dynamic", "nf4")
DEFAULT_FORMATS = ("fp32", "fp16", "bf16", "tf32", "e4m3", "e5m2")


@dataclass(frozen=True)
class Inspection:
    """A value in several formats: text when printed, HTML in a notebook, data as ``rows`` and ``to_dict``.

    Text is in the language that :func:`fplab.lang` chose, HTML in both for the page to choose; data is in English.
    """

    given: Given
    rounding: Rounding
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        value = self.given.value
        return {
            "given": self.given.text,
            "taken_as": self.given.how.en,
            "exact": str(value.value) if value.kind == "finite" else number_text(value),
            "rounding": self.rounding.value,
            "formats": [row.to_dict() for row in self.rows],
        }

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return text_of(self.given, self.rounding, self.rows)

    def _repr_html_(self) -> str:
        return in_each(lambda: html_of(self.given, self.rounding, self.rows))


@quotes_call
def inspect(
    value: Any, formats: FormatLike | Iterable[FormatLike] = DEFAULT_FORMATS, rounding: str | Rounding = "rne",
    overflow: str | Overflow | None = None, scale: float = 1.0,
) -> Inspection:  # fmt: skip
    """Show one value in several formats: bits, exact value, error, neighbours, flags.

    ``value``: a number (float, int, Fraction, Decimal, a NumPy or torch scalar), or a text: a decimal such as
    ``"0.1"``, taken exactly, so that the error is against the true decimal (the float ``0.1`` is already rounded to
    float64, and the error is against that); a ratio ``"1/3"``; a power of two ``"2^-14"``, ``"1.5·2^-14"``; a
    hexadecimal float ``"0x1.8p3"``; ``"inf"``, ``"nan"``; or a code, ``"fp16:0x3c00"``, ``"fp16:0b0011110000000000"``.
    ``formats``: names or records; also "int8", "int4", "uint8", "dynamic_tree", "dynamic", "nf4", which round to the
    nearest value and clip. ``scale``: what one unit of those integers is worth, and the largest magnitude of a block.
    ``rounding``: any but stochastic. ``overflow``: None is each format's own policy.

    The error is stored minus given; an ulp is the spacing of the format in the binade of the *stored* value. Flags
    are those of an IEEE 754 conversion, underflow where the result is tiny after rounding and inexact.

    >>> print(inspect("0.1", "fp16").rows[0].hex)
    0x2e66
    """
    given_formats: Any = spelt(formats)
    if not isinstance(given_formats, str | Format | Iterable):
        raise LabError(f"formats={formats!r} names no format; allowed: a name, a record, or several.")
    records = tuple(_named(f) for f in ([given_formats] if isinstance(given_formats, str | Format) else given_formats))
    if not records:
        raise LabError("no format was given; allowed: one or more names or records.")
    mode = _rounding(rounding)
    given = parse(value, [fmt for fmt in records if isinstance(fmt, Format)])
    others = [fmt.name for fmt in records if not isinstance(fmt, Format)]
    if others and (mode is not Rounding.RNE or overflow is not None):
        raise LabError(f"{others[0]} rounds to nearest and clips; rounding= and overflow= are floating-point formats'.")
    if scale != 1 and not others:
        raise LabError(f"scale={scale!r} changes nothing here; it is for {', '.join(OTHERS)}.")
    if not 1e-30 <= scale <= 1e30:
        raise LabError(f"scale={scale!r} is not possible; allowed: 1e-30 to 1e30.")
    rows = (
        look_up(given, form, mode, overflow) if isinstance(form, Format) else _other(given, form, scale)
        for form in records
    )
    return Inspection(given, mode, tuple(rows))


def _named(name: FormatLike) -> Format | Encoding:
    """A format, or integers or a codebook by name."""
    name = spelt(name)
    if isinstance(name, str) and name.strip().lower() in OTHERS:
        from . import encodings  # which imports codebooks

        return encodings.get(name.strip().lower())
    try:
        return get(name)
    except LabError as error:
        also = say(" Here also: {names}.", names=", ".join(OTHERS))
        raise LabError(f"{error}{also}") from None


def _other(given: Given, encoding: Encoding, scale: float) -> Row:
    from .encodings import look_up

    return look_up(given, encoding, scale)


def _rounding(mode: str | Rounding) -> Rounding:
    names = [r.value for r in Rounding if not r.random]
    try:
        record = rounding_of(mode)
    except LabError:
        raise unknown("rounding", mode, names) from None
    if record.random:
        text = "a stochastic rounding has two answers: the neighbours that inspect shows"
        raise LabError(f"{text}. Allowed: {', '.join(names)}.")
    return record
