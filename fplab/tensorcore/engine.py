"""What the fast products of all units share: threads, whole instructions, the choice of some, sums of results."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..kernels import tensorcore_exact
from ..kernels.tensorcore_fast import LINE
from ..threads import SMALLEST_SHARE, in_share, num_threads, split
from .models import Model
from .operands import Scales, nan_bits

Array = np.ndarray[Any, Any]
SLOW = 10  # how much longer the general kernels take for a product than the fast ones
MOST_SCRATCH = 1 << 25  # bytes of one array that a thread keeps
MOST_GIVEN = 1 << 10  # arrays that it finds again


class _Scratch(threading.local):
    """By name, bytes that a thread keeps, and the arrays that it was given of them."""

    def __init__(self) -> None:
        self.kept: dict[str, Array] = {}
        self.given: dict[tuple[Any, ...], tuple[Array, ...]] = {}


_scratch = _Scratch()


def scratch(name: str, size: int, dtype: Any) -> Array:
    """A flat array with anything in it, until this thread asks for another of the name.

    Memory that is fresh costs a page fault for each 4 KiB, which took a tenth of a small product. It begins a line of
    the cache, since a vector across two lines takes two loads: 4% of a product.
    """
    need = size * np.dtype(dtype).itemsize
    kept = _scratch.kept.get(name)
    if kept is None or kept.size < need:
        fresh = np.empty(need + LINE, np.uint8)
        kept = fresh[-fresh.ctypes.data % LINE :]
        if need <= MOST_SCRATCH:
            _scratch.kept[name] = kept
        _scratch.given.clear()  # some may be of what this takes the place of
    view: Array = kept[:need].view(dtype)
    return view


def scratches(name: str, *parts: tuple[int, Any]) -> tuple[Array, ...]:
    """Several such arrays, of sizes and dtypes."""
    given = _scratch.given
    if (again := given.get((name, parts))) is not None:
        return again
    arrays = tuple(scratch(f"{name} {n}", *part) for n, part in enumerate(parts))
    if max(x.nbytes for x in arrays) <= MOST_SCRATCH and len(given) < MOST_GIVEN:
        given[name, parts] = arrays
    return arrays


def share(work: Any, rows: int, macs: int, unit: int = 1) -> None:
    """Split rows over threads, by how much there is to multiply."""
    factor = max(1, macs // max(1, rows) // 64)
    if rows * factor < 2 * SMALLEST_SHARE:
        work(0, rows)
        return
    split(lambda a, b: work(a // factor, b // factor), rows * factor, unit * factor)


FEW = 2 * 64 * SMALLEST_SHARE  # products, fewer than which one thread makes


def by_one(macs: int) -> bool:
    """Whether one thread does a product, in :func:`share`, too."""
    return macs < FEW or num_threads() == 1 or in_share()


def each(work: Sequence[Callable[[], Any]], macs: int) -> list[Any]:
    """What pieces of work, of so many products each, give: of no more threads than pieces each takes one whole, since
    what is divided less often waits less."""
    if num_threads() > len(work):
        return [task() for task in work]
    results: dict[int, Any] = {}

    def some(first: int, last: int) -> None:
        for n in range(first, last):
            results[n] = work[n]()

    share(some, len(work), len(work) * macs)
    return [results[n] for n in range(len(work))]


def whole(x: Array, model: Model) -> Array:
    """Operands (rows, K) with +0 added on the right to whole instructions, as a library's kernel fills them."""
    return padded(x, -(-x.shape[1] // model.k) * model.k, 0)


def padded(x: Array, width: int, value: float) -> Array:
    """Columns of one value added on the right."""
    if x.shape[1] == width:
        return x
    wide = np.full((x.shape[0], width), value, x.dtype)
    wide[:, : x.shape[1]] = x
    return wide


def gather(x: Array, blocks: Array, length: int) -> Array:
    """The columns of some blocks of ``x`` (rows, K), beyond the end +0; float32 bits."""
    k = (blocks[:, None] * length + np.arange(length)).reshape(-1)
    if k.size == x.shape[1] and (k == np.arange(k.size)).all():
        return np.ascontiguousarray(x).view(np.uint32)
    taken = np.zeros((x.shape[0], k.size), np.float32)
    inside = k < x.shape[1]
    taken[:, inside] = x[:, k[inside]]
    return taken.view(np.uint32)


def chosen(
    model: Model, a: Array, b: Array, instructions: Array, scales: tuple[Scales, Scales] | None
) -> tuple[Array, Array, tuple[Scales, Scales] | None]:
    """The operands (M, K), (K, N) and scales of some instructions alone."""
    k = (instructions[:, None] * model.k + np.arange(model.k)).reshape(-1)
    k = k[k < a.shape[1]]
    if k.size < a.shape[1]:
        a, b = a[:, k], b[k]
    if scales and model.scale:
        per = model.k // model.scale[1]
        groups = (instructions[:, None] * per + np.arange(per)).reshape(-1)
        groups = groups[groups < scales[0].exponents.shape[1]]
        left, right = (Scales(*(part[:, groups] for part in both)) for both in scales)
        scales = left, right
    return a, b, scales


def add_up(x: Array, y: Array, model: Model) -> Array:
    """The IEEE sum in FP32 of two results' bits; NaN is the model's."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(x.view(np.float32) + y.view(np.float32))
    bits = total.view(np.uint32)
    bits[np.isnan(total)] = nan_bits(model)
    return bits


def scaled(x: Array, factor: float, c: Array) -> None:
    """``c += factor * x`` by one fused multiply-add in FP64 for each element, in place; arrays of one shape."""
    flat = np.ascontiguousarray(x).reshape(-1, 1)
    tensorcore_exact.fma_dot(flat, np.full_like(flat, factor), c.reshape(-1))
    c[np.isnan(c)] = np.nan


def promoted(unit: Any, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int) -> None:
    """A chain of stretches of ``period`` instructions, each from zero, whose sums are added to FP32 registers."""
    for start in range(0, instructions.size, period):
        part = np.zeros_like(c)
        unit.chain(model, a, b, part, instructions[start : start + period], 0, None)
        c[...] = add_up(c, part, model)
