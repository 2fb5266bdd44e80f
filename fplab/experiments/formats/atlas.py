"""The atlas as arrays, the casts that a GPU is asked for, and what numpy, ml_dtypes and torch say of a format."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from ... import exact, numeric
from ...formats import NAMES, TABLE, Format, get
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.programs import cast
from ...hardware.tensors import bits, overflow_of, tensor
from ..base import Digested, Tick

FINFO = (
    "bits", "nexp", "nmant", "minexp", "maxexp", "machep", "negep", "eps", "epsneg", "max", "min", "smallest_normal",
    "smallest_subnormal", "precision", "resolution",
)  # fmt: skip
COUNTS = ("finite_codes", "distinct_values", "inf_codes", "nan_codes")
SMALL = tuple(f for f in TABLE if f.bits <= 16)  # every code of which is tried
TENTH = Fraction(1, 10)
BY_BINADE = ("exponents", "density", "log2_ulp")


@dataclass(frozen=True)
class Params:
    """``sample``: how many float32 patterns are cast. ``stride``: every such 16-bit code or boundary is used."""

    sample: int = 1 << 20
    stride: int = 1


@dataclass(frozen=True)
class Atlas:
    """``finfo`` float64 (formats, FINFO) and ``counts`` uint64 (formats, COUNTS); ``sample``: float32 patterns;
    ``tenth_code``, ``tenth_value`` and ``tenth_error`` (relative) by format.

    Beside these, for each format, ``exponents_``, ``density_`` (positive values) and ``log2_ulp_`` by binade, int64;
    for formats of at most 16 bits ``decoded_`` (float32 bits of every code), and ``rounded_`` (codes of the sample, to
    nearest, a NaN as 0 where the format has none).
    """

    params: Params
    finfo: Digested
    counts: Digested
    sample: Digested
    tenth_code: Digested
    tenth_value: Digested
    tenth_error: Digested

    def of(self, kind: str, name: str) -> np.ndarray:
        return np.asarray(getattr(self, f"{kind}_{name}"))

    def values(self, name: str) -> np.ndarray:
        return self.of("decoded", name).view(np.float32)

    def properties(self, name: str, *fields: str) -> list[float]:
        row = self.finfo[NAMES.index(name)]
        return [float(row[FINFO.index(field)]) for field in fields]


_EACH = [f"{kind}_{name}" for name in NAMES for kind in BY_BINADE]
_EACH += [f"{kind}_{fmt.name}" for fmt in SMALL for kind in ("decoded", "rounded")]
Result: type[Atlas] = make_dataclass("Result", [(name, "Digested") for name in _EACH], bases=(Atlas,), frozen=True)


def run(params: Params, tick: Tick) -> Atlas:
    tick(0.0, "properties")
    codes, drawn = [exact.round_to(exact.of(TENTH), fmt)[0] for fmt in TABLE], sample(params.sample)
    tenths = [exact.decode(code, fmt).value for code, fmt in zip(codes, TABLE, strict=True)]
    each: Arrays = {}
    for fmt in TABLE:
        each.update(zip((f"{kind}_{fmt.name}" for kind in BY_BINADE), by_binade(fmt), strict=True))
    for i, fmt in enumerate(SMALL):
        tick(0.2 + 0.8 * i / len(SMALL), f"every code of {fmt.name}")
        each[f"decoded_{fmt.name}"] = numeric.decode(np.arange(1 << fmt.bits), fmt, np.float32).view(np.uint32)
        nan = None if fmt.has_nan else "zero"
        each[f"rounded_{fmt.name}"] = numeric.encode(drawn.view(np.float32), fmt, nan=nan)
    return Result(
        params,
        np.array([[float(getattr(f, name)) for name in FINFO] for f in TABLE]),
        np.array([[getattr(f, name) for name in COUNTS] for f in TABLE], np.uint64),
        drawn,
        np.array(codes, np.uint64),
        np.array([float(v) for v in tenths]),  # exact: float64 holds every format here
        np.array([float((v - TENTH) / TENTH) for v in tenths]),
        **each,
    )


def by_binade(fmt: Format) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exponents of a format's binades, how many positive values lie in each, and log2 of the spacing there.

    From its codes alone.
    """
    lowest = fmt.emin - (fmt.fraction_bits if fmt.zero else 0)
    exponents = np.arange(lowest, fmt.emax + 1)
    first = [exact.floor_code(Fraction(2) ** e, fmt) for e in exponents.tolist()]
    return exponents, np.diff([*first, fmt.max_code + 1]), np.maximum(exponents, fmt.emin) - fmt.fraction_bits


