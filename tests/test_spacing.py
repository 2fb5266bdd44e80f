"""Neighbours, ulp and classes, against the list of all values of a format."""

from fractions import Fraction

import numpy as np
import pytest
from helpers import EVERY, TABLED, WIDE, Array, assert_same, fmt_id, regimes
from prove.grid import grid

import fplab
from fplab import exact
from fplab.formats import Format, get


def finite_values(fmt: Format) -> Array:
    """All finite values, ascending, each once."""
    values = grid(fmt).decode(grid(fmt).codes, np.float64)
    return np.unique(values[np.isfinite(values)] + 0.0)


@pytest.mark.parametrize("fmt", TABLED, ids=fmt_id)
def test_neighbours_are_next_in_the_list(fmt: Format) -> None:
    """Strictly below and strictly above, from values, from between them, from beyond the range."""
    every = finite_values(fmt)
    x = regimes(fmt, np.float64, 300)
    x = x[~np.isnan(x)]
    lower = np.searchsorted(every, x, side="left") - 1
    upper = np.searchsorted(every, x, side="right")
    nothing = -np.inf if fmt.signed else np.nan
    want_below = np.where(lower < 0, nothing, every[np.maximum(lower, 0)])
    want_above = np.where(upper == every.size, np.inf, every[np.minimum(upper, every.size - 1)])
    below, above = fplab.neighbours(x, fmt)
    assert_same(below + 0.0, want_below, f"below in {fmt}", x)
    assert_same(above + 0.0, want_above, f"above in {fmt}", x)


@pytest.mark.parametrize("fmt", WIDE, ids=fmt_id)
def test_neighbours_in_wide_formats(fmt: Format) -> None:
    codes = np.array([1 + i * (fmt.max_code - 2) // 299 for i in range(300)], np.uint64)
    at = [fplab.decode(codes + np.uint64(d) - np.uint64(1), fmt, np.float64) for d in range(3)]
    sides = [(at[1], at[0], at[2]), (-at[1], -at[2], -at[0])]
    for x, below, above in sides if fmt.signed else sides[:1]:
        got = fplab.neighbours(x, fmt)
        assert_same(got[0] + 0.0, below + 0.0, f"below in {fmt}", x)
        assert_same(got[1] + 0.0, above + 0.0, f"above in {fmt}", x)


def test_neighbours_of_fp64_are_numpys() -> None:
    x = regimes(get("fp64"), np.float64, 50)
    x = x[np.isfinite(x)]
    below, above = fplab.neighbours(x, "fp64")
    with np.errstate(over="ignore"):
        assert_same(below + 0.0, np.nextafter(x, -np.inf) + 0.0, "below", x)
        assert_same(above + 0.0, np.nextafter(x, np.inf) + 0.0, "above", x)


def test_neighbours_at_the_ends() -> None:
    assert fplab.neighbours(np.inf, "fp16") == (65504.0, np.inf)
    assert fplab.neighbours(-np.inf, "fp16") == (-np.inf, -65504.0)
    assert fplab.neighbours(65504, "fp16")[1] == np.inf
    assert fplab.neighbours(448, "e4m3")[1] == np.inf
    assert fplab.neighbours(1e9, "e2m1") == (6.0, np.inf)
    assert fplab.neighbours(0, "fp16") == (-(2.0**-24), 2.0**-24)
    assert fplab.neighbours(-1, "e8m0")[1] == 2.0**-127
    assert np.isnan(fplab.neighbours(2.0**-127, "e8m0")[0])
    assert all(np.isnan(v) for v in fplab.neighbours(np.nan, "e4m3"))
    assert all(np.isnan(v) for v in fplab.neighbours(np.nan, "e2m1"))


@pytest.mark.parametrize("fmt", EVERY, ids=fmt_id)
def test_ulp_is_the_spacing_of_the_binade(fmt: Format) -> None:
    x = regimes(fmt, np.float64, 20)
    got = fplab.ulp(x, fmt)
    assert np.isnan(got[~np.isfinite(x)]).all()
    for v, u in zip(x.tolist(), got.tolist(), strict=True):
        if np.isfinite(v):
            binade = exact.floor_log2(abs(Fraction(v))) if v else fmt.emin
            want = Fraction(2) ** (min(max(binade, fmt.emin), fmt.emax) - fmt.fraction_bits)
            assert Fraction(u) == want, (fmt.name, v)


@pytest.mark.parametrize("fmt", TABLED, ids=fmt_id)
def test_classes_of_codes(fmt: Format) -> None:
    """Every code of a small format, every 17th of a large one."""
    g = grid(fmt)
    codes = g.codes[:: 1 if fmt.bits <= 10 else 17]
    for dtype in (np.float32, np.float64):
        if dtype == np.float32 and not fmt.fits_float32:
            continue
        got = fplab.classify(g.decode(codes, dtype), fmt).tolist()
        for code, name in zip(codes.tolist(), got, strict=True):
            value = exact.decode(code, fmt)
            if value.is_nan:
                want = "nan"
            elif value.kind == "inf":
                want = "infinite"
            elif value.is_zero:
                want = "zero"
            else:
                want = "subnormal" if value.magnitude < Fraction(fmt.smallest_normal) else "normal"
            assert name == want, (fmt.name, hex(code))


def test_classes_after_rounding() -> None:
    x = [1e-9, 3e-6, 1.0, 70000.0, np.nan, -0.0, -np.inf]
    want = ["zero", "subnormal", "normal", "infinite", "nan", "zero", "infinite"]
    assert fplab.classify(x, "fp16").tolist() == want
    assert fplab.classify([465.0, np.inf], "e4m3").tolist() == ["nan", "nan"]
    assert fplab.classify([1e9, np.nan], "e2m1").tolist() == ["normal", "nan"]


def test_shapes_and_signalling_nans() -> None:
    x = np.uint32([[0x7F800001, 0x3F800000]]).view(np.float32)
    for function in (fplab.ulp, fplab.classify):
        assert function(x, "bf16").shape == (1, 2)
    assert fplab.neighbours(x, "bf16")[0].shape == (1, 2)
    assert fplab.ulp(1.0, "bf16").shape == ()
    assert fplab.ulp(np.zeros((0, 3)), "bf16").shape == (0, 3)
