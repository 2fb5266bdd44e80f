"""Where the libraries of the tested environment disagree with IEEE 754 or with each other, one named test each.

None of these is the lab's own behaviour. A test that fails here says that an upgrade changed a library; the sentence in
its assertion is what the course teaches, and must then be corrected.
"""

import warnings
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from prove import scaled as routes

import fplab
from fplab import exact, scaled
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
    repaired = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    wrong = torch.finfo(torch.float8_e5m2fnuz).eps == 0.125
    assert wrong != repaired, "torch.finfo's eps of E5M2FNUZ has changed"
    assert fplab.formats.get("e5m2fnuz").eps == 0.25


def test_ml_dtypes_turns_nan_into_minus_zero_in_fp4():
    assert np.array([np.nan], np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)[0] == 8
    with pytest.raises(fplab.LabError, match="element 0 gives NaN, and e2m1 has none"):
        fplab.quantize([np.nan], "e2m1")


# --- block scales: what tests/prove/scaled.py excuses, one test each -----------------------------------------------
def block(a: float, element: float = 1.0) -> np.ndarray:
    """A block of 32 whose largest is ``a``."""
    return np.array([[a, *[element] * 31]], np.float32)


def scale_codes(route, x: np.ndarray, name: str, **changes: str) -> tuple[int, int]:
    """The scale's code by a library, and by the lab's variant that is called after it."""
    scheme = replace(scaled.SCHEMES[name], **changes)
    with np.errstate(all="ignore"):
        return int(route(x, scheme)[1].flat[0]), int(scaled.quantize(x, scheme).scales.flat[0])


def test_torchao_0_18_takes_the_ceiling_of_a_rounded_logarithm():
    x = block(float(np.nextafter(np.float32(3 * 2**19), np.float32(np.inf))))
    theirs, ours = scale_codes(routes.torchao_mx, x, "mxfp4", rule="rceil")
    assert (theirs, ours) == (127 + 18, 127 + 19), "torchao's RCEIL no longer rounds log2 just above a power of two"
    assert scale_codes(routes.torchao_main, x, "mxfp4", rule="rceil") == (ours, ours)


def test_dividing_by_the_largest_and_multiplying_by_its_reciprocal_differ():
    x = block(448 * 2.0**10)
    divided, multiplied = scale_codes(routes.torchao_mx, x, "mxfp8_e4m3", rule="rceil")
    assert (divided, multiplied) in [(137, 137), (137, 138)]
    x = block(1.75 * 2.0**9, 0.0)
    assert np.float32(x[0, 0]) * (np.float32(1) / np.float32(28)) != x[0, 0] / np.float32(28) or divided == multiplied


def test_a_scale_of_code_0_is_2_to_minus_126_in_torchao_0_18_and_1_in_transformer_engine():
    x = block(2.0**-130, 2.0**-131)
    assert scale_codes(routes.torchao_mx, x, "mxfp8_e4m3") == (0, 0)
    ours = scaled.quantize(x, "mxfp8").elements()[0, 0]
    theirs = fplab.decode(routes.torchao_mx(x, scaled.SCHEMES["mxfp8"])[0], "e4m3")[0, 0]
    assert ours == 2.0**-3, "code 0 is 2^-127"
    assert theirs == 2.0**-4, "torchao 0.18 no longer divides by 2^-126 where the code says 2^-127"
    te = scaled.quantize(x, "mxfp8", rule="rceil", variant="te")
    assert te.scales[0, 0] == 0
    assert te.codes[0, 0] == 0


@pytest.mark.parametrize(("rule", "theirs"), [("floor", 247), ("ceil", 247), ("even", 247), ("rceil", 254)])
def test_infinity_saturates_in_torchao_0_18_and_loses_its_block_since(rule, theirs):
    x = block(np.inf)
    assert scale_codes(routes.torchao_mx, x, "mxfp8_e4m3", rule=rule) == (theirs, 255)
    assert scale_codes(routes.torchao_main, x, "mxfp8_e4m3", rule=rule) == (255, 255)
    te = scaled.quantize(x, "mxfp8", rule="rceil", variant="te")
    assert te.scales[0, 0] == 254
    assert np.isnan(te.elements()[0, 0])
    assert (te.codes[0, 1:] == 0).all()


def test_a_nan_loses_its_block_in_torchao_and_only_itself_in_transformer_engine():
    x = block(np.nan)
    assert scale_codes(routes.torchao_mx, x, "mxfp8_e4m3") == (255, 255)
    te = scaled.quantize(x, "mxfp8", rule="rceil", variant="te")
    assert te.dequantize().tolist()[0][1:] == [1.0] * 31


def test_rounding_the_largest_up_to_infinity_is_nan_in_torchao_since_0_18():
    x = block(3.4e38)
    assert scale_codes(routes.torchao_mx, x, "mxfp4", rule="even") == (253, 255)
    assert scale_codes(routes.torchao_main, x, "mxfp4", rule="even") == (255, 255)


