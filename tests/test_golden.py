"""Golden numbers: digests of decode tables and of casts, reproduced bit for bit."""

import hashlib

import numpy as np
import pytest

import fplab
from fplab.experiments.formats import GOLDEN  # of all codes decoded, made with ml_dtypes

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


@pytest.mark.parametrize("fmt", GOLDEN)
def test_decode_tables(fmt):
    values = fplab.decode(np.arange(1 << fplab.formats.get(fmt).bits), fmt)
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    assert sha(bits) == GOLDEN[fmt]


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
