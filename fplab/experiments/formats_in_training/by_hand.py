"""The perceptron's first forward pass without torch: casts, Tensor Core products and single additions of the lab."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from .data import GPU

OPERANDS = {
    "tf32": ("tf32", "fp32"),
    "fp16": ("fp16", "fp16"),
    "bf16": ("bf16", "bf16"),
    "fp8_hybrid": ("e4m3", "fp32"),
    "pure_fp16": ("fp16", "fp16"),
    "pure_bf16": ("bf16", "bf16"),
}
"""By policy: the format of a product's operands, and that in which its result and the bias are held."""


def layers(arrays: Arrays) -> list[tuple[np.ndarray, np.ndarray]]:
    """The weights (out, in) and biases (out,) that the model begins with, FP32."""
    count = sum(name.startswith("first_weight_") for name in arrays)
    return [(arrays[f"first_weight_{i}"], arrays[f"first_bias_{i}"]) for i in range(count)]


def logits(policy: str, arrays: Arrays) -> np.ndarray:
    """The logits of the first batch under a policy other than FP32, float32 (128, 10).

    A product is summed from zero in the GPU's FP32 accumulator, the bias is added there in FP32, and the sum is stored
    once. The scale of an FP8 operand without a history is 1.
    """
    from ... import floats
    from ...tensorcore import matmul

    operands, stored = OPERANDS[policy]
    x = (arrays["first_images"] / np.float32(16)).astype(np.float32)
    last = len(layers(arrays)) - 1
    for i, (weight, bias) in enumerate(layers(arrays)):
        a, b = (narrow(v, operands) for v in (x, weight))
        product = matmul(a, b.T, gpu=GPU, inputs=operands)
        total = product + narrow(bias, stored)  # float32, correctly rounded
        x = np.asarray(floats.quantize(total, stored))
        x = x if i == last else np.maximum(x, np.float32(0))
    return x


def narrow(values: np.ndarray, fmt: str) -> np.ndarray:
    """Values rounded to a format; the FP8 of a training run saturates, and TF32 the Tensor Core truncates itself."""
    from ... import floats

    if fmt in ("fp32", "tf32"):
        return values
    return np.asarray(floats.quantize(values, fmt, overflow="saturate" if fmt == "e4m3" else None))
