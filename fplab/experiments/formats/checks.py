"""The claims of the atlas and what each is checked against."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...formats import NAMES, TABLE, Format, get
from ...hardware.cases import Arrays
from ...hardware.tensors import overflow_of
from ..base import Evidence, Outcome, Status, absent, failed, passed, same_bits, verdict
from ..legacy import Check
from . import libraries
from .casts import TORCH, cases, torch_e8m0
from .libraries import ML_DTYPES, NUMPY, MissingError

Function = Callable[[Arrays, Any], Outcome]
SMALL = tuple(f for f in TABLE if f.bits <= 16)
KNOWN = tuple(f for f in SMALL if f.name in NUMPY or f.name in ML_DTYPES)
BELOW_E8M0 = (0x00400000, 0x00600000)  # float32 bits of 2^-127 and 1.5 * 2^-127

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

NUMPY_FIELDS = (
    "bits", "eps", "epsneg", "iexp", "machep", "negep", "nexp", "nmant", "max", "min", "maxexp", "minexp", "precision",
    "resolution", "smallest_normal", "smallest_subnormal", "tiny",
)  # fmt: skip
# ml_dtypes counts at least one decimal digit and rounds the resolution into the format; both fields say nothing more.
ML_DTYPES_FIELDS = tuple(f for f in NUMPY_FIELDS if f not in ("precision", "resolution"))
TORCH_FIELDS = ("bits", "eps", "max", "min", "smallest_normal", "tiny", "resolution")
# Where a library says something else, and what: 1 is the smallest normal number of E2M3 and E2M1, and the step below it
# is a subnormal's, as long as the step above; the lab's epsneg is that of the precision. torch's eps of E5M2FNUZ, which
# has two fraction bits, is wrong.
FINFO_DIFFERENCES = {
    ("ml_dtypes", "e2m3", "epsneg"): 0.125,
    ("ml_dtypes", "e2m3", "negep"): -3,
    ("ml_dtypes", "e2m1", "epsneg"): 0.5,
    ("ml_dtypes", "e2m1", "negep"): -1,
    ("torch", "e5m2fnuz", "eps"): 0.125,
}


def against_libraries(check: Function) -> Function:
    """A check that is absent where a library it needs is missing."""

    @functools.wraps(check)
    def wrapper(arrays: Arrays, params: Any) -> Outcome:
        try:
            return check(arrays, params)
        except MissingError as missing:
            return absent(str(missing))

    return wrapper


def first_failure(outcomes: Iterable[tuple[str, Outcome]], detail: str) -> Outcome:
    """The first outcome that is no pass, with its name; else a pass with the detail."""
    for name, outcome in outcomes:
        if outcome.status is not Status.PASS:
            return Outcome(outcome.status, f"{name}: {outcome.detail}")
    return passed(detail)


# --- proved -------------------------------------------------------------------------------------------------------


def binades(arrays: Arrays, params: Any) -> Outcome:
    """Density and spacing counted from the values themselves, against those computed from the layout.

    FP32 and FP64 have too many values to count: of them the layout's densities are looked at.
    """
    from ...floats import decode

    for fmt in TABLE:
        normal = arrays[f"density_{fmt.name}"][arrays[f"exponents_{fmt.name}"] >= fmt.emin]
        full = normal == 1 << fmt.fraction_bits
        if not full[:-1].all() or (fmt.has_infinity and not full[-1]):  # only specials may cut into the last one
            return failed(f"{fmt.name}: a normal binade holds {normal.tolist()}")
    for fmt in (*SMALL, get("tf32")):
        values = decode(np.arange(fmt.max_code + 1), fmt, np.float32).astype(np.float64)
        values = values[values > 0]
        exponents = arrays[f"exponents_{fmt.name}"]
        place = np.frexp(values)[1] - 1 - exponents[0]
        counted = np.bincount(place, minlength=exponents.size)
        if not np.array_equal(counted, arrays[f"density_{fmt.name}"]):
            return failed(f"{fmt.name}: counted {counted.tolist()}")
        inside = place[1:] == place[:-1]
        steps = np.diff(values)[inside]
        if not np.array_equal(steps, np.exp2(arrays[f"log2_ulp_{fmt.name}"][place[1:][inside]].astype(np.float64))):
            return failed(f"{fmt.name}: spacing inside a binade is not its ulp")
    return passed(f"all values of {len(SMALL) + 1} formats counted")


def counts(arrays: Arrays, params: Any) -> Outcome:
    """Finite, infinite and NaN codes counted from the decoded values."""
    for i, fmt in enumerate(TABLE):
        finite, distinct, inf, nan = (int(v) for v in arrays["counts"][i])
        if finite + inf + nan != 1 << fmt.bits:
            return failed(f"{fmt.name}: {finite} + {inf} + {nan} is not 2^{fmt.bits}")
        if fmt.bits <= 16:
            values = arrays[f"decoded_{fmt.name}"].view(np.float32)
            counted = [int(np.isfinite(values).sum()), np.unique(values[np.isfinite(values)]).size]
            counted += [int(np.isinf(values).sum()), int(np.isnan(values).sum())]
            if counted != [finite, distinct, inf, nan]:
                return failed(f"{fmt.name}: counted {counted}, derived {[finite, distinct, inf, nan]}")
    return passed(f"{len(TABLE)} formats; counted code by code up to 16 bits")


def tenth(arrays: Arrays, params: Any) -> Outcome:
    """0.1 is exact nowhere, and within half an ulp wherever it is a normal number."""
    worst, where = 0.0, ""
    for i, fmt in enumerate(TABLE):
        error = abs(float(arrays["tenth_error"][i]))
        if error == 0:
            return failed(f"0.1 is exact in {fmt.name}")
        bound = 2.0**-fmt.significand_bits
        if fmt.smallest_normal <= 0.1:
            if error > bound:
                return failed(f"{fmt.name}: relative error {error:.3g} exceeds 2^-{fmt.significand_bits}")
            worst, where = max((worst, where), (error / bound, fmt.name))
    return passed(f"{len(TABLE)} formats; the largest error is {worst:.2f} of 2^-p, in {where}")


def finfo(arrays: Arrays, name: str, *fields: str) -> list[float]:
    """Properties of a format, as the atlas has them."""
    from . import FINFO

    row = arrays["finfo"][NAMES.index(name)]
    return [float(row[FINFO.index(field)]) for field in fields]


def bf16_and_fp16(arrays: Arrays, params: Any) -> Outcome:
    """Range and precision of the two 16-bit formats."""
    (most, least, p), (other_most, other_least, other_p) = (
        finfo(arrays, name, "max", "smallest_subnormal", "nmant") for name in ("bf16", "fp16")
    )
    detail = f"BF16 reaches {most:.3g}, p = {p + 1:g}; FP16 {other_most:g}, p = {other_p + 1:g}"
    return verdict(most > other_most and least < other_least and other_p - p == 3, detail)


def fp16_range(arrays: Arrays, params: Any) -> Outcome:
    """FP16's range and its exponents."""
    least, normal, most, low = finfo(arrays, "fp16", "smallest_subnormal", "smallest_normal", "max", "minexp")
    holds = (least, normal, most, low) == (2.0**-24, 2.0**-14, 65504.0, -14)
    return verdict(holds, f"subnormal from {least:.3g}, normal from {normal:.3g} (2^{low:g}) to {most:g}")


