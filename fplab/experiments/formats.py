"""The atlas of formats: which numbers each format has, how far apart they lie, where they end, and what 0.1 becomes."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import draw, exact, numeric
from ..formats import NAMES, TABLE, get
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import Rounded, cast, program
from ..hardware.tensors import TORCH, bits, overflow_of, tensor
from ..words import COMMA, joined, say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, failed, passed, verdict
from .panels import dots, line, with_
from .quantities import Columns, equal, of

FINFO = (
    "bits", "nexp", "nmant", "minexp", "maxexp", "machep", "negep", "eps", "epsneg", "max", "min", "smallest_normal",
    "smallest_subnormal", "precision", "resolution",
)  # fmt: skip
COUNTS = ("finite_codes", "distinct_values", "inf_codes", "nan_codes")
SMALL = tuple(f.name for f in TABLE if f.bits <= 16)  # every code of which is tried
TENTH = Fraction(1, 10)

E = Experiment(
    "The atlas of formats",
    "Which numbers does each format have, how far apart do they lie, and where do they end?", budget=2.0,
    full={"sample": 1 << 20, "stride": 1},  # float32 patterns that are cast; every such 16-bit boundary is a case's
    quick={"sample": 1 << 16, "stride": 31},
)  # fmt: skip


@E.measure("properties", axes={"format": NAMES, "property": FINFO}, digested=True)
def properties(p: Params, format: str, property: str) -> float:
    """The properties of a format, as numpy.finfo calls them."""
    return float(getattr(get(format), property))


@E.measure("counts", axes={"format": NAMES, "count": COUNTS}, digested=True)
def counted(p: Params, format: str, count: str) -> np.uint64:
    """How many codes and values of a kind a format has, derived from its layout."""
    return np.uint64(getattr(get(format), count))


@E.measure("tenth_code", "tenth_value", "tenth_error", axes={"format": NAMES}, digested=True)
def tenths(p: Params, format: str) -> tuple[np.uint64, float, float]:
    """What 0.1 becomes: its code, its value and its relative error, from exact fractions."""
    code = exact.round_to(exact.of(TENTH), get(format))[0]
    value = exact.decode(code, get(format)).value
    return np.uint64(code), float(value), float((value - TENTH) / TENTH)


@E.measure("density", "log2_ulp", axes={"format": NAMES, "exponent": ...}, digested=True)
def binade_counts(p: Params, format: str) -> tuple[dict[int, int], dict[int, int]]:
    """By binade: how many positive values lie in it, and log2 of their spacing; from the codes alone."""
    fmt = get(format)
    exponents = range(fmt.emin - (fmt.fraction_bits if fmt.zero else 0), fmt.emax + 1)
    first = [exact.floor_code(Fraction(2) ** e, fmt) for e in exponents]
    counts = np.diff([*first, fmt.max_code + 1]).tolist()
    return (dict(zip(exponents, counts, strict=True)),
            {e: max(e, fmt.emin) - fmt.fraction_bits for e in exponents})  # fmt: skip


@E.measure("decoded", axes={"format": SMALL}, dims=("code",), digested=True)
def decoded(p: Params, format: str) -> np.ndarray:
    """The value of every code; after the last code NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.asarray(numeric.decode(np.arange(1 << get(format).bits), format), np.float64)


@E.measure("sample", dims=("pattern",), digested=True)
def sample(p: Params) -> np.ndarray:
    """Random float32 patterns; every other one has its exponent drawn into -30..19, where narrow formats live."""
    drawn = philox_bits(20201, p.sample)
    narrow = drawn[1::2]
    field = 97 + (narrow >> np.uint32(23) & np.uint32(0xFF)) % np.uint32(50)
    drawn[1::2] = narrow & np.uint32(0x807FFFFF) | field << np.uint32(23)
    return drawn


