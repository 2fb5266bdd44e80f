"""Scaled quantisation: kernels against the oracle on fractions, shapes, bytes, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from helpers import raw

import fplab
from fplab import LabError, decode, scaled, set_num_threads
from fplab.formats import Format, Rounding
from fplab.kernels.convert import random_words
from fplab.scaled import SCHEMES, Scheme, oracle
from fplab.scaled.schemes import TABLE

f32 = np.float32
E5M3 = Format("ue5m3", 5, 3, signed=False)
MINE = Scheme("mine", "e3m2", E5M3, (1, 64))  # a scheme nobody ships
MXINT8 = Scheme("mxint8", Format("i8", 1, 6, 1, specials=SCHEMES["mxfp4"].element.specials), "e8m0")
EVERY = (*TABLE, MINE, MXINT8)
VARIED = [
    replace(scheme, rule=rule, variant=variant)
    for scheme in EVERY
    for rule in scaled.RULES[scheme.kind]
    for variant in scaled.VARIANTS[scheme.kind]
    if not rule.startswith("4over6") or (variant == "te" and scheme.element.name == "e2m1")
]
SQUARE = [
    replace(SCHEMES[name], variant=variant, **changes)
    for name, variant, changes in (
        ("nvfp4", "te", {"block": (16, 16)}), ("nvfp4", "torchao", {"block": (16, 16)}),
        ("nvfp4", "te", {"block": (16, 16), "rule": "4over6"}), ("nvfp4", "te", {"tensor": "", "rule": "4over6"}),
        ("nvfp4", "te", {"block": (7, 9), "rule": "4over6_mse"}),
        ("nvfp4", "te", {"tensor": "row", "rule": "4over6"}),
        ("nvfp4", "te", {"tensor": "row"}), ("nvfp4", "torchao", {"tensor": "row"}), ("nvfp4", "te", {"tensor": ""}),
        ("mxfp8", "torchao", {"block": (32, 32)}), ("mxfp4", "te", {"block": (2, 7)}),
        ("fp8_block", "te", {"block": (128, 128)}), ("fp8_tensor", "torchao", {"block": "row"}),
    )
]  # fmt: skip


def hard(shape: tuple[int, int], key: int, special: bool = True) -> np.ndarray:
    """A matrix whose rows differ in regime: ordinary, near powers of two, tiny, huge or zero, and any pattern."""
    rng = np.random.default_rng(key)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-4, 4, shape))).astype(f32)
    near = (np.exp2(rng.integers(-12, 12, shape)) * rng.choice([1, 7, 1.75, 3, 1.5, 0.75, 448], shape)).astype(f32)
    near = (near.view(np.uint32) + rng.integers(-1, 2, shape).astype(np.uint32)).view(f32)
    tiny_and_huge = np.resize(f32([3.35e38, 1e-40, 2e-38, 0, 1e37]).repeat(16), shape[1] + shape[0])
    scale = np.stack([tiny_and_huge[row : row + shape[1]] for row in range(shape[0])])
    regimes = x, near, np.clip(x, -1, 1) * scale, raw(key, x.size).view(f32).reshape(shape)
    x = np.stack([regimes[row % 4][row] for row in range(shape[0])])
    x = np.where(np.isfinite(x), x, f32(1))
    if special:
        x[1::5, 3::40], x[2::7, 20::50], x[3::5, 5::33] = np.nan, -np.inf, -0.0
    return x


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Bit equality, NaNs alike."""
    assert got.dtype == want.dtype
    alike = (got == want) & (np.signbit(got) == np.signbit(want)) if got.dtype == f32 else got == want
    np.testing.assert_array_equal(alike | ((got != got) & (want != want)), True)


@pytest.mark.parametrize("scheme", VARIED + SQUARE, ids=lambda s: f"{s.name}-{s.block}-{s.tensor}-{s.rule}-{s.variant}")
def test_every_rule_and_variant_is_its_definition(scheme: Scheme) -> None:
    for special in (False, True):
        x = hard((9, 75), 7, special)
        q = scaled.quantize(x, scheme)
        codes, scales, values = oracle.quantize(x, scheme)
        np.testing.assert_array_equal(q.codes, codes)
        same(q.scales, scales)
        same(q.dequantize(), values)