def bf16_and_fp32(arrays: Arrays, params: Any) -> Outcome:
    """BF16 and TF32 have the exponents of FP32, not its precision."""
    found = [finfo(arrays, name, "minexp", "maxexp", "nmant") for name in ("fp32", "tf32", "bf16")]
    low, high, _ = found[0]
    holds = found == [[low, high, 23], [low, high, 10], [low, high, 7]]
    return verdict(holds, f"all from 2^{low:g} to 2^{high - 1:g}; p = 24, 11 and 8 bits" if holds else f"{found}")


def one_tf32(arrays: Arrays, params: Any) -> Outcome:
    """TF32 is FP32's exponent with FP16's fraction, in 19 bits, and so holds every value of FP16 and BF16."""
    bits, exponent, fraction = finfo(arrays, "tf32", "bits", "nexp", "nmant")
    holds = [bits, exponent, fraction] == [19, *finfo(arrays, "fp32", "nexp"), *finfo(arrays, "fp16", "nmant")]
    low, step = (int(v) for v in finfo(arrays, "tf32", "minexp", "nmant"))
    for name in ("fp16", "bf16"):
        values = arrays[f"decoded_{name}"].view(np.float32)
        values = values[np.isfinite(values)].astype(np.float64)
        last = np.maximum(np.frexp(values)[1] - 1, low) - step  # the last place of a TF32 number of that size
        holds &= bool((np.ldexp(values, -last) % 1 == 0).all())
    detail = f"1 + {exponent:g} + {fraction:g} = {bits:g} bits; every FP16 and every BF16 value is a TF32 value"
    return verdict(holds, detail)


# --- libraries ----------------------------------------------------------------------------------------------------


