"""The oracle: rounding and arithmetic on Python integers and :class:`~fractions.Fraction`, as they are defined.

Nothing here is fast and nothing here is shared with the kernels. An exact number is an :class:`Exact`; operations
return the exact result and the flags they raise, and :func:`round_to` delivers it as a code of a format.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from .errors import LabError, door, integer
from .formats import Format, FormatLike, Overflow, Rounding, Specials, get, overflow, rounding
from .lazily import index
from .words import say

__all__ = [
    "NAN", "Exact", "add", "compare", "decode", "div", "dot", "flush", "fma", "from_float", "mul", "neg", "of",
    "round_to", "sqrt_to", "sub",
]  # fmt: skip

index(__name__)

INVALID, DIVZERO, OVERFLOW, UNDERFLOW, INEXACT = 16, 8, 4, 2, 1
FLAG_NAMES = {16: "invalid", 8: "divide by zero", 4: "overflow", 2: "underflow", 1: "inexact"}

Kind = Literal["finite", "inf", "nan", "snan"]


@dataclass(frozen=True)
class Exact:
    """An exact operand or result: a sign, and a magnitude if it is finite.

    ``payload`` of a NaN is its fraction field as a number in [0, 1), so that it can be moved between widths.
    """

    negative: bool
    magnitude: Fraction = Fraction(0)
    kind: Kind = "finite"
    payload: Fraction = Fraction(1, 2)

    @property
    def value(self) -> Fraction:
        """The signed value of a finite number."""
        assert self.kind == "finite"
        return -self.magnitude if self.negative else self.magnitude

    @property
    def is_zero(self) -> bool:
        """Whether this is +0 or -0."""
        return self.kind == "finite" and self.magnitude == 0

    @property
    def is_nan(self) -> bool:
        """Whether this is a NaN, quiet or signalling."""
        return self.kind in ("nan", "snan")


NAN = Exact(False, kind="nan")
"""The quiet NaN."""


@door
def of(value: Fraction, zero_negative: bool = False) -> Exact:
    """A Fraction as an Exact; a zero takes the sign given."""
    return Exact(value < 0 or (value == 0 and zero_negative), abs(value))


@door
def from_float(x: float) -> Exact:
    """A Python float as an Exact (its NaN is quiet)."""
    x = float(x)
    negative = math.copysign(1.0, x) < 0
    if math.isnan(x):
        return Exact(negative, kind="nan")
    if math.isinf(x):
        return Exact(negative, kind="inf")
    return Exact(negative, abs(Fraction(x)))


# --- codes ----------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1 << 12)
def two_to(exponent: int) -> Fraction:
    """A power of two: kept, since everything here asks for a few of them again and again."""
    return Fraction(2) ** exponent


@lru_cache(maxsize=1 << 17)
def magnitude_of(code: int, fmt: Format) -> Fraction:
    """The value of a magnitude code, as if the exponent field had no upper end."""
    field, units = divmod(code, 1 << fmt.fraction_bits)
    last = fmt.emin - fmt.fraction_bits  # the exponent of the last digit
    if field or not fmt.zero:
        units += 1 << fmt.fraction_bits
        last += field - int(fmt.zero)
    return Fraction(units << last) if last >= 0 else Fraction(units, 1 << -last)


@door
def decode(code: int, fmt: FormatLike) -> Exact:
    """What a code means."""
    fmt = get(fmt)
    code = integer("code", code, 0, (1 << fmt.bits) - 1, f", the codes of {fmt.name}")
    negative = bool(code & fmt.sign_mask)
    magnitude = code & ~fmt.sign_mask
    if fmt.specials in (Specials.NEGATIVE_ZERO, Specials.SINGLE) and code == fmt.nan_code:
        return Exact(negative, kind="nan")
    if magnitude <= fmt.max_code:
        return Exact(negative, magnitude_of(magnitude, fmt))
    if magnitude == fmt.inf_code:
        return Exact(negative, kind="inf")
    if fmt.specials is Specials.LAST:
        return Exact(negative, kind="nan")
    payload = Fraction(magnitude % (1 << fmt.fraction_bits), 1 << fmt.fraction_bits)
    return Exact(negative, kind="nan" if payload >= Fraction(1, 2) else "snan", payload=payload)


def floor_log2(x: Fraction) -> int:
    """The exponent of the binade of a positive number."""
    n, d = x.as_integer_ratio()
    guess = n.bit_length() - d.bit_length()
    return guess if (d << guess <= n if guess >= 0 else d <= n << -guess) else guess - 1


def floor_code(x: Fraction, fmt: Format) -> int:
    """The largest magnitude code whose value is at most x > 0 (as if the exponent field had no upper end)."""
    return _floor(x, fmt)[0]


def _floor(x: Fraction, fmt: Format) -> tuple[int, int, int]:
    """The same, and how far x is on the way to the next code, as a numerator and a denominator.

    On integers: a Fraction would look for the common divisor of every sum and quotient, which here is most of the time.
    """
    n, d = x.as_integer_ratio()
    exponent = max(floor_log2(x), fmt.emin)
    last = exponent - fmt.fraction_bits  # of the last digit kept
    n, d = (n, d << last) if last >= 0 else (n << -last, d)
    units, rest = divmod(n, d)
    return ((exponent - fmt.emin) << fmt.fraction_bits) + units - (0 if fmt.zero else 1 << fmt.fraction_bits), rest, d


def significand_is_odd(code: int, fmt: Format) -> bool:
    """The last digit of the significand. With one digit it is always 1, so that ties go up (IEEE 754-2019, 4.3.1);
    P3109 asks the code instead."""
    if fmt.fraction_bits == 0 and not fmt.ties_by_code:
        return code > 0 or not fmt.zero
    return code % 2 == 1


def round_magnitude(x: Fraction, negative: bool, fmt: Format, mode: Rounding, word: int = 0) -> tuple[int, bool]:
    """A positive magnitude as (code, inexact); the code may lie beyond the largest finite one."""
    lower, rest, whole = _floor(x, fmt)
    if lower < 0:
        return 0, True  # no zero to round to: the smallest value
    if not rest:
        return lower, False
    return lower + mode.goes_up(Fraction(rest, whole), significand_is_odd(lower, fmt), negative, word), True


def is_tiny(x: Fraction, negative: bool, fmt: Format, mode: Rounding, word: int = 0) -> bool:
    """Whether x, rounded to the format's precision with an unbounded exponent, is below the smallest normal."""
    exponent = floor_log2(x)
    if exponent >= fmt.emin:
        return False
    lifted = x * two_to(fmt.emin - exponent)  # the same significand in the lowest normal binade
    code, _ = round_magnitude(lifted, negative, fmt, mode, word)
    return magnitude_of(code, fmt) < two_to(2 * fmt.emin - exponent)


