"""Adam, AdamW, momentum SGD, Lion and Adagrad with 8-bit states.

Defaults are the published ones; where bitsandbytes' implementations differ from each other, an option says so:

* ``sign="kept"``: its CUDA kernel moves a negative first state that would become 0 to the value below; "nearest" does
  not. (A positive one may become 0 in both.)
* ``decay``: "gradient" adds the weight to the gradient, as ``torch.optim.Adam``; "before" shrinks the weight before the
  update, as ``torch.optim.AdamW`` and bitsandbytes' torch backend; "after", as its CUDA kernel, for Adam too.
* ``rounding="stochastic"``: states are rounded up or down by chance, on average to what they are; the bits depend on
  ``seed``, the step, the parameter's place and the element.
* ``bad_gradients``: "skip" leaves a weight whose gradient is NaN or infinite and zeroes its states, as the CUDA kernel;
  "error" stops with the parameter and the element, before any weight moves.
* ``maximize``, as torch's, follows the gradient instead of its opposite. ``foreach`` and ``fused`` are taken and change
  nothing: they say how torch walks over tensors. What else torch's take (``amsgrad``, ``capturable``) is refused.
"""

import math
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from ..optimizers import programs
from .base import EightBit, Options


def averaging(group: dict[str, Any]) -> dict[str, Any]:
    """The coefficients of two averages."""
    beta1, beta2 = map(np.float32, group["betas"])
    return {"beta1": beta1, "one_minus_beta1": 1 - beta1, "beta2": beta2, "one_minus_beta2": 1 - beta2}


class Adam8bit(EightBit):
    """Adam with 8-bit states: a drop-in for ``torch.optim.Adam``.

    ``lr``, ``betas``, ``eps``, ``weight_decay``: as torch's. ``block``: elements that share a scale, None for the whole
    tensor (2048 in the paper; 256 in bitsandbytes since 0.44). ``code``: "dynamic", "linear", or the codebooks of the
    first (signed) and second (unsigned) state. ``min_8bit_size``: smaller tensors keep 32-bit states;
    ``state_bits=32``: all do. The other options: see the module.

    The update, each operation in float32 (Dettmers et al., arXiv 2110.02861, and its CUDA kernel)::

        m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g g
        p = p - lr sqrt(1 - beta2^t) / (1 - beta1^t) * (m / (sqrt(v) + eps sqrt(1 - beta2^t)))

    It uses the new states before they are quantised.
    """

    kind = programs.ADAM_8BIT

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)

    def coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        root = math.sqrt(1 - beta2**step)
        size = -group["lr"] * root / (1 - beta1**step)
        sizes = {"minus_step_size": size, "eps": root * group["eps"]}
        return {**super().coefficients(group, step), **averaging(group), **sizes}


class AdamW8bit(Adam8bit):
    """:class:`Adam8bit` with decoupled weight decay, 0.01 by default: ``p *= 1 - lr weight_decay`` comes first."""

    decay = "before"

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, **options)


class SGD8bit(EightBit):
    """Momentum SGD with an 8-bit velocity: ``m = momentum m + g``, ``p = p - lr m``.

    ``momentum`` has no default: without one there is no state to store. Other options as :class:`Adam8bit`.
    """

    kind = programs.MOMENTUM_8BIT

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float, weight_decay: float = 0.0, **options: Unpack[Options]
    ) -> None:
        numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)

    def coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        return {**super().coefficients(group, step), "momentum": group["momentum"]}


class Lion8bit(EightBit):
    """Lion with an 8-bit average: ``p = p - lr sign(beta1 m + (1 - beta1) g)``, ``m = beta2 m + (1 - beta2) g``.

    Weight decay is decoupled, before the update. Source: X. Chen et al., Symbolic Discovery of Optimization Algorithms
    (arXiv 2302.06675). Options as :class:`Adam8bit`.
    """

    kind = programs.LION_8BIT
    decay = "before"

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        numbers = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)

    def coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        return {**super().coefficients(group, step), **averaging(group)}


class Adagrad8bit(EightBit):
    """Adagrad with an 8-bit sum of squares: ``v = v + g g``, ``p = p - lr g / (sqrt(v) + eps)``.

    The state is never negative and takes the unsigned codebook (bitsandbytes uses the signed one). It only grows, and
    rounding to nearest lets it stand still: a square below half the gap above ``v`` is lost. Options as
    :class:`Adam8bit`; ``sign`` says nothing here.
    """

    kind = programs.ADAGRAD_8BIT

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)

    def coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        return {**super().coefficients(group, step), "eps": group["eps"]}
