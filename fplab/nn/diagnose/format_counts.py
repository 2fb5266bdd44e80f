"""What any candidate format makes of the values of a run, and of their changes, without another look at them.

A format decides by three edges what becomes of a magnitude: from where it is not zero, from where it is normal, from
where it is beyond the largest value, each the midpoint of two neighbours with its tie. At a scale of 2**s the edges
lie s binades lower and no nearer to their binade's ends. Counting by binade and by the fractions of all edges is
therefore enough for every format and every power-of-two scale, and exact.

A weight w held in a format and changed by u stays what it is exactly when w + u rounds back to w: when \\|u\\| is less
than half the spacing on u's side, or equal to it and w's significand even. u is the FP32 difference that the run made;
w is what the format makes of the weight before the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import formats
from ...errors import LabError
from ...exact import magnitude_of
from ...formats import Format, FormatLike, Overflow, overflow
from ...threads import split
from .tensors import Array

if TYPE_CHECKING:
    from ..device.counting import DeviceBits

Key = tuple[str, str]  # kind, layer

REACH = 64  # binades that a loss scale may move what was counted
LOWEST, HIGHEST = -149 - REACH, 127 + REACH
BINADES = HIGHEST - LOWEST + 1
SPECIAL, ZERO = BINADES, BINADES + 1
WORTH_SHARING = 1 << 18  # elements from which threads share the counting; torch's own are busy with the model
RESOLVED = 24  # binades below a tensor's largest: half an ulp of FP32 there, the error of any sum that it is part of
MOST_FRACTION_BITS = 21  # whose midpoints float32 holds with a bit to spare


class Edge(NamedTuple):
    """The smallest magnitude on the far side: 2**exponent * (1 + cut / 2**23)."""

    exponent: int
    cut: int


class Edges(NamedTuple):
    """Where a format's answer changes."""

    survives: Edge
    normal: Edge
    overflows: Edge


class Fates(NamedTuple):
    """How many values a format, at a scale, makes what.

    ``zero``: were zero. ``vanish``: are rounded to zero. ``underflow``: become subnormal and lose bits of precision.
    ``normal``: keep the format's precision. ``overflow``: lie beyond the largest value. ``infinite``, ``nan``: were.
    """

    zero: int
    vanish: int
    underflow: int
    normal: int
    overflow: int
    infinite: int
    nan: int

    @property
    def nonzero(self) -> int:
        """Finite values other than zero, of which the shares below are."""
        return self.vanish + self.underflow + self.normal + self.overflow

    def share(self, *names: str) -> float:
        """The part of the finite non-zero values with these fates, 0 to 1."""
        return float(sum(getattr(self, name) for name in names) / max(self.nonzero, 1))


def candidate(fmt: FormatLike) -> Format:
    """A format that values could be held in instead of FP32, or an error that says why it cannot."""
    form = formats.get(fmt)
    if not (form.signed and form.zero and form.fits_float32 and 1 <= form.fraction_bits <= MOST_FRACTION_BITS):
        names = [f.name for f in formats.TABLE if f.signed and f.zero and f.fraction_bits <= MOST_FRACTION_BITS]
        raise LabError(
            f"{form.name} is no candidate to replace FP32. Allowed: {', '.join(names)}, or a record like them."
        )
    return form


def edge(fmt: Format, code: int) -> Edge:
    """From where a magnitude is rounded, to nearest with ties to even, to ``code`` or beyond."""
    middle = (magnitude_of(code - 1, fmt) + magnitude_of(code, fmt)) / 2
    exponent = math.frexp(float(middle))[1] - 1
    fraction = (middle / Fraction(2) ** exponent - 1) * 2**23
    assert fraction.denominator == 1
    cut = int(fraction) + code % 2  # the tie goes to the even code
    return Edge(exponent + 1, 0) if cut == 1 << 23 else Edge(exponent, cut)


def edges(fmt: Format) -> Edges:
    """The three edges of a format.

    >>> edges(formats.get("fp16")).overflows  # 65520 = 2**15 * (1 + 0x7ff000 / 2**23)
    Edge(exponent=15, cut=8384512)
    """
    return Edges(edge(fmt, 1), edge(fmt, 1 << fmt.fraction_bits), edge(fmt, fmt.max_code + 1))