def nan_to(x: Exact, fmt: Format, nan: str | None) -> int:
    """The code of a NaN, its payload cut and made quiet; in a format without one what ``nan`` says, else an error."""
    sign = fmt.sign_mask if x.negative else 0
    if fmt.nan_code is not None:
        if fmt.specials is Specials.IEEE:
            kept = math.floor(x.payload * (1 << fmt.fraction_bits))
            return sign | fmt.nan_code | kept
        return sign | fmt.nan_code if fmt.specials is Specials.LAST else fmt.nan_code
    if nan == "zero":
        return 0
    if nan == "max":
        return sign | fmt.max_code
    raise LabError(say('{format} has no NaN; pass nan="zero" or nan="max" to replace it.', format=fmt.name))


@door
def round_to(
    x: Exact, fmt: FormatLike, mode: str | Rounding = Rounding.RNE, policy: str | Overflow | None = None, *,
    ftz: bool = False, nan: str | None = None, word: int = 0,
) -> tuple[int, int]:  # fmt: skip
    """Deliver an exact number as (code, flags). ``word``: the 32 random bits of a stochastic rounding."""
    fmt, mode = get(fmt), rounding(mode)
    policy = overflow(policy, fmt)
    if x.is_nan:
        return nan_to(x, fmt, nan), 0
    sign = fmt.sign_mask if x.negative else 0
    if (x.is_zero and not fmt.zero) or (x.negative and not fmt.signed and not x.is_zero):
        return nan_to(NAN, fmt, nan), INVALID
    if x.is_zero:
        return sign if fmt.has_negative_zero else 0, 0
    flags = OVERFLOW | INEXACT
    if x.kind == "finite":
        code, inexact = round_magnitude(x.magnitude, x.negative, fmt, mode, word)
        flags = INEXACT if inexact else 0
        if is_tiny(x.magnitude, x.negative, fmt, mode, word):
            if ftz and fmt.zero:
                return sign if fmt.has_negative_zero else 0, UNDERFLOW | INEXACT
            if inexact:
                flags |= UNDERFLOW
        if code <= fmt.max_code:
            return (0 if code == 0 and fmt.zero and not fmt.has_negative_zero else sign | code), flags
        flags |= OVERFLOW | INEXACT
    if policy is Overflow.INF and fmt.inf_code is not None:
        if x.kind == "inf":
            return sign | fmt.inf_code, 0
        if mode.away_from_zero(x.negative):
            return sign | fmt.inf_code, flags
    if policy is Overflow.NAN:
        return nan_to(replace(NAN, negative=x.negative), fmt, nan), flags
    return sign | fmt.max_code, flags


