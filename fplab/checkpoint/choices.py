"""What a tensor may be stored in: a number format, a scheme of scales, or a stored format, by one name each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import scaled
from ..errors import unknown
from ..floats import quantize
from ..formats import NAMES, TABLE, Format
from ..scaled import SCHEMES, Scheme
from ..stored import STORED, Stored

Array = np.ndarray[Any, Any]
PIECE = 1 << 18  # elements that are worked on at a time, 1 MiB of float32
NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True)
class Choice:
    """A format by its name, and how it makes values of values."""

    name: str
    record: Format | Scheme | Stored

    @property
    def tall(self) -> int:
        """How many rows are quantised together."""
        block = self.record.block if isinstance(self.record, Scheme) else 1
        return block[0] if isinstance(block, tuple) else 1

    @property
    def scale(self) -> str:
        """For what part of a tensor it needs the largest magnitude beforehand: "tensor", "row", or ""."""
        if not isinstance(self.record, Scheme):
            return ""
        return self.record.tensor or (self.record.block if isinstance(self.record.block, str) else "")

    def fits(self, k: int) -> bool:
        """Whether rows of ``k`` can be stored: ggml's consist of whole blocks."""
        return not isinstance(self.record, Stored) or k % self.record.block == 0

    def bits(self, rows: int, k: int) -> float:
        """Bits of a weight in a matrix of rows of ``k``, with its scales."""
        if isinstance(self.record, Format):
            return self.record.bits
        if isinstance(self.record, Stored):
            return self.record.bits
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
            return record.decode(record.encode(x)), NOTHING, 1
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
    known: dict[str, Any] = {**formats, **STORED, **SCHEMES}
    result = {}
    for given in names:
        record = known.get(given.lower()) if isinstance(given, str) else given
        if not isinstance(record, Format | Scheme | Stored):
            allowed = [*(name for name in NAMES if name != "e8m0"), *SCHEMES, *STORED]
            raise unknown("format", given, allowed, aliases=known)
        result[record.name] = Choice(record.name, record)
    return result


def pieces(rows: int, k: int, tall: int) -> tuple[int, bool]:
    """How many elements are worked on at a time in rows of ``k``, ``tall`` of them together, and whether whole rows."""
    if k * tall > PIECE * 16 or (tall == 1 and k > PIECE):
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
