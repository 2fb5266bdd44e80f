"""Number formats and overflow policies as frozen records; roundings are :mod:`fplab.roundings`.

A :class:`Format` is ten fields; everything else about it is derived, and named as in :class:`numpy.finfo`.
A new format is one record and no new code::

    >>> from fplab.formats import Format, get
    >>> get("bf16").eps
    0.0078125
    >>> Format("e3m4_mine", exponent_bits=3, fraction_bits=4).max
    15.5

The magnitude of a value is ordered like its code (sign apart), in every format here: code 0 is zero, then come the
subnormals, then the normals, then what the format has of infinities and NaNs. Rounding is therefore arithmetic on
codes, and that is how both the oracle (:mod:`fplab.exact`) and the kernels (:mod:`fplab.kernels`) do it.
"""

import enum
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from .errors import LabError, door, integer, own_integer, summary, unknown
from .lazily import index
from .roundings import Rounding as Rounding
from .roundings import rounding as rounding

__all__ = [
    "NAMES", "TABLE", "Dtype", "Format", "FormatLike", "FormatName", "Overflow", "Rounding", "Specials", "get",
    "overflow", "p3109", "rounding", "spelt",
]  # fmt: skip

index(__name__)


class Specials(enum.Enum):
    """Which codes at the top of a format are not numbers."""

    IEEE = "ieee"  # the whole top binade: infinity, and NaN with a payload (FP16, BF16, E5M2, ...)
    LAST = "last"  # only the all-ones magnitude is NaN, no infinity (OCP E4M3, E8M0)
    NEGATIVE_ZERO = "negative_zero"  # the code of -0 is the one NaN, so there is no -0 and no infinity (FNUZ)
    NONE = "none"  # every code is a number (FP6, FP4)
    SINGLE = "single"  # one infinity of each sign, and one NaN: the code of -0, or the last of an unsigned one (P3109)


class Overflow(enum.Enum):
    """What a result beyond the largest finite value becomes."""

    INF = "inf"  # infinity; a rounding that points toward zero gives the largest finite value, as IEEE 754 says
    SATURATE = "saturate"  # the largest finite value, infinite operands included
    NAN = "nan"  # NaN, infinite operands included


