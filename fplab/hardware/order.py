"""Cases that reveal in which order torch sums: masked ones (FPRev, arXiv 2411.00442).

Of n terms, one is M, one is -M, the others are units so small that all of them vanish beside M. What is left of the sum
is the units that were added after M and -M had met: for a pair (i, j) of positions, the number of leaves outside the
smallest subtree of the summation tree that holds both. All pairs of a set of positions give the tree over that set.

Units stand at the chosen positions only, and the others are zeros: so counts stay small and exact in every format, and
a few dozen positions show the structure of a long k. A record holds the pairs and the counts. Where the operation takes
two operands, the masks go into A and B is ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from .cases import Arrays, Case, Emulate, Meta, unmodelled
from .environment import torch_for
from .products import FP16_SUMS, REDUCED, TF32, scaled_mm
from .tensors import TORCH, flags_set, on_device

UNIT = {"e5m2": -16}  # exponents of a unit and of M; others: -18 and 15
MASK = {"fp64": 60}
BLOCKS = (1, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Summation:
    """An operation that sums ``n`` terms of each row. ``columns``: N of a product. ``output``: format of the result."""

    call: str
    fmt: str
    n: int
    rows: int = 128
    columns: int = 128
    output: str = ""
    other: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    fast: bool = False

    @property
    def name(self) -> str:
        words = [self.call, f"{self.fmt}*{self.other}" if self.other else self.fmt, f"n={self.n}"]
        words += [f"in {self.rows}x{self.columns}"] if self.call in ("matmul", "scaled_mm") else []
        words += [f"to {self.output}"] if self.output else []
        words += [f"{key.split('.')[-1]}={value}" for key, value in self.flags.items()]
        return " ".join([*words, *(["fast accumulation"] if self.fast else [])])


def _summations() -> tuple[Summation, ...]:
    summations = []
    for fmt in ("fp16", "bf16"):
        summations += [Summation("matmul", fmt, n) for n in (64, 512, 4096)]
        summations += [Summation("matmul", fmt, 2048, 16, 16), Summation("matmul", fmt, 512, 1, 512)]
        summations += [Summation("matmul", fmt, 512, 1024, 1024), Summation("matmul", fmt, 256, 4096, 4096)]
        summations += [Summation("matmul", fmt, 4096, flags={REDUCED.format(fmt): False})]
        summations += [Summation("conv2d", fmt, n) for n in (144, 576)]
        summations += [Summation("sum", fmt, n) for n in (64, 1024)]
    summations += [Summation("matmul", "fp16", n, flags=FP16_SUMS) for n in (64, 512)]
    for n in (64, 512, 2048):
        summations += [Summation("matmul", "fp32", n), Summation("matmul", "fp32", n, flags=TF32)]
    summations += [Summation("matmul", "fp32", 512, 1, 512), Summation("matmul", "fp64", 512)]
    summations += [Summation("conv2d", "fp32", 576, flags={"cudnn.allow_tf32": tf32}) for tf32 in (False, True)]
    summations += [Summation(call, "fp32", n) for call in ("sum", "mean", "cumsum") for n in (64, 1024)]
    summations += [Summation("sum", "fp32", 65536, 8), Summation("sum all", "fp32", 65536, 1)]
    for fast in (False, True):
        summations += [Summation("scaled_mm", "e5m2", n, output="bf16", other="e4m3", fast=fast) for n in (128, 1024)]
    return tuple(summations)


SUMMATIONS: tuple[Summation, ...] = _summations()


def cases() -> tuple[Case, ...]:
    return tuple(order_case(summation) for summation in SUMMATIONS)


def order_case(summation: Summation) -> Case:
    """Input ``pairs`` (P, 2) of positions; output ``counts`` (P,): units left, or 2**32 - 1 for NaN and the like."""
    hypotheses: dict[str, Emulate] = {
        f"one chain of blocks of {block}": partial(chain_counts, summation.n, block) for block in BLOCKS
    }
    return Case(
        summation.name, partial(pairs, summation.n), partial(counts, summation), unmodelled, {"counts": "bits32"},
        open="In which order are the terms summed?", hypotheses=hypotheses,
    )  # fmt: skip


def positions(n: int) -> np.ndarray:
    """The chosen positions: the first 20 (8 of a very long sum), then ever fewer, and the last."""
    at, share = (20, 4) if n <= 4096 else (8, 1)
    chosen = {*range(min(n, at)), n - 1, n // 2, n // 2 - 1}
    while at < n:
        chosen |= {at, min(at + 1, n - 1)}
        at += max(4, at // share)
    return np.array(sorted(chosen))


def pairs(n: int) -> Arrays:
    return {"pairs": np.array(list(combinations(positions(n), 2)), np.uint32)}


def chain_counts(n: int, block: int, given: Arrays, meta: Meta) -> Arrays:
    """The counts of one chain of blocks in ascending order: the units in later blocks than both M and -M."""
    at = positions(n) // block
    last = given["pairs"].max(axis=1) // block
    return {"counts": (at[None, :] > last[:, None]).sum(axis=1).astype(np.uint32)}


# --- masks on a device ------------------------------------------------------------------------------------------
def counts(summation: Summation, given: Arrays, device: str) -> Arrays:
    """Run the operation on rows of masks, as many at a time as its shape has, and count what is left."""
    torch = torch_for(device)
    positions_of_pairs = torch.from_numpy(given["pairs"].astype(np.int64)).to(device)
    chosen = torch.from_numpy(positions(summation.n)).to(device)
    dtype = getattr(torch, TORCH[summation.fmt])
    unit, mask = 2.0 ** UNIT.get(summation.fmt, -18), 2.0 ** MASK.get(summation.fmt, 15)
    (rows,) = on_device(device, summation.rows, most=32)
    (columns,) = on_device(device, summation.columns, most=1 if summation.call == "matmul" else 16)
    parts = []
    for start in range(0, len(positions_of_pairs), rows):
        part = positions_of_pairs[start : start + rows]
        x = torch.zeros(rows, summation.n, device=device, dtype=torch.float32)
        x[: len(part), chosen] = unit
        at = torch.arange(len(part), device=device)
        x[at, part[:, 0]], x[at, part[:, 1]] = mask, -mask
        with flags_set(summation.flags):
            left = CALLS[summation.call](summation, x.to(dtype), columns).cpu().double()[: len(part)]  # MPS has no FP64
        parts.append(torch.round(left / unit))
    every = torch.cat(parts).cpu().numpy()
    good = np.isfinite(every) & (every >= 0) & (every <= summation.n)
    return {"counts": np.where(good, every, 2**32 - 1).astype(np.uint32)}


def _matmul(summation: Summation, x: Any, columns: int) -> Any:
    return (x @ x.new_ones(summation.n, columns))[:, 0]


def _scaled_mm(summation: Summation, x: Any, columns: int) -> Any:
    import torch

    ones = torch.ones(columns, summation.n, device=x.device).to(getattr(torch, TORCH[summation.other]))
    return scaled_mm(summation, x, ones)[:, 0]


def _conv2d(summation: Summation, x: Any, columns: int) -> Any:
    """Masks as the filters of a 3x3 convolution over ones, k in memory order (channel, row, column)."""
    import torch

    filters = x.reshape(len(x), summation.n // 9, 3, 3)
    return torch.nn.functional.conv2d(x.new_ones(1, summation.n // 9, 6, 6), filters)[0, :, 1, 1]


CALLS: dict[str, Callable[[Summation, Any, int], Any]] = {
    "matmul": _matmul,
    "scaled_mm": _scaled_mm,
    "conv2d": _conv2d,
    "sum": lambda summation, x, _: x.sum(dim=1),
    "sum all": lambda summation, x, _: x.sum().reshape(1),
    "mean": lambda summation, x, _: x.mean(dim=1) * summation.n,
    "cumsum": lambda summation, x, _: x.cumsum(dim=1)[:, -1],
}