@pytest.mark.parametrize("name", ["mxfp8_e5m2", "mxfp6_e2m3", "nvfp4", "fp8_tensor"])
@pytest.mark.parametrize("mode", Rounding)
@pytest.mark.parametrize("bits", [32, 8])
def test_every_rounding_of_the_elements(name: str, mode: Rounding, bits: int) -> None:
    """A word for each element, or a byte of the words, which is a word whose other bits are zero."""
    if bits == 8 and not mode.random:
        return
    x, scheme, seed = hard((8, 67), 3, False), SCHEMES[name], 11
    words = np.empty(x.size, np.uint64)
    random_words(words, 0, np.uint64(seed))
    if bits == 8:
        words = words.astype("<u4").view(np.uint8)[: x.size].astype(np.uint64) << np.uint64(24)
    q = scaled.quantize(x, scheme, rounding=mode, seed=seed if mode.random else None, random_bits=bits)
    codes, scales, _ = oracle.quantize(x, scheme, mode, words.reshape(x.shape))
    np.testing.assert_array_equal(q.codes, codes)
    same(q.scales, scales)


SHAPES = [((3, 4, 50), -1), ((3, 50, 4), 1), ((70,), 0), ((40, 3, 5), 0), ((2, 40, 64), 2)]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_any_shape_along_any_axis(name: str, shape: tuple[int, ...], axis: int) -> None:
    """An array along an axis is the matrix with that axis last, whatever memory it lies in."""
    x = np.random.default_rng(1).standard_normal(shape).astype(f32)
    moved = np.moveaxis(x, axis, -1)
    wide, flat = scaled.quantize(x, name, axis), scaled.quantize(moved.reshape(-1, shape[axis]), name)
    assert wide.shape == shape
    np.testing.assert_array_equal(np.moveaxis(wide.codes, axis, -1).reshape(flat.codes.shape), flat.codes)
    np.testing.assert_array_equal(np.moveaxis(wide.scales, axis, -1).reshape(flat.scales.shape), flat.scales)
    back = wide.dequantize()
    np.testing.assert_array_equal(np.moveaxis(back, axis, -1).reshape(flat.codes.shape), flat.dequantize())
    out = np.empty(shape, f32, order="F")
    assert wide.dequantize(out=out) is out
    np.testing.assert_array_equal(out, back)
    for part in ("codes", "scales"):
        np.testing.assert_array_equal(getattr(wide.packed(), part), getattr(flat.packed(), part))
    np.testing.assert_array_equal(wide.elements() * np.float64(1), decode(wide.codes, wide.scheme.element))


@pytest.mark.parametrize(("name", "block"), [("mxfp8", (32, 32)), ("nvfp4", (16, 16)), ("fp8_block", (128, 128))])
def test_blocks_of_several_rows_stay_in_their_matrix(name: str, block: tuple[int, int]) -> None:
    x = np.random.default_rng(2).standard_normal((3, 45, 200)).astype(f32)
    amax = np.abs(x).max() if name == "nvfp4" else None
    whole = scaled.quantize(x, name, block=block, rounding="stochastic", seed=4)
    for i, one in enumerate(x):
        alone = scaled.quantize(one, name, block=block, amax=amax)
        np.testing.assert_array_equal(whole.scales[i], alone.scales)
        np.testing.assert_array_equal(scaled.quantize(x, name, block=block).codes[i], alone.codes)
    words = scaled.quantize(x[:1].repeat(3, 0), name, block=block, rounding="stochastic", seed=4).codes
    assert (words[0] != words[1]).any(), "each element of the stack draws a word of its own"
    along_first = scaled.quantize(x[0].T, name, 0, block=block)
    first = scaled.quantize(x[0], name, block=block)
    np.testing.assert_array_equal(along_first.scales.T, first.scales)
    each_row = np.repeat(first.scale_values(), block[0], 0)[:45]
    np.testing.assert_array_equal(first.scale_values(each_row=True), each_row)
    np.testing.assert_array_equal(along_first.scale_values(each_row=True), each_row.T)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "fp8_row", "fp8_tensor"])