@E.measure("rounded", axes={"format": SMALL}, dims=("pattern",), digested=True)
def rounded(p: Params, format: str) -> np.ndarray:
    """The sample as codes, to nearest; a NaN is 0 where the format has none."""
    nan = None if get(format).has_nan else "zero"
    return np.asarray(numeric.encode(sample(p).view(np.float32), format, nan=nan))


def values(r: Result, format: str) -> np.ndarray:
    """The value of every code of a format, float32."""
    return np.asarray(r.decoded.sel(format=format).values[: 1 << get(format).bits], np.float32)


@E.table
def rows(r: Result) -> Columns:
    """A row for each format: its layout, its properties, what it counts, and what 0.1 becomes."""
    columns: dict[str, list[Any]] = {
        "format": list(NAMES), "sign_bits": [int(f.signed) for f in TABLE],
        **{name: [getattr(f, name) for f in TABLE] for name in ("exponent_bits", "fraction_bits", "bias")},
        "specials": [f.specials.value for f in TABLE],
    }  # fmt: skip
    for name, column in zip(FINFO, r.properties.values.T.tolist(), strict=True):
        whole = all(v.is_integer() and abs(v) < 2**31 for v in column)
        columns[name] = [int(v) for v in column] if whole else column
    columns.update(zip(COUNTS, r.counts.values.T.tolist(), strict=True))
    digits = [-(-f.bits // 4) for f in TABLE]
    columns["code_of_0.1"] = [f"0x{c:0{n}x}" for c, n in zip(r.tenth_code.values.tolist(), digits, strict=True)]
    columns["value_of_0.1"] = r.tenth_value.values.tolist()
    columns["relative_error_of_0.1"] = r.tenth_error.values.tolist()
    columns["source"] = [f.source for f in TABLE]
    return columns


# --- claims -------------------------------------------------------------------------------------------------------
@E.proved("a normal binade below the last holds 2^(fraction bits) values; its spacing is its ulp")
def binades(r: Result) -> Iterator[Part]:
    """Density and spacing against those counted from the values themselves.

    FP32 and FP64 have too many values to count: of them the layout's densities are looked at.
    """
    for fmt in TABLE:
        density, log2_ulp = (x.sel(format=fmt.name).dropna("exponent") for x in (r.density, r.log2_ulp))
        full = density.values[density.exponent.values >= fmt.emin] == 1 << fmt.fraction_bits
        # only specials may cut into the last one
        yield say("{fmt}: a normal binade", fmt=fmt.name), full[:-1].all() and (full[-1] or not fmt.has_infinity)
        if fmt.bits > 19:
            continue
        positive = np.asarray(numeric.decode(np.arange(fmt.max_code + 1), fmt, np.float32), np.float64)
        positive = positive[positive > 0]
        place = np.frexp(positive)[1] - 1 - density.exponent.values[0]
        yield fmt.name, density.values, np.bincount(place, minlength=density.size)
        inside = place[1:] == place[:-1]
        yield fmt.name, np.diff(positive)[inside], np.exp2(log2_ulp.values[place[1:][inside]])


@E.proved("finite, infinite and NaN codes add up to 2^bits")
def counts(r: Result) -> Iterator[Part]:
    """Counted code by code up to 16 bits."""
    for fmt, derived in zip(TABLE, r.counts.values, strict=True):
        finite, _, inf, nan = derived.tolist()
        yield fmt.name, finite + inf + nan, 1 << fmt.bits
        if fmt.name in SMALL:
            x = values(r, fmt.name)
            numbers = x[np.isfinite(x)]
            tried = [numbers.size, np.unique(numbers).size, int(np.isinf(x).sum()), int(np.isnan(x).sum())]
            yield fmt.name, derived, tried


@E.proved("0.1 is exact in no format; where it is normal, its relative error is at most 2^-p")
def tenth(r: Result) -> Outcome:
    error = np.abs(r.tenth_error.values)
    used = error * 2.0 ** np.array([f.significand_bits for f in TABLE])
    normal = np.where([f.smallest_normal <= 0.1 for f in TABLE], used, 0)
    detail = say("{n} formats; the largest error is {worst:.2f} of 2^-p, in {fmt}", n=len(TABLE), worst=normal.max())
    return verdict(bool(error.all() and normal.max() <= 1), detail.fill(fmt=NAMES[int(normal.argmax())]))


@E.proved("BF16 has the larger range and 3 bits less precision than FP16, not the reverse")
def bf16_and_fp16(r: Result) -> Outcome:
    bf16, fp16 = r.properties.sel(format="bf16"), r.properties.sel(format="fp16")
    (most, least, p), (other, smallest, q) = (
        x.sel(property=["max", "smallest_subnormal", "nmant"]).values for x in (bf16, fp16))  # fmt: skip
    detail = say("BF16 reaches {most:.3g}, p = {p:g}; FP16 {other:g}, p = {q:g}", most=most, p=p + 1, other=other)
    return verdict(bool(most > other and least < smallest and q - p == 3), detail.fill(q=q + 1))


E.claim(
    equal("fp16_range", "FP16 runs from 6e-8 (normal: 6.1e-5) to 65504: 'about 1e-5 to 1e5' is loose",
          of("properties", format="fp16", property=["smallest_subnormal", "smallest_normal", "max", "minexp"]),
          [2.0**-24, 2.0**-14, 65504, -14], evidence="proved"),
    equal("bf16_and_fp32", "BF16 is close to FP32 in range, not in precision: 8 bits against 24",
          of("properties", format=["fp32", "tf32", "bf16"], property=["minexp", "maxexp", "nmant"]),
          [[-126, 128, 23], [-126, 128, 10], [-126, 128, 7]], evidence="proved"),
)  # fmt: skip


@E.proved("TF32 is 19 bits: FP32's exponent and FP16's fraction")
def one_tf32(r: Result) -> Outcome:
    width, exponent, fraction, low = r.properties.sel(
        format="tf32", property=["bits", "nexp", "nmant", "minexp"]).values  # fmt: skip
    other = (r.properties.sel(format=name, property=field) for name, field in (("fp32", "nexp"), ("fp16", "nmant")))
    holds = [width, exponent, fraction] == [19, *map(float, other)]
    for name in ("fp16", "bf16"):
        x = values(r, name)
        x = x[np.isfinite(x)].astype(np.float64)
        last = np.maximum(np.frexp(x)[1] - 1, int(low)) - int(fraction)  # a TF32 number's last place at that size
        holds &= bool((np.ldexp(x, -last) % 1 == 0).all())
    detail = say("1 + {exponent:g} + {fraction:g} = {bits:g} bits; every FP16 and every BF16 value is a TF32 value")
    return verdict(holds, detail.fill(exponent=exponent, fraction=fraction, bits=width))


# Where a library says something else, and what: 1 is the smallest normal number of E2M3 and E2M1, and the step below it
# is a subnormal's, as long as the step above; the lab's epsneg is that of the precision. torch's eps of E5M2FNUZ, which
# has two fraction bits, is wrong before 2.15.
FINFO_DIFFERENCES = {
    ("ml_dtypes", "e2m3", "epsneg"): 0.125,
    ("ml_dtypes", "e2m3", "negep"): -3,
    ("ml_dtypes", "e2m1", "epsneg"): 0.5,
    ("ml_dtypes", "e2m1", "negep"): -1,
    ("torch", "e5m2fnuz", "eps"): 0.125,
}
NUMPY_FIELDS = (
    "bits", "eps", "epsneg", "iexp", "machep", "negep", "nexp", "nmant", "max", "min", "maxexp", "minexp", "precision",
    "resolution", "smallest_normal", "smallest_subnormal", "tiny",
)  # fmt: skip


def finfo_of(library: str) -> dict[str, Any]:
    """What a library says of each format that it has."""
    if library == "numpy":
        return {name: np.finfo(dtype) for name, dtype in NUMPY.items()}
    module = importlib.import_module(library)
    types = {name: TORCH[name] for name in (*CAST, "fp64")} if library == "torch" else ML_DTYPES
    return {name: module.finfo(getattr(module, dtype)) for name, dtype in types.items()}


def compare_finfo(library: str, r: Result) -> Outcome:
    """Every field of a library's finfo by format, against its property and the differences that are named."""
    infos, fields, differences = finfo_of(library), FIELDS[library], {}
    for name, theirs in infos.items():
        for field in fields:
            value, own = getattr(theirs, field), getattr(get(name), field)
            if float(value) != float(np.asarray(own).astype(getattr(value, "dtype", np.float64))):
                differences[library, name, field] = float(value)
    repaired = library == "torch" and infos["e5m2fnuz"].eps == get("e5m2fnuz").eps  # in torch 2.15
    named = {key: value for key, value in FINFO_DIFFERENCES.items() if key[0] == library and not repaired}
    if differences != named:
        return failed(say("differs at {where}", where=sorted(set(differences.items()) ^ set(named.items()))))
    detail = say("{n} fields of {m} formats", n=len(fields) * len(infos), m=len(infos))
    apart = joined([f"{name} {field} = {value:g}" for (_, name, field), value in named.items()], COMMA)
    return passed(say("{said}; apart from {apart}", said=detail, apart=apart) if named else detail)


# ml_dtypes counts at least one decimal digit and rounds the resolution into the format; both fields say nothing more.
FIELDS = {
    "numpy": NUMPY_FIELDS, "ml_dtypes": [f for f in NUMPY_FIELDS if f not in ("precision", "resolution")],
    "torch": ("bits", "eps", "max", "min", "smallest_normal", "tiny", "resolution"),
}  # fmt: skip
E.library("the derived properties equal numpy.finfo", "numpy_finfo")(partial(compare_finfo, "numpy"))
E.library("the derived properties equal ml_dtypes.finfo, but for epsneg where 1 is the smallest normal",
          "ml_dtypes_finfo", ["ml_dtypes"])(partial(compare_finfo, "ml_dtypes"))  # fmt: skip
E.library("the derived properties equal torch.finfo, but for one: its eps of E5M2FNUZ", "torch_finfo", ["torch"])(
    partial(compare_finfo, "torch"))  # fmt: skip


@E.library("decode tables equal those of numpy, ml_dtypes and torch, bit for bit", needs=["ml_dtypes", "torch"])
def decode_tables(r: Result) -> Iterator[Part]:
    readers = [(name, "numpy", decoded_by_numpy) for name in KNOWN]
    readers += [(name, "torch", decoded_by_torch) for name in SMALL if name in CAST]
    for name, reader, decode in readers:
        yield f"{name}, {reader}", values(r, name).view(np.uint32), decode(name), "fp32"


# SHA-256 of the float32 little-endian values of all codes in order, every NaN as 0x7FC00000; made with ml_dtypes 0.6.0.
GOLDEN = {
    "fp16": "385ff5fe69182797cda5f1827e20cf423f4416bc9246f27d0eec27cac9039259",
    "bf16": "f12e27efe34841dfd6391497b86f389096b03a376586e1d9691bba0a8de3980a",
    "e4m3": "422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2",
    "e5m2": "229a94c5f728edf2259da970a0e1dfb45cc1d69cce2b30e37659f3212ec4b8b9",
    "e4m3_ieee": "9ce77bd30a02e10bb70f4b9f1d8c65d129f60f0b405311976ab8c0f19d46571a",
    "e4m3fnuz": "ac4866f772a7c08077713fde1fa54131d49c26339c885e971a24fc0fac6e33f4",
    "e5m2fnuz": "aac12d2730bf26ca53bfa107a7a6a8df192aba8cf58b971eec9126f83991e6d4",
    "e8m0": "2fb2732a956043772ccd2c1664ae5d2558c62f9c06780c04d95f1ff0050f2f2f",
    "e2m3": "178eab5d385741cfac12154e83ad2b9616503fed5f08093c75b9c25065f0d3c4",
    "e3m2": "1f21874836838a0a1f329d5ff459699e3a0f786b93c85e22fcd353c1b6dca41d",
    "e2m1": "c736c7e2e761e08975d601fab3563265be14d8df46628e596c0989b97735b5f5",
}


@E.library("decode tables have the digests made with ml_dtypes 0.6.0")
def golden_tables(r: Result) -> Iterator[Part]:
    for name, want in GOLDEN.items():
        x = values(r, name)
        codes = np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))
        yield name, hashlib.sha256(codes.astype("<u4").tobytes()).hexdigest(), want


