"""torch and the bits: any torch model in a GPU's products, in emulated formats, and under watch.

The names below load when first used, and torch with them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "autocast": "autocast",
    "emulate": "emulation",
    "formats": "storage_formats",
    "quantize": "straight_through",
    "watch": "watching",
}

__all__ = ["autocast", "emulate", "formats", "quantize", "watch"]

if TYPE_CHECKING:
    from .autocast import autocast
    from .emulation import emulate
    from .storage_formats import formats
    from .straight_through import quantize
    from .watching import watch


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fplab.nn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
