"""What users pass as A, B, C and scales, made into what the kernels take, or refused with the reason."""

from typing import Any, NamedTuple

import numpy as np

from ..arrays import Values, values, widened
from ..errors import LabError, unknown
from ..floats import round_into
from ..formats import Format, Rounding, get
from ..plans import options
from ..words import part
from .models import ZERO_EXPONENT, Model

Array = np.ndarray[Any, Any]
CONVERSIONS = {"truncate": Rounding.RTZ, "rna": Rounding.RNA, "rne": Rounding.RNE}


class Scales(NamedTuple):
    """Block scales as significands (float64, NaN for a NaN) and exponents (int32), a zero's as MMA-Sim has it."""

    significands: Array
    exponents: Array


def read(x: Any, name: str, fmt: str, conversion: str | None, strict: bool) -> Array:
    """An operand rounded to its format: float32 (FP64: float64; INT8: int8) at the shape given.

    ``conversion``: how FP32 becomes TF32, "truncate" (or None), "rna" or "rne"; other formats round to nearest, and
    refuse one.
    """
    if conversion is not None and conversion not in CONVERSIONS:
        raise unknown("conversion", conversion, CONVERSIONS)
    if conversion is not None and fmt != "tf32":
        raise LabError(f"conversion={conversion!r} says how FP32 becomes TF32, and {name} is {fmt}; leave it out.")
    v = values(x, name)
    if fmt == "int8":
        return _int8(v, name)
    if fmt == "fp64":
        return widened(v.flat).reshape(v.shape)
    form = get(fmt)
    if not form.has_nan and np.isnan(v.flat).any():
        at = int(np.flatnonzero(np.isnan(v.flat))[0])
        raise LabError(f"{name}: element {at} is NaN, and {form.name} has none.")
    if strict:
        demand(v.flat, name, form)
    if fmt == "tf32":
        source = rounded(v.flat, get("fp32"), Rounding.RNE)
        return rounded(source, form, CONVERSIONS[conversion or "truncate"]).reshape(v.shape)
    return rounded(v.flat, form, Rounding.RNE).reshape(v.shape)


def rounded(flat: Array, form: Format, mode: Rounding) -> Array:
    """A flat float array rounded to a format, as float32."""
    if flat.dtype == np.float32 and form.name == "fp32":
        return flat
    out = np.empty(flat.size, np.float32)
    round_into(flat, out, form, options(form, mode), np.uint64(0))
    return out


ROUND_FIRST = part("; pass strict=False to round operands first")


def demand(flat: Array, name: str, form: Format, remedy: str = ROUND_FIRST) -> None:
    """An error for the first element that is no value of the format."""
    wide, nearest = widened(flat), np.empty(flat.size, np.float64)
    round_into(wide, nearest, form, options(form), np.uint64(0))
    wrong = (nearest != wide) & ~np.isnan(wide)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise LabError(
            f"{name}: element {at} is {float(flat[at])!r}, which {form.name} cannot represent "
            f"(nearest: {float(nearest[at])!r}){remedy}."
        )


def whole_numbers(x: Array, low: int, high: int) -> Array:
    """Which elements are integers from ``low`` to ``high``."""
    inside: Array = (x >= low) & (x <= high)
    whole = x == np.trunc(np.where(inside, x, 0))  # of a signalling NaN trunc would warn
    return np.asarray(inside & whole)


def _int8(v: Values, name: str) -> Array:
    """INT8 operands are never rounded: each must be an integer from -128 to 127."""
    bad = ~whole_numbers(v.flat, -128, 127)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise LabError(
            f"{name}: element {at} is {float(v.flat[at])!r}, which is no INT8; allowed: integers from -128 to 127."
        )
    return v.flat.astype(np.int8).reshape(v.shape)


def spread(x: Array, shape: tuple[int, ...], name: str) -> Array:
    """An array broadcast to a shape."""
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise LabError(f"{name} has shape {x.shape}, which does not broadcast to the result's {shape}.") from None


def nan_bits(model: Model) -> int:
    """The float32 bits of a NaN result: 0x7FFFFFFF, or FP16's 0x7FFF widened."""
    return 0x7FFFFFFF if model.output == "fp32" else 0x7FFFE000


def read_scales(scale: Any, name: str, shape: tuple[int, ...], model: Model) -> Scales | None:
    """Block scales at the shape they must have (None: all 1); None for a model without them."""
    if model.scale is None:
        if scale is not None:
            raise LabError(f"{name} is given, but {model.a} here has no block scales; use inputs such as 'mxfp8_e4m3'.")
        return None
    form, length = get(model.scale[0]), model.scale[1]
    if scale is None:
        return Scales(np.ones(shape), np.zeros(shape, np.int32))
    v = values(scale, name)
    if v.shape != shape:
        raise LabError(f"{name} has shape {v.shape}; it must be {shape}: one scale for {length} elements of k.")
    magnitude = np.abs(widened(v.flat))
    demand(magnitude, name, form, "")
    return taken_apart(magnitude.reshape(shape), form)


def taken_apart(magnitude: Array, form: Format) -> Scales:
    """Scales of block-scaled inputs, float64 magnitudes that their format represents, as kernels take them."""
    finite = np.isfinite(magnitude)
    mantissa, exponent = np.frexp(np.where(finite, magnitude, 0))
    clamped = np.maximum(exponent - 1, form.emin).astype(np.int32)
    clamped[~finite] = 0
    significand = np.where(finite, np.ldexp(mantissa, exponent - clamped), np.nan)
    clamped[magnitude == 0] = ZERO_EXPONENT
    return Scales(significand, clamped)
