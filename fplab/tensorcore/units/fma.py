"""A chain of IEEE fused multiply-adds in the format of the result, FP64 or FP32, one product after the other."""

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ... import exact
from ...exact import Exact
from ...kernels import Kernel, tensorcore_exact
from ...kernels import multiply_adds as kernels
from .. import engine
from ..blocks import Block, exactly, in_format
from ..models import Model
from . import Array, Known, OnDevice, Pairs, Rounded, Rows, ScalePair, Unit, nearest
from .block import PACKING, Laid

NAN = {"fp64": 0x7FF8 << 48, "fp32": 0x7FFFFFFF}  # the record's, which need not be the CPU's


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
        c[np.isnan(total)] = np.nan if model.output == "fp64" else NAN["fp32"]

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        a, b, _ = engine.chosen(model, a, b, instructions, None)
        self.product_by(model, b)(a, c)

    def product_by(self, model: Model, b: Array) -> Callable[[Array, Array], None]:
        y = b if len(b) % model.k == 0 else engine.whole(b.T, model).T
        multiply = multiplier(kernels.STEPS[1, False], y, NAN[model.output])
        return lambda a, c: multiply(engine.whole(a, model), c.view(np.float32) if c.dtype == np.uint32 else c)

    def alone(self, model: Model, a: Array, b: Array) -> Array | None:
        if not (a.size and b.size):
            return None
        if a.shape[1] % model.k:
            a, b = engine.whole(a, model), engine.whole(b.T, model).T
        c = np.zeros((len(a), b.shape[1]), np.float64 if model.output == "fp64" else np.float32)
        multiplier(kernels.STEPS[1, False], b, NAN[model.output])(a, c)
        return c

    def on_device(self, model: Model) -> OnDevice:
        return OnDevice(("multiply_adds.h",), {"DOUBLE": int(model.output == "fp64")}, 1)

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        yield nearest(of.entering + of.products, model.format_d)

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        a, b = rng.standard_normal((2, count, k)) * np.exp2(rng.integers(-20, 20, (2, count, k)))
        rows = {"a": a, "b": b, "c": rng.standard_normal(count)}
        return rows if model.output == "fp64" else {name: x.astype(np.float32) for name, x in rows.items()}


def multiplier(kernel: Kernel, b: Array, nan: int, every: int = 0) -> Callable[[Array, Array], None]:
    """``c += a @ b`` by a kernel of :mod:`fplab.kernels.multiply_adds`, as a function of a (M, K) and c (M, N), floats
    of the type of b (K, N), K of whole steps, NaN made that of these bits. What there is to do with b is done once.
    """
    (k, columns), size = b.shape, b.itemsize
    width = kernels.LINE // size
    panels = -(-columns // width)
    room = np.empty((panels * k + 1) * kernels.LINE, np.uint8)
    of_b = _pack(b, width, room[-room.ctypes.data % kernels.LINE :][: panels * k * kernels.LINE].view(b.dtype))

    def add(a: Array, c: Array) -> None:
        rows, macs = len(a), a.size * columns
        tiles = -(-rows // kernels.ROWS)
        of_a = engine.scratch("tiles", tiles * k * kernels.ROWS, a.dtype)
        run = functools.partial(kernel, _pack(a.T, kernels.ROWS, of_a), rows, k, of_b, c.reshape(-1), columns, every)
        if macs < engine.FEW:
            run(0, tiles, 0, panels)
        elif rows >= panels:
            engine.share(lambda p, q: run(p, q, 0, panels), tiles, macs)
        else:
            engine.share(lambda p, q: run(0, tiles, p, q), panels, macs)
        c.view(f"u{size}")[np.isnan(c)] = nan

    return add


def _pack(x: Array, width: int, out: Array) -> Array:
    """The columns of a matrix (K, N) in panels of a width, in ``out``."""
    laid, count, macs = Laid.of(x, "fp32"), -(-x.shape[1] // width), PACKING * x.size
    pack = functools.partial(kernels.pack, laid.memory, *laid.steps, *x.shape, width, out)
    if macs < engine.FEW:
        pack(0, count)
    else:
        engine.share(pack, count, macs)
    return out


UNIT = MultiplyAdds()
