"""The exact values that go along beside a run's tensors, one float64 buffer for each storage.

A tensor is a window on a storage, and so are its views, what autograd saved of it and what a later operation changes in
place. A companion is therefore kept by storage, and seen through the same window. A storage without one holds exact
values, its own: weights before their first update, a batch, a mask. What torch frees is freed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .double_double import Pair, halves, of
from .tensors import COMPLEX, wide

Tensor = torch.Tensor
_SWEEP = 64  # new companions after which those of freed storages are dropped


@dataclass
class Companion:
    """The companion of one storage. ``unit``: bytes of a real number in the storage; ``flat``: float64, as many.

    ``error``: the root of the squares of the errors of what was last computed there. ``relative``, ``worst``: the
    relative error of the whole and of its worst element.
    ``origin``: the tally of the operation that most of the error comes from, or that it went through.
    ``lengths``: the k of the products that it is the sum of; () where it is something else.
    """

    storage: StorageWeakRef
    unit: int
    flat: Tensor
    relative: float = 0.0
    worst: float = 0.0
    lengths: tuple[int, ...] = ()
    origin: Any = None
    error: float = 0.0
    low: Tensor | None = None  # what is to be added to ``flat``, of double-double numbers


def key(x: Tensor) -> int:
    """What tells a storage from all others while it lives, and from later ones while a companion knows it."""
    return int(x.untyped_storage()._cdata)


class Companions:
    """All companions of one run. ``doubled``: those of real numbers are pairs, and so are values that are put."""

    def __init__(self, doubled: bool = False) -> None:
        self.doubled = doubled
        self._by_storage: dict[int, Companion] = {}
        self._new = 0

    def of(self, x: Tensor) -> Companion | None:
        """The companion of a tensor's storage, or None where the tensor is exact itself."""
        result = self._by_storage.get(key(x))
        return result if result is not None and result.unit == _unit(x) and _fits(x, result.flat) else None

    def window(self, x: Tensor) -> Tensor | None:
        """The companion through the tensor's window, float64 or complex128 in its shape: writing to it writes there."""
        companion = self.of(x)
        return None if companion is None else _window(x, companion.flat)

    def exact(self, x: Tensor) -> Tensor:
        """The exact values of a tensor; not to be written to."""
        result = self.window(x)
        return result if result is not None else x if x.dtype in (torch.float64, torch.complex128) else wide(x)

    def value(self, x: Tensor) -> Tensor | None:
        """The companion through the tensor's window as it is computed with: a pair where numbers are double-double."""
        companion = self.of(x)
        if companion is None or companion.low is None:
            result = self.window(x)
            return None if result is None else self.widened(result)
        return Pair(_window(x, companion.flat), _window(x, companion.low))

    def widened(self, x: Tensor) -> Tensor:
        """Exact values as they are computed with: the tensor itself, or the pair of it and zeros."""
        return of(x) if self.doubled and x.dtype == torch.float64 else x

    def put(
        self, x: Tensor, value: Tensor, relative: float = 0.0, worst: float = 0.0, origin: Any = None,
        error: float = 0.0,
    ) -> None:  # fmt: skip
        """Make ``value``, float64 or complex128 in its shape, the companion of a tensor."""
        companion = self.of(x)
        value, low = halves(value)
        if companion is None:
            size = x.untyped_storage().nbytes() // _unit(x)
            companion = Companion(StorageWeakRef(x.untyped_storage()), _unit(x), torch.empty(0, dtype=torch.float64))
            parts = 2 if x.dtype in COMPLEX else 1
            adopted = value.untyped_storage().nbytes() == 8 * size and value.stride() == x.stride()
            if adopted and value.storage_offset() == x.storage_offset() == 0:
                companion.flat = torch.empty(0, dtype=torch.float64).set_(value.untyped_storage(), 0, (size,), (1,))
            else:
                companion.flat = torch.empty(size, dtype=torch.float64, device=x.device)
                if x.numel() * parts != size:  # the rest of the storage stays as exact as it is
                    whole = torch.empty(0, dtype=x.dtype, device=x.device)
                    whole.set_(x.untyped_storage(), 0, (size // parts,), (1,))
                    _window(whole, companion.flat).copy_(whole)
                _window(x, companion.flat).copy_(value)
            self._by_storage[key(x)] = companion
            self._new += 1
            if self._new >= _SWEEP:
                self.sweep()
        elif (window := _window(x, companion.flat)).data_ptr() != value.data_ptr():
            window.copy_(value)
        if low is not None and companion.low is None:
            companion.low = torch.zeros_like(companion.flat)
        if companion.low is not None:
            window = _window(x, companion.low)
            if low is None:
                window.zero_()
            elif window.data_ptr() != low.data_ptr():
                window.copy_(low)
        companion.relative, companion.worst, companion.error = relative, worst, error
        companion.lengths, companion.origin = (), origin

    def drop(self, x: Tensor) -> None:
        """A tensor has no companion any more."""
        self._by_storage.pop(key(x), None)

    def gives(self, place: int, companion: Companion | None, other: Companions) -> bool:
        """Let a companion, of a storage by its :func:`key`, be that of others; whether it is (still) this one."""
        known = self._by_storage.get(place)
        if known is None or (companion is not None and known is not companion):
            return False
        other._by_storage[place] = self._by_storage.pop(place)
        return True

    def open(self, x: Tensor) -> Tensor:
        """The companion of a tensor, to be written to; made of its own values where it had none."""
        if self.of(x) is None:
            self.put(x, self.widened(wide(x)))
        result = self.value(x)
        assert result is not None
        return result

    def sweep(self) -> None:
        """Drop the companions of storages that are gone."""
        self._new = 0
        self._by_storage = {k: own for k, own in self._by_storage.items() if not own.storage.expired()}

    @property
    def bytes(self) -> int:
        """Bytes that companions take."""
        return sum(own.flat.nbytes * (1 if own.low is None else 2) for own in self._by_storage.values())


def _unit(x: Tensor) -> int:
    return x.element_size() // (2 if x.dtype in COMPLEX else 1)


def _fits(x: Tensor, flat: Tensor) -> bool:
    parts = 2 if x.dtype in COMPLEX else 1
    return x.untyped_storage().nbytes() // _unit(x) <= flat.numel() and flat.numel() % parts == 0


def _window(x: Tensor, flat: Tensor) -> Tensor:
    whole = flat.view(torch.complex128) if x.dtype in COMPLEX else flat
    result = whole.as_strided(x.shape, x.stride(), x.storage_offset())
    result = result.conj() if x.is_conj() else result
    return torch._neg_view(result) if x.is_neg() else result
