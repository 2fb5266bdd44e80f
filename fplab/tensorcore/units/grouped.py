"""Block-scaled FP4: the terms of a block are exact sums of 16 products, times the significands of their two scales."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from ... import exact
from ...exact import Exact
from ...formats import get
from ...kernels import tensorcore_exact as kernels
from .. import engine
from ..blocks import Block, Term, decided, fuse, split
from ..models import OPTIONS, ZERO_EXPONENT, Model
from ..operands import Scales
from . import Array, Factors, Known, OnDevice, Pairs, Rows, ScalePair, power
from .block import ALIGNMENTS, LENGTHS, FusedBlocks, is_usual

GROUP = 16  # products of a term


class Grouped(FusedBlocks):
    """A term's exponent is that of its scales, which counts even where its sum is zero (``Model.zero_group``)."""

    promotes = False

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        if c.is_nan or any(s.is_nan for pair in scales for s in pair):
            return [decided(exact.NAN)]
        if c.kind == "inf":
            return [decided(c)]
        assert model.scale is not None
        fmt, length = get(model.scale[0]), model.scale[1]
        terms = []
        for start in range(0, len(a), GROUP):
            group = zip(a[start : start + GROUP], b[start : start + GROUP], strict=True)
            total = sum((x.value * y.value for x, y in group), Fraction(0))
            pair = [Exact(False, s.magnitude) for s in scales[start // length]]
            (ma, ea), (mb, eb) = (split(s, fmt.emin, ZERO_EXPONENT) for s in pair)
            significand = total * ma * mb
            terms.append(Term(significand, ea + eb, total < 0, significand != 0 or model.zero_group == "counts"))
        return [fuse(terms, c, model)]

    def factors(
        self, model: Model, a: Sequence[float], b: Sequence[float], scales: Sequence[tuple[float, float]]
    ) -> Iterator[tuple[Factors, bool]]:
        """The factors of a group are its scales, and its k that of its first product."""
        assert model.scale is not None
        size = model.scale[1]
        for start in range(0, -(-len(a) // model.k) * model.k, model.length):
            indices = range(start, start + model.length, GROUP)
            yield [(k, *(scales[k // size] if k // size < len(scales) else (0.0, 0.0))) for k in indices], True

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        assert model.scale
        assert scales
        x, y, size = engine.whole(a, model), engine.whole(b, model), model.scale[1]
        sa, sb = (_whole_scales(s, x.shape[1] // size) for s in scales)
        rule, before = self.general_rule(model), c.copy()
        engine.share(
            lambda p, q: kernels.grouped_dot(
                x[p:q], y[p:q], sa.significands[p:q], sa.exponents[p:q], sb.significands[p:q], sb.exponents[p:q],
                size, before[p:q], c[p:q], rule,
            ),
            a.shape[0],
            engine.SLOW * a.size,
        )  # fmt: skip

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        if not is_usual(model) or model.rounding != "rtz":
            super(FusedBlocks, self).chain(model, a, b, c, instructions, period, scales)
            return
        a, b, scales = engine.chosen(model, a, b, instructions, scales)
        assert model.scale
        assert scales
        x, y = (
            np.ascontiguousarray(2 * part, np.int16) for part in (engine.whole(a, model), engine.whole(b.T, model).T)
        )
        size, groups = model.scale[1], x.shape[1] // model.scale[1]
        left, right = (_whole_scales(part, groups) for part in scales)
        sa, sb = np.ldexp(*left), np.ascontiguousarray(np.ldexp(*right).T)
        ea, eb, rule = left.exponents, np.ascontiguousarray(right.exponents.T), self.fast_rule(model, np.int8, 0)
        engine.share(lambda p, q: kernels.grouped_matmul(x, y, sa, ea, sb, eb, size, c, p, q, model.length, rule),
                     a.shape[0], a.size * b.shape[1])  # fmt: skip

    def on_device(self, model: Model) -> OnDevice:
        return OnDevice(("terms.h", "groups.h", "chains.h"), {**self.device_constants(model), "WIDENED": 0}, 2)

    def known(self, model: Model, a: Array, b: Array, scales: tuple[Array, Array] | None) -> Known:
        """A term is a group of products, aligned by its scales alone."""
        assert model.scale
        assert scales
        emin = get(model.scale[0]).emin
        top = power(scales[0], emin, ZERO_EXPONENT) * power(scales[1], emin, ZERO_EXPONENT)
        products = (a * b * scales[0] * scales[1]).sum(axis=1)
        return Known(top.max(axis=1), np.full(len(a), a.shape[1] / GROUP), products, np.zeros(len(a)))

    def variants(self, model: Model) -> Iterator[Model]:
        """Other lengths and alignments, and what a group that sums to zero counts for."""
        assert model.scale is not None
        lengths = [n for n in LENGTHS if n >= model.scale[1]]
        for length, f, zero_group in itertools.product(lengths, ALIGNMENTS, OPTIONS["zero_group"]):
            yield dataclasses.replace(model, length=length, alignment_bits=f, k=length, zero_group=zero_group)

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        """In some rows a first group of zeros with the largest scales, and a c whose last bits lie below that."""
        rows = super().draw(model, k, count, rng)
        assert model.scale is not None
        chosen = rng.random(count) < 0.25
        rows["a"][chosen, : model.scale[1]] = 0
        top = max(float(rows[name].max()) for name in ("scale_a", "scale_b"))
        for name in ("scale_a", "scale_b"):
            rows[name][chosen, 0] = top
        digits = 1 + rng.integers(0, 1 << 23, count) * 2.0**-23
        c = np.ldexp(digits, rng.integers(-30, -12, count)) * top**2
        rows["c"][chosen] = c[chosen]
        return rows


def _whole_scales(scales: Scales, groups: int) -> Scales:
    """Scales of zero added on the right: the groups that fill up an instruction count for nothing."""
    significands, exponents = scales
    return Scales(engine.padded(significands, groups, 0), engine.padded(exponents, groups, ZERO_EXPONENT))


UNIT = Grouped()