class Cuts:
    """Where the candidates part what is counted: a table has a row for each binade, a place for each edge within."""

    def __init__(self, candidates: Sequence[Format]) -> None:
        self.formats = tuple(candidates)
        self._edges = {form: edges(form) for form in self.formats}
        result = {e.cut for three in self._edges.values() for e in three} | {1}  # 1: a NaN is no infinity
        self._cuts = np.array(sorted(result - {0}), np.uint32)
        self.places = len(self._cuts) + 1

    def fates(self, table: Array, fmt: Format, log2_scale: int = 0) -> Fates:
        """What a format makes of a table's values times ``2**log2_scale``."""
        if fmt not in self._edges:
            names = ", ".join(f.name for f in self.formats)
            raise LabError(f"{fmt.name} was not watched for; allowed: {names}. Pass formats=[...] to watch.")
        counted = table[:BINADES]
        nonzero = int(counted.sum())
        survive, normal, over = (self._at_least(counted, e, log2_scale) for e in self._edges[fmt])
        zero, infinite = int(table[ZERO].sum()), int(table[SPECIAL, 0])
        normal = max(normal, over)  # in a format whose largest value is subnormal at this scale nothing is normal
        return Fates(
            zero, nonzero - survive, survive - normal, normal - over, over, infinite,
            int(table[SPECIAL].sum()) - infinite,
        )  # fmt: skip

    def _at_least(self, counted: Array, e: Edge, log2_scale: int) -> int:
        """How many values, once scaled, reach an edge."""
        row = e.exponent - log2_scale - LOWEST
        if row < 0:
            return int(counted.sum())
        if row >= BINADES:
            return 0
        place = int(np.searchsorted(self._cuts, e.cut, side="left")) + 1 if e.cut else 0
        return int(counted[row + 1 :].sum()) + int(counted[row, place:].sum())


class Tables(Cuts):
    """A table of counts for every kind and layer: 29 kB each for four formats, however many values are counted."""

    def __init__(self, candidates: Sequence[Format]) -> None:
        from ...kernels import histogram

        super().__init__(candidates)
        self._kernels = histogram
        self._scratch = self._new_scratch()
        self._tables: dict[Key, Array] = {}
        self._stacks: dict[tuple[str, tuple[str, ...]], Array] = {}

    def _new_scratch(self) -> Array:
        return np.zeros((self._kernels.WAYS, self._kernels.ROWS * self.places), np.uint32)

    def _table(self, kind: str, layer: str) -> Array:
        result = self._tables.get((kind, layer))
        if result is None:
            result = self._tables[kind, layer] = np.zeros((BINADES + 2, self.places), np.int64)
        return result

    def add(self, kind: str, layer: str, bits: Array | DeviceBits, shift: int = 0) -> None:
        """Count float32 ``bits``, uint32 (n,), after division by 2**shift (at most 2**±64)."""
        table = self._table(kind, layer)
        if not isinstance(bits, np.ndarray):  # on a GPU
            found, first = bits.counts(self._cuts), REACH - shift
            table[first : first + len(found) - 2] += found[:-2]
            table[-2:] += found[-2:]
            return

        def part(start: int, stop: int) -> Array:
            scratch = self._scratch if stop - start == bits.size else self._new_scratch()
            self._kernels.count(bits[start:stop], self._cuts, scratch)
            return scratch

        for scratch in split(part, bits.size) if bits.size >= WORTH_SHARING else [part(0, bits.size)]:
            self._kernels.gather(scratch, table, REACH - shift)

    def add_parts(self, kind: str, layers: tuple[str, ...], bits: Array, offsets: Array) -> None:
        """Count ``bits[offsets[i]:offsets[i+1]]`` for ``layers[i]``, all different."""
        stack = self._stacks.get((kind, layers))
        if stack is None and not any((kind, layer) in self._tables for layer in layers):
            stack = self._stacks[kind, layers] = np.zeros((len(layers), BINADES + 2, self.places), np.int64)
            self._tables |= {(kind, layer): table for layer, table in zip(layers, stack, strict=True)}
        if stack is not None:
            self._kernels.count_parts(bits, offsets, self._cuts, self._scratch, stack, REACH)
            return
        for i, layer in enumerate(layers):  # other layers than at first: some had no gradient then
            self.add(kind, layer, bits[offsets[i] : offsets[i + 1]])

    def scan(self, bits: Array | DeviceBits) -> tuple[int, int, int]:
        """The largest magnitude's bits and two digests of float32 ``bits``."""
        if not isinstance(bits, np.ndarray):
            return bits.scan()
        result: tuple[int, int, int] = self._kernels.scan(bits)
        return result

    def scan_parts(self, bits: Array, offsets: Array) -> Array:
        """:meth:`scan` of every part, int64 (parts, 3)."""
        out = np.empty((len(offsets) - 1, 3), np.int64)
        self._kernels.scan_parts(bits, offsets, out)
        return out

    def __contains__(self, key: Key) -> bool:
        return key in self._tables

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tables)

    def merged(self, keys: Iterable[Key]) -> Array:
        """The sum of several tables, int64 (rows, places)."""
        total = np.zeros((BINADES + 2, self.places), np.int64)
        for key in keys:
            total += self._tables[key]
        return total


