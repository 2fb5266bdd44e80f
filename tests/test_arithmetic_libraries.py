"""Arithmetic against hardware and libraries: FP32 units and their flush bits, numpy, torch, ml_dtypes, MPFR, libm."""

import ctypes
import ctypes.util
import platform
from typing import Any

import gmpy2
import ml_dtypes
import numpy as np
import pytest
import torch
from fresh import python
from helpers import Array, assert_same, random_floats, raw
from operations import operand_codes, values_of

import fplab
from fplab.formats import get


def pairs(dtype: type, n: int, key: int) -> list[Array]:
    """Random patterns; the second half close in exponent, so that sums round and cancel, and small and large ends."""
    a, b = random_floats(key, n, dtype), random_floats(key + 1, n, dtype)
    near = a * (1 + raw(key + 2, n).astype(dtype) / dtype(2**32))
    b = np.where(np.arange(n) % 3 == 0, b, np.where(np.arange(n) % 3 == 1, near, -near))
    return [np.where(np.isnan(v), dtype(1.5), v).astype(dtype) for v in (a, b)]


def one_nan(x: Array) -> Array:
    """Every NaN the canonical one: hardware keeps payloads."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "sqrt"])
def test_fp32_is_the_hardwares(op: str) -> None:
    """Of the lab's own kernel, which gives flags, and where the processor answers, which it may not of NaN."""
    with np.errstate(all="ignore"):
        a, b = pairs(np.float32, 1 << 18, 31)
        function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}[op]
        operands = (a,) if op == "sqrt" else (a, b)
        want = one_nan(function(*operands))
    function = getattr(fplab, op)
    assert_same(function(*operands, "fp32", flags=True)[0], want, op, *operands)
    assert_same(function(*operands, "fp32"), want, op, *operands)
    numbers = [x[~np.isnan(want)] for x in operands]
    want = want[~np.isnan(want)]
    assert_same(function(*numbers, "fp32"), want, op, *numbers)
    assert_same(function(*numbers, "fp32", out=numbers[0]), want, op, *numbers)


