"""A stored format: how a block of float32 values becomes bytes of a file, and these become values again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import values
from ..errors import LabError, door, quotes_call

Array = np.ndarray[Any, Any]
Coder = Callable[[Array], Array]


@door
@dataclass(frozen=True, eq=False)
class Stored:
    """A format in which weights lie in files.

    ``block``: elements that are stored together; ``size``: their bytes. ``encoder``: finite float32 (n, block) to uint8
    (n, size), ``decoder`` back to float32. ``library``: whose bytes they are. ``rounder``: the values that come back,
    float32 to float32, where they are known before the bytes are.
    """

    name: str
    block: int
    size: int
    encoder: Coder = field(repr=False)
    decoder: Coder = field(repr=False)
    library: str = ""
    rounder: Coder | None = field(default=None, repr=False)

    @property
    def bits(self) -> float:
        """Bits of the file for an element, scales counted."""
        return 8 * self.size / self.block

    @quotes_call
    def encode(self, x: Any) -> Array:
        """The bytes of finite values, uint8, flat: float32, to which other dtypes are rounded, whole blocks of them."""
        return self._applied(self.encoder, x)

    @quotes_call
    def round(self, x: Any) -> Array:
        """The values that come back from those bytes, float32, flat."""
        return self.decode(self.encode(x)) if self.rounder is None else self._applied(self.rounder, x)

    def _applied(self, way: Coder, x: Any) -> Array:
        with np.errstate(over="ignore"):
            flat = values(x).flat.astype(np.float32, copy=False)
        if flat.size % self.block:
            raise LabError(f"x has {flat.size:,} elements; {self.name} has blocks of {self.block}.")
        if not np.isfinite(flat).all():
            raise LabError(f"x has NaN or infinity, and {self.name} has neither.")
        with np.errstate(all="ignore"):  # C's division by zero and its casts of infinity are silent
            return way(flat.reshape(-1, self.block)).reshape(-1)

    @quotes_call
    def decode(self, data: Any) -> Array:
        """The values of bytes, float32, flat."""
        data = np.asarray(data)
        if data.dtype != np.uint8 or data.size % self.size:
            raise LabError(f"data are {data.dtype}[{data.size}]; {self.name} has blocks of {self.size} bytes, uint8.")
        with np.errstate(all="ignore"):  # a file's scales may be infinite, or NaN
            return self.decoder(data.reshape(-1, self.size)).reshape(-1)
