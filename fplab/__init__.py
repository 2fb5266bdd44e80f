"""fplab: a numerical-precision laboratory, from a bit to a training run.

The names below are the public index. They are loaded when first used, so that ``import fplab`` stays fast and needs
neither torch nor matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "add": "arithmetic",
    "classify": "spacing",
    "convert": "floats",
    "decode": "floats",
    "div": "arithmetic",
    "dot": "sums",
    "encode": "floats",
    "eq": "arithmetic",
    "fma": "arithmetic",
    "Format": "formats",
    "inspect": "inspection",
    "LabError": "errors",
    "lang": "language",
    "le": "arithmetic",
    "lt": "arithmetic",
    "mul": "arithmetic",
    "neighbours": "spacing",
    "num_threads": "threads",
    "Overflow": "formats",
    "quantize": "floats",
    "reveal_order": "reveal",
    "Rounding": "formats",
    "set_num_threads": "threads",
    "Specials": "formats",
    "sqrt": "arithmetic",
    "sub": "arithmetic",
    "sum": "sums",
    "ulp": "spacing",
}
_MODULES = (
    "claims",
    "codebooks",
    "course",
    "draw",
    "exact",
    "exercises",
    "experiments",
    "formats",
    "hardware",
    "inspection",
    "integers",
    "memory",
    "nn",
    "pages",
    "parallel",
    "sums",
    "tensorcore",
    "training",
    "widgets",
)

__all__ = [
    "Format", "LabError", "Overflow", "Rounding", "Specials",
    "add", "claims", "classify", "codebooks", "convert", "course", "decode", "div", "dot", "draw", "encode", "eq",
    "exact", "exercises", "experiments", "fma", "formats", "hardware", "inspect", "inspection", "integers", "lang",
    "le", "lt", "memory", "mul", "neighbours", "nn", "num_threads", "pages", "parallel", "quantize", "reveal_order",
    "set_num_threads", "sqrt", "sub", "sum", "sums", "tensorcore", "training", "ulp", "widgets",
]  # fmt: skip

if TYPE_CHECKING:
    from . import (
        claims,
        codebooks,
        course,
        draw,
        exact,
        exercises,
        experiments,
        formats,
        hardware,
        inspection,
        integers,
        memory,
        nn,
        pages,
        parallel,
        sums,
        tensorcore,
        training,
        widgets,
    )
    from .arithmetic import add, div, eq, fma, le, lt, mul, sqrt, sub
    from .errors import LabError
    from .floats import convert, decode, encode, quantize
    from .formats import Format, Overflow, Rounding, Specials
    from .inspection import inspect
    from .language import lang
    from .reveal import reveal_order
    from .spacing import classify, neighbours, ulp
    from .sums import dot, sum
    from .threads import num_threads, set_num_threads


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    elif name in _MODULES or name == "plots":
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'fplab' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
