"""The experiment on formats: its cases are torch's bits, the boundaries that they try, and where libraries part."""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from experiments.frame import Mutant, claim_of, frame, repeats
from fplab import exact
from fplab.experiments import formats
from fplab.experiments.formats import CAST
from fplab.experiments.outcomes import Outcome, Status
from fplab.formats import NAMES, get
from fplab.hardware import tensors

QUICK = formats.E.quick
FEW = replace(QUICK, sample=1 << 8)


def described(name: str, other: str = "", **fields: Any) -> Callable[[Any], Any]:
    """Another record for a format: that of an ``other``, or its own with other fields."""
    record = replace(get(other or name), name=name, aliases=(), **fields)
    return lambda get: lambda fmt: record if fmt == name else get(fmt)


def flushed(decode: Any) -> Any:
    """Subnormals that are read as zero."""

    def faulty(codes: Any, fmt: Any, *dtype: Any) -> Any:
        values = decode(codes, fmt, *dtype)
        return np.where(np.abs(values) < get(fmt).smallest_normal, 0, values)

    return faulty


def counting(change: Callable[[np.ndarray], Any], which: int) -> Callable[[Any], Any]:
    """Densities (0) or logarithms of the spacing (1) that are what ``change`` makes of them."""

    def fault(binade_counts: Any) -> Any:
        def faulty(p: Any, format: str) -> Any:
            both = list(binade_counts(p, format))
            both[which] = dict(zip(both[which], change(np.array([*both[which].values()])).tolist(), strict=True))
            return both

        return faulty

    return fault


def edge(density: np.ndarray) -> np.ndarray:
    """An edge of a binade that belongs to its neighbour."""
    density[-3:-1] += np.array([1, -1])
    return density


MUTANTS = (
    Mutant("a binade's edge", ("binades",), "binade_counts", counting(edge, 0)),
    Mutant("subnormals read as zero", ("decode_tables", "golden_tables", "counts"), "fplab.numeric.decode", flushed),
    Mutant("an ulp twice as large", ("binades",), "binade_counts", counting(lambda x: x + 1, 1)),
    Mutant("0.1 one code up", ("tenth",), "exact.round_to",
           lambda good: lambda x, fmt: (good(x, fmt)[0] + 1, *good(x, fmt)[1:])),
    Mutant("an eighth for a tenth", ("tenth",), "TENTH", lambda good: Fraction(1, 8)),
    Mutant("BF16 as FP16", ("bf16_and_fp16", "bf16_and_fp32", "counts"), "get", described("bf16", "fp16")),
    Mutant("FP16 with a bias of 14", ("fp16_range",), "get", described("fp16", bias=14)),
    Mutant("TF32 in 18 bits", ("one_tf32", "bf16_and_fp32"), "get", described("tf32", fraction_bits=9)),
    Mutant("E5M2 for FP16 and BF16", ("numpy_finfo", "ml_dtypes_finfo", "torch_finfo"), "get",
           lambda get: lambda name: get({"fp16": "e5m2", "bf16": "e5m2"}.get(name, name))),
    Mutant("casts truncate", ("library_casts", "e8m0_edges"), "fplab.numeric.encode",
           lambda encode: lambda x, fmt, *options, **named: encode(x, fmt, "rtz", **named), params=FEW),
    Mutant("casts in between truncate", ("torch_casts",), "fplab.numeric.quantize",
           lambda quantize: lambda x, fmt, *options, **named: quantize(x, fmt, "rtz", **named), params=FEW),
    Mutant("the other overflow", ("e4m3_overflow",), "overflow_of",
           lambda rule: lambda fmt, version: None if rule(fmt, version) else "saturate"),
    Mutant("E8M0 one up", ("e8m0_edges", "torch_casts"), "torch_e8m0",
           lambda cast: lambda bits: cast(bits) + np.uint8(1), params=FEW),
)  # fmt: skip

globals().update(frame(formats, QUICK, MUTANTS, absent=r"\w+ is not installed"))


def outcome_of(id: str, result: Any) -> Outcome:
    return claim_of(formats.E, id).test(result)


