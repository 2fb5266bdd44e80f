"""Widgets: each a frozen state, a pure ``render(state)`` to SVG or HTML, and a thin shell of native inputs.

``fplab.widgets.bits.widget()`` shows the bit editor in a notebook; ``bits.render(bits.State(...))`` is the same picture
as a string, without ipywidgets. One module a widget; ``shell``: the inputs; :mod:`fplab.draw` draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import index

if TYPE_CHECKING:
    from . import (
        accumulation,
        adders,
        bits,
        block_scales,
        blockwise,
        collectives,
        designer,
        gpus,
        gradients,
        lossscale,
        memory,
        mixed,
        pipeline,
        rounding,
        stepper,
        zero,
    )

__all__ = [
    "accumulation", "adders", "bits", "block_scales", "blockwise", "collectives", "designer", "gpus", "gradients",
    "lossscale", "memory", "mixed", "pipeline", "rounding", "stepper", "zero",
]  # fmt: skip

NAMES = tuple(__all__)

index(__name__)
