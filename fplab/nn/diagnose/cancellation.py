"""The worst element of an operation: its operands, and how many bits their cancellation lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor
_SUMS = frozenset({"sum", "mean"})
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "dot"})
SHOWN = 2  # pairs of operands kept of a product


class Element(NamedTuple):
    """An element whose error is not its operands'.

    ``place``: its index. ``real``, ``exact``: its values. ``relative``: its error. ``operands``: (computed, exact) of
    the largest that made it. ``bits``: how many leading bits cancelled, log2(sum of magnitudes / magnitude of the
    sum); None where the operation is no sum.
    """

    layer: str
    phase: str
    operation: str
    place: tuple[int, ...]
    real: float
    exact: float
    relative: float
    operands: tuple[tuple[float, float], ...]
    bits: float | None


def operands(
    name: str, args: Any, kwargs: Any, shape: torch.Size, place: int, exact: Callable[[Tensor], Tensor], value: float
) -> tuple[tuple[tuple[float, float], ...], float | None]:
    """The largest summands of an element, as computed and exact, and the bits that cancelled; () where not known.

    ``value``: the exact element, which counts where float64 leaves nothing of the summands' sum.
    """
    terms = _terms(name, args, kwargs, shape, place, exact)
    if terms is None:
        return (), None
    real, true = terms
    size, total = float(true.abs().sum()), abs(float(true.sum())) or abs(value)
    bits = math.log2(size / total) if total and math.isfinite(size) else math.inf if size else 0.0
    order = true.abs().argsort(descending=True)[:SHOWN]
    return tuple((float(real[i]), float(true[i])) for i in order), bits


def _terms(
    name: str, args: Any, kwargs: Any, shape: torch.Size, place: int, exact: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor] | None:
    """What an element is the sum of, float64 (n,), as computed and exact; None for what is no sum."""
    index = torch.unravel_index(torch.tensor(place), shape) if shape else ()
    if name in ("add", "sub", "rsub") and len(args) >= 2:
        factor = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        signs = {"add": (1, factor), "sub": (1, -factor), "rsub": (-factor, 1)}[name]
        real = [_at(x, shape, index) * s for x, s in zip(args[:2], signs, strict=True)]
        exactly = [exact(x) if isinstance(x, Tensor) else x for x in args[:2]]
        true = [_at(x, shape, index) * s for x, s in zip(exactly, signs, strict=True)]
        return torch.tensor(real, dtype=torch.float64), torch.tensor(true, dtype=torch.float64)
    if name in _SUMS and isinstance(args[0], Tensor):
        x = args[0]
        dims = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else kwargs.get("dim")
        over = sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))
        if len(shape) not in (x.dim(), x.dim() - len(over)):
            return None
        kept = iter(index)
        at: list[Any] = []
        for d in range(x.dim()):
            if d in over:
                at.append(slice(None))
                if len(shape) == x.dim():
                    next(kept)
            else:
                at.append(int(next(kept)))
        return x[tuple(at)].reshape(-1).double(), exact(x)[tuple(at)].reshape(-1)
    if name in PRODUCTS:
        a, b = args[-2:] if name not in ("addmm", "baddbmm") else args[1:3]
        row: tuple[Any, ...] = (*index[:-1], slice(None)) if a.dim() > 1 and b.dim() > 1 else (*index, slice(None))
        column: tuple[Any, ...] = (*index[:-2], slice(None), index[-1]) if b.dim() > 1 else (slice(None),)
        sides = [one[row].double() * two[column].double() for one, two in ((a, b), (exact(a), exact(b)))]
        if name in ("addmm", "baddbmm"):
            addends = [_at(c, shape, index) for c in (args[0], exact(args[0]))]
            sides = [torch.cat([side, torch.tensor([c]).double()]) for side, c in zip(sides, addends, strict=True)]
        return sides[0], sides[1]
    return None


def _at(x: Any, shape: torch.Size, index: tuple[Tensor, ...]) -> float:
    """One element of an operand that was broadcast."""
    return float(x.broadcast_to(shape)[tuple(map(int, index))]) if isinstance(x, Tensor) else float(x)