def test_torchao_takes_the_floor_of_a_rounded_logarithm_for_powers_of_two():
    x = np.full((1, 32), 448 * (1 + 2.0**-23) / 1024, np.float32)  # 448 / amax is just below 1024
    scheme = replace(scaled.SCHEMES["fp8_tensor"], variant="torchao", rule="pow2")
    assert routes.torchao_fp8(x, scheme)[1].item() == 1 / 1024, "torchao's power of two is no longer rounded up"
    assert scaled.quantize(x, scheme).scales.item() == 1 / 512


def test_microxcaling_takes_the_floor_of_a_rounded_logarithm():
    """For the largest float32 below 2^e with nearly every e (242 or 250 of 254, by the CPU): the scale is doubled."""
    e = np.arange(-126, 128)
    below = np.nextafter(np.exp2(e).astype(np.float32), np.float32(0))
    wrong = torch.floor(torch.log2(torch.from_numpy(below))).numpy() == e
    assert 230 < wrong.sum() <= 254, "the number of exponents at which FP32's log2 rounds up has changed"
    x = block(float(below[wrong][-1]), 0.0)  # just below a power of two: 4 of the scale there, 8 and so 6 of half of it
    theirs, ours = routes.microxcaling(x, scaled.SCHEMES["mxfp4"]), scaled.quantize(x, "mxfp4").dequantize()
    assert ours[0, 0] == 0.75 * theirs[0, 0]


def test_microxcaling_rounds_what_is_just_below_half_a_step_up():
    step = 2.0**-9  # the smallest E4M3, in a block with scale 1
    x = block(256.0, float(np.nextafter(np.float32(step / 2), np.float32(0))))
    assert routes.microxcaling(x, scaled.SCHEMES["mxfp8"])[0, 1] == step
    assert scaled.quantize(x, "mxfp8").dequantize()[0, 1] == 0


def test_nvfp4_of_two_libraries_differs_in_scales_codes_and_values():
    x = np.random.default_rng(1).standard_normal((64, 512)).astype(np.float32)
    x[0, :16] = 0
    te, ao = (scaled.quantize(x, "nvfp4", variant=variant) for variant in ("te", "torchao"))
    assert (te.scales[0, 0], ao.scales[0, 0]) == (0, 8), "a block of zeros: scale 0, and 2^-6"
    same = (te.scales == ao.scales).repeat(16, 1) & (te.codes == ao.codes)
    assert 0.97 < same.mean() < 1
    assert (te.dequantize() != ao.dequantize())[same].mean() > 0.1, "the same codes, dequantised in another order"
    tiny = np.array([[-0.0, 6.0] * 8], np.float32)
    assert scaled.quantize(tiny, "nvfp4").codes[0, 0] == 0
    assert scaled.quantize(tiny, "nvfp4", variant="torchao").codes[0, 0] == 8


def test_4_over_6_depends_on_how_its_error_is_measured():
    """In the values' units or, an option of Transformer Engine's, in the second scale's; summed or squared."""
    x = np.random.default_rng(2).standard_normal((64, 4096))
    x = np.round(4 * x).astype(np.float32) / 4  # few bits, and many ties
    scheme = replace(scaled.SCHEMES["nvfp4"], rule="4over6")
    ours = scaled.quantize(x, scheme).scales
    np.testing.assert_array_equal(routes.te_4over6(x, scheme)[1], ours)
    fast = (routes.te_4over6(x, scheme, fast=True)[1] != ours).mean()
    assert 0 < fast < 0.01, "only roundings of the errors differ"
    squared = (scaled.quantize(x, scheme, rule="4over6_mse").scales != ours).mean()
    assert 0.05 < squared < 0.5


def test_a_tensor_of_zeros_has_nan_scales_in_torchaos_nvfp4():
    x = np.zeros((1, 16), np.float32)
    theirs, ours = scale_codes(routes.torchao_nvfp4, x, "nvfp4", variant="torchao")
    assert (theirs & 127, ours) == (127, 127)  # its sign depends on the CPU
    assert scaled.quantize(x, "nvfp4").scales.item() == 0


def test_the_scale_of_a_tensor_of_zeros():
    x = np.zeros((1, 32), np.float32)
    found = [scaled.quantize(x, "fp8_tensor", variant=v).scales.item() for v in ("te", "torchao", "deepgemm")]
    assert found[0] == 1
    assert found[1] == routes.torchao_fp8(x, scaled.SCHEMES["fp8_tensor"])[1].item()
    assert found[2] == np.float32(1e-4) / np.float32(448)


@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_block", "fp8_row"])
def test_deepgemm_counts_no_largest_value_below_a_ten_thousandth(name):
    """As its source reads, ``x_amax.clamp(1e-4)``: below it the scale stays; from it on it follows the values."""
    for largest in (1e-6, 9.9e-5, 1.1e-4):
        x = np.full((1, 128), largest, np.float32)
        scheme = scaled.get_scheme(name, variant="deepgemm", rule="divide")
        (fast,), (slow,) = scaled.quantize(x, scheme).scales.ravel(), scaled.oracle.quantize(x, scheme)[1].ravel()
        assert fast == slow == max(np.float32(largest), np.float32(1e-4)) / np.float32(448)
