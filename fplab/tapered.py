"""Formats whose precision tapers: posits and linear takums, most exact near 1, without overflow or underflow.

A positive code is a **prefix** that says the exponent, long for exponents far from 0, and as much of the fraction as
there is room for; a negative number has its magnitude's two's complement. All codes are numbers but one, NaR, which is
read as NaN. Rounding is to nearest, that is to the code below or above by the bits that a longer code would have, ties
to the even code; what is no zero becomes none, and what is beyond the largest number becomes it::

    >>> from fplab import tapered
    >>> tapered.decode(tapered.encode([1 / 3, 1e30, -1e-30], "posit16"), "posit16").tolist()
    [0.3333740234375, 7.205759403792794e+16, -1.3877787807814457e-17]
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from .arrays import code_dtype, values
from .errors import LabError, door, own_integer, quotes_call, summary, unknown
from .lazily import index

__all__ = ["TABLE", "Tapered", "decode", "encode", "get"]

index(__name__)

Array = np.ndarray[Any, Any]
WIDE = 63  # bits of a magnitude that no code of the table needs
POSITS = "Standard for Posit Arithmetic (2022)"
DRAFT = "Gustafson and Yonemoto 2017, as SoftPosit has it"
TAKUMS = "Hunhold 2024, Beating Posits at Their Own Game (arXiv 2404.18603), the linear form"


@door
@dataclass(frozen=True)
class Tapered:
    """A format of tapered precision, ``bits`` (3 to 40) wide, by any name.

    ``exponent_bits``: of a posit's prefix, 0 to 4; None for a linear takum. ``source``: where it is defined.
    """

    name: str
    bits: int
    exponent_bits: int | None
    source: str = ""

    def __post_init__(self) -> None:
        own_integer(self, "bits", 3, 40)
        if self.exponent_bits is not None:
            own_integer(self, "exponent_bits", 0, 4)

    @property
    def emax(self) -> int:
        """Exponent of the largest number."""
        return 254 if self.exponent_bits is None else (self.bits - 2) << self.exponent_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest positive number, and of what is nearest to it."""
        return -255 if self.exponent_bits is None else -self.emax

    @property
    def nar_code(self) -> int:
        """The code that is no real number."""
        return 1 << (self.bits - 1)

    def prefix(self, exponent: int) -> str:
        """The bits that say an exponent."""
        if self.exponent_bits is not None:
            run, rest = divmod(exponent, 1 << self.exponent_bits)
            regime = "1" * (run + 1) + "0" if run >= 0 else "0" * -run + "1"
            return regime + (f"{rest:0{self.exponent_bits}b}" if self.exponent_bits else "")
        size = (exponent + 1 if exponent >= 0 else -exponent).bit_length() - 1
        rest = exponent + 1 - (1 << size) if exponent >= 0 else exponent - 1 + (2 << size)
        return f"{int(exponent >= 0)}{size if exponent >= 0 else 7 - size:03b}" + (f"{rest:0{size}b}" if size else "")

    @cached_property
    def starts(self) -> tuple[Array, Array]:
        """By exponent the magnitude, as wide as :data:`WIDE`, with which its numbers begin, and the fraction's bits."""
        prefixes = [self.prefix(e) for e in range(self.emin, self.emax + 1)]
        rooms = [WIDE - len(prefix) for prefix in prefixes]
        starts = [int(prefix, 2) << room for prefix, room in zip(prefixes, rooms, strict=True)]
        return np.array(starts, np.int64), np.array(rooms, np.int64)


TABLE: tuple[Tapered, ...] = (
    *(Tapered(f"posit{bits}", bits, 2, POSITS) for bits in (8, 16, 32)),
    Tapered("posit8_es0", 8, 0, DRAFT),
    Tapered("posit16_es1", 16, 1, DRAFT),
    *(Tapered(f"takum{bits}", bits, None, TAKUMS) for bits in (8, 16, 32)),
)
"""Every such format, a record each."""
_BY_NAME = {form.name: form for form in TABLE}


@door
def get(fmt: Tapered | str) -> Tapered:
    """The record of a name, or the record."""
    if isinstance(fmt, Tapered):
        return fmt
    if not isinstance(fmt, str) or fmt.strip().lower() not in _BY_NAME:
        raise unknown("format", fmt, _BY_NAME)
    return _BY_NAME[fmt.strip().lower()]


