"""Grids, scales, zero points, packing: the array versions against Fractions and against torch."""

from fractions import Fraction

import numpy as np
import pytest
import refusals
import torch
from hypothesis import given
from hypothesis import strategies as st

from fplab import integers
from fplab.hardware.cases import philox_bits
from fplab.integers import GRIDS, Grid, grids, oracle
from fplab.integers.affine import SMALLEST_SCALE


def floats(key: int, n: int, low: int = -8, high: int = 8) -> np.ndarray:
    """Random FP32 numbers of both signs with exponents from ``low`` to ``high``."""
    bits = philox_bits(key, n)
    exponent = (philox_bits(key + 1, n) % np.uint32(high - low + 1)).astype(np.int64) + low + 127
    return ((bits & np.uint32(0x807FFFFF)) | (exponent.astype(np.uint32) << np.uint32(23))).view(np.float32)


def near_ties(scale: float, grid: Grid) -> np.ndarray:
    """Every half step of a grid and beyond its ends, with the three floats on either side."""
    halves = np.float32(scale) * (np.arange(2 * grid.low - 6, 2 * grid.high + 7).astype(np.float32) / 2)
    around = [halves]
    for toward in (np.float32(-np.inf), np.float32(np.inf)):
        x = halves
        for _ in range(3):
            x = np.nextafter(x, toward)
            around.append(x)
    return np.unique(np.concatenate(around))


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.name)
@pytest.mark.parametrize("scale", [1.0, 0.1, 0.0078431377, 3.7e-12, 2.5e20])
def test_quantise_is_the_definition_at_every_tie(grid: Grid, scale: float) -> None:
    scale = float(np.float32(scale))
    for zero in sorted({grid.low, (grid.low + grid.high) // 2, 0, grid.high}):
        how = integers.Affine(np.float32(scale), np.int32(zero), grid)
        x = near_ties(scale, grid) - np.float32(zero) * np.float32(scale)
        codes = integers.quantize(x, how)
        assert codes.dtype == grid.dtype
        assert codes.tolist() == [oracle.quantize(float(v), scale, zero, grid) for v in x]
        back = integers.dequantize(codes, how)
        assert back.dtype == np.float32
        assert [Fraction(float(v)) for v in back] == [oracle.dequantize(c, scale, zero) for c in codes.tolist()]
        assert {grid.low, grid.high} <= set(codes.tolist())


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.name)
def test_schemes_are_the_definition(grid: Grid) -> None:
    ends = np.sort(floats(7, 400, -126, 125).reshape(-1, 2), axis=1)
    ends[:5] = [[0, 0], [-2, -1], [1e-45, 3e-45], [-5, 5], [-2.5, grid.steps - 2.5]]  # the last: a tie
    how = integers.affine(ends[:, 0], ends[:, 1], grid)
    most = integers.symmetric(np.abs(ends).max(axis=1), grid)
    for i, (low, high) in enumerate(ends.tolist()):
        scale, zero = oracle.affine(low, high, grid)
        assert (Fraction(float(how.scale[i])), int(how.zero_point[i])) == (scale, zero)
        assert Fraction(float(most.scale[i])) == oracle.symmetric(max(-low, high), grid)
    assert not most.zero_point.any()


def test_granularities_have_the_shapes_they_say() -> None:
    x = floats(1, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    shapes = {"tensor": (), "row": (2, 3, 4, 1), "column": (2, 3, 1, 5), "channel": (2, 1, 1, 1)}
    for along, shape in shapes.items():
        amax = integers.absmax(x, along)
        low, high = integers.extremes(x, along)
        assert amax.shape == low.shape == high.shape == shape
        assert np.array_equal(amax, np.maximum(-low, high).clip(0)) or (low > 0).any() or (high < 0).any()
    assert integers.absmax(x, "channel")[1, 0, 0, 0] == np.abs(x[1]).max()
    assert integers.absmax(x, "column")[1, 2, 0, 3] == np.abs(x[1, 2, :, 3]).max()


def test_torchs_observers_give_the_same_scales() -> None:
    observer = pytest.importorskip("torch.ao.quantization.observer")
    x = torch.from_numpy(floats(5, 4096)) + 0.25
    asymmetric = observer.MinMaxObserver(dtype=torch.quint8, qscheme=torch.per_tensor_affine, eps=0.0)
    asymmetric(x)
    scale, zero = asymmetric.calculate_qparams()
    how = integers.scheme(x.numpy(), "uint8", zero_point=True)
    assert (float(how.scale), int(how.zero_point)) == (scale.item(), zero.item())
    narrow = observer.MinMaxObserver(
        dtype=torch.qint8, qscheme=torch.per_tensor_symmetric, quant_min=-127, quant_max=127, eps=0.0
    )
    narrow(x)
    assert float(integers.scheme(x.numpy(), "int8").scale) == narrow.calculate_qparams()[0].item()


def test_torchs_quantised_tensors_have_the_same_codes() -> None:
    x = np.concatenate([near_ties(0.1, grids.get("uint8")), floats(9, 2048)])
    for zero in (0, 37, 255):
        how = integers.Affine(np.float32(0.1), np.int32(zero), grids.get("uint8"))
        theirs = torch.fake_quantize_per_tensor_affine(torch.from_numpy(x), float(how.scale), zero, 0, 255)
        assert np.array_equal(integers.dequantize(integers.quantize(x, how), how), theirs.numpy())


def test_tiny_and_zero_tensors_have_a_scale_with_a_finite_inverse() -> None:
    for amax in (0.0, 1e-45, 1e-38):
        how = integers.symmetric(amax)
        assert how.scale == SMALLEST_SCALE
        assert integers.quantize(np.array([amax, -amax]), how).tolist() == [
            round(amax * 2.0**126),
            -round(amax * 2.0**126),
        ]


# --- four bits --------------------------------------------------------------------------------------------------
def test_every_pair_of_nibbles_packs_and_unpacks() -> None:
    for signed, low in ((True, -8), (False, 0)):
        codes = np.array([[a, b] for a in range(low, low + 16) for b in range(low, low + 16)])
        packed = integers.pack_int4(codes)
        assert packed.shape == (256, 1)
        assert packed[:, 0].tolist() == [(a & 15) | (b & 15) << 4 for a, b in codes.tolist()]
        again = integers.unpack_int4(packed, 2, signed)
        assert again.dtype == (np.int8 if signed else np.uint8)
        assert np.array_equal(again, codes)


@given(st.lists(st.integers(-8, 7), max_size=9))
def test_packing_any_length(codes: list[int]) -> None:
    packed = integers.pack_int4(np.array(codes, np.int8))
    assert packed.size == (len(codes) + 1) // 2
    assert integers.unpack_int4(packed, len(codes)).tolist() == codes


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize(("n", "k", "group"), [(3, 8, 4), (2, 7, 3), (4, 5, 128), (1, 1, 1)])
def test_groups_are_quantised_each_by_itself(n: int, k: int, group: int, zero_point: bool) -> None:
    w = floats(21, n * k).reshape(n, k)
    grid = "int4_full" if zero_point else "int4"
    found = integers.quantize_groups(w, group, grid, zero_point)
    values = found.values()
    for row in range(n):
        for number, start in enumerate(range(0, k, min(group, k))):
            part = w[row, start : start + group]
            how = integers.scheme(part, grid, zero_point=zero_point)
            assert found.scale[row, number] == how.scale
            assert found.zero_point[row, number] == how.zero_point
            want = integers.dequantize(integers.quantize(part, how), how)
            assert np.array_equal(values[row, start : start + group], want)
    assert found.packed.shape == (n, (k + 1) // 2)


def test_bytes_of_groups() -> None:
    w = floats(2, 256 * 512).reshape(256, 512)
    assert integers.quantize_groups(w, 128).bytes == 256 * 512 // 2 + 2 * 256 * 4
    assert integers.quantize_groups(w, 128, "int4_full", True).bytes == 256 * 512 // 2 + 2 * 256 * 4 + 256 * 4 // 2


# --- refusals ---------------------------------------------------------------------------------------------------
test_refusals = refusals.matching(
    (lambda: integers.quantize([1.0, np.nan], integers.symmetric(1.0)),
     r"integers\.quantize\(.*\): x: element 1 is nan, and integers have neither NaN nor infinity"),
    (lambda: integers.absmax([np.inf]), "element 0 is inf"),
    (lambda: integers.absmax([]), r"x has shape \(0,\) and no element"),
    (lambda: integers.absmax([1.0], "rows"), r"unknown granularity 'rows'\. .* Did you mean 'row'\?"),
    (lambda: integers.absmax([1.0], "column"), 'along="column" needs a matrix'),
    (lambda: integers.symmetric(-1.0), "amax=-1.0 is negative"),
    (lambda: integers.symmetric(1.0, "int5"), r"unknown integer grid 'int5'\. Allowed: int8, int8_full"),
    (lambda: integers.affine(-3e38, 3e38), "high - low overflows FP32"),
    (lambda: integers.affine(1.0, 0.0), "low must nowhere exceed high"),
    (lambda: integers.Affine(np.float32(0), np.int32(0), GRIDS[0]), "scale 0.0 is not possible"),
    (lambda: integers.Affine(np.float32(1), np.int32(128), GRIDS[0]),
     "zero points must be integers of the grid int8, -127 to 127"),
    (lambda: integers.dequantize([1.5], integers.symmetric(1.0)), "codes have dtype float64"),
    (lambda: integers.dequantize([-128], integers.symmetric(1.0)), "codes hold -128; int8 is -127 to 127"),
    (lambda: integers.quantize([[1.0]], integers.symmetric([1.0, 2.0, 3.0])), "does not broadcast"),
    (lambda: Grid("wide", -5, 200), "does not fit 8 bits"),
    (lambda: integers.pack_int4([8, -1]), "codes range from -1 to 8; four bits hold"),
    (lambda: integers.pack_int4([0.5]), "they must be an array of integers"),
    (lambda: integers.unpack_int4(np.zeros(2, np.uint8), 5), "n=5 is not possible; allowed: 3 to 4"),
    (lambda: integers.quantize_groups(np.zeros((2, 2)), 0), "group=0 is not possible"),
    (lambda: integers.quantize_groups(np.zeros((2, 2)), 2, "int8"), "grid int8 has 8 bits; two codes a byte"),
    (lambda: integers.quantize_groups(np.zeros(4), 2), "weights are"),
)  # fmt: skip


def test_bits_of_grids() -> None:
    assert {g.name: (g.bits, g.steps, g.signed) for g in GRIDS} == {
        "int8": (8, 254, True), "int8_full": (8, 255, True), "uint8": (8, 255, False),
        "int4": (4, 14, True), "int4_full": (4, 15, True), "uint4": (4, 15, False),
        "int3": (3, 6, True), "uint3": (3, 7, False),
    }  # fmt: skip
