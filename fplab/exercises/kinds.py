"""Kinds of arguments and answers: which values there are, how to read, compare and show them.

A kind is a frozen record. ``key`` is what two values are compared by: bits where the kind has a format, so that -0 is
not 0 and all NaNs are one. What an answer gave is read as the number that it means, whatever its type, or refused
kindly: learners write with Python's numbers, numpy's scalars, Fractions and arrays without dimensions; none is rounded
on the way to an integer. ``cases`` draws the kinds that arguments have.
"""

import math
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, islice
from typing import Any, TypeVar

import numpy as np

from ..formats import get
from ..words import Text, say, say_of
from .shown import Shown, code_of, of_any, of_code, of_float, of_integer, of_whole

Many = tuple[Shown, ...]
Number = TypeVar("Number", int, float, Fraction)
MOST_ITEMS = 1 << 17  # of a list that is an answer; what is told of it must stay below process.LONGEST


class UnfitError(Exception):
    """An answer that is not of the kind that was asked for; ``text`` says kindly what is."""

    def __init__(self, text: Text) -> None:
        super().__init__(text.en)
        self.text = text


class Kind:
    """What an answer is read, compared and shown by; the kinds of arguments have boundary values and choices, too."""

    def read(self, given: Any) -> Any:
        """The value that is meant. Raises UnfitError for what is no value of this kind."""
        raise NotImplementedError

    def key(self, value: Any) -> Hashable:
        """What two values are compared by: the value itself, unless it has bits."""
        return (value,)

    def show(self, value: Any) -> Many:
        """The value as a report shows it."""
        return (Shown(str(value)),)

    def boundary(self) -> Sequence[Any]:
        """The values on which answers fail first."""
        raise NotImplementedError

    def sorted(self, values: Iterable[Any]) -> list[Any]:
        """Values without repetitions, the simplest first."""
        return sorted(dict.fromkeys(values), key=lambda v: simplicity(self.choices(v)))

    def choices(self, value: Any) -> list[int]:
        """The integers of which ``cases.values_of`` makes an argument; the fewer and smaller, the simpler it is."""
        raise NotImplementedError


def simplicity(choices: Sequence[int]) -> tuple[Any, ...]:
    """By what choices are sorted, as hypothesis shrinks them: fewer first, then by size in order."""
    return len(choices), [(abs(c), c < 0) for c in choices]


@dataclass(frozen=True)
class Function(Kind):
    """An answer that can be called: it stays in its process, and True is all that is told of it."""

    signature: str

    def read(self, given: Any) -> bool:
        if not callable(given):
            raise UnfitError(say("a function is wanted ({s}), not {x}", s=self.signature, x=of_any(given).text))
        return True


NO_NUMBERS = (bool, str, bytes, bytearray, complex)


def unfit(given: Any, wanted: Text) -> UnfitError:
    """The refusal of a value: what is wanted, and what came."""
    what = f"{of_any(given).text} ({type(given).__name__})" if given is not None else "None"
    return UnfitError(say("{wanted} is wanted, not {what}", wanted=wanted, what=what))


def _scalar(given: Any, wanted: Text) -> Any:
    """One number: out of a numpy scalar or an array without dimensions, itself otherwise."""
    shape = getattr(given, "shape", None)
    scalar = given.item() if shape == () and hasattr(given, "item") else given
    if isinstance(scalar, NO_NUMBERS) or shape not in (None, ()):
        raise unfit(given, wanted)
    return scalar


def number(make: Callable[[Any], Number], given: Any, wanted: Text) -> Number:
    """A number as an int, a float or a Fraction; as an int only where it is one.

    >>> number(int, 3.0, say("an integer")), number(int, Fraction(6, 2), say("an integer"))
    (3, 3)
    """
    scalar = _scalar(given, wanted)
    try:
        value = make(scalar)
        if make is not int or value == scalar:
            return value
    except Exception:  # a type of the answer's own may fail in its own way
        raise unfit(given, wanted) from None
    raise unfit(given, wanted)


def items(given: Any) -> Any:
    """An array of one dimension or more as a list; anything else as it is."""
    return given.tolist() if hasattr(given, "tolist") and getattr(given, "shape", ()) != () else given


@dataclass(frozen=True)
class Integers(Kind):
    """Integers from ``low`` to ``high``; ``bits``: how many binary digits are shown; ``origin``: the simplest one."""

    low: int
    high: int
    bits: int = 0
    edges: tuple[int, ...] = ()
    origin: int = 0

    def boundary(self) -> Sequence[int]:
        values = {self.low, self.low + 1, self.high, self.high - 1, self.home, *self.edges}
        return self.sorted(v for v in values if self.low <= v <= self.high)

    @property
    def home(self) -> int:
        return min(max(self.origin, self.low), self.high)

    def choices(self, value: int) -> list[int]:
        return [value - self.home]

    def read(self, given: Any) -> int:
        """Any integer; the range is not asked of answers."""
        return number(int, given, say("an integer"))

    def show(self, value: int) -> Many:
        return (of_integer(value, self.bits),)


