"""A chain of fused blocks: of each, terms truncated at the largest exponent, added exactly, and rounded once.

The fast product packs both operands and runs the panels of :mod:`fplab.kernels.tensorcore_fast`; what these do not
know, such as other answers to open questions, goes through the general kernel (:mod:`fplab.kernels.tensorcore`).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ... import exact
from ...exact import Exact
from ...formats import Format, get
from ...kernels import tensorcore as general
from ...kernels import tensorcore_fast as fast
from .. import engine
from ..blocks import Block, decided, fuse, product, special
from ..models import OPTIONS, Model
from ..operands import Scales, nan_bits
from . import Array, Blocks, Known, OnDevice, Pairs, Rounded, Rows, ScalePair, Unit, nearest

NO_SHIFTS = np.zeros(0, np.int32)
LENGTHS = (4, 8, 16, 32, 64)  # that elimination tries
ALIGNMENTS = range(8, 41)


class FusedBlocks(Unit):
    """Blocks of ``Model.length`` products and c."""

    promotes = True
    measured = True
    unseen = ("floor", "overflow", "negative_zeros", "zero_from_below", "c_exponent")
    halves = False  # whether an instruction is two blocks from zero, to which c is added at last

    # --- the oracle -------------------------------------------------------------------------------------------------

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        shift = 0
        for pair in scales[:1]:
            if any(scale.is_nan for scale in pair):
                return [decided(exact.NAN)]
            shift = sum(exact.floor_log2(scale.magnitude) for scale in pair)
        return [self.block(a, b, c, model, shift)]

    def block(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, shift: int = 0) -> Block:
        """One fused block of at most ``model.length`` products and an accumulator."""
        pairs = list(zip(a, b, strict=True))
        if (found := special(pairs, c)) is not None:
            return decided(found)
        return fuse([product(x, y, self.emins(model), model, shift) for x, y in pairs], c, model)

    # --- models as the kernels see them -----------------------------------------------------------------------------

    def general_rule(self, model: Model) -> general.Block:
        """A model as the general kernel sees it."""
        no_floor = model.floor is None or model.floor_rule == "zero_terms"
        d = model.result
        emin_a, emin_b = self.emins(model)
        return general.Block(
            length=model.length, align=model.alignment_bits, kept=model.kept_bits,
            rounding={"rtz": general.TOWARD_ZERO, "rne": general.TO_NEAREST}[model.rounding],
            floor=general.ABSENT if no_floor or model.floor is None else model.floor,
            zero_exponent=general.ABSENT if model.zero_exponent is None else model.zero_exponent, emin_a=emin_a,
            emin_b=emin_b, emin_c=emin_c(model), emin_d=d.emin, emax_d=d.emax, nan=nan_bits(model),
            minus_zeros=int(model.negative_zeros == "minus"), plus_from_below=int(model.zero_from_below == "plus"),
            overflow_max=int(model.overflow == "max"), widened=int(self.halves),
            zero_groups=int(model.zero_group == "counts"),
        )  # fmt: skip

    def is_fast(self, model: Model) -> bool:
        """Whether the fast kernels cover a model; they know only the default answers to the open questions."""
        return (
            is_usual(model)
            and (model.c_exponent == "clamped" or model.output == "fp16")  # whose subnormals are normal in float32
            and model.length in fast.TO_FLOAT
            and model.alignment_bits <= 25
            and model.rounding == ("rtz" if model.output == "fp32" else "rne")
            and (model.output == "fp32" or (model.kept_bits == 10 and model.scale is None))
        )

    def fast_rule(self, model: Model, dtype: Any, period: int) -> fast.Rule:
        """A model as the fast kernels see it; ``period`` in blocks."""
        emin_a, emin_b = self.emins(model)
        return fast.Rule(align=model.alignment_bits, kept=model.kept_bits,
                         floor=fast.NEVER if model.floor is None else model.floor, emin_a=emin_a, emin_b=emin_b,
                         emin_c=emin_c(model), none=-32 if dtype == np.int8 else -1000, nan=nan_bits(model),
                         period=period, half=int(self.halves and model.output == "fp16"))  # fmt: skip

    # --- the fast product -------------------------------------------------------------------------------------------

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        shifts = np.zeros((a.shape[0], 0), np.int64)
        if scales:
            a, b = (_with_nan_scales(x, s, model) for x, s in zip((a, b), scales, strict=True))
            shifts = scales[0].exponents.astype(np.int64) + scales[1].exponents
        x, y = (self.arranged(engine.whole(part, model), model).view(np.uint32) for part in (a, b))
        rule, before = self.general_rule(model), c.copy()
        engine.share(lambda p, q: general.dot(x[p:q], y[p:q], before[p:q], shifts[p:q], c[p:q], rule), a.shape[0],
                     engine.SLOW * a.size)  # fmt: skip

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        per = 2 if self.halves else model.k // model.length
        blocks = (instructions[:, None] * per + np.arange(per)).reshape(-1)
        if scales:
            a, b = _with_nan_scales(a, scales[0], model), _with_nan_scales(b.T, scales[1], model).T
        a, b = self.arranged(a, model), self.arranged(b.T, model).T
        if self.is_fast(model) and not (self.halves and period):
            self._fast_chain(model, a[None], b[None], c[None], blocks, 2 if self.halves else period * per, scales)
            return
        self._general_chain(model, a, b, c, blocks, period * per, scales)

    def batch(self, model: Model, a: Array, b: Array, c: Array) -> None:
        if type(self) is not FusedBlocks or not self.is_fast(model):
            super().batch(model, a, b, c)
            return
        count = -(-a.shape[-1] // model.k) * (model.k // model.length)
        self._fast_chain(model, a, b, c, np.arange(count), 0, None)

    def _fast_chain(
        self, model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int, scales: ScalePair | None
    ) -> None:
        """The fast kernels, with rows and columns exchanged where there are too few columns for a panel.

        a (B, M, K), b (B, K, N), c (B, M, N); scales are of one product alone.
        """
        if b.shape[-1] < min(a.shape[-2], fast.WIDTH):
            flipped, exchanged = np.ascontiguousarray(c.swapaxes(1, 2)), scales and (scales[1], scales[0])
            self._panels(swapped(model), b.swapaxes(1, 2), a.swapaxes(1, 2), flipped, blocks, period, exchanged)
            c[...] = flipped.swapaxes(1, 2)
            return
        self._panels(model, a, b, c, blocks, period, scales)

    def _panels(
        self, model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int, scales: ScalePair | None
    ) -> None:
        """Of each product both operands packed, and the kernel over rows and panels of columns."""
        length, count = model.length, blocks.size
        (rows, k), columns = a.shape[1:], b.shape[-1]
        panels = -(-columns // fast.WIDTH)
        dtype = exponent_dtype(model)
        rule = self.fast_rule(model, dtype, period)
        zero = -50 if dtype == np.int8 else fast.NEVER
        packed_a = np.empty(count * rows * length, np.float32), np.empty(count * rows * length, dtype)
        kinds_a = np.empty(count * rows, np.uint8)
        size = panels * count * length * fast.WIDTH
        packed_b = np.empty(size, np.float32), np.empty(size, dtype)
        kinds_b = np.empty(panels * count, np.uint8)
        shifts_a = shifts_b = NO_SHIFTS
        if scales:
            shifts_a = np.ascontiguousarray(scales[0].exponents[:, blocks].T).reshape(-1)
            shifts_b = _panel_shifts(scales[1].exponents[:, blocks], panels)
        kernels = fast.TO_FLOAT if model.output == "fp32" else fast.TO_HALF
        kernel = (fast.SCALED if scales else kernels)[length]
        macs = rows * k * columns
        for x, y, flat in zip(_to_read(a), _to_read(b), c.reshape(len(c), -1), strict=True):

            def run(row0: int, row1: int, panel0: int, panel1: int, flat: Array = flat) -> None:
                kernel(*packed_a, kinds_a, rows, *packed_b, kinds_b, shifts_a, shifts_b, flat, columns,
                       row0, row1, panel0, panel1, 0, count, rule)  # fmt: skip

            if len(c) > 1:  # one of a batch, whose products threads share
                fast.pack_rows(x, blocks, length, zero, rule.emin_a, 0, rows, *packed_a, kinds_a)
                fast.pack_panels(y, blocks, length, zero, rule.emin_b, 0, panels, *packed_b, kinds_b)
                run(0, rows, 0, panels)
                continue
            _pack_rows(x, blocks, length, zero, rule.emin_a, *packed_a, kinds_a)
            _pack_panels(y, blocks, length, zero, rule.emin_b, *packed_b, kinds_b)
            if rows >= 4 * fast.TILE or rows >= columns:
                engine.share(lambda p, q, run=run: run(p, q, 0, panels), rows, macs,
                             fast.TILE if rows > 2 * fast.TILE else 1)  # fmt: skip
            else:
                engine.share(lambda p, q, run=run: run(0, rows, p, q), panels, macs)

    def _general_chain(
        self, model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int, scales: ScalePair | None
    ) -> None:
        """The general kernel; promotion is done here, by one chain for each stretch of blocks."""
        if period:
            for start in range(0, blocks.size, period):
                part = np.zeros_like(c)
                self._general_chain(model, a, b, part, blocks[start : start + period], 0, scales)
                c[...] = engine.add_up(c, part, model)
            return
        rule = self.general_rule(model)
        x, y = engine.gather(a, blocks, model.length), engine.gather(b.T, blocks, model.length)
        none = np.zeros((max(a.shape[0], b.shape[1]), 0), np.int64)
        shifts_a, shifts_b = [part.exponents[:, blocks].astype(np.int64) for part in scales] if scales else (none, none)
        before = c.copy()

        def run(row0: int, row1: int) -> None:
            s = slice(row0, row1)
            general.matmul(x[s], y, before[s], shifts_a[s], shifts_b, c[s], rule)

        engine.share(run, a.shape[0], a.shape[0] * x.shape[1] * b.shape[1])

    # --- on a device ------------------------------------------------------------------------------------------------

    def on_device(self, model: Model) -> OnDevice:
        return OnDevice(("terms.h", "blocks.h", "chains.h"), self.device_constants(model))

    def device_constants(self, model: Model) -> dict[str, int]:
        """The general rule as the C++ has it."""
        fields = self.general_rule(model)._asdict()
        named = {{"rounding": "NEAREST", "nan": "NAN_BITS"}.get(name, name.upper()): x for name, x in fields.items()}
        return {**named, "NARROW": int(max(model.format_a.exponent_bits, model.format_b.exponent_bits) <= 5)}

    # --- bounds -----------------------------------------------------------------------------------------------------

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        """Each term is cut below one quantum; then the sum is rounded."""
        floor = max(emin_c(model), *([] if model.floor is None else [model.floor]), -1000)
        quantum = 2.0**-model.alignment_bits * np.maximum(np.maximum(of.top, of.held), 2.0**floor)
        yield Rounded(quantum, of.terms + (of.held > 0), True)
        cut, fmt = model.rounding == "rtz", model.result
        one = nearest(of.held + of.products + (of.terms + 1) * quantum, fmt)
        yield Rounded(2 * one.most, 1, True) if cut else one

    # --- probing ----------------------------------------------------------------------------------------------------

    def recognise(self, blocks: Blocks, c_inside: bool) -> tuple[int, int | None] | None:
        length = len(blocks[0])
        consecutive = all(block == tuple(range(block[0], block[0] + len(block))) for block in blocks)
        alike = all(len(block) == length for block in blocks[:-1])
        return (length, None) if consecutive and c_inside and alike else None

    def variants(self, model: Model) -> Iterator[Model]:
        """Other lengths and alignments."""
        smallest = model.scale[1] if model.scale else 1
        for length, f in itertools.product((n for n in LENGTHS if n >= smallest), ALIGNMENTS):
            yield dataclasses.replace(model, length=length, alignment_bits=f, k=length)

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        a, b = (_elements(get(f), k, count, rng) for f in (model.a, model.b))
        most = model.format_a.emax + model.format_b.emax
        rows: Rows = {"a": a, "b": b, "c": _accumulators(model.format_d, most, count, rng)}
        if model.scale:
            size, groups = model.scale[1], -(-k // model.scale[1])
            rows["scale_a"], rows["scale_b"] = (_scales(get(model.scale[0]), groups, count, rng) for _ in "ab")
            s, t = (np.repeat(rows[f"scale_{x}"], size, axis=1)[:, :k] for x in "ab")
            cancels = rng.random(count) < 0.5  # c takes the first group away, so that what lies far below it shows
            first = (a[:, :size] * b[:, :size] * (s * t)[:, :size]).sum(axis=1)
            near = rows["c"] * np.maximum((s * t).max(axis=1), 2.0**-60)
            rows["c"] = np.where(cancels, -first, near).astype(np.float32)
        return rows


def emin_c(model: Model) -> int:
    """Where c's exponent is clamped: the format's least, or that of float32's smallest subnormal, which is nowhere."""
    return model.result.emin if model.c_exponent == "clamped" else -149


