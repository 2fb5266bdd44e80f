"""Codes: every one decoded as the oracle reads it, in float32 and float64, and encoded back."""

import numpy as np
import pytest
from helpers import EVERY, FLOATS, TABLED, WIDE, Array, assert_same, fmt_id, raw
from prove.grid import grid

import fplab
from fplab import exact
from fplab.formats import Format, Specials, get
from fplab.plans import carrier


def carriers(fmt: Format) -> list[type]:
    return [d for d in FLOATS if d == np.float64 or fmt.fits_float32]


def back(codes: Array, fmt: Format) -> Array:
    """The codes that come back: a signalling NaN's is quiet."""
    if fmt.specials is not Specials.IEEE:
        return codes
    assert fmt.inf_code is not None
    nan = (codes & (fmt.inf_code | (fmt.inf_code - 1))) > fmt.inf_code
    return np.where(nan, codes | (1 << (fmt.fraction_bits - 1)), codes)


@pytest.mark.parametrize("fmt", TABLED, ids=fmt_id)
def test_every_code_there_and_back(fmt: Format) -> None:
    g = grid(fmt)
    for dtype in carriers(fmt):
        values = fplab.decode(g.codes, fmt, dtype)
        assert_same(values, g.decode(g.codes, dtype), fmt, g.codes)
        returned = fplab.encode(values, fmt)
        assert_same(returned, back(g.codes, fmt).astype(returned.dtype), fmt, values)


@pytest.mark.parametrize("fmt", EVERY, ids=fmt_id)
def test_codes_mean_what_the_oracle_says(fmt: Format) -> None:
    """The oracle reads a code of the format and the code of the float that carries it alike, NaN payloads included."""
    everything = np.uint64((1 << fmt.bits) - 1)
    codes = np.unique(np.concatenate([raw(2, 500, np.uint64) & everything, special_codes(fmt)]))
    for dtype in carriers(fmt):
        values = fplab.decode(codes, fmt, dtype)
        bits = values.view(np.uint32 if dtype == np.float32 else np.uint64)
        for code, carried in zip(codes.tolist(), bits.tolist(), strict=True):
            assert exact.decode(code, fmt) == exact.decode(carried, carrier(dtype)), (fmt, hex(code))


def special_codes(fmt: Format) -> Array:
    positive = [0, 1, 1 << fmt.fraction_bits, (1 << fmt.fraction_bits) - 1, fmt.max_code]
    positive += [c for c in (fmt.inf_code, fmt.nan_code) if c is not None]
    positive += [fmt.inf_code + 1] if fmt.inf_code is not None else []
    return np.array([code | sign for sign in (0, fmt.sign_mask) for code in positive], np.uint64)


@pytest.mark.parametrize("fmt", WIDE, ids=fmt_id)
def test_wide_codes_there_and_back(fmt: Format) -> None:
    everything = np.uint64((1 << fmt.bits) - 1)
    codes = np.concatenate([raw(4, 20_000, np.uint64) & everything, special_codes(fmt)])
    for dtype in carriers(fmt):
        returned = fplab.encode(fplab.decode(codes, fmt, dtype), fmt)
        assert_same(returned.astype(np.uint64), back(codes, fmt).astype(np.uint64), fmt, codes)


@pytest.mark.parametrize("fmt", ["fp32", "fp64"])
def test_float_arrays_are_their_own_codes(fmt: str) -> None:
    dtype = np.dtype(get(fmt).aliases[0])
    x = raw(5, 10_000, np.uint64).view(dtype)
    codes = x.view(np.uint32 if fmt == "fp32" else np.uint64)
    assert_same(fplab.encode(x, fmt), back(codes, get(fmt)).astype(codes.dtype), fmt, x)
    assert_same(fplab.decode(codes, fmt, dtype), x, fmt, codes)


@pytest.mark.parametrize(("bits", "dtype"), [(8, np.uint8), (16, np.uint16), (19, np.uint32), (64, np.uint64)])
def test_codes_take_the_smallest_unsigned_dtype(bits: int, dtype: type) -> None:
    fmt = next(f for f in EVERY if f.bits == bits)
    assert fplab.encode([1.0], fmt).dtype == dtype
    for wider in (np.int64, np.uint64, np.int32 if bits < 32 else np.int64):
        assert fplab.decode(np.array([3], wider), fmt, np.float64) == fplab.decode(
            np.array([3], dtype), fmt, np.float64
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_codes_of_any_layout(dtype: type) -> None:
    codes = (np.arange(60) * 3).astype(dtype)
    want = fplab.decode(np.arange(60) * 3, "e5m2")
    assert_same(fplab.decode(codes, "e5m2"), want)
    assert_same(fplab.decode(codes.reshape(12, 5).T, "e5m2"), np.ascontiguousarray(want.reshape(12, 5).T))
    assert_same(fplab.decode(codes[::-2], "e5m2"), np.ascontiguousarray(want[::-2]))
    assert_same(fplab.decode(codes.astype(codes.dtype.newbyteorder(">")), "e5m2"), want)
    assert fplab.decode(codes[:0], "e5m2").shape == (0,)
    assert fplab.decode(codes[7], "e5m2").shape == ()