def sample(n: int) -> np.ndarray:
    """``n`` random float32 patterns; every other one has its exponent drawn into -30..19, where narrow formats live."""
    drawn = philox_bits(20201, n)
    narrow = drawn[1::2]
    field = 97 + (narrow >> np.uint32(23) & np.uint32(0xFF)) % np.uint32(50)
    drawn[1::2] = narrow & np.uint32(0x807FFFFF) | field << np.uint32(23)
    return drawn


# --- what a GPU must compute: casts between all formats that torch has, every code and every boundary -----------
CAST = ("fp32", "fp16", "bf16", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0")
INFINITY_BITS = 0x7F800000
SPECIAL = np.array(
    [0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, INFINITY_BITS, 0x7F800001, 0x7FA00000, 0x7FC00000, 0x7FFFFFFF], np.uint32
)  # zero, subnormals, the smallest normal, the largest, infinity, signalling and quiet NaNs


def cases(params: Params) -> Iterator[Case]:
    """A case a source format, with an output for every other format.

    Sources of at most 16 bits give all their codes; float32 gives :func:`float32_sample`.
    """
    for source in CAST:
        wide = partial(float32_sample, params.sample // 4, params.stride)
        inputs = wide if source == "fp32" else partial(_codes, source)
        targets = {target: target for target in CAST if target != source}
        yield Case(f"casts-from-{source}", inputs, partial(casts, source), partial(expected, source), targets)


def every_code(name: str) -> np.ndarray:
    return np.arange(1 << get(name).bits, dtype=np.uint32).astype(np.uint8 if get(name).bits <= 8 else np.uint16)


def _codes(source: str) -> Arrays:
    return {"codes": every_code(source)}


def float32_sample(random: int, stride: int) -> Arrays:
    """Boundaries of every narrower format with their neighbours, specials, and ``random`` random patterns.

    Of the boundaries of 16-bit formats every ``stride``-th is taken, of 8-bit formats all.
    """
    near = np.unique(np.concatenate([*(boundaries(get(name), stride) for name in CAST[1:]), SPECIAL]))
    patterns = np.concatenate([near, near | np.uint32(0x80000000), philox_bits(20202, random)])
    return {"codes": patterns.astype(np.uint32)}


def boundaries(fmt: Format, stride: int) -> np.ndarray:
    """float32 bits of a format's values, the midpoints between them (one beyond the largest too), and neighbours."""
    codes = np.arange(0, fmt.max_code + 2, stride if fmt.bits > 8 else 1, dtype=np.int64)
    if fmt.bits > 8:  # the ends, whatever the stride
        ends = [0, 1, 2, (1 << fmt.fraction_bits) - 1, 1 << fmt.fraction_bits, fmt.max_code - 1, fmt.max_code]
        codes = np.union1d(codes, ends)
    low, high = magnitudes(codes, fmt), magnitudes(codes + 1, fmt)
    points = np.concatenate([low, (low + high) / 2])
    points = points[points < 2.0**128].astype(np.float32).view(np.uint32).astype(np.int64)  # exact: at most 12 bits
    around = np.concatenate([points - 1, points, points + 1])
    return np.unique(around[(around >= 0) & (around <= INFINITY_BITS)]).astype(np.uint32)


def magnitudes(codes: np.ndarray, fmt: Format) -> np.ndarray:
    """The values of magnitude codes as float64, as if the exponent field had no upper end."""
    field, fraction = codes >> fmt.fraction_bits, codes & ((1 << fmt.fraction_bits) - 1)
    subnormal = (field == 0) & fmt.zero
    significand = np.where(subnormal, fraction, fraction + (1 << fmt.fraction_bits))
    exponent = np.where(subnormal, 0, field - int(fmt.zero)) + fmt.emin - fmt.fraction_bits
    values: np.ndarray = np.ldexp(significand.astype(np.float64), exponent)
    return values


def casts(source: str, inputs: Arrays, device: str) -> Arrays:
    """What torch makes of the codes on a device."""
    given = tensor(inputs["codes"], source, device)
    return {target: bits(cast(given, target)) for target in CAST if target != source}


def expected(source: str, inputs: Arrays, meta: Meta) -> Arrays:
    """What the lab says that the torch of ``meta`` makes of the codes."""
    values = np.asarray(numeric.decode(inputs["codes"], source, np.float32))
    return {target: torch_cast(values, target, str(meta["torch"])) for target in CAST if target != source}


def torch_cast(values: np.ndarray, target: str, version: str) -> np.ndarray:
    """float32 values as codes of ``target``, as torch of that version casts them."""
    if target == "e8m0":
        return torch_e8m0(values.view(np.uint32))
    return np.asarray(numeric.encode(values, target, overflow=overflow_of(target, version)))


def torch_e8m0(patterns: np.ndarray) -> np.ndarray:
    """float32 bits as torch's E8M0 codes. Three things differ from a rounding to nearest of the number itself.

    The sign is dropped (-1 gives 127) and zero gives 2^-127, where the lab says NaN for both: E8M0 has neither. And
    what lies strictly between 2^-127 and 1.5 * 2^-127 goes up to 2^-126, not down to the nearer 2^-127 (ml_dtypes
    does that too), because float32 holds it as a subnormal: its highest bit is read as the first bit to be rounded.
    """
    field = (patterns >> np.uint32(23)) & np.uint32(0xFF)
    rest = patterns & np.uint32(0x007FFFFF)
    half = np.uint32(0x00400000)
    up = (rest > half) | ((rest == half) & (field > 0))
    return np.where(field == 255, field, field + up).astype(np.uint8)


# --- what numpy, ml_dtypes and torch say of a format --------------------------------------------------------------
NUMPY = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
ML_DTYPES = {
    "bf16": "bfloat16", "e5m2": "float8_e5m2", "e4m3": "float8_e4m3fn", "e4m3_ieee": "float8_e4m3",
    "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz", "e3m4": "float8_e3m4", "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn", "e2m1": "float4_e2m1fn", "e8m0": "float8_e8m0fnu",
}  # fmt: skip


class MissingError(Exception):
    """A library that is not installed, so that there is nothing to compare with."""


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingError(name) from None


def dtype_of(name: str) -> Any:
    """numpy's or ml_dtypes' dtype of a format."""
    return np.dtype(NUMPY[name] if name in NUMPY else getattr(imported("ml_dtypes"), ML_DTYPES[name]))


def decoded_by_torch(name: str) -> np.ndarray:
    """float32 bits of every code of a format, as torch reads it."""
    imported("torch")
    return bits(cast(tensor(every_code(name), name, "cpu"), "fp32"))


def decoded_by_numpy(name: str) -> np.ndarray:
    """float32 bits of every code of a format of at most 16 bits, as numpy with ml_dtypes reads it."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.asarray(every_code(name).view(dtype_of(name)), np.float32).view(np.uint32)


def rounded_by_numpy(values: np.ndarray, name: str) -> np.ndarray:
    """float32 values as codes of a format, as numpy or ml_dtypes casts them."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(values, dtype_of(name)).view(every_code(name).dtype)