def compare_finfo(library: str, names: Iterable[str], info: Callable[[str], Any], fields: Sequence[str]) -> Outcome:
    """Every field of a library's finfo, against the format's property and the differences that are named."""
    compared = 0
    found = {}
    names = tuple(names)
    for name in names:
        fmt, theirs = get(name), info(name)
        for field in fields:
            value, own = getattr(theirs, field), getattr(fmt, field)
            if float(value) != float(np.asarray(own).astype(getattr(value, "dtype", np.float64))):
                found[library, name, field] = float(value)
            compared += 1
    named = {key: value for key, value in FINFO_DIFFERENCES.items() if key[0] == library}
    if found != named:
        return failed(f"differs at {sorted(set(found.items()) ^ set(named.items()))}")
    apart = "; apart from " + ", ".join(f"{n} {f} = {v:g}" for (_, n, f), v in named.items()) if named else ""
    return passed(f"{compared} fields of {len(names)} formats{apart}")


def numpy_finfo(arrays: Arrays, params: Any) -> Outcome:
    """numpy.finfo of FP16, FP32 and FP64."""
    return compare_finfo("numpy", NUMPY, lambda name: np.finfo(NUMPY[name]), NUMPY_FIELDS)


@against_libraries
def ml_dtypes_finfo(arrays: Arrays, params: Any) -> Outcome:
    """ml_dtypes.finfo of BF16 and narrower."""
    lib = libraries.ml_dtypes()
    return compare_finfo("ml_dtypes", ML_DTYPES, lambda n: lib.finfo(getattr(lib, ML_DTYPES[n])), ML_DTYPES_FIELDS)


@against_libraries
def torch_finfo(arrays: Arrays, params: Any) -> Outcome:
    """torch.finfo of all that torch has."""
    lib = libraries.torch()
    names = {**TORCH, "fp64": "float64"}
    return compare_finfo("torch", names, lambda name: lib.finfo(getattr(lib, names[name])), TORCH_FIELDS)


@against_libraries
def decode_tables(arrays: Arrays, params: Any) -> Outcome:
    """Every code as numpy, ml_dtypes and torch read it."""
    pairs = [(f.name, "numpy") for f in KNOWN] + [(f.name, "torch") for f in SMALL if f.name in TORCH]
    outcomes = (
        (f"{name} by {library}", same_bits(arrays[f"decoded_{name}"], libraries.decoded(name, library), "fp32"))
        for name, library in pairs
    )
    return first_failure(outcomes, f"{sum(1 << get(n).bits for n, _ in pairs):,} codes, {len(pairs)} tables")


def golden_tables(arrays: Arrays, params: Any) -> Outcome:
    """The digests of the decode tables."""
    for name, want in GOLDEN.items():
        bits = arrays[f"decoded_{name}"].copy()
        bits[np.isnan(bits.view(np.float32))] = 0x7FC00000
        got = hashlib.sha256(bits.astype("<u4").tobytes()).hexdigest()
        if got != want:
            return failed(f"{name}: {got} against {want}")
    return passed(f"SHA-256 of {len(GOLDEN)} tables")


@against_libraries
def library_casts(arrays: Arrays, params: Any) -> Outcome:
    """float32 to every narrow format, as numpy and ml_dtypes cast it; E8M0 below 1.5 * 2^-127 is a check of its own."""
    bits = arrays["sample"]
    values = bits.view(np.float32)

    def one(fmt: Format) -> Outcome:
        keep = np.isfinite(values) if not fmt.has_nan else np.ones(values.size, bool)
        if fmt.name == "e8m0":
            keep = (bits <= BELOW_E8M0[0]) | (bits >= BELOW_E8M0[1])
        theirs = libraries.rounded(values[keep], fmt.name)
        return same_bits(arrays[f"rounded_{fmt.name}"][keep], theirs, fmt.name)

    return first_failure(((f.name, one(f)) for f in KNOWN), f"{values.size:,} values to {len(KNOWN)} formats each")


