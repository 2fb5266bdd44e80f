"""Errors of products against their bounds, in whole numbers: what the experiments on long products share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ... import exact_products as whole
from ..base import Outcome, failed, verdict

Array = np.ndarray[Any, Any]
USED = 1 / 16  # of its bound, at the least, by the largest error of every way: a bound far too large proves little


@dataclass(frozen=True)
class Compared(ABC):
    """One kind of operands, multiplied in several ways; integers (:mod:`fplab.exact_products`).

    ``lengths`` (S,): K. ``exact`` and ``magnitude`` (M, N, S): the sums of the products and of their magnitudes.
    ``results`` (way, M, N, S).
    """

    lengths: Array
    exact: Array
    magnitude: Array
    results: Array

    @cached_property
    def errors(self) -> Array:
        """Magnitudes of the errors (way, M, N, S)."""
        return np.asarray(np.abs(self.results - self.exact))

    @abstractmethod
    def bound(self, i: int) -> Array | None:
        """The bound on the errors of one way (M, N, S), rounded down; None where none is proved here."""

    def rounded_down(self, bound: Callable[..., Any], *sums: Array) -> Array:
        """A bound ``(K, *sums) -> number`` of every product and length, as integers (M, N, S)."""
        found = np.empty(sums[0].shape, object)
        for at in np.ndindex(found.shape):
            found[at] = math.floor(bound(int(self.lengths[at[-1]]), *(part[at] for part in sums)))
        return found

    def shares(self, i: int) -> tuple[Array, Array, Array]:
        """At every length, as shares of sum|a b|: mean and largest error, largest bound (NaN: none); float64 (S,)."""
        error, bound = whole.ratio(self.errors[i], self.magnitude), self.bound(i)
        nothing = np.full(self.lengths.size, np.nan)
        most = nothing if bound is None else whole.ratio(bound, self.magnitude).max(axis=(0, 1))
        return error.mean(axis=(0, 1)), error.max(axis=(0, 1)), most


def drawn(x: Array, last: int = 3) -> Array:
    """Root mean square of ``x`` (M, N, S) over the rows of A and the ``last`` lengths, of each row of B (N,).

    For the A that there is, rows of B are independent draws. Of one product alone the error vanishes now and then,
    by chance, and its logarithm would decide.
    """
    return np.asarray(np.sqrt((x[..., -last:] ** 2).mean(axis=(0, 2))))


def within_bounds(kinds: Iterable[tuple[str, Compared]], names: Sequence[str]) -> Outcome:
    """Every error that has a bound is at most that, in integers, and each way (``names``) uses some of it."""
    compared = 0
    used: dict[str, float] = {}
    for kind, one in kinds:
        for i, name in enumerate(names):
            errors, bound = one.errors[i], one.bound(i)
            if bound is None:
                continue
            shares = whole.ratio(errors, bound)
            if (errors > bound).any():
                at = tuple(int(v) for v in np.argwhere(errors > bound)[0])
                return failed(f"{kind}, {name}, K = {one.lengths[at[-1]]}: {shares[at]:.3g} of the bound")
            compared += bound.size
            used[name] = max(used.get(name, 0.0), float(shares.max()))
    text = ", ".join(f"{n} {v:.3f}" for n, v in used.items())
    return verdict(min(used.values()) >= USED, f"{compared:,} errors; used at most: {text}")


def rows(kinds: Iterable[tuple[str, Compared]], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """For each kind, way and length: kind, K, the way's name, mean and largest error, largest bound."""
    for kind, one in kinds:
        for i, name in enumerate(names):
            for k, *shares in zip(one.lengths.tolist(), *(part.tolist() for part in one.shares(i)), strict=True):
                yield (kind, k, name, *shares)
