"""Where a value lies in a format: its neighbours, the spacing around it, its class."""

from typing import Any

import numpy as np

from .arrays import values, widened
from .errors import quotes_call
from .floats import round_into, shaped
from .formats import FormatLike, get
from .plans import options

CLASSES = ("zero", "subnormal", "normal", "infinite", "nan")


@quotes_call
def neighbours(x: Any, fmt: FormatLike) -> tuple[Any, Any]:
    """The nearest values of a format strictly below and strictly above each x, as float64.

    Beyond the largest finite value there is +infinity, whether or not the format has a code for it; where nothing
    lies below (an unsigned format) or x is NaN, NaN.

    >>> [float(v) for v in neighbours(1.0, "fp16")]
    [0.99951171875, 1.0009765625]
    """
    form, v = get(fmt), values(x)
    x64 = widened(v.flat)
    codes = []
    for toward, mode in ((-np.inf, "rtn"), (np.inf, "rtp")):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            start = np.nextafter(x64, toward)  # nothing of the format lies in between, unless it is this
        side = np.empty_like(x64)
        opt = options(form, mode, "inf" if form.has_infinity else "saturate", nan="zero")
        round_into(start, side, form, opt, np.uint64(0))
        if form.signed and not form.zero:  # rounding keeps the sign of a number that is too small
            side[np.abs(start) < form.smallest_subnormal] = np.copysign(form.smallest_subnormal, toward)
        if toward > 0:
            side[start > form.max] = np.inf
            side[start < form.min] = form.min
        else:
            side[start < form.min] = -np.inf if form.signed else np.nan
        side[np.isnan(x64)] = np.nan
        codes.append(shaped(side, v.shape))
    return codes[0], codes[1]


@quotes_call
def ulp(x: Any, fmt: FormatLike) -> Any:
    """The spacing of a format's values in the binade of each x, as float64; NaN for infinities and NaN.

    Below the smallest normal it is the spacing of the subnormals, beyond the largest value that of the top binade.

    >>> float(ulp(1.0, "bf16"))
    0.0078125
    """
    form, v = get(fmt), values(x)
    finite = np.isfinite(v.flat)
    _, exponent = np.frexp(np.where(finite, v.flat, 0))  # of a signalling NaN it warns, on some CPUs and not on others
    exponent = np.clip(exponent.astype(np.int64) - 1, form.emin, form.emax)
    exponent[v.flat == 0] = form.emin
    spacing = np.ldexp(1.0, exponent - form.fraction_bits)
    spacing[~finite] = np.nan
    return shaped(spacing, v.shape)


@quotes_call
def classify(x: Any, fmt: FormatLike) -> Any:
    """The class of each x once rounded to a format: "zero", "subnormal", "normal", "infinite" or "nan"."""
    form, v = get(fmt), values(x)
    rounded = np.empty(v.flat.size, np.float64)
    round_into(widened(v.flat), rounded, form, options(form, nan="max"), np.uint64(0))
    if not form.has_nan:
        rounded[np.isnan(v.flat)] = np.nan
    size = np.abs(rounded)
    conditions = [rounded == 0, size < form.smallest_normal, np.isinf(rounded), np.isnan(rounded)]
    return shaped(np.select(conditions, ["zero", "subnormal", "infinite", "nan"], "normal"), v.shape)
