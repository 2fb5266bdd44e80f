"""Where the libraries of the tested environment disagree with IEEE 754 or with each other, one named test each.

None of these is the lab's own behaviour. A test that fails here says that an upgrade changed a library; the sentence in
its assertion is what the course teaches, and must then be corrected.
"""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

import fplab
from fplab import exact
from fplab.experiments.torch_bits import WITH_FMA

torch = pytest.importorskip("torch")
gfloat = pytest.importorskip("gfloat")
gfloat_formats = pytest.importorskip("gfloat.formats")

E8M0 = ml_dtypes.float8_e8m0fnu
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def torch_cast(x: list[float], dtype: torch.dtype, source: torch.dtype = torch.float32) -> list[float]:
    return torch.tensor(x, dtype=source).to(dtype).to(torch.float64).tolist()


def test_e4m3_overflow_saturates_in_torch_from_2_13_on():
    got = torch_cast([464.0, 464.0001, 1e6, float("inf")], torch.float8_e4m3fn)
    if TORCH >= (2, 13):
        assert got == [448.0] * 4, "torch no longer saturates E4M3 overflow to 448"
    else:
        assert got[0] == 448.0
        assert np.isnan(got[1:]).all(), "torch before 2.13 gave NaN for E4M3 overflow"


def test_e4m3_overflow_is_nan_in_ml_dtypes():
    got = np.array([464.0, 464.0001, 1e6, np.inf], np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert got[0] == 448
    assert np.isnan(got[1:]).all(), "ml_dtypes no longer gives NaN for E4M3 overflow"


def test_the_lab_does_either_by_an_explicit_argument():
    x = [464.0, 464.0001, 1e6, np.inf]
    assert fplab.quantize(x, "e4m3", overflow="saturate").tolist() == [448.0] * 4
    assert np.isnan(fplab.quantize(x, "e4m3", overflow="nan")[1:]).all()


def test_torch_rounds_float64_to_fp16_twice():
    x = 65520 - 2.0**-30
    assert torch_cast([x], torch.float16, torch.float64) == [np.inf], "torch no longer rounds float64 to FP16 twice"
    with np.errstate(over="ignore"):
        assert np.float64(x).astype(np.float16) == 65504, "numpy's float64 to FP16 was right"
    assert fplab.quantize(x, "fp16") == 65504


@pytest.mark.parametrize(("fmt", "just_above"), [("bf16", 1 + 2.0**-8), ("e4m3", 1 + 2.0**-4), ("e5m2", 1 + 2.0**-3)])
def test_float64_to_bf16_and_fp8_is_rounded_twice_by_torch_and_ml_dtypes(fmt, just_above):
    x = just_above + 2.0**-40  # above a midpoint by less than float32 sees
    names = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    right = 1 + fplab.formats.get(fmt).eps
    assert fplab.quantize(x, fmt) == right
    assert exact.decode(exact.round_to(exact.from_float(x), fmt)[0], fmt).value == right
    assert torch_cast([x], getattr(torch, names[fmt]), torch.float64) == [1.0], "torch no longer rounds float64 twice"
    theirs = np.float64(x).astype(getattr(ml_dtypes, names[fmt]))
    assert float(theirs) == 1.0, "ml_dtypes no longer rounds float64 twice"


def test_torch_fp32_sqrt_is_not_correctly_rounded_where_it_is_vectorised():
    x = np.random.Philox(7).random_raw(1 << 20).astype(np.uint32) & np.uint32(0x7F7FFFFF)
    x = np.maximum(x, np.uint32(0x00800000)).view(np.float32)
    right = np.sqrt(x.astype(np.float64)).astype(np.float32)  # float64 and one more rounding: exact for 24 bits
    assert (np.sqrt(x) == right).all(), "numpy's FP32 sqrt was correctly rounded"
    theirs = torch.sqrt(torch.from_numpy(x)).numpy()
    wrong = int((theirs != right).sum())
    if not wrong:
        pytest.skip(f"torch's FP32 sqrt is right on this CPU ({torch.backends.cpu.get_cpu_capability()})")
    away = np.abs(theirs.view(np.int32).astype(np.int64) - right.view(np.int32))
    assert away.max() == 1, f"torch's FP32 sqrt was off by one bit at most; {wrong} of {x.size} differ"


CAPABILITY = torch.backends.cpu.get_cpu_capability()
needs_fma = pytest.mark.skipif(CAPABILITY not in WITH_FMA, reason=f"torch has no fused multiply-add here: {CAPABILITY}")


def _operands() -> list[np.ndarray]:
    words = np.random.Philox(11).random_raw(3 * 4096).astype(np.uint32)
    return list(((words >> 9) | np.uint32(0x3F800000)).view(np.float32).reshape(3, 4096) - np.float32(1.5))


@needs_fma
def test_torch_on_the_cpu_contracts_add_with_alpha():
    a, b, _ = _operands()
    alpha = np.float32(0.1)
    got = torch.add(torch.from_numpy(a), torch.from_numpy(b), alpha=float(alpha)).numpy()
    fused, stepped = fplab.fma(b, alpha, a, "fp32"), a + b * alpha
    assert (got == fused).all(), "torch.add(alpha=) in FP32 was a fused multiply-add on the CPU"
    assert (fused != stepped).any()


@needs_fma
def test_torch_on_the_cpu_contracts_addcmul():
    a, b, c = _operands()
    got = torch.addcmul(*map(torch.from_numpy, (a, b, c))).numpy()
    fused, stepped = fplab.fma(b, c, a, "fp32"), a + b * c
    assert (got == fused).all(), "torch.addcmul in FP32 was a fused multiply-add on the CPU"
    assert (fused != stepped).any()


def test_torch_on_the_cpu_does_not_contract_addcdiv():
    a, b, c = _operands()
    c = np.where(c == 0, np.float32(1), c)
    got = torch.addcdiv(*map(torch.from_numpy, (a, b, c))).numpy()
    assert (got == a + b / c).all(), "torch.addcdiv in FP32 was a division and an addition"


def test_torch_compile_drops_a_round_trip_unless_told_otherwise():
    """Only the setting is looked at: compiling takes a C++ compiler and half a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch._inductor import config
    assert config.emulate_precision_casts is False, "torch.compile now keeps x.to(float16).to(float32) by default"


def test_torch_int_mm_wraps():
    row = torch.full((32, 131072), -128, dtype=torch.int8)
    assert torch._int_mm(row, row.T)[0, 0] == -(2**31), "torch._int_mm no longer wraps modulo 2**32"


def test_e8m0_ties_go_up_in_ml_dtypes_and_torch_and_by_code_parity_in_gfloat():
    ties, up = [1.5, 3.0, 6.0, 12.0], [2.0, 4.0, 8.0, 16.0]
    assert fplab.quantize(ties, "e8m0").tolist() == up, "IEEE 754-2019 4.3.1: with one digit, the larger magnitude"
    assert np.array(ties, np.float32).astype(E8M0).astype(np.float32).tolist() == up
    assert torch_cast(ties, torch.float8_e8m0fnu) == up
    theirs = gfloat_formats.format_info_ocp_e8m0
    got = [float(gfloat.round_float(theirs, t, gfloat.RoundMode.TiesToEven, False)) for t in ties]
    assert got == [2.0, 2.0, 8.0, 8.0], "gfloat no longer rounds E8M0 ties to the even code"


def test_e8m0_just_above_its_least_value_goes_too_far_up_in_ml_dtypes_and_torch():
    x = 1.25 * 2.0**-127
    assert fplab.quantize(x, "e8m0") == 2.0**-127
    assert float(np.float32(x).astype(E8M0)) == 2.0**-126, "ml_dtypes no longer misrounds E8M0 above 2**-127"
    assert torch_cast([x], torch.float8_e8m0fnu) == [2.0**-126], "torch no longer misrounds E8M0 above 2**-127"


def test_torch_gives_e8m0_of_zero_and_of_minus_one_a_number():
    assert torch_cast([0.0, -1.0], torch.float8_e8m0fnu) == [2.0**-127, 1.0]
    assert np.isnan(np.array([0.0, -1.0], np.float32).astype(E8M0).astype(np.float32)).all()
    assert np.isnan(fplab.quantize([0.0, -1.0], "e8m0")).all()


def test_torch_finfo_has_the_wrong_eps_for_e5m2fnuz():
    assert torch.finfo(torch.float8_e5m2fnuz).eps == 0.125, "torch.finfo's eps of E5M2FNUZ has changed"
    assert fplab.formats.get("e5m2fnuz").eps == 0.25


def test_ml_dtypes_turns_nan_into_minus_zero_in_fp4():
    assert np.array([np.nan], np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)[0] == 8
    with pytest.raises(fplab.LabError, match="element 0 gives NaN, and e2m1 has none"):
        fplab.quantize([np.nan], "e2m1")
