"""One value in one format: code, stored value, error, neighbours, flags."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from .. import exact
from ..draw.page import Said
from ..errors import LabError, door
from ..exact import Exact
from ..formats import Format, Overflow, Rounding, overflow
from ..numerals import hex_code, number_text
from ..words import NOTHING, Text, say, verbatim
from .given import Given

CLASSES = {
    "normal": say("normal"),
    "subnormal": say("subnormal"),
    "zero": say("zero"),
    "infinite": say("infinite"),
    "quiet NaN": say("quiet NaN"),
    "signalling NaN": say("signalling NaN"),
}


Fields = tuple[tuple[str, str], ...]


class Encoding(Protocol):
    """A way to read a code of ``bits`` bits. ``scale``: what one unit of it is worth (1 for floats)."""

    @property
    def name(self) -> str: ...

    @property
    def scaled(self) -> bool: ...

    @property
    def bits(self) -> int: ...

    def fields(self, code: int) -> Fields: ...

    def value(self, code: int, scale: float) -> Exact: ...

    def nearest(self, x: Exact, scale: float) -> int:
        """The code of the value nearest to x; LabError where there is none."""
        ...

    def neighbour(self, code: int, up: bool) -> int | None: ...

    def kind(self, code: int) -> Said: ...

    def formula(self, code: int) -> Said:
        """How the bits make the value."""
        ...


@dataclass(frozen=True)
class Row:
    """The value in one format, or in integers or a codebook of one ``scale``.

    ``code``: None when the format cannot hold the value at all (``reason`` says why). ``stored``: what the code
    means. ``error``: stored minus given, exact; None unless both are finite. ``ulp``: spacing in the stored value's
    binade. ``below`` and ``above``: the neighbouring values (infinities included), None at an end. ``flags``: the
    IEEE 754 flags of the conversion, as TestFloat counts them.
    """

    format: Format | Encoding
    given: Exact
    code: int | None
    stored: Exact | None
    error: Fraction | None
    relative_error: Fraction | None
    ulp: Fraction | None
    below: Exact | None
    above: Exact | None
    flags: int
    reason: Text = NOTHING
    scale: float = 1.0

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """The bits by field: (name, digits), fields of no bits left out."""
        if self.code is None:
            return ()
        form = self.format
        return bit_fields(self.code, form) if isinstance(form, Format) else form.fields(self.code)

    @property
    def strip(self) -> str:
        """The bits with a space between fields: ``0 01111 0000000000``."""
        return " ".join(digits for _, digits in self.fields)

    @property
    def hex(self) -> str:
        """The code in hexadecimal, padded to the format's width; empty without a code."""
        return "" if self.code is None else hex_code(self.code, self.format)

    @property
    def value(self) -> Fraction | None:
        return self.stored.value if self.stored is not None and self.stored.kind == "finite" else None

    @property
    def error_ulp(self) -> Fraction | None:
        return None if self.error is None or self.ulp is None else self.error / self.ulp

    @property
    def class_name(self) -> str:
        """normal, subnormal, zero, infinite, quiet NaN, signalling NaN, or not representable; else what a code is."""
        if self.stored is None:
            return "not representable"
        return classify(self.stored, self.format) if isinstance(self.format, Format) else self.kind.en

    @property
    def kind(self) -> Text:
        """What the code is, to be shown."""
        if self.code is None or isinstance(self.format, Format):
            return CLASSES[self.class_name]
        kind = self.format.kind(self.code)
        return kind if isinstance(kind, Text) else verbatim(kind)

    @property
    def problem(self) -> str:
        """Why the format cannot hold the value, in English; empty with a code."""
        return self.reason.en

    @property
    def flag_names(self) -> tuple[str, ...]:
        return tuple(name for bit, name in exact.FLAG_NAMES.items() if self.flags & bit)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the code an integer, numbers as text, stored ones with every digit, the others as ratios."""

        def ratio(x: Fraction | None) -> str | None:
            return None if x is None else str(x)

        def digits(x: Exact | None) -> str | None:
            return None if x is None else number_text(x)

        return {
            "format": self.format.name,
            "code": self.code,
            "hex": self.hex,
            "bits": self.strip,
            "class": self.class_name,
            "value": digits(self.stored),
            "fraction": ratio(self.value),
            "error": ratio(self.error),
            "relative_error": ratio(self.relative_error),
            "ulp": ratio(self.ulp),
            "error_ulp": ratio(self.error_ulp),
            "below": digits(self.below),
            "above": digits(self.above),
            "flags": list(self.flag_names),
            "problem": self.problem,
            **({} if isinstance(self.format, Format) else {"scale": self.scale}),
        }


@door
def bit_fields(code: int, fmt: Format) -> tuple[tuple[str, str], ...]:
    """The digits of a code by field.

    >>> bit_fields(0x3C00, fplab.formats.get("fp16"))
    (('sign', '0'), ('exponent', '01111'), ('fraction', '0000000000'))
    """
    digits = f"{code:0{fmt.bits}b}"
    start = int(fmt.signed)
    parts = (
        ("sign", digits[:start]),
        ("exponent", digits[start : start + fmt.exponent_bits]),
        ("fraction", digits[start + fmt.exponent_bits :]),
    )
    return tuple(part for part in parts if part[1])


def classify(x: Exact, fmt: Format) -> str:
    """What IEEE 754 calls the class of a number that ``fmt`` holds, the sign apart."""
    if x.kind != "finite":
        return {"inf": "infinite", "nan": "quiet NaN", "snan": "signalling NaN"}[x.kind]
    if x.is_zero:
        return "zero"
    return "subnormal" if x.magnitude < Fraction(2) ** fmt.emin else "normal"


def spacing(x: Exact, fmt: Format) -> Fraction:
    """The distance between neighbouring values of ``fmt`` in the binade of a finite x (of the subnormals for zero)."""
    exponent = fmt.emin if x.is_zero else max(exact.floor_log2(x.magnitude), fmt.emin)
    return Fraction(2) ** (exponent - fmt.fraction_bits)


def neighbours(code: int, fmt: Format) -> tuple[Exact | None, Exact | None]:
    """The next values below and above that of a code; None at an end and for NaN. Both zeros are one value."""
    if exact.decode(code, fmt).is_nan:
        return None, None
    top = fmt.max_code if fmt.inf_code is None else fmt.inf_code
    magnitude = code & ~fmt.sign_mask
    first_negative = 0 if fmt.zero else 1  # without a zero, the smallest values of both signs are neighbours
    place = -(magnitude + first_negative) if code & fmt.sign_mask else magnitude
    lowest = -(top + first_negative) if fmt.signed else 0

    def at(i: int) -> Exact | None:
        if not lowest <= i <= top:
            return None
        return exact.decode(i if i >= 0 else fmt.sign_mask | (-i - first_negative), fmt)

    return at(place - 1), at(place + 1)


def look_up(given: Given, fmt: Format, mode: Rounding, policy: Overflow | str | None) -> Row:
    """One format's row. A code of this very format is shown as it is; everything else is rounded."""
    policy = overflow(policy, fmt)
    if given.code is not None and given.code[0] == fmt:
        code, flags = given.code[1], 0
    else:
        try:
            code, flags = exact.round_to(given.value, fmt, mode, policy)
        except LabError:
            reason = _reason(given.value, fmt)
            return Row(fmt, given.value, None, None, None, None, None, None, None, exact.INVALID, reason)
        flags |= exact.INVALID if given.value.kind == "snan" else 0
    stored = exact.decode(code, fmt)
    error = relative = ulp = None
    if stored.kind == "finite":
        ulp = spacing(stored, fmt)
        if given.value.kind == "finite":
            error = stored.value - given.value.value
            relative = error / given.value.magnitude if not given.value.is_zero else None
    below, above = neighbours(code, fmt)
    return Row(fmt, given.value, code, stored, error, relative, ulp, below, above, flags)


def _reason(x: Exact, fmt: Format) -> Text:
    if x.is_nan:
        return say("{format} has no NaN", format=fmt.name)
    if x.is_zero:
        return say("{format} has no zero and no NaN to say so", format=fmt.name)
    return say("{format} has no sign and no NaN to say so", format=fmt.name)