@functools.lru_cache(maxsize=256)
def is_usual(model: Model) -> bool:
    """Whether a model gives the default answers to the open questions, all but c's exponent, which is the fast kernels'
    to choose."""
    options = {name: allowed[0] for name, allowed in OPTIONS.items() if name != "c_exponent"}
    return all(getattr(model, name) == default for name, default in options.items())


def exponent_dtype(model: Model) -> type[np.signedinteger[Any]]:
    """int8 where the sums of exponents of both operands fit it, else int16."""
    return np.int8 if max(model.format_a.exponent_bits, model.format_b.exponent_bits) <= 5 else np.int16


@functools.lru_cache(maxsize=256)  # making a record checks it, which takes longer than a small product
def swapped(model: Model) -> Model:
    """The model of the transposed product."""
    return dataclasses.replace(model, a=model.b, b=model.a)


def _with_nan_scales(x: Array, scales: Scales, model: Model) -> Array:
    """Operands (rows, K) with NaN for every element whose scale is NaN."""
    assert model.scale is not None
    bad = np.isnan(scales.significands)
    if not bad.any():
        return x
    return np.where(np.repeat(bad, model.scale[1], axis=1)[:, : x.shape[1]], np.float32(np.nan), x)


def _to_read(x: Array) -> Array:
    """A contiguous array that a kernel may read, of one type whoever owns it: each type is compiled for itself."""
    view = np.ascontiguousarray(x).view()
    view.flags.writeable = False
    return view


