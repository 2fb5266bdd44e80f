"""FP8 widened to FP16: two fused blocks from zero through the FP16 unit, then one IEEE addition of c."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ... import exact
from ...exact import Exact
from .. import engine
from ..blocks import Block, decided, in_format
from ..models import Model
from . import Array, Factors, Known, Pairs, Rounded, factors_at, nearest
from .block import ALIGNMENTS, FusedBlocks


class Widened(FusedBlocks):
    """An instruction of two blocks: products of k mod 4 < 2 from zero, the others onto their sum, and then c."""

    halves = True

    def emins(self, model: Model) -> tuple[int, int]:
        """FP16's."""
        return -14, -14

    def width(self, model: Model) -> int:
        return model.k

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        steps, d = [], Exact(False)
        for half in _halves(len(a)):
            steps.append(self.block([a[k] for k in half], [b[k] for k in half], d, model))
            d = steps[-1].result
        return [*steps, decided(in_format(exact.add(d, c)[0], model), "add")]

    def factors(
        self, model: Model, a: Sequence[float], b: Sequence[float], scales: Sequence[tuple[float, float]]
    ) -> Iterator[tuple[Factors, bool]]:
        for start in range(0, len(a), model.k):
            first, second = _halves(model.k)
            yield factors_at([start + k for k in first], a, b), False
            yield factors_at([start + k for k in second], a, b), True
            yield [], False

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        bound = np.zeros_like(of.entering)
        for _ in range(2):
            halves = of._replace(entering=bound, terms=np.minimum(of.terms, model.length))
            for rounding in super().roundings(model, halves):
                yield rounding
                bound = bound + rounding.times * rounding.most
            bound = bound + of.products
        yield nearest(of.entering + bound, model.format_d)

    def arranged(self, x: Array, model: Model) -> Array:
        first, second = _halves(model.k)
        parts = engine.whole(x, model).reshape(x.shape[0], -1, model.k)
        return parts[:, :, [*first, *second]].reshape(x.shape[0], -1)

    def variants(self, model: Model) -> Iterator[Model]:
        """Other alignments."""
        for f in ALIGNMENTS:
            yield dataclasses.replace(model, alignment_bits=f)


def _halves(k: int) -> tuple[list[int], list[int]]:
    return [i for i in range(k) if i % 4 < 2], [i for i in range(k) if i % 4 >= 2]


UNIT = Widened()
