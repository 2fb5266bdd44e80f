"""Golden numbers: digests of decode tables and of casts, reproduced bit for bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import fplab

# SHA-256 of all codes decoded to float32, little-endian, NaN as 0x7FC00000; made with ml_dtypes 0.6.0.
DECODE = {
    "fp16": "385ff5fe69182797cda5f1827e20cf423f4416bc9246f27d0eec27cac9039259",
    "bf16": "f12e27efe34841dfd6391497b86f389096b03a376586e1d9691bba0a8de3980a",
    "e4m3": "422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2",
    "e5m2": "229a94c5f728edf2259da970a0e1dfb45cc1d69cce2b30e37659f3212ec4b8b9",
    "e4m3_ieee": "9ce77bd30a02e10bb70f4b9f1d8c65d129f60f0b405311976ab8c0f19d46571a",
    "e4m3fnuz": "ac4866f772a7c08077713fde1fa54131d49c26339c885e971a24fc0fac6e33f4",
    "e5m2fnuz": "aac12d2730bf26ca53bfa107a7a6a8df192aba8cf58b971eec9126f83991e6d4",
    "e8m0": "2fb2732a956043772ccd2c1664ae5d2558c62f9c06780c04d95f1ff0050f2f2f",
    "e2m3": "178eab5d385741cfac12154e83ad2b9616503fed5f08093c75b9c25065f0d3c4",
    "e3m2": "1f21874836838a0a1f329d5ff459699e3a0f786b93c85e22fcd353c1b6dca41d",
    "e2m1": "c736c7e2e761e08975d601fab3563265be14d8df46628e596c0989b97735b5f5",
}

# SHA-256 of the codes of every 65,537th float32 pattern that is no NaN, by format, rounding and overflow.
CAST = {
    ("fp16", None): "673d235886a23e91855239c999839a8b24e5b04dd393406b24ace2fba47d37c0",
    ("bf16", None): "77144e216c7e8308b9c89a36fd7b5683300820d69ef394888916307f4da7fa1b",
    ("e4m3", "nan"): "2919f90c755e8afbaafa4ee70e53a6418c4df3de164d898383995538be2b1d43",
    ("e4m3", "saturate"): "61488ef057ee9a0fb89a516d76688112dabca0771f0d857ab6632b6717cb1476",
    ("e5m2", None): "d88c8ff510faf0ab8dcf9c2689ead87fbb6119734c073fd5038a2f66599b95e0",
}

# SHA-256 of the float32 bits of the finite ones rounded to TF32.
TF32 = {
    "rtz": "6a422ac60495aaa5a3c0689fffbc8eb9eb4a939e28ec024f69c1c289a9e491cf",
    "rna": "dd488d71fa4a3456dfb6cc3edeb1673c99487559e4eb28fc10e97f30f5031dca",
    "rne": "d350a524baa40d6f50143ad798afd78d4dc9f370318e574af347646d6d977b96",
}


def sha(array: np.ndarray) -> str:
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def sample() -> np.ndarray:
    x = np.arange(0, 2**32, 65537, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return x[~np.isnan(x)]


def test_the_sample_has_the_stated_size():
    assert sample().size == 65280


@pytest.mark.parametrize("fmt", DECODE)
def test_decode_tables(fmt):
    values = fplab.decode(np.arange(1 << fplab.formats.get(fmt).bits), fmt)
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    assert sha(bits) == DECODE[fmt]


@pytest.mark.parametrize(("fmt", "overflow"), CAST)
def test_casts(fmt, overflow):
    codes = fplab.encode(sample(), fmt, overflow=overflow)
    if fmt == "e4m3":
        nan = (codes & 0x7F) == 0x7F
        assert int(nan.sum()) == (30512 if overflow == "nan" else 0)
        codes[nan] = 0x7F
    assert sha(codes) == CAST[fmt, overflow]


@pytest.mark.parametrize("mode", TF32)
def test_tf32(mode):
    x = sample()
    x = x[np.isfinite(x)]
    assert sha(fplab.quantize(x, "tf32", mode).view(np.uint32)) == TF32[mode]


def test_the_ends_of_fp16():
    below = np.nextafter(np.float32(65520), np.float32(0))
    tiny = np.float32(2.0**-25)
    above = np.nextafter(tiny, np.float32(1))
    got = fplab.quantize([below, np.float32(65520), tiny, above, np.float32(3 * 2.0**-25)], "fp16")
    assert got.tolist() == [65504.0, np.inf, 0.0, 2.0**-24, 2.0**-23]


def test_every_code_goes_out_and_comes_back():
    for fmt in fplab.formats.TABLE:
        if fmt.bits > 19:
            continue
        codes = np.arange(1 << fmt.bits)
        for dtype in (np.float32, np.float64):
            values = fplab.decode(codes, fmt, dtype)
            back = fplab.encode(values, fmt).astype(np.int64)
            want = codes.copy()
            if fmt.specials is fplab.Specials.IEEE:  # a signalling NaN comes back quiet
                want[np.isnan(values)] |= 1 << (fmt.fraction_bits - 1)
            np.testing.assert_array_equal(back, want, err_msg=fmt.name)