def _pack_rows(a: Array, blocks: Array, length: int, zero: int, emin: int, *packed: Array) -> None:
    """A in rows, each by one thread."""
    a = _to_read(a)
    engine.share(
        lambda p, q: fast.pack_rows(a, blocks, length, zero, emin, p, q, *packed), a.shape[0], 4 * packed[0].size
    )


def _pack_panels(b: Array, blocks: Array, length: int, zero: int, emin: int, *packed: Array) -> None:
    """B in panels, each by one thread."""
    b, panels = _to_read(b), -(-b.shape[1] // fast.WIDTH)
    engine.share(
        lambda p, q: fast.pack_panels(b, blocks, length, zero, emin, p, q, *packed), panels, 4 * packed[0].size
    )


def _panel_shifts(exponents: Array, panels: int) -> Array:
    """Exponents of scales, (N, blocks), as [panel][block][column]."""
    padded = np.zeros((panels * fast.WIDTH, exponents.shape[1]), np.int32)
    padded[: exponents.shape[0]] = exponents
    return np.ascontiguousarray(padded.reshape(panels, fast.WIDTH, -1).transpose(0, 2, 1)).reshape(-1)


def _elements(f: Format, k: int, count: int, rng: np.random.Generator) -> Array:
    """Random finite values, in some rows mostly zeros."""
    values = np.ldexp(rng.integers(0, 1 << f.significand_bits, (count, k)) * 2.0**-f.fraction_bits,
                      rng.integers(f.emin, f.emax, (count, k), endpoint=True))  # fmt: skip
    values = np.minimum(values, f.max) * rng.choice([-1, 1], (count, k))
    values *= rng.random((count, k)) < rng.choice([0.05, 0.3, 1.0], (count, 1))
    return np.asarray(values, np.float32)


def _accumulators(d: Format, most: int, count: int, rng: np.random.Generator) -> Array:
    """Accumulators from the size of the products to the place where they disappear below it; some zero."""
    spread = d.significand_bits + 4
    exponents = most + rng.integers(-4, spread, count)
    digits = 1 + rng.integers(0, 1 << d.fraction_bits, count) * 2.0**-d.fraction_bits
    c = np.ldexp(digits, np.minimum(exponents, d.emax - 1)) * rng.choice([-1, 0, 1], count, p=[0.45, 0.1, 0.45])
    return np.asarray(c, np.float32)


def _scales(f: Format, groups: int, count: int, rng: np.random.Generator) -> Array:
    """Block scales: powers of two as far apart as the format goes, though of E8M0 only 2**-26 to 2**26."""
    low, high = max(f.emin - f.fraction_bits, -26), min(f.emax, 26)
    scales: Array = np.exp2(rng.integers(low, high, (count, groups), endpoint=True)).astype(np.float32)
    return scales


UNIT = FusedBlocks()
