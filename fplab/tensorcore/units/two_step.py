"""AMD's sums on CDNA3: of a group the products are truncated and added, then that sum and c, both rounded down.

1. e is the largest exponent of a product: significands are not renormalised, a zero operand has -126, and counts. Every
   product is truncated toward zero to a multiple of 2**(e - F), and all are added exactly.
2. m is the larger of e and the exponent of c. The sum is rounded down, toward minus infinity, to a multiple of
   2**(m - 31), c down to one of 2**(m - F); both are added exactly, and this sum is rounded to FP32 to nearest.
   F, ``Model.alignment_bits``, is 24 on CDNA3.

Infinities and NaN decide first; then a finite product of magnitude 2**128 or more counts as an infinity.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from ... import exact
from ...exact import Exact
from ...formats import get
from ...kernels import matrix_cores as kernels
from ...kernels import tensorcore_fast as fast
from ...kernels.tensorcore_rows import LEAST
from .. import engine, limits
from ..blocks import Block, Term, decided, in_format, special, split
from ..models import ZERO_EXPONENT, Model
from ..operands import nan_bits
from . import OF_SUM, Array, Factors, Known, OnDevice, Pairs, Rounded, Rows, ScalePair, Unit, factors_at, nearest, power
from .block import _accumulators, _elements, cut, exponent_dtype, panels_packer, rows_packer, shared

SUM_BITS = 31  # places below m to which the sum of products is rounded down
LARGEST = Fraction(2) ** 128


class TwoStep(Unit):
    """Groups of ``Model.length`` products, aligned to ``Model.alignment_bits`` places."""

    promotes = True
    parts = 1  # how many sums a group has, the products being dealt to them in turn

    # --- the oracle -------------------------------------------------------------------------------------------------

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        pairs = list(zip(a, b, strict=True))
        blocks = [self._products(pairs[part :: self.parts], model) for part in range(self.parts)]
        decision = special(pairs, c) or _beyond(pairs)
        if decision is not None:
            return [*blocks, *[decided(decision, "join")] * (self.parts - 1), decided(decision, "add")]
        summed = blocks[0]
        if self.parts == 2:
            summed = _rounded_down([(block.result, block.emax) for block in blocks], model.alignment_bits)
            blocks.append(summed)
        return [*blocks, self._onto(c, summed, model)]

    def _products(self, pairs: Pairs, model: Model) -> Block:
        """Products truncated at the largest exponent, and their exact sum."""
        terms = []
        for x, y in pairs:
            if "inf" in (x.kind, y.kind) or x.is_nan or y.is_nan:
                return decided(exact.NAN)
            (sa, ea), (sb, eb) = (
                split(v, f.emin, ZERO_EXPONENT) for v, f in ((x, model.format_a), (y, model.format_b))
            )
            terms.append(Term(sa * sb, ea + eb, x.negative != y.negative, True))
        emax = max(t.exponent for t in terms)
        quantum = Fraction(2) ** (emax - model.alignment_bits)
        cut = tuple(t.cut(math.trunc(t.value / quantum), quantum) for t in terms)
        units = sum(t.units for t in cut)
        return Block(cut, emax, quantum, units, exact.of(units * quantum))

    def _onto(self, c: Exact, summed: Block, model: Model) -> Block:
        """The second step."""
        assert summed.emax is not None
        sc, ec = split(c, model.format_d.emin, ZERO_EXPONENT)
        m = max(summed.emax, ec)
        coarse, quantum = (Fraction(2) ** (m - bits) for bits in (model.alignment_bits, SUM_BITS))
        s = Term(summed.result.value / Fraction(2) ** summed.emax, summed.emax, summed.result.negative, True)
        of_c = Term(sc, ec, c.negative, True)
        steps = 0 if self.parts == 2 and ec < m - 25 else math.floor(of_c.value / coarse)
        terms = (s.cut(math.floor(s.value / quantum), quantum), of_c.cut(steps * int(coarse / quantum), quantum))
        units = sum(t.units for t in terms)
        return Block(terms, m, quantum, units, in_format(exact.of(units * quantum), model), "add")

    def factors(
        self, model: Model, a: Sequence[float], b: Sequence[float], scales: Sequence[tuple[float, float]]
    ) -> Iterator[tuple[Factors, bool]]:
        for start in range(0, -(-len(a) // model.k) * model.k, model.length):
            for part in range(self.parts):
                yield factors_at(range(start + part, start + model.length, self.parts), a, b), False
            if self.parts == 2:
                yield [OF_SUM, OF_SUM], False
            yield [OF_SUM], True

    # --- the fast product -------------------------------------------------------------------------------------------

    def arranged(self, x: Array, model: Model) -> Array:
        """The products of each part of a group together."""
        x = engine.whole(x, model)
        if self.parts == 1:
            return x
        order = np.arange(x.shape[1]).reshape(-1, model.length // 2, 2).swapaxes(1, 2).reshape(-1)
        return x.T.take(order, 0).T if x.strides[0] < x.strides[1] else x.take(order, 1)

    def rule(self, model: Model) -> kernels.Rule:
        emin_a, emin_b = self.emins(model)
        none = -32 if exponent_dtype(model) == np.int8 else LEAST
        return kernels.Rule(model.length, self.parts, model.alignment_bits, emin_a, emin_b, nan_bits(model), none)

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        x, y, rule = self.arranged(a, model), self.arranged(b, model), self.rule(model)
        engine.share(lambda p, q: kernels.two_step_dot(x[p:q], y[p:q], c[p:q], rule), a.shape[0], engine.SLOW * a.size)

    def rounds(self, model: Model) -> bool:
        return min(cut(model.a), cut(model.b)) > 0

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        if period:
            engine.promoted(self, model, a, b, c, instructions, period)
            return
        a, b, _ = engine.chosen(model, a, b, instructions, None)
        x, y = self.arranged(a, model), self.arranged(b.T, model).T
        length, rule, columns = model.length, self.rule(model), y.shape[1]
        (rows, k), panels, blocks = x.shape, -(-columns // fast.WIDTH), np.arange(x.shape[1] // length)
        dtype = exponent_dtype(model)
        zero = -50 if dtype == np.int8 else ZERO_EXPONENT  # beside any other less than that of two numbers
        packed_a = np.empty(x.size, np.float32), np.empty(x.size, dtype)
        kinds_a, kinds_b = np.empty(blocks.size * rows, np.uint8), np.empty(panels * blocks.size, np.uint8)
        pack_a = rows_packer(x, model.a, blocks, length, zero, rule.emin_a, *packed_a, kinds_a)
        size = panels * k * fast.WIDTH
        packed_b = np.empty(size, np.float32), np.empty(size, dtype)
        pack_b = panels_packer(y, model.b, blocks, length, zero, rule.emin_b, *packed_b, kinds_b)
        kernel, flat = kernels.TWO_STEP[length, self.parts], c.reshape(-1)

        def run(*part: int) -> None:
            kernel(*packed_a, kinds_a, rows, *packed_b, kinds_b, flat, columns, *part, rule)

        shared(pack_a, pack_b, run, rows, k, columns)

    def on_device(self, model: Model) -> OnDevice:
        constants = {"PARTS": self.parts, "ALIGN": model.alignment_bits}
        return OnDevice.of_ieee(("terms.h", "two_steps.h", "chains.h"), model, **constants)

    # --- bounds -----------------------------------------------------------------------------------------------------

    def known(self, model: Model, a: Array, b: Array, scales: tuple[Array, Array] | None) -> Known:
        """Zero operands have an exponent, too."""
        top = power(a, self.emins(model)[0], ZERO_EXPONENT) * power(b, self.emins(model)[1], ZERO_EXPONENT)
        return super().known(model, a, b, scales)._replace(top=top.max(axis=1))

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        """Products cut; of two parts both sums; then the sum and c, each rounded down, and their sum to nearest."""
        m = np.maximum(np.maximum(of.top, of.entering), 2.0**ZERO_EXPONENT)
        cut, down, coarse = (2.0**-bits * x for bits, x in (
            (model.alignment_bits, of.top), (SUM_BITS, m), (model.alignment_bits, m)))  # fmt: skip
        yield Rounded(cut, of.terms + (self.parts if self.parts > 1 else 0), True)
        yield Rounded(down, 1, True)
        yield Rounded(coarse, 1, True)
        yield nearest(of.entering + of.products + (of.terms + self.parts) * cut + down + coarse, model.format_d)

    # --- inference --------------------------------------------------------------------------------------------------

    def variants(self, model: Model) -> Iterator[Model]:
        """Other lengths and alignments."""
        possible = limits.allowed(model)
        for length, f in itertools.product(possible["length"], possible["alignment_bits"]):
            yield dataclasses.replace(model, length=length, alignment_bits=f, k=length)

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        a, b = (_elements(get(f), k, count, rng) for f in (model.a, model.b))
        return {
            "a": a,
            "b": b,
            "c": _accumulators(model.format_d, model.format_a.emax + model.format_b.emax, count, rng),
        }


def _rounded_down(sums: Sequence[tuple[Exact, int | None]], bits: int) -> Block:
    """Sums rounded down to a multiple of 2**(largest exponent - bits), and added exactly."""
    emax = max(e for _, e in sums if e is not None)
    quantum = Fraction(2) ** (emax - bits)
    terms = []
    for x, e in sums:
        assert e is not None
        term = Term(x.value / Fraction(2) ** e, e, x.negative, True)
        terms.append(term.cut(math.floor(term.value / quantum), quantum))
    units = sum(t.units for t in terms)
    return Block(tuple(terms), emax, quantum, units, exact.of(units * quantum), "join")


def _beyond(pairs: Pairs) -> Exact | None:
    """The infinity that products of 2**128 or more in magnitude make, NaN where they disagree; None without any."""
    signs = {x.negative != y.negative for x, y in pairs if x.magnitude * y.magnitude >= LARGEST}
    if not signs:
        return None
    return exact.NAN if len(signs) == 2 else Exact(signs.pop(), kind="inf")


UNIT = TwoStep()