@E.library("casts from float32 equal numpy's and ml_dtypes', bit for bit", needs=["ml_dtypes"])
def library_casts(r: Result) -> Iterator[Part]:
    """float32 to every narrow format, as numpy and ml_dtypes cast it; E8M0 below 1.5 * 2^-127 is a claim of its own."""
    patterns = r.sample.values
    for name in KNOWN:
        keep = np.full(patterns.size, True) if get(name).has_nan else np.isfinite(patterns.view(np.float32))
        if name == "e8m0":  # not between 2^-127 and 1.5 * 2^-127
            keep = (patterns <= 0x00400000) | (patterns >= 0x00600000)
        theirs = rounded_by_numpy(patterns[keep].view(np.float32), name)
        yield name, r.rounded.sel(format=name).values[keep], theirs, name


@E.library("casts between all formats equal torch's on the CPU, named differences included", needs=["torch"])
def torch_casts(r: Result) -> Iterator[Part]:
    """The GPU cases, done by torch on this CPU."""
    import torch

    for case in cases(r.p):
        given = case.inputs()
        got, want = case.compute(given, "cpu"), case.emulate(given, {"torch": str(torch.__version__)})
        for target in case.formats:
            yield say("{case} to {target}", case=case.name, target=target), want[target], got[target], target