def histogram(table: Array) -> tuple[Array, Array]:
    """Binades and how many values lie in each, int64 (B,) both, from the lowest in use to the highest."""
    counts = table[:BINADES].sum(axis=1)
    used = np.flatnonzero(counts)
    if not used.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    low, high = int(used[0]), int(used[-1]) + 1
    return np.arange(low, high) + LOWEST, counts[low:high]


def resolved(table: Array) -> Array:
    """A table's counts with the values below 2**-24 of the largest as zeros.

    FP32's own rounding makes such values of what is zero in theory, the gradients of a causal attention's first query
    and of biases of keys among them: what a format makes of them says nothing about the format.
    """
    used = np.flatnonzero(table[:BINADES].sum(axis=1))
    low = max(int(used[-1]) - RESOLVED, 0) if used.size else 0
    result = table.copy()
    result[ZERO] += result[:low].sum(axis=0)
    result[:low] = 0
    return result


class Lost(NamedTuple):
    """Changes of the values of one layer over the steps counted.

    ``moved``: how many were not zero. ``still``: values with a gradient that did not change at all, in the format they
    are held in. ``absorbed``: of the moved ones, how many each format would lose, by its name.
    """

    moved: int
    still: int
    absorbed: dict[str, int]

    @property
    def pushed(self) -> int:
        """All changes: those that moved a value, and those that did not show."""
        return self.moved + self.still

    def share(self, fmt: str) -> float:
        """The part of the changes that a format loses, 0 to 1."""
        return self.absorbed[fmt] / max(self.moved, 1)


class Losses:
    """Counts by kind and layer of the changes that each format would lose."""

    def __init__(self, candidates: Sequence[Format]) -> None:
        from ...kernels import histogram
        from ...kernels.rounding import stream_keys
        from ...plans import fast, options

        self._kernels = histogram
        self._keys = stream_keys(np.uint64(0), np.uint64(0))
        self._formats = []
        for form in candidates:
            opt = options(form, nan="max" if not form.has_nan else None)
            self._formats.append((form, opt, fast(form, opt) if form.has_negative_zero else None, _spec(form)))
        self._counts: dict[tuple[str, str], Array] = {}
        self._rounded = np.empty(0, np.float32)

    def add(
        self, kind: str, layers: tuple[str, ...], before: Array, moves: Array, offsets: Array,
        pushes: Array | None = None,
    ) -> None:  # fmt: skip
        """Count the changes ``moves`` of values ``before``, float32 (n,), layer by layer.

        ``pushes``: float32 (n,), the gradients; where one is not zero and nothing moved, the value stood still.
        """
        if self._rounded.size != before.size:
            self._rounded = np.empty(before.size, np.float32)
        bits = moves.view(np.uint32)
        result = np.zeros((len(layers), 2 + len(self._formats)), np.int64)
        self._kernels.still_parts(bits if pushes is None else pushes.view(np.uint32), bits, offsets, result[:, :2])
        for i, (form, opt, kernel, spec) in enumerate(self._formats):
            self._round(before, form, opt, kernel)
            self._kernels.absorbed_parts(self._rounded.view(np.uint32), bits, offsets, spec, result[:, 2 + i])
        for layer, row in zip(layers, result, strict=True):
            self._counts[kind, layer] = self._counts.get((kind, layer), 0) + row

    def _round(self, x: Array, form: Format, opt: Any, kernel: Any) -> None:
        """The values rounded by the lab's kernels, on this thread: handing over a few thousand of them costs more."""
        if kernel is None or (not form.has_nan and np.isnan(x).any()):
            from ...floats import round_into

            round_into(x, self._rounded, form, opt, np.uint64(0))
            return
        rounder, plan = kernel
        rounder(x.view(np.uint32), self._rounded.view(np.uint32), plan, 0, *self._keys, 0, False)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._counts

    def get(self, kind: str, layer: str) -> Lost:
        """The counts of a layer, none if nothing was counted."""
        row = self._counts.get((kind, layer), np.zeros(2 + len(self._formats), np.int64))
        absorbed = {form.name: int(n) for (form, *_), n in zip(self._formats, row[2:], strict=True)}
        return Lost(int(row[0]), int(row[1]), absorbed)


def merged(found: Sequence[Lost]) -> Lost:
    """The counts of several layers together."""
    names = found[0].absorbed
    absorbed = {name: sum(item.absorbed[name] for item in found) for name in names}
    return Lost(sum(item.moved for item in found), sum(item.still for item in found), absorbed)


def _spec(form: Format) -> Any:
    """What the kernel needs to know of a format."""
    from ...kernels.histogram import Sum

    largest = int(np.float32(form.max).view(np.uint32))
    return Sum(form.emin + 127, form.fraction_bits, largest, int(overflow(None, form) is Overflow.SATURATE))
