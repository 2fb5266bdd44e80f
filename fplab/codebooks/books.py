"""Codebooks as frozen records: up to 256 float32 values in [-1, 1], and the codes by which they are stored."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np

from .. import exact
from ..arrays import as_array, widened
from ..arrays import values as read
from ..errors import LabError, chosen, door, integer, quoted, quotes_call, summary
from . import tree

Array = np.ndarray[Any, Any]
MOST = 256
NF4_OFFSET = 0.9677083  # the probability of NF4's largest quantile


@door
@dataclass(frozen=True, eq=False)
class Codebook:
    """A table of values that blocks, scaled to [-1, 1], are quantised to.

    ``name``: what it is called. ``values``: float32, 2 to 256 of them, ascending, finite; the *rank* of a value is its
    place here. ``made``: how they were made, and where that is published. ``codes``: uint8, the code by which each
    value is stored; None where that is its rank.

    Raises :class:`LabError` for values that are not ascending or not finite, with the first offender.

    >>> thirds = Codebook("thirds", [-1, -1 / 3, 1 / 3, 1], made="evenly spaced, without a zero")
    >>> thirds.bits, thirds.signed
    (2, True)
    """

    name: str
    values: Array
    made: str = ""
    codes: Array | None = field(default=None)

    def __post_init__(self) -> None:
        try:
            values = frozen(_ascending(self.values))
            codes = None if self.codes is None else frozen(_distinct(self.codes, values.size))
        except LabError as error:
            raise LabError(f"fplab.codebooks.Codebook({self.name!r}, ...): {error}") from None
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "codes", codes)

    def __repr__(self) -> str:
        return f"Codebook({self.name!r}, {self.values.size} values from {self.values[0]:g} to {self.values[-1]:g})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codebook) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @functools.cached_property
    def _identity(self) -> tuple[str, bytes, bytes]:
        return self.name, self.values.tobytes(), b"" if self.codes is None else self.codes.tobytes()

    def __len__(self) -> int:
        return int(self.values.size)

    @functools.cached_property
    def bits(self) -> int:
        """Width of a code."""
        return int(len(self) - 1 if self.codes is None else self.codes.max()).bit_length()

    @property
    def signed(self) -> bool:
        return bool(self.values[0] < 0)

    @functools.cached_property
    def table(self) -> Array:
        """The value of every code, float32 (2**bits,); a code that stores nothing reads as 0."""
        table = np.zeros(1 << self.bits, np.float32)
        table[np.arange(len(self)) if self.codes is None else self.codes] = self.values
        return frozen(table)

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of :attr:`table` as little-endian float32."""
        return hashlib.sha256(self.table.astype("<f4").tobytes()).hexdigest()


def frozen(array: Array) -> Array:
    copy = np.array(array)
    copy.setflags(write=False)
    return copy


def _ascending(values: Any) -> Array:
    try:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            table = np.asarray(values, np.float64).reshape(-1)
    except Exception:  # whatever a list of tensors raises
        raise LabError(f"values={quoted(values)} is no list of numbers.") from None
    if not 2 <= table.size <= MOST:
        raise LabError(f"{table.size} values; a codebook has 2 to {MOST}.")
    bad = np.flatnonzero(~np.isfinite(table))
    if bad.size:
        raise LabError(f"value {int(bad[0])} is {table[bad[0]]}; every value of a codebook is finite.")
    with np.errstate(over="ignore"):
        narrow = table.astype(np.float32)
    if np.abs(narrow).max() > 1:
        worst = int(np.argmax(np.abs(narrow)))
        raise LabError(f"value {worst} is {float(table[worst])!r}; blocks are scaled to [-1, 1], so divide by it.")
    falls = np.flatnonzero(~(narrow[1:] > narrow[:-1]))
    if falls.size:
        at = int(falls[0])
        raise LabError(
            f"value {at + 1} is {float(narrow[at + 1])!r}, after {float(narrow[at])!r}: values are ascending and "
            "distinct in float32; pass numpy.unique(values)."
        )
    return narrow


