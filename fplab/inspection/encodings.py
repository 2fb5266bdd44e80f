"""Ways to read bits behind one face: floating-point formats, integers with a scale, and codebooks."""

import functools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .. import codebooks, exact, integers
from ..codebooks import oracle, tree
from ..codebooks.books import Codebook
from ..draw.page import Said, two_to
from ..errors import LabError, unknown
from ..exact import Exact
from ..formats import TABLE, Format
from ..words import say, say_of
from . import rows
from .given import Given
from .rows import Encoding, Fields, Row


@dataclass(frozen=True)
class FloatCodes:
    """A floating-point format; conversions round to nearest even, by the format's own overflow policy."""

    format: Format
    scaled = False

    @property
    def name(self) -> str:
        return self.format.name

    @property
    def bits(self) -> int:
        return self.format.bits

    def fields(self, code: int) -> Fields:
        return rows.bit_fields(code, self.format)

    def value(self, code: int, scale: float) -> Exact:
        return exact.decode(code, self.format)

    def nearest(self, x: Exact, scale: float) -> int:
        """The oracle's rounding."""
        return exact.round_to(x, self.format)[0]

    def neighbour(self, code: int, up: bool) -> int | None:
        """The next value of the format, infinities included; both zeros are one value."""
        value = rows.neighbours(code, self.format)[int(up)]
        return None if value is None else exact.round_to(value, self.format)[0]

    def kind(self, code: int) -> Said:
        return str(rows.CLASSES[rows.classify(exact.decode(code, self.format), self.format)])

    def formula(self, code: int) -> Said:
        """Sign, power of two and significand."""
        form = self.format
        x = exact.decode(code, form)
        if x.kind != "finite":
            return say("exponent and fraction name no number")
        magnitude = code & ~form.sign_mask
        field, fraction = magnitude >> form.fraction_bits, magnitude & ((1 << form.fraction_bits) - 1)
        hidden = int(field != 0 or not form.zero)
        exponent = max(field, int(form.zero)) - int(form.zero) + form.emin
        sign = "−" if code & form.sign_mask else ""
        digits = f".{fraction:0{form.fraction_bits}b}" if form.fraction_bits else ""
        return f"{sign}{hidden}{digits}₂ × {two_to(exponent)}"


@dataclass(frozen=True)
class IntegerCodes:
    """Integers times a scale, negative ones in two's complement: ``fplab.integers`` with zero point 0."""

    name: str
    grid: str
    scaled = True

    @property
    def bits(self) -> int:
        return integers.grids.get(self.grid).bits

    def integer(self, code: int) -> int:
        """The integer of a bit pattern."""
        low = integers.grids.get(self.grid).low
        return code - (1 << self.bits) if low < 0 and code >> (self.bits - 1) else code

    def _how(self, scale: float) -> integers.Affine:
        grid = integers.grids.get(self.grid)
        return integers.Affine(np.float32(scale), np.int32(0), grid)  # type: ignore[arg-type]

    def fields(self, code: int) -> Fields:
        digits = f"{code:0{self.bits}b}"
        signed = integers.grids.get(self.grid).signed
        return (("sign", digits[0]), ("integer", digits[1:])) if signed else (("integer", digits),)

    def value(self, code: int, scale: float) -> Exact:
        return exact.from_float(float(integers.dequantize(self.integer(code), self._how(scale))))

    def nearest(self, x: Exact, scale: float) -> int:
        """Rounded and clipped, as ``fplab.integers.quantize`` does."""
        code = int(integers.quantize(as_float(x, self.name), self._how(scale)))
        return code & ((1 << self.bits) - 1)

    def neighbour(self, code: int, up: bool) -> int | None:
        grid = integers.grids.get(self.grid)
        after = self.integer(code) + (1 if up else -1)
        return after & ((1 << self.bits) - 1) if grid.low <= after <= grid.high else None

    def kind(self, code: int) -> Said:
        return say("integer {n}", n=self.integer(code))

    def formula(self, code: int) -> Said:
        """The weights of the bits that are set."""
        top, signed = self.bits - 1, integers.grids.get(self.grid).signed
        weights = [-(1 << i) if signed and i == top else 1 << i for i in range(top, -1, -1) if code >> i & 1]
        return f"({' + '.join(map(str, weights)) or '0'}) × " + str(say("scale"))


