"""Rounding and codes of any format, on arrays of values.

Values travel as float32 or float64 arrays that hold representable numbers, codes as unsigned integers. Every function
takes whatever numpy reads as an array of numbers (torch CPU tensors too), broadcasts, and returns a new array, or
fills ``out``. float16 and integer arguments come back as float32, float32 as float32 where the format fits into it.

Common arguments:

* ``fmt``: a name ("bf16") or a :class:`~fplab.formats.Format`.
* ``rounding``: "rne", "rna", "rtz", "rtp", "rtn", "odd" or "stochastic" (which needs ``seed``).
* ``overflow``: "inf", "saturate", "nan", or None for the format's own.
* ``subnormals``: True keeps them; "flush_inputs" takes subnormal operands for zero, "flush_outputs" makes results
  that are tiny after rounding zero, False does both. An operand is subnormal in the format it comes from: in
  ``quantize`` and ``encode`` its float32 or float64, in :func:`convert` ``src``, in arithmetic ``fmt``.
* ``nan``: what a NaN becomes in a format without one: "zero", "max", or None for an error.
* ``flags=True``: also returns uint8 IEEE flags: 16 invalid, 8 divide by zero, 4 overflow, 2 underflow, 1 inexact.
* ``strict=True``: operands that the format cannot represent are an error; by default they are rounded to nearest first.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from . import uncompiled
from .arrays import Values, check_out, code_dtype, values, widened
from .arrays import codes as read_codes
from .errors import LabError, quotes_call, summary
from .formats import Format, FormatLike, Overflow, Rounding, named
from .kernels import convert as loops
from .kernels.rounding import TO_NAN, Options, stream_keys
from .plans import RANDOM, Fast, carrier, carrier_dtype, fast, layout, options, seed_bits
from .threads import split

Array = np.ndarray[Any, Any]
PAST_CACHE = 1 << 20  # elements from which results are written past the cache
PART = 1 << 13  # elements of float64 that are rounded at a time
NO_FLAGS = np.empty(0, np.uint8)
NO_SEED = np.uint64(0)
NO_KEYS = np.uint32(0), np.uint32(0)  # of a rounding that draws nothing


def bits_of(x: Array) -> Array:
    """A float array's codes, as a view."""
    return x.view(np.uint32 if x.dtype == np.float32 else np.uint64)


def shaped(result: Array, shape: tuple[int, ...]) -> Any:
    """A flat result at its shape; a scalar for a scalar, as numpy's functions do."""
    return result[0] if shape == () else result.reshape(shape)


def refuse_nan(offender: int, fmt: Format) -> None:
    """An error for the first element that became a NaN the format does not have."""
    if offender >= 0:
        raise LabError(
            f'element {offender} gives NaN, and {fmt.name} has none; pass nan="zero" or nan="max" to replace it.'
        )


def destination(out: Any, shape: tuple[int, ...], dtype: Any, *sources: Array) -> Array:
    """A flat array to compute into: ``out`` itself where that is safe."""
    if out is None:
        return np.empty(int(np.prod(shape)), dtype)
    out = check_out(out, shape, dtype)
    if not out.flags.c_contiguous or not out.flags.aligned:
        return np.empty(out.size, dtype)
    flat: Array = out.reshape(-1)
    for source in sources:  # in place is safe; an overlap that is shifted or of another element size is not
        in_place = flat.ctypes.data == source.ctypes.data and flat.itemsize == source.itemsize
        if not in_place and np.may_share_memory(flat, source):
            return np.empty(out.size, dtype)
    return flat


def finish(flat: Array, out: Any, shape: tuple[int, ...]) -> Any:
    """The result at its shape, copied to ``out`` where it was not computed there."""
    if out is None:
        return shaped(flat, shape)
    if flat.ctypes.data != out.ctypes.data or not out.flags.c_contiguous:
        out[...] = flat.reshape(shape)
    return out


def head(out: Array) -> int:
    """How many 4-byte elements of an array come before a 64-byte boundary."""
    return (-out.ctypes.data % 64) // 4


def _round_float64(x: Array, out: Array, loop: Fast) -> None:
    """float64 rounded by a fast kernel for float32, in parts that stay in the cache.

    What is beyond float32 becomes its largest number on the way, which need not overflow where the true one does.
    """
    kernel, spec = loop

    def run(a: int, b: int) -> None:
        for start in range(a, b, PART):
            part = x[start : min(start + PART, b)]
            bits = np.empty(part.size, np.uint32)
            loops.to_odd(part, bits)
            kernel(bits, bits, spec, 0, *NO_KEYS, head(bits), False)
            out[start : start + part.size] = bits.view(np.float32)

    split(run, x.size, unit=1024)


