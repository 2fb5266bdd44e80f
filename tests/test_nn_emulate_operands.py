"""FP32 operands under emulation are rounded by packing or by torch's casts: the lab's roundings, where those decide."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fplab
from fplab.nn import emulate


def deciding(fmt: str) -> np.ndarray:
    """Every value of a 16-bit format, every midpoint beyond it, and the float32 neighbours of both, float32 (n,)."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = fplab.decode(codes, fmt)
    values = values[np.isfinite(values)]
    following = np.append(np.unique(np.abs(values)).astype(np.float64)[1:], 2.0 ** (fplab.formats.get(fmt).emax + 1))
    middles = ((np.unique(np.abs(values)) + following) / 2).astype(np.float32)
    found = np.concatenate([values, middles, -middles])
    beside = [np.nextafter(found, np.float32(s), dtype=np.float32) for s in (-np.inf, np.inf)]
    found = np.concatenate([found, *beside])
    return np.concatenate([found[np.isfinite(found)], np.float32([np.inf, -np.inf, np.nan])])


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_fp32_operands_are_rounded_as_the_lab_rounds(fmt: str, transposed: bool) -> None:
    x = deciding(fmt)
    given = torch.from_numpy(x)
    one = torch.ones(1, 1)
    with emulate("H100", inputs=fmt):
        out = (given.view(1, -1).t() @ one) if transposed else (one @ given.view(1, -1))
    want = fplab.quantize(x, fmt)
    assert want.size > 190_000
    np.testing.assert_array_equal(out.numpy().ravel(), want)


@pytest.mark.parametrize("gpu", ["V100", "T4", "A100"])
def test_fp64_is_a_chain_of_multiply_adds_with_and_without_tensor_cores_for_it(gpu: str) -> None:
    a, b = torch.randn(5, 7, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    with emulate(gpu, inputs="fp16"):
        out = a @ b
    np.testing.assert_array_equal(out.numpy(), fplab.tensorcore.matmul(a, b, gpu="H100", inputs="fp64"))


def test_an_fp64_sum_stays_under_a_bias_that_broadcasts_and_alpha_is_fp64() -> None:
    x, weight = (torch.arange(48.0, dtype=torch.float64)[:n].reshape(s) for n, s in ((48, (2, 4, 6)), (24, (4, 2, 3))))
    bias, c = x[0, 1, :4], x[0, 0, :1]

    def summed() -> list[torch.Tensor]:
        """Small integers, whose sums are exact."""
        conv = torch.nn.functional.conv1d(x, weight, bias, groups=2)
        return [conv, torch.baddbmm(bias, x, x.mT), torch.addmm(c, x[0, :1, 1:2], x[0, :1, 1:2], alpha=0.3, beta=0)]

    plain = summed()
    with emulate("A100", "fp16"):
        for one, other in zip(plain, summed(), strict=True):
            assert torch.equal(one, other)
