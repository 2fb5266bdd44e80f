"""AMD's sums of FP16 and BF16 before CDNA3: products of a group pairwise, then their sum onto c, all in FP32.

Every product, addition and result is rounded to nearest by itself. CDNA2 flushes (``Model.subnormals``): a subnormal
operand or c becomes +0 before anything else, every subnormal product, sum and result a zero of its sign. Whether an
instruction also makes +0 of c = -0 is open (``Model.flushed_zero``).
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ... import exact
from ...exact import Exact
from ...formats import Format, get
from ...kernels import matrix_cores
from ...kernels import multiply_adds as kernels
from .. import engine
from ..blocks import Block, exactly, in_format
from ..models import Model
from ..operands import nan_bits
from . import OF_SUM, Array, Factors, Known, OnDevice, Pairs, Rounded, Rows, ScalePair, Unit, factors_at, nearest
from .block import _elements
from .fma import multiplier

ZERO = Exact(False)


class Pairwise(Unit):
    """Two steps a group: the tree of its products, and the addition of c."""

    promotes = True

    # --- the oracle -------------------------------------------------------------------------------------------------

    def received(self, c: Exact, model: Model) -> Exact:
        if model.subnormals == "flushed":
            c = _without(c, model.format_d)
        return ZERO if model.flushed_zero == "plus" and c.is_zero else c

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        flushes = model.subnormals == "flushed"
        if flushes:
            a, b = ([_without(x, f) for x in row] for row, f in ((a, model.format_a), (b, model.format_b)))

        def rounded(x: Exact) -> Exact:
            result = in_format(x, model)
            return exact.flush(result, model.format_d) if flushes else result

        sums = products = [rounded(exact.fma(x, y, ZERO)[0]) for x, y in zip(a, b, strict=True)]
        while len(sums) > 1:
            sums = [rounded(exact.add(x, y)[0]) for x, y in zip(sums[::2], sums[1::2], strict=True)]
        result = rounded(exact.add(c, sums[0])[0])
        return [exactly(products, sums[0], "tree"), exactly([sums[0], c], result, "sum")]

    def factors(
        self, model: Model, a: Sequence[float], b: Sequence[float], scales: Sequence[tuple[float, float]]
    ) -> Iterator[tuple[Factors, bool]]:
        for start in range(0, -(-len(a) // model.k) * model.k, model.length):
            yield factors_at(range(start, start + model.length), a, b), False
            yield [OF_SUM], True

    # --- the fast product -------------------------------------------------------------------------------------------

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        x, y, total = self._operands(model, a, b, c)
        rule = model.length, model.subnormals == "flushed", _renewed(model)
        engine.share(lambda p, q: matrix_cores.pairwise_dot(x[p:q], y[p:q], total[p:q], *rule), a.shape[0], a.size)
        c[np.isnan(total)] = nan_bits(model)

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        if period:
            engine.promoted(self, model, a, b, c, instructions, period)
            return
        a, b, _ = engine.chosen(model, a, b, instructions, None)
        x, y, total = self._operands(model, a, b.T, c)
        flushes = model.subnormals == "flushed" and not _far_from_underflow(x, y, model)
        multiplier(kernels.STEPS[model.length, flushes], y.T, nan_bits(model), _renewed(model))(x, total)

    def _operands(self, model: Model, a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
        """Rows of whole instructions and c as numbers, subnormals gone where they are flushed; c in place."""
        x, y, total = engine.whole(a, model), engine.whole(b, model), c.view(np.float32)
        if model.subnormals == "flushed":
            x, y = (np.where(np.abs(v) < 2.0**f.emin, np.float32(0), v) if _least(v) < 2.0**f.emin else v for v, f in
                    ((x, model.format_a), (y, model.format_b)))  # fmt: skip
            total[(np.abs(total) < 2.0**model.format_d.emin) & (total != 0)] = 0
        return x, y, total

    def on_device(self, model: Model) -> OnDevice:
        constants = {"FLUSHES": int(model.subnormals == "flushed"), "PLUS_C": _renewed(model) // model.length}
        return OnDevice.of_ieee(("terms.h", "pairs.h", "chains.h"), model, **constants)

    # --- bounds -----------------------------------------------------------------------------------------------------

    def known(self, model: Model, a: Array, b: Array, scales: tuple[Array, Array] | None) -> Known:
        known = super().known(model, a, b, scales)
        if model.subnormals == "kept":
            return known
        gone = (a < 2.0**model.format_a.emin) | (b < 2.0**model.format_b.emin)
        return known._replace(lost=np.where(gone, a * b, 0).sum(axis=1))

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        """Products, which only underflow rounds; levels of the tree; c onto its root. What is flushed is below emin."""
        fmt, most = model.format_d, of.products
        tiny = np.full_like(
            most, 2.0**fmt.emin * (1.0 if model.subnormals == "flushed" else 2.0**-fmt.significand_bits)
        )
        yield Rounded(tiny, model.length, False)
        for _ in range(model.length.bit_length() - 1):
            most = most + model.length * tiny
            rounding = nearest(most, fmt)
            yield Rounded(rounding.most + model.length * tiny, 1, False)
            most = most + rounding.most
        yield Rounded(nearest(of.entering + most, fmt).most + 2 * tiny, 1, False)

    # --- inference --------------------------------------------------------------------------------------------------

    def variants(self, model: Model) -> Iterator[Model]:
        """Both lengths, subnormals kept and flushed, and then a c of -0 kept and not."""
        ways: list[dict[str, Any]] = [{"subnormals": "kept", "flushed_zero": "kept"}, {"subnormals": "flushed"}]
        for length in (2, 4):
            for way in (*ways, ways[1] | {"flushed_zero": "plus"}):
                yield dataclasses.replace(model, length=length, k=max(model.k, length), **way)

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        """Of half of the rows all products are so small that flushing shows, of some onto a c of -0."""
        a, b = (_elements(get(f), k, count, rng) for f in (model.a, model.b))
        tiny = rng.random(count) < 0.5
        a[tiny] = _small(model.format_a, a[tiny])
        c = np.ldexp(rng.standard_normal(count), np.where(tiny, -130, rng.integers(-8, 24, count))).astype(np.float32)
        c[rng.random(count) < 0.3] = 0
        below = rng.random(count) < 0.1
        a[below], b[below], c[below] = -(2.0**model.format_a.emin), 2.0**model.format_b.emin, -0.0
        return {"a": a, "b": b, "c": c}


def _least(x: Array) -> float:
    """The least magnitude of what is not zero."""
    magnitudes = (x.view(np.uint32) & 0x7FFFFFFF) - np.uint32(1)  # a zero is then the largest
    return float((magnitudes.min(initial=0x7F7FFFFF) + np.uint32(1)).view(np.float32))


def _far_from_underflow(x: Array, y: Array, model: Model) -> bool:
    """Whether no sum is subnormal: each is a multiple of the last place of the least product, beside c, which is none.

    Where a sum onto c is small, c is near such a multiple, and its own last place no less.
    """
    places = model.format_a.fraction_bits + model.format_b.fraction_bits + 2
    return math.log2(_least(x)) + math.log2(_least(y)) - places >= -100


def _renewed(model: Model) -> int:
    """After how many products a sum of -0 becomes +0, in an instruction that begins with it; 0 for never."""
    return model.k if model.flushed_zero == "plus" else 0


def _without(x: Exact, fmt: Format) -> Exact:
    """A number of a format, a subnormal as +0."""
    return ZERO if x.kind == "finite" and 0 < x.magnitude < Fraction(2) ** fmt.emin else x


def _small(fmt: Format, x: Array) -> Array:
    """Numbers as subnormals of a format or the least normal ones, with few digits."""
    digits = np.rint(np.frexp(x)[0] * 2**fmt.significand_bits)
    return np.asarray(np.ldexp(digits, fmt.emin - fmt.fraction_bits), np.float32)


UNIT = Pairwise()
