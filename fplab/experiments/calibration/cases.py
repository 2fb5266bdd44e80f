"""What a GPU must compute for the claims: torch's fake quantisation, also of values that no integer stands for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import integers
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor
from ...integers import Affine, grids

GRIDS = ("int8", "uint8", "int4_full")
ZERO_POINTS = {"int8": 0, "uint8": 37, "int4_full": -3}
CHANNELS, LENGTH = 16, 256
STEP = np.float32(0.0371)


def case_inputs() -> Arrays:
    """FP32 values of all signs and sizes around the grids, half of them at ties; a scale for each channel."""
    n = CHANNELS * LENGTH
    unit = (philox_bits(520, n).astype(np.float64) - 2**31) / 2**31
    x = (unit * 6).astype(np.float32)
    ties = (philox_bits(521, n) % np.uint32(601)).astype(np.float32) / np.float32(2) - np.float32(150)
    x[::2] = ties[::2] * STEP
    scales = STEP * np.float32(2) ** np.arange(-CHANNELS // 2, CHANNELS // 2, dtype=np.float32)
    return {"x": x.reshape(CHANNELS, LENGTH).view(np.uint32), "scales": scales.view(np.uint32)}


def device_fake(inputs: Arrays, device: str) -> Arrays:
    """Both of torch's operators on each grid, and the gradient of the sum: values and masks as FP32 bits."""
    import torch

    x, scales = (tensor(inputs[name], "fp32", device) for name in ("x", "scales"))
    found = {}
    for name in GRIDS:
        grid, zero = grids.get(name), ZERO_POINTS[name]
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        one = torch.fake_quantize_per_tensor_affine(a, float(STEP), zero, grid.low, grid.high)
        zeros = torch.full((CHANNELS,), zero, dtype=torch.int32, device=device)
        each = torch.fake_quantize_per_channel_affine(b, scales, zeros, 0, grid.low, grid.high)
        for key, result, leaf in (("tensor", one, a), ("channel", each, b)):
            result.sum().backward()
            assert leaf.grad is not None
            found[f"{name}_{key}"], found[f"{name}_{key}_gradient"] = bits(result.detach()), bits(leaf.grad)
    return found


def lab_fake(inputs: Arrays, meta: Meta) -> Arrays:
    """Quantise and dequantise by the definition; the gradient is 1 where the code lies in the grid before clipping."""
    x, scales = (inputs[name].view(np.float32) for name in ("x", "scales"))
    found = {}
    for name in GRIDS:
        grid, zero = grids.get(name), ZERO_POINTS[name]
        for key, scale in (("tensor", STEP), ("channel", scales[:, None])):
            how = Affine(np.asarray(scale), np.asarray(zero), grid)
            values = integers.dequantize(integers.quantize(x, how), how)
            code = np.rint(x * (np.float32(1) / how.scale)) + np.float32(zero)
            inside = ((code >= grid.low) & (code <= grid.high)).astype(np.float32)
            found[f"{name}_{key}"], found[f"{name}_{key}_gradient"] = values.view(np.uint32), inside.view(np.uint32)
    return found


def special_inputs() -> Arrays:
    """NaN, both infinities, and 2^62, 2^63 and -2^63 steps."""
    x = np.array([np.nan, np.inf, -np.inf, 2.0**62, 2.0**63, -(2.0**63)], np.float32)
    return {"x": x.view(np.uint32)}


def device_special(inputs: Arrays, device: str) -> Arrays:
    """Both operators with a scale of 1 on the symmetric INT8 grid."""
    import torch

    x = tensor(inputs["x"], "fp32", device)
    one, zero = torch.ones(1, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    return {
        "tensor": bits(torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -127, 127)),
        "channel": bits(torch.fake_quantize_per_channel_affine(x[None], one, zero, 0, -127, 127)[0]),
    }


def saturates(inputs: Arrays, meta: Meta) -> Arrays:
    """Each value ends at its own side of the grid, NaN at the least code."""
    x = inputs["x"].view(np.float32)
    ends = np.where(x > 0, np.float32(127), np.float32(-127)).view(np.uint32)
    return {"tensor": ends, "channel": ends}


def converts_first(inputs: Arrays, meta: Meta) -> Arrays:
    """The per-channel kernel converts to int64 before it clips: from 2^63 on the least code, as on x86 processors."""
    x = inputs["x"].view(np.float32)
    fits = np.abs(x) < np.float32(2.0**63)
    turned = np.where(fits & (x > 0), np.float32(127), np.float32(-127))
    return {"tensor": saturates(inputs, meta)["tensor"], "channel": turned.view(np.uint32)}


def gpu_cases(params: Any) -> tuple[Case, ...]:
    """Values and gradients of fake quantisation, and an open question about values that no integer stands for."""
    names = [f"{g}_{key}{part}" for g in GRIDS for key in ("tensor", "channel") for part in ("", "_gradient")]
    return (
        Case("fake_quantize", case_inputs, device_fake, lab_fake, dict.fromkeys(names, "fp32")),
        Case(
            "fake_quantize_special", special_inputs, device_special, saturates, {"tensor": "fp32", "channel": "fp32"},
            open="what torch's fake quantisation makes of NaN, infinities and 2^63 steps on this device",
            hypotheses={"each saturates at its end": saturates, "converted to int64 first": converts_first},
        ),
    )  # fmt: skip