def test_long_arrays_do_not_depend_on_threads(name: str) -> None:
    x = np.random.default_rng(3).standard_normal(3 << 16).astype(f32)
    for shape in ((1, -1), (3, -1), (-1, 48)):
        for options in (
            {},
            {"rounding": "stochastic", "seed": 1},
            {"rounding": "stochastic", "seed": 1, "random_bits": 8},
        ):
            found = []
            for threads in (1, 2, 5):
                set_num_threads(threads)
                q = scaled.quantize(x.reshape(shape), name, **options)
                found.append((q.codes.tobytes(), q.scales.tobytes(), q.dequantize().tobytes()))
            assert found[0] == found[1] == found[2]
    set_num_threads(None)


def test_few_random_bits_round_up_as_often_as_the_share_says() -> None:
    x = np.append(np.full(1 << 16, f32(1.125)), f32(6))
    for bits in (8, 32):
        q = scaled.quantize(x, "mxfp4", block=(1, x.size), rounding="stochastic", seed=1, random_bits=bits)
        assert set(q.dequantize()[:-1].tolist()) == {1.0, 1.5}
        assert abs((q.codes == 3).mean() - 0.25) < 5 * (0.25 * 0.75 / x.size) ** 0.5


def test_nothing_one_thing_and_other_dtypes() -> None:
    for name in SCHEMES:
        for shape in ((0,), (0, 32), (3, 0), (2, 0, 5)):
            assert scaled.quantize(np.zeros(shape), name).dequantize().shape == shape
        assert scaled.quantize(3.0, name).dequantize() == pytest.approx(3.0, rel=0.07)
        assert scaled.quantize(3.0, name).shape == ()
    x = np.random.default_rng(5).standard_normal((4, 64))
    np.testing.assert_array_equal(
        scaled.quantize(x, "mxfp6_e3m2").codes, scaled.quantize(x.astype(f32), "mxfp6_e3m2").codes
    )
    half = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(scaled.quantize(half).codes, scaled.quantize(half.astype(f32)).codes)


def test_a_given_amax_scales_in_place_of_the_own() -> None:
    x = np.array([1.0, -3.0, 6.0, 1000.0], f32)
    delayed = scaled.quantize(x, "fp8_tensor", amax=224.0)
    assert delayed.scales.item() == 0.5
    assert delayed.dequantize().tolist() == [1.0, -3.0, 6.0, 224.0]
    assert scaled.quantize(x, "nvfp4", variant="torchao", amax=448 * 6.0).global_scale == 1
    rows = replace(SCHEMES["nvfp4"], tensor="row")
    x = np.resize(x, 32)
    two = scaled.quantize(np.stack([x, 2 * x]), rows, amax=[10.0, 20.0])
    assert two.amax.shape == (2, 1)
    np.testing.assert_array_equal(two.codes[0], two.codes[1])


@pytest.mark.parametrize("block", [(1, 128), (128, 128), "row", "tensor"])
@pytest.mark.parametrize("variant", ["te", "torchao", "deepgemm"])
@pytest.mark.parametrize("rule", ["divide", "pow2"])
def test_an_infinite_scale_of_a_block_is_the_largest_of_the_tensors_format(rule: str, variant: str, block: Any) -> None:
    """Transformer Engine's compute_scale_from_types, whose input is BF16 or FP32; a tensor's scale takes FP32's."""
    x = np.full((128, 128), 2.0**-124, f32)
    x[:, 1::2] = -(2.0**-126)
    scheme = replace(SCHEMES["fp8_block"], rule=rule, variant=variant, block=block)
    of_bf16, of_fp32 = (oracle.quantize(x[:2], scheme, dtype=fmt) for fmt in ("bf16", "fp32"))
    for given, own, want in (
        (x.astype(ml_dtypes.bfloat16), {}, of_bf16), (torch.from_numpy(x).bfloat16(), {}, of_bf16),
        (x, {"dtype": "bf16"}, of_bf16), (x, {"dtype": torch.bfloat16}, of_bf16), (x, {}, of_fp32),
        (x.astype(ml_dtypes.bfloat16), {"dtype": "fp32"}, of_fp32),
    ):  # fmt: skip
        found = scaled.quantize(given, scheme, **own)
        assert found.codes[:2].tobytes() == want[0].tobytes()
        assert found.scales.reshape(-1)[0].tobytes() == want[1].reshape(-1)[0].tobytes()
    if rule == "divide" and variant == "te" and isinstance(block, tuple):
        largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
        assert of_bf16[1][0, 0] == f32(1) / f32(largest) != of_fp32[1][0, 0] == f32(1) / np.finfo(f32).max
    else:
        assert of_bf16[1].tobytes() == of_fp32[1].tobytes()


