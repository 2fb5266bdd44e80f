"""A chain of IEEE fused multiply-adds in the format of the result, FP64 or FP32, one product after the other."""

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ... import exact
from ...exact import Exact
from ...kernels import multiply_adds as kernels
from ...kernels import tensorcore_exact
from .. import engine
from ..blocks import Block, exactly, in_format
from ..models import Model
from . import Array, Known, OnDevice, Pairs, Rounded, Rows, ScalePair, Unit, nearest
from .block import PACKING, Laid


class MultiplyAdds(Unit):
    """c = fma(a, b, c), to nearest."""

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        result = in_format(exact.fma(a[0], b[0], c)[0], model)
        return [exactly([exact.mul(a[0], b[0])[0], c], result, "fma")]

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        x, y = engine.whole(a, model), engine.whole(b, model)
        total = c.view(np.float32) if c.dtype == np.uint32 else c  # FP32 travels in its bits
        engine.share(
            lambda p, q: tensorcore_exact.fma_dot(x[p:q], y[p:q], total[p:q]), a.shape[0], engine.SLOW * a.size
        )
        _settle(c, model)

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        a, b, _ = engine.chosen(model, a, b, instructions, None)
        self.product_by(model, b)(a, c)

    def product_by(self, model: Model, b: Array) -> Callable[[Array, Array], None]:
        y = b if len(b) % model.k == 0 else engine.whole(b.T, model).T
        (k, columns), size = y.shape, y.itemsize
        panels = -(-columns * size // kernels.LINE)
        packed = np.empty(panels * k * (kernels.LINE // size), y.dtype)
        laid = Laid.of(y, model.b)
        pack = functools.partial(kernels.pack, laid.memory, *laid.steps, k, columns)
        engine.share(lambda p, q: pack(p, q, packed), panels, PACKING * y.size)

        def add(a: Array, c: Array) -> None:
            x = np.ascontiguousarray(a if a.shape[1] == k else engine.whole(a, model)).reshape(-1)
            total = (c.view(np.float32) if c.dtype == np.uint32 else c).reshape(-1)
            rows, macs = len(a), a.size * columns
            run = functools.partial(kernels.multiply, x, rows, k, packed, total, columns)
            if rows >= panels:
                engine.share(lambda p, q: run(p, q, 0, panels), rows, macs, kernels.ROWS)
            else:
                engine.share(lambda p, q: run(0, rows, p, q), panels, macs)
            _settle(c, model)

        return add

    def alone(self, model: Model, a: Array, b: Array) -> Array | None:
        if not (a.size and b.size):
            return None
        c = np.zeros((len(a), b.shape[1]), np.float64 if model.output == "fp64" else np.uint32)
        self.product_by(model, b)(a, c)
        return c if model.output == "fp64" else c.view(np.float32)

    def on_device(self, model: Model) -> OnDevice:
        return OnDevice(("multiply_adds.h",), {"DOUBLE": int(model.output == "fp64")}, 1)

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        yield nearest(of.entering + of.products, model.format_d)

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        a, b = rng.standard_normal((2, count, k)) * np.exp2(rng.integers(-20, 20, (2, count, k)))
        rows = {"a": a, "b": b, "c": rng.standard_normal(count)}
        return rows if model.output == "fp64" else {name: x.astype(np.float32) for name, x in rows.items()}


def _settle(c: Array, model: Model) -> None:
    """The NaN of the CPU made that of the record."""
    numbers = c.view(np.float32) if c.dtype == np.uint32 else c
    c[np.isnan(numbers)] = np.nan if model.output == "fp64" else 0x7FFFFFFF  # as nan_bits has it of FP32


UNIT = MultiplyAdds()
