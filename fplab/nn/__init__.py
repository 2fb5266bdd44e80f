"""torch and the bits: any torch model in a GPU's products, in emulated formats, and under watch.

The names below load when first used, and torch with them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "FakeQuantize": "fake_quantization",
    "Int4Linear": "int8_layers",
    "Int8Linear": "int8_layers",
    "LearnedStep": "fake_quantization",
    "Quantization": "quantized_model",
    "autocast": "cuda_autocast",
    "emulate": "emulation",
    "fake_quantize": "fake_quantization",
    "fake_quantized": "quantized_model",
    "formats": "storage_formats",
    "int4_linears": "int8_layers",
    "int8_linears": "int8_layers",
    "observe": "quantized_model",
    "quantize": "straight_through",
    "watch": "watching",
}

__all__ = [
    "FakeQuantize",
    "Int4Linear",
    "Int8Linear",
    "LearnedStep",
    "Quantization",
    "autocast",
    "emulate",
    "fake_quantize",
    "fake_quantized",
    "formats",
    "int4_linears",
    "int8_linears",
    "observe",
    "quantize",
    "watch",
]

if TYPE_CHECKING:
    from .cuda_autocast import autocast
    from .emulation import emulate
    from .fake_quantization import FakeQuantize, LearnedStep, fake_quantize
    from .int8_layers import Int4Linear, Int8Linear, int4_linears, int8_linears
    from .quantized_model import Quantization, fake_quantized, observe
    from .storage_formats import formats
    from .straight_through import quantize
    from .watching import watch


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fplab.nn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
