"""For a GPU: a hidden layer's three products in every format, and the loss under autocast; numpy and torch suffice.

The operands are a step's own where integers make them: a batch of the digits in sixteenths, the slope of the
cross-entropy at even guesses (a tenth, and nine tenths where the label is), weights uniform as torch draws them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...hardware.cases import Arrays, Case, Meta, NotHereError, philox_bits
from ...hardware.core_cases import SIDE, core_case
from ...hardware.products import QUESTION, TF32, Product
from ...hardware.software import codes, gpu_of, values
from ...hardware.tensors import TORCH, bits, tensor
from .data import first_batch

ROWS = 16
PASSES = ("forward", "input gradient", "weight gradient")
FORMATS = ("tf32", "fp16", "bf16")
FP8 = {"forward": ("e4m3", "e4m3"), "input gradient": ("e5m2", "e4m3"), "weight gradient": ("e5m2", "e4m3")}
FP8_FROM = (8, 9)  # compute capability


def step_values() -> dict[str, np.ndarray]:
    """Images (128, 64), weights (64, 64) and the gradient of the loss with respect to logits, times 1024 (128, 64).

    The gradient has ten columns; it is repeated to 64, so that it can be the gradient of a hidden layer.
    """
    batch = first_batch()
    images = (batch["first_images"] / np.float32(16)).astype(np.float32)
    uniform = philox_bits(4300, 64 * 64).reshape(64, 64).astype(np.float64) / 2**32
    weights = ((2 * uniform - 1) / 8).astype(np.float32)
    right = np.arange(10) == batch["first_labels"][:, None]
    slope = (np.where(right, -0.9, 0.1) * (1024 / 128)).astype(np.float32)
    return {"images": images, "weights": weights, "gradient": np.resize(slope.T, (64, 128)).T}


def factors(which: str) -> tuple[np.ndarray, np.ndarray]:
    """Both factors of a pass as rows over k: A (16, K) and B (16, K), float32."""
    v = step_values()
    a, b = {
        "forward": (v["images"], v["weights"]),
        "input gradient": (v["gradient"], v["weights"].T),
        "weight gradient": (v["gradient"].T, v["images"].T),
    }[which]
    return np.ascontiguousarray(a[:ROWS]), np.ascontiguousarray(b[-ROWS:])


def operands(which: str, formats: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """The factors as codes; rounded by numpy and torch."""
    a, b = (_codes(v, f) for v, f in zip(factors(which), formats, strict=True))
    return a, b


def _codes(array: np.ndarray, fmt: str) -> np.ndarray:
    """Codes of float32 numbers, none of which overflows."""
    if fmt == "fp32":
        return array.view(np.uint32)
    import torch

    return np.asarray(bits(torch.from_numpy(array.copy()).to(getattr(torch, TORCH[fmt]))))


def gpu_cases(params: Any) -> tuple[Case, ...]:
    """Every pass in every format; the operands do not depend on the size of the experiment."""
    found = [_half(which, fmt) for fmt in FORMATS for which in PASSES]
    return (*found, *(_fp8(which) for which in PASSES), *(_loss(fmt) for fmt in ("fp16", "bf16")))


def _half(which: str, fmt: str) -> Case:
    """A pass in TF32, FP16 or BF16, accumulated in FP32."""
    k = factors(which)[0].shape[1]
    held = "fp32" if fmt == "tf32" else fmt
    product = Product("matmul", (held, held), held, (SIDE, SIDE, k), TF32 if fmt == "tf32" else {})
    return core_case(f"{which} in {fmt.upper()}", product, partial(operands, which, (held, held)))


def _fp8(which: str) -> Case:
    """A pass in FP8, to FP32, with fast accumulation."""

    def inputs() -> Arrays:
        return dict(zip("ab", operands(which, FP8[which]), strict=True))

    return Case(
        f"{which} in {' * '.join(FP8[which]).upper()}", inputs, partial(_on_device, FP8[which]),
        partial(_in_lab, FP8[which]), {"d": "fp32"}, open=QUESTION,
        hypotheses={"one chain": partial(_in_lab, FP8[which])},
    )  # fmt: skip


def _on_device(formats: tuple[str, str], given: Arrays, device: str) -> Arrays:
    """A B^T through torch's scaled product with scales of 1; a CPU has no such unit, the lab's model stands in."""
    if device == "cpu":
        return _in_lab(formats, given, {"kind": "cpu"})
    import torch

    if (has := torch.cuda.get_device_capability(device)) < FP8_FROM:
        raise NotHereError(f"compute capability {has[0]}.{has[1]} has no FP8; 8.9 is the first.")
    a, b = (tensor(given[name], fmt, device) for name, fmt in zip("ab", formats, strict=True))
    one = torch.ones((), dtype=torch.float32, device=device)
    scaled: Callable[..., Any] = torch._scaled_mm
    return {"d": bits(scaled(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=True))}


def _in_lab(formats: tuple[str, str], given: Arrays, meta: Meta) -> Arrays:
    """The same with the bits of the record's GPU."""
    from ...tensorcore import matmul

    a, b = (values(given[name], fmt) for name, fmt in zip("ab", formats, strict=True))
    return {"d": codes(np.ascontiguousarray(matmul(a, b.T, gpu=gpu_of(meta), inputs=formats)), "fp32")}


# --- the loss ---------------------------------------------------------------------------------------------------


def _loss(fmt: str) -> Case:
    """Cross-entropy of half logits under autocast, each example's by itself: which of them are half values."""
    return Case(
        f"cross-entropy under autocast in {fmt.upper()}", partial(logits_case, fmt), partial(losses_case, fmt),
        _all_half, {"is_half": "bits8"},
    )  # fmt: skip


def logits_case(fmt: str) -> Arrays:
    """Logits (256, 10) uniform between -4 and 4, as codes, and labels."""
    uniform = philox_bits(4301, 2560).reshape(256, 10).astype(np.float64) / 2**29 - 4
    labels = (philox_bits(4302, 256) % np.uint32(10)).astype(np.uint8)
    return {"logits": _codes(uniform.astype(np.float32), fmt), "labels": labels}


def losses_case(fmt: str, given: Arrays, device: str) -> Arrays:
    """Through torch: 1 where the FP32 loss is a value of the half format. On a CPU, with the lab's autocast."""
    import torch

    z = tensor(given["logits"], fmt, device)
    labels = torch.from_numpy(given["labels"].astype(np.int64)).to(z.device)
    with _autocast(z.dtype, device):
        loss = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    if loss.dtype != torch.float32:
        raise NotHereError(f"autocast gave a loss in {loss.dtype}; FP32 was expected.")
    return {"is_half": (loss == loss.to(z.dtype).float()).to(torch.uint8).cpu().numpy()}


def _autocast(dtype: Any, device: str) -> Any:
    import torch

    if device != "cpu":
        return torch.autocast("cuda", dtype)
    from ... import nn

    return nn.autocast(dtype)


def _all_half(given: Arrays, meta: Meta) -> Arrays:
    """All: log_softmax is asked for the logits' dtype, and autocast leaves that alone."""
    return {"is_half": np.ones(len(given["labels"]), np.uint8)}
