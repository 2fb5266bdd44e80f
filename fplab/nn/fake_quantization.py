"""Quantise and at once dequantise, with the straight-through gradient: how a network is trained for integers.

Forward, in FP32: ``(clip(rint(x * (1 / scale)) + zero_point) - zero_point) * scale``, the zero point after the
rounding. Backward: the gradient passes where the code was inside the grid before clipping, and is zero elsewhere. Bits
and gradients are those of ``torch.fake_quantize_per_tensor_affine`` and ``torch.fake_quantize_per_channel_affine``,
with two differences: a NaN is an error (torch makes it the least code), and what is 2^63 steps away or more, infinity
too, saturates at its own end of the grid (torch's per-channel CPU kernel makes it the least code at both ends).

float16 and bfloat16 values are quantised in FP32 too, and the result is rounded once to their dtype, as torch does it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LabError, door, quotes_call, summary
from ..integers import Affine, Grid
from ..integers.affine import SMALLEST_SCALE
from ..integers.grids import GridLike, get
from ..words import say
from .bits import holds_values
from .replacing import Layer

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class _OnGrid(torch.autograd.Function):
    """Steps on the grid; the gradient straight through, and one for the scale where that is learned."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        exact = x * torch.reciprocal(scale)
        steps = torch.round(exact)
        inside, clipped = (low <= steps) & (steps <= high), torch.minimum(torch.maximum(steps, low), high)
        # d(clip(rint(x / s)) * s) / ds with a straight-through rint: rint(v) - v inside, the end of the grid outside.
        ctx.save_for_backward(inside, torch.where(inside, steps - exact, clipped) if ctx.needs_input_grad[1] else None)
        ctx.shape = scale.shape
        return (clipped + 0.0) * scale  # adding zero makes -0 the +0 that integers have

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        inside, slope = ctx.saved_tensors
        of_scale = None if slope is None else (grads[0] * slope).sum_to_size(ctx.shape)
        return grads[0] * inside, of_scale, None, None


def _float32(x: Tensor) -> Tensor:
    """The values to quantise as float32, or an error."""
    if not isinstance(x, Tensor):
        raise LabError(f"x is a {type(x).__name__}; fake quantisation takes a torch tensor.")
    if x.dtype not in DTYPES:
        raise LabError(
            f"x is {str(x.dtype).removeprefix('torch.')}; fake quantisation takes float32, float16 and bfloat16: "
            "x.float()."
        )
    if not holds_values(x):
        raise LabError("x is sparse, nested or has no values; fake quantisation takes dense tensors.")
    if torch.isnan(x).any():
        at = int(torch.isnan(x).flatten().nonzero()[0])
        raise LabError(f"element {at} of x is NaN, which no integer stands for; look for where it arose.")
    return x.float()


def _along(values: Tensor, x: Tensor, axis: int | None, name: str) -> Tensor:
    """A tensor of one element, or of one a channel, shaped so that it broadcasts against ``x``."""
    if axis is None:
        if values.numel() != 1:
            raise LabError(f"{name} has {values.numel()} elements; without axis= it is one number.")
        return values.reshape(())
    if not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
        allowed = say("{low} to {high}", low=-x.ndim, high=x.ndim - 1) if x.ndim else "none"
        raise LabError(f"axis={summary(axis)} of a tensor of {x.ndim} dimensions; allowed: {allowed}.")
    if values.numel() != x.shape[axis]:
        raise LabError(f"{name} has {values.numel()} elements, and axis {axis} of x has {x.shape[axis]} channels.")
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.reshape(shape)


