"""In which order torch sums on this CPU, revealed as trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...reveal import SumTree, reveal_order

N = 64
SUMS: dict[str, tuple[str, int, Callable[[Any, Any], Any]]] = {  # format, operands, the sum in torch
    "torch.sum, FP32": ("fp32", 1, lambda torch, x: x.sum()),
    "torch.mean, FP32": ("fp32", 1, lambda torch, x: x.mean() * len(x)),
    "torch.cumsum, FP32": ("fp32", 1, lambda torch, x: x.cumsum(0)[-1]),
    "a column of torch.sum(0), FP32": ("fp32", 1, lambda torch, x: x.view(-1, 1).expand(-1, 8).contiguous().sum(0)[3]),
    "torch.sum, FP16": ("fp16", 1, lambda torch, x: x.sum()),
}


def tree(name: str) -> SumTree:
    """The order of one of SUMS over N terms."""
    import torch

    fmt, operands, total = SUMS[name]

    def f(x: np.ndarray) -> float:
        return float(total(torch, torch.from_numpy(np.ascontiguousarray(x))))

    return reveal_order(f, N, fmt, operands=operands)


def wide(name: str) -> bool:
    """Whether torch adds in FP64 and rounds at the end, as its cumulative sum does on a CPU."""
    return "cumsum" in name


def folded(tree: SumTree, terms: np.ndarray, wide: bool = False) -> np.float32:
    """A sum of FP32 terms in a tree's order, in FP32 or (``wide``) in FP64 and rounded once."""
    kind = np.float64 if wide else np.float32
    return np.float32(tree.fold(list(terms.astype(kind)), lambda parts: kind(sum(parts[1:], parts[0]))))