def test_fp32_keeps_subnormals_where_the_processor_flushes_them() -> None:
    x = np.full(1 << 12, 2.0**-126, np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such bits")
    try:
        got = fplab.mul(x, np.float32(0.5), "fp32")
    finally:
        torch.set_flush_denormal(False)
    assert (got == np.float32(2.0**-127)).all()


HARDWARE_FLUSH = """
import sys
import numpy as np, torch
torch.set_num_threads(1)
assert torch.set_flush_denormal(True)
a, b = np.load(sys.argv[1])
with np.errstate(all="ignore"):
    np.save(sys.argv[2], np.stack([a + b, a - b, a * b, a / b, np.sqrt(np.abs(a))]))
"""


def test_fp32_flush_modes_are_the_hardwares(tmp_path: Any) -> None:
    """x86's FTZ and DAZ bits, which torch sets; tininess is detected after rounding there as here."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.set_flush_denormal(False):
        pytest.skip("the flush bits of this processor are not x86's")
    n = 1 << 16
    scale = np.exp2((np.arange(n) % 40 - 20).astype(np.float64))
    with np.errstate(all="ignore"):
        a, b = pairs(np.float32, n, 51)
        tiny = random_floats(53, n, np.float32).view(np.uint32) & np.uint32(0x80FFFFFF)  # both sides of the boundary
        near = np.array([2.0**-126 * (1 + k * 2.0**-24) for k in range(-64, 64)], np.float32)
        c = (scale * np.resize(near, n) * (1 + 2.0**-23)).astype(np.float32)
        a = np.concatenate([a, tiny.view(np.float32), np.resize(near, n)])
        b = np.concatenate([b, np.roll(tiny.view(np.float32), 1), (1 / scale).astype(np.float32)])
        a, b = np.concatenate([a, c]), np.concatenate([b, scale.astype(np.float32)])
    a, b = (np.where(np.isnan(v), np.float32(1.5), v) for v in (a, b))
    np.save(tmp_path / "in.npy", np.stack([a, b]))
    python(HARDWARE_FLUSH, tmp_path / "in.npy", tmp_path / "out.npy")
    found = np.load(tmp_path / "out.npy")
    for op, want in zip(("add", "sub", "mul", "div", "sqrt"), found, strict=True):
        operands = (np.abs(a),) if op == "sqrt" else (a, b)
        got = getattr(fplab, op)(*operands, "fp32", subnormals=False)
        assert_same(got, one_nan(want), f"{op} with FTZ and DAZ", *operands)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "sqrt"])
def test_fp16_is_numpys_and_torchs(op: str) -> None:
    codes = operand_codes(get("fp16"), 2, 61, 1 << 16)
    a, b = (column.astype(np.uint16).view(np.float16) for column in codes.T)
    operands = (a,) if op == "sqrt" else (a, b)
    name = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "sqrt": "sqrt"}[op]
    got = getattr(fplab, op)(*operands, "fp16")
    with np.errstate(all="ignore"):
        want = one_nan(getattr(np, name)(*operands).astype(np.float32))
    assert_same(got, want, f"numpy {op}", *operands)
    theirs = getattr(torch, op)(*(torch.from_numpy(v) for v in operands)).float().numpy()
    assert_same(got, one_nan(theirs), f"torch {op}", *operands)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_bf16_is_torchs_and_ml_dtypes(op: str) -> None:
    """They compute in float32 and round again, which is exact for 8 digits, subnormal results included."""
    codes = operand_codes(get("bf16"), 2, 71, 1 << 16)
    a, b = values_of(codes, get("bf16"))
    got = getattr(fplab, op)(a, b, "bf16")
    tensors = [torch.from_numpy(v).to(torch.bfloat16) for v in (a, b)]
    assert_same(got, one_nan(getattr(torch, op)(*tensors).float().numpy()), f"torch {op}", a, b)
    name = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}[op]
    with np.errstate(all="ignore"):
        arrays = [v.astype(ml_dtypes.bfloat16) for v in (a, b)]
        theirs = getattr(np, name)(*arrays).astype(np.float32)
    assert_same(got, one_nan(theirs), f"ml_dtypes {op}", a, b)


@pytest.mark.parametrize("mode", ["rne", "rtz", "rtp", "rtn"])
@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_fma_is_mpfrs(name: str, mode: str) -> None:
    fmt = get(name)
    p, codes = fmt.significand_bits, operand_codes(fmt, 3, 81, 2000)
    with np.errstate(invalid="ignore"):  # a cast of a signalling NaN
        a, b, c = (v.astype(np.float64) for v in values_of(codes, fmt))
    directions = {"rne": "RoundToNearest", "rtz": "RoundToZero", "rtp": "RoundUp", "rtn": "RoundDown"}
    context = gmpy2.context(
        precision=p, emax=fmt.emax + 1, emin=fmt.emin - p + 2, subnormalize=True, round=getattr(gmpy2, directions[mode])
    )
    with gmpy2.context(context):
        triple = zip(*(map(gmpy2.mpfr, v.tolist()) for v in (a, b, c)), strict=True)
        want = np.array([float(gmpy2.fma(*t)) for t in triple])
    assert_same(fplab.fma(a, b, c, fmt, mode), one_nan(want), f"MPFR fma {name} {mode}", a, b, c)


def test_fp32_fma_is_the_c_librarys() -> None:
    path = ctypes.util.find_library("m")
    if path is None:
        pytest.skip("there is no C mathematics library to ask")
    fmaf = ctypes.CDLL(path).fmaf
    fmaf.argtypes, fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
    codes = operand_codes(get("fp32"), 3, 91, 20_000)
    a, b, c = values_of(codes, get("fp32"))
    quiet = ~(np.isnan(a) | np.isnan(b) | np.isnan(c))
    a, b, c = a[quiet], b[quiet], c[quiet]
    want = np.array([fmaf(*t) for t in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], np.float32)
    assert_same(fplab.fma(a, b, c, "fp32"), one_nan(want), "fmaf", a, b, c)
