"""Which integers a code may be: a record each."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LabError, chosen, door, own_integers
from ..formats import FormatName, spelt


@door
@dataclass(frozen=True)
class Grid:
    """The integers ``low`` to ``high``, of which zero is one; at most 8 bits wide.

    >>> Grid("int3", -4, 3).bits
    3
    """

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        own_integers(self, low=(-128, 0), high=(1, 255))
        if self.low < 0 and self.high > 127:
            raise LabError(f"grid {self.name!r} from {self.low} to {self.high} does not fit 8 bits.")

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def bits(self) -> int:
        return max(self.high.bit_length(), (-self.low - 1).bit_length() if self.low else 0) + int(self.signed)

    @property
    def dtype(self) -> type[np.integer[Any]]:
        """The numpy dtype in which codes are held, one a byte."""
        return np.int8 if self.signed else np.uint8

    @property
    def steps(self) -> int:
        """How many steps there are between the least and the largest code."""
        return self.high - self.low


GRIDS: tuple[Grid, ...] = (
    Grid("int8", -127, 127),  # symmetric: -128 is not used, as in LLM.int8() and in NVIDIA's toolkits
    Grid("int8_full", -128, 127),
    Grid("uint8", 0, 255),
    Grid("int4", -7, 7),
    Grid("int4_full", -8, 7),
    Grid("uint4", 0, 15),
    Grid("int3", -3, 3),
    Grid("uint3", 0, 7),
)
"""The integers that codes may be."""


GridLike = FormatName | Grid


def get(grid: GridLike) -> Grid:
    """The grid of a name or of an integer dtype, or the record itself."""
    return chosen("integer grid", spelt(grid), {record.name: record for record in GRIDS}, Grid)
