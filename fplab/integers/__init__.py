"""Integers in place of floats: INT8 and INT4 with their scales, exact products, outliers, packing and calibration.

A tensor is quantised by three things: a :class:`Grid` (which integers), a scale and a zero point, each of the two one
number for the tensor, a row, a column or a channel. ``x`` becomes ``clip(rint(x / scale) + zero_point)``; what comes
back is ``(code - zero_point) * scale``. The arithmetic is FP32, one rounding an operation, as on the devices that run
it::

    how = integers.symmetric(integers.absmax(x, "row"), "int8")
    codes = integers.quantize(x, how)
    x_again = integers.dequantize(codes, how)

A product of codes accumulates in INT32, which is exact; one that could overflow is refused.
"""

from ..lazily import index
from .affine import Affine, absmax, affine, dequantize, extremes, quantize, scheme, symmetric
from .calibration import CALIBRATORS, Histogram
from .grids import GRIDS, Grid
from .packing import Groups, pack_int4, quantize_groups, unpack_int4
from .products import METHODS, Method, int_matmul, matmul, outliers

__all__ = [
    "CALIBRATORS", "GRIDS", "METHODS", "Affine", "Grid", "Groups", "Histogram", "Method", "absmax", "affine",
    "dequantize", "extremes", "int_matmul", "matmul", "outliers", "pack_int4", "quantize", "quantize_groups", "scheme",
    "symmetric", "unpack_int4",
]  # fmt: skip

index(__name__)
