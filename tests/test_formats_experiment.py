"""The experiment ``formats``: its checks pass and can fail, its GPU cases are torch's bits on the CPU, divergences."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import Mutant, computed_on_cpu, drawn, frame, kills

from fplab import exact
from fplab.experiments import formats as atlas
from fplab.experiments.base import Status
from fplab.experiments.formats import casts, checks, libraries
from fplab.floats import encode
from fplab.formats import NAMES, TABLE, get
from fplab.hardware import tensors
from fplab.hardware.cases import Arrays, Case

PARAMS = atlas.QUICK

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(atlas, PARAMS, absent=r"\w+ is not installed")


def off(name: str, at: Any, value: Any) -> Callable[[Arrays], Arrays]:
    """One changed element."""

    def change(arrays: Arrays) -> Arrays:
        assert arrays[name][at] != value
        arrays[name][at] = value
        return {name: arrays[name]}

    return change


def property_of(name: str, field: str, value: float) -> Callable[[Arrays], Arrays]:
    """A format's property that is another one."""
    return off("finfo", (NAMES.index(name), atlas.FINFO.index(field)), value)


def one_more(by_binade: Any) -> Any:
    """An edge of a binade that belongs to its neighbour."""

    def faulty(fmt: Any) -> Arrays:
        found = by_binade(fmt)
        found[f"density_{fmt.name}"][-3:-1] += np.array([1, -1])
        return found

    return faulty


def as_other(get: Any) -> Any:
    """E5M2 in the place of the 16-bit formats."""
    return lambda name: get({"fp16": "e5m2", "bf16": "e5m2"}.get(name, name))


def cut(encode: Any) -> Any:
    """Casts that truncate."""
    return lambda x, fmt, *options, **named: encode(x, fmt, "rtz", **named)


