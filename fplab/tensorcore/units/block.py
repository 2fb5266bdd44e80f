"""A chain of fused blocks: of each, terms truncated at the largest exponent, added exactly, and rounded once.

The fast product packs both operands and runs the panels of :mod:`fplab.kernels.tensorcore_fast`; what these do not
know, such as other answers to open questions, or would first have to be compiled for, is NumPy's (:mod:`..vectors`).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import exact, uncompiled
from ...exact import Exact
from ...formats import Format, get
from ...kernels import Kernel
from ...kernels import tensorcore as general
from ...kernels import tensorcore_fast as fast
from ...kernels import tensorcore_pack as packing
from .. import engine, vectors
from ..blocks import Block, decided, fuse, product, special
from ..models import OPTIONS, Model
from ..operands import Scales, nan_bits
from ..vectors import Operand
from . import Array, Known, OnDevice, Pairs, Rounded, Rows, ScalePair, Unit, nearest

Share = Callable[[int, int], None]  # work on some of what is divided over threads
PACKING = 8  # products that take as long as packing an element
Packed = tuple[Array, Array, Array]  # an operand's values and their exponents, and the classes of its blocks
NO_SHIFTS, FROM_START = np.zeros(0, np.int32), np.zeros(1, np.int64)
LENGTHS = (4, 8, 16, 32, 64)  # that elimination tries
ALIGNMENTS = range(8, 41)


class FusedBlocks(Unit):
    """Blocks of ``Model.length`` products and c."""

    promotes = True
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
        if (result := special(pairs, c)) is not None:
            return decided(result)
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

    def fast_rule(self, model: Model, dtype: Any, period: int, fresh: bool = False) -> fast.Rule:
        """A model as the fast kernels see it; ``period`` in blocks; ``fresh``: of a result that begins with +0."""
        emin_a, emin_b = self.emins(model)
        return fast.Rule(align=model.alignment_bits, kept=model.kept_bits,
                         floor=fast.NEVER if model.floor is None else model.floor, emin_a=emin_a, emin_b=emin_b,
                         emin_c=emin_c(model), none=-32 if dtype == np.int8 else -1000, nan=nan_bits(model),
                         period=period, half=int(self.halves and model.output == "fp16"), fresh=int(fresh))  # fmt: skip

    # --- the fast product -------------------------------------------------------------------------------------------

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        shifts = np.zeros((a.shape[0], 0), np.int64)
        if scales:
            a, b = (_with_nan_scales(x, s, model) for x, s in zip((a, b), scales, strict=True))
            shifts = scales[0].exponents.astype(np.int64) + scales[1].exponents
        x, y = (self.arranged(engine.whole(part, model), model) for part in (a, b))
        rule, before = self.general_rule(model), c.copy()
        arguments = x.view(np.uint32), y.view(np.uint32), before, shifts, c
        work, by_numpy = _work(x.shape[1] // model.length, x.size), model.alignment_bits <= vectors.MOST_ALIGNED
        if by_numpy and uncompiled.products(general.dot, "", lambda: (*arguments, rule), work):
            left = Operand.of(x, shifts, rule.emin_a, rule)
            right = Operand.of(y, np.zeros_like(shifts), rule.emin_b, rule)
            vectors.fill(left, right, c, model.format_d, rule)
            return
        engine.share(lambda p, q: general.dot(*(part[p:q] for part in arguments), rule), a.shape[0],
                     engine.SLOW * a.size)  # fmt: skip

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        usual = self.is_fast(model) and not (self.halves and period)
        if not usual and model.alignment_bits > vectors.MOST_ALIGNED:
            if period:
                engine.promoted(self, model, a, b, c, instructions, period)
            else:
                super().chain(model, a, b, c, instructions, 0, scales)
            return
        per = 2 if self.halves else model.k // model.length
        blocks = (instructions[:, None] * per + np.arange(per)).reshape(-1)
        if scales:
            a, b = _with_nan_scales(a, scales[0], model), _with_nan_scales(b.T, scales[1], model).T
        a, b = self.arranged(a, model), self.arranged(b.T, model).T
        if usual:
            self._fast_chain(model, a, b, c, blocks, 2 if self.halves else period * per, scales)
            return
        self._general_chain(model, a, b, c, blocks, period * per, scales)

    def rounds(self, model: Model) -> bool:
        return self.in_panels(model) and min(cut(model.a), cut(model.b)) > 0

    def in_panels(self, model: Model) -> bool:
        return _in_panels(self, model)

    def batch(
        self, model: Model, a: Array, b: Array, c: Array, first: int, last: int, fresh: bool = False,
        below: bool = False,
    ) -> None:  # fmt: skip
        if not self.in_panels(model):
            super().batch(model, a, b, c, first, last, fresh)
            return
        self._batched(model, a, b, c, first, last, fresh, below)

    def _batched(
        self, model: Model, a: Array, b: Array, c: Array, first: int, last: int, fresh: bool, below: bool
    ) -> None:
        given = model, a, b, c, first, last, fresh, below
        model, a, b, steps = _exchanged(model, a, b)
        (rows, k), columns, length = a.shape[-2:], b.shape[-1], model.length
        work, blocks, dtype, zero, rule = _whole_product(self, model, k, fresh)
        within = (fast.ROWS if a is given[1] else fast.COLUMNS) if below and fresh else fast.ALL
        of_a, of_b = blocks.size * rows, blocks.size * -(-columns // fast.WIDTH) * fast.WIDTH
        packed_a = engine.scratches("a", (of_a * length, np.float32), (of_a * length, dtype), (of_a, np.uint8))
        packed_b = engine.scratches("b", (of_b * length, np.float32), (of_b * length, dtype), (of_b, np.uint8))
        x, y = Laid.of(a, model.a), Laid.of(b, model.b)
        arguments = (x.memory, x.begins, *x.steps, x.cut, y.memory, y.begins, *y.steps, y.cut, blocks, length, zero,
                     *packed_a, rows, k, *packed_b, c.reshape(-1), columns, *steps, first, last, within,
                     rule)  # fmt: skip
        products = rows * k * columns + (blocks.size << 14)  # as _work has it
        if uncompiled.products(work, dtype, lambda: arguments, (last - first) * products):
            super().batch(*given)
        else:
            work(*arguments)

    def begin(self, model: Model, a: Array, b: Array, c: Array) -> None:
        if self.in_panels(model):
            self._fast_chain(model, a, b, c, _blocks(model, a.shape[1]), 0, None, fresh=True)
        else:
            super().begin(model, a, b, c)

    def alone(self, model: Model, a: Array, b: Array) -> Array | None:
        if not (a.size and b.size and _in_panels(self, model)):
            return None
        c = np.empty((a.shape[0], b.shape[1]), np.uint32)
        if (macs := c.size * a.shape[1]) < engine.FEW or engine.by_one(macs):
            self._batched(model, a, b, c[None], 0, 1, True, False)
        else:
            self.begin(model, a, b, c)
        return c.view(np.float32)

    def product_by(self, model: Model, b: Array) -> Callable[[Array, Array], None]:
        if not self.in_panels(model):
            return super().product_by(model, b)
        blocks, (dtype, zero, rule) = _blocks(model, len(b)), _rule(self, model, 0, False)
        count = _whole(b.shape[1]) * blocks.size
        size = count * model.length
        packed = np.empty(size, np.float32), np.empty(size, dtype), np.empty(count, np.uint8)
        alike = *packed, 0, *packed, NO_SHIFTS, NO_SHIFTS, np.empty(0, np.uint32), *[0] * 9, rule
        if uncompiled.products(_kernel(model, False), dtype, lambda: alike, _work(blocks.size, b.size)):
            return lambda a, c: self.chain(model, a, b, c, np.arange(-(-len(b) // model.k)), 0, None)
        pack = panels_packer(b, model.b, blocks, model.length, zero, rule.emin_b, *packed)
        engine.share(pack, -(-b.shape[1] // fast.WIDTH), PACKING * b.size)
        return lambda a, c: self._fast_chain(model, a, b, c, blocks, 0, None, packed)

    def _fast_chain(
        self, model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int, scales: ScalePair | None,
        packed: Packed | None = None, fresh: bool = False,
    ) -> None:  # fmt: skip
        """Both operands packed, and the kernel over rows and panels of columns. ``packed``: a b that is already."""
        given, steps = (model, a, b, c, blocks, 0 if self.halves else period, scales), (c.shape[1], 1)
        if packed is None:
            model, a, b, steps = _exchanged(model, a, b)
        if scales and a is not given[1]:
            scales = scales[1], scales[0]
        length, count = model.length, blocks.size
        (rows, k), columns = a.shape, b.shape[1]
        dtype, zero, rule = _rule(self, model, period, fresh)
        packed_a = _room("a", rows * count, length, dtype)
        packed_b = packed or _room("b", _whole(columns) * count, length, dtype)
        shifts_a = shifts_b = NO_SHIFTS
        if scales:
            shifts_a = np.ascontiguousarray(scales[0].exponents[:, blocks].T).reshape(-1)
            shifts_b = _panel_shifts(scales[1].exponents[:, blocks], -(-columns // fast.WIDTH))
        kernel, flat = _kernel(model, bool(scales)), c.reshape(-1)
        if packed is None and uncompiled.products(
            kernel,
            dtype,
            lambda: (*packed_a, 0, *packed_b, shifts_a, shifts_b, flat, *[0] * 9, rule),
            _work(count, rows * count * length * columns),
        ):
            if fresh:
                c[...] = 0
            self._general_chain(*given)
            return
        pack_a = rows_packer(a, model.a, blocks, length, zero, rule.emin_a, *packed_a)
        pack_b = panels_packer(b, model.b, blocks, length, zero, rule.emin_b, *packed_b) if packed is None else None

        def run(*part: int) -> None:
            kernel(*packed_a, rows, *packed_b, shifts_a, shifts_b, flat, columns, *steps, *part, 0, count, rule)

        shared(pack_a, pack_b, run, rows, k, columns)

    def _general_chain(
        self, model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int, scales: ScalePair | None
    ) -> None:
        """By NumPy; promotion is done here, by one chain for each stretch of blocks."""
        if period:
            for start in range(0, blocks.size, period):
                part = np.zeros_like(c)
                self._general_chain(model, a, b, part, blocks[start : start + period], 0, scales)
                c[...] = engine.add_up(c, part, model)
            return
        rule, operands = self.general_rule(model), []
        for own, part, emin, fmt in ((0, a, rule.emin_a, model.format_a), (1, b.T, rule.emin_b, model.format_b)):
            values = engine.gather(part, blocks, model.length).view(np.float32)
            shifts = scales[own].exponents[:, blocks] if scales else np.zeros((len(values), 0), np.int32)
            operands.append(Operand.of(values, shifts, emin, rule, fmt if self.rounds(model) else None))
        x, y = operands
        engine.share(lambda p, q: vectors.fill(x.at(slice(p, q)), y, c[p:q], model.format_d, rule), a.shape[0],
                     a.shape[0] * blocks.size * model.length * b.shape[1])  # fmt: skip

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
        quantum = 2.0**-model.alignment_bits * np.maximum(np.maximum(of.top, of.entering), 2.0**floor)
        yield Rounded(quantum, of.terms + (of.entering > 0), True)
        cut, fmt = model.rounding == "rtz", model.result
        rounding = nearest(of.entering + of.products + (of.terms + 1) * quantum, fmt)
        yield Rounded(2 * rounding.most, 1, True) if cut else rounding

    # --- inference --------------------------------------------------------------------------------------------------

    def variants(self, model: Model) -> Iterator[Model]:
        """Other lengths and alignments."""
        lengths = LENGTHS if model.scale is None else (model.length,)
        for length, f in itertools.product(lengths, ALIGNMENTS):
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


@functools.lru_cache(maxsize=256)
def _in_panels(unit: FusedBlocks, model: Model) -> bool:
    """See :meth:`Unit.in_panels`."""
    return type(unit) is FusedBlocks and unit.is_fast(model)


def _exchanged(model: Model, a: Array, b: Array) -> tuple[Model, Array, Array, tuple[int, int]]:
    """Operands (..., M, K) and (..., K, N), with rows and columns exchanged where that leaves less of panels empty, or
    as little and the larger operand then lies as it is packed.

    And in the memory of a result, how far it is from a row to the next and from a column to the next.
    """
    rows, columns = a.shape[-2], b.shape[-1]
    now, then = rows * -(-columns // fast.WIDTH), columns * -(-rows // fast.WIDTH)
    if then < now or (then == now and columns > rows and b.strides[-1] != b.itemsize):
        other = model if model.a == model.b else swapped(model)
        return other, b.swapaxes(-1, -2), a.swapaxes(-1, -2), (1, columns)
    return model, a, b, (columns, 1)


def _whole(columns: int) -> int:
    """Columns of whole panels."""
    return -(-columns // fast.WIDTH) * fast.WIDTH


def _kernel(model: Model, scaled: bool) -> Kernel:
    """The fast kernel of a model."""
    kernels = fast.SCALED if scaled else fast.TO_FLOAT if model.output == "fp32" else fast.TO_HALF
    kernel: Kernel = kernels[model.length]
    return kernel


def _work(blocks: int, products: int) -> int:
    """How many products take NumPy as long as these in so many blocks."""
    return products + (blocks << 14)


@functools.lru_cache(maxsize=256)
def _blocks(model: Model, k: int) -> Array:
    """The blocks of k in whole instructions."""
    return np.arange(-(-k // model.k) * (model.k // model.length))


@functools.lru_cache(maxsize=256)
def _rule(
    unit: FusedBlocks, model: Model, period: int, fresh: bool
) -> tuple[type[np.signedinteger[Any]], int, fast.Rule]:
    """The dtype of exponents, the one that packing writes for a zero, and a model as the fast kernels see it."""
    dtype = exponent_dtype(model)
    return dtype, -50 if dtype == np.int8 else fast.NEVER, unit.fast_rule(model, dtype, period, fresh)


@functools.lru_cache(maxsize=1024)
def _whole_product(
    unit: FusedBlocks, model: Model, k: int, fresh: bool
) -> tuple[Kernel, Array, type[np.signedinteger[Any]], int, fast.Rule]:
    """The kernel of whole products, the blocks of k, and what :func:`_rule` says."""
    kernels = fast.BATCH_TO_FLOAT if model.output == "fp32" else fast.BATCH_TO_HALF
    return kernels[model.length], _blocks(model, k), *_rule(unit, model, 0, fresh)


def _room(side: str, blocks: int, length: int, dtype: Any) -> Packed:
    """For an operand that is packed: memory that the next one of its side takes over."""
    size = blocks * length
    values, exponents, classes = engine.scratches(side, (size, np.float32), (size, dtype), (blocks, np.uint8))
    return values, exponents, classes


@functools.lru_cache
def cut(fmt: str) -> int:
    """How many fraction bits fewer than FP32 a format has to which operands are rounded when they are packed; 0: they
    are not."""
    return 23 - get(fmt).fraction_bits if fmt in ("fp16", "bf16") else 0


class Laid(NamedTuple):
    """Matrices as they lie in memory: all of it, flat and not to be written, since each type is compiled for itself;
    where each begins; how far it is from a row and from a column to the next; and as :func:`cut`."""

    memory: Array
    begins: Array
    steps: tuple[int, int]
    cut: int

    @classmethod
    def of(cls, x: Array, fmt: str) -> "Laid":
        """Matrices (..., M, K)."""
        begins = FROM_START
        if x.ndim == 2 and x.flags.c_contiguous:
            memory, ends = x.reshape(-1), (x.shape[1], 1)
        elif x.ndim == 2 and x.flags.f_contiguous:
            memory, ends = x.T.reshape(-1), (1, x.shape[0])
        else:
            if any(step < 0 or step % x.itemsize for step in x.strides):
                x = np.ascontiguousarray(x)
            steps = [step // x.itemsize for step in x.strides]
            size = 1 + sum((n - 1) * step for n, step in zip(x.shape, steps, strict=True))
            begins = np.zeros(1, np.int64)
            for n, step in zip(x.shape[:-2], steps, strict=False):
                begins = (begins[:, None] + np.arange(0, n * step, step) if step else begins.repeat(n)).reshape(-1)
            memory, ends = np.lib.stride_tricks.as_strided(x, (size,), (x.itemsize,)), (steps[-2], steps[-1])
        memory.setflags(write=False)  # of one type whoever owns it, since each type is compiled for itself
        return cls(memory, begins, ends, cut(fmt))


def rows_packer(a: Array, fmt: str, blocks: Array, length: int, zero: int, emin: int, *packed: Array) -> Share:
    """What packs some rows of A (rows, K)."""
    x, size = Laid.of(a, fmt), a.shape
    given = x.memory, 0, *x.steps, *size, blocks, length, zero, emin, x.cut
    return lambda first, last: packing.pack_rows(*given, first, last, *packed)


def panels_packer(b: Array, fmt: str, blocks: Array, length: int, zero: int, emin: int, *packed: Array) -> Share:
    """What packs some panels of B (K, columns)."""
    y, size = Laid.of(b, fmt), b.shape
    given = y.memory, 0, *y.steps, *size, blocks, length, zero, emin, y.cut
    return lambda first, last: packing.pack_panels(*given, first, last, *packed)


def shared(
    pack_a: Share, pack_b: Share | None, run: Callable[[int, int, int, int], None], rows: int, k: int, columns: int
) -> None:
    """A product over threads, by rows or by panels: what is divided each packs for itself and waits for no other.

    ``pack_b``: None where B is packed. ``run``: multiplies from one row to another and from one panel to another.
    """
    panels, macs = -(-columns // fast.WIDTH), rows * k * columns

    def of_rows(first: int, last: int) -> None:
        pack_a(first, last)
        run(first, last, 0, panels)

    def of_panels(first: int, last: int) -> None:
        if pack_b is not None:
            pack_b(first, last)
        run(0, rows, first, last)

    if rows >= 4 * fast.TILE or rows >= columns:
        if pack_b is not None:
            engine.share(pack_b, panels, PACKING * k * columns)
        engine.share(of_rows, rows, macs, fast.TILE if rows > 2 * fast.TILE else 1)
    else:
        engine.share(pack_a, rows, PACKING * rows * k, packing.GROUP)
        engine.share(of_panels, panels, macs)


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