def round_into(x: Array, out: Array, fmt: Format, opt: Options, seed: np.uint64) -> None:
    """Round the flat float array ``x`` to ``fmt`` into ``out``: fast where there is a fast way, else generally."""
    if x.size <= uncompiled.AT_ONCE and uncompiled.answers(x.size, opt):
        refuse_nan(uncompiled.quantize(bits_of(x), bits_of(out), carrier(x.dtype), fmt, carrier(out.dtype), opt), fmt)
        return
    double = x.dtype == np.float64 and fmt.significand_bits <= 22 and opt.mode not in RANDOM
    double = double and (opt.overflow != TO_NAN or fmt.emax < 127)
    loop = fast(fmt, opt) if (double or x.dtype == out.dtype == np.float32) and x.flags.aligned else None
    if loop and fmt.nan_code is None and np.isnan(x).any():
        loop = None
    if not loop:
        source, to = carrier(x.dtype), carrier(out.dtype)
        bits, target = bits_of(x), bits_of(out)

        def general(a: int, b: int) -> int:
            at: int = loops.quantize(bits[a:b], target[a:b], layout(source), layout(fmt), layout(to), opt, a, seed)
            return at if at < 0 else at + a

        offenders = [at for at in split(general, x.size) if at >= 0]
        refuse_nan(min(offenders, default=-1), fmt)
        return
    if double:
        _round_float64(x, out, loop)
    else:
        kernel, spec = loop
        bits, target = x.view(np.uint32), out.view(np.uint32)
        past_cache, draws = x.size >= PAST_CACHE, opt.mode in RANDOM

        def run(a: int, b: int) -> None:
            while a < b:  # the keys of a random stream hold for 2**32 elements
                stop = min(b, (a | 0xFFFFFFFF) + 1)
                keys: Any = NO_KEYS
                if draws:  # as ints they would take another kernel
                    keys = map(np.uint32, stream_keys(seed, np.uint64(a >> 32)))
                kernel(bits[a:stop], target[a:stop], spec, a & 0xFFFFFFFF, *keys, head(target[a:]), past_cache)
                a = stop

        split(run, x.size, unit=1024)
    if not fmt.has_negative_zero:
        out += 0  # the loops keep the sign of a zero


@quotes_call
def quantize(
    x: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, out: Array | None = None,
) -> Any:  # fmt: skip
    """Round values to a format's representable values (arguments: see the module).

    >>> float(quantize(0.1, "bf16"))
    0.10009765625
    >>> quantize([448.0, 464.0, 465.0], "e4m3")
    array([448., 448.,  nan])
    """
    form, v = named(fmt), values(x)
    opt = options(form, rounding, overflow, subnormals, nan)
    seed64 = seed_bits(opt.mode, seed) if opt.mode in RANDOM else NO_SEED
    dtype = carrier_dtype(form, v.narrow)
    flat = np.empty(v.flat.size, dtype) if out is None else destination(out, v.shape, dtype, v.flat)
    round_into(v.flat, flat, form, opt, seed64)
    return shaped(flat, v.shape) if out is None else finish(flat, out, v.shape)


def _encode(x: Array, fmt: Format, opt: Options, seed: np.uint64, flags: Array = NO_FLAGS) -> Array:
    """The codes of a flat array of carrier values."""
    result = np.empty(x.size, code_dtype(fmt.bits))
    source, bits = carrier(x.dtype), bits_of(x)
    if uncompiled.answers(x.size, opt):
        refuse_nan(uncompiled.convert(bits, result, flags, source, fmt, opt), fmt)
        return result

    def run(a: int, b: int) -> int:
        part = flags[a:b] if flags.size else flags
        at: int = loops.convert(bits[a:b], result[a:b], part, layout(source), layout(fmt), opt, a, seed)
        return at if at < 0 else at + a

    offenders = [at for at in split(run, x.size) if at >= 0]
    refuse_nan(min(offenders, default=-1), fmt)
    return result


@quotes_call
def encode(
    x: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None,
) -> Any:  # fmt: skip
    """Round values to a format and give their codes: uint8, uint16, uint32 or uint64, by the format's width.

    A NaN keeps its sign and the top of its payload, and becomes quiet.

    >>> hex(encode(1.0, "fp16"))
    '0x3c00'
    """
    form, v = named(fmt), values(x)
    opt = options(form, rounding, overflow, subnormals, nan)
    return shaped(_encode(v.flat, form, opt, seed_bits(opt.mode, seed)), v.shape)


