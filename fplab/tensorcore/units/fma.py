"""A chain of IEEE fused multiply-adds: FP64, one product after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import exact
from ...exact import Exact
from ...kernels import tensorcore_exact as kernels
from .. import engine
from ..blocks import Block, decided, in_format
from ..models import Model
from . import Array, Pairs, Rows, ScalePair, Unit


class MultiplyAdds(Unit):
    """c = fma(a, b, c), to nearest."""

    traced = False

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        return [decided(in_format(exact.fma(a[0], b[0], c)[0], model), "fma")]

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        x, y = engine.whole(a, model), engine.whole(b, model)
        engine.share(lambda p, q: kernels.fma_dot(x[p:q], y[p:q], c[p:q]), a.shape[0], engine.SLOW * a.size)

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        a, b, _ = engine.chosen(model, a, b, instructions, None)
        x, y = (np.ascontiguousarray(part) for part in (engine.whole(a, model), engine.whole(b.T, model).T))
        engine.share(lambda p, q: kernels.fma_matmul(x, y, c, p, q), a.shape[0], a.size * b.shape[1])

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        a, b = rng.standard_normal((2, count, k)) * np.exp2(rng.integers(-20, 20, (2, count, k)))
        return {"a": a, "b": b, "c": rng.standard_normal(count)}


UNIT = MultiplyAdds()