# --- operations -----------------------------------------------------------------------------------------------
def nearest(x: Fraction, fmt: str = "fp32") -> Fraction:
    """The value of a format that is nearest to ``x``, ties to even; beyond the format's range is an error."""
    code, flags = round_to(of(x), fmt)
    if flags & OVERFLOW:
        raise LabError(f"{float(x)!r} is beyond {fmt.upper()}.")
    return decode(code, fmt).value


@door
def flush(x: Exact, fmt: Format) -> Exact:
    """A subnormal operand of ``fmt`` as zero of its sign ("denormals are zero")."""
    if x.kind == "finite" and x.magnitude < two_to(fmt.emin) and fmt.zero:
        return Exact(x.negative)
    return x


def _nan_operand(*operands: Exact) -> tuple[Exact, int] | None:
    """The result when an operand is NaN: the canonical NaN, invalid if one of them signals."""
    kinds = [x.kind for x in operands]
    if "snan" in kinds:
        return NAN, INVALID
    return (NAN, 0) if "nan" in kinds else None


@door
def neg(a: Exact) -> Exact:
    """-a."""
    return Exact(not a.negative, a.magnitude, a.kind, a.payload)


@door
def add(a: Exact, b: Exact, mode: Rounding = Rounding.RNE) -> tuple[Exact, int]:
    """a + b, exact; an exact zero from opposite signs is +0, or -0 when rounding toward -infinity."""
    if nan := _nan_operand(a, b):
        return nan
    if a.kind == "inf" or b.kind == "inf":
        if a.kind == b.kind and a.negative != b.negative:
            return NAN, INVALID
        return (a if a.kind == "inf" else b), 0
    if a.is_zero and b.is_zero and a.negative == b.negative:
        return a, 0
    return of(a.value + b.value, zero_negative=mode is Rounding.RTN), 0


@door
def sub(a: Exact, b: Exact, mode: Rounding = Rounding.RNE) -> tuple[Exact, int]:
    """a - b."""
    return add(a, neg(b), mode)


@door
def mul(a: Exact, b: Exact, mode: Rounding = Rounding.RNE) -> tuple[Exact, int]:
    """a * b."""
    if nan := _nan_operand(a, b):
        return nan
    negative = a.negative != b.negative
    if a.kind == "inf" or b.kind == "inf":
        return (NAN, INVALID) if a.is_zero or b.is_zero else (Exact(negative, kind="inf"), 0)
    return Exact(negative, a.magnitude * b.magnitude), 0