@quotes_call
def decode(codes: Any, fmt: FormatLike, dtype: Any = None) -> Any:
    """The values of codes, exact; signalling NaNs stay signalling.

    ``dtype``: float32 (the default where it holds the format) or float64.

    >>> decode([0x3C00, 0x0001], "fp16")
    array([1.0000000e+00, 5.9604645e-08], dtype=float32)
    """
    form = named(fmt)
    flat, shape = read_codes(codes, form.bits)
    try:
        to = np.dtype(carrier_dtype(form, narrow=True) if dtype is None else dtype)
    except Exception:  # whatever an object with a dtype of its own raises
        raise LabError(f"dtype={summary(dtype)} is no dtype; allowed: float32, float64.") from None
    if to not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise LabError(f"dtype={to} cannot carry values; allowed: float32, float64.")
    if to == np.float32 and not form.fits_float32:
        raise LabError(f"float32 does not hold every value of {form.name}; pass dtype=np.float64.")
    result = np.empty(flat.size, to)
    target = bits_of(result)
    if uncompiled.answers(flat.size):
        uncompiled.decode(flat, target, form, carrier(to))
    elif form.bits <= 16 and flat.size >= 1 << form.bits >> 2:
        table = _decoded(form, to)

        def look_up(a: int, b: int) -> None:
            target[a:b] = table[flat[a:b]]

        split(look_up, flat.size)
    else:
        split(lambda a, b: loops.decode(flat[a:b], target[a:b], layout(form), layout(carrier(to))), flat.size)
    return shaped(result, shape)


@lru_cache(maxsize=16)
def _decoded(form: Format, to: np.dtype[Any]) -> Array:
    """The bits of every code's value: looked up in a tenth of the time that decoding takes."""
    codes = np.arange(1 << form.bits, dtype=np.uint32)
    words = np.empty(codes.size, f"u{to.itemsize}")
    loops.decode(codes, words, layout(form), layout(carrier(to)))
    return words


@quotes_call
def convert(
    x: Any, src: FormatLike, dst: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, flags: bool = False,
    strict: bool = False,
) -> Any:  # fmt: skip
    """Values of the format ``src`` rounded to the format ``dst``; with ``flags`` also IEEE flags, as uint8.

    Unlike :func:`quantize` this knows the source: its subnormals are the ones flushed, its signalling NaNs raise.
    """
    source, target, v = named(src), named(dst), values(x)
    opt = options(target, rounding, overflow, subnormals, nan)
    seed64 = seed_bits(opt.mode, seed)
    if strict:
        demand_representable([v], source)
    entering = _encode(v.flat, source, options(source), np.uint64(0))
    result = np.empty(v.flat.size, code_dtype(target.bits))
    raised = np.zeros(v.flat.size if flags else 0, np.uint8)
    signalling = _is_signalling(v.flat)
    to = carrier_dtype(target, v.narrow)
    wide = np.empty(v.flat.size, to)
    if uncompiled.answers(v.flat.size, opt):
        refuse_nan(uncompiled.convert(entering, result, raised, source, target, opt), target)
        uncompiled.decode(result, bits_of(wide), target, carrier(to))
    else:
        refuse_nan(loops.convert(entering, result, raised, layout(source), layout(target), opt, 0, seed64), target)
        loops.decode(result, bits_of(wide), layout(target), layout(carrier(to)))
    if flags:
        raised[signalling] |= 16
        return shaped(wide, v.shape), shaped(raised, v.shape)
    return shaped(wide, v.shape)


def _is_signalling(x: Array) -> Array:
    """Which values are signalling NaNs, which encoding makes quiet."""
    bits = bits_of(x)
    quiet = bits.dtype.type(1 << (22 if x.dtype == np.float32 else 51))
    return np.asarray(np.isnan(x) & ((bits & quiet) == 0))


def demand_representable(operands: list[Values], fmt: Format) -> None:
    """strict=True: an error that names the first operand the format cannot represent."""
    for number, v in enumerate(operands):
        wide, rounded = widened(v.flat), np.empty(v.flat.size, np.float64)
        round_into(wide, rounded, fmt, options(fmt, nan="zero"), np.uint64(0))
        differ = rounded != wide
        differ &= ~np.isnan(wide) if fmt.has_nan else True
        if differ.any():
            at = int(np.flatnonzero(differ)[0])
            element = f"element {at}" if v.shape else "it"
            raise LabError(
                f"operand {number}: {element} is {float(v.flat[at])!r}, which {fmt.name} cannot represent "
                f"(nearest: {float(rounded[at])!r}); pass strict=False to round operands first."
            )
