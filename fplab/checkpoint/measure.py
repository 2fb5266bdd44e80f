"""What one tensor is like, and what every format loses of it: in pieces, on all cores, to the same bits on any number.

The tensor is read twice, once for what it is like and its largest magnitudes, once for all formats together. No more
than a piece a thread is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..formats import get
from ..kernels import histogram
from ..kernels.weights import compare, describe
from ..stored import Stored
from ..threads import num_threads, split
from . import choices
from .choices import Choice, decibels, parts, pieces
from .tensor import FLOATS, Tensor

Array = np.ndarray[Any, Any]
OUTLIER = 6.0  # times the median of the channels' largest magnitudes, from where on a channel is one of outliers
MOST_CHANNELS = 8  # of outliers that are named
LOWEST = -149  # the exponent of float32's least value
Seen = Callable[[int], object]  # is told how many elements were done


class Channels(NamedTuple):
    """The channels of a tensor along one of its sides: how many are outliers, the worst first, and how large it is.

    ``ratio``: the largest magnitude of the worst, in medians of all channels'.
    """

    outliers: int = 0
    worst: Sequence[int] = ()
    ratio: float = math.nan


NO_CHANNELS = Channels()


@dataclass(frozen=True)
class About:
    """What a tensor is like. Shares are of its elements; ``low`` and ``high`` the ends of what is finite.

    ``shape``: as the file has it; ``outputs``, ``inputs``: as a matrix. ``binades``: exponents e, and how many elements
    are at least 2**e and less than 2**(e + 1). ``subnormals``: of the format that it is stored in. ``root``: the root
    of the mean square. ``bits``: of the file for an element.
    """

    tensor: str
    file: str
    stored: str
    shape: tuple[int, ...]
    outputs: int
    inputs: int
    count: int
    bits: float
    low: float = math.nan
    high: float = math.nan
    root: float = math.nan
    zeros: float = math.nan
    subnormals: float = math.nan
    infinities: float = math.nan
    nans: float = math.nan
    input_channels: Channels = NO_CHANNELS
    output_channels: Channels = NO_CHANNELS
    binades: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Loss:
    """What a format loses of a tensor.

    ``bits``: of a weight, scales counted. ``error``: the root of the sum of squared differences, relative to the
    weights'; ``snr``: the same in decibels; ``largest``: difference. ``flushed``, ``clipped``: shares of the weights
    that became zero, and that lie beyond the largest value of their scale (NaN where a format does not say).
    ``output``: the root mean square error of a layer's output where its inputs are independent, with variance 1: what
    activations really are is not in a file of weights.
    """

    tensor: str
    format: str
    bits: float
    error: float
    snr: float
    largest: float
    flushed: float
    clipped: float
    output: float


def measure(tensor: Tensor, wanted: Sequence[Choice], seen: Seen = lambda n: None) -> tuple[About, list[Loss]]:
    """What a tensor is like, and its loss in each format that can store it; those of integers are not read."""
    rows, k = tensor.rows
    if not tensor.has_values or not tensor.count:
        bits = 8 * tensor.size / tensor.block
        return About(tensor.name, tensor.path.name, tensor.stored, tensor.shape, rows, k, tensor.count, bits), []
    about, amax = _described(tensor, seen)
    able = [one for one in wanted if one.fits(k)]
    finite = not about.infinities and not about.nans
    return about, _lost(tensor, able, about, amax, finite, seen) if able else []


def _windows(tensor: Tensor, tall: int, work: Callable[[int, int], Any], seen: Seen) -> Iterator[Any]:
    """Call ``work`` on every piece, in order, so many at a time that all threads have some; the results in order."""
    rows, k = tensor.rows
    piece, whole = pieces(rows, k, tall)
    bounds = parts(tensor.count, piece, k, whole)
    wide = 4 * num_threads()
    for at in range(0, len(bounds), wide):
        window = bounds[at : at + wide]
        unit = max(stop - start for start, stop in window)

        def share(a: int, b: int, window: list[tuple[int, int]] = window, unit: int = unit) -> list[Any]:
            return [work(*bound) for bound in window[a // unit : -(-b // unit)]]

        for results in split(share, unit * len(window), unit=unit):
            yield from results
        seen(window[-1][1] - window[0][0])


def _described(tensor: Tensor, seen: Seen) -> tuple[About, Array]:
    """What a tensor is like, and the largest magnitude of each of its rows."""
    rows, k = tensor.rows
    wide = k > choices.PIECE  # whose columns are no channels
    columns, most = np.zeros(0 if wide else k, np.float32), np.zeros(rows, np.float32)

    def work(start: int, stop: int) -> tuple[Any, ...]:
        x = np.ascontiguousarray(tensor.values(start, stop))
        base = start % k if wide else 0
        own = np.zeros(x.size if wide else k, np.float32)
        tops = np.zeros((stop - 1) // k - start // k + 1, np.float32)
        scratch = np.zeros((histogram.WAYS, histogram.ROWS), np.uint32)
        table = np.zeros((histogram.ROWS, 1), np.int64)
        histogram.count(x.view(np.uint32), np.empty(0, np.uint32), scratch)
        histogram.gather(scratch, table, 0)
        nans = 0
        if table[histogram.SPECIAL, 0]:  # what is not finite counts as zero
            nans, x = int(np.isnan(x).sum()), np.where(np.isfinite(x), x, np.float32(0))
        sums = describe(x, k, start, base, own.view(np.uint32), tops.view(np.uint32))
        return sums, own, tops, start // k, table[:, 0], nans

    total, counts, nans = [], np.zeros(histogram.ROWS, np.int64), 0
    for sums, own, tops, first, table, lost in _windows(tensor, 1, work, seen):
        total.append(sums)
        columns = columns if wide else np.maximum(columns, own)
        np.maximum(most[first : first + tops.size], tops, out=most[first : first + tops.size])
        counts += table
        nans += lost
    n, special = tensor.count, int(counts[histogram.SPECIAL])
    binades = [(LOWEST + i, int(c)) for i, c in enumerate(counts[: histogram.BINADES]) if c]
    least = get(tensor.stored).emin if tensor.stored in FLOATS else LOWEST
    about = About(
        tensor.name, tensor.path.name, tensor.stored, tensor.shape, rows, k, n, 8 * tensor.size / tensor.block,
        low=float(min(one[2] for one in total)), high=float(max(one[3] for one in total)),
        root=math.sqrt(math.fsum(one[1] for one in total) / n), zeros=int(counts[histogram.ZERO]) / n,
        subnormals=sum(c for e, c in binades if e < least) / n, infinities=(special - nans) / n,
        nans=nans / n, input_channels=_channels(columns), output_channels=_channels(most), binades=binades,
    )  # fmt: skip
    return about, most


def _channels(most: Array) -> Channels:
    """The outliers among channels, by their largest magnitudes."""
    median = float(np.median(most)) if most.size else 0.0
    ratio = float(most.max()) / median if median else math.nan
    far = np.flatnonzero(most > OUTLIER * median) if median and most.size > 1 else np.empty(0, np.int64)
    worst = far[np.lexsort((far, -most[far]))][:MOST_CHANNELS]
    return Channels(int(far.size), tuple(map(int, worst)), ratio)


def _lost(tensor: Tensor, group: Sequence[Choice], about: About, amax: Array, finite: bool, seen: Seen) -> list[Loss]:
    """The loss in each of some formats."""
    _, k = tensor.rows
    largest = amax.max(keepdims=True)

    def work(start: int, stop: int) -> list[tuple[float, float, int, int]]:
        x = np.ascontiguousarray(tensor.values(start, stop))
        if not finite:
            x = np.where(np.isfinite(x), x, np.float32(0))
        matrix = x.reshape(-1, min(k, stop - start))
        own = amax[start // k : (stop - 1) // k + 1]
        result = []
        for one in group:
            given = largest if one.scale == "tensor" else own if one.scale == "row" else largest[:0]
            if one.scale == "row" and matrix.shape[1] == k:  # whole rows have their own
                given = largest[:0]
            y, limits, block = one.applied(matrix, given)
            result.append(compare(x, y, limits, block) if limits.size else (*compare(x, y, limits, block)[:3], -1))
        return result

    sums = list(zip(*_windows(tensor, max(one.tall for one in group), work, seen), strict=True))
    found = []
    for one, of in zip(group, sums, strict=True):
        squares = math.fsum(part[0] for part in of)
        norm = about.root * math.sqrt(about.count)
        impossible = isinstance(one.record, Stored) and not finite  # which has neither infinity nor NaN
        error = math.inf if impossible else math.sqrt(squares) / norm if norm else 0.0
        clipped = [part[3] for part in of]
        found.append(Loss(
            about.tensor, one.name, one.bits(about.outputs, k), error, decibels(error),
            float(max(part[1] for part in of)), sum(part[2] for part in of) / about.count,
            math.nan if min(clipped) < 0 else sum(clipped) / about.count,
            math.sqrt(squares / about.outputs) if len(about.shape) > 1 else math.nan,
        ))  # fmt: skip
    return found
