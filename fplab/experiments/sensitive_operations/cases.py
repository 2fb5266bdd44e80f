"""What a GPU must compute for the claims; everything but the ``lab_`` functions runs with numpy and torch alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...hardware.cases import Arrays, Case, Meta, unmodelled
from ...hardware.tensors import TORCH, bits, tensor
from .data import FORMATS, Params, gather
from .operations import OPERATIONS, Listed

ROWS = 16
Values = Any  # a torch tensor
TORCHS: dict[str, Callable[[Any, Values], Values]] = {
    "exp": lambda torch, x: x.exp(),
    "log": lambda torch, x: x.log(),
    "pow": lambda torch, x: x**3,
    "sum": lambda torch, x: x.sum(-1, keepdim=True),
    "mean": lambda torch, x: x.mean(-1, keepdim=True),
    "variance": lambda torch, x: x.var(-1, correction=0, keepdim=True),
    "norm": lambda torch, x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "softmax": lambda torch, x: x.softmax(-1),
    "layer norm": lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "cross-entropy": lambda torch, x: first_class_loss(torch, x),
}


def first_class_loss(torch: Any, x: Values) -> Values:
    """The loss of every row of logits whose true class is the first: (rows, 1)."""
    target = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    return torch.nn.functional.cross_entropy(x, target, reduction="none").unsqueeze(-1)


def torch_half(op: Listed, x: np.ndarray, fmt: str, device: str = "cpu") -> np.ndarray:
    """torch's own operation on values in a half format: the bits of its result."""
    import torch

    values = torch.from_numpy(np.array(x, np.float32)).to(device).to(getattr(torch, TORCH[fmt]))
    return bits(TORCHS[op.name](torch, values))


@functools.lru_cache(maxsize=2)
def real_values(params: Params) -> Arrays:
    """A few rows of the network's values in each format, as codes; made by torch's casts from FP32."""
    import torch

    found = {}
    arrays = gather(params, lambda _done, _text: None)
    for data in sorted({op.data for op in OPERATIONS}):
        values = torch.from_numpy(np.ascontiguousarray(arrays[data][:ROWS]))
        for fmt in FORMATS:
            found[f"{data} {fmt}"] = bits(values.to(getattr(torch, TORCH[fmt])))
    return found


def every_code(fmt: str) -> Arrays:
    """All codes of a 16-bit format as one column."""
    return {f"codes {fmt}": np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(-1, 1)}


def source(op: Listed, fmt: str, given: Arrays) -> np.ndarray:
    """The codes that an operation takes in a case."""
    name = f"codes {fmt}"
    return given[name] if name in given else given[f"{op.data} {fmt}"]


def device_results(ops: tuple[Listed, ...], given: Arrays, device: str) -> Arrays:
    """Each operation in each format, by torch."""
    import torch

    found = {}
    for fmt in FORMATS:
        for op in ops:
            if f"codes {fmt}" in given or f"{op.data} {fmt}" in given:
                x = tensor(source(op, fmt, given), fmt, device)
                found[f"{op.name} {fmt}"] = bits(TORCHS[op.name](torch, x))
    return found


def lab_results(ops: tuple[Listed, ...], inside: bool, given: Arrays, meta: Meta) -> Arrays:
    """The same in one of the lab's ways: FP32 inside and one rounding, or every step rounded."""
    from ...floats import decode, encode

    found = {}
    for fmt in FORMATS:
        for op in ops:
            if f"codes {fmt}" in given or f"{op.data} {fmt}" in given:
                x = decode(source(op, fmt, given), fmt, np.float32)
                with np.errstate(all="ignore"):
                    found[f"{op.name} {fmt}"] = np.asarray(encode(op.run(x, "fp32" if inside else fmt), fmt))
    return found


def widths(given: Arrays, device: str) -> Arrays:
    """Under autocast, the bits of each operation's results, for operands of 16."""
    import torch

    x = tensor(given["x"], "fp16", device)
    block: Any
    if torch.device(device).type == "cpu":
        from ...nn.cuda_autocast import autocast

        block = autocast("fp16")  # the lab's, since torch's for the CPU has other lists
    else:
        block = torch.autocast(torch.device(device).type, torch.float16)
    with block:
        found = [TORCHS[op.name](torch, x).element_size() * 8 for op in OPERATIONS]
    return {"bits": np.array(found, np.uint8)}


def lab_widths(given: Arrays, meta: Meta) -> Arrays:
    """What the lists say."""
    from .data import listed

    return {"bits": np.array([32 if listed(op) else 16 for op in OPERATIONS], np.uint8)}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """Elementwise operations on every code, all of them on real rows, and the width of results under autocast."""
    single = tuple(op for op in OPERATIONS if op.elementwise)

    def case(name: str, ops: tuple[Listed, ...], inputs: Callable[[], Arrays], formats: tuple[str, ...]) -> Case:
        return Case(
            name, inputs, partial(device_results, ops), unmodelled,
            {f"{op.name} {fmt}": fmt for fmt in formats for op in ops},
            open="Does torch's kernel compute in FP32 and round once?",
            hypotheses={
                "FP32 inside, one rounding": partial(lab_results, ops, True),
                "every step rounded": partial(lab_results, ops, False),
            },
        )  # fmt: skip

    def ramp() -> Arrays:
        return {"x": np.linspace(0x3800, 0x3E00, 64).astype(np.uint16).reshape(4, 16)}  # 1/2 to 3/2 in FP16

    return (
        *(case(f"every code of {fmt}", single, partial(every_code, fmt), (fmt,)) for fmt in FORMATS),
        case("real rows", OPERATIONS, lambda: dict(real_values(params)), FORMATS),
        Case("widths under autocast", ramp, widths, lab_widths, {"bits": "bits8"}),
    )
