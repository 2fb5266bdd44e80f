"""Loss scalers: a factor on the loss that keeps small gradients above what FP16 rounds to zero.

``machine``: how a scale moves, as records and pure functions; ``scaling``: the scalers of a training loop, with the
methods of ``torch.amp.GradScaler``; ``amax``: a scale for each FP8 tensor instead of one for the loss. The machine
needs no torch, which is imported when one of the others is asked for.
"""

from typing import TYPE_CHECKING

from ...lazily import index
from .machine import APEX, KERAS, TORCH, Machine, Tracked, unscaled

if TYPE_CHECKING:
    from .amax import AmaxScaling
    from .scaling import ApexScaler, DynamicScaler, KerasScaler, Scaler, StaticScaler

__all__ = [
    "APEX", "KERAS", "TORCH", "AmaxScaling", "ApexScaler", "DynamicScaler", "KerasScaler", "Machine", "Scaler",
    "StaticScaler", "Tracked", "unscaled",
]  # fmt: skip

index(__name__)
