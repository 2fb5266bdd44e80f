"""Chains of instructions over whole matrices: which kernel computes a model, and how its operands are packed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..kernels import tensorcore as general
from ..kernels import tensorcore_exact as others
from ..kernels import tensorcore_fast as fast
from ..threads import SMALLEST_SHARE, split
from .models import OPTIONS, ZERO_EXPONENT, Kind, Model
from .operands import Scales, nan_bits

Array = np.ndarray[Any, Any]
NO_SHIFTS = np.zeros(0, np.int32)


def block_rule(model: Model) -> general.Block:
    """A model as the general kernel sees it."""
    no_floor = model.floor is None or model.floor_rule == "zero_terms"
    d = model.result
    emin_a, emin_b = model.multiplier_emin
    return general.Block(
        length=model.length,
        align=model.alignment_bits,
        kept=model.kept_bits,
        rounding={"rtz": general.TOWARD_ZERO, "rne": general.TO_NEAREST}[model.rounding],
        floor=general.ABSENT if no_floor or model.floor is None else model.floor,
        zero_exponent=general.ABSENT if model.zero_exponent is None else model.zero_exponent,
        emin_a=emin_a,
        emin_b=emin_b,
        emin_c=emin_c(model),
        emin_d=d.emin,
        emax_d=d.emax,
        nan=nan_bits(model),
        minus_zeros=int(model.negative_zeros == "minus"),
        plus_from_below=int(model.zero_from_below == "plus"),
        overflow_max=int(model.overflow == "max"),
        widened=int(model.kind is Kind.WIDENED),
        zero_groups=int(model.zero_group == "counts"),
    )


def emin_c(model: Model) -> int:
    """Where c's exponent is clamped: the format's least, or that of float32's smallest subnormal, which is nowhere."""
    return model.result.emin if model.c_exponent == "clamped" else -149


def is_usual(model: Model) -> bool:
    """Whether a model gives the default answers to the open questions, all but c's exponent, which is the fast kernels'
    to choose."""
    options = {name: allowed[0] for name, allowed in OPTIONS.items() if name != "c_exponent"}
    return all(getattr(model, name) == default for name, default in options.items())


def is_fast(model: Model) -> bool:
    """Whether the fast kernels cover a model; they know only the default answers to the open questions."""
    return (
        is_usual(model)
        and (model.c_exponent == "clamped" or model.output == "fp16")  # whose subnormals are normal numbers of float32
        and model.length in fast.TO_FLOAT
        and model.alignment_bits <= 25
        and model.rounding == ("rtz" if model.output == "fp32" else "rne")
        and (model.kept_bits == 10 or model.output == "fp32")
    )


def fast_rule(model: Model, dtype: Any, period: int) -> fast.Rule:
    """A model as the fast kernels see it; ``period`` in blocks."""
    emin_a, emin_b = model.multiplier_emin
    return fast.Rule(
        align=model.alignment_bits,
        kept=model.kept_bits,
        floor=fast.NEVER if model.floor is None else model.floor,
        emin_a=emin_a,
        emin_b=emin_b,
        emin_c=emin_c(model),
        none=-32 if dtype == np.int8 else -1000,
        nan=nan_bits(model),
        period=period,
        half=int(model.kind is Kind.WIDENED and model.output == "fp16"),
    )


def exponent_dtype(model: Model) -> type[np.signedinteger[Any]]:
    """int8 where the sums of exponents of both operands fit it, else int16."""
    return np.int8 if max(model.format_a.exponent_bits, model.format_b.exponent_bits) <= 5 else np.int16