@door
@dataclass(frozen=True)
class Format:
    """A binary floating-point format of at most 64 bits.

    ``name``: how it is called. ``exponent_bits`` (1 to 11) and ``fraction_bits`` (0 to 52): widths of the fields.
    ``bias``: None means the IEEE bias ``2**(exponent_bits-1) - 1``. ``signed``: whether there is a sign bit.
    ``zero``: whether exponent field 0 holds zero and the subnormals; without it (E8M0) it is one more binade.
    ``specials``: which codes are infinities and NaNs. ``aliases``: other names. ``source``: where it is defined.
    ``ties_by_code``: with ``fraction_bits=0`` ties to even go to the even code (P3109), else up (IEEE 754-2019, 4.3.1).

    Raises :class:`LabError` for a format that is impossible or whose values do not all fit a float64.
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    bias: int | None = None
    signed: bool = True
    zero: bool = True
    specials: Specials = Specials.IEEE
    aliases: tuple[str, ...] = ()
    source: str = ""
    ties_by_code: bool = False

    def __post_init__(self) -> None:
        try:
            self._settle()
        except LabError as error:
            fields = f"exponent_bits={summary(self.exponent_bits)}, fraction_bits={summary(self.fraction_bits)}"
            widths = f"{summary(self.name)}, {fields}"
            raise LabError(f"fplab.Format({widths}, ...): {error}") from None

    def _settle(self) -> None:
        """Check every field and fill in the bias."""
        if not isinstance(self.name, str) or not self.name:
            raise LabError(f"name={self.name!r} is not a name.")
        for field in ("signed", "zero", "ties_by_code"):
            if not isinstance(getattr(self, field), bool):
                raise LabError(f"{field}={getattr(self, field)!r} is neither True nor False.")
        own_integer(self, "exponent_bits", 1, 11, " (float64, which carries the values, has 11)")
        own_integer(self, "fraction_bits", 0, 52, " (float64, which carries the values, has 52)")
        if self.bias is None:
            object.__setattr__(self, "bias", max(2 ** (self.exponent_bits - 1) - 1, 0))
        own_integer(self, "bias", -1100, 1100)
        if not isinstance(self.specials, Specials):
            raise unknown("specials", self.specials, [f"Specials.{s.name}" for s in Specials])
        if self.specials is Specials.IEEE and self.fraction_bits < 1:
            raise LabError(
                "fraction_bits=0 leaves no code for NaN beside infinity; allowed: 1 to 52, or other specials."
            )
        if self.specials is Specials.NEGATIVE_ZERO and not (self.signed and self.zero):
            raise LabError("specials=NEGATIVE_ZERO needs a sign and a zero: its NaN is the code of -0.")
        if self.specials is Specials.SINGLE and not self.zero:
            raise LabError("specials=SINGLE needs a zero; without one use specials=Specials.LAST or NONE.")
        if not self.zero and self.fraction_bits and self.specials is Specials.IEEE:
            raise LabError("zero=False with IEEE specials is not supported; use specials=Specials.LAST or NONE.")
        if self.max_code < (1 << self.fraction_bits if self.zero else 0):
            raise LabError(f"exponent_bits={self.exponent_bits} with these specials leaves no normal number.")
        lowest = self.emin - self.fraction_bits
        if self.emax > 1023 or self.emin < -1023 or lowest < -1074:
            raise LabError(
                f"values from 2**{lowest} to 2**{self.emax} do not fit float64, which carries them "
                "(2**-1074 to 2**1023); change exponent_bits or bias."
            )

    def __hash__(self) -> int:
        """Of the fields that all but tell formats apart: every cached answer of a format asks for it."""
        return hash((self.name, self.exponent_bits, self.fraction_bits, self.bias))

    # --- the layout of a code -------------------------------------------------------------------------------

    @cached_property
    def bits(self) -> int:
        """Width of a code in bits."""
        return int(self.signed) + self.exponent_bits + self.fraction_bits

    @cached_property
    def significand_bits(self) -> int:
        """Bits of a normal significand, the implicit one counted: 11 for FP16. Often called p."""
        return self.fraction_bits + 1

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        assert self.bias is not None
        return int(self.zero) - self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return (self.max_code >> self.fraction_bits) - int(self.zero) + self.emin

    @cached_property
    def max_code(self) -> int:
        """Code of the largest finite number, the sign bit apart."""
        top = 1 << (self.exponent_bits + self.fraction_bits)
        match self.specials:
            case Specials.IEEE:
                return top - (1 << self.fraction_bits) - 1
            case Specials.LAST:
                return top - 2
            case Specials.SINGLE:
                return top - 2 if self.signed else top - 3
            case _:
                return top - 1

    @cached_property
    def inf_code(self) -> int | None:
        """Code of +infinity, or None."""
        return self.max_code + 1 if self.specials in (Specials.IEEE, Specials.SINGLE) else None

    @cached_property
    def nan_code(self) -> int | None:
        """Code of the canonical quiet NaN, or None."""
        match self.specials:
            case Specials.IEEE:
                return self.max_code + 1 + (1 << (self.fraction_bits - 1))
            case Specials.LAST:
                return self.max_code + 1
            case Specials.NEGATIVE_ZERO:
                return self.sign_mask
            case Specials.SINGLE:
                return self.sign_mask or self.max_code + 2
            case _:
                return None

    @cached_property
    def sign_mask(self) -> int:
        """The sign bit of a code, 0 in an unsigned format."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def has_infinity(self) -> bool:
        """Whether the format has infinities."""
        return self.inf_code is not None

    @property
    def has_nan(self) -> bool:
        """Whether the format has a NaN."""
        return self.nan_code is not None

    @cached_property
    def has_negative_zero(self) -> bool:
        """Whether the format has a code for -0."""
        return self.signed and self.zero and self.specials not in (Specials.NEGATIVE_ZERO, Specials.SINGLE)

    # --- the numbers, named as in numpy.finfo -----------------------------------------------------------------

    def magnitude(self, code: int) -> float:
        """The non-negative value of a magnitude code between 0 and ``max_code``, exact."""
        field, fraction = code >> self.fraction_bits, code & ((1 << self.fraction_bits) - 1)
        if field == 0 and self.zero:
            return math.ldexp(fraction, self.emin - self.fraction_bits)
        exponent = field - int(self.zero) + self.emin
        return math.ldexp((1 << self.fraction_bits) | fraction, exponent - self.fraction_bits)

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        return self.magnitude(self.max_code)

    @cached_property
    def min(self) -> float:
        """Most negative finite value; the smallest positive one in an unsigned format without zero."""
        return -self.max if self.signed else self.magnitude(0)

    @cached_property
    def smallest_normal(self) -> float:
        """Smallest positive normal value."""
        return math.ldexp(1.0, self.emin)

    @property
    def tiny(self) -> float:
        """``smallest_normal``, by numpy's older name."""
        return self.smallest_normal

    @cached_property
    def smallest_subnormal(self) -> float:
        """Smallest positive value; equal to ``smallest_normal`` in a format without subnormals."""
        return self.magnitude(1) if self.zero else self.magnitude(0)

    @cached_property
    def eps(self) -> float:
        """Distance from 1.0 to the next larger value with this precision."""
        return math.ldexp(1.0, self.machep)

    @cached_property
    def epsneg(self) -> float:
        """Distance from 1.0 to the next smaller value with this precision."""
        return math.ldexp(1.0, self.negep)

    @property
    def nmant(self) -> int:
        """Stored bits of the fraction."""
        return self.fraction_bits

    @property
    def nexp(self) -> int:
        """Bits of the exponent field (numpy counts the same)."""
        return self.exponent_bits

    iexp = nexp

    @property
    def machep(self) -> int:
        """Exponent of ``eps``."""
        return -self.fraction_bits

    @property
    def negep(self) -> int:
        """Exponent of ``epsneg``."""
        return -self.fraction_bits - 1

    @property
    def minexp(self) -> int:
        """Exponent of ``smallest_normal``, as numpy's ``minexp``."""
        return self.emin

    @property
    def maxexp(self) -> int:
        """The smallest power of two that overflows, as numpy's ``maxexp``."""
        return self.emax + 1

    @cached_property
    def precision(self) -> int:
        """Decimal digits to which a value is good, as numpy counts them."""
        return int(self.fraction_bits * math.log10(2))

    @cached_property
    def resolution(self) -> float:
        """``10**-precision``."""
        return 10.0**-self.precision

    # --- counting -------------------------------------------------------------------------------------------

    @cached_property
    def finite_codes(self) -> int:
        """How many codes are finite numbers, both zeros counted."""
        positive = self.max_code + 1
        return positive * 2 - int(self.zero and not self.has_negative_zero) if self.signed else positive

    @cached_property
    def distinct_values(self) -> int:
        """How many finite numbers there are, the two zeros counted once."""
        return self.finite_codes - int(self.has_negative_zero)

    @property
    def inf_codes(self) -> int:
        """How many codes are infinite."""
        return 0 if self.inf_code is None else 1 + int(self.signed)

    @property
    def nan_codes(self) -> int:
        """How many codes are NaN."""
        return (1 << self.bits) - self.finite_codes - self.inf_codes

    @cached_property
    def fits_float32(self) -> bool:
        """Whether float32 holds every value."""
        lowest = self.emin - self.fraction_bits
        return self.fraction_bits <= 23 and self.emax <= 127 and lowest >= -149

    def __str__(self) -> str:
        return self.name


