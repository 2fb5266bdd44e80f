"""One check a rung of the ladder, in seconds: if one of these fails, read no further."""

import numpy as np

import fplab
from fplab import exact


def test_a_format():
    assert (fplab.formats.get("fp16").max, fplab.formats.get("bf16").eps) == (65504.0, 2.0**-7)


def test_a_code():
    assert fplab.encode(1.0, "fp16") == 0x3C00
    assert fplab.decode(0x2E66, "fp16") == np.float32(0.0999755859375)


def test_a_rounding():
    assert fplab.quantize(0.1, "bf16") == 0.10009765625
    assert exact.round_to(exact.from_float(0.1), "bf16") == (0x3DCD, exact.INEXACT)


def test_an_operation():
    assert fplab.add(2048, 1, "fp16", flags=True) == (2048, exact.INEXACT)
    assert fplab.fma(0.1, 10, -1, "fp32") == np.float32(np.float64(np.float32(0.1)) * 10 - 1)


def test_a_sum():
    assert fplab.sum(np.ones(4096), "fp16") == 2048
    assert fplab.dot(np.ones(4096), np.ones(4096), "fp16", accumulate="exact") == 4096


def test_a_tensor_core():
    row = np.full(16, 2.0**-12, np.float32)
    given = {gpu: fplab.tensorcore.dot(row, row, 1.0, gpu=gpu).view(np.uint32) for gpu in ("V100", "A100", "H100")}
    assert given == {"V100": 0x3F800000, "A100": 0x3F800008, "H100": 0x3F800008}
