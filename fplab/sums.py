"""Sums and dot products that round after every operation, in a stated order and accumulator.

What a sum is in floating point depends on four choices, and all are arguments here: the format of the terms, the
format of the accumulator, the order of the additions, and how each of them rounds.

Orders (``ORDERS``), for terms t0, t1, ...:

* ``"sequential"``: ((t0 + t1) + t2) + ..., what a loop does ("recursive summation").
* ``"pairwise"``: neighbours are added, then neighbouring sums, and so on; an odd one out goes up unchanged. In other
  words, the left part is the largest power of two below the length; each term passes ceil(log2 n) additions at most.
* ``"blocked"``: every ``block`` terms in sequence, then the block sums in sequence.
* ``"kahan"``: sequential, what each addition loses carried into the next (Kahan 1965); every operation rounds.
* ``"neumaier"``: sequential, what each addition loses summed beside it and added at the end (Neumaier 1974).

An accumulator starts with the first term, not with zero, so that the sum of one term is that term, -0 included; the
sum of none is +0. ``accumulate="exact"`` holds every term in a Kulisch accumulator and rounds once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import floats, uncompiled
from .arrays import Values, broadcast, values
from .errors import LabError, integer, quotes_call, unknown
from .formats import TABLE, Format, FormatLike, Overflow, Rounding, get
from .kernels import kulisch
from .kernels import sums as loops
from .kernels.rounding import NO_NAN, RNE, Options
from .lazily import index
from .plans import FP32, carrier_dtype, layout, options, seed_bits
from .reveal import SumTree as SumTree
from .reveal import reveal_order as reveal_order
from .threads import split

__all__ = ["ORDERS", "SumTree", "dot", "reveal_order", "sum"]

index(__name__)

Array = np.ndarray[Any, Any]
ORDERS: tuple[str, ...] = ("sequential", "pairwise", "blocked", "kahan", "neumaier")
"""The orders of a sum."""
FUSED = ("sequential", "blocked", "kahan")  # orders in which a product can enter an addition unrounded
RUNNING = ("sequential", "kahan", "neumaier")  # orders with partial sums
PRODUCTS = ("exact", "rounded")


@dataclass(frozen=True)
class Job:
    """A reduction of rows, all names resolved. ``acc`` is the format of its results, ``plan`` None means exact."""

    source: Format
    acc: Format
    plan: loops.Plan | None
    options: Options
    seed: np.uint64


@quotes_call
def sum(
    x: Any, fmt: FormatLike, order: str = "sequential", accumulate: FormatLike | None = None,
    rounding: str | Rounding = "rne", axis: int | None = -1, *, block: int = 128, seed: int | None = None,
    overflow: str | Overflow | None = None, subnormals: bool | str = True, nan: str | None = None,
    running: bool = False, store: FormatLike | None = None, flags: bool = False,
) -> Any:  # fmt: skip
    """Sum values of the format ``fmt`` along ``axis`` (None: all of them), rounding after every addition.

    ``x`` is rounded to ``fmt`` first, to nearest even. ``accumulate``: the accumulator's format, ``fmt`` unless given,
    or "exact". A term enters its addition as it is, also where the accumulator is narrower; pairwise and neumaier
    hold every term in the accumulator first.
    ``running=True`` returns every partial sum, in the shape of ``x`` (sequential, kahan, neumaier).
    ``store``: a last cast of the result, to nearest even; of the exact sum, the one rounding, by ``rounding``.
    Stochastic rounding draws its words per row and in the order of the roundings, so that neither the threads nor
    ``running`` change a sequential or Kahan sum. ``flags=True`` also returns the IEEE flags raised on the way, one
    uint8 a row. The other arguments are those of :mod:`fplab.floats`, for the accumulator.

    Returns float32 (float64 for float64 input, or a format that needs it) without ``axis``.

    >>> float(sum(np.ones(5000), "fp16"))
    2048.0
    >>> float(sum(np.ones(5000), "fp16", "pairwise"))
    5000.0
    """
    job = _job(fmt, accumulate, order, rounding, block, True, running, seed, overflow, subnormals, nan, store)
    return _deliver(job, [values(x)], axis, store, overflow, subnormals, nan, flags)


@quotes_call
def dot(
    x: Any, y: Any, fmt: FormatLike, accumulate: FormatLike = "fp32", order: str = "sequential",
    rounding: str | Rounding = "rne", axis: int | None = -1, *, products: str | None = None, block: int = 128,
    seed: int | None = None, overflow: str | Overflow | None = None, subnormals: bool | str = True,
    nan: str | None = None, running: bool = False, store: FormatLike | None = None, flags: bool = False,
) -> Any:  # fmt: skip
    """The dot product of values of the format ``fmt`` along ``axis``; x and y broadcast.

    Products are exact and enter the accumulator with one rounding per addition, as in a chain of fused multiply-adds
    (``products="exact"``, the default of sequential, blocked and kahan). ``products="rounded"`` rounds each to the
    accumulator's format first, so two roundings a term; pairwise and neumaier need the product as a number of its own
    and always do so. Where the accumulator holds every product, as FP32 does those of FP16, there is no difference.

    ``accumulate="exact"``: one rounding in all, of the exact result, to ``store`` or else ``fmt``; the order is then
    irrelevant. The other arguments and the result are those of :func:`sum`.

    >>> float(dot([256.0, 1.0, -256.0], [256.0, 2**-10, 256.0], "fp16"))
    0.0
    >>> float(dot([256.0, 1.0, -256.0], [256.0, 2**-10, 256.0], "fp16", accumulate="exact"))
    0.0009765625
    """
    fused = _fused(order, products)
    job = _job(fmt, accumulate, order, rounding, block, fused, running, seed, overflow, subnormals, nan, store)
    return _deliver(job, [values(x, "x"), values(y, "y")], axis, store, overflow, subnormals, nan, flags)


# --- from arguments to a job ----------------------------------------------------------------------------------------
def _fused(order: str, products: str | None) -> bool:
    if products is None:
        return order in FUSED
    if products not in PRODUCTS:
        raise unknown("products", products, PRODUCTS)
    if products == "exact" and order in ORDERS and order not in FUSED:
        raise LabError(
            f'products="exact" is impossible with order={order!r}, which adds rounded numbers only. '
            f"Allowed: {', '.join(FUSED)}."
        )
    return products == "exact"


def _narrow_format(name: str, fmt: FormatLike) -> Format:
    try:
        form = get(fmt)
    except LabError:
        if name != "accumulate":
            raise
        raise unknown("accumulator", fmt, ["exact", *(f.name for f in TABLE if f.bits <= 32)]) from None
    if form.bits > 32:
        hint = ""
        if name == "accumulate":
            hint = '; accumulate="exact" with store="fp64" gives the exact sum, rounded once'
        raise LabError(f"{name}={form.name!r} has {form.bits} bits; allowed: formats of at most 32 bits{hint}.")
    return form


def _job(
    fmt: FormatLike, accumulate: FormatLike | None, order: str, mode: str | Rounding, block: int, fused: bool,
    running: bool, seed: int | None, policy: str | Overflow | None, subnormals: bool | str, nan: str | None,
    store: FormatLike | None,
) -> Job:  # fmt: skip
    """Check the choices that do not depend on the data."""
    source = _narrow_format("fmt", fmt)
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    block = integer("block", block, 1, 2**40)
    plan = None
    if accumulate == "exact":
        acc = source if store is None else get(store)
        if running:
            raise LabError('running=True has no meaning with accumulate="exact", which rounds once.')
    else:
        acc = source if accumulate is None else _narrow_format("accumulate", accumulate)
        if running and order not in RUNNING:
            raise LabError(f"running=True is impossible with order={order!r}. Allowed: {', '.join(RUNNING)}.")
        if order in ("kahan", "neumaier") and not (acc.signed and acc.zero):
            raise LabError(f"order={order!r} subtracts, and {acc.name} has no negative numbers or no zero.")
        plan = loops.Plan(ORDERS.index(order), block, int(fused), int(running))
    opt = options(acc, mode, policy, subnormals, nan)
    return Job(source, acc, plan, opt, seed_bits(opt.mode, seed))


# --- from arrays to rows and back -----------------------------------------------------------------------------------
def _deliver(
    job: Job, operands: list[Values], axis: int | None, store: FormatLike | None, policy: str | Overflow | None,
    subnormals: bool | str, nan: str | None, want_flags: bool,
) -> Any:  # fmt: skip
    """Bring the operands into rows, reduce them, cast, and give the result its shape."""
    narrow = all(v.narrow for v in operands)
    flats, shape = broadcast(*operands)
    axis, shape = (0, (math.prod(shape),)) if axis is None or shape == () else (_axis(axis, shape), shape)
    rows = [_rows(flat.reshape(shape), axis) for flat in flats]
    results, raised = _reduce(job, [_representable(r, job.source, nan) for r in rows], want_flags)
    final = job.acc
    if store is not None and job.plan is not None:
        final = get(store)
        cast = floats.convert(results, job.acc, final, "rne", policy, subnormals, nan=nan, flags=True)
        results, raised = cast[0], raised | np.bitwise_or.reduce(cast[1], axis=1, initial=0)
    results = results.astype(carrier_dtype(final, narrow), copy=False)
    outer = shape[:axis] + shape[axis + 1 :]
    if job.plan is not None and job.plan.running:
        shaped: Any = np.moveaxis(results.reshape(*outer, shape[axis]), -1, axis)
    else:
        shaped = results[0, 0] if outer == () else results.reshape(outer)
    if want_flags:
        return shaped, raised[0] if outer == () else raised.reshape(outer)
    return shaped


def _axis(axis: int, shape: tuple[int, ...]) -> int:
    return integer("axis", axis, -len(shape), len(shape) - 1, f" for shape {shape}") % len(shape)


def _rows(x: Array, axis: int) -> Array:
    """``x`` as (rows, terms), contiguous."""
    last = np.moveaxis(x, axis, -1)
    outer = math.prod(last.shape[:-1])
    return np.ascontiguousarray(last).reshape(outer, last.shape[-1])


def _reduce(job: Job, rows: list[Array], want_flags: bool) -> tuple[Array, Array]:
    """Sums (N, 1), or (N, K) when running, and flags (N,), of rows of representable values (N, K)."""
    n, k = rows[0].shape
    if uncompiled.can_sum(job.acc, job.options) and uncompiled.answers(n * max(k, 1), job.options):
        summed, raised = uncompiled.sums(rows, job.source, job.acc, job.plan, job.options)
        return floats.decode(summed, job.acc), raised
    target = _target(job, len(rows) == 2)
    if target is not None and not want_flags and k > 0:
        return _fast(job, rows, target), np.zeros(n, np.uint8)
    # Flushing must know the subnormals of the format itself; else float32's own codes say the same values.
    carried = FP32 if job.source.fits_float32 and not job.options.daz else job.source
    codes = [_codes(r, carried) for r in rows]
    x, y = codes[0], codes[1] if len(codes) == 2 else np.empty((0, 0), np.uint32)
    source, acc = layout(carried), layout(job.acc)
    raised = np.zeros(n, np.uint8)
    plan = job.plan
    if plan is None or k == 0:  # the sum of nothing is the same in every order
        out = np.empty((n, 1), np.uint64)
        _each_row(
            lambda i, j: kulisch.dot_rows(x, y, out[:, 0], raised, source, acc, job.options, job.seed, i, j), n, k
        )
    else:
        out = np.empty((n, k if plan.running else 1), np.uint64)
        _each_row(
            lambda i, j: loops.general_rows(x, y, out, raised, plan, source, acc, job.options, job.seed, i, j), n, k
        )
    _refuse_nan(raised, job.acc)
    if plan is not None and plan.running:
        out = out[:, :k]
    return floats.decode(out, job.acc), raised & np.uint8(31)


def _representable(x: Array, fmt: Format, nan: str | None) -> Array:
    """``x`` rounded to the format of the terms, in the carrier's dtype."""
    if x.dtype == np.float32 and fmt == FP32:
        return x
    return np.asarray(floats.quantize(x, fmt, nan=nan))