INFINITY, NAN = 6, 7  # classes of floats; 0: zeros, and what is between: finite ones


@dataclass(frozen=True)
class Floats(Kind):
    """Values of a format, by code. ``finite``: no infinities, no NaN. ``low``, ``high``: bounds of magnitudes but 0.

    ``near``: values round a coarser format's midpoints, for exercises that round to it.
    """

    fmt: str
    finite: bool = False
    low: float = 0.0
    high: float = math.inf
    signed: bool = True
    near: str = ""
    edges: tuple[float, ...] = ()

    def has(self, x: float) -> bool:
        if not self.signed and math.copysign(1, x) < 0:
            return False
        if not math.isfinite(x):
            return not self.finite and code_of(x, self.fmt) is not None
        return (x == 0 or self.low <= abs(x) <= self.high) and code_of(x, self.fmt) is not None

    def boundary(self) -> Sequence[float]:
        """Zeros, ones, ends, subnormals, infinities, NaN, and midpoints of the coarser format."""
        form = get(self.fmt)
        values = [0.0, 1.0, 1 + form.eps, 1 - form.epsneg, 2.0, form.smallest_normal, form.smallest_subnormal, form.max]
        values += [form.smallest_normal - form.smallest_subnormal, self.low, *self.edges]
        values += [form.max] if math.isinf(self.high) else [self.high]
        if self.near:
            other = get(self.near)
            inner = 1 << other.fraction_bits
            unit = int(code_of(1.0, self.near) or 0)
            codes = (0, 1, 2, inner - 1, inner, unit - 1, unit, unit + 1, unit + inner - 1, other.max_code)
            values += [v for code in codes for v in self._round(code)]
        both = [v for x in (*filter(None, values), math.inf) for v in (x, -x)]
        return [v for v in (0.0, -0.0, *self.sorted(filter(self.has, both)), math.nan) if self.has(v)]

    def choices(self, value: float) -> list[int]:
        """Its class, significant bits, exponent, the bits between the first and the last of these, and sign."""
        sign = [math.copysign(1, value) < 0] if self.signed else []
        if value == 0:
            return [0, *sign]
        if not math.isfinite(value):
            return [NAN if math.isnan(value) else INFINITY, 1, 0, 0, *sign]
        units, unit = abs(value).as_integer_ratio()
        odd = units // (units & -units)
        bits = odd.bit_length()
        return [1, bits, units.bit_length() - unit.bit_length(), (odd - (1 << bits - 1)) >> 1, *sign]

    def made_of(self, group: int, bits: int, exponent: int, between: int) -> float:
        """The magnitude that :meth:`choices` are of."""
        if group >= INFINITY:
            return math.nan if group == NAN else math.inf
        odd = 1 << bits - 1 | between << 1 | 1
        return math.ldexp(odd, exponent - bits + 1)

    @property
    def exponents(self) -> tuple[int, int]:
        form = get(self.fmt)
        ends = max(self.low, form.smallest_subnormal), min(self.high, form.max)
        return math.frexp(ends[0])[1] - 1, math.frexp(ends[1])[1] - 1

    def _round(self, code: int) -> list[float]:
        """A value of the coarser format, the midpoint above it, and what lies next to both."""
        other = get(self.near)
        low, high = other.magnitude(code), other.magnitude(code + 1)
        middle = (low + high) / 2
        return [v for x in (low, middle) for v in (x, *self._beside(x))]

    def _beside(self, x: float) -> tuple[float, float]:
        form = get(self.fmt)
        ulp = math.ldexp(1.0, max(math.frexp(x)[1] - 1 if x else form.emin, form.emin) - form.fraction_bits)
        return x - ulp, x + ulp

    def read(self, given: Any) -> float:
        """Any real number; one that the format lacks is a wrong answer, not a wrong type."""
        return number(float, given, say("one number"))

    def key(self, value: float) -> Hashable:
        """The code, or the value itself where the format lacks it."""
        code = code_of(value, self.fmt)
        return ("not a value", value) if code is None else code

    def show(self, value: float) -> Many:
        shown = of_float(value, self.fmt)
        if not shown.fields:
            return (Shown(str(say("{text}  (no value of {name})", text=shown.text, name=get(self.fmt).name))),)
        return (shown,)