@door
def div(a: Exact, b: Exact, mode: Rounding = Rounding.RNE) -> tuple[Exact, int]:
    """a / b."""
    if nan := _nan_operand(a, b):
        return nan
    negative = a.negative != b.negative
    if (a.kind == "inf" and b.kind == "inf") or (a.is_zero and b.is_zero):
        return NAN, INVALID
    if a.kind == "inf":
        return Exact(negative, kind="inf"), 0
    if b.kind == "inf":
        return Exact(negative), 0
    if b.is_zero:
        return Exact(negative, kind="inf"), DIVZERO
    return Exact(negative, a.magnitude / b.magnitude), 0


@door
def fma(a: Exact, b: Exact, c: Exact, mode: Rounding = Rounding.RNE) -> tuple[Exact, int]:
    """a * b + c."""
    if any(x.kind == "snan" for x in (a, b, c)):
        return NAN, INVALID
    product, flags = mul(a, b)
    if flags & INVALID:
        return NAN, INVALID
    return add(product, c, mode)


@door
def sqrt_to(a: Exact, fmt: Format, mode: Rounding, word: int = 0) -> tuple[Exact, int]:
    """A number that rounds, flags and all, as the square root of ``a`` does in ``fmt``.

    The root of most numbers is irrational. Cut to two digits more than a stochastic word can see, with a last digit 1
    wherever something was cut, it lies on the same side of every value and midpoint as the true root.
    """
    if nan := _nan_operand(a):
        return nan
    if a.is_zero:
        return a, 0
    if a.negative:
        return NAN, INVALID
    if a.kind == "inf":
        return a, 0
    digits = fmt.significand_bits + 40
    shift = digits - floor_log2(a.magnitude) // 2
    scaled = a.magnitude * Fraction(4) ** shift
    root = math.isqrt(math.floor(scaled))
    cut = Fraction(root) if root * root == scaled else Fraction(2 * root + 1, 2)
    return Exact(False, cut / two_to(shift)), 0


@door
def dot(a: list[Exact], b: list[Exact], mode: Rounding = Rounding.RNE) -> tuple[Exact, int]:
    """The exact sum of products, as a Kulisch accumulator holds it; the order of the terms does not matter."""
    a, b = list(a), list(b)
    if len(a) != len(b):
        raise LabError(f"a has {len(a)} terms and b has {len(b)}; each product takes one of both.")
    products = [mul(x, y) for x, y in zip(a, b, strict=True)]
    flags = INVALID if any(raised for _, raised in products) else 0
    terms = [p for p, _ in products]
    if any(t.is_nan for t in terms):
        return NAN, flags
    if infinite := {t.negative for t in terms if t.kind == "inf"}:
        return (NAN, INVALID) if len(infinite) == 2 else (Exact(infinite.pop(), kind="inf"), 0)
    if not terms:
        return Exact(False), 0
    if all(t.is_zero for t in terms) and len({t.negative for t in terms}) == 1:
        return terms[0], 0
    return of(sum((t.value for t in terms), Fraction(0)), zero_negative=mode is Rounding.RTN), 0


@door
def compare(op: Literal["eq", "lt", "le"], a: Exact, b: Exact) -> tuple[bool, int]:
    """A comparison: unordered is false; lt and le raise invalid on every NaN, eq only on a signalling one."""
    if a.is_nan or b.is_nan:
        return False, INVALID if op != "eq" or "snan" in (a.kind, b.kind) else 0

    def order(x: Exact) -> Fraction | float:
        if x.kind == "inf":
            return -math.inf if x.negative else math.inf
        return x.value

    match op:
        case "eq":
            return order(a) == order(b), 0
        case "lt":
            return order(a) < order(b), 0
        case "le":
            return order(a) <= order(b), 0