def share(work: Any, rows: int, macs: int, unit: int = 1) -> None:
    """Split rows over threads, by how much there is to multiply."""
    factor = max(1, macs // max(1, rows) // 64)
    if rows * factor < 2 * SMALLEST_SHARE:
        work(0, rows)
        return
    split(lambda a, b: work(a // factor, b // factor), rows * factor, unit * factor)


def interleaved(x: Array) -> Array:
    """FP8 operands in the order in which widened instructions take them: k mod 4 < 2 first, within each 32."""
    k = np.arange(32)
    order = np.concatenate([k[k % 4 < 2], k[k % 4 >= 2]])
    padded = np.zeros((x.shape[0], -(-x.shape[1] // 32) * 32), np.float32)
    padded[:, : x.shape[1]] = x
    return padded.reshape(x.shape[0], -1, 32)[:, :, order].reshape(x.shape[0], -1)


def with_nan_scales(x: Array, scales: Scales, length: int) -> Array:
    """Operands (rows, K) with NaN for every element whose scale is NaN."""
    bad = np.isnan(scales.significands)
    if not bad.any():
        return x
    return np.where(np.repeat(bad, length, axis=1)[:, : x.shape[1]], np.float32(np.nan), x)


def chain(model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int,
          scale_a: Scales | None = None, scale_b: Scales | None = None) -> None:  # fmt: skip
    """``c += a @ b`` in place: one chain of the given instructions of a block or widened model.

    a (M, K) and b (K, N) float32 values; c (M, N) uint32, the bits of float32. ``period``: instructions after which to
    promote, 0 for never. Scales: (M, K / length) and (N, K / length).
    """
    per = 2 if model.kind is Kind.WIDENED else model.k // model.length
    blocks = (instructions[:, None] * per + np.arange(per)).reshape(-1)
    if model.scale and scale_a is not None and scale_b is not None:
        a = with_nan_scales(a, scale_a, model.scale[1])
        b = with_nan_scales(b.T, scale_b, model.scale[1]).T
    if model.kind is Kind.WIDENED:
        a, b = interleaved(a), interleaved(b.T).T
    if is_fast(model) and not (model.kind is Kind.WIDENED and period):
        _fast_chain(model, a, b, c, blocks, 2 if model.kind is Kind.WIDENED else period * per, scale_a, scale_b)
        return
    _general_chain(model, a, b, c, blocks, period * per, scale_a, scale_b)


def _fast_chain(model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int,
                scale_a: Scales | None, scale_b: Scales | None) -> None:  # fmt: skip
    """The fast kernels, with rows and columns exchanged where there are too few columns for a panel."""
    if b.shape[1] < min(a.shape[0], fast.WIDTH):
        flipped = np.ascontiguousarray(c.T)
        _fast_chain_of(swapped(model), b.T, a.T, flipped, blocks, period, scale_b, scale_a)
        c[...] = flipped.T
        return
    _fast_chain_of(model, a, b, c, blocks, period, scale_a, scale_b)


def swapped(model: Model) -> Model:
    """The model of the transposed product."""
    return dataclasses.replace(model, a=model.b, b=model.a)


def _fast_chain_of(model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int,
                   scale_a: Scales | None, scale_b: Scales | None) -> None:  # fmt: skip
    length, count = model.length, blocks.size
    (rows, k), columns = a.shape, b.shape[1]
    panels = -(-columns // fast.WIDTH)
    dtype = exponent_dtype(model)
    rule = fast_rule(model, dtype, period)
    zero = -50 if dtype == np.int8 else fast.NEVER
    packed_a = np.empty(count * rows * length, np.float32), np.empty(count * rows * length, dtype)
    kinds_a = np.empty(count * rows, np.uint8)
    fast.pack_rows(np.ascontiguousarray(a), blocks, length, zero, rule.emin_a, *packed_a, kinds_a)
    size = panels * count * length * fast.WIDTH
    packed_b = np.empty(size, np.float32), np.empty(size, dtype)
    kinds_b = np.empty(panels * count, np.uint8)
    _pack_panels(np.ascontiguousarray(b), blocks, length, zero, rule.emin_b, *packed_b, kinds_b)
    shifts_a = shifts_b = NO_SHIFTS
    if scale_a is not None and scale_b is not None:
        shifts_a = np.ascontiguousarray(scale_a.exponents[:, blocks].T).reshape(-1)
        shifts_b = _panel_shifts(scale_b.exponents[:, blocks], panels)
    kernel = (fast.TO_FLOAT if model.output == "fp32" else fast.TO_HALF)[length]
    flat = c.reshape(-1)

    def run(row0: int, row1: int, panel0: int, panel1: int) -> None:
        kernel(*packed_a, kinds_a, rows, *packed_b, kinds_b, shifts_a, shifts_b, flat, columns,
               row0, row1, panel0, panel1, 0, count, rule)  # fmt: skip

    if rows >= 4 * fast.TILE or rows >= columns:
        share(lambda p, q: run(p, q, 0, panels), rows, rows * k * columns, fast.TILE if rows > 2 * fast.TILE else 1)
    else:
        share(lambda p, q: run(0, rows, p, q), panels, rows * k * columns)


def _pack_panels(b: Array, blocks: Array, length: int, zero: int, emin: int, *packed: Array) -> None:
    """B in panels, each by one thread."""
    panels = -(-b.shape[1] // fast.WIDTH)
    share(lambda p, q: fast.pack_panels(b, blocks, length, zero, emin, p, q, *packed), panels, 16 * packed[0].size)


def _panel_shifts(exponents: Array, panels: int) -> Array:
    """Exponents of scales, (N, blocks), as [panel][block][column]."""
    padded = np.zeros((panels * fast.WIDTH, exponents.shape[1]), np.int32)
    padded[: exponents.shape[0]] = exponents
    return np.ascontiguousarray(padded.reshape(panels, fast.WIDTH, -1).transpose(0, 2, 1)).reshape(-1)


def whole(x: Array, model: Model) -> Array:
    """Operands (rows, K) with +0 added on the right to whole instructions, as a library's kernel fills them."""
    return _padded(x, -(-x.shape[1] // model.k) * model.k, 0)


def _padded(x: Array, width: int, value: float) -> Array:
    """Columns of one value added on the right."""
    if x.shape[1] == width:
        return x
    padded = np.full((x.shape[0], width), value, x.dtype)
    padded[:, : x.shape[1]] = x
    return padded


def gather(x: Array, blocks: Array, length: int) -> Array:
    """The columns of some blocks of ``x`` (rows, K), beyond the end +0; float32 bits."""
    k = (blocks[:, None] * length + np.arange(length)).reshape(-1)
    if k.size == x.shape[1] and (k == np.arange(k.size)).all():
        return np.ascontiguousarray(x).view(np.uint32)
    taken = np.zeros((x.shape[0], k.size), np.float32)
    inside = k < x.shape[1]
    taken[:, inside] = x[:, k[inside]]
    return taken.view(np.uint32)


def _general_chain(model: Model, a: Array, b: Array, c: Array, blocks: Array, period: int,
                   scale_a: Scales | None, scale_b: Scales | None) -> None:  # fmt: skip
    """The general kernel; promotion is done here, by one chain for each stretch of blocks."""
    if period:
        for start in range(0, blocks.size, period):
            part = np.zeros_like(c)
            _general_chain(model, a, b, part, blocks[start : start + period], 0, scale_a, scale_b)
            c[...] = add_up(c, part, model)
        return
    rule = block_rule(model)
    x, y = gather(a, blocks, model.length), gather(b.T, blocks, model.length)
    none = np.zeros((max(a.shape[0], b.shape[1]), 0), np.int64)
    shifts_a = none if scale_a is None else scale_a.exponents[:, blocks].astype(np.int64)
    shifts_b = none if scale_b is None else scale_b.exponents[:, blocks].astype(np.int64)
    before = c.copy()

    def run(row0: int, row1: int) -> None:
        s = slice(row0, row1)
        general.matmul(x[s], y, before[s], shifts_a[s], shifts_b, c[s], rule)

    share(run, a.shape[0], a.shape[0] * x.shape[1] * b.shape[1])


def add_up(x: Array, y: Array, model: Model) -> Array:
    """The IEEE sum in FP32 of two results' bits; NaN is the model's."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(x.view(np.float32) + y.view(np.float32))
    bits = total.view(np.uint32)
    bits[np.isnan(total)] = nan_bits(model)
    return bits


def integers(model: Model, a: Array, b: Array, c: Array) -> None:
    """``c += a @ b`` for INT8, in place."""
    x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
    share(lambda p, q: others.integer_matmul(x, y, c, model.k, model.saturate, p, q), a.shape[0], a.size * b.shape[1])


def doubles(model: Model, a: Array, b: Array, c: Array) -> None:
    """``c += a @ b`` by fused multiply-adds in FP64, in place."""
    x, y = np.ascontiguousarray(whole(a, model)), np.ascontiguousarray(whole(b.T, model).T)
    share(lambda p, q: others.fma_matmul(x, y, c, p, q), a.shape[0], a.size * b.shape[1])


def scaled(x: Array, factor: float, c: Array) -> None:
    """``c += factor * x`` by one fused multiply-add in FP64 for each element, in place; arrays of one shape."""
    flat = np.ascontiguousarray(x).reshape(-1, 1)
    others.fma_dot(flat, np.full_like(flat, factor), c.reshape(-1))


def grouped(model: Model, a: Array, b: Array, c: Array, scale_a: Scales, scale_b: Scales) -> None:
    """``c += a @ b`` for block-scaled FP4, in place; scales (M, K / length) and (N, K / length)."""
    assert model.scale is not None
    if not is_usual(model):
        for i in range(a.shape[0]):
            one, scales = np.tile(a[i], (b.shape[1], 1)), Scales(*(np.tile(x[i], (b.shape[1], 1)) for x in scale_a))
            rows(model, one, np.ascontiguousarray(b.T), c[i], scales, scale_b)
        return
    x, y, per = whole(a, model), np.ascontiguousarray(whole(b.T, model).T), model.scale[1]
    ma, ea = _whole_scales(scale_a, x.shape[1] // per)
    mb, eb = (np.ascontiguousarray(part.T) for part in _whole_scales(scale_b, x.shape[1] // per))
    rule = fast_rule(model, np.int8, 0)
    share(
        lambda p, q: others.grouped_matmul(x, y, ma, ea, mb, eb, per, c, p, q, model.length, rule),
        a.shape[0],
        a.size * b.shape[1],
    )


def _whole_scales(scales: Scales, groups: int) -> Scales:
    """Scales of zero added on the right: the groups that fill up an instruction count for nothing."""
    significands, exponents = scales
    return Scales(_padded(significands, groups, 0), _padded(exponents, groups, ZERO_EXPONENT))


def rows(model: Model, a: Array, b: Array, c: Array, scale_a: Scales | None, scale_b: Scales | None) -> None:
    """One chain for each row, in place: a, b (N, K), c (N,), scales (N, K / length)."""
    if model.kind is Kind.INTEGER:
        integer_rows(model, a, b, c)
        return
    if model.kind is Kind.BLOCK and scale_a is not None and scale_b is not None and model.scale:
        a, b = with_nan_scales(a, scale_a, model.scale[1]), with_nan_scales(b, scale_b, model.scale[1])
    macs = 10 * a.size  # the general kernels are slow
    x, y = whole(a, model), whole(b, model)
    if model.kind is Kind.FMA:
        share(lambda p, q: others.fma_dot(x[p:q], y[p:q], c[p:q]), a.shape[0], macs)
        return
    rule, before = block_rule(model), c.copy()
    if model.kind is Kind.GROUPED:
        assert model.scale
        assert scale_a
        assert scale_b
        per = model.scale[1]
        sa, sb = (_whole_scales(s, x.shape[1] // per) for s in (scale_a, scale_b))
        share(
            lambda p, q: others.grouped_dot(
                x[p:q], y[p:q], sa.significands[p:q], sa.exponents[p:q], sb.significands[p:q], sb.exponents[p:q],
                per, before[p:q], c[p:q], rule,
            ),
            a.shape[0],
            macs,
        )  # fmt: skip
        return
    shifts = np.zeros((a.shape[0], 0), np.int64)
    if scale_a is not None and scale_b is not None:
        shifts = scale_a.exponents.astype(np.int64) + scale_b.exponents
    if model.kind is Kind.WIDENED:
        x, y = interleaved(x), interleaved(y)
    u, v = x.view(np.uint32), y.view(np.uint32)
    share(lambda p, q: general.dot(u[p:q], v[p:q], before[p:q], shifts[p:q], c[p:q], rule), a.shape[0], macs)


def integer_rows(model: Model, a: Array, b: Array, c: Array) -> None:
    """Rows of INT8 products, in place."""
    products = a.astype(np.int64) * b
    total = c.astype(np.int64)
    for start in range(0, a.shape[1], model.k):
        total += products[:, start : start + model.k].sum(axis=1)
        if model.saturate:
            total = np.clip(total, -(2**31), 2**31 - 1)
    c[...] = total.astype(np.int32)  # modulo 2**32