@dataclass(frozen=True)
class Codes(Kind):
    """Codes of a format, as integers. ``numbers``: only those of finite numbers."""

    fmt: str
    numbers: bool = False
    edges: tuple[int, ...] = ()

    def has(self, code: int) -> bool:
        form = get(self.fmt)
        if not 0 <= code < 1 << form.bits:
            return False
        return not self.numbers or (code & ~form.sign_mask) <= form.max_code

    def boundary(self) -> Sequence[int]:
        """Zeros, subnormals, one, the ends, infinities and the first and last NaN."""
        form = get(self.fmt)
        inner, unit = 1 << form.fraction_bits, int(code_of(1.0, self.fmt) or 0)
        codes = [0, 1, inner - 1, inner, unit, unit + 1, form.max_code - 1, form.max_code, form.max_code + 1]
        codes += [form.max_code + 2, (1 << (form.bits - 1)) - 1, *self.edges]
        both = {v for code in codes for v in (code, code | form.sign_mask)}
        return self.sorted(filter(self.has, both))

    def choices(self, value: int) -> list[int]:
        form = get(self.fmt)
        magnitude = value & ~form.sign_mask
        return [*divmod(magnitude, 1 << form.fraction_bits), value != magnitude]

    def read(self, given: Any) -> int:
        return number(int, given, say("an integer code"))

    def show(self, value: int) -> Many:
        form = get(self.fmt)
        if not 0 <= value < 1 << form.bits:
            note = say("no code of {name}", name=form.name)
            return (Shown(f"{of_whole(value, hexadecimal=True)}  ({note})"),)
        shown = of_code(value, self.fmt)
        return (Shown(f"{value:#0{2 + -(-form.bits // 4)}x} = {shown.text}", shown.fields, shown.of),)


@dataclass(frozen=True)
class Ratios(Kind):
    """Exact rational answers: an integer, a Fraction, or a float that is meant exactly."""

    def read(self, given: Any) -> Fraction:
        return number(Fraction, given, say("a Fraction"))

    def show(self, value: Fraction) -> Many:
        """As a ratio; a float that was given for one as a float, with a word on why it is none."""
        if value.denominator == 1:
            return (Shown(of_whole(value.numerator)),)
        binary = value.denominator >= 1 << 32 and value.denominator.bit_count() == 1
        if binary and abs(value) < 1 and float(value) == value:
            note = say("a float, which is rounded: a Fraction is exact")
            return (Shown(f"{float(value)!r}  ({note})"),)
        ratio = f"{of_whole(value.numerator)}/{of_whole(value.denominator)}"
        return (Shown(ratio + (f" ≈ {float(value):.9g}" if abs(value) < 2**1023 else "")),)


@dataclass(frozen=True)
class Options(Kind):
    """One of a few values, the simplest first: words, or False and True."""

    values: tuple[Any, ...]

    def boundary(self) -> Sequence[Any]:
        return self.values

    def read(self, given: Any) -> Any:
        """The option that is meant; the case of words does not matter."""
        if isinstance(given, np.bool_):
            given = bool(given)
        for value in self.values:
            if isinstance(value, str) and isinstance(given, str) and value.lower() == given.strip().lower():
                return value
            if type(value) is type(given) and value == given:
                return value
        names = str(say_of("between items", ", ")).join(map(repr, self.values))
        raise unfit(given, say("one of {names}", names=names))

    def key(self, value: Any) -> Hashable:
        return str(value)

    def choices(self, value: Any) -> list[int]:
        return [self.values.index(value)]


@dataclass(frozen=True)
class Bits(Kind):
    """A string of binary digits for a format's code; spaces and underscores are for the reader."""

    fmt: str

    def read(self, given: Any) -> int:
        """The code: from a string of exactly as many digits as the format has, or an integer."""
        bits = get(self.fmt).bits
        if isinstance(given, str):
            digits = given.replace(" ", "").replace("_", "").removeprefix("0b")
            if len(digits) == bits and set(digits) <= {"0", "1"}:
                return int(digits, 2)
            raise unfit(given, say("a string of {bits} binary digits", bits=bits))
        return number(int, given, say("a string of {bits} binary digits", bits=bits))

    def show(self, value: int) -> Many:
        return Codes(self.fmt).show(value)