@quotes_call
def encode(x: Any, fmt: Tapered | str) -> Any:
    """The codes of values rounded to a format, unsigned integers of the shape of x; NaN and infinities are NaR."""
    form, given = get(fmt), values(x)
    v = given.flat.astype(np.float64)
    starts, rooms = form.starts
    finite = np.isfinite(v)
    fraction, exponent = np.frexp(np.where(finite, np.abs(v), 0))
    exponent = exponent.astype(np.int64) - 1
    at = np.clip(exponent, form.emin, form.emax) - form.emin
    steps = np.ldexp(2 * fraction - (v != 0), rooms[at])
    whole = np.where(finite & (v != 0), steps, 0).astype(np.int64)
    magnitude, shift = starts[at] + whole, WIDE + 1 - form.bits
    rest, half = magnitude & ((1 << shift) - 1), 1 << (shift - 1)
    code = magnitude >> shift
    code += (rest > half) | ((rest == half) & ((steps != whole) | (code & 1 == 1)))
    code = np.where(exponent < form.emin, 1, np.where(exponent > form.emax, form.nar_code - 1, code))
    code = np.clip(code, 1, form.nar_code - 1) * np.where(v < 0, -1, 1)
    code = np.where(finite, np.where(v == 0, 0, code), form.nar_code)
    return (code & (2 * form.nar_code - 1)).astype(code_dtype(form.bits)).reshape(given.shape)[()]


@quotes_call
def decode(codes: Any, fmt: Tapered | str) -> Any:
    """The values of codes, float64 of their shape, exact; NaR is NaN."""
    form = get(fmt)
    code = np.asarray(codes)
    if code.dtype.kind not in "iu" or (code.size and not 0 <= int(code.min()) <= int(code.max()) < 2 * form.nar_code):
        raise LabError(f"codes={summary(codes)} are not possible; allowed: integers from 0 to {2 * form.nar_code - 1}.")
    shape, flat = code.shape, code.astype(np.int64).reshape(-1)
    nar = flat == form.nar_code
    code = np.where(nar, 0, flat)
    negative = code > form.nar_code
    magnitude = np.where(negative, 2 * form.nar_code - code, code) << (WIDE + 1 - form.bits)
    starts, rooms = form.starts
    at = np.searchsorted(starts, magnitude, "right") - 1
    size = np.ldexp(1 + np.ldexp((magnitude - starts[at]).astype(np.float64), -rooms[at]), at + form.emin)
    size = np.where(nar, np.nan, np.where(code == 0, 0, size))
    return np.where(negative, -size, size).reshape(shape)[()]


# --- the same, as the standards read --------------------------------------------------------------------------------
def value_of(code: int, fmt: Tapered) -> Fraction | None:
    """The value of a code by its bits, one after the other; None of NaR."""
    if code in (0, fmt.nar_code):
        return None if code else Fraction(0)
    sign, magnitude = (-1, 2 * fmt.nar_code - code) if code > fmt.nar_code else (1, code)
    bits = iter(f"{magnitude:0{fmt.bits - 1}b}" + "0" * 20)  # what is not there is 0

    def number(count: int) -> int:
        return int("0" + "".join(next(bits) for _ in range(count)), 2)

    if fmt.exponent_bits is None:
        direction, regime = number(1), number(3)
        size = regime if direction else 7 - regime
        rest = number(size)
        exponent = (1 << size) - 1 + rest if direction else -(2 << size) + 1 + rest
    else:
        text = f"{magnitude:0{fmt.bits - 1}b}"
        run = len(text) - len(text.lstrip(text[0]))
        number(min(run + 1, fmt.bits - 1))  # and the bit that ends it
        exponent = ((run - 1 if text[0] == "1" else -run) << fmt.exponent_bits) + number(fmt.exponent_bits)
    fraction = "".join(bits)
    return sign * (1 + Fraction(int("0" + fraction, 2), 1 << len(fraction))) * Fraction(2) ** exponent


def nearest(x: Fraction, fmt: Tapered) -> int:
    """The code of a number by the definition: of its neighbours u and w the one on its side of u1, one bit longer."""
    if x <= 0:
        return -nearest(-x, fmt) % (2 * fmt.nar_code) if x else 0
    low, high = 1, fmt.nar_code - 1
    while low < high:  # the largest code whose value is at most x, or the smallest
        middle = (low + high + 1) // 2
        low, high = (middle, high) if (value_of(middle, fmt) or 0) <= x else (low, middle - 1)
    longer = Tapered("", fmt.bits + 1, fmt.exponent_bits)
    if low == fmt.nar_code - 1 or x <= (value_of(low, fmt) or 0):
        return low
    middle_value = value_of(2 * low + 1, longer) or Fraction(0)
    return low + (x > middle_value or (x == middle_value and low & 1))