def test_bytes_as_the_hardware_takes_them() -> None:
    """Against torchao's own packing, and 6-bit codes against an integer of all bits."""
    from torchao.prototype.mx_formats.utils import to_blocked

    x = np.random.default_rng(6).standard_normal((150, 224)).astype(f32)
    for name in ("mxfp4", "nvfp4", "mxfp8"):
        q = scaled.quantize(x, name)
        packed = q.packed()
        np.testing.assert_array_equal(packed.scales, to_blocked(torch.from_numpy(q.scales)).numpy())
        pairs = q.codes[:, 0::2] | q.codes[:, 1::2] << 4 if q.scheme.element.bits == 4 else q.codes
        np.testing.assert_array_equal(packed.codes, pairs.reshape(-1))
        assert q.nbytes == pairs.size + q.scales.size + (4 if name == "nvfp4" else 0)
    q = scaled.quantize(x[:1, :40], "mxfp6_e2m3")  # a row of 40 is filled up to two blocks of 32
    whole = sum(int(code) << 6 * i for i, code in enumerate(q.codes[0]))
    assert q.packed().codes.tobytes() == whole.to_bytes(48, "little")
    square = scaled.quantize(x, "nvfp4", block=(16, 16))
    each_row = np.repeat(square.scales, 16, 0)[:150]
    np.testing.assert_array_equal(square.packed().scales, to_blocked(torch.from_numpy(each_row)).numpy())
    assert scaled.quantize(x, "fp8_row").packed().scales.view("<f4").shape == (150,)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "e4m3", fplab.Format("wider", 8, 22)], ids=str)
@pytest.mark.parametrize("size", [1, 2, 16, 32])
def test_hadamard_is_its_definition(dtype: str | fplab.Format, size: int) -> None:
    x = np.append(hard((9, 64), 5).reshape(-1), raw(9, 64).view(f32)).reshape(-1, 64)
    signs = np.resize(scaled.SIGNS, size).tolist()
    want = [oracle.hadamard(block, signs, dtype) for block in x.reshape(-1, size).tolist()]
    same(scaled.hadamard(x, size=size, dtype=dtype).reshape(-1, size), np.array(want, f32))


def test_hadamard_is_rounded_once_where_its_factor_is_a_power_of_two() -> None:
    x = np.zeros(16, f32)
    x[:2] = 1 + 2.0**-23, 2.0**-24 + 2.0**-46  # their sum lies just above a midpoint
    assert scaled.hadamard(x, signs=[1])[0] * 4 == 1 + 2.0**-22
    x[:2] = [float.fromhex(v) for v in ("0x1.2ce764p+26", "0x1.dd95fep+2")]
    of_eight = scaled.hadamard(x[:8], size=8, signs=[1])[0]
    quotient_squared = sum(map(Fraction, x.tolist())) ** 2 / 8
    assert (Fraction(float(of_eight)) + 1) ** 2 < quotient_squared  # beyond the midpoint to the next number, 2 above


