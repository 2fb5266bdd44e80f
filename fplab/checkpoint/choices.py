"""What a tensor may be stored in: a number format, a scheme of scales, or a stored format, by one name each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .. import integers, scaled
from ..errors import unknown
from ..floats import quantize
from ..formats import NAMES, TABLE, Format, get
from ..scaled import SCHEMES, Scheme
from ..stored import STORED, Stored

Array = np.ndarray[Any, Any]
PIECE = 1 << 18  # elements that are worked on at a time, 1 MiB of float32
NOTHING = np.empty(0, np.float32)
HIDDEN = ("e8m0", "_fp32", "_bf16")  # ends of names that no message lists


class Integers(NamedTuple):
    """Integers to nearest, as W8A8's and W4A16's weights: by the largest magnitude, or the range, with ``zero`` points.

    ``group``: weights of a row that share a scale, or "row" or "tensor"; ``scale``: the format of scales.
    """

    name: str
    grid: str
    zero: bool
    group: int | str
    scale: str

    def values(self, x: Array, amax: Array) -> Array:
        """What becomes of float32 (rows, k); ``amax``: the tensor's or the row's largest magnitude, or none."""
        part = x.reshape(-1, self.group) if isinstance(self.group, int) else x
        if self.zero:
            how = integers.scheme(part, self.grid, "row", zero_point=True)
        else:
            most = amax if amax.size else np.abs(part).max(axis=1, keepdims=True)
            how = integers.symmetric(most, self.grid)
        codes = integers.quantize(part, how).astype(np.int32) - how.zero_point
        return np.asarray(codes.astype(np.float32) * quantize(how.scale, self.scale)).reshape(x.shape)


GROUPS = (32, 64, 128, 256, "row", "tensor")
INTEGERS = {
    (name := f"{grid}_{group if isinstance(group, str) else f'g{group}'}{'' if scale == 'fp16' else f'_{scale}'}"):
        Integers(name, grid, grid.startswith("u"), group, scale)
    for grid in ("int8", "int8_full", "int4", "int4_full", "uint8", "uint4") for group in GROUPS
    for scale in ("fp16", "fp32", "bf16") if not (grid.startswith("u") and group == "tensor")
}  # fmt: skip
"""By name: the grid, what shares a scale, and the scale's format, where that is not FP16."""


@dataclass(frozen=True)
class Choice:
    """A format by its name, and how it makes values of values."""

    name: str
    record: Format | Scheme | Stored | Integers

    @property
    def tall(self) -> int:
        """How many rows are quantised together."""
        block = self.record.block if isinstance(self.record, Scheme) else 1
        return block[0] if isinstance(block, tuple) else 1

    @property
    def scale(self) -> str:
        """For what part of a tensor it needs the largest magnitude beforehand: "tensor", "row", or ""."""
        shared = getattr(self.record, "group", getattr(self.record, "block", 1))
        return getattr(self.record, "tensor", "") or (shared if isinstance(shared, str) else "")

    def fits(self, k: int) -> bool:
        """Whether rows of ``k`` can be stored: ggml's and groups of integers consist of whole blocks."""
        if isinstance(self.record, Integers) and self.record.zero and self.record.group == "row":
            return k <= PIECE  # a row's range is of all of it
        block = self.record.block if isinstance(self.record, Stored) else getattr(self.record, "group", 1)
        return not isinstance(block, int) or k % block == 0

    def bits(self, rows: int, k: int) -> float:
        """Bits of a weight in a matrix of rows of ``k``, with its scales."""
        if isinstance(self.record, Format | Stored):
            return self.record.bits
        if isinstance(self.record, Integers):
            bits = integers.grids.get(self.record.grid).bits
            group = {"row": k, "tensor": rows * k}.get(str(self.record.group), self.record.group)
            return bits + (get(self.record.scale).bits + bits * self.record.zero) / max(int(group), 1)
        scheme, count = self.record, max(rows * k, 1)
        high, wide = scheme.block if isinstance(scheme.block, tuple) else (1, k)
        scales = 1 if scheme.block == "tensor" else -(-rows // high) * -(-k // wide)
        second = {"": 0, "tensor": 1, "row": rows}[scheme.tensor]
        return scheme.element.bits + (scheme.scale.bits * scales + 32 * second) / count

    def applied(self, x: Array, amax: Array) -> tuple[Array, Array, int]:
        """What becomes of float32 (rows, k); the largest magnitudes that blocks of so many elements can become.

        ``amax``: the tensor's largest magnitude, or its rows'. Magnitudes beyond the format's become its largest.
        """
        record = self.record
        if isinstance(record, Format):
            limit = np.array([record.max], np.float64).astype(np.float32)
            return quantize(x, record, overflow="saturate").reshape(-1), limit, max(x.size, 1)
        if isinstance(record, Stored):
            return record.round(x), NOTHING, 1
        if isinstance(record, Integers):
            return record.values(x, amax).reshape(-1), NOTHING, 1
        if record.block == "row":  # a row at a time where it is one of several parts
            record = replace(record, block=(1, x.shape[1])) if amax.size == 0 else replace(record, block="tensor")
        given = amax if amax.size and (record.tensor or record.block == "tensor") else None
        done = scaled.quantize(x, record, amax=given)
        block = record.block[1] if isinstance(record.block, tuple) else x.size
        limits = done.factors() * np.float32(record.element.max)
        if isinstance(record.block, tuple) and (record.block[0] > 1 or x.shape[1] % block):
            limits, block = NOTHING, 1  # blocks that do not follow each other
        return done.dequantize().reshape(-1), limits.reshape(-1).astype(np.float32), block


def choices(names: Any) -> dict[str, Choice]:
    """The choices of names or records; an unknown name suggests the nearest."""
    formats = {name: fmt for fmt in TABLE if fmt.name != "e8m0" for name in (fmt.name, *fmt.aliases)}
    known: dict[str, Any] = {**formats, **STORED, **SCHEMES, **INTEGERS}
    result = {}
    for given in names:
        record = known.get(given.lower()) if isinstance(given, str) else given
        if not isinstance(record, Format | Scheme | Stored | Integers):
            allowed = [name for name in (*NAMES, *SCHEMES, *STORED, *INTEGERS) if name[-5:] not in HIDDEN]
            raise unknown("format", given, allowed, aliases=known)
        result[record.name] = Choice(record.name, record)
    return result


def pieces(rows: int, k: int, tall: int) -> tuple[int, bool]:
    """How many elements are worked on at a time in rows of ``k``, ``tall`` of them together, and whether whole rows."""
    if tall == 1 and k > PIECE:
        return PIECE, False
    return max(PIECE // (k * tall), 1) * k * tall, True


def parts(count: int, piece: int, k: int, whole: bool) -> list[tuple[int, int]]:
    """Where those pieces begin and end; none that is part of a row reaches into the next."""
    if whole:
        return [(at, min(at + piece, count)) for at in range(0, count, piece)]
    return [(row + at, row + min(at + piece, k)) for row in range(0, count, k) for at in range(0, k, piece)]


def decibels(error: float) -> float:
    """A relative error as a signal-to-noise ratio."""
    return math.inf if error == 0 else -20 * math.log10(error)