@E.library("E4M3 overflow: torch saturates from 2.13 on, ml_dtypes gives NaN; the lab does either",
           needs=["torch", "ml_dtypes"])  # fmt: skip
def e4m3_overflow(r: Result) -> Iterator[Part]:
    import torch

    version = str(torch.__version__)
    x = np.array([464, 464.0001, 480, 1e6, np.inf, -np.inf], np.float32)
    policy = overflow_of("e4m3", version)
    yield f"torch {version}", numeric.encode(x, "e4m3", overflow=policy), by_torch(x, "e4m3"), "e4m3"
    yield "ml_dtypes", numeric.encode(x, "e4m3"), rounded_by_numpy(x, "e4m3"), "e4m3"
    saturates = say("torch {version} saturates to 448, ml_dtypes gives NaN; 464 itself is 448", version=version)
    yield passed(saturates if policy else say("torch {version} gives NaN, ml_dtypes gives NaN; 464 itself is 448",
                                              version=version))  # fmt: skip


@E.library("E8M0: torch and ml_dtypes round ties up, and misround just above 2^-127", needs=["torch", "ml_dtypes"])
def e8m0_edges(r: Result) -> Iterator[Part]:
    x = np.array([1.5, 3, 6, 12, 1.25 * 2.0**-127, 0.0, -1.0], np.float32)
    ties, theirs = [128, 129, 130, 131], by_torch(x, "e8m0")
    yield "lab", numeric.encode(x, "e8m0"), [*ties, 0, 255, 255]
    yield "ml_dtypes", rounded_by_numpy(x, "e8m0"), [*ties, 1, 255, 255]
    yield "torch", theirs, [*ties, 1, 0, 127]
    yield "torch", theirs, torch_e8m0(x.view(np.uint32))
    yield passed(
        say("1.25 * 2^-127 becomes 2^-126 in both, not the nearer 2^-127; torch makes 2^-127 of 0 and 1 of -1")
    )


