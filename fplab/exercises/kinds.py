"""Kinds of arguments and answers: which values there are, how to draw, read, compare, shrink and show them.

A kind is a frozen record. ``key`` is what two values are compared by: bits where the kind has a format, so that -0 is
not 0 and all NaNs are one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ..formats import get
from ..words import say
from . import shrink
from .kind import Kind, Many, Words
from .reading import items, ratio, real, unfit, whole
from .shown import Shown, code_of, of_code, of_float, of_integer, of_whole


@dataclass(frozen=True)
class Integers:
    """Integers from ``low`` to ``high``; ``bits``: how many binary digits are shown; ``origin``: the simplest one."""

    low: int
    high: int
    bits: int = 0
    edges: tuple[int, ...] = ()
    origin: int = 0

    def boundary(self) -> Sequence[int]:
        """The ends, what is next to them, and the edges given."""
        found = {self.low, self.low + 1, self.high, self.high - 1, self._home(), *self.edges}
        return sorted((v for v in found if self.low <= v <= self.high), key=self.size)

    def _home(self) -> int:
        return min(max(self.origin, self.low), self.high)

    def draw(self, words: Words) -> int:
        """Small ones half the time."""
        span = self.high - self.low + 1
        if words.below(2) and span > 16:
            span = 1 << (1 + words.below(span.bit_length() - 1))
        return self.low + words.below(span)

    def read(self, given: Any) -> int:
        """Any integer; the range is not asked of answers."""
        return whole(given, say("an integer"))

    def key(self, value: int) -> Hashable:
        """The integer."""
        return value

    def size(self, value: int) -> shrink.Size:
        """Nearest to the origin first."""
        return shrink.integer_size(value, self._home())

    def steps(self, value: int) -> Sequence[int]:
        """Nearer integers in the range."""
        return [v for v in shrink.integer_steps(value, self._home()) if self.low <= v <= self.high]

    def show(self, value: int) -> Many:
        """Decimal, and binary where ``bits`` says so."""
        return (of_integer(value, self.bits),)


@dataclass(frozen=True)
class Floats:
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
        """Whether an argument may be this value."""
        if not self.signed and math.copysign(1, x) < 0:
            return False
        if not math.isfinite(x):
            return not self.finite and code_of(x, self.fmt) is not None
        return (x == 0 or self.low <= abs(x) <= self.high) and code_of(x, self.fmt) is not None

    def boundary(self) -> Sequence[float]:
        """Zeros, ones, ends, subnormals, infinities, NaN, and midpoints of the coarser format."""
        form = get(self.fmt)
        found = [0.0, 1.0, 1 + form.eps, 1 - form.epsneg, 2.0, form.smallest_normal, form.smallest_subnormal, form.max]
        found += [form.smallest_normal - form.smallest_subnormal, self.low, *self.edges]
        found += [form.max] if math.isinf(self.high) else [self.high]
        if self.near:
            other = get(self.near)
            inner = 1 << other.fraction_bits
            one = int(code_of(1.0, self.near) or 0)
            codes = (0, 1, 2, inner - 1, inner, one - 1, one, one + 1, one + inner - 1, other.max_code)
            found += [v for code in codes for v in self._round(code)]
        both = {v for x in found for v in (x, -x)} | {math.inf, -math.inf}
        finite = sorted((v for v in both if self.has(v)), key=self.size)
        zeros = [v for v in (0.0, -0.0) if self.has(v)]
        return [*zeros, *(v for v in finite if v != 0), *([math.nan] if self.has(math.nan) else [])]

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

    def draw(self, words: Words) -> float:
        """A random code, a number of few bits, or a value round a midpoint."""
        for _ in range(1000):
            x = self._draw(words)
            if self.has(x):
                return x
        return 1.0

    def _draw(self, words: Words) -> float:
        form, way = get(self.fmt), words.below(3)
        sign = -1.0 if self.signed and words.below(2) else 1.0
        if way == 0 and self.near:
            return sign * float(words.pick(self._round(words.below(get(self.near).max_code + 1))))
        if way <= 1:
            few = 1 + words.below(1 << min(form.significand_bits, 6))
            return sign * math.ldexp(few, words.below(13) - 9)
        low = (code_of(self.low, self.fmt) or 0) if self.low else 0
        high = form.max_code if math.isinf(self.high) else (code_of(self.high, self.fmt) or form.max_code)
        return sign * form.magnitude(low + words.below(high - low + 1))

    def read(self, given: Any) -> float:
        """Any real number; one that the format lacks is a wrong answer, not a wrong type."""
        return real(given, say("one number"))

    def key(self, value: float) -> Hashable:
        """The code, or the value itself where the format lacks it."""
        code = code_of(value, self.fmt)
        return ("not a value", value) if code is None else code

    def size(self, value: float) -> shrink.Size:
        """Few significant bits first."""
        return shrink.float_size(value)

    def steps(self, value: float) -> Sequence[float]:
        """Simpler values of this kind."""
        return [v for v in shrink.float_steps(value) if self.has(v)]

    def show(self, value: float) -> Many:
        """The number and its bits."""
        shown = of_float(value, self.fmt)
        if not shown.fields:
            note = say("no value of {name}", name=get(self.fmt).name)
            return (Shown(f"{shown.text}  ({note})"),)
        return (shown,)


@dataclass(frozen=True)
class Codes:
    """Codes of a format, as integers. ``numbers``: only those of finite numbers."""

    fmt: str
    numbers: bool = False
    edges: tuple[int, ...] = ()

    def has(self, code: int) -> bool:
        """Whether an argument may be this code."""
        form = get(self.fmt)
        if not 0 <= code < 1 << form.bits:
            return False
        return not self.numbers or (code & ~form.sign_mask) <= form.max_code

    def boundary(self) -> Sequence[int]:
        """Zeros, subnormals, one, the ends, infinities and the first and last NaN."""
        form = get(self.fmt)
        inner, one = 1 << form.fraction_bits, int(code_of(1.0, self.fmt) or 0)
        found = [0, 1, inner - 1, inner, one, one + 1, form.max_code - 1, form.max_code, form.max_code + 1]
        found += [form.max_code + 2, (1 << (form.bits - 1)) - 1, *self.edges]
        both = {v for code in found for v in (code, code | form.sign_mask)}
        return sorted((v for v in both if self.has(v)), key=self.size)

    def draw(self, words: Words) -> int:
        """Any code."""
        form = get(self.fmt)
        while True:
            code = words.below(1 << form.bits)
            if self.has(code):
                return code

    def read(self, given: Any) -> int:
        """An integer."""
        return whole(given, say("an integer code"))

    def key(self, value: int) -> Hashable:
        """The code; each NaN is another."""
        return value

    def size(self, value: int) -> shrink.Size:
        """The positive before the negative, few bits set, and then small."""
        form = get(self.fmt)
        magnitude = value & ~form.sign_mask
        return magnitude > form.max_code, magnitude.bit_count(), magnitude, value != magnitude

    def steps(self, value: int) -> Sequence[int]:
        """Without the sign, without one bit, or with one bit alone."""
        form = get(self.fmt)
        found = {0, value & ~form.sign_mask} | {value & ~(1 << k) for k in range(form.bits)}
        found |= {1 << k for k in range(form.bits)} | {
            value - (1 << k) // 2 for k in range(form.bits) if value >> k & 1
        }
        own = self.size(value)
        return sorted((v for v in found if self.has(v) and self.size(v) < own), key=self.size)

    def show(self, value: int) -> Many:
        """The code, its fields and its value."""
        form = get(self.fmt)
        if not 0 <= value < 1 << form.bits:
            note = say("no code of {name}", name=form.name)
            return (Shown(f"{of_whole(value, hexadecimal=True)}  ({note})"),)
        shown = of_code(value, self.fmt)
        return (Shown(f"{value:#0{2 + -(-form.bits // 4)}x} = {shown.text}", shown.fields, shown.of),)


@dataclass(frozen=True)
class Ratios:
    """Exact rational answers: an integer, a Fraction, or a float that is meant exactly. As arguments: quarters."""

    def boundary(self) -> Sequence[Fraction]:
        """Nothing, one, a half."""
        return [Fraction(0), Fraction(1), Fraction(1, 2)]

    def draw(self, words: Words) -> Fraction:
        """A small quotient."""
        return Fraction(words.below(64), 1 + words.below(8))

    def read(self, given: Any) -> Fraction:
        """A Fraction of the number, exactly."""
        return ratio(given, say("a Fraction"))

    def key(self, value: Fraction) -> Hashable:
        """The number."""
        return value

    def size(self, value: Fraction) -> shrink.Size:
        """Small numerator and denominator."""
        return value.denominator, abs(value.numerator), value < 0

    def steps(self, value: Fraction) -> Sequence[Fraction]:
        """Whole numbers, and a smaller numerator."""
        found = {Fraction(0), Fraction(int(value)), Fraction(int(value.numerator / 2), value.denominator)}
        return sorted((v for v in found if self.size(v) < self.size(value)), key=self.size)

    def show(self, value: Fraction) -> Many:
        """As a ratio; a float that was given for one as a float, with a word on why it is none."""
        if value.denominator == 1:
            return (Shown(of_whole(value.numerator)),)
        if (
            value.denominator >= 1 << 32
            and value.denominator.bit_count() == 1
            and abs(value) < 1
            and float(value) == value
        ):
            note = say("a float, which is rounded: a Fraction is exact")
            return (Shown(f"{float(value)!r}  ({note})"),)
        ratio = f"{of_whole(value.numerator)}/{of_whole(value.denominator)}"
        return (Shown(ratio + (f" ≈ {float(value):.9g}" if abs(value) < 2**1023 else "")),)


@dataclass(frozen=True)
class Options:
    """One of a few values, the simplest first: words, or False and True."""

    values: tuple[Any, ...]

    def boundary(self) -> Sequence[Any]:
        """All of them."""
        return self.values

    def draw(self, words: Words) -> Any:
        """One of them."""
        return words.pick(self.values)

    def read(self, given: Any) -> Any:
        """The option that is meant; the case of words does not matter."""
        if isinstance(given, np.bool_):
            given = bool(given)
        for value in self.values:
            if isinstance(value, str) and isinstance(given, str) and value.lower() == given.strip().lower():
                return value
            if type(value) is type(given) and value == given:
                return value
        names = ", ".join(map(repr, self.values))
        raise unfit(given, say("one of {names}", names=names))

    def key(self, value: Any) -> Hashable:
        """The option."""
        return str(value)

    def size(self, value: Any) -> shrink.Size:
        """Its place in the list."""
        return (self.values.index(value),)

    def steps(self, value: Any) -> Sequence[Any]:
        """Those before it."""
        return self.values[: self.values.index(value)]

    def show(self, value: Any) -> Many:
        """As it is written."""
        return (Shown(str(value)),)


@dataclass(frozen=True)
class Bits:
    """A string of binary digits for a format's code; spaces and underscores are for the reader."""

    fmt: str

    def boundary(self) -> Sequence[int]:
        """Never an argument."""
        return [0]

    def draw(self, words: Words) -> int:
        """Never an argument."""
        return 0

    def read(self, given: Any) -> int:
        """The code: from a string of exactly as many digits as the format has, or an integer."""
        bits = get(self.fmt).bits
        if isinstance(given, str):
            digits = given.replace(" ", "").replace("_", "").removeprefix("0b")
            if len(digits) == bits and set(digits) <= {"0", "1"}:
                return int(digits, 2)
            raise unfit(given, say("a string of {bits} binary digits", bits=bits))
        return whole(given, say("a string of {bits} binary digits", bits=bits))

    def key(self, value: int) -> Hashable:
        """The code."""
        return value

    def size(self, value: int) -> shrink.Size:
        """Small codes first."""
        return (value,)

    def steps(self, value: int) -> Sequence[int]:
        """Never an argument."""
        return []

    def show(self, value: int) -> Many:
        """The bits and what they mean."""
        return Codes(self.fmt).show(value)


