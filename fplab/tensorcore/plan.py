"""In which order a library walks over k: chains, accumulators, slices, promotions."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..errors import LabError, door, integer, own_integer, unknown

T = TypeVar("T")
REDUCTIONS = ("ascending", "descending", "pairwise")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh")
Steps = list[list[np.ndarray]]  # by slice and accumulator: the indices of the instructions of each chain


class Region(NamedTuple):
    """A part of a result: its rows and columns, and the number of the tile among ``tiles``."""

    rows: slice
    columns: slice
    tile: int
    tiles: int


@door
@dataclass(frozen=True)
class Plan:
    """How a long product is made of instructions. The default is one chain of ascending k.

    ``split_k``: contiguous slices of k, each summed on its own; their sums are added as ``reduction`` says:
    "ascending" in k, one after the other; "descending"; "pairwise", neighbours first, an odd one out unchanged.
    ``stream_k``: so many workers share the work evenly (Osama et al. 2023, arXiv 2301.03598): the result is cut into
    tiles, row by row, of ``tile`` = (rows, columns, elements of k in one iteration); each worker takes the same number
    of consecutive iterations, all of a tile before the next. So slices differ from tile to tile, and an element's bits
    depend on where it stands.
    ``accumulators``: within a slice, the instructions are dealt in turn to this many accumulators, which are added in
    order at the end. ``promote``: after this many elements of k the accumulator is added to an FP32 register and starts
    again from zero (DeepSeek-V3 uses 128); the result is then FP32. All these additions round to nearest.
    ``c``: "accumulator" feeds C to the first chain (or to the FP32 register), where alpha and beta must be 1;
    "epilogue" starts from zero and computes ``alpha * sum + beta * c``: beta * c rounded, then one fused multiply-add;
    None is the first where alpha and beta are 1, else the second.
    ``activation``: of the finished sum, before it is stored: "relu", "gelu", or "gelu_tanh", its approximation.
    """

    split_k: int = 1
    accumulators: int = 1
    promote: int | None = None
    c: str | None = None
    reduction: str = "ascending"
    stream_k: int | None = None
    tile: tuple[int, int, int] = (128, 128, 32)
    activation: str | None = None

    def __post_init__(self) -> None:
        own_integer(self, "split_k", 1, 1 << 20)
        own_integer(self, "accumulators", 1, 1 << 20)
        if self.reduction not in REDUCTIONS:
            raise unknown("reduction", self.reduction, REDUCTIONS)
        if self.stream_k is not None:
            own_integer(self, "stream_k", 1, 1 << 20)
            if self.split_k > 1:
                raise LabError(
                    f"split_k={self.split_k} with stream_k={self.stream_k}: both say how k is cut; choose one."
                )
        sides = tuple(integer("tile", side, 1, 1 << 20) for side in self.tile)
        if len(sides) != 3:
            raise LabError(f"tile={self.tile!r} is not possible; allowed: (rows, columns, elements of k).")
        object.__setattr__(self, "tile", sides)
        if self.promote is not None:
            own_integer(self, "promote", 1, 1 << 30)
        if self.c not in (None, "accumulator", "epilogue"):
            raise LabError(f"c={self.c!r} is not possible; allowed: 'accumulator', 'epilogue', None.")
        if self.activation is not None and self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)

    def of(self, rows: int) -> "Plan":
        """The plan of a product of so many rows: this one, whatever they are."""
        return self

    def steps(self, instructions: int, k: int = 1, tile: int = 0, tiles: int = 1) -> Steps:
        """Which instructions each chain takes, for so many in all; no chain is empty unless all are.

        ``k``: products of an instruction; ``tile``: the number of the result's tile among ``tiles``.
        """
        if self.stream_k is None and self.split_k == 1:
            slices = [np.arange(instructions)]
        elif self.stream_k is None:
            slices = np.array_split(np.arange(instructions), min(self.split_k, max(1, instructions)))
        else:
            slices = np.split(np.arange(instructions), self._cuts(instructions, k, tile, tiles))
        count = self.accumulators
        return [[part[n::count] for n in range(min(count, max(1, part.size)))] for part in slices]

    def _cuts(self, instructions: int, k: int, tile: int, tiles: int) -> list[int]:
        """Before which instructions of a tile another worker takes over."""
        assert self.stream_k is not None
        if self.tile[2] % k:
            raise LabError(f"tile={self.tile}: {self.tile[2]} is no multiple of {k}, the products of one instruction.")
        per = self.tile[2] // k
        iterations = max(1, -(-instructions // per))
        share = -(-tiles * iterations // self.stream_k)
        first, end = tile * iterations, (tile + 1) * iterations
        return [(turn - first) * per for turn in range(-(-(first + 1) // share) * share, end, share)]

    def regions(self, rows: int, columns: int) -> Iterator[Region]:
        """The parts of a result whose elements are summed alike: all of it, or stream-K's tiles."""
        if self.stream_k is None:
            yield Region(slice(None), slice(None), 0, 1)
            return
        corners = [(i, j) for i in range(0, rows, self.tile[0]) for j in range(0, columns, self.tile[1])]
        for number, (i, j) in enumerate(corners):
            yield Region(slice(i, i + self.tile[0]), slice(j, j + self.tile[1]), number, len(corners))

    def reduced(self, parts: list[T], add: Callable[[T, T], T]) -> T:
        """The sums of the slices of k, added in the order of ``reduction``."""
        if self.reduction == "pairwise":
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=False)
                parts = [*(add(x, y) for x, y in pairs), *parts[len(parts) - len(parts) % 2 :]]
            return parts[0]
        return functools.reduce(add, parts if self.reduction == "ascending" else parts[::-1])

    def period(self, k: int) -> int:
        """After how many instructions of ``k`` products to promote; 0 is never."""
        if self.promote is None:
            return 0
        if self.promote % k:
            raise LabError(f"promote={self.promote} is no multiple of {k}, the products of one instruction.")
        return self.promote // k


ONE_CHAIN = Plan()


@door
@dataclass(frozen=True)
class PlanByRows:
    """A rule by which a library chooses: few rows leave a GPU idle unless k is split. It takes the place of a plan.

    ``plans``: pairs of the most rows and their plan, ascending; the first that suffices. ``beyond``: for more rows.

    >>> rule = PlanByRows(((16, Plan(split_k=8)), (64, Plan(split_k=2))))
    >>> [rule.of(rows).split_k for rows in (1, 16, 17, 65)]
    [8, 8, 2, 1]
    """

    plans: tuple[tuple[int, Plan], ...]
    beyond: Plan = ONE_CHAIN

    def __post_init__(self) -> None:
        most = [integer("rows", rows, 1, 1 << 30) for rows, _ in self.plans]
        if most != sorted(set(most)):
            raise LabError(f"plans for {most} rows at most are not possible; allowed: ascending numbers of rows.")
        object.__setattr__(self, "plans", tuple(self.plans))

    def of(self, rows: int) -> Plan:
        """The plan of a product of so many rows."""
        return next((plan for most, plan in self.plans if rows <= most), self.beyond)


AnyPlan: TypeAlias = Plan | PlanByRows
