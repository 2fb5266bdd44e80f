"""A tensor of a file of weights: what it is called, how it is stored, and its values, read a part at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError, reason, summary
from ..floats import decode
from ..formats import get
from ..integers import unpack_int4
from ..storage import opened
from ..stored import STORED

Array = np.ndarray[Any, Any]
MOST_DIMENSIONS = 32
MANY = 1 << 20  # elements from which on short rows are one
SHORT = 32  # a last dimension below this, as a convolution's, makes no row of its own
FLOATS = ("fp64", "fp32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fnuz", "e5m2fnuz", "e2m1")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its name and shape, how it is stored, and where.

    ``stored``: a format of :mod:`fplab.formats` or :mod:`fplab.stored`, or "int8", "uint8" and so on. ``offset``: of
    its first byte; ``strides``: bytes from an element to the next along each dimension, None where they lie in order.
    ``held``: its elements, uint8, where the file has them compressed. ``block``, ``size``: elements, and their bytes,
    that are read together. ``shared``: whether others may lie on it, as views do.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    path: Path
    offset: int = 0
    strides: tuple[int, ...] | None = None
    held: Array | None = field(default=None, compare=False, repr=False)
    block: int = 1
    size: int = 1
    shared: bool = False

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its bytes in the file."""
        return self.count // self.block * self.size

    @property
    def rows(self) -> tuple[int, int]:
        """It as a matrix, (outputs, inputs): a short last dimension, as a convolution's, is one of a row's."""
        if len(self.shape) > 1 and self.shape[-1] < SHORT:
            inputs = math.prod(self.shape[1:])
            return (self.shape[0], inputs) if inputs >= SHORT or self.count < MANY else (1, self.count)
        return math.prod(self.shape[:-1]), self.shape[-1] if self.shape else 1

    @property
    def has_values(self) -> bool:
        """Whether its elements are numbers that can be read here, and no integers."""
        return self.stored in FLOATS or self.stored in STORED

    def read(self, start: int, stop: int) -> Array:
        """The bytes of elements ``start`` to ``stop``, uint8; both are at the start of a block."""
        first, last = (at // self.block * self.size for at in (start, stop))
        if self.held is not None or self.strides is not None:
            return (_in_order(self) if self.held is None else self.held)[first:last]
        with reading(self.path), open(self.path, "rb", opener=opened) as file:
            file.seek(self.offset + first)
            data = np.fromfile(file, np.uint8, last - first)
            if data.size < last - first:
                raise LabError("it became shorter while it was read.")
            return data

    def values(self, start: int = 0, stop: int | None = None) -> Array:
        """Elements ``start`` to ``stop`` as float32, to which float64 is rounded."""
        stop = self.count if stop is None else stop
        raw = self.read(start, stop)
        if self.stored in STORED:
            return STORED[self.stored].decode(raw)
        if not self.has_values:
            raise LabError(f"tensor {self.name!r} holds {self.stored}, which are no numbers that are read here.")
        return plain_values(raw, self.stored, stop - start)


def plain_values(raw: Array, stored: str, count: int) -> Array:
    """The float32 values of bytes in a number format, little-endian."""
    fmt = get(stored)
    if stored == "fp32":
        return np.asarray(raw.view("<f4"), np.float32)
    if stored == "fp64":
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(raw.view("<f8"), np.float32)
    if stored == "bf16":
        bits: Array = np.left_shift(raw.view("<u2"), np.uint32(16), dtype=np.uint32)
        return bits.view(np.float32)
    codes = unpack_int4(raw, count, signed=False) if fmt.bits == 4 else raw.view(f"<u{fmt.bits // 8}")
    return np.asarray(decode(codes, fmt))


@lru_cache(maxsize=1)
def _in_order(tensor: Tensor) -> Array:
    """All bytes of a tensor whose elements lie in another order, as those of a transposed one."""
    with reading(tensor.path):
        file = np.memmap(tensor.path, np.uint8, "r", tensor.offset)
        shape, strides = (*tensor.shape, tensor.size), (*(tensor.strides or ()), 1)
        view: Array = np.lib.stride_tricks.as_strided(file, shape, strides, writeable=False)
        return view.reshape(-1)


class FileError(LabError):
    """A file of weights that cannot be read; the text says why."""

    is_misuse = False


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong in the block is a :class:`FileError` with the file's name, whatever a parser has raised."""
    try:
        yield
    except FileError:
        raise
    except RecursionError:
        raise FileError(f"{str(path)!r} cannot be read: what it holds is nested too deep.") from None
    except Exception as error:
        why = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        raise FileError(f"{str(path)!r} cannot be read: {why}.") from None


def shaped(name: Any, shape: Any, what: str = "tensor") -> tuple[int, ...]:
    """A shape that a file claims, as a tuple of integers that are not negative."""
    possible = isinstance(shape, list | tuple) and len(shape) <= MOST_DIMENSIONS
    if not possible or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise LabError(f"{what} {summary(name)} has the shape {summary(shape)}")
    return tuple(shape)


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of names and values in JSON, whose names differ."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise LabError(f"it says {summary(twice)} twice")
    return result
