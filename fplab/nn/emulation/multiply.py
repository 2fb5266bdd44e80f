"""One product of two matrices in a GPU's bits: operands rounded to the unit's formats, the sum, what follows it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ...errors import LabError, warn
from ...floats import quantize
from ...formats import Rounding, get
from ...tensorcore import accumulators
from ...tensorcore import products as tensorcore
from ...tensorcore.models import Model
from ...tensorcore.operands import CONVERSIONS, rounded
from .. import bits
from .places import Place
from .report import Log, Shape
from .settings import OWN, Settings

Array = np.ndarray[Any, Any]
FORWARD = (False, False)
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}  # torch's casts from FP32 round to nearest even, as the lab's


class Products:
    """The products of one operation: computes them, counts them, and gives each operand its role for the scaling.

    ``place``, ``number``: where they belong, and the number of the product in its layer. ``again``: of a forward pass
    that a checkpoint runs again, in the backward pass of ``phase``.
    """

    def __init__(
        self, settings: Settings, log: Log, place: Place, phase: str, number: str, operation: str, again: bool = False
    ) -> None:
        self.settings, self.log, self.place = settings, log, place
        self.phase, self.number, self.operation, self.again = phase, number, operation, again
        self.done = 0
        self.model: Model | None = None

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, gradient: tuple[bool, bool] = FORWARD
    ) -> torch.Tensor:
        """``a @ b`` (..., M, K) by (..., K, N), not yet stored: float32 (float64 for FP64) values of the accumulator.

        ``dtype``: of the tensors that torch was asked to multiply; ``gradient``: which of them is a gradient.
        """
        formats = self.settings.formats(dtype, gradient)
        model = self.model = self.settings.model(*formats)
        part = f".{self.done}" if self.done else ""
        role = f"{self.place.layer} {'forward' if self.again else self.phase} {self.number}{part}"
        roles = [f"{role} {side}{' gradient' * is_gradient}" for side, is_gradient in zip("ab", gradient, strict=True)]
        x, shift_x = self._operand(a, formats[0], roles[0])
        y, shift_y = self._operand(b, formats[1], roles[1])
        result = tensorcore.multiply(model, x, y)
        if shift_x + shift_y:
            result = np.ldexp(result, -(shift_x + shift_y))
        shape = Shape(math.prod(result.shape[:-2]), x.shape[-2], x.shape[-1], y.shape[-1])
        self.log.product(self.place.layer, self.phase, self.operation, model, shape)
        self.done += 1
        return torch.from_numpy(result)

    def _operand(self, tensor: torch.Tensor, fmt: str, role: str) -> tuple[Array, int]:
        """An operand in its unit's format as a contiguous array, and the exponent of the scale it carries."""
        if tensor.device.type != "cpu":
            raise LabError(f"a product of tensors on {tensor.device}; emulation runs on the CPU: move the model there.")
        plain = tensor.detach()
        if fmt in HALVES and plain.dtype == torch.float32:  # as the GPU's own copy of the operand; three times as fast
            plain = plain.to(HALVES[fmt])
        own = OWN.get(plain.dtype) == fmt
        wide = torch.float64 if plain.dtype == torch.float64 else torch.float32
        array: Array = plain.contiguous().to(wide).numpy()
        if own:
            return array, 0
        form = get(fmt)
        if form.bits > 8:
            rounding = CONVERSIONS[self.settings.conversion] if fmt == "tf32" else Rounding.RNE
            return rounded(array.reshape(-1), form, rounding).reshape(array.shape), 0
        shift = self._scale(role, plain)
        if shift:
            array = np.ldexp(array, shift)
        if self.settings.scaling is None and not self.log.warned and (beyond := int((np.abs(array) > form.max).sum())):
            self.log.warned = True
            warn(
                f"{beyond:,} of {array.size:,} values of {role!r} are beyond {form.max:g}, the largest of {form.name}, "
                "and saturate: without scaling= operands are rounded as they are. Pass one, such as "
                "fplab.training.AmaxScaling()."
            )
        return np.asarray(quantize(array, fmt, overflow="saturate")), shift

    def _scale(self, role: str, tensor: torch.Tensor) -> int:
        """The exponent of the power of two that the scaling chooses for an operand."""
        if self.settings.scaling is None:
            return 0
        given, asked = self.place.step.scales, (self.place.serial, role)
        if self.again and asked in given:
            scale = given[asked]
        else:
            scale = given[asked] = float(self.settings.scaling.scale(role, tensor))
        mantissa, exponent = math.frexp(scale)
        if mantissa != 0.5 or not math.isfinite(scale):
            raise LabError(f"the scaling gave {scale!r} for {role!r}; a power of two is needed, so that it is exact.")
        return exponent - 1

    def with_addend(self, result: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float) -> torch.Tensor:
        """``alpha * result + beta * c`` in the accumulator's format, one fused multiply-add, before the store."""
        if alpha == 1 and (c is None or beta == 0):
            return result
        assert self.model is not None
        addend = None if c is None or beta == 0 else bits.values(c)
        accumulator = accumulators.of(self.model)
        return torch.from_numpy(accumulator.epilogue(result.numpy(), addend, alpha, beta, self.model))

    def stored(self, result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The accumulator's values rounded once to the dtype of the result, or first to ``store`` where that is set."""
        if self.settings.store is not None:
            result = torch.from_numpy(np.asarray(quantize(result.numpy(), self.settings.store)))
        return result.to(dtype)
