"""What a GPU must do: split FP32 operands, multiply the parts by single instructions, and add outside or inside."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Arrays, Case, Meta
from ...hardware.core_cases import SIDE, core_case
from ...hardware.environment import torch_for
from ...hardware.products import REDUCED, Product
from ...hardware.software import gpu_of
from ...hardware.tensors import bits, flags_set, tensor
from . import methods
from .parts import SCALED, split

if TYPE_CHECKING:
    from . import Params

LENGTH, LONG, INSTRUCTION = 256, 4096, 16
UNREDUCED = {REDUCED.format("fp16"): False}


def given(kind: str, k: int, params: Params) -> Arrays:
    """FP32 codes of the leading K of a kind's operands."""
    a, b = methods.operands(kind, params.rows, params.log2_last)
    return {name: np.ascontiguousarray(x[:, :k]).view(np.uint32) for name, x in (("a", a), ("b", b))}


def torch_parts(x: Any) -> tuple[Any, Any]:
    """High and scaled low part of an FP32 tensor, float16."""
    high = x.half()
    return high, ((x - high.float()) * 2048).half()


def lab_parts(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same by the lab, float32 values."""
    return split(codes.view(np.float32), SCALED)


def split_compute(inputs: Arrays, device: str) -> Arrays:
    """The parts of both operands on a device, as FP16 codes."""
    found: Arrays = {}
    for name, codes in inputs.items():
        high, low = torch_parts(tensor(codes, "fp32", device))
        found |= {f"{name} high": bits(high), f"{name} low": bits(low)}
    return found


def split_emulate(inputs: Arrays, meta: Meta) -> Arrays:
    """The parts by the lab."""
    from ...floats import encode

    found: Arrays = {}
    for name, codes in inputs.items():
        for part, x in zip(("high", "low"), lab_parts(codes), strict=True):
            found[f"{name} {part}"] = np.asarray(encode(x, "fp16"))
    return found


def outside_compute(inputs: Arrays, device: str) -> Arrays:
    """A batch of products of K = 16, each one instruction with c = 0, added on the device in FP32, one by one."""
    if device == "cpu":
        return outside_emulate(inputs, {"kind": "cpu"})
    torch = torch_for(device)
    x, y = (tensor(inputs[name], "fp32", device) for name in "ab")
    with flags_set(UNREDUCED):
        return added(torch_parts(x), torch_parts(y), partial(torch.bmm, out_dtype=torch.float32))


def added(a: tuple[Any, Any], b: tuple[Any, Any], multiply: Any) -> Arrays:
    """The three products of parts (rows, K), by slices of 16; ``multiply`` takes batches (K / 16, rows, 16)."""
    import torch

    (ah, al), (bh, bl) = ([_slices(part) for part in x] for x in (a, b))
    main, mixed = (torch.zeros(len(a[0]), len(b[0]), dtype=torch.float32, device=a[0].device) for _ in range(2))
    for total, x, y in ((main, ah, bh), (mixed, ah, bl), (mixed, al, bh)):
        for part in multiply(x, y.transpose(1, 2)):
            total += part
    return {"main": bits(main), "mixed": bits(mixed), "d": bits(main + mixed / 2048)}


def _slices(x: Any) -> Any:
    """(rows, K) as (K / 16, rows, 16)."""
    return x.reshape(len(x), -1, INSTRUCTION).transpose(0, 1).contiguous()


def outside_emulate(inputs: Arrays, meta: Meta, instruction: str | None = None) -> Arrays:
    """The same by the lab: promotion to FP32 after every instruction."""
    from ...tensorcore import Plan, matmul

    (ah, al), (bh, bl) = (lab_parts(inputs[name]) for name in "ab")
    options: Any = {"gpu": gpu_of(meta), "instruction": instruction, "plan": Plan(promote=INSTRUCTION)}
    main = matmul(ah, bh.T, **options)
    mixed = matmul(al, bh.T, matmul(ah, bl.T, **options), **options)
    d = main + mixed / np.float32(2048)
    return {name: x.view(np.uint32) for name, x in (("main", main), ("mixed", mixed), ("d", d))}


def high_parts(kind: str, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """FP16 codes of the high parts of a long product."""
    a, b = (codes.view(np.float32).astype(np.float16) for codes in given(kind, LONG, params).values())
    return a.view(np.uint16), b.view(np.uint16)


def cases(params: Params) -> tuple[Case, ...]:
    """The parts of every kind; products added outside; the main product of the positive kind, added inside."""
    found = []
    for kind in methods.KINDS:
        formats = {f"{name} {part}": "fp16" for name in "ab" for part in ("high", "low")}
        inputs = partial(given, kind, LENGTH, params)
        found.append(Case(f"{kind}: FP32 as two FP16 parts", inputs, split_compute, split_emulate, formats))
    for kind in ("random", "positive"):
        found.append(
            Case(
                f"{kind}, K = {LENGTH}: three products of instructions with c = 0, added outside",
                partial(given, kind, LENGTH, params), outside_compute, outside_emulate,
                dict.fromkeys(("main", "mixed", "d"), "fp32"),
                open="Is a product of K = 16 one block?",
                hypotheses={"instructions of k = 8": partial(outside_emulate, instruction="mma.k8")},
            )
        )  # fmt: skip
    inside = Product("matmul", ("fp16", "fp16"), "fp32", (SIDE, SIDE, LONG), UNREDUCED)
    name = f"positive, K = {LONG}: high parts, added inside"
    return (*found, core_case(name, inside, partial(high_parts, "positive", params)))