@dataclass(frozen=True)
class Lists(Kind):
    """Lists of one kind, from ``least`` to ``most`` elements; as an answer, of any length."""

    item: Kind
    least: int
    most: int
    edges: tuple[tuple[Any, ...], ...] = ()

    def boundary(self) -> Sequence[tuple[Any, ...]]:
        """Every boundary element, repeated; lists of the least, of the most and of some lengths between."""
        lengths = sorted({self.least, min(self.least + 1, self.most), self.most})
        items = self.item.boundary()
        repeated = [(item,) * n for n in lengths for item in (items if n <= 8 else items[:4])]
        ramps = [tuple(items[(i + turn) % len(items)] for i in range(n)) for n in lengths for turn in (0, 1)]
        return self.sorted([*repeated, *ramps, *self.edges])

    def choices(self, value: tuple[Any, ...]) -> list[int]:
        """Those of the elements, each after a sign that there is one, where their number is not fixed."""
        if self.least == self.most:
            return [choice for v in value for choice in self.item.choices(v)]
        return [*(choice for v in value for choice in (True, *self.item.choices(v))), False]

    def read(self, given: Any) -> tuple[Any, ...]:
        elements = items(given)
        if not isinstance(elements, list | tuple):
            raise unfit(given, say("a list"))
        if len(elements) > MOST_ITEMS:
            raise UnfitError(say("at most {most:,} elements are read, not {n:,}", most=MOST_ITEMS, n=len(elements)))
        return tuple(self.item.read(v) for v in elements)

    def key(self, value: tuple[Any, ...]) -> Hashable:
        return tuple(self.item.key(v) for v in value)

    def show(self, value: tuple[Any, ...]) -> Many:
        """An element a line, and of a list of lists a row; long lists are shortened, runs counted."""
        if not value:
            return (Shown("[]"),)
        if isinstance(self.item, Lists):
            return tuple(Shown(f"[{', '.join(self.item.item.show(v)[0].text for v in row)}]") for row in value)
        lines = []
        for item, count in islice(runs(value, self.item), 18):
            first = self.item.show(item)[0]
            lines.append(first if count == 1 else Shown(f"{first.text}  ({count}×)", first.fields, first.of))
        return (*lines[:16], Shown(f"... ({len(value)})")) if len(lines) > 17 else tuple(lines)


def runs(value: Sequence[Any], kind: Kind) -> Iterator[tuple[Any, int]]:
    """Neighbours of one key as the first of them, and how many; the same bytes are one key, and sooner known."""
    same = ([*alike] for _, alike in groupby(value, key=pickle.dumps))
    for _, alike in groupby(same, key=lambda these: kind.key(these[0])):
        parts = [*alike]
        yield parts[0][0], sum(map(len, parts))


@dataclass(frozen=True)
class Several(Kind):
    """A tuple of given kinds, as answers of more than one part; ``names`` label the parts."""

    kinds: tuple[Kind, ...]
    names: tuple[str, ...]

    def choices(self, value: tuple[Any, ...]) -> list[int]:
        return [c for kind, part in zip(self.kinds, value, strict=True) for c in kind.choices(part)]

    def read(self, given: Any) -> tuple[Any, ...]:
        values = items(given)
        if not isinstance(values, list | tuple) or len(values) != len(self.kinds):
            parts = ", ".join(self.names)
            raise unfit(given, say("a tuple ({parts})", parts=parts))
        return tuple(kind.read(v) for kind, v in zip(self.kinds, values, strict=True))

    def key(self, value: tuple[Any, ...]) -> Hashable:
        return tuple(kind.key(v) for kind, v in zip(self.kinds, value, strict=True))

    def show(self, value: tuple[Any, ...]) -> Many:
        lines = []
        for name, kind, part in zip(self.names, self.kinds, value, strict=True):
            lines += [Shown(f"{name} {shown.text}", shown.fields, shown.of) for shown in kind.show(part)]
        return tuple(lines)


@dataclass(frozen=True)
class Among(Kind):
    """A few values of a kind, the simplest first: two lists of them agree often enough."""

    of: Kind
    few: tuple[Any, ...]

    def boundary(self) -> Sequence[Any]:
        return self.few

    def choices(self, value: Any) -> list[int]:
        return [self.few.index(value)]

    def show(self, value: Any) -> Many:
        return self.of.show(value)


@dataclass(frozen=True)
class Boxes(Kind):
    """Black boxes, each made of a value that an answer does not see; ``told``: what a report says of it."""

    of: Kind
    make: Callable[[Any], Any]
    told: Callable[[Any], Text]

    def boundary(self) -> Sequence[Any]:
        return [self.make(v) for v in self.of.boundary()]

    def choices(self, value: Any) -> list[int]:
        return self.of.choices(value.hidden)

    def key(self, value: Any) -> Hashable:
        return self.of.key(value.hidden)

    def show(self, value: Any) -> Many:
        return (Shown(str(self.told(value.hidden))),)
