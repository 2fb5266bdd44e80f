"""The atlas of formats: which numbers each format has, how far apart they lie, where they end, and what 0.1 becomes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import exact
from ...formats import NAMES, TABLE, Format
from ...hardware.cases import Arrays, Case, philox_bits
from ..base import Columns, Tick
from .casts import cases
from .checks import CHECKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGET", "CHECKS", "DIGESTED", "QUESTION", "QUICK", "TITLE", "Params", "gpu_cases", "plot", "run", "table"]

TITLE = "The atlas of formats"
QUESTION = "Which numbers does each format have, how far apart do they lie, and where do they end?"
BUDGET = 6.0

FINFO = (
    "bits", "nexp", "nmant", "minexp", "maxexp", "machep", "negep", "eps", "epsneg", "max", "min", "smallest_normal",
    "smallest_subnormal", "precision", "resolution",
)  # fmt: skip
COUNTS = ("finite_codes", "distinct_values", "inf_codes", "nan_codes")
ENUMERATED = tuple(f.name for f in TABLE if f.bits <= 16)
TENTH = Fraction(1, 10)
SAMPLE_KEY = 20201


@dataclass(frozen=True)
class Params:
    """``sample``: how many float32 patterns are cast. ``stride``: every such 16-bit code or boundary is used."""

    sample: int = 1 << 20
    stride: int = 1


QUICK = Params(sample=1 << 16, stride=31)
DIGESTED = (
    "finfo", "counts", "tenth_code", "tenth_value", "tenth_error", "sample",
    *(f"{kind}_{name}" for name in NAMES for kind in ("exponents", "density", "log2_ulp")),
    *(f"{kind}_{name}" for name in ENUMERATED for kind in ("decoded", "rounded")),
)  # fmt: skip


def run(params: Params, tick: Tick) -> Arrays:
    """The atlas as arrays.

    ``finfo`` float64 (formats, FINFO) and ``counts`` uint64 (formats, COUNTS); for each format ``exponents_``,
    ``density_`` (positive values) and ``log2_ulp_`` by binade, int64; ``tenth_code``, ``tenth_value`` and
    ``tenth_error`` (relative); for formats of at most 16 bits ``decoded_`` (float32 bits of every code), and
    ``rounded_`` (codes of the float32 patterns in ``sample``, to nearest, a NaN as 0 where the format has none).
    """
    from ...floats import decode, encode

    tick(0.0, "properties")
    arrays: Arrays = {
        "finfo": np.array([[float(getattr(f, name)) for name in FINFO] for f in TABLE]),
        "counts": np.array([[getattr(f, name) for name in COUNTS] for f in TABLE], np.uint64),
        "sample": sample(params.sample),
    }
    for fmt in TABLE:
        arrays.update(by_binade(fmt))
    arrays.update(tenth())
    values = arrays["sample"].view(np.float32)
    for i, name in enumerate(ENUMERATED):
        tick(0.2 + 0.8 * i / len(ENUMERATED), f"every code of {name}")
        fmt = TABLE[NAMES.index(name)]
        arrays[f"decoded_{name}"] = decode(np.arange(1 << fmt.bits), name, np.float32).view(np.uint32)
        arrays[f"rounded_{name}"] = encode(values, name, nan=None if fmt.has_nan else "zero")
    tick(1.0, "done")
    return arrays


def by_binade(fmt: Format) -> Arrays:
    """How many positive values a format has in each binade, and the spacing there, from its codes alone."""
    lowest = fmt.emin - (fmt.fraction_bits if fmt.zero else 0)
    exponents = range(lowest, fmt.emax + 1)
    first = [exact.floor_code(Fraction(2) ** e, fmt) for e in exponents]
    return {
        f"exponents_{fmt.name}": np.array(exponents, np.int64),
        f"density_{fmt.name}": np.diff([*first, fmt.max_code + 1]).astype(np.int64),
        f"log2_ulp_{fmt.name}": np.array([max(e, fmt.emin) - fmt.fraction_bits for e in exponents], np.int64),
    }


def tenth() -> Arrays:
    """One tenth, rounded to nearest from the exact 1/10 in every format: code, value, relative error."""
    codes = [exact.round_to(exact.of(TENTH), fmt)[0] for fmt in TABLE]
    values = [exact.decode(code, fmt).value for code, fmt in zip(codes, TABLE, strict=True)]
    return {
        "tenth_code": np.array(codes, np.uint64),
        "tenth_value": np.array([float(v) for v in values]),  # exact: float64 holds every format here
        "tenth_error": np.array([float((v - TENTH) / TENTH) for v in values]),
    }


def sample(n: int) -> np.ndarray:
    """``n`` random float32 patterns; every other one has its exponent drawn into -30..19, where narrow formats live."""
    bits = philox_bits(SAMPLE_KEY, n)
    narrow = bits[1::2]
    field = 97 + (narrow >> np.uint32(23) & np.uint32(0xFF)) % np.uint32(50)
    bits[1::2] = narrow & np.uint32(0x807FFFFF) | field << np.uint32(23)
    return bits


def plot(arrays: Arrays, params: Params) -> Figure:
    """Density, spacing, ranges, and the error of 0.1."""
    from .figure import draw

    return draw(arrays)


def table(arrays: Arrays, params: Params) -> Columns:
    """One row a format."""
    columns: dict[str, list[Any]] = {
        "format": list(NAMES),
        "sign_bits": [int(f.signed) for f in TABLE],
        "exponent_bits": [f.exponent_bits for f in TABLE],
        "fraction_bits": [f.fraction_bits for f in TABLE],
        "bias": [f.bias for f in TABLE],
        "specials": [f.specials.value for f in TABLE],
    }
    for j, name in enumerate(FINFO):
        whole = all(float(v).is_integer() and abs(v) < 2**31 for v in arrays["finfo"][:, j])
        columns[name] = [int(v) if whole else float(v) for v in arrays["finfo"][:, j]]
    for j, name in enumerate(COUNTS):
        columns[name] = [int(v) for v in arrays["counts"][:, j]]
    columns["code_of_0.1"] = [
        f"0x{int(c):0{-(-f.bits // 4)}x}" for c, f in zip(arrays["tenth_code"], TABLE, strict=True)
    ]
    columns["value_of_0.1"] = [float(v) for v in arrays["tenth_value"]]
    columns["relative_error_of_0.1"] = [float(v) for v in arrays["tenth_error"]]
    columns["source"] = [f.source for f in TABLE]
    return columns


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """Casts between all formats that torch has."""
    return cases(params.sample // 4, params.stride)