@against_libraries
def torch_casts(arrays: Arrays, params: Any) -> Outcome:
    """The GPU cases, done by torch on this CPU."""
    version = {"torch": str(libraries.torch().__version__)}
    outputs = 0
    for case in cases(params.sample // 4, params.stride):
        inputs = case.inputs()
        got, want = case.compute(inputs, "cpu"), case.emulate(inputs, version)
        for target in case.formats:
            outcome = same_bits(want[target], got[target], target)
            if outcome.status is not Status.PASS:
                return failed(f"{case.name} to {target}: {outcome.detail}")
            outputs += got[target].size
    return passed(f"{outputs:,} casts between {len(TORCH)} formats, torch {version['torch']}")


@against_libraries
def e4m3_overflow(arrays: Arrays, params: Any) -> Outcome:
    """464 and beyond in E4M3: who saturates and who gives NaN."""
    from ...floats import encode

    lib = libraries.torch()
    values = np.array([464, 464.0001, 480, 1e6, np.inf, -np.inf], np.float32)
    theirs = lib.from_numpy(values).to(lib.float8_e4m3fn).view(lib.int8).numpy().view(np.uint8)
    policy = overflow_of("e4m3", str(lib.__version__))
    outcomes = [
        (f"torch {lib.__version__}", same_bits(encode(values, "e4m3", overflow=policy), theirs, "e4m3")),
        ("ml_dtypes", same_bits(encode(values, "e4m3"), libraries.rounded(values, "e4m3"), "e4m3")),
    ]
    here = f"torch {lib.__version__} {'saturates to 448' if policy else 'gives NaN'}"
    return first_failure(outcomes, f"{here}, ml_dtypes gives NaN; 464 itself is 448")


@against_libraries
def e8m0_edges(arrays: Arrays, params: Any) -> Outcome:
    """Where E8M0 casts part: ties, below the smallest value, zero and negative numbers."""
    from ...floats import encode

    lib = libraries.torch()
    ties = np.array([1.5, 3, 6, 12], np.float32)
    tiny = np.array([1.25 * 2.0**-127], np.float32)
    outside = np.array([0.0, -1.0], np.float32)
    values = np.concatenate([ties, tiny, outside])
    own = encode(values, "e8m0")
    google = libraries.rounded(values, "e8m0")
    meta = lib.from_numpy(values).to(lib.float8_e8m0fnu).view(lib.int8).numpy().view(np.uint8)
    holds = (
        np.array_equal(own, [128, 129, 130, 131, 0, 255, 255])
        and np.array_equal(google, [128, 129, 130, 131, 1, 255, 255])
        and np.array_equal(meta, [128, 129, 130, 131, 1, 0, 127])
        and np.array_equal(meta, torch_e8m0(values.view(np.uint32)))
    )
    detail = "1.25 * 2^-127 becomes 2^-126 in both, not the nearer 2^-127; torch makes 2^-127 of 0 and 1 of -1"
    return verdict(
        holds, detail if holds else f"lab {own.tolist()}, ml_dtypes {google.tolist()}, torch {meta.tolist()}"
    )


PROVED, LIBRARY = Evidence.PROVED, Evidence.LIBRARY
CHECKS = tuple(
    Check(claim, evidence, check)
    for claim, evidence, check in (
        ("a normal binade below the last holds 2^(fraction bits) values; its spacing is its ulp", PROVED, binades),
        ("finite, infinite and NaN codes add up to 2^bits", PROVED, counts),
        ("0.1 is exact in no format; where it is normal, its relative error is at most 2^-p", PROVED, tenth),
        ("BF16 has the larger range and 3 bits less precision than FP16, not the reverse", PROVED, bf16_and_fp16),
        ("FP16 runs from 6e-8 (normal: 6.1e-5) to 65504: 'about 1e-5 to 1e5' is loose", PROVED, fp16_range),
        ("BF16 is close to FP32 in range, not in precision: 8 bits against 24", PROVED, bf16_and_fp32),
        ("TF32 is 19 bits: FP32's exponent and FP16's fraction", PROVED, one_tf32),
        ("the derived properties equal numpy.finfo", LIBRARY, numpy_finfo),
        (
            "the derived properties equal ml_dtypes.finfo, but for epsneg where 1 is the smallest normal",
            LIBRARY,
            ml_dtypes_finfo,
        ),
        ("the derived properties equal torch.finfo, but for one: its eps of E5M2FNUZ", LIBRARY, torch_finfo),
        ("decode tables equal those of numpy, ml_dtypes and torch, bit for bit", LIBRARY, decode_tables),
        ("decode tables have the digests made with ml_dtypes 0.6.0", LIBRARY, golden_tables),
        ("casts from float32 equal numpy's and ml_dtypes', bit for bit", LIBRARY, library_casts),
        ("casts between all formats equal torch's on the CPU, named differences included", LIBRARY, torch_casts),
        (
            "E4M3 overflow: torch saturates from 2.13 on, ml_dtypes gives NaN; the lab does either",
            LIBRARY,
            e4m3_overflow,
        ),
        ("E8M0: torch and ml_dtypes round ties up, and misround just above 2^-127", LIBRARY, e8m0_edges),
    )
)