def _codes(x: Array, fmt: Format) -> Array:
    """The codes of representable values, as the general kernels take them."""
    if fmt == FP32:
        return x.astype(np.float32, copy=False).view(np.uint32)
    return np.asarray(floats.encode(x, fmt, nan="zero")).astype(np.uint32, copy=False)


def _fast(job: Job, rows: list[Array], target: loops.Target) -> Array:
    plan = job.plan
    assert plan is not None
    n, k = rows[0].shape
    x, y = rows[0], rows[1] if len(rows) == 2 else np.empty((0, 0), np.float32)
    x, y = x.astype(np.float32, copy=False), y.astype(np.float32, copy=False)
    out = np.empty((n, k if plan.running else 1), np.float32)
    _each_row(lambda i, j: loops.fast_rows(x, y, out, plan, target, i, j), n, k)
    return out


def _each_row(work: Callable[[int, int], Any], n: int, k: int) -> None:
    """Share rows of ``k`` terms between threads."""
    terms = max(k, 1)
    split(lambda a, b: work(a // terms, b // terms), n * terms, unit=terms)


def _refuse_nan(raised: Array, fmt: Format) -> None:
    lost = np.flatnonzero(raised & NO_NAN)
    if lost.size:
        raise LabError(f'row {lost[0]} gives NaN, and {fmt.name} has none; pass nan="zero" or nan="max" to replace it.')


def _target(job: Job, products: bool) -> loops.Target | None:
    """Constants of the fast version, or None where only the general one is right (see ``kernels.sums.nearest``)."""
    acc, source, opt, plan = job.acc, job.source, job.options, job.plan
    if plan is None or opt.mode != RNE or opt.daz or opt.ftz:
        return None
    plain = acc.has_negative_zero and not acc.ties_by_code
    if not (plain and acc.significand_bits <= 24 and acc.fits_float32 and source.fits_float32):
        return None
    if source.has_nan and not acc.has_nan:
        return None
    term_bits = source.significand_bits * (2 if products else 1)
    if term_bits > acc.significand_bits and plan.fused:
        return None
    emin_bits = int(np.float64(acc.smallest_normal).view(np.int64))
    lift = ((53 - acc.significand_bits) << 52) + (1 << 51)
    over = (math.inf, acc.max, math.nan)[opt.overflow]
    return loops.Target(emin_bits, lift, acc.max, over)
