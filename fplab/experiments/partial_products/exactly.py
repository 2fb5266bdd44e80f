"""The measured arrays of one kind as Python integers, for exact comparisons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import exact_products as whole
from ...formats import get
from ...hardware.cases import Arrays
from . import bounds, operands
from .accumulators import ACCUMULATORS, BLOCKED

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Exactly:
    """Integers (:mod:`fplab.exact_products`) by product and length (M, N, S).

    ``exact``, ``magnitude`` and ``clamped`` sums; ``results`` of every accumulator, and the bounds of the ``blocked``
    ones, with the accumulator as their first dimension.
    """

    lengths: Array
    exact: Array
    magnitude: Array
    clamped: Array
    results: Array
    blocked: Array

    @property
    def errors(self) -> Array:
        """Magnitudes of the errors of every accumulator."""
        return np.asarray(np.abs(self.results - self.exact))

    def bound(self, i: int) -> Array:
        """The bound of one accumulator at every length, rounded down: by block, or one by one."""
        if i in BLOCKED:
            return np.asarray(self.blocked[BLOCKED.index(i)])
        p = get(ACCUMULATORS[i].fmt).significand_bits
        return self._each(lambda k, s: bounds.one_by_one(k, p, s), self.magnitude)

    def beforehand(self, i: int) -> Array:
        """The bound of a Tensor Core's FP32 sums from A and B alone, rounded down."""
        rate = bounds.rate(ACCUMULATORS[i].model)
        return self._each(lambda k, s: k * rate * s, self.clamped)

    def published(self) -> Array:
        """K 2**-24 sum|a b|, the published bound of a unit that rounds to nearest, rounded down."""
        return self._each(lambda k, s: k * s >> 24, self.magnitude)

    def _each(self, of: Any, sums: Array) -> Array:
        """A bound (K, sum) -> number, rounded down, of every product and length."""
        found = np.empty(sums.shape, object)
        for at in np.ndindex(sums.shape):
            found[at] = math.floor(of(int(self.lengths[at[-1]]), sums[at]))
        return found


def of_kind(arrays: Arrays, kind: str) -> Exactly:
    """All of one kind."""
    a = arrays[f"{kind}: a"]
    exact, magnitude, clamped, bound = (
        whole.unpack(arrays[f"{kind}: {part}"]) for part in ("exact", "magnitude", "clamped", "bound")
    )
    results = whole.of_values(arrays[f"{kind}: results"])
    return Exactly(operands.sizes(a.shape[1].bit_length() - 1), exact, magnitude, clamped, results, bound)


def shares_of(one: Exactly, i: int) -> tuple[Array, Array, Array]:
    """Of accumulator ``i`` at every length, the largest over the products: error and bound as shares of sum|a b|, and
    error as a share of its bound. Quotients of exact integers, each float64 (S,).
    """
    error, bound = one.errors[i], one.bound(i)
    pairs = ((error, one.magnitude), (bound, one.magnitude), (error, bound))
    error_share, bound_share, used = (whole.ratio(*pair).max(axis=(0, 1)) for pair in pairs)
    return error_share, bound_share, used