OCP8 = "OCP 8-bit Floating Point Specification (OFP8) 1.0"
OCPMX = "OCP Microscaling Formats (MX) 1.0"
NOUNE = "Noune et al. 2022, 8-bit Numerical Formats for Deep Neural Networks (arXiv 2206.02915)"

TABLE: tuple[Format, ...] = (
    Format("fp64", 11, 52, aliases=("float64", "double", "binary64"), source="IEEE 754-2019"),
    Format("fp32", 8, 23, aliases=("float32", "single", "float", "binary32"), source="IEEE 754-2019"),
    Format("tf32", 8, 10, aliases=("tensorfloat32", "xf32"), source="NVIDIA A100 architecture whitepaper"),
    Format("bf16", 8, 7, aliases=("bfloat16",), source="Google Cloud TPU documentation"),
    Format("fp16", 5, 10, aliases=("float16", "half", "binary16"), source="IEEE 754-2019"),
    Format("e5m2", 5, 2, aliases=("float8_e5m2", "fp8_e5m2"), source=OCP8),
    Format("e4m3", 4, 3, specials=Specials.LAST, aliases=("float8_e4m3fn", "e4m3fn", "fp8_e4m3"), source=OCP8),
    Format("e4m3_ieee", 4, 3, aliases=("float8_e4m3",), source="IEEE 754-2019 rules at 4 + 3 bits"),
    Format("e4m3fnuz", 4, 3, 8, specials=Specials.NEGATIVE_ZERO, aliases=("float8_e4m3fnuz",), source=NOUNE),
    Format("e5m2fnuz", 5, 2, 16, specials=Specials.NEGATIVE_ZERO, aliases=("float8_e5m2fnuz",), source=NOUNE),
    Format("e3m4", 3, 4, aliases=("float8_e3m4",), source="IEEE 754-2019 rules at 3 + 4 bits"),
    Format("e3m2", 3, 2, specials=Specials.NONE, aliases=("float6_e3m2fn", "fp6_e3m2"), source=OCPMX),
    Format("e2m3", 2, 3, specials=Specials.NONE, aliases=("float6_e2m3fn", "fp6_e2m3"), source=OCPMX),
    Format("e2m1", 2, 1, specials=Specials.NONE, aliases=("float4_e2m1fn", "fp4", "fp4_e2m1"), source=OCPMX),
    Format("e8m0", 8, 0, 127, False, False, Specials.LAST, ("float8_e8m0fnu",), OCPMX),
)
"""Every format, a record each."""

