"""Rounding: oracle, grid, general kernel, fast kernel, public functions and third parties give the same bits."""

import itertools
from typing import Any

import gfloat
import gmpy2
import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import formats as gfloat_formats
from helpers import (
    EVERY,
    FLOATS,
    TABLED,
    WIDE,
    Array,
    assert_same,
    choices,
    combinations,
    fast_quantize,
    fmt_id,
    general_encode,
    general_quantize,
    opts,
    policies,
    random_floats,
    raw,
    regimes,
)
from hypothesis import given
from hypothesis import strategies as st
from parts import examples
from prove.grid import bits_of, grid, make_quiet
from prove.shares import words_of

import fplab
from fplab import exact
from fplab.errors import LabError
from fplab.floats import round_into
from fplab.formats import TABLE, Format, Overflow, Rounding, Specials, get
from fplab.hardware.tensors import overflow_of
from fplab.kernels.rounding import stream_keys
from fplab.plans import carrier

SEED = 7
FROM_FLOAT32 = {
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e4m3_ieee": ml_dtypes.float8_e4m3,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e3m4": ml_dtypes.float8_e3m4,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
TORCH = {
    "fp16": (torch.float16, "inf"),
    "bf16": (torch.bfloat16, "inf"),
    "e5m2": (torch.float8_e5m2, "inf"),
    "e4m3": (torch.float8_e4m3fn, overflow_of("e4m3", torch.__version__) or "nan"),
    "e4m3fnuz": (torch.float8_e4m3fnuz, "nan"),
    "e5m2fnuz": (torch.float8_e5m2fnuz, "nan"),
}
GFLOAT = {
    "fp32": gfloat_formats.format_info_binary32,
    "fp16": gfloat_formats.format_info_binary16,
    "bf16": gfloat_formats.format_info_bfloat16,
    "e5m2": gfloat_formats.format_info_ocp_e5m2,
    "e4m3": gfloat_formats.format_info_ocp_e4m3,
    "e3m2": gfloat_formats.format_info_ocp_e3m2,
    "e2m3": gfloat_formats.format_info_ocp_e2m3,
    "e2m1": gfloat_formats.format_info_ocp_e2m1,
    "binary8p3sf": gfloat_formats.format_info_p3109(8, 3, domain=gfloat.Domain.Finite),
}
GFLOAT_MODES = {
    "rtz": gfloat.RoundMode.TowardZero,
    "rtn": gfloat.RoundMode.TowardNegative,
    "rtp": gfloat.RoundMode.TowardPositive,
    "rne": gfloat.RoundMode.TiesToEven,
    "rna": gfloat.RoundMode.TiesToAway,
}
MPFR_MODES = {"rne": gmpy2.RoundToNearest, "rtz": gmpy2.RoundToZero, "rtp": gmpy2.RoundUp, "rtn": gmpy2.RoundDown}


def signalling(x: Array) -> Array:
    return bits_of(make_quiet(x)) != bits_of(x)


def oracle(
    x: Array, fmt: Format, mode: Rounding, policy: Overflow, subnormals: Any, words: Array
) -> tuple[Array, Array]:
    """Codes and flags from the fractions, one element after the other."""
    source = carrier(x.dtype)
    codes, flags = np.empty(x.size, np.uint64), np.empty(x.size, np.uint8)
    for i, (bits, word) in enumerate(zip(bits_of(x).tolist(), words.tolist(), strict=True)):
        value = exact.decode(bits, source)
        raised = exact.INVALID if value.kind == "snan" else 0
        if subnormals in (False, "flush_inputs"):
            value = exact.flush(value, source)
        ftz = subnormals in (False, "flush_outputs")
        codes[i], flags[i] = exact.round_to(value, fmt, mode, policy, ftz=ftz, nan="max", word=word)
        flags[i] |= raised
    return codes, flags


# --- our own three routes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fmt", TABLED, ids=fmt_id)
def test_grid_and_kernels_agree(fmt: Format, dtype: type) -> None:
    """Every code, midpoint, neighbour and special; all roundings, policies and flush modes; codes, flags and values."""
    g, x = grid(fmt), regimes(fmt, dtype, 1000)
    words, keys = words_of(x.size, SEED), stream_keys(np.uint64(SEED), np.uint64(0))
    invalid = np.where(signalling(x), exact.INVALID, 0).astype(np.uint8)
    for mode, policy, subnormals in combinations(fmt):
        what = f"{fmt} {mode.value} {policy.value} subnormals={subnormals}"
        opt = opts(fmt, mode, policy, subnormals)
        want, want_flags = g.round(x, choices(mode, policy, subnormals), words)
        codes, flags = general_encode(x, fmt, opt, SEED)
        assert_same(codes, want, f"codes of {what}", x)
        assert_same(flags, want_flags | invalid, f"flags of {what}", x)
        values = general_quantize(x, fmt, opt, SEED)
        assert_same(values, g.decode(want, values.dtype), f"values of {what}", x)
        fast = fast_quantize(x, fmt, opt, keys)
        if fast is not None:
            kept = np.ones(x.size, np.bool_) if fmt.has_nan else ~np.isnan(x)  # NaN rules are the general path's
            assert_same(fast[kept], values[kept], f"fast {what}", x[kept])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fmt", TABLED, ids=fmt_id)
def test_every_code_and_midpoint_to_nearest(fmt: Format, dtype: type) -> None:
    """As above without leaving out a code of at most 16 bits, to nearest, through the public functions."""
    g, x = grid(fmt), regimes(fmt, dtype, 1 << 16 if fmt.bits <= 16 else 1 << 14)
    for policy in policies(fmt):
        codes, _ = g.round(x, choices(Rounding.RNE, policy, True))
        assert_same(fplab.encode(x, fmt, overflow=policy, nan="max").astype(np.uint64), codes, fmt, x)
        values = fplab.quantize(x, fmt, overflow=policy, nan="max")
        assert_same(values, g.decode(codes, values.dtype), fmt, x)


@pytest.mark.parametrize("fmt", EVERY, ids=fmt_id)
def test_fractions_agree(fmt: Format) -> None:
    """The oracle itself against the general kernel (and so the grid), on fewer inputs: it is slow."""
    for dtype in FLOATS:
        x = regimes(fmt, dtype, 2 if fmt in WIDE else 1, key=3)
        x = x[:: max(1, x.size // (200 if fmt in WIDE else 48))]
        words = words_of(x.size, SEED)
        for mode, policy, subnormals in combinations(fmt):
            opt = opts(fmt, mode, policy, subnormals)
            want, want_flags = oracle(x, fmt, mode, policy, subnormals, words)
            codes, flags = general_encode(x, fmt, opt, SEED)
            what = f"{fmt} {mode.value} {policy.value} subnormals={subnormals}"
            assert_same(codes, want, f"codes of {what}", x)
            assert_same(flags, want_flags, f"flags of {what}", x)
            fast = fast_quantize(x, fmt, opt, stream_keys(np.uint64(SEED), np.uint64(0)))
            if fast is not None and fmt in WIDE:
                assert_same(fast, general_quantize(x, fmt, opt, SEED), f"fast {what}", x)


def possible(fields: tuple[Any, ...]) -> Format | None:
    try:
        return Format("drawn", *fields)
    except LabError:
        return None


# Records nobody has thought of, the plain ones first.
FIELDS = itertools.product(range(9, 0, -1), range(13), (None, 7, 100, -20), (True, False), (True, False), Specials)
DRAWN = [f for f in map(possible, FIELDS) if f]


@examples(400)
@given(st.data())
def test_any_format_any_rounding(data: st.DataObject) -> None:
    fmt, mode = data.draw(st.sampled_from(DRAWN)), data.draw(st.sampled_from(Rounding))
    policy, subnormals = data.draw(st.sampled_from(policies(fmt))), data.draw(st.sampled_from([True, False]))
    some = st.one_of(
        st.integers(0, 2**32 - 1).map(lambda b: np.array([b], np.uint32).view(np.float32)),
        st.integers(0, 2**64 - 1).map(lambda b: np.array([b], np.uint64).view(np.float64)),
        st.integers(0, fmt.max_code).map(lambda c: np.array([fmt.magnitude(c)])),
        st.integers(0, max(fmt.max_code - 1, 0)).map(
            lambda c: np.array([(fmt.magnitude(c) + fmt.magnitude(c + 1)) / 2])
        ),
        st.floats(0.1, 4).map(lambda f: np.array([f * fmt.smallest_normal])),
        st.floats(0.1, 4).map(lambda f: np.array([f * fmt.smallest_subnormal], np.float32)),
    )
    x = data.draw(some)
    opt, words = opts(fmt, mode, policy, subnormals), words_of(1, SEED)
    want, want_flags = oracle(x, fmt, mode, policy, subnormals, words)
    codes, flags = general_encode(x, fmt, opt, SEED)
    assert (int(codes[0]), int(flags[0])) == (int(want[0]), int(want_flags[0])), (fmt, mode, policy, subnormals, x)
    fast = fast_quantize(x, fmt, opt, stream_keys(np.uint64(SEED), np.uint64(0)))
    if fast is not None and (fmt.has_nan or not np.isnan(x).any()):
        assert_same(fast, general_quantize(x, fmt, opt, SEED), (fmt, mode, policy, subnormals), x)


# --- third parties ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
def test_fp16_is_numpys(dtype: type) -> None:
    x = np.concatenate([regimes(get("fp16"), dtype), random_floats(11, 1 << 18, dtype)])
    x = x[~signalling(x)]  # numpy leaves these signalling
    with np.errstate(all="ignore"):
        assert_same(fplab.encode(x, "fp16"), x.astype(np.float16).view(np.uint16), "numpy", x)
        assert_same(fplab.quantize(x, "fp16").astype(x.dtype), x.astype(np.float16).astype(dtype), "numpy", x)


@pytest.mark.parametrize("fmt", [f for f in EVERY if f.significand_bits <= 22], ids=fmt_id)
def test_float64_by_the_kernels_for_float32(fmt: Format) -> None:
    """By way of float32, rounded to odd, come the bits of the general kernel, which knows float64."""
    x = np.concatenate([regimes(fmt, np.float64, 2000), random_floats(3, 2000, np.float64)])
    x = x if fmt.has_nan else x[~np.isnan(x)]
    for mode, policy, _ in (c for c in combinations(fmt) if c[2] is True):
        opt = opts(fmt, mode, policy)
        for dtype in FLOATS if fmt.fits_float32 else FLOATS[1:]:
            out = np.empty(x.size, dtype)
            round_into(x, out, fmt, opt, np.uint64(1))
            assert_same(out, general_quantize(x, fmt, opt, 1, dtype=dtype), f"{fmt.name} {mode} {policy}", x)


def test_fp32_is_numpys_from_float64() -> None:
    x = np.concatenate([regimes(get("fp32"), np.float64, 3000), random_floats(12, 1 << 18, np.float64)])
    with np.errstate(all="ignore"):
        want = x.astype(np.float32)
    assert_same(fplab.quantize(x, "fp32").astype(np.float32), want, "numpy", x)


@pytest.mark.parametrize("name", FROM_FLOAT32)
def test_ml_dtypes_from_float32(name: str) -> None:
    fmt = get(name)
    x = np.concatenate([regimes(fmt, np.float32), random_floats(13, 1 << 18, np.float32)])
    x = x[~np.isnan(x)]  # payloads are lost there, and FP6 and FP4 make -0 of NaN
    with np.errstate(all="ignore"):
        want = x.astype(np.dtype(FROM_FLOAT32[name])).view(np.uint16 if fmt.bits == 16 else np.uint8)
    assert_same(fplab.encode(x, name), want, name, x)


@pytest.mark.parametrize("name", TORCH)
def test_torch_from_float32(name: str) -> None:
    fmt, (dtype, policy) = get(name), TORCH[name]
    x = np.concatenate([regimes(fmt, np.float32), random_floats(14, 1 << 18, np.float32)])
    x = x[~np.isnan(x)]
    want = torch.from_numpy(x).to(dtype).view(torch.uint16 if fmt.bits == 16 else torch.uint8).numpy()
    assert_same(fplab.encode(x, name, overflow=policy), want, name, x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", GFLOAT_MODES)
@pytest.mark.parametrize("name", GFLOAT)
def test_gfloat(name: str, mode: str, dtype: type) -> None:
    """All its formats and roundings; its overflow without saturation is IEEE's, ours where there is an infinity."""
    fmt = next(f for f in EVERY if f.name == name)
    x = regimes(fmt, dtype, 2000)
    x = x[~np.isnan(x)]
    for policy in policies(fmt):
        if policy is not Overflow.SATURATE and not (fmt.has_infinity and policy is Overflow.INF):
            continue
        with np.errstate(all="ignore"):
            want = gfloat.round_ndarray(GFLOAT[name], x, GFLOAT_MODES[mode], sat=policy is Overflow.SATURATE)
        assert_same(fplab.quantize(x, fmt, mode, policy).astype(dtype), want.astype(dtype), f"{name} {mode}", x)


def mpfr(fmt: Format, mode: str) -> Any:
    """The MPFR context of a format."""
    p = fmt.significand_bits
    return gmpy2.context(
        precision=p, emax=fmt.emax + 1, emin=fmt.emin - p + 2, subnormalize=True, round=MPFR_MODES[mode]
    )


@pytest.mark.parametrize("mode", MPFR_MODES)
@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3_ieee", "e3m4"])
def test_mpfr(name: str, mode: str) -> None:
    """Directed roundings too, and what is inexact, from a library with its own bignums."""
    fmt = get(name)
    x = regimes(fmt, np.float64, 200)
    x = np.concatenate([x[~np.isnan(x)][:: max(1, x.size // 3000)], regimes(fmt, np.float64, 8)[:200]])
    x = x[~np.isnan(x)]
    want, inexact = np.empty_like(x), np.empty(x.size, np.bool_)
    with gmpy2.context(mpfr(fmt, mode)) as context:
        for i, v in enumerate(x.tolist()):
            context.clear_flags()
            want[i] = float(gmpy2.mpfr(v))
            inexact[i] = context.inexact
    got, flags = fplab.convert(x, "fp64", fmt, mode, flags=True)
    assert_same(got.astype(np.float64), want, f"{name} {mode}", x)
    assert_same((flags & exact.INEXACT) != 0, inexact, f"inexact {name} {mode}", x)


# --- how results are delivered ----------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3fnuz", "e8m0"])
@pytest.mark.parametrize("mode", ["rne", "rtn", "stochastic"])
def test_thread_count_does_not_matter(fmt: str, mode: str) -> None:
    """Also past the size from which results are written past the cache."""
    x = random_floats(21, (1 << 20) + 4321, np.float32)
    try:
        fplab.set_num_threads(1)
        want, codes = fplab.quantize(x, fmt, mode, seed=1), fplab.encode(x, fmt, mode, seed=1)
        for n in (2, 3, 7):
            fplab.set_num_threads(n)
            assert_same(fplab.quantize(x, fmt, mode, seed=1), want, (fmt, n), x)
            assert_same(fplab.encode(x, fmt, mode, seed=1), codes, (fmt, n), x)
    finally:
        fplab.set_num_threads(None)


def misaligned(x: Array) -> Array:
    """The same values two bytes off."""
    room = np.empty(x.nbytes + 2, np.uint8)
    off = room[2:].view(x.dtype)
    off[:] = x
    return off


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 127, 128, 129, 5000, (1 << 20) + 77])
@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_out_of_every_kind(fmt: str, n: int) -> None:
    x = random_floats(22, n, np.float32)
    want = general_quantize(x, get(fmt), opts(get(fmt), "rne"))
    plain = np.empty_like(x)
    assert fplab.quantize(x, fmt, out=plain) is plain
    assert_same(plain, want, "out", x)
    for offset in (1, 3, 8, 15):  # every place in a 64-byte line
        room = np.full(n + 32, np.float32(-7))
        part = room[offset : offset + n]
        fplab.quantize(x, fmt, out=part)
        assert_same(part, want, f"out at {offset}", x)
        assert (room[:offset] == -7).all()
        assert (room[offset + n :] == -7).all()
    in_place = x.copy()
    fplab.quantize(in_place, fmt, out=in_place)
    assert_same(in_place, want, "in place", x)
    strided = np.zeros(2 * n, np.float32)
    fplab.quantize(x, fmt, out=strided[::2])
    assert_same(strided[::2].copy(), want, "strided", x)
    assert not strided[1::2].any()
    assert_same(fplab.quantize(misaligned(x), fmt), want, "misaligned x", x)
    off = misaligned(np.zeros_like(x))
    fplab.quantize(x, fmt, out=off)
    assert_same(off.copy(), want, "misaligned out", x)


@pytest.mark.parametrize("shift", [1, 5, 64, 1000])
def test_out_that_overlaps_the_input(shift: int) -> None:
    for n in (3000, (1 << 20) + 5):
        for forward in (True, False):
            room = random_floats(23, n + shift, np.float32)
            x, out = (room[:n], room[shift:]) if forward else (room[shift:], room[:n])
            want = fplab.quantize(x.copy(), "fp16")
            fplab.quantize(x, "fp16", out=out)
            assert_same(out.copy(), want, (shift, n, forward))


def test_out_that_starts_where_a_narrower_input_does() -> None:
    room = np.zeros(2000, np.float64)
    x = room.view(np.float32)[:2000]
    x[:] = raw(24, 2000) / np.float32(2**20)
    want = x.astype(np.float64)
    fplab.quantize(x, "fp64", out=room)
    assert_same(room, want)


def test_two_dimensional_and_transposed_out() -> None:
    x = random_floats(25, 12 * 7, np.float32).reshape(12, 7)
    want = fplab.quantize(x.reshape(-1), "e5m2").reshape(12, 7)
    out = np.empty((7, 12), np.float32).T
    assert fplab.quantize(x, "e5m2", out=out) is out
    assert_same(out.copy(), want)
    assert_same(fplab.quantize(x.T, "e5m2"), np.ascontiguousarray(want.T))


def test_nan_rules() -> None:
    x = np.array([np.nan, -np.nan, 1.0], np.float32)
    assert_same(fplab.quantize(x, "e2m1", nan="zero"), np.float32([0, 0, 1]))
    assert_same(fplab.quantize(x, "e2m1", nan="max"), np.float32([6, -6, 1]))
    with pytest.raises(LabError, match=r'element 0 gives NaN, and e2m1 has none; pass nan="zero" or nan="max"'):
        fplab.quantize(x, "e2m1")
    big = np.ones(200_001, np.float32)
    big[[150_000, 199_999]] = np.nan
    for call in (fplab.quantize, fplab.encode):
        with pytest.raises(LabError, match="element 150000 gives NaN"):
            call(big, "e3m2")


@pytest.mark.parametrize("fmt", [f for f in TABLE if not f.has_infinity], ids=fmt_id)
def test_inexpressible_policies_are_refused(fmt: Format) -> None:
    with pytest.raises(LabError, match=f"overflow='inf' is impossible: {fmt.name} has no infinity. Allowed: saturate"):
        fplab.quantize(1.0, fmt, overflow="inf")
    if not fmt.has_nan:
        with pytest.raises(LabError, match=f"overflow='nan' is impossible: {fmt.name} has no NaN. Allowed: saturate"):
            fplab.quantize(1.0, fmt, overflow="nan")