def _distinct(codes: Any, size: int) -> Array:
    values = as_array(codes, "codes")
    if values.dtype.kind not in "iu" or values.shape != (size,) or len(set(values.tolist())) != size:
        raise LabError(f"codes are {size} distinct integers, one for each value; given {values.dtype}{values.shape}.")
    if values.min() < 0 or values.max() >= MOST:
        raise LabError(f"codes from {values.min()} to {values.max()}; a code is 0 to {MOST - 1}.")
    return values.astype(np.uint8)


def evenly_spaced(low: float, high: float, count: int) -> Array:
    """``count`` float32 values as torch spaces them: from both ends to the middle, each with one rounding.

    numpy's ``linspace`` gives other bits, and with them other codebooks.
    """
    first, last = np.float64(np.float32(low)), np.float64(np.float32(high))
    step = np.float64(np.float32(np.float32(last - first) / np.float32(count - 1)))
    i = np.arange(count)
    from_low, from_high = first + step * i, last - step * (count - 1 - i)
    return np.where(i < count // 2, from_low, from_high).astype(np.float32)


@quotes_call
def linear(signed: bool = True, bits: int = 8) -> Codebook:
    """Even steps: ``2**bits - 1`` levels from -1 to 1, or ``2**bits`` from 0 to 1.

    The 8-bit signed map of bitsandbytes is this one and its zero beside it: the middle of its 255 levels, added up in
    float32, is not 0 but 3.7e-9, so it has 256 values, two of them within 1e-8 (``linear`` keeps both).

    >>> linear().values[126:129]
    array([-7.8740194e-03,  0.0000000e+00,  3.7252903e-09], dtype=float32)
    """
    bits = integer("bits", bits, 2, 8)
    made = "even steps (bitsandbytes, create_linear_map)"
    if not signed:
        return Codebook(f"linear unsigned {bits}-bit", evenly_spaced(0, 1, 2**bits), made)
    levels = evenly_spaced(-1, 1, 2**bits - 1)
    return Codebook(f"linear {bits}-bit", np.unique(np.append(levels, np.float32(0))), made)


@quotes_call
def dynamic(signed: bool = True, bits: int = 8) -> Codebook:
    """The dynamic map: decades from 1 down, each half as finely cut as the one above; then 0 and 1.

    With n bits left for the fraction, the decade from 10**-(k+1) to 10**-k has the centres of 2**n equal bins; the
    highest decade of a signed map of 8 bits has 64. The unsigned map has one bit more for every decade: the sign's.

    Source: T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022 (arXiv 2110.02861), with the
    values of bitsandbytes' ``create_dynamic_map(signed, bits - 1, bits)``.

    >>> dynamic().values[[0, 126, 127, 128, 255]]
    array([-9.9296874e-01, -5.5000004e-07,  0.0000000e+00,  5.5000004e-07,
            1.0000000e+00], dtype=float32)
    """
    bits = integer("bits", bits, 2, 8)
    decades = bits - 1
    parts: list[Array] = []
    for i in range(decades):
        edges = evenly_spaced(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        centres = (edges[:-1] + edges[1:]) / np.float32(2)
        parts.append(np.float32(10.0 ** (i + 1 - decades)) * centres)
    positive = np.concatenate(parts)
    negative = -positive if signed else positive[:0]
    values = np.sort(np.concatenate([negative, positive, np.array([0, 1], np.float32)]))
    name = f"dynamic {bits}-bit" if signed else f"dynamic unsigned {bits}-bit"
    return Codebook(name, values, "decades of bin centres (arXiv 2110.02861, values of bitsandbytes)")


@quotes_call
def dynamic_tree(bits: int = 8) -> Codebook:
    """The dynamic tree literally: sign, zeros as a negative power of ten, a one, a linear fraction.

    Codes are the bit patterns (:func:`fplab.codebooks.tree.fields`). Of 256 codes of 8 bits, 14 read as zero, so there
    are 243 values.

    Source: T. Dettmers, 8-Bit Approximations for Parallelism in Deep Learning (arXiv 1511.04561), and arXiv 2110.02861,
    section 1.3.

    >>> book = dynamic_tree()
    >>> len(book), float(book.table[0b0_001_1001])
    (243, 0.006000000052154064)
    """
    bits = integer("bits", bits, 3, 8)
    ranked: dict[Fraction, int] = {}
    for code in range(1 << bits):
        ranked.setdefault(tree.decode(code, bits), code)
    order = sorted(ranked)
    values, codes = np.array([float(exact.nearest(v)) for v in order]), np.array([ranked[v] for v in order])
    made = "sign, zeros, indicator, linear fraction (arXiv 1511.04561)"
    return Codebook(f"dynamic tree {bits}-bit", values, made, codes)


@quotes_call
def nf4() -> Codebook:
    """NormalFloat: 16 quantiles of the normal distribution, 8 of them positive, 0 among them, scaled to [-1, 1].

    Source: T. Dettmers et al., QLoRA (arXiv 2305.14314), appendix E; every operation in float32 as published, which
    gives the published 16 values bit for bit.

    >>> nf4().values[[0, 1, 7, 8, 15]]
    array([-1.       , -0.6961928,  0.       ,  0.0795803,  1.       ],
          dtype=float32)
    """
    quantile_of = NormalDist().inv_cdf
    positive = [quantile_of(float(p)) for p in evenly_spaced(NF4_OFFSET, 0.5, 9)[:-1]]
    negative = [-quantile_of(float(p)) for p in evenly_spaced(NF4_OFFSET, 0.5, 8)[:-1]]
    values = np.sort(np.array([*negative, 0.0, *positive], np.float32))
    return Codebook("NF4", values / values[-1], "quantiles of the normal distribution (arXiv 2305.14314)")


@quotes_call
def quantile(data: Sequence[float] | Array, bits: int = 8) -> Codebook:
    """A codebook whose values are used equally often by ``data``: averages of neighbouring quantiles of it.

    ``q_i = (Q(i / (2**bits + 1)) + Q((i + 1) / (2**bits + 1))) / 2`` for i = 0 .. 2**bits - 1, Q the linearly
    interpolated quantile function, divided by the data's absolute maximum; equal values are merged. It has no exact
    maximum and in general no zero. Source: arXiv 2110.02861, appendix on quantile quantisation.
    """
    bits = integer("bits", bits, 2, 8)
    flat = widened(read(data, "data").flat)
    if flat.size == 0 or not np.isfinite(flat).all():
        raise LabError(f"data has {flat.size} values; it needs some, and all of them finite.")
    if flat.min() == flat.max():
        raise LabError(f"data is {flat[0]} throughout; a codebook has at least 2 values.")
    levels = np.quantile(flat / np.abs(flat).max(), np.arange(2**bits + 1) / (2**bits + 1))
    values = np.unique(((levels[:-1] + levels[1:]) / 2).astype(np.float32))
    if values.size < 2:
        raise LabError(f"data is {flat[0]} throughout, in float32; a codebook has at least 2 values.")
    return Codebook(f"quantile {bits}-bit", values, "averages of neighbouring quantiles of data (arXiv 2110.02861)")


# Those that need no data, each by its name: one record a line.
BOOKS: Mapping[str, Codebook] = MappingProxyType({
    "linear": linear(),
    "linear unsigned": linear(signed=False),
    "dynamic": dynamic(),
    "dynamic unsigned": dynamic(signed=False),
    "tree": dynamic_tree(),
    "NF4": nf4(),
})  # fmt: skip
"""The codebooks that need no data, by name."""


def get(code: str | Codebook) -> Codebook:
    """The codebook of a name, or the record itself."""
    if not isinstance(code, str | Codebook):
        raise LabError(f"code={summary(code)} is no Codebook; pass one of fplab.codebooks.BOOKS, or make one.")
    return chosen("codebook", code, BOOKS, Codebook)