NAMES: tuple[str, ...] = tuple(f.name for f in TABLE)
"""Their names."""
_BY_NAME = {name: f for f in TABLE for name in (f.name, *f.aliases)}
_P3109 = re.compile(r"binary(\d{1,2})p(\d{1,2})([su]?)([ef]?)")


@door
def p3109(bits: int, precision: int, signed: bool = True, infinite: bool = True) -> Format:
    """A format of IEEE P3109: ``bits`` wide (3 to 15), significands of ``precision`` bits, the implicit one counted.

    ``signed``: without it there are no negative numbers and ``precision`` may be ``bits``. ``infinite``: with
    infinities ("extended"), else without ("finite"). :func:`get` takes the name: "binary8p3se" is signed and extended,
    "binary8p3uf" unsigned and finite, "binary8p3" the first. :class:`LabError` for more than 11 exponent bits: float64
    carries the values. Source: IEEE P3109 interim report, arithmetic formats for machine learning.

    >>> p3109(8, 3).max, get("binary8p3uf").max
    (49152.0, 3221225472.0)
    """
    for field, value in (("signed", signed), ("infinite", infinite)):
        if not isinstance(value, bool):
            raise LabError(f"{field}={summary(value)} is neither True nor False.")
    bits = integer("bits", bits, 3, 15, ", the widths of P3109")
    precision = integer("precision", precision, 1, bits - signed, f", what {bits} bits allow")
    name = f"binary{bits}p{precision}{'s' if signed else 'u'}{'e' if infinite else 'f'}"
    specials = Specials.SINGLE if infinite else Specials.NEGATIVE_ZERO if signed else Specials.LAST
    exponent_bits = bits - precision + (not signed)
    return Format(name, exponent_bits, precision - 1, 2 ** (exponent_bits - 1), signed, specials=specials,
                  source="IEEE P3109 interim report", ties_by_code=True)  # fmt: skip


