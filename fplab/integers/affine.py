"""Scale and zero point: choosing them, quantising with them and back.

Every operation is one in FP32 with its one rounding, in the order that torch's ``fake_quantize`` has::

    inverse = 1 / scale;   code = clip(rint(x * inverse) + zero_point);   value = (code - zero_point) * scale

so the zero point comes after the rounding, ties are to even, and a tie is one of the product ``x * inverse``: next to
the tie of the exact quotient it can fall either way. NaN and infinity are errors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import as_array, values
from ..errors import LabError, one_of, quotes_call
from ..words import part
from .grids import Grid, GridLike, get

Array = np.ndarray[Any, Any]
ALONG = ("tensor", "row", "column", "channel")
SMALLEST_SCALE = np.float32(2.0**-126)  # its inverse is finite, and that of a smaller one may not be


@dataclass(frozen=True, eq=False)
class Affine:
    """How a tensor becomes integers. ``scale``: float32, positive, ``zero_point``: int32; both broadcast to it.

    ``grid``: a :class:`~fplab.integers.Grid` or its name.
    """

    scale: Array
    zero_point: Array
    grid: Grid

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", get(self.grid))
        with np.errstate(over="ignore", invalid="ignore"):
            scale = values(self.scale, "scale").flat.astype(np.float32).reshape(np.shape(self.scale))
        zero = as_array(self.zero_point, "zero_point")
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            possible = (scale > 0) & np.isfinite(scale) & np.isfinite(np.float32(1) / scale)
        if not possible.all():
            bad = float(scale[~possible].flat[0])
            raise LabError(f"scale {bad!r} is not possible; allowed: {float(SMALLEST_SCALE)} to 3.4e38.")
        if zero.dtype.kind not in "iu" or ((zero < self.grid.low) | (zero > self.grid.high)).any():
            raise LabError(
                f"zero points must be integers of the grid {self.grid.name}, {self.grid.low} to {self.grid.high}."
            )
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "zero_point", zero.astype(np.int32))


def floats(x: Any, name: str = "x") -> Array:
    """An argument as a finite float32 array at its shape (float64 is rounded to FP32 first)."""
    v = values(x, name)
    with np.errstate(over="ignore", invalid="ignore"):
        flat = v.flat.astype(np.float32, copy=False)
    if not np.isfinite(flat).all():
        at = int(np.flatnonzero(~np.isfinite(flat))[0])
        raise LabError(
            f"{name}: element {at} is {float(v.flat[at])!r}, and integers have neither NaN nor infinity; "
            "clean the tensor first."
        )
    return flat.reshape(v.shape)


def axes(along: str, dimensions: int) -> tuple[int, ...] | None:
    """The axes that share one scale: all, the last of a "row", the last but one of a "column", all but a "channel"."""
    one_of("granularity", along, ALONG)
    if along == "tensor" or dimensions == 0:
        return None
    if along == "column" and dimensions < 2:
        raise LabError(f'along="column" needs a matrix; this has {dimensions} dimension.')
    return {"row": (-1,), "column": (-2,), "channel": tuple(range(1, dimensions))}[along]


@quotes_call
def absmax(x: Any, along: str = "tensor") -> Array:
    """The largest magnitude of a tensor, or of each "row" (last axis), "column" (last but one) or "channel" (axis 0).

    float32, with the axes that were reduced kept as 1 (a number for the whole tensor), so that it broadcasts.

    >>> absmax([[1.0, -4.0], [2.0, 3.0]], "row").tolist()
    [[4.0], [3.0]]
    """
    v = floats(x)
    if not v.size:
        raise LabError(f"x has shape {v.shape} and no element, hence no maximum.")
    over = axes(along, v.ndim)
    return np.asarray(np.max(np.abs(v), axis=over, keepdims=over is not None))


@quotes_call
def extremes(x: Any, along: str = "tensor") -> tuple[Array, Array]:
    """The smallest and the largest value, shaped as :func:`absmax`."""
    v = floats(x)
    if not v.size:
        raise LabError(f"x has shape {v.shape} and no element, hence no range.")
    over = axes(along, v.ndim)
    keep = over is not None
    return np.asarray(np.min(v, axis=over, keepdims=keep)), np.asarray(np.max(v, axis=over, keepdims=keep))


@quotes_call
def symmetric(amax: Any, grid: GridLike = "int8") -> Affine:
    """Zero point 0 and ``scale = amax / high``: the largest magnitude becomes the largest code.

    ``amax``: non-negative float32 of any shape. A scale below 2^-126 (an amax of zero too) is raised to that, so that
    its inverse is finite: such a tensor becomes codes of zero, or of a few steps.

    >>> symmetric(np.float32(6.35)).scale
    array(0.05, dtype=float32)
    """
    form, most = get(grid), floats(amax, "amax")
    if (most < 0).any():
        raise LabError(f"amax={float(most[most < 0].flat[0])!r} is negative; it is the largest magnitude.")
    scale = np.maximum(most / np.float32(form.high), SMALLEST_SCALE)
    return Affine(scale, np.zeros(scale.shape, np.int32), form)


@quotes_call
def affine(low: Any, high: Any, grid: GridLike = "int8_full") -> Affine:
    """``scale = (high - low) / steps``, and the zero point at which ``low`` becomes the least code.

    The range is first stretched to hold zero, which must be a code (padding and ReLU are zeros). ``low``, ``high``:
    float32 of one shape.

    >>> how = affine(-1.0, 3.0, "uint8")
    >>> int(how.zero_point), quantize([-1.0, 0.0, 3.0], how).tolist()
    (64, [0, 64, 255])
    """
    form, least, most = get(grid), floats(low, "low"), floats(high, "high")
    if least.shape != most.shape or (least > most).any():
        raise LabError("low and high must have one shape, and low must nowhere exceed high.")
    least, most = np.minimum(least, np.float32(0)), np.maximum(most, np.float32(0))
    with np.errstate(over="ignore"):
        width = most - least
    if not np.isfinite(width).all():
        raise LabError("high - low overflows FP32; scale the tensor down first.")
    scale = np.maximum(width / np.float32(form.steps), SMALLEST_SCALE)
    zero = np.clip(form.low - np.rint(least / scale), form.low, form.high)
    return Affine(scale, zero.astype(np.int32), form)


@quotes_call
def scheme(x: Any, grid: GridLike = "int8", along: str = "tensor", zero_point: bool = False) -> Affine:
    """The :class:`Affine` of a tensor's own range: :func:`symmetric` of its absmax, or with a zero point.

    A grid without a sign refuses negative values where there is no zero point.
    """
    if not zero_point:
        demand_sign(floats(x), get(grid))
    return affine(*extremes(x, along), grid) if zero_point else symmetric(absmax(x, along), grid)


def demand_sign(x: Array, grid: Grid) -> None:
    """An error for negative values that a grid without a sign would make zero."""
    if not grid.signed and x.size and x.min() < 0:
        raise LabError(
            f"values reach {float(x.min())!r}, and grid {grid.name} has no sign; use a signed one or a zero point."
        )


@quotes_call
def quantize(x: Any, how: Affine) -> Array:
    """Codes of ``x``: int8 (uint8 for an unsigned grid) of its shape, saturated at the ends of the grid.

    >>> quantize([0.5, 1.5, 2.5, 999.0], symmetric(127.0)).tolist()
    [0, 2, 2, 127]
    """
    v, (scale, zero) = floats(x), _fitting(how, x)
    with np.errstate(over="ignore"):  # beyond FP32 is beyond the grid too
        steps = np.rint(v * (np.float32(1) / scale))
    # Clipped before the zero point is added, which FP32 might round; clip(a + z, l, h) = clip(a, l - z, h - z) + z.
    codes = np.clip(steps, how.grid.low - zero, how.grid.high - zero).astype(np.int32) + zero
    return codes.astype(how.grid.dtype)


@quotes_call
def dequantize(codes: Any, how: Affine) -> Array:
    """The values of codes, float32: ``(code - zero_point) * scale``."""
    integers, (scale, zero) = codes_of(codes, "codes"), _fitting(how, codes)
    if integers.size and (integers.min() < how.grid.low or integers.max() > how.grid.high):
        worst = int(integers.min()) if integers.min() < how.grid.low else int(integers.max())
        raise LabError(f"codes hold {worst}; {how.grid.name} is {how.grid.low} to {how.grid.high}.")
    return (integers.astype(np.int32) - zero).astype(np.float32) * scale


def codes_of(x: Any, name: str) -> Array:
    try:
        array = np.asarray(x)
    except ValueError:
        raise LabError(f"{name} is no array of integers; its rows differ in length.") from None
    except Exception:
        array = as_array(x, name)  # which says why it is none
    if array.dtype.kind not in "iu":
        has = "have" if name == "codes" else "has"
        raise LabError(f"{name} {has} dtype {array.dtype}; codes are integers.")
    return array


def _fitting(how: Affine, x: Any) -> tuple[Array, Array]:
    """Scale and zero point, if they broadcast to the tensor's shape."""
    if not isinstance(how, Affine):
        raise LabError(f"how is a {type(how).__name__}; pass what symmetric, affine or scheme returned.")
    shape = np.shape(x)
    for name, value in (("scale", how.scale), (part("zero point"), how.zero_point)):
        try:
            np.broadcast_to(value, shape)
        except ValueError:
            raise LabError(
                f"a {name} of shape {value.shape} does not broadcast to a tensor of shape {shape}."
            ) from None
    return how.scale, how.zero_point