# --- what numpy, ml_dtypes and torch say of a format --------------------------------------------------------------
NUMPY = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
ML_DTYPES = {
    "bf16": "bfloat16", "e5m2": "float8_e5m2", "e4m3": "float8_e4m3fn", "e4m3_ieee": "float8_e4m3",
    "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz", "e3m4": "float8_e3m4", "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn", "e2m1": "float4_e2m1fn", "e8m0": "float8_e8m0fnu",
}  # fmt: skip
KNOWN = tuple(name for name in SMALL if name in NUMPY or name in ML_DTYPES)


def dtype_of(name: str) -> Any:
    """numpy's or ml_dtypes' dtype of a format."""
    if name in NUMPY:
        return np.dtype(NUMPY[name])
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))


def every_code(name: str) -> np.ndarray:
    """All codes of a format in order."""
    return np.arange(1 << get(name).bits, dtype=np.uint32).astype(np.uint8 if get(name).bits <= 8 else np.uint16)


def decoded_by_torch(name: str) -> np.ndarray:
    """float32 bits of every code of a format, as torch reads it."""
    return bits(cast(tensor(every_code(name), name, "cpu"), "fp32"))


def decoded_by_numpy(name: str) -> np.ndarray:
    """float32 bits of every code of a format of at most 16 bits, as numpy with ml_dtypes reads it."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.asarray(every_code(name).view(dtype_of(name)), np.float32).view(np.uint32)


def rounded_by_numpy(x: np.ndarray, name: str) -> np.ndarray:
    """float32 values as codes of a format, as numpy or ml_dtypes casts them."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(x, dtype_of(name)).view(every_code(name).dtype)


