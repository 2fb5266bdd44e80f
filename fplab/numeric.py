"""Arithmetic in any format, one name a function: what rounds, adds, multiplies and sums, wherever its module lies.

For everything inside the package that computes with these functions, as :mod:`fplab` is for everybody else::

    from . import numeric
    numeric.add(a, b, "fp16")

They are loaded when first used: their modules import numba, and a recorder runs where numba is missing.
"""

from typing import TYPE_CHECKING

from .lazily import index

if TYPE_CHECKING:
    from .arithmetic import add, div, eq, fma, le, lt, mul, sqrt, sub
    from .floats import convert, decode, encode, quantize
    from .spacing import classify, neighbours, ulp
    from .sums import dot, sum

__all__ = [
    "add", "classify", "convert", "decode", "div", "dot", "encode", "eq", "fma", "le", "lt", "mul", "neighbours",
    "quantize", "sqrt", "sub", "sum", "ulp",
]  # fmt: skip

index(__name__)