@dataclass(frozen=True)
class Lists:
    """Lists of one kind, from ``least`` to ``most`` elements; as an answer, of any length."""

    item: Kind
    least: int
    most: int
    edges: tuple[tuple[Any, ...], ...] = field(default=())

    def boundary(self) -> Sequence[tuple[Any, ...]]:
        """Every boundary element, repeated; lists of the least, of the most and of some lengths between."""
        lengths = sorted({self.least, min(self.least + 1, self.most), self.most})
        items = self.item.boundary()
        found = [(item,) * n for n in lengths for item in (items if n <= 8 else items[:4])]
        ramps = [tuple(items[(i + turn) % len(items)] for i in range(n)) for n in lengths for turn in (0, 1)]
        return sorted(dict.fromkeys([*found, *ramps, *self.edges]), key=self.size)

    def draw(self, words: Words) -> tuple[Any, ...]:
        """A random length; now and then one element repeated."""
        n = self.least + words.below(self.most - self.least + 1)
        if words.below(4) == 0:
            return (self.item.draw(words),) * n
        return tuple(self.item.draw(words) for _ in range(n))

    def read(self, given: Any) -> tuple[Any, ...]:
        """A list, a tuple or an array of one dimension."""
        found = items(given)
        if not isinstance(found, list | tuple):
            raise unfit(given, say("a list"))
        return tuple(self.item.read(v) for v in found)

    def key(self, value: tuple[Any, ...]) -> Hashable:
        """The elements' keys."""
        return tuple(self.item.key(v) for v in value)

    def size(self, value: tuple[Any, ...]) -> shrink.Size:
        """Short lists first."""
        return len(value), tuple(self.item.size(v) for v in value)

    def steps(self, value: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        """Shorter lists, then simpler elements."""
        own = self.size(value)
        found = dict.fromkeys(shrink.list_steps(value, self.least, self.item.steps))
        return [v for v in found if self.size(v) < own]

    def show(self, value: tuple[Any, ...]) -> Many:
        """An element a line; long lists are shortened, runs counted."""
        if not value:
            return (Shown("[]"),)
        lines = []
        for item, count in runs(value, self.item):
            first = self.item.show(item)[0]
            lines.append(first if count == 1 else Shown(f"{first.text}  ({count}×)", first.fields, first.of))
        return (*lines[:16], Shown(f"... ({len(value)})")) if len(lines) > 17 else tuple(lines)


def runs(value: Sequence[Any], kind: Kind) -> Iterator[tuple[Any, int]]:
    """Equal neighbours counted."""
    at = 0
    while at < len(value):
        end = at + 1
        while end < len(value) and kind.key(value[end]) == kind.key(value[at]):
            end += 1
        yield value[at], end - at
        at = end


@dataclass(frozen=True)
class Several:
    """A tuple of given kinds, as answers of more than one part; ``names`` label the parts."""

    kinds: tuple[Kind, ...]
    names: tuple[str, ...]

    def boundary(self) -> Sequence[tuple[Any, ...]]:
        """Each part's first."""
        return [tuple(kind.boundary()[0] for kind in self.kinds)]

    def draw(self, words: Words) -> tuple[Any, ...]:
        """Each part by itself."""
        return tuple(kind.draw(words) for kind in self.kinds)

    def read(self, given: Any) -> tuple[Any, ...]:
        """A tuple, list or array of that many parts."""
        found = items(given)
        if not isinstance(found, list | tuple) or len(found) != len(self.kinds):
            parts = ", ".join(self.names)
            raise unfit(given, say("a tuple ({parts})", parts=parts))
        return tuple(kind.read(v) for kind, v in zip(self.kinds, found, strict=True))

    def key(self, value: tuple[Any, ...]) -> Hashable:
        """The parts' keys."""
        return tuple(kind.key(v) for kind, v in zip(self.kinds, value, strict=True))

    def size(self, value: tuple[Any, ...]) -> shrink.Size:
        """The parts' sizes in order."""
        return tuple(kind.size(v) for kind, v in zip(self.kinds, value, strict=True))

    def steps(self, value: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        """One part simpler."""
        return [(*value[:i], one, *value[i + 1 :]) for i, kind in enumerate(self.kinds) for one in kind.steps(value[i])]

    def show(self, value: tuple[Any, ...]) -> Many:
        """A line a part, under its name."""
        lines = []
        for name, kind, part in zip(self.names, self.kinds, value, strict=True):
            lines += [Shown(f"{name} {shown.text}", shown.fields, shown.of) for shown in kind.show(part)]
        return tuple(lines)
