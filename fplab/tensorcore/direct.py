"""Convolutions of small groups of channels without patches, in the bits of the products that they stand for.

A unit's fast kernel packs patches, which many output channels then share. Where there are few, packing takes longer
than the product, and :mod:`fplab.kernels.tensorcore_direct` walks over the images as they lie. That is for units of
fused blocks, one chain of k, and operands in range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..kernels import tensorcore_direct as kernels
from ..kernels.tensorcore_fast import NEVER
from ..kernels.tensorcore_rows import WIDTH
from . import engine, units
from .models import Model
from .units.block import FusedBlocks, cut, exponent_dtype

Array = np.ndarray[Any, Any]
Ints = Sequence[int]
FEW = 4  # output channels of a group for which no patches are packed
SPARSE = 8  # columns for each result, at most: the others are padding, or what a stride leaves out
MANY = 16  # groups that fill enough of a panel's columns


def fills(sizes: Ints, places: Ints) -> bool:
    """Whether enough of the columns that cover a padded image of ``sizes`` are places of the result."""
    return max(WIDTH, math.prod(sizes)) <= SPARSE * math.prod(places)


def knows(model: Model) -> bool:
    """Whether the kernels compute a unit's blocks: sums in FP32, of so few terms that they fit int32."""
    unit = units.of(model)
    return type(unit) is FusedBlocks and unit.is_fast(model) and model.output == "fp32" and model.length <= 16


class _Packed:
    """Rows x (planes, rows, width) at ``starts`` of planes of ``step`` elements, zeros between and behind them.

    They are rounded to the format of A or B, side 0 or 1, where that is a half.
    """

    def __init__(self, x: Array, starts: Array, step: int, model: Model, side: int) -> None:
        dtype, emin, fmt = exponent_dtype(model), FusedBlocks().emins(model)[side], (model.a, model.b)[side]
        zero, size = -50 if dtype == np.int8 else NEVER, len(x) * step + WIDTH  # the last panel reads beyond the end
        self.values, self.exponents = np.zeros(size, np.float32), np.full(size, zero, dtype)
        classes = np.empty(len(x), np.uint8)
        work = partial(kernels.pack, np.ascontiguousarray(x), starts, step, zero, emin, cut(fmt))
        engine.share(lambda p, q: work(p, q, self.values, self.exponents, classes), len(x), 16 * x.size)
        self.in_range = not classes.any()


def _flat(index: Sequence[Array], sizes: Ints) -> Array:
    """The places of a grid, an array a dimension, in an image of ``sizes``."""
    return np.asarray(np.ravel_multi_index(np.ix_(*index), tuple(sizes))).reshape(-1)


def _taps(kernel: Ints, dilation: Ints, sizes: Ints) -> Array:
    """How far the places of a kernel are from its first in an image of ``sizes``."""
    return _flat([step * np.arange(k) for k, step in zip(kernel, dilation, strict=True)], sizes)


def _starts(inner: Ints, before: Ints, sizes: Ints) -> Array:
    """Where each row of images of ``inner`` begins in padded ones of ``sizes``."""
    rows = [pad + np.arange(n) for n, pad in zip((*inner[:-1], 1), before, strict=True)]
    return _flat(rows, sizes)


def convolution(
    model: Model, x: Array, w: Array, kernel: Ints, before: Ints, sizes: Ints, stride: Ints, dilation: Ints,
    places: Ints,
) -> Array | None:  # fmt: skip
    """Images x (N, C, ...) by w (groups, C_out / groups, C / groups * kernel): (N, C_out, *places), float32.

    ``before``: zeros in front of each dimension of an image; ``sizes``: of the padded one. The result is a view.
    None where an operand is not in range.
    """
    unit, (n, channels, *inner), (groups, outs, taken) = FusedBlocks(), x.shape, w.shape
    step, rows, inputs = math.prod(sizes), groups * outs, channels // groups
    images = x.reshape(n * channels, -1, inner[-1])
    packed = _Packed(images, _starts(inner, before, sizes), step, model, 0)
    by = _Packed(w.reshape(1, rows, taken), taken * np.arange(rows), w.size, model, 1)
    if not (packed.in_range and by.in_range):
        return None
    offsets = (step * np.arange(inputs)[:, None] + _taps(kernel, dilation, sizes)).reshape(-1)
    bases = step * (channels * np.arange(n)[:, None] + inputs * (np.arange(rows) // outs)).reshape(-1)
    strides = [s * math.prod(sizes[i + 1 :]) for i, s in enumerate(stride)]
    last = sum((count - 1) * move for count, move in zip(places, strides, strict=True))
    panels = last // WIDTH + 1
    sums = np.empty((n * rows, panels * WIDTH), np.uint32)
    rule = unit.fast_rule(model, exponent_dtype(model), 0)
    taps = (part[: w.size].reshape(rows, taken) for part in (by.values, by.exponents))
    work = partial(kernels.places, packed.values, packed.exponents, bases, *taps, offsets, panels, model.length, sums)
    engine.share(lambda p, q: work(p, q, rule), len(sums), sums.size * taken)
    values = sums.view(np.float32)
    shape, moves = (n, rows, *places), (rows * sums.shape[1], sums.shape[1], *strides)
    return np.lib.stride_tricks.as_strided(values, shape, [4 * move for move in moves])


def gradient_of_weights(
    model: Model, x: Array, y: Array, kernel: Ints, before: Ints, sizes: Ints, stride: Ints, dilation: Ints
) -> Array | None:
    """Patches of x (N, ..., C / groups, groups) by y (N, ..., C_out / groups, groups), over images and places of y.

    The result is (groups, C_out / groups, C / groups, kernel places), float32; the rest as in :func:`convolution`.
    """
    unit, (n, *inner, inputs, groups), (_, *places, outs, _) = FusedBlocks(), x.shape, y.shape
    step, each, area = math.prod(sizes), inputs * groups, math.prod(places)
    rows = x.reshape(n, -1, inner[-1] * each)
    packed = _Packed(rows, each * _starts(inner, before, sizes), each * step, model, 0)
    by = _Packed(y.reshape(n, 1, -1), np.zeros(1, np.int64), area * outs * groups, model, 1)
    if not (packed.in_range and by.in_range):
        return None
    chunks, taps = -(-groups // WIDTH), _taps(kernel, dilation, sizes)
    walked = _taps(places, stride, sizes)  # by a kernel that stands at each place in turn
    at_x = each * (step * np.arange(n)[:, None] + walked).reshape(-1)
    at_y = outs * groups * np.arange(n * area)
    grid = np.meshgrid(WIDTH * np.arange(chunks), groups * np.arange(outs), groups * np.arange(inputs), each * taps,
                       indexing="ij")  # fmt: skip
    offsets_x, offsets_y = ((grid[0] + part).reshape(-1) for part in (grid[2] + grid[3], grid[1]))
    sums = np.zeros((offsets_x.size, WIDTH), np.uint32)
    rule = unit.fast_rule(model, exponent_dtype(model), 0)
    work = partial(kernels.weights, packed.values, packed.exponents, at_x, offsets_x, by.values, by.exponents, at_y,
                   offsets_y, model.length, sums)  # fmt: skip
    engine.share(lambda p, q: work(p, q, rule), len(sums), sums.size * at_x.size)
    shaped = sums.view(np.float32).reshape(chunks, outs, inputs, taps.size, WIDTH)
    by_group = shaped.transpose(0, 4, 1, 2, 3).reshape(chunks * WIDTH, outs, inputs, taps.size)
    return np.ascontiguousarray(by_group[:groups])