def test_a_missing_library_is_absent_not_passed(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for id in ("ml_dtypes_finfo", "decode_tables", "library_casts", "e4m3_overflow"):
        outcome = outcome_of(id, result)
        assert (outcome.status, str(outcome.detail)) == (Status.ABSENT, "ml_dtypes is not installed")


def test_finfo_difference_that_nobody_named_fails(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FINFO_DIFFERENCES", {})
    outcome = outcome_of("torch_finfo", result)
    assert outcome.status is Status.FAIL
    assert "e5m2fnuz" in str(outcome.detail)


def test_it_repeats(result: Any) -> None:
    repeats(formats, result)


def test_density_of_known_formats(result: Any) -> None:
    density = {name: result.density.sel(format=name).dropna("exponent") for name in NAMES}
    assert density["e2m1"].exponent.values.tolist() == [-1, 0, 1, 2]
    assert density["e2m1"].values.tolist() == [1, 2, 2, 2]  # 0.5; 1 1.5; 2 3; 4 6
    assert density["e4m3"].values.tolist() == [1, 2, 4] + [8] * 14 + [7]  # 480 would be NaN
    assert density["fp32"].sum() == get("fp32").max_code
    assert density["e8m0"].values.tolist() == [1] * 255


def test_one_tenth_and_the_table(result: Any) -> None:
    codes = dict(zip(NAMES, result.tenth_code.values.tolist(), strict=True))
    assert codes["fp64"] == np.float64(0.1).view(np.uint64)
    assert codes["fp32"] == np.float32(0.1).view(np.uint32)
    assert codes["fp16"] == np.float16(0.1).view(np.uint16)
    assert (codes["bf16"], codes["e2m1"], codes["e8m0"]) == (0x3DCD, 0, 124)
    fp16 = {name: column[NAMES.index("fp16")] for name, column in formats.rows(result).items()}
    assert (fp16["max"], fp16["bias"], fp16["finite_codes"], fp16["code_of_0.1"]) == (65504, 15, 63488, "0x2e66")


# --- GPU cases --------------------------------------------------------------------------------------------------------
def test_cases_cover_every_pair_and_every_code() -> None:
    cases = list(formats.cases(QUICK))
    pairs = {(case.name.removeprefix("casts-from-"), target) for case in cases for target in case.formats}
    assert pairs == {(a, b) for a in CAST for b in CAST if a != b}
    for case in cases[1:]:
        bits = get(case.name.removeprefix("casts-from-")).bits
        assert np.array_equal(case.inputs()["codes"], np.arange(1 << bits))


@functools.cache
def smallest_sample() -> set[int]:
    return set(formats.float32_sample(0, 1).tolist())


@pytest.mark.parametrize("name", CAST[1:])
def test_float32_sample_has_every_boundary(name: str) -> None:
    fmt = get(name)
    bits = smallest_sample()
    for code in {0, 1, 2, fmt.max_code // 2, fmt.max_code - 1, fmt.max_code}:
        low, high = exact.magnitude_of(code, fmt), exact.magnitude_of(code + 1, fmt)
        for point in (low, (low + high) / 2):
            if point >= 2**128:
                continue
            at = int(np.float32(float(point)).view(np.uint32))
            assert exact.from_float(float(np.uint32(at).view(np.float32))).magnitude == point
            near = {at, at + 1, at - 1} - {-1}
            assert near <= bits
            assert {n | 0x80000000 for n in near} <= bits


def test_float32_sample_has_specials_whatever_its_size() -> None:
    bits = set(formats.float32_sample(16, 997).tolist())
    assert {0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0x477FE000, 0x477FF000} <= bits


def test_e4m3_overflow_depends_on_the_version_of_torch() -> None:
    values = np.array([464, 465, np.inf, -1e9, np.nan], np.float32).view(np.uint32)
    cast = next(formats.cases(QUICK)).emulate
    for version, want in (("2.13.0+cpu", [126, 126, 126, 254, 127]), ("2.12.1", [126, 127, 127, 255, 127])):
        assert cast({"codes": values}, {"torch": version})["e4m3"].tolist() == want
    assert tensors.release("3.0.0a0+git1") == (3, 0)
