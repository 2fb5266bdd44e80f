"""IEEE 754 arithmetic and comparison in any format of at most 32 bits, correctly rounded, with flags on request.

The arguments are those of :mod:`fplab.floats`. A NaN result is the canonical quiet NaN. ``flags=True`` returns
``(values, flags)``; tininess is detected after rounding.
"""

from typing import Any

import numpy as np

from . import uncompiled
from .arrays import broadcast, narrow_result, values
from .errors import LabError, quotes_call
from .floats import PAST_CACHE, bits_of, demand_representable, destination, finish, head, refuse_nan, shaped
from .formats import Format, FormatLike, Overflow, Rounding, get
from .kernels import arith, fast_arith
from .plans import FP32, carrier, carrier_dtype, float32_arithmetic, layout, options, seed_bits
from .threads import split

Array = np.ndarray[Any, Any]
AS_HARDWARE = options(FP32)
CHUNK = 1 << 13  # elements whose float64 stays in a core's cache


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32, rounded once, through float64: the product is exact there, and the sum is rounded to odd.

    What is rounded to odd with two bits more, and these are 29, rounds again to what the exact sum does (Boldo and
    Melquiond 2008, Emulation of FMA and correctly rounded sums).
    """
    result = np.empty_like(a)

    def run(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # of a thread of its own
            for at in range(start, stop, CHUNK):
                here = slice(at, min(at + CHUNK, stop))
                product, addend = np.multiply(a[here], b[here], dtype=np.float64), c[here].astype(np.float64)
                total = product + addend
                moved = total - product
                error = (product - (total - moved)) + (addend - moved)  # exact; NaN beside an infinity
                bits = total.view(np.int64)
                even = (np.abs(error) > 0) & (bits & 1 == 0)
                bits += np.where(even, np.where((error > 0) == (total > 0), 1, -1), 0)
                result[here] = total

    split(run, result.size)
    return result


HARDWARE = (np.add, np.subtract, np.multiply, np.divide, np.sqrt, _multiply_add)  # by the kernels' numbers


def _arithmetic_format(fmt: FormatLike) -> Format:
    form = get(fmt)
    if form.bits > 32 or form.significand_bits > 31:
        raise LabError(
            f"{form.name} has {form.bits} bits; arithmetic covers formats of at most 32 "
            "(numpy's own float64 operations are the hardware's)."
        )
    return form


def _operate(
    op: int, operands: tuple[Any, ...], fmt: FormatLike, mode: str | Rounding, policy: str | Overflow | None,
    subnormals: bool | str, seed: int | None, nan: str | None, flags: bool, strict: bool, out: Array | None,
) -> Any:  # fmt: skip
    """Everything the arithmetic functions share."""
    form = _arithmetic_format(fmt)
    opt = options(form, mode, policy, subnormals, nan)
    seed64 = seed_bits(opt.mode, seed)
    read = [values(x, name) for x, name in zip(operands, "abc", strict=False)]
    if strict:
        demand_representable(read, form)
    flats, shape = broadcast(*read)
    dtype = carrier_dtype(form, narrow_result(read))
    result = destination(out, shape, dtype, *flats)
    raised = np.zeros(result.size if flags else 0, np.uint8)
    to_fmt = options(form, policy=policy, nan=nan)
    if uncompiled.answers(result.size, opt):
        source, to = carrier(flats[0].dtype), carrier(dtype)
        given = [bits_of(f) for f in flats]
        refuse_nan(uncompiled.operate(op, given, bits_of(result), raised, source, form, to, to_fmt, opt), form)
        finished = finish(result, out, shape)
        return (finished, shaped(raised, shape)) if flags else finished
    plain = layout(form) == layout(FP32) and opt == AS_HARDWARE and dtype == flats[0].dtype == np.float32
    if plain and not flags:
        result[...] = _by_hardware(op, flats)
        return finish(result, out, shape)
    quick = float32_arithmetic(form, opt) if not flags and op <= arith.DIV else None
    if quick and dtype == np.float32 and flats[0].dtype == np.float32 and all(f.flags.aligned for f in flats):
        _fast_binary(op, flats, result, quick)
        return finish(result, out, shape)
    bits = [bits_of(f) for f in flats] + [np.empty(0, bits_of(flats[0]).dtype)] * (3 - len(flats))
    target = bits_of(result)

    def run(a: int, b: int) -> int:
        parts = [x[a:b] if x.size else x for x in bits]
        at: int = arith.operate(op, *parts, target[a:b], raised[a:b] if flags else raised,
                                layout(carrier(flats[0].dtype)), layout(form), layout(carrier(dtype)), to_fmt, opt, a,
                                seed64)  # fmt: skip
        return at if at < 0 else at + a

    offenders = [at for at in split(run, result.size) if at >= 0]
    refuse_nan(min(offenders, default=-1), form)
    finished = finish(result, out, shape)
    return (finished, shaped(raised, shape)) if flags else finished


def _by_hardware(op: int, flats: list[Any]) -> Array:
    """FP32 results of this processor, each NaN the canonical one."""
    with np.errstate(all="ignore"):
        result: Array = HARDWARE[op](*flats)
    if (nan := np.isnan(result)).any():
        result[nan] = np.nan
    return result


def _fast_binary(op: int, flats: list[Any], result: Array, spec: Any) -> None:
    kernel = (fast_arith.ADD, fast_arith.SUB, fast_arith.MUL, fast_arith.DIV)[op]
    a, b, target = flats[0].view(np.uint32), flats[1].view(np.uint32), result.view(np.uint32)
    past_cache = result.size >= PAST_CACHE

    def run(i: int, j: int) -> None:
        kernel(a[i:j], b[i:j], target[i:j], spec, head(target[i:]), past_cache)

    split(run, result.size, unit=1024)


@quotes_call
def add(
    a: Any, b: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, flags: bool = False,
    strict: bool = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """a + b in a format, rounded once.

    >>> float(add(2048.0, 1.0, "fp16"))
    2048.0
    """
    return _operate(arith.ADD, (a, b), fmt, rounding, overflow, subnormals, seed, nan, flags, strict, out)


@quotes_call
def sub(
    a: Any, b: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, flags: bool = False,
    strict: bool = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """a - b in a format, rounded once."""
    return _operate(arith.SUB, (a, b), fmt, rounding, overflow, subnormals, seed, nan, flags, strict, out)


@quotes_call
def mul(
    a: Any, b: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, flags: bool = False,
    strict: bool = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """a * b in a format, rounded once."""
    return _operate(arith.MUL, (a, b), fmt, rounding, overflow, subnormals, seed, nan, flags, strict, out)


@quotes_call
def div(
    a: Any, b: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, flags: bool = False,
    strict: bool = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """a / b in a format, rounded once; a finite number over zero raises divide by zero."""
    return _operate(arith.DIV, (a, b), fmt, rounding, overflow, subnormals, seed, nan, flags, strict, out)


@quotes_call
def sqrt(
    a: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, flags: bool = False,
    strict: bool = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """The square root in a format, rounded once; of -0 it is -0, of other negatives NaN."""
    return _operate(arith.SQRT, (a,), fmt, rounding, overflow, subnormals, seed, nan, flags, strict, out)


@quotes_call
def fma(
    a: Any, b: Any, c: Any, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None, flags: bool = False,
    strict: bool = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """a * b + c in a format with one rounding, of the exact result."""
    return _operate(arith.FMA, (a, b, c), fmt, rounding, overflow, subnormals, seed, nan, flags, strict, out)


def _compare(op: int, a: Any, b: Any, fmt: FormatLike, subnormals: bool | str, flags: bool, strict: bool) -> Any:
    form = _arithmetic_format(fmt)
    opt = options(form, subnormals=subnormals)
    read = [values(a, "a"), values(b, "b")]
    if strict:
        demand_representable(read, form)
    flats, shape = broadcast(*read)
    answer = np.empty(flats[0].size, np.bool_)
    raised = np.zeros(answer.size if flags else 0, np.uint8)
    given = bits_of(flats[0]), bits_of(flats[1]), answer, raised
    source = carrier(flats[0].dtype)
    if uncompiled.answers(answer.size):
        offender = uncompiled.compare(op, *given, source, form, options(form), opt.daz)
    else:
        offender = arith.compare(op, *given, layout(source), layout(form), options(form), opt.daz)
    if offender >= 0:
        raise LabError(f"element {offender} is NaN, and {form.name} has none.")
    return (shaped(answer, shape), shaped(raised, shape)) if flags else shaped(answer, shape)


@quotes_call
def eq(
    a: Any, b: Any, fmt: FormatLike, subnormals: bool | str = True, *, flags: bool = False, strict: bool = False
) -> Any:
    """a == b; unordered is False, and only a signalling NaN raises invalid."""
    return _compare(arith.EQ, a, b, fmt, subnormals, flags, strict)


@quotes_call
def lt(
    a: Any, b: Any, fmt: FormatLike, subnormals: bool | str = True, *, flags: bool = False, strict: bool = False
) -> Any:
    """a < b; unordered is False, and every NaN raises invalid."""
    return _compare(arith.LT, a, b, fmt, subnormals, flags, strict)


@quotes_call
def le(
    a: Any, b: Any, fmt: FormatLike, subnormals: bool | str = True, *, flags: bool = False, strict: bool = False
) -> Any:
    """a <= b; unordered is False, and every NaN raises invalid."""
    return _compare(arith.LE, a, b, fmt, subnormals, flags, strict)