def _ends(zero: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The grid seen from the zero point: the least and the largest number of steps."""
    return (grid.low - zero).float(), (grid.high - zero).float()


def _affine(how: Affine) -> Affine:
    if not isinstance(how, Affine):
        raise LabError(f"how is a {type(how).__name__}; pass what fplab.integers.symmetric, affine or scheme returned.")
    return how


@quotes_call
def fake_quantize(
    x: Tensor, scale: float | Tensor, zero_point: int | Tensor = 0, grid: GridLike = "int8", axis: int | None = None
) -> Tensor:
    """The values of ``x`` (float32 or 16-bit, any shape) as integers of ``grid``; gradients pass straight through.

    ``scale`` (float32, positive) and ``zero_point`` (integers of the grid): one number, or with ``axis`` one for each
    index of that axis.

    >>> fake_quantize(torch.tensor([0.26, 0.24, 99.0]), 0.5).tolist()
    [0.5, 0.0, 63.5]
    """
    wide = _float32(x)
    form = get(grid)
    try:
        if isinstance(zero_point, Sequence) and len(zero_point) > 2**24:  # torch reads range(10**12) for hours
            raise TypeError
        step = torch.as_tensor(scale, dtype=torch.float32, device=x.device).detach()
        zero = torch.as_tensor(zero_point, device=x.device)
        if not (holds_values(step) and holds_values(zero)):
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise LabError("scale and zero_point are numbers, or tensors of one number a channel.") from None
    if (
        zero.is_floating_point()
        or zero.is_complex()
        or zero.dtype is torch.bool
        or ((zero < form.low) | (zero > form.high)).any()
    ):
        raise LabError(f"zero points are integers of the grid {form.name}, {form.low} to {form.high}.")
    if not ((step >= float(SMALLEST_SCALE)) & step.isfinite()).all():
        raise LabError(f"scale must be positive and finite, at least 2^-126; the least given is {float(step.min())!r}.")
    zero = _along(zero, x, axis if zero.numel() > 1 else None, "zero_point")
    result: Tensor = _OnGrid.apply(wide, _along(step, x, axis, "scale"), *_ends(zero, form))
    return result.to(x.dtype)


class _Quantizer(Layer):
    """``grid``, the scale, and the ends of the grid seen from the zero point of ``how``, which stay as they are."""

    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, how: Affine, learned: bool) -> None:
        super().__init__()
        self.grid, scale = _affine(how).grid, torch.from_numpy(how.scale.copy())
        if learned:
            self.scale = nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)
        for name, end in zip(("low", "high"), _ends(torch.from_numpy(how.zero_point.copy()), how.grid), strict=True):
            self.register_buffer(name, end)


@door
class FakeQuantize(_Quantizer):
    """:func:`fake_quantize` with a fixed range, as a module; ``how`` as :mod:`fplab.integers` gives it.

    Its scale stays float32 where a model is moved to another dtype.

    >>> from fplab import integers
    >>> FakeQuantize(integers.symmetric(3.5, "int4"))(torch.tensor([0.75, 9.0])).tolist()
    [1.0, 3.5]
    """

    fixed = ("scale", "low", "high")

    def __init__(self, how: Affine) -> None:
        super().__init__(how, learned=False)

    def forward(self, x: Tensor) -> Tensor:
        """The values of ``x`` on the grid; scale and zero point broadcast to it."""
        result: Tensor = _OnGrid.apply(_float32(x), self.scale, self.low, self.high)
        return result.to(x.dtype)


@door
class LearnedStep(_Quantizer):
    """Fake quantisation whose scale is a parameter: learned step size quantisation.

    After S. Esser et al., Learned Step Size Quantization (arXiv 1902.08153), equations 1 to 3 and section 2.2: the
    scale's gradient is ``rint(v) - v`` inside the grid (v = x / scale) and the end of the grid outside, multiplied by
    ``1 / sqrt(n * high)`` for n elements a scale, so that scales and weights move at comparable relative rates. The
    zero point of ``how`` stays. A scale is kept at 2^-126 or more.
    """

    fixed = ("low", "high")

    def __init__(self, how: Affine) -> None:
        super().__init__(how, learned=True)

    def forward(self, x: Tensor) -> Tensor:
        """The values of ``x`` on the grid."""
        wide = _float32(x)
        each = max(x.numel(), 1) / self.scale.numel()
        factor = (each * self.grid.high) ** -0.5
        step = self.scale.float().clamp(min=float(SMALLEST_SCALE))
        step = step.detach() + (step - step.detach()) * factor  # the value of the scale, the gradient of factor * scale
        result: Tensor = _OnGrid.apply(wide, step, self.low, self.high)
        return result.to(x.dtype)
