"""What the tests of formats, rounding and arithmetic share: formats, inputs by regime, and bits compared."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from prove.grid import Choices, bits_of, covers
from prove.shares import policies

from fplab import exact
from fplab.formats import TABLE, Format, Overflow, Rounding, Specials, get
from fplab.kernels import convert as loops
from fplab.plans import carrier, fast, layout, options

Array = np.ndarray[Any, Any]
FLOATS = (np.float32, np.float64)
FLUSHES: tuple[bool | str, ...] = (True, False, "flush_inputs", "flush_outputs")

# Records nobody ships: each stands for a corner of the format space.
CUSTOM = (
    *map(get, ("binary8p3sf", "binary8p3se", "binary8p1se", "binary6p4ue", "binary6p1ue", "binary7p1uf")),
    Format("unsigned_e5m3", 5, 3, signed=False),
    Format("unsigned_e4m2_no_zero", 4, 2, 7, signed=False, zero=False, specials=Specials.LAST),
    Format("signed_no_zero", 3, 2, 3, zero=False, specials=Specials.NONE),
    Format("e1m5", 1, 5, specials=Specials.NONE),
    Format("e1m2_last", 1, 2, specials=Specials.LAST),
    Format("e4m0", 4, 0, specials=Specials.NONE),  # one significand bit, with zero
    Format("e3m0_last", 3, 0, specials=Specials.LAST),
    Format("e11m4", 11, 4),  # float64's whole range
    Format("e7m4_low", 7, 4, 112),  # values down to float32's lowest normal numbers
    Format("e2m12", 2, 12),
    Format("e5m13", 5, 13),
    Format("e3m28", 3, 28, specials=Specials.LAST),  # 32 bits, more precise than float32
    Format("e8m22", 8, 22),
    Format("unsigned_e2m30", 2, 30, signed=False, specials=Specials.NONE),  # the most precise with arithmetic
)
EVERY = TABLE + CUSTOM
TABLED = tuple(f for f in EVERY if covers(f))
WIDE = tuple(f for f in EVERY if not covers(f))
FP8 = tuple(f for f in TABLE if f.bits == 8)


def raw(key: int, n: int, dtype: Any = np.uint32) -> Array:
    """``n`` random words whose stream is fixed for ever."""
    words = np.random.Philox(key).random_raw(n)
    return words.astype(dtype) if np.dtype(dtype).itemsize == 8 else (words >> np.uint64(16)).astype(dtype)


def random_floats(key: int, n: int, dtype: Any) -> Array:
    """Random bit patterns of a float dtype: every exponent alike, infinities and NaNs among them."""
    return raw(key, n, np.uint32 if dtype == np.float32 else np.uint64).view(dtype)


def combinations(fmt: Format) -> Iterator[tuple[Rounding, Overflow, bool | str]]:
    """Every rounding with every overflow policy and flush mode of a format."""
    return itertools.product(Rounding, policies(fmt), FLUSHES)


def choices(mode: Rounding, policy: Overflow, subnormals: bool | str, nan: str | None = "max") -> Choices:
    """The same options for the grid."""
    return Choices(mode, policy, subnormals in (False, "flush_inputs"), subnormals in (False, "flush_outputs"), nan)


def specials(dtype: Any) -> Array:
    """Zeros, infinities, the carrier's own subnormals and extremes, NaNs quiet and signalling with payloads."""
    finfo = np.finfo(dtype)
    positive = [0.0, finfo.smallest_subnormal, finfo.smallest_normal, finfo.max, np.inf]
    positive += [float(np.nextafter(finfo.smallest_normal, dtype(0))), 3 * float(finfo.smallest_subnormal)]
    unsigned, fraction = (np.uint32, 23) if dtype == np.float32 else (np.uint64, 52)
    top = bits_of(np.array([np.inf], dtype))[0]
    payloads = [1, 1 << (fraction - 1), (1 << fraction) - 1, (1 << (fraction - 1)) - 1, 0b1011 << (fraction - 5), 0x2A]
    nans = (top | np.array(payloads, unsigned)).view(dtype)
    found = np.concatenate([np.array(positive, dtype), nans])
    return both_signs(found)


def both_signs(x: Array) -> Array:
    """x and -x, NaNs' signs included."""
    sign = x.dtype.itemsize * 8 - 1
    flipped = bits_of(x) ^ bits_of(x).dtype.type(1 << sign)
    return np.concatenate([x, flipped.view(x.dtype)])


