"""INT8 products summed exactly in INT32: modulo 2**32, or stopping at its ends after every instruction."""

import dataclasses
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from ... import exact
from ...exact import Exact
from ...kernels import tensorcore_exact as kernels
from .. import engine
from ..blocks import Block, decided
from ..models import Model
from . import Array, Known, OnDevice, Pairs, Rounded, Rows, ScalePair, Unit

LOW, HIGH = -(2**31), 2**31 - 1


class Integers(Unit):
    """Nothing is rounded; what does not fit INT32 wraps around, or saturates (``Model.saturate``)."""

    traced = False

    def width(self, model: Model) -> int:
        return model.k

    def entering(self, c: Exact, model: Model) -> Exact:
        return c

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        total = int(c.value + sum((x.value * y.value for x, y in zip(a, b, strict=True)), Fraction(0)))
        total = min(max(total, LOW), HIGH) if model.saturate else (total - LOW) % 2**32 + LOW
        return [decided(exact.of(Fraction(total)), "integers")]

    def order_free(self, model: Model) -> bool:
        return not model.saturate

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        products = a.astype(np.int64) * b
        total = c.astype(np.int64)
        for start in range(0, a.shape[1], model.k):
            total += products[:, start : start + model.k].sum(axis=1)
            if model.saturate:
                total = np.clip(total, LOW, HIGH)
        c[...] = total.astype(np.int32)  # modulo 2**32

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        a, b, _ = engine.chosen(model, a, b, instructions, None)
        x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
        engine.share(
            lambda p, q: kernels.integer_matmul(x, y, c, model.k, model.saturate, p, q), a.shape[0], a.size * b.shape[1]
        )

    def on_device(self, model: Model) -> OnDevice:
        return OnDevice(("integers.h",), {"LENGTH": model.k, "SATURATE": int(model.saturate)}, 1)

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        return iter(())

    def emins(self, model: Model) -> tuple[int, int]:
        return 0, 0

    def together(self, model: Model) -> int:
        return model.k

    def variants(self, model: Model) -> Iterator[Model]:
        for k in (16, 32):
            for saturate in (False, True):
                yield dataclasses.replace(model, k=k, saturate=saturate)

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        edge = np.where(rng.random(count) < 0.5, HIGH, LOW) - rng.integers(-(2**15), 2**15, count)
        c = np.clip(edge, LOW, HIGH).astype(np.int32)
        a, b = rng.integers(-128, 128, (2, count, k)).astype(np.int8)
        return {"a": a, "b": b, "c": c}


UNIT = Integers()
