"""What a GPU must compute for the claims: INT8 products, and whole products by several methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import integers
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor

SHAPES = ((32, 64, 64), (17, 256, 128), (128, 1024, 24))
METHODS = ("absmax", "vectorwise", "zeropoint_vectorwise", "llm_int8", "zeropoint_llm_int8")
WRAPPING_K = 131072  # so many products of (-128)^2 are 2^31


def _codes(key: int, *shape: int) -> np.ndarray:
    """Random codes from -128 to 127, as bytes."""
    return philox_bits(key, int(np.prod(shape)), np.uint8).reshape(shape)


def product_inputs() -> Arrays:
    """Operands of the exact products: random codes, one row and one column of -128."""
    found: Arrays = {}
    for i, (m, k, n) in enumerate(SHAPES):
        found[f"a{i}"], found[f"b{i}"] = _codes(500 + 2 * i, m, k), _codes(501 + 2 * i, k, n)
        found[f"a{i}"][0], found[f"b{i}"][:, 0] = 0x80, 0x80
    return found


def device_products(inputs: Arrays, device: str) -> Arrays:
    """``torch._int_mm`` on the device, int32 as bits."""
    from ...nn.int8_layers import int_mm

    pairs = [[tensor(inputs[f"{name}{i}"], "int8", device) for name in "ab"] for i in range(len(SHAPES))]
    return {f"c{i}": bits(int_mm(a, b)) for i, (a, b) in enumerate(pairs)}


def lab_products(inputs: Arrays, meta: Meta) -> Arrays:
    """The exact sums."""
    return {
        f"c{i}": integers.int_matmul(inputs[f"a{i}"].view(np.int8), inputs[f"b{i}"].view(np.int8)).view(np.uint32)
        for i in range(len(SHAPES))
    }


def wrapping_inputs() -> Arrays:
    """The code of -128, and numbers of products of which the last exceeds INT32."""
    return {"code": np.array([0x80], np.uint8), "k": np.array([WRAPPING_K - 8, WRAPPING_K], np.uint32)}


def device_wrapping(inputs: Arrays, device: str) -> Arrays:
    """One element of the product of two constant matrices for each K."""
    import torch

    from ...nn.int8_layers import int_mm

    value = int(inputs["code"].view(np.int8)[0])
    found = []
    for k in inputs["k"].tolist():
        a, b = (torch.full(shape, value, dtype=torch.int8, device=device) for shape in ((32, k), (k, 8)))
        found.append(bits(int_mm(a, b))[0, 0])
    return {"c": np.array(found, np.uint32)}


def lab_wrapping(inputs: Arrays, meta: Meta) -> Arrays:
    """INT32 sums wrap around."""
    value = int(inputs["code"].view(np.int8)[0])
    return {"c": np.array([(value * value * k) % 2**32 for k in inputs["k"].tolist()], np.uint32)}


def layer_inputs() -> Arrays:
    """Activations with four outlier dimensions, and weights, as FP32's bits: sums of eight bytes, nearly normal."""

    def normal(key: int, rows: int, columns: int) -> np.ndarray:
        raw = philox_bits(key, rows * columns * 8, np.uint8).astype(np.float32).reshape(rows, columns, 8)
        return np.asarray((raw.sum(axis=2) - np.float32(1020)) / np.float32(209))

    x, w = normal(510, 48, 96), normal(511, 96, 40) / np.float32(16)
    x[:, [5, 19, 44, 83]] *= np.float32(16)
    return {"x": x.view(np.uint32), "w": w.view(np.uint32)}


def device_layers(inputs: Arrays, device: str) -> Arrays:
    """The layers of :mod:`fplab.nn` on the device, a method after another."""
    import torch

    from ...nn import Int8Linear

    x, w = (tensor(inputs[name], "fp32", "cpu") for name in ("x", "w"))
    linear = torch.nn.Linear(w.shape[0], w.shape[1], bias=False)
    with torch.no_grad():
        linear.weight.copy_(w.T)
    return {name: bits(Int8Linear(linear, name).to(device)(x.to(device))) for name in METHODS}


def lab_layers(inputs: Arrays, meta: Meta) -> Arrays:
    """The definition of each method."""
    x, w = (inputs[name].view(np.float32) for name in ("x", "w"))
    return {name: integers.matmul(x, w, name).view(np.uint32) for name in METHODS}


def gpu_cases(params: Any) -> tuple[Case, ...]:
    """Exact INT8 products, what a sum beyond INT32 becomes, and five methods with their scales and outliers."""
    return (
        Case("int8_products", product_inputs, device_products, lab_products,
             {f"c{i}": "bits32" for i in range(len(SHAPES))}),
        Case("int32_wraps", wrapping_inputs, device_wrapping, lab_wrapping, {"c": "bits32"}),
        Case("methods", layer_inputs, device_layers, lab_layers, dict.fromkeys(METHODS, "fp32")),
    )  # fmt: skip