def around(values: list[float] | Array, dtype: Any) -> Array:
    """Values with their neighbours in a carrier, both signs; those that the carrier does not hold are left out."""
    x64 = np.asarray(values, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        x = x64.astype(dtype)
        x = x[x.astype(np.float64) == x64]
        found = np.concatenate([x, np.nextafter(x, dtype(np.inf)), np.nextafter(x, dtype(0))])
    return both_signs(found[np.isfinite(found)])


def regimes(fmt: Format, dtype: Any, most: int = 1 << 30, key: int = 1) -> Array:
    """Inputs that matter to a rounding: values, midpoints, their neighbours, both ends of the range, specials, noise.

    All codes of a format with at most ``most`` of them, else that many spread over them.
    """
    step = max(1, (fmt.max_code + 1) // most)
    codes = sorted({*range(0, fmt.max_code + 1, step), *range(min(9, fmt.max_code)), fmt.max_code})
    if step > 1:  # the seams between binades
        seams = range(0, fmt.max_code, 1 << fmt.fraction_bits)
        some = list(seams)[:3] + list(seams)[-3:]
        codes = sorted({*codes, *some, *(s + 1 for s in some), *(max(s - 1, 0) for s in some)})
    low = np.array([fmt.magnitude(c) for c in codes])
    high = np.array([float(exact.magnitude_of(c + 1, fmt)) if exact_next(fmt, c) else np.inf for c in codes])
    with np.errstate(over="ignore"):
        middle = low + (high - low) / 2
    quarter = low + (middle - low) / 2
    beyond = [v for v in (2 * fmt.max, 1.5 * fmt.max) if np.isfinite(v)]
    least, lowest = fmt.smallest_normal, fmt.smallest_subnormal
    below = [least * (1 - 2.0 ** -(fmt.significand_bits + 1)), least / 2, lowest / 2, lowest / 4, lowest * 0.75]
    values = np.concatenate([low, middle, quarter, beyond, below])
    scale = 2.0 ** np.clip(np.arange(64) % 16 - 12 + fmt.emin, -1000, 900)
    noise = (1 + raw(key, 64, np.uint64).astype(np.float64) / 2**64) * scale
    patterns = random_floats(key, 2048 if most > 512 else 32, dtype)
    with np.errstate(over="ignore", under="ignore"):
        parts = [around(values[np.isfinite(values)], dtype), specials(dtype), noise.astype(dtype), patterns]
    return np.concatenate(parts)


def exact_next(fmt: Format, code: int) -> bool:
    """Whether the value after a code, an overflow perhaps, fits float64."""
    return code < fmt.max_code or fmt.emax < 1023


def unsigned(x: Array) -> Array:
    """An array's bits as unsigned integers, flat."""
    flat = np.ascontiguousarray(x).reshape(-1)
    return flat.view(f"u{flat.dtype.itemsize}") if flat.dtype.kind in "fib" else flat


def shown(x: Array, at: int) -> str:
    """One element and its bits."""
    return f"{np.asarray(x).reshape(-1)[at]!s} (0x{int(unsigned(x)[at]):0{2 * x.dtype.itemsize}x})"


def assert_same(actual: Any, expected: Any, what: object = "", *inputs: Array) -> None:
    """Equal dtype, shape and bits, or a message with the first difference and the inputs that led to it."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), what
    differ = unsigned(actual) != unsigned(expected)
    if differ.any():
        at = int(differ.argmax())
        given = f" from {', '.join(shown(x, at) for x in inputs)}" if inputs else ""
        raise AssertionError(
            f"{what}: {differ.sum()} of {differ.size} differ, first at {at}: "
            f"got {shown(actual, at)}, expected {shown(expected, at)}{given}"
        )


# --- the routes, called directly ------------------------------------------------------------------------------
def general_quantize(x: Array, fmt: Format, opt: Any, seed: int = 0, start: int = 0, dtype: Any = None) -> Array:
    """Values rounded by the general kernel."""
    out = np.empty(x.size, dtype or (x.dtype if fmt.fits_float32 else np.float64))
    to = layout(carrier(out.dtype))
    loops.quantize(bits_of(x), bits_of(out), layout(carrier(x.dtype)), layout(fmt), to, opt, start, np.uint64(seed))
    return out


def general_encode(x: Array, fmt: Format, opt: Any, seed: int = 0, start: int = 0) -> tuple[Array, Array]:
    """Codes and flags from the general kernel."""
    codes, flags = np.empty(x.size, np.uint64), np.zeros(x.size, np.uint8)
    loops.convert(bits_of(x), codes, flags, layout(carrier(x.dtype)), layout(fmt), opt, start, np.uint64(seed))
    return codes, flags


NO_KEYS = (np.uint32(0), np.uint32(0))


def fast_quantize(x: Array, fmt: Format, opt: Any, keys: tuple[Any, Any] = NO_KEYS, start: int = 0) -> Array | None:
    """Values rounded by the fast kernel, or None where a format has none."""
    found = fast(fmt, opt) if x.dtype == np.float32 else None
    if found is None:
        return None
    kernel, spec = found
    out = np.empty_like(x)
    kernel(bits_of(x), bits_of(out), spec, start, *map(np.uint32, keys), 0, False)
    if not fmt.has_negative_zero:
        out += 0
    return out


def opts(fmt: Format, mode: Any, policy: Any = None, subnormals: bool | str = True, nan: str | None = "max") -> Any:
    """Options as kernels take them."""
    return options(fmt, mode, policy, subnormals, nan)


def fmt_id(fmt: Format | str) -> str:
    """A format as pytest shows it."""
    return get(fmt).name