@dataclass(frozen=True)
class BookCodes:
    """A codebook: the code looks up a value in [-1, 1], which counts in units of the block's largest magnitude."""

    name: str
    book: Codebook
    scaled = True

    @property
    def bits(self) -> int:
        return self.book.bits

    @property
    def is_tree(self) -> bool:
        """Whether the bits of a code say more than a place in a table."""
        return self.name == "dynamic_tree"

    def fields(self, code: int) -> Fields:
        digits = f"{code:0{self.bits}b}"
        if not self.is_tree:
            return (("index", digits),)
        zeros, width = (seen := tree.fields(code, self.bits)).zeros, seen.width
        parts = (("sign", digits[0]), ("zeros", digits[1 : 1 + zeros]), ("indicator", digits[1 + zeros : 2 + zeros]))
        return tuple(part for part in (*parts, ("fraction", digits[2 + zeros :] if width > 0 else "")) if part[1])

    def value(self, code: int, scale: float) -> Exact:
        return exact.from_float(float(np.float32(self.book.table[code]) * np.float32(scale)))

    def nearest(self, x: Exact, scale: float) -> int:
        """The nearest value, as in a block whose largest magnitude is the scale; what lies beyond is clipped to it."""
        most = Fraction(float(np.float32(scale)))
        inside = max(-most, min(most, Fraction(as_float(x, self.name))))
        block = np.array([float(inside), float(most)])
        # By the definition, not the kernel, which would have to be compiled at the first move.
        return int(oracle.quantize(block, self.book, 2)[0][0])

    def neighbour(self, code: int, up: bool) -> int | None:
        order = np.unique(self.book.table)
        rank = int(np.searchsorted(order, self.book.table[code])) + (1 if up else -1)
        return int(np.flatnonzero(self.book.table == order[rank])[0]) if 0 <= rank < order.size else None

    def kind(self, code: int) -> Said:
        order = np.unique(self.book.table)
        rank = int(np.searchsorted(order, self.book.table[code])) + 1
        return say("value {rank} of {size}", rank=rank, size=order.size)

    def formula(self, code: int) -> Said:
        """The tree's decade and fraction, or the looked-up value."""
        largest = say_of("encodings", "largest magnitude")
        if not self.is_tree:
            value = float(self.book.table[code])
            return say("table[{code}] = {value!r} × {largest}", code=code, value=value, largest=largest)
        seen = tree.fields(code, self.bits)
        if seen.width < 0:
            return say("no indicator: zero")
        share = f" × {seen.fraction}/{2**seen.width - 1}" if seen.width else ""
        return f"{'−' if seen.negative else ''}10^−{seen.zeros}{share} × {largest}"


def as_float(x: Exact, name: str) -> float:
    """A finite number as a float, clipped to FP32's range; integers and codebooks have nothing else."""
    if x.kind != "finite":
        raise LabError(say("{format} has neither NaN nor infinity.", format=name))
    most = 3.4028234663852886e38
    return float(max(-Fraction(most), min(Fraction(most), x.value)))


@functools.cache
def encodings() -> dict[str, Encoding]:
    """All encodings by name: the formats of the table, INT8 and INT4, dynamic tree, dynamic and NF4."""
    table: list[Encoding] = [FloatCodes(form) for form in TABLE]
    table += [IntegerCodes(name, f"{name}_full") for name in ("int8", "int4")] + [IntegerCodes("uint8", "uint8")]
    table += [BookCodes("dynamic_tree", codebooks.dynamic_tree()), BookCodes("dynamic", codebooks.dynamic())]
    table += [BookCodes("nf4", codebooks.nf4())]
    return {encoding.name: encoding for encoding in table}


def get(name: str) -> Encoding:
    if name not in encodings():
        raise unknown("encoding", name, encodings())
    return encodings()[name]


def look_up(given: Given, encoding: Encoding, scale: float) -> Row:
    """A value in integers or a codebook, rounded to nearest and clipped: its code, its error, its neighbours."""
    if given.value.kind != "finite":
        nothing = say("{format} has neither NaN nor infinity", format=encoding.name)
        return Row(encoding, given.value, None, None, None, None, None, None, None, 0, nothing, scale)
    code = encoding.nearest(given.value, scale)
    stored = encoding.value(code, scale)
    error = stored.value - given.value.value
    relative = None if given.value.is_zero else error / given.value.magnitude
    ends = (encoding.neighbour(code, up) for up in (False, True))
    below, above = (None if end is None else encoding.value(end, scale) for end in ends)
    return Row(encoding, given.value, code, stored, error, relative, None, below, above, 0, scale=scale)
