"""torch's FP8 product on a GPU: the probes of the short accumulator, one instruction, and a long k.

``torch._scaled_mm`` keeps its sums in the Tensor Core (``use_fast_accum``) or adds them to FP32 registers now and then;
how often is the library's choice, and is asked here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...hardware.cases import Arrays, Case, Meta, NotHereError
from ...hardware.software import codes, gpu_of
from ...hardware.tensors import bits, tensor
from ..generations.probes import FP8_PROBES
from . import operands

ROWS = 64
BLOCK = 32  # products of one instruction
QUESTIONS = {True: "In which order of k, and is it one chain?", False: "After how many products are sums promoted?"}
FP8_FROM = (8, 9)  # compute capability
Plan = dict[str, Any]


def probe_operands() -> Arrays:
    """The FP8 probes as rows of A and of B, c as a block of its own: the results on the diagonal are the probes."""
    rows: dict[str, list[np.ndarray]] = {"a": [], "b": []}
    for probe in FP8_PROBES:
        root = np.sqrt(probe.c)  # 32 or 0
        for row, factors in zip(rows.values(), probe.factors, strict=True):
            row.append(np.concatenate([[root], np.zeros(BLOCK - 1), factors]).astype(np.float32))
    return {name: small(np.resize(np.stack(row), (ROWS, 2 * BLOCK))) for name, row in rows.items()}


def small(values: np.ndarray) -> np.ndarray:
    """E4M3 codes of numbers that it holds, with numpy alone."""
    from ... import exact

    distinct, place = np.unique(values, return_inverse=True)
    table = [exact.round_to(exact.from_float(v), "e4m3")[0] for v in distinct.tolist()]
    return np.array(table, np.uint8)[place].reshape(values.shape)


def random_operands(distribution: str, k: int) -> Arrays:
    """Codes (64, k) of A and of B^T."""
    return {name: operands.draw(distribution, 50 + key, ROWS, k) for key, name in enumerate("ab")}


def on_device(fast: bool, given: Arrays, device: str) -> Arrays:
    """A B^T through torch, to FP32. A CPU has no such unit: the lab's model stands in for it."""
    if device == "cpu":
        return in_lab(usual(fast), given, {"kind": "cpu"})
    import torch

    if (has := torch.cuda.get_device_capability(device)) < FP8_FROM:
        raise NotHereError(f"compute capability {has[0]}.{has[1]} has no FP8; 8.9 is the first.")
    a, b = (tensor(given[name], "e4m3", device) for name in "ab")
    one = torch.ones((), dtype=torch.float32, device=device)
    d = torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast)
    return {"d": bits(d)}


def usual(fast: bool) -> Plan:
    """What is expected: one chain, or promotion every 128."""
    return {} if fast else {"promote": 128}


def in_lab(plan: Plan, given: Arrays, meta: Meta) -> Arrays:
    """The same with the bits of the record's GPU, by a plan."""
    from ...tensorcore import Plan, matmul

    a, b = (operands.numbers(given[name]) for name in "ab")
    return {"d": codes(matmul(a, b.T, gpu=gpu_of(meta), inputs="e4m3", plan=Plan(**plan)), "fp32")}


def plans() -> dict[str, Plan]:
    """The orders and promotions that a library may choose."""
    found: dict[str, Plan] = {"one chain": {}}
    found |= {f"promoted every {n}": {"promote": n} for n in (32, 64, 128, 256, 512, 1024)}
    found |= {f"split-K {n}": {"split_k": n} for n in (2, 4, 8, 16)}
    return found | {f"{n} accumulators": {"accumulators": n} for n in (2, 4)}


def cases() -> tuple[Case, ...]:
    """The probes and one instruction, where there is no choice; and the long sums, where there is."""
    found = []
    for fast in (True, False):
        how = "fast accumulation" if fast else "promoted"
        settled: dict[str, Callable[[], Arrays]] = {"probes": probe_operands} if fast else {}
        settled |= {f"{d}, k = {BLOCK}": partial(random_operands, d, BLOCK) for d in operands.DISTRIBUTIONS}
        for name, made in settled.items():
            found.append(_case(f"{name}, {how}", made, fast))
        for distribution in operands.DISTRIBUTIONS:
            for k in (128, 512, 4096):
                made = partial(random_operands, distribution, k)
                found.append(_case(f"{distribution}, k = {k}, {how}", made, fast, QUESTIONS[fast]))
    return tuple(found)


def _case(name: str, inputs: Callable[[], Arrays], fast: bool, question: str = "") -> Case:
    tried = {text: partial(in_lab, plan) for text, plan in plans().items()} if question else {}
    return Case(
        name, inputs, partial(on_device, fast), partial(in_lab, usual(fast)), {"d": "fp32"},
        open=question, hypotheses=tried,
    )  # fmt: skip
