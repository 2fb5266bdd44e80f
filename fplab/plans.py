"""Records turned into what kernels take: layouts, options and the constants of the fast paths."""

from functools import lru_cache
from typing import Any

import numpy as np

from .errors import LabError, integer, unknown
from .formats import TABLE, Format, Overflow, Specials, overflow
from .kernels import fast32
from .kernels import rounding as kernel
from .kernels.rounding import Layout, Options
from .roundings import Rounding, rounding, without_kernel

FP32 = next(f for f in TABLE if f.name == "fp32")
FP64 = next(f for f in TABLE if f.name == "fp64")
FLUSH: dict[Any, tuple[int, int]] = {True: (0, 0), False: (1, 1), "flush_inputs": (1, 0), "flush_outputs": (0, 1)}
NAN_RULES = {None: kernel.NAN_ERROR, "zero": kernel.NAN_ZERO, "max": kernel.NAN_MAX}
OVERFLOWS = {Overflow.INF: kernel.TO_INF, Overflow.SATURATE: kernel.TO_MAX, Overflow.NAN: kernel.TO_NAN}
RANDOM = {kernel.MODES.get(mode.value) for mode in Rounding if mode.random}
SPECIALS = {
    Specials.IEEE: kernel.IEEE,
    Specials.LAST: kernel.LAST,
    Specials.NONE: kernel.NONE,
    Specials.NEGATIVE_ZERO: kernel.NEGATIVE_ZERO,
    Specials.SINGLE: kernel.SINGLE,
}
INFINITY_BITS, NAN_BITS = 0x7F800000, 0x7FC00000

Fast = tuple[Any, fast32.Narrow | fast32.Wide]


@lru_cache(maxsize=256)
def layout(fmt: Format) -> Layout:
    """A format as the general kernels see it."""
    sign_shift = fmt.bits - 1 if fmt.signed else -1
    specials, by_code = SPECIALS[fmt.specials], int(fmt.ties_by_code)
    return Layout(fmt.fraction_bits, fmt.emin, int(fmt.zero), fmt.max_code, sign_shift, specials, by_code)


def carrier(dtype: Any) -> Format:
    """The format that a float32 or float64 array's own bits are codes of."""
    return FP32 if np.dtype(dtype) == np.float32 else FP64


def carrier_dtype(fmt: Format, narrow: bool) -> type[np.floating[Any]]:
    """The dtype of values of a format: float32 when asked for and it holds them, else float64."""
    return np.float32 if narrow and fmt.fits_float32 else np.float64


def options(
    fmt: Format, mode: str | Rounding = Rounding.RNE, policy: str | Overflow | None = None,
    subnormals: bool | str = True, nan: str | None = None,
) -> Options:  # fmt: skip
    """The user's choices as integers, or an error that says what is allowed."""
    try:
        return _options(fmt, mode, policy, subnormals, nan)
    except TypeError:  # one of them has no hash, and is no choice
        return _options.__wrapped__(fmt, mode, policy, subnormals, nan)


@lru_cache(maxsize=256, typed=True)  # asked for at every call
def _options(
    fmt: Format, mode: str | Rounding, policy: str | Overflow | None, subnormals: bool | str, nan: str | None
) -> Options:
    if not isinstance(subnormals, (bool, str)) or subnormals not in FLUSH:
        allowed = [f"{k!r}" for k in FLUSH]
        raise LabError(f"subnormals={subnormals!r} is not a choice. Allowed: {', '.join(allowed)}.")
    if nan not in NAN_RULES:
        raise unknown("nan rule", nan, ["zero", "max"])
    daz, ftz = FLUSH[subnormals]
    return Options(_mode(rounding(mode)), OVERFLOWS[overflow(policy, fmt)], daz, ftz, NAN_RULES[nan])


ROUNDINGS = {kernel.MODES[mode.value]: mode for mode in Rounding if mode.value in kernel.MODES}


def rounding_of(opt: Options) -> Rounding:
    """The rounding that kernels know by the number in ``opt``."""
    return ROUNDINGS[opt.mode]


def _mode(mode: Rounding) -> int:
    """The number by which kernels know a rounding."""
    if mode.value not in kernel.MODES:
        raise without_kernel(mode)
    return kernel.MODES[mode.value]


def seed_bits(mode: int, seed: int | None) -> np.uint64:
    """The seed of a stochastic rounding as 64 bits; it must be given, so that every result can be reproduced."""
    if mode not in RANDOM:
        return np.uint64(0)
    if seed is None:
        raise LabError('rounding="stochastic" needs seed=, an integer, so that its result can be reproduced.')
    return np.uint64(integer("seed", seed, 0, 2**64 - 1))


@lru_cache(maxsize=256)
def fast(fmt: Format, opt: Options) -> Fast | None:
    """The fast float32 loop for a format and its constants, or None where only the general path will do.

    A zero keeps its sign, which a format without -0 takes from it.
    """
    p = fmt.significand_bits
    if opt.mode not in fast32.NARROW:
        return None  # a rounding without loops of its own
    if opt.daz or opt.ftz or not (fmt.signed and fmt.zero) or fmt.ties_by_code:
        return None
    largest = _bits(fmt.max) if fmt.fits_float32 else 0
    nan = NAN_BITS if fmt.has_negative_zero else NAN_BITS | 0x80000000  # whose code else were that of -0
    over = (INFINITY_BITS, largest, nan)[opt.overflow]
    stop = largest if opt.overflow == kernel.TO_INF else over
    flip = 0x80000000 if opt.mode == kernel.RTN else 0
    low = (1 << (23 - fmt.fraction_bits)) - 1 if fmt.fraction_bits <= 23 else 0
    keep = 0x7FFFFFFF & ~low if fmt.specials is Specials.IEEE else 0
    # The stochastic loop takes a float32 subnormal for a normal number, which must then be below every 32-bit share.
    lowest = -126 + 32 if opt.mode in RANDOM else -126
    if p <= 22 and fmt.emin - p + 1 >= lowest and fmt.emax <= 103 + p:
        magic = ((24 - p) << 23) + 0x400000
        drop, units = (p - 1) << 23, (2 * 127 + 32 + p - 1) << 23
        spec = fast32.Narrow(_bits(fmt.smallest_normal), magic, drop, units, largest, flip, over, stop, keep, nan)
        return fast32.NARROW[opt.mode], spec
    if fmt.specials is Specials.IEEE and fmt.emin == -126 and fmt.emax == 127 and 1 <= fmt.fraction_bits <= 22:
        return fast32.WIDE[opt.mode], fast32.Wide(23 - fmt.fraction_bits, largest, flip, over, stop, keep, nan)
    return None


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def float32_arithmetic(fmt: Format, opt: Options) -> fast32.Narrow | None:
    """Constants for arithmetic in float32 rounded once more, where that is the right result; else None.

    Sums, products and quotients of p <= 11 bits survive the second rounding (24 >= 2 p + 2), provided that float32
    itself neither overflows nor goes subnormal on the way.
    """
    least = fmt.emin - fmt.fraction_bits
    if opt.mode != kernel.RNE or fmt.significand_bits > 11 or not (fmt.has_nan and fmt.has_negative_zero):
        return None
    if fmt.has_infinity and opt.overflow != kernel.TO_INF:
        return None  # the loop would apply the policy to infinite operands too
    if 2 * fmt.emax + 2 > 127 or 2 * least < -149 or least - fmt.emax - 1 < -126:
        return None
    loop = fast(fmt, opt)
    return loop[1] if loop and isinstance(loop[1], fast32.Narrow) else None
