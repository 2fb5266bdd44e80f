"""Loss scalers: a factor on the loss that keeps small gradients above what FP16 rounds to zero.

``machine``: how a scale moves, as records and pure functions; ``scaling``: the scalers of a training loop, with the
methods of ``torch.amp.GradScaler``; ``amax``: a scale for each FP8 tensor instead of one for the loss.
"""

from __future__ import annotations

from .amax import AmaxScaling
from .machine import APEX, KERAS, TORCH, Machine, Tracked, unscaled
from .scaling import ApexScaler, DynamicScaler, KerasScaler, Scaler, StaticScaler

__all__ = [
    "APEX",
    "KERAS",
    "TORCH",
    "AmaxScaling",
    "ApexScaler",
    "DynamicScaler",
    "KerasScaler",
    "Machine",
    "Scaler",
    "StaticScaler",
    "Tracked",
    "unscaled",
]