def test_hadamard_is_the_product_with_the_matrix_of_others() -> None:
    """Transformer Engine's matrix, by torch, and its product in FP64: exact where values are alike in size."""
    x = np.random.default_rng(8).standard_normal((3, 1 << 14, 32)).astype(f32)
    x = np.where(abs(x) < 2.0**-14, f32(0.5), x)
    for size in (16, 32):
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while len(matrix) < size:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        matrix = torch.from_numpy(np.resize(scaled.SIGNS, (size, 1))) * matrix
        for dtype, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            given = torch.from_numpy(x).to(kind).float()
            exact = (given.reshape(-1, size).double() @ matrix).numpy() * (1 / np.sqrt(size))
            want = exact.astype(f32) if dtype == "fp32" else fplab.quantize(exact, "bf16").astype(f32)
            same(scaled.hadamard(given.numpy(), size=size, dtype=dtype).reshape(-1, size), want)
    same(np.moveaxis(scaled.hadamard(np.moveaxis(x, -1, 0), 0), 0, -1), scaled.hadamard(x))
    square = scaled.hadamard(np.eye(16))
    np.testing.assert_array_equal(square @ square.T, np.eye(16))


quantize = scaled.quantize
REFUSED = [
    (lambda: scaled.hadamard([1.0] * 24), r"^fplab\.scaled\.hadamard.*x has 24 values along axis -1; size=16 allows"),
    (lambda: scaled.hadamard([1.0] * 24, size=24), r"size=24 is not possible; allowed: powers of two\."),
    (lambda: scaled.hadamard([1.0] * 2, size=2, signs=[1, 0]), r"signs=\[1, 0\] .*; allowed: a sequence of 1 and -1\."),
    (lambda: quantize([1.0], "mxfp4", rule="4over6"), r"unknown rule of e8m0 scales '4over6'"),
    (
        lambda: quantize([1.0], "nvfp4", rule="4over6", variant="torchao"),
        r"rule='4over6' is Transformer Engine's of E2M1: variant='te', blocks such as \(1, 16\)\.",
    ),
    (lambda: quantize([1.0], "mxpf8"), r"^fplab\.scaled\.quantize\(\[1\.0\], 'mxpf8'\): unknown .*mean 'mxfp8'\?$"),
    (lambda: quantize([1.0], rule="up"), r"unknown rule of e8m0 scales 'up'\. Allowed: floor, ceil, even, rceil\."),
    (lambda: quantize([1.0], "nvfp4", variant="ao"), r"unknown variant of e4m3 scales 'ao'\. Allowed: te, torchao"),
    (lambda: quantize([1.0], block=32), r"block=32 is not possible; allowed: .*\(1, 32\)"),
    (lambda: quantize([1.0], block=(32, 32)), r"block=\(32, 32\) needs two dimensions; x has one\."),
    (lambda: quantize([1.0], axis=1), r"axis=1 is not possible; allowed: -1 to 0"),
    (lambda: quantize([1.0], rounding="stochastic"), r'rounding="stochastic" needs seed='),
    (lambda: quantize([1.0], rounding="stochastic", seed=1, random_bits=16), r"random_bits=16 .* allowed: 32, 8\."),
    (
        lambda: quantize([1.0], amax=2.0),
        r"amax is given, and mxfp8_e4m3 has a scale for each \(1, 32\); leave it out\.",
    ),
    (lambda: quantize([1.0], "nvfp4", amax=-1.0), r"amax has shape \(\); it must be a number that is not negative\."),
    (lambda: Scheme("m", "fp16", "e8m0"), r"element='fp16' is not possible; allowed: signed formats of at most 8 bits"),
    (
        lambda: Scheme("m", "e2m1", "bf16"),
        r"scale='bf16' is not possible; allowed: e8m0, fp32, or a format of at most 8",
    ),
    (lambda: Scheme("m", "e2m1", "e8m0", tensor="tensor"), r"tensor='tensor' is a second scale, beside narrow ones"),
    (lambda: Scheme("m", "e2m1", "e4m3", (2, 16), "row"), r"tensor='row' .* block=\(2, 16\) has several rows\."),
    (lambda: Scheme("m", "e2m1", "e4m3", tensor="column"), r"unknown second scale 'column'\. Allowed: tensor, row\."),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_what_is_refused_says_what_is_allowed(call: Callable[[], object], text: str) -> None:
    with pytest.raises(LabError, match=text):
        call()
