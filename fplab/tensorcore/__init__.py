"""Tensor Cores in software: matrix products by records of GPUs, most of them held against data.

>>> from fplab import tensorcore
>>> model = tensorcore.get("A100", "fp16")
>>> model.length, model.alignment_bits
(8, 24)

The names below load when first used: the records (:mod:`.models`) import where numba is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .models import GPUS, INPUTS, INSTRUCTIONS, TABLE, Model, classes, get
from .plan import Plan
from .questions import QUESTIONS

_WHERE = {
    "dot": "products",
    "matmul": "products",
    "probe": "probing",
    "separate": "separation",
    "trace": "tracing",
}

__all__ = [
    "GPUS", "INPUTS", "INSTRUCTIONS", "QUESTIONS", "TABLE", "Model", "Plan",
    "classes", "dot", "get", "matmul", "probe", "separate", "trace",
]  # fmt: skip

if TYPE_CHECKING:
    from .probing import probe
    from .products import dot, matmul
    from .separation import separate
    from .tracing import trace


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fplab.tensorcore' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
