"""Training real networks on real data, so that claims about precision rest on numbers that occurred.

``digits`` needs numpy alone; what needs torch is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .data import Digits, digits

if TYPE_CHECKING:
    from .loop import Momentum, OutputGradients, Recipe, Run, Snapshot, batches, train
    from .network import accuracy, digits_net, layers, tensors

_WITH_TORCH = {
    "loop": ("Momentum", "OutputGradients", "Recipe", "Run", "Snapshot", "batches", "train"),
    "network": ("accuracy", "digits_net", "layers", "tensors"),
}

__all__ = [
    "Digits",
    "Momentum",
    "OutputGradients",
    "Recipe",
    "Run",
    "Snapshot",
    "accuracy",
    "batches",
    "digits",
    "digits_net",
    "layers",
    "tensors",
    "train",
]


def __getattr__(name: str) -> Any:
    for module, names in _WITH_TORCH.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
