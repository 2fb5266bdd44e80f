"""Arithmetic in any format, one name a function: what rounds, adds, multiplies and sums, wherever its module lies.

For everything inside the package that computes with these functions, as :mod:`fplab` is for everybody else::

    from . import numeric
    numeric.add(a, b, "fp16")

They are loaded when first used: their modules import numba, and a recorder runs where numba is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arithmetic import add, div, eq, fma, le, lt, mul, sqrt, sub
    from .floats import convert, decode, encode, quantize
    from .spacing import classify, neighbours, ulp
    from .sums import dot, sum

_MODULES = {
    "arithmetic": ("add", "div", "eq", "fma", "le", "lt", "mul", "sqrt", "sub"),
    "floats": ("convert", "decode", "encode", "quantize"),
    "spacing": ("classify", "neighbours", "ulp"),
    "sums": ("dot", "sum"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "add", "classify", "convert", "decode", "div", "dot", "encode", "eq", "fma", "le", "lt", "mul", "neighbours",
    "quantize", "sqrt", "sub", "sum", "ulp",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_WHERE[name]}", __package__), name)
    return value
