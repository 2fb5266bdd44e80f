"""Widgets: each a frozen state, a pure ``render(state)`` to SVG or HTML, and a thin shell of native inputs.

``fplab.widgets.bits.widget()`` shows the bit editor in a notebook; ``bits.render(bits.State(...))`` is the same picture
as a string, without ipywidgets. One module a widget; ``shell``: the inputs; :mod:`fplab.draw` draws.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        accumulation,
        bits,
        blockwise,
        designer,
        gpus,
        gradients,
        lossscale,
        memory,
        pipeline,
        rounding,
        stepper,
    )

NAMES = (
    "accumulation",
    "bits",
    "blockwise",
    "designer",
    "gpus",
    "gradients",
    "lossscale",
    "memory",
    "pipeline",
    "rounding",
    "stepper",
)

__all__ = [
    "accumulation", "bits", "blockwise", "designer", "gpus", "gradients", "lossscale", "memory", "pipeline", "rounding",
    "stepper",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'fplab.widgets' has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)
