"""How a dynamic loss scale moves: one state machine, and a record of constants for each library that has it.

numpy only. The scale is a float32 scalar, as in the libraries; products with it are computed in float64 and rounded
to float32 once.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import LabError, own_integer, quotes_class
from ...words import part

POSITIVE_FLOAT32 = "a finite number above 0 (float32: 2**-149 to 3.4e38)"


class Tracked(NamedTuple):
    """What a dynamic scaler remembers: its scale, and the good steps since it last changed."""

    scale: float
    good_steps: int = 0


def _float32(x: float) -> float:
    """``x`` rounded to float32; infinity beyond its range, as the conversion in C gives."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(x))


def checked_scale(name: str, value: Any) -> float:
    """A loss scale as a float32 value, or an error that says what a scale must be."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise LabError(f"{name}={value!r} is not a number; allowed: {POSITIVE_FLOAT32}.") from None
    if isinstance(value, bool) or (fault := _fault(number)):
        why = "it is no number" if isinstance(value, bool) else fault
        raise LabError(f"{name}={value!r} cannot scale a loss: {why}; allowed: {POSITIVE_FLOAT32}.")
    return _float32(number)


def _fault(scale: float) -> str:
    """What a scale does wrong, or nothing."""
    if scale != scale:
        return part("every scaled gradient would be NaN")
    if scale < 0:
        return part("it would turn every gradient around")
    if _float32(scale) == 0:
        return part("every scaled gradient would be 0")
    return part("every scaled gradient would be infinite or NaN") if _float32(scale) == math.inf else ""


@quotes_class
@dataclass(frozen=True)
class Machine:
    """When and how a dynamic scale grows and shrinks.

    ``init_scale``: where it starts. ``growth_factor`` (above 1) after ``growth_interval`` good steps in a row,
    ``backoff_factor`` (between 0 and 1) after a step whose gradients were not finite. ``lowest``, ``highest``: where
    it stops. ``finite_growth``: whether a growth that overflows float32 is left out. ``divides``: whether gradients
    are divided by the scale, or multiplied by its rounded reciprocal.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    lowest: float = 0.0
    highest: float = math.inf
    finite_growth: bool = True
    divides: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "init_scale", checked_scale("init_scale", self.init_scale))
        if not 1 < self.growth_factor < math.inf:
            raise LabError(f"growth_factor={self.growth_factor!r} does not grow; allowed: finite and above 1.")
        if not 0 < self.backoff_factor < 1:
            raise LabError(f"backoff_factor={self.backoff_factor!r} does not shrink; allowed: between 0 and 1.")
        own_integer(self, "growth_interval", 1, 2**31 - 1)
        if not 0 <= self.lowest <= self.init_scale <= self.highest:
            bounds = f"lowest={self.lowest!r}, init_scale={self.init_scale!r}, highest={self.highest!r}"
            raise LabError(f"{bounds}: a scale starts between its bounds, and the lowest is not negative.")

    def start(self) -> Tracked:
        return Tracked(self.init_scale)

    def after(self, now: Tracked, found_inf: bool) -> Tracked:
        """The next scale and count of good steps: ``torch._amp_update_scale_``, with the bounds some libraries add.

        >>> TORCH.after(Tracked(65536.0, 1999), found_inf=False)
        Tracked(scale=131072.0, good_steps=0)
        """
        if found_inf:
            return Tracked(max(_float32(now.scale * self.backoff_factor), self.lowest))
        good = now.good_steps + 1
        if good < self.growth_interval:
            return Tracked(now.scale, good)
        grown = min(_float32(now.scale * self.growth_factor), self.highest)
        return Tracked(now.scale if self.finite_growth and grown == math.inf else grown)


TORCH = Machine()  # torch.amp.GradScaler of torch 2.13: torch/amp/grad_scaler.py
KERAS = Machine(2.0**15, finite_growth=False, divides=True)  # Keras 3: keras/src/optimizers/loss_scale_optimizer.py
APEX = Machine(highest=2.0**24)  # NVIDIA Apex: apex/amp/frontend.py, max_loss_scale


def unscaled(gradient: np.ndarray, scale: float, divides: bool = False) -> np.ndarray:
    """A float32 gradient without its scale, in the arithmetic of torch's kernel.

    The reciprocal is taken in float64 and rounded to float32, then multiplied in float32; a reciprocal of exactly 1
    leaves the gradient alone. It underflows to a subnormal above 2**126 and overflows to infinity below 2**-128.
    ``divides``: the gradient is divided instead, as Keras does.
    """
    with np.errstate(all="ignore"):
        if divides:
            return np.asarray(gradient / np.float32(scale))
        inverse = np.float32(np.float64(1.0) / np.float64(np.float32(scale)))
        return np.asarray(gradient if inverse == 1 else gradient * inverse)