class _ByName(type(Protocol)):  # type: ignore[misc]  # the metaclass of protocols, whatever its name
    def __instancecheck__(cls, given: object) -> bool:
        """Whether it is a dtype: arrays and tensors have an itemsize, too."""
        return not isinstance(given, type) and dtype_name(given) is not None


@runtime_checkable
class Dtype(Protocol, metaclass=_ByName):
    """A dtype of torch, or of numpy, to which ml_dtypes adds."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        ...


FormatName = str | Dtype | type[Any]
"""The name of a format, or a dtype; those of ml_dtypes are classes, as NumPy's are."""
FormatLike = Format | FormatName
"""What names a format: a name, a dtype, or the record."""


def dtype_name(given: object) -> str | None:
    """What a dtype of torch, numpy or ml_dtypes is called, such as "bfloat16"; None for what is no dtype."""
    if given is float:
        return "float64"
    if numpy := sys.modules.get("numpy"):  # without which nothing is its dtype
        if isinstance(given, type) and issubclass(given, numpy.generic):
            return given.__name__
        if isinstance(given, numpy.dtype):
            return str(given.name)
    text = str(given) if type(given).__name__ == "dtype" else ""
    return text.removeprefix("torch.") if text.startswith("torch.") else None


MOST_NAMES = 1000  # that are taken at once: of an iterable without end the first ones are wrong already


def several(given: Any) -> tuple[Any, ...]:
    """Names or records as a tuple; one alone is a tuple of one.

    >>> several("fp16"), several(["fp16", "bf16"])
    (('fp16',), ('fp16', 'bf16'))
    """
    return (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(islice(given, MOST_NAMES))


def spelt(given: Any) -> Any:
    """The lab's name for a dtype, its own where the lab has no such format; anything but a dtype as it is.

    >>> import numpy as np
    >>> spelt(np.float16), spelt(np.dtype("int8")), spelt("half")
    ('fp16', 'int8', 'half')
    """
    name = dtype_name(given)
    return given if name is None else _BY_NAME[name].name if name in _BY_NAME else name


@door
def get(fmt: FormatLike) -> Format:
    """The format record of a name (or alias, case ignored) or of a dtype of torch, numpy or ml_dtypes, or the record.

    >>> import ml_dtypes
    >>> get("bfloat16") is get("bf16") is get(ml_dtypes.bfloat16)
    True
    """
    return named(fmt)


def named(fmt: FormatLike) -> Format:
    """:func:`get` for functions that are doors themselves."""
    if isinstance(fmt, Format):
        return fmt
    name = fmt if isinstance(fmt, str) else dtype_name(fmt)
    name = name and name.strip().lower()
    record = _BY_NAME.get(name) if name else None
    if record is None and name and (given := _P3109.fullmatch(name)):
        bits, precision, sign, domain = given.groups()
        return p3109(int(bits), int(precision), sign != "u", domain != "f")
    if record is None:
        raise unknown("format", fmt, NAMES, aliases=_BY_NAME, called=name)
    return record


@door
def overflow(policy: str | Overflow | None, fmt: Format) -> Overflow:
    """The overflow policy of a name; None is the record's own. An inexpressible policy is an error.

    The record's own is infinity where the format has one, NaN where it has only that, else saturation.
    """
    if policy is None:
        return Overflow.INF if fmt.has_infinity else Overflow.NAN if fmt.has_nan else Overflow.SATURATE
    if not isinstance(policy, Overflow):
        try:
            policy = Overflow(policy.lower() if isinstance(policy, str) else policy)
        except ValueError:
            raise unknown("overflow policy", policy, [o.value for o in Overflow]) from None
    if (policy is Overflow.INF and not fmt.has_infinity) or (policy is Overflow.NAN and not fmt.has_nan):
        kind = "infinity" if policy is Overflow.INF else "NaN"
        allowed = [o.value for o in Overflow if not (o is Overflow.INF and not fmt.has_infinity)]
        allowed = [o for o in allowed if not (o == "nan" and not fmt.has_nan)]
        raise LabError(
            f"overflow={policy.value!r} is impossible: {fmt.name} has no {kind}. Allowed: {', '.join(allowed)}."
        )
    return policy
