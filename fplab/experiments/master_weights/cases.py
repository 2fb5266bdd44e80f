"""What a GPU must compute for the claims; everything but the ``lab_`` functions runs with numpy and torch alone."""

from __future__ import annotations

import numpy as np

import fplab

from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import TORCH, bits, tensor
from .data import HALVES, Params

FRACTION = {"fp16": 10, "bf16": 7}
LR = 0.0625 * 1.1  # not a power of two, so that the product with it is rounded
KAHAN = ("corrected", "summed", "moved", "compensation")


def operands(fmt: str, n: int, lift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Codes (uint16) of weights, and of updates around half an ulp of them: the criterion, ties included.

    ``lift``: by how many binades the updates are larger.
    """
    fraction = FRACTION[fmt]
    raw = philox_bits(401 + fraction, 2 * n, np.uint32)
    w, r = raw[:n], raw[n:]
    field = (15 if fmt == "fp16" else 127) + (w >> 16) % 4  # weights between 1 and 16
    weights = (w & 1) << 15 | field << fraction | (w >> 1) & ((1 << fraction) - 1)
    below = fraction - lift + (r >> 16) % 4  # the update's exponent lies that far below the weight's
    tie = (r >> 20) % 4 == 0  # every fourth is a power of two
    significand = np.where(tie, 0, (r >> 1) & ((1 << fraction) - 1))
    updates = (r & 1) << 15 | (field - below) << fraction | significand
    return weights.astype(np.uint16), updates.astype(np.uint16)


def pair_inputs(params: Params) -> Arrays:
    """Weights and updates of both formats."""
    found = {fmt: operands(fmt, params.sample) for fmt in HALVES}
    return {f"{fmt}_{name}": found[fmt][i] for fmt in HALVES for i, name in enumerate(("weight", "update"))}


def sgd_inputs(params: Params) -> Arrays:
    """Weights and gradients of both formats, the gradients 2**4 times as large: times LR they are updates."""
    found = {fmt: operands(fmt, params.sample, lift=4) for fmt in HALVES}
    return {f"{fmt}_{name}": found[fmt][i] for fmt in HALVES for i, name in enumerate(("weight", "update"))}


def master_inputs(params: Params) -> Arrays:
    """FP32 weights: signs, exponents of 2**-10 to 2, any significand, and midpoints of both formats."""
    bits = philox_bits(409, params.sample)
    values = bits & np.uint32(0x807FFFFF) | ((bits >> 9) % 11 + 117) << np.uint32(23)
    for share, fraction in ((3, 10), (5, 7)):
        half = np.uint32(1 << (22 - fraction))
        values[::share] = values[::share] & ~np.uint32(2 * half - 1) | half
    return {"master": values.astype(np.uint32)}


def device_kahan(inputs: Arrays, device: str) -> Arrays:
    """Two compensated additions of the same update in half precision, operation by operation."""
    found: Arrays = {}
    for fmt in HALVES:
        w, u = (tensor(inputs[f"{fmt}_{name}"], fmt, device) for name in ("weight", "update"))
        lost = w - w
        for _ in range(2):
            corrected = u + lost
            summed = w + corrected
            moved = summed - w
            lost, w = corrected - moved, summed
        found |= {f"{fmt}_{n}": bits(x) for n, x in zip(KAHAN, (corrected, summed, moved, lost), strict=True)}
    return found


def lab_kahan(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the lab's kernels."""
    found: Arrays = {}
    for fmt in HALVES:
        w, u = (fplab.decode(inputs[f"{fmt}_{name}"], fmt) for name in ("weight", "update"))
        lost = np.zeros_like(w)
        for _ in range(2):
            corrected = fplab.add(u, lost, fmt)
            summed = fplab.add(w, corrected, fmt)
            moved = fplab.sub(summed, w, fmt)
            lost, w = fplab.sub(corrected, moved, fmt), summed
        results = zip(KAHAN, (corrected, summed, moved, lost), strict=True)
        found |= {f"{fmt}_{n}": fplab.encode(x, fmt) for n, x in results}
    return found


def device_copies(inputs: Arrays, device: str) -> Arrays:
    """The half copies of FP32 master weights."""
    import torch

    master = tensor(inputs["master"], "fp32", device)
    return {fmt: bits(master.to(getattr(torch, TORCH[fmt]))) for fmt in HALVES}


def lab_copies(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the lab's kernels."""
    return {fmt: fplab.encode(inputs["master"].view(np.float32), fmt) for fmt in HALVES}


def device_sgd(inputs: Arrays, device: str) -> Arrays:
    """torch's own update of a half weight, ``weight.add_(gradient, alpha=-lr)``."""
    pairs = {fmt: [tensor(inputs[f"{fmt}_{n}"], fmt, device) for n in ("weight", "update")] for fmt in HALVES}
    return {fmt: bits(w.clone().add_(g, alpha=-LR)) for fmt, (w, g) in pairs.items()}


def lab_sgd(inputs: Arrays, meta: Meta) -> Arrays:
    """w - lr * g in FP32 and then rounded to the format: twice, so it is not always the nearest half number.

    Whether the product was rounded before the sum cannot be seen here: it moves the sum by 2**-37 of the weight.
    """
    found: Arrays = {}
    for fmt in HALVES:
        w, g = (fplab.decode(inputs[f"{fmt}_{n}"], fmt) for n in ("weight", "update"))
        found[fmt] = fplab.encode(fplab.fma(g, np.float32(-LR), w, "fp32"), fmt)
    return found


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """Compensated sums, the copies of master weights, and torch's own update of a half weight."""
    return (
        Case(
            "kahan",
            lambda: pair_inputs(params),
            device_kahan,
            lab_kahan,
            {f"{fmt}_{name}": fmt for fmt in HALVES for name in KAHAN},
        ),
        Case("master_copies", lambda: master_inputs(params), device_copies, lab_copies, {f: f for f in HALVES}),
        Case("sgd_on_half_weights", lambda: sgd_inputs(params), device_sgd, lab_sgd, {f: f for f in HALVES}),
    )