def by_torch(x: np.ndarray, name: str) -> np.ndarray:
    """float32 values as codes of a format, as torch casts them here."""
    return bits(cast(tensor(x.view(np.uint32), "fp32", "cpu"), name))


# --- what a GPU must compute: casts between all formats that torch has, every code and every boundary -----------
CAST = ("fp32", "fp16", "bf16", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0")
SPECIAL = np.array(
    [0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FA00000, 0x7FC00000, 0x7FFFFFFF], np.uint32
)  # zero, subnormals, the smallest normal, the largest, infinity, signalling and quiet NaNs


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """A case a source format, with an output for every other; of narrow ones all codes, float32's from a sample."""
    for source in CAST:

        def inputs(source: str = source) -> Arrays:
            return {"codes": float32_sample(p.sample // 4, p.stride) if source == "fp32" else every_code(source)}

        targets = {name: name for name in CAST if name != source}
        yield program(f"casts-from-{source}", inputs, {"codes": source}, partial(casts, targets), targets)


def casts(targets: Mapping[str, str], codes: Any) -> dict[str, Any]:
    """A tensor, or values, in other formats; E8M0 by :func:`torch_e8m0`."""
    result = {name: cast(codes, name) for name in targets if name != "e8m0" or not isinstance(codes, Rounded)}
    if isinstance(codes, Rounded) and "e8m0" in targets:
        powers = numeric.decode(torch_e8m0(codes.values.astype(np.float32).view(np.uint32)), "e8m0")
        result["e8m0"] = replace(codes, values=np.asarray(powers))
    return result


def float32_sample(random: int, stride: int) -> np.ndarray:
    """Boundaries of every narrower format with their neighbours, specials, and ``random`` random patterns.

    Of the boundaries of 16-bit formats every ``stride``-th is taken, of 8-bit formats all.
    """
    near = np.unique(np.concatenate([*(boundaries(name, stride) for name in CAST[1:]), SPECIAL]))
    return np.concatenate([near, near | np.uint32(0x80000000), philox_bits(20202, random)]).astype(np.uint32)


def boundaries(name: str, stride: int) -> np.ndarray:
    """float32 bits of a format's values, the midpoints between them (one beyond the largest too), and neighbours."""
    fmt = get(name)
    codes = np.arange(0, fmt.max_code + 2, stride if fmt.bits > 8 else 1, dtype=np.int64)
    if fmt.bits > 8:  # the ends, whatever the stride
        ends = [0, 1, 2, (1 << fmt.fraction_bits) - 1, 1 << fmt.fraction_bits, fmt.max_code - 1, fmt.max_code]
        codes = np.union1d(codes, ends)
    low, high = (np.array([fmt.magnitude(code) for code in part.tolist()]) for part in (codes, codes + 1))
    points = np.concatenate([low, (low + high) / 2])
    points = points[points < 2.0**128].astype(np.float32).view(np.uint32).astype(np.int64)  # exact: at most 12 bits
    around = np.concatenate([points - 1, points, points + 1])
    return np.unique(around[(around >= 0) & (around <= 0x7F800000)]).astype(np.uint32)


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


# --- figures ------------------------------------------------------------------------------------------------------
E.answer("FP16 ends at {fp16:,.0f} and keeps {p:.0f} bits, BF16 reaches {bf16:.1e} with {q:.0f}; 0.1 is exact in none",
         fp16=of("properties", format="fp16", property="max"), bf16=of("properties", format="bf16", property="max"),
         p=of("properties", format="fp16", property="nmant") + 1,
         q=of("properties", format="bf16", property="nmant") + 1)  # fmt: skip
SHOWN = ["fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3"]
LOW, HIGH = -165, 140  # exponents shown; FP64 goes on


def ranges_of_formats(ax: draw.Axes, r: Result) -> None:
    """From the smallest to the largest magnitude, the subnormal part hatched."""
    for i, fmt in enumerate(TABLE):
        color, low = draw.look_of_format(fmt.name).color, max(np.log2(fmt.smallest_subnormal), LOW)
        normal, high = max(fmt.emin, LOW), min(fmt.emax + 1, HIGH)
        ax.barh(i, high - normal, left=normal, height=0.52, color=color)
        ax.barh(i, normal - low, left=low, height=0.52, facecolor="none", edgecolor=color, hatch="//////")
        text = f"{fmt.max:.6g}" if fmt.max < 1e6 else f"{fmt.max:.3g}"
        draw.note(ax, text, (high, i), (-4, 0) if high > 100 else (4, 0), va="center",
                  ha="right" if high > 100 else "left",
                  color=draw.current().background if high > 100 else draw.current().ink)  # fmt: skip
    ax.set(xlim=(LOW, HIGH), xlabel="exponent of 2 (hatched: subnormal)", title="From the smallest to the largest")


def values_of_tenth(ax: draw.Axes, r: Result) -> None:
    """What 0.1 is in each format, beside its error."""
    for i, (value, error) in enumerate(zip(r.tenth_value.values, abs(r.tenth_error.values), strict=True)):
        draw.note(ax, f"{value:.12g}" if error > 1e-8 else f"{value:.20f}…", (error, i), (8, 0), va="center")


E.figure(
    "density",
    line(of("density", format=SHOWN).log2, x="exponent", hue="format", xlim=(LOW, HIGH),
         xlabel="binade (exponent of 2)", ylabel="values in the binade (exponent of 2)",
         title="Height is precision, width range", legend={"loc": "lower right", "bbox_to_anchor": (1, 0.45)}),
    line(of("log2_ulp", format=SHOWN), x="exponent", hue="format", xlim=(-30, 20), ylim=(-54, 16),
         xlabel="magnitude (exponent of 2)", ylabel="distance to the next value (exponent of 2)",
         title="Spacing: grows with the number"),
    size=(8, 4.4), grid=(1, 2),
)  # fmt: skip
E.figure(
    "ranges", ranges_of_formats,
    with_(dots(of("tenth_error").then("error", abs), y="format", log="x", xlim=(1e-18, 1e9),
               xlabel="relative error of 0.1, and its value", title="0.1 in each: exact in none"), values_of_tenth),
    size=(8, 6), grid=(1, 2), sharey=True, width_ratios=[1.25, 1],
)  # fmt: skip
