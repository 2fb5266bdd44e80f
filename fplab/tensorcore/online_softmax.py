"""Attention as one softmax over tiles of keys (online softmax), in the bits of a GPU's matrix unit.

What FlashAttention 2 and 3 do with a row of S = Q K^T, tile after tile (Dao 2023, arXiv 2307.08691; Shah et al. 2024,
arXiv 2407.08608), everything but the two products in FP32, each operation rounded once::

    m = max(m, max S)                   alpha = exp2((m before - m) c)      c = scale log2(e)
    P = exp2(fma(S, c, shift - m c))    l = alpha l + P0 + P1 + ...         one after the other
    O = alpha O + P V                   P cast to the format of the product, alpha O being its accumulator

and at the end O times 1 / l. In which order a library takes the tiles, and how its threads share a row, is its own
business: this is a plan, of which both FlashAttentions' sources begin at the last tile. exp2 is rounded correctly here,
which a GPU's approximation need not be. :func:`by_definition` is the same on exact numbers, one row at a time.
"""

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from .. import exact
from ..arithmetic import fma
from ..errors import LabError, integer, quotes_call, unknown
from ..exact import Exact
from ..floats import quantize
from ..formats import FormatName
from . import models, oracle
from .models import Inputs, Model
from .operands import read
from .products import matmul

Array = np.ndarray[Any, Any]
ORDERS = ("descending", "ascending")


def factor(scale: float | None, width: int) -> np.float32:
    """``scale log2(e)`` in FP32; without a scale that of attention, 1 / sqrt(d)."""
    return np.float32((1 / math.sqrt(width) if scale is None else scale) * math.log2(math.e))


def tiles(keys: int, tile: int, order: str) -> list[slice]:
    """The keys of each tile, in the order in which they are taken."""
    slices = [slice(start, min(start + tile, keys)) for start in range(0, keys, tile)]
    return slices[::-1] if order == "descending" else slices


@quotes_call
def attention(
    q: Any, k: Any, v: Any, gpu: str | Model = "H100", inputs: Inputs = "fp16", *, tile: int = 128,
    order: str = "descending", p: FormatName | None = None, shift: int = 0, scale: float | None = None,
) -> Array:  # fmt: skip
    """softmax(q k^T scale) v by tiles: q (M, D), k (N, D), v (N, E) give float32 (M, E).

    ``tile``: keys of a tile; N or more is one softmax. ``order``: of the tiles. ``p``: format of P and V in the second
    product, that of ``inputs`` unless given; ``shift``: P is held times 2**shift, 8 in FlashAttention 3's FP8. Values
    that a format cannot represent are rounded to it first, to nearest.

    >>> bool(attention([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]])[0, 0] > 0.6)
    True
    """
    first, second = models.get(gpu, inputs), models.get(gpu, inputs if p is None else p)
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    tile, shift = integer("tile", tile, 1, 1 << 20), integer("shift", shift, 0, 64)
    operands = [(q, "q", first.a), (k, "k", first.b), (v, "v", second.b)]
    x, y, z = (read(operand, name, fmt, None, False) for operand, name, fmt in operands)
    if any(matrix.ndim != 2 for matrix in (x, y, z)) or x.shape[1] != y.shape[1] or len(y) != len(z) or not len(y):
        raise LabError(f"q, k and v have shapes {x.shape}, {y.shape} and {z.shape}; needed: (M, D), (N, D) and (N, E).")
    c = factor(scale, x.shape[1])
    largest, total = np.full(len(x), -np.inf, np.float32), np.zeros(len(x), np.float32)
    result = np.zeros((len(x), z.shape[1]), np.float32)
    for some in tiles(len(y), tile, order):
        scores = matmul(x, y[some].T, gpu=first)
        most = np.maximum(largest, scores.max(axis=1))
        alpha = _exp2((largest - most) * c)
        weights = _exp2(np.asarray(fma(scores, c, (np.float32(shift) - most * c)[:, None], "fp32")))
        total = total * alpha
        for column in weights.T:
            total = total + column
        kept = np.asarray(quantize(weights, second.a), np.float32)
        result = matmul(kept, z[some], result * alpha[:, None], gpu=second)
        largest = most
    return np.asarray(result * (np.float32(1) / total)[:, None])


def _exp2(x: Array) -> Array:
    """2**x in FP32 by way of float64."""
    return np.exp2(x.astype(np.float64)).astype(np.float32)


def by_definition(
    q: Sequence[float], k: Sequence[Sequence[float]], v: Sequence[Sequence[float]], first: Model, second: Model,
    tile: int, order: str, shift: int, c: float,
) -> list[Exact]:  # fmt: skip
    """One row of :func:`attention` on exact numbers; values must be those of the formats."""

    def fp32(x: Exact | Fraction) -> Exact:
        return exact.decode(exact.round_to(exact.of(x) if isinstance(x, Fraction) else x, "fp32")[0], "fp32")

    def power(x: Fraction) -> Exact:
        """Sixty digits of 2**x, and then one rounding."""
        context = Context(prec=60)
        digits = context.divide(Decimal(x.numerator), Decimal(x.denominator))
        return fp32(Fraction(context.power(Decimal(2), digits)))

    slope = Fraction(float(c))
    largest: Fraction | None = None
    total, result = Fraction(0), [Fraction(0)] * len(v[0])
    for some in tiles(len(k), tile, order):
        scores = [oracle.dot(q, row, 0.0, first).value for row in k[some]]
        most = max([*scores, *([] if largest is None else [largest])])
        alpha = Fraction(0) if largest is None else power(fp32(fp32(largest - most).value * slope).value).value
        offset = fp32(shift - fp32(most * slope).value).value
        weights = [power(fp32(score * slope + offset).value).value for score in scores]
        total = fp32(total * alpha).value
        for weight in weights:
            total = fp32(total + weight).value
        kept = [exact.decode(exact.round_to(exact.of(w), second.a)[0], second.a).value for w in weights]
        for column in range(len(result)):
            onto = float(fp32(result[column] * alpha).value)
            values = [row[column] for row in v[some]]
            result[column] = oracle.dot(list(map(float, kept)), values, onto, second).value
        largest = most
    over = fp32(1 / total).value
    return [fp32(entry * over) for entry in result]
