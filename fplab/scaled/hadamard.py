"""The random Hadamard transform: an outlier is spread over its block before it sets the scale of all."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import floats
from ..arrays import as_array, values
from ..errors import LabError, integer, quotes_call
from ..formats import FormatName, get
from ..kernels.scaled import butterflies
from ..kernels.tensorcore_rows import LANES
from ..threads import split
from .result import axis_moved

Array = np.ndarray[Any, Any]
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""Transformer Engine's signs of the 16 values of a block."""


@quotes_call
def hadamard(
    x: Any, axis: int = -1, *, size: int = 16, signs: Sequence[int] = SIGNS, dtype: FormatName = "fp32"
) -> Array:
    """Transform blocks of ``size`` values along an axis by x S H / sqrt(size); float32 that hold values of ``dtype``.

    H is Sylvester's matrix, entry (i, j) -1 to the bits that i and j share, S the diagonal matrix of ``signs``, 1 or
    -1, repeated to the block's size. Applied to both operands of a product along its K, it leaves the exact product
    as it is. ``axis``: its length is a multiple of ``size``, a power of two. ``dtype``: the tensor's format.

    The bits: Sylvester's butterflies in FP64, sums and differences at distance 1, 2, 4, ..., times 1 / sqrt(size),
    rounded once to ``dtype``. So at sizes 4 and 16, whose roots are powers of two, it is the exact product rounded once
    wherever values of a block lie within 2**24 of each other for FP32, 2**40 for BF16. A library's product on a matrix
    unit rounds in that unit's way before: for its bits, pass ``hadamard(np.eye(size))`` to
    :func:`fplab.tensorcore.matmul`.

    >>> from fplab import scaled
    >>> scaled.hadamard([0.0] * 15 + [8.0])
    array([-2.,  2.,  2., -2.,  2., -2., -2.,  2.,  2., -2., -2.,  2., -2.,
            2.,  2., -2.], dtype=float32)
    """
    whole = as_array(x, "x")
    axis = integer("axis", axis, -max(whole.ndim, 1), max(whole.ndim, 1) - 1)
    v = values(axis_moved(whole.reshape(whole.shape or (1,)), axis, -1))
    size = integer("size", size, 1, 1 << 15)
    if size & (size - 1):
        raise LabError(f"size={size} is not possible; allowed: powers of two.")
    ones = np.asarray(signs[:size] if isinstance(signs, range) else signs)  # numpy would list range(10**12)
    if ones.ndim != 1 or not ones.size or not np.isin(ones, (1, -1)).all():
        raise LabError(f"signs={signs!r} is not possible; allowed: a sequence of 1 and -1.")
    if v.shape[-1] % size:
        raise LabError(f"x has {v.shape[-1]} values along axis {axis}; size={size} allows multiples of it.")
    fmt, factors = get(dtype), np.resize(np.resize(ones, size), max(size, LANES)).astype(np.float64)
    narrow = fmt.significand_bits <= 22 and fmt.emin - fmt.fraction_bits >= -147 and fmt.emax <= 127
    transformed: Array = np.empty(v.shape, np.float32 if narrow or fmt.name == "fp32" else np.float64)
    flat, blocks = v.flat, transformed.reshape(-1)
    split(
        lambda a, b: butterflies(flat[a:b], blocks[a:b], factors, size, 1 / np.sqrt(size), narrow), flat.size, unit=size
    )
    if fmt.name != "fp32":
        transformed = floats.quantize(transformed, fmt, out=transformed).astype(np.float32, copy=False)
    return axis_moved(transformed, -1, axis).reshape(whole.shape)
