"""The measured arrays of one kind as Python integers, for exact comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import exact_products as whole
from ...formats import get
from ...hardware.cases import Arrays
from . import bounds, operands
from .accumulators import ACCUMULATORS, BLOCKED
from .compared import Compared

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Exactly(Compared):
    """``results`` by accumulator; ``clamped`` (M, N, S): sums of clamped magnitudes; ``blocked``: the bounds by block,
    with the accumulator that has one as their first dimension.
    """

    clamped: Array
    blocked: Array

    def bound(self, i: int) -> Array:
        """The bound of one accumulator at every length, rounded down: by block, or one by one."""
        if i in BLOCKED:
            return np.asarray(self.blocked[BLOCKED.index(i)])
        p = get(ACCUMULATORS[i].fmt).significand_bits
        return self.rounded_down(lambda k, s: bounds.one_by_one(k, p, s), self.magnitude)

    def beforehand(self, i: int) -> Array:
        """The bound of a Tensor Core's FP32 sums from A and B alone, rounded down."""
        rate = bounds.rate(ACCUMULATORS[i].model)
        return self.rounded_down(lambda k, s: k * rate * s, self.clamped)

    def published(self) -> Array:
        """K 2**-24 sum|a b|, the published bound of a unit that rounds to nearest, rounded down."""
        return self.rounded_down(lambda k, s: k * s >> 24, self.magnitude)


def of_kind(arrays: Arrays, kind: str) -> Exactly:
    """All of one kind."""
    a = arrays[f"{kind}: a"]
    exact, magnitude, clamped, bound = (
        whole.unpack(arrays[f"{kind}: {part}"]) for part in ("exact", "magnitude", "clamped", "bound")
    )
    results = whole.of_values(arrays[f"{kind}: results"])
    return Exactly(operands.sizes(a.shape[1].bit_length() - 1), exact, magnitude, results, clamped, bound)


def shares_of(one: Exactly, i: int) -> tuple[Array, Array, Array]:
    """Of accumulator ``i`` at every length, the largest over the products: error and bound as shares of sum|a b|, and
    error as a share of its bound. Quotients of exact integers, each float64 (S,).
    """
    error, bound = one.errors[i], one.bound(i)
    pairs = ((error, one.magnitude), (bound, one.magnitude), (error, bound))
    error_share, bound_share, used = (whole.ratio(*pair).max(axis=(0, 1)) for pair in pairs)
    return error_share, bound_share, used
