"""In which order a library walks over k: chains, accumulators, slices, promotions."""

from dataclasses import dataclass

import numpy as np

from ..errors import LabError, door, own_integer

Steps = list[list[np.ndarray]]  # by slice and accumulator: the indices of the instructions of each chain


@door
@dataclass(frozen=True)
class Plan:
    """How a long product is made of instructions. The default is one chain of ascending k.

    ``split_k``: contiguous slices of k, each summed on its own; their sums are added in ascending order.
    ``accumulators``: within a slice, the instructions are dealt in turn to this many accumulators, which are added in
    order at the end. ``promote``: after this many elements of k the accumulator is added to an FP32 register and starts
    again from zero (DeepSeek-V3 uses 128); the result is then FP32. All these additions round to nearest.
    ``c``: "accumulator" feeds C to the first chain (or to the FP32 register), where alpha and beta must be 1;
    "epilogue" starts from zero and computes ``alpha * sum + beta * c``: beta * c rounded, then one fused multiply-add;
    None is the first where alpha and beta are 1, else the second.
    """

    split_k: int = 1
    accumulators: int = 1
    promote: int | None = None
    c: str | None = None

    def __post_init__(self) -> None:
        own_integer(self, "split_k", 1, 1 << 20)
        own_integer(self, "accumulators", 1, 1 << 20)
        if self.promote is not None:
            own_integer(self, "promote", 1, 1 << 30)
        if self.c not in (None, "accumulator", "epilogue"):
            raise LabError(f"c={self.c!r} is not possible; allowed: 'accumulator', 'epilogue', None.")

    def steps(self, instructions: int) -> Steps:
        """Which instructions each chain takes, for so many in all; no chain is empty unless all are."""
        slices = np.array_split(np.arange(instructions), min(self.split_k, max(1, instructions)))
        count = self.accumulators
        return [[part[n::count] for n in range(min(count, max(1, part.size)))] for part in slices]

    def period(self, k: int) -> int:
        """After how many instructions of ``k`` products to promote; 0 is never."""
        if self.promote is None:
            return 0
        if self.promote % k:
            raise LabError(f"promote={self.promote} is no multiple of {k}, the products of one instruction.")
        return self.promote // k


ONE_CHAIN = Plan()
