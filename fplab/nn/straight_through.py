"""Rounding a tensor to any format inside a computation, with a gradient that passes straight through.

The derivative of rounding is zero almost everywhere, and a network that rounds could learn nothing from it. The
straight-through estimator takes the rounding for the identity instead (Bengio, Léonard and Courville 2013,
arXiv 1308.3432), which is also what a cast to a narrow dtype does in torch.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import floats, formats
from ..errors import LabError, quotes_call
from ..formats import Format, FormatLike, Overflow, Rounding
from ..plans import options, seed_bits
from .bits import FORMATS, array, holds_values, local

CARRIERS = {dtype: FORMATS[dtype] for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
_BACKWARD = 0x9E3779B97F4A7C15  # makes the stream of the backward pass another one than the forward pass's


WITNESSES: list[Callable[[torch.Tensor, torch.Tensor, str], None]] = []
"""What receives each rounding by the lab's own kernels, which torch does not see: a tensor, it rounded, the format."""


@dataclass(frozen=True)
class Cast:
    """One rounding: all arguments of :func:`fplab.quantize` but the values. ``fmt=None`` leaves values alone."""

    fmt: Format | None
    rounding: Rounding = Rounding.RNE
    overflow: Overflow | None = None
    subnormals: bool | str = True
    seed: int | None = None
    nan: str | None = None

    def __post_init__(self) -> None:
        if self.fmt is not None:
            seed_bits(options(self.fmt, self.rounding, self.overflow, self.subnormals, self.nan).mode, self.seed)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The values of a tensor rounded, without a gradient; a new tensor of its dtype, or itself for ``fmt=None``."""
        if self.fmt is None:
            return x
        demand_carrier(x.dtype, self.fmt)
        rounding, plain = (self.rounding, self.overflow, self.subnormals), local(x).detach()
        given = array(plain) if plain.dtype in (torch.float32, torch.float64) and plain.device.type == "cpu" else plain
        values = floats.quantize(given, self.fmt, *rounding, seed=self.seed, nan=self.nan)
        result = torch.as_tensor(values).to(x.dtype)
        if hasattr(x, "to_local"):
            from torch.distributed.tensor import DTensor  # loaded already, as x is one

            spread: Any = x
            return DTensor.from_local(result, spread.device_mesh, spread.placements, shape=x.shape, stride=x.stride())
        for witness in WITNESSES:
            witness(x, result, self.fmt.name)
        return result


def holds(carrier: Format, fmt: Format) -> bool:
    """Whether every value of ``fmt`` is one of ``carrier``."""
    lowest, floor = (f.emin - f.fraction_bits for f in (fmt, carrier))
    return fmt.fraction_bits <= carrier.fraction_bits and lowest >= floor and fmt.max <= carrier.max


def demand_carrier(dtype: torch.dtype, fmt: Format) -> None:
    """An error unless a tensor of ``dtype`` can carry values of ``fmt``."""
    if dtype not in CARRIERS:
        raise LabError(f"a {dtype} tensor cannot be rounded; allowed: {', '.join(map(str, CARRIERS))}.")
    if not holds(formats.get(CARRIERS[dtype]), fmt):
        raise LabError(f"a {dtype} tensor does not hold every value of {fmt.name}; pass one of torch.float32 or wider.")


class _StraightThrough(torch.autograd.Function):
    """Forward rounds with one cast, backward with another; the backward pass can be differentiated again."""

    @staticmethod
    def forward(x: torch.Tensor, cast: Cast, backward: Cast) -> torch.Tensor:
        return x.clone() if cast.fmt is None else cast(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, Cast, Cast], output: torch.Tensor) -> None:
        ctx.cast = inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        return straight_through(gradient, ctx.cast, Cast(None)), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0].clone()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, cast: Cast, backward: Cast) -> Any:
        return straight_through(x, cast, backward), in_dims[0]  # element by element, so the batch is like any axis


def straight_through(x: torch.Tensor, forward: Cast, backward: Cast) -> torch.Tensor:
    """``x`` rounded by ``forward``; a gradient that comes back is rounded by ``backward``."""
    if forward.fmt is None and backward.fmt is None:
        return x
    result: torch.Tensor = _StraightThrough.apply(x, forward, backward)
    return result


@quotes_call
def quantize(
    tensor: torch.Tensor, fmt: FormatLike | None, rounding: str | Rounding = "rne", *,
    overflow: str | Overflow | None = None, subnormals: bool | str = True, seed: int | None = None,
    nan: str | None = None, backward: FormatLike | None = None,
) -> torch.Tensor:  # fmt: skip
    """A tensor rounded to a format, in a tensor of its own dtype; the gradient passes straight through.

    ``tensor``: float64, float32, float16 or bfloat16, on the CPU, any shape; its dtype must hold the format's values.
    ``backward``: a format to which the gradient is rounded on its way back, by the same rounding (stochastic rounding
    draws other words there). ``fmt=None`` rounds the gradient alone. The other arguments are those of
    :func:`fplab.quantize`, and the bits are its bits. Works under ``torch.func``; a second derivative is straight
    through as well.

    >>> w = torch.tensor([0.1, 1000.0], requires_grad=True)
    >>> quantize(w, "e4m3", overflow="saturate").tolist()
    [0.1015625, 448.0]
    >>> quantize(w, "e4m3", backward="e5m2").sum().backward()
    >>> w.grad.tolist()
    [1.0, 1.0]
    """
    if not isinstance(tensor, torch.Tensor):
        raise LabError(f"tensor is a {type(tensor).__name__}; pass a torch.Tensor, or call fplab.quantize for arrays.")
    if not (holds_values(tensor) or tensor.is_meta):
        raise LabError("tensor is sparse or nested; dense tensors are rounded.")
    mode = formats.rounding(rounding)
    there = _cast(fmt, mode, overflow, subnormals, seed, nan)
    back = _cast(backward, mode, overflow, subnormals, None if seed is None else operator.index(seed) ^ _BACKWARD, nan)
    for cast in (there, back):
        if cast.fmt is not None:
            demand_carrier(tensor.dtype, cast.fmt)
    return straight_through(tensor, there, back)


def _cast(
    fmt: FormatLike | None, mode: Rounding, overflow: str | Overflow | None, subnormals: bool | str, seed: int | None,
    nan: str | None,
) -> Cast:  # fmt: skip
    """The record of one rounding, every name resolved."""
    if fmt is None:
        return Cast(None)
    form = formats.get(fmt)
    policy = None if overflow is None else formats.overflow(overflow, form)
    return Cast(form, mode, policy, subnormals, seed, nan)
