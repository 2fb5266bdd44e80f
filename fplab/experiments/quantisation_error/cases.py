"""What a GPU must compute: the quantisers written as torch operations, in FP32 and with the scaling in FP16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ... import codebooks
from ...codebooks import rules
from ...codebooks.thresholds import thresholds
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor
from .data import Params, heavy_tails

if TYPE_CHECKING:
    import torch

BLOCK, BLOCKS = 256, 33


def case_inputs() -> Arrays:
    """Heavy-tailed float32 values, some far below the others, with zeros of both signs; a block of zeros."""
    x = heavy_tails(BLOCKS * BLOCK)
    scale = np.ldexp(np.float32(1), -(philox_bits(5, x.size) % 12).astype(np.int32))
    x = np.clip(x * scale, -6e4, 6e4).astype(np.float32)
    x[3], x[7] = 0.0, -0.0
    x[-BLOCK:] = 0
    return {"x": x.view(np.uint32)}


def _tensors(inputs: Arrays, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks, the codebook's values, and its thresholds."""
    import torch

    book = codebooks.dynamic()
    x = tensor(inputs["x"], "fp32", device).reshape(-1, BLOCK)
    values = torch.from_numpy(book.values.copy()).to(device)
    return x, values, torch.from_numpy(thresholds(book, rules.EVEN).copy()).to(device)


def device_fp32(inputs: Arrays, device: str) -> Arrays:
    """A maximum, a division, a search; a look-up and a product."""
    import torch

    x, values, edges = _tensors(inputs, device)
    most = x.abs().amax(1, keepdim=True)
    scaled = x / torch.where(most == 0, torch.ones_like(most), most)
    codes = torch.bucketize(scaled, edges)
    return {
        "codes": codes.to(torch.uint8).cpu().numpy(),
        "absmax": bits(most.flatten()),
        "scaled": bits(scaled),
        "back": bits(values[codes] * most),
    }


def lab_fp32(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the kernels."""
    x = inputs["x"].view(np.float32).reshape(-1, BLOCK)
    q = codebooks.quantize_blockwise(x, codebooks.dynamic(), BLOCK)
    scaled = x / np.where(q.absmax == 0, np.float32(1), q.absmax)[:, None]
    back = codebooks.dequantize_blockwise(q)
    return {"codes": q.codes, "absmax": q.absmax.view(np.uint32), "scaled": scaled.view(np.uint32),
            "back": back.view(np.uint32)}  # fmt: skip


def device_fp16(inputs: Arrays, device: str) -> Arrays:
    """The same with elements, scales and the product in FP16."""
    import torch

    x, values, edges = _tensors(inputs, device)
    half = x.half()
    most = half.abs().amax(1, keepdim=True)
    scaled = half / torch.where(most == 0, torch.ones_like(most), most)
    codes = torch.bucketize(scaled.float(), edges)
    back = values[codes].half() * most
    return {"codes": codes.to(torch.uint8).cpu().numpy(), "scaled": bits(scaled), "back": bits(back)}


def lab_fp16(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the lab's FP16 arithmetic; codes of the scaled values by their thresholds."""
    import fplab

    book = codebooks.dynamic()
    half = fplab.quantize(inputs["x"].view(np.float32), "fp16").reshape(-1, BLOCK)
    most = np.abs(half).max(1, keepdims=True)
    scaled = fplab.div(half, np.where(most == 0, np.float32(1), most), "fp16")
    codes = np.searchsorted(thresholds(book, rules.EVEN), scaled, "left")
    back = fplab.mul(fplab.quantize(book.values, "fp16")[codes], most, "fp16")
    return {"codes": codes.astype(np.uint8), "scaled": fplab.encode(scaled, "fp16"), "back": fplab.encode(back, "fp16")}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """Block-wise quantisation and back, in FP32 and in FP16."""
    return (
        Case("blockwise_fp32", case_inputs, device_fp32, lab_fp32,
             {"codes": "bits8", "absmax": "fp32", "scaled": "fp32", "back": "fp32"}),
        Case("blockwise_fp16", case_inputs, device_fp16, lab_fp16,
             {"codes": "bits8", "scaled": "fp16", "back": "fp16"}),
    )  # fmt: skip