LIBRARIES = ("numpy", "ml_dtypes", "torch")
MUTANTS = (
    Mutant("a binade's edge", ("a normal binade below",), "by_binade", one_more),
    Mutant("one FP16 value misread", ("decode tables equal", "decode tables have"), change=off("decoded_fp16", 999, 0)),
    Mutant("an ulp too small", ("a normal binade below",), change=off("log2_ulp_bf16", 100, 0)),
    Mutant("a code counted twice", ("finite, infinite",), change=off("counts", (4, 0), 63489)),
    Mutant("0.1 exact", ("0.1 is exact",), change=off("tenth_error", 13, 0.0)),
    Mutant("0.1 off by an ulp", ("0.1 is exact",), change=off("tenth_error", 4, 2.0**-10)),
    Mutant("BF16 with FP16's range", ("BF16 has the larger",), change=property_of("bf16", "max", 65504.0)),
    Mutant("FP16 without subnormals", ("FP16 runs",), change=property_of("fp16", "smallest_subnormal", 2.0**-14)),
    Mutant("BF16 with 10 bits", ("BF16 is close", "BF16 has"), change=property_of("bf16", "nmant", 10)),
    Mutant("TF32 in 18 bits", ("TF32 is 19",), change=property_of("tf32", "bits", 18)),
    Mutant("TF32 without FP16's last bit", ("TF32 is 19",), change=property_of("tf32", "nmant", 9)),
    Mutant("E5M2 for FP16 and BF16", tuple(f"the derived properties equal {lib}." for lib in LIBRARIES),
           "checks.get", as_other),
    Mutant("casts truncate", ("casts from", "casts between", "E8M0"), "fplab.floats.encode", cut),
    Mutant("the other overflow", ("E4M3 overflow",), "checks.overflow_of",
           lambda rule: lambda fmt, version: None if rule(fmt, version) else "saturate"),
    Mutant("E8M0 one up", ("E8M0",), "checks.torch_e8m0", lambda cast: lambda bits: cast(bits) + np.uint8(1)),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(atlas, PARAMS, MUTANTS)


def test_a_missing_library_is_absent_not_passed(arrays, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for check in (checks.ml_dtypes_finfo, checks.decode_tables, checks.library_casts, checks.e4m3_overflow):
        outcome = check(arrays, PARAMS)
        assert (outcome.status, outcome.detail) == (Status.ABSENT, "ml_dtypes is not installed")


def test_finfo_difference_that_nobody_named_fails(monkeypatch) -> None:
    monkeypatch.setattr(checks, "FINFO_DIFFERENCES", {})
    pytest.importorskip("torch")
    assert "e5m2fnuz" in checks.torch_finfo({}, PARAMS).detail
    assert checks.torch_finfo({}, PARAMS).status is Status.FAIL


def test_digested_arrays_are_what_run_gives(arrays) -> None:
    assert set(atlas.DIGESTED) == set(arrays)
    again = atlas.run(PARAMS, lambda fraction, text: None)
    assert all(np.array_equal(arrays[name], again[name], equal_nan=False) for name in arrays)


def test_density_of_known_formats(arrays) -> None:
    e2m1 = dict(zip(arrays["exponents_e2m1"].tolist(), arrays["density_e2m1"].tolist(), strict=True))
    assert e2m1 == {-1: 1, 0: 2, 1: 2, 2: 2}  # 0.5; 1 1.5; 2 3; 4 6
    assert arrays["density_e4m3"].tolist() == [1, 2, 4] + [8] * 14 + [7]  # 480 would be NaN
    assert arrays["density_fp32"].sum() == get("fp32").max_code
    assert arrays["density_e8m0"].tolist() == [1] * 255


def test_one_tenth(arrays) -> None:
    codes = dict(zip(NAMES, arrays["tenth_code"].tolist(), strict=True))
    assert codes["fp64"] == np.float64(0.1).view(np.uint64)
    assert codes["fp32"] == np.float32(0.1).view(np.uint32)
    assert codes["fp16"] == np.float16(0.1).view(np.uint16)
    assert (codes["bf16"], codes["e2m1"], codes["e8m0"]) == (0x3DCD, 0, 124)


def test_table_has_a_row_a_format(arrays) -> None:
    columns = atlas.table(arrays, PARAMS)
    assert {len(column) for column in columns.values()} == {len(TABLE)}
    fp16 = {name: column[NAMES.index("fp16")] for name, column in columns.items()}
    assert (fp16["max"], fp16["bias"], fp16["finite_codes"], fp16["code_of_0.1"]) == (65504, 15, 63488, "0x2e66")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figure(arrays: Arrays, tmp_path: Path, theme: str) -> None:
    figure, size = drawn(atlas, arrays, PARAMS, theme, tmp_path)
    assert len(figure.axes) == 4
    assert size < 300_000


# --- GPU cases --------------------------------------------------------------------------------------------------------

CASES = atlas.gpu_cases(PARAMS)


def test_cases_cover_every_pair_and_every_code() -> None:
    pairs = {(case.name.removeprefix("casts-from-"), target) for case in CASES for target in case.formats}
    assert pairs == {(a, b) for a in casts.TORCH for b in casts.TORCH if a != b}
    for case in CASES[1:]:
        bits = get(case.name.removeprefix("casts-from-")).bits
        assert np.array_equal(case.inputs()["codes"], np.arange(1 << bits))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_emulation_gives_the_bits_of_torch_on_the_cpu(case: Case) -> None:
    computed_on_cpu(case, nan_equal=True)


@pytest.mark.parametrize("name", [n for n in casts.TORCH if n != "fp32"])
def test_float32_sample_has_every_boundary(name: str) -> None:
    fmt = get(name)
    bits = set(casts.float32_sample(0, 1)["codes"].tolist())
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
    bits = set(casts.float32_sample(16, 997)["codes"].tolist())
    assert {0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0x477FE000, 0x477FF000} <= bits


def test_magnitudes_are_the_formats() -> None:
    for fmt in TABLE:
        if fmt.bits <= 16:
            codes = np.arange(0, fmt.max_code + 1, 7)
            assert casts.magnitudes(codes, fmt).tolist() == [fmt.magnitude(int(c)) for c in codes]


def test_e4m3_overflow_depends_on_the_version_of_torch() -> None:
    values = np.array([464, 465, np.inf, -1e9, np.nan], np.float32)
    assert casts.torch_cast(values, "e4m3", "2.13.0+cpu").tolist() == [126, 126, 126, 254, 127]
    assert casts.torch_cast(values, "e4m3", "2.12.1").tolist() == [126, 127, 127, 255, 127]
    assert tensors.release("3.0.0a0+git1") == (3, 0)


def test_cases_can_be_made_where_numba_and_matplotlib_are_missing() -> None:
    code = (
        "import sys\nfor name in ('numba', 'matplotlib', 'ml_dtypes'): sys.modules[name] = None\n"
        "import fplab.experiments.formats as f\n"
        "case = f.gpu_cases(f.QUICK)[3]\nprint(case.name, case.inputs()['codes'].size, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["casts-from-e4m3", "256", "False"]


# --- who is right? ------------------------------------------------------------------------------------------


def test_divergence_e8m0_ties() -> None:
    """ml_dtypes and torch round E8M0 ties up, as IEEE 754 says for one digit; gfloat goes by the code's parity."""
    gfloat = pytest.importorskip("gfloat")
    from gfloat.formats import format_info_ocp_e8m0

    ties = [1.5, 3.0, 6.0, 12.0]
    assert [gfloat.round_float(format_info_ocp_e8m0, x) for x in ties] == [2.0, 2.0, 8.0, 8.0]
    assert encode(np.array(ties), "e8m0").tolist() == [128, 129, 130, 131]
    assert [exact.round_to(exact.from_float(x), "e8m0")[0] for x in ties] == [128, 129, 130, 131]
    pytest.importorskip("ml_dtypes")
    assert libraries.rounded(np.array(ties, np.float32), "e8m0").tolist() == [128, 129, 130, 131]


def test_divergence_e8m0_below_the_smallest() -> None:
    """Just above 2^-127, ml_dtypes and torch go up to 2^-126 where 2^-127 is nearer; the tie at 1.5 * 2^-127 is one."""
    pytest.importorskip("ml_dtypes")
    bits = np.array([1, 0x00200000, 0x00400000, 0x00400001, 0x005FFFFF, 0x00600000, 0x00600001], np.uint32)
    assert encode(bits.view(np.float32), "e8m0").tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert libraries.rounded(bits.view(np.float32), "e8m0").tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert casts.torch_e8m0(bits).tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_params_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PARAMS.sample = 3  # type: ignore[misc]
