"""What a device must add through torch: the stalling sums one addition at a time, and sums of half tensors.

This file needs numpy and torch only; the lab's own kernels are imported where the results are emulated.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ... import exact
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor
from . import series

STEPS = {"fp16": 2300, "bf16": 300, "fp32": 96}  # additions in a row: enough to pass every stall, in FP32 from nearby
STALLS_FP32 = {"harmonic": 2097151, "ones": 1 << 24, "0.1": 1 << 24, "1e-4": 1 << 24}
WORD = {"fp16": np.uint16, "bf16": np.uint16, "fp32": np.uint32}


def codes(values: np.ndarray, fmt: str) -> np.ndarray:
    """Codes of float64 values, rounded to nearest even once: numpy's casts, and the oracle where numpy has none."""
    if fmt == "bf16":
        distinct, place = np.unique(values, return_inverse=True)
        return np.array([exact.round_to(exact.from_float(v), fmt)[0] for v in distinct.tolist()], np.uint16)[place]
    dtype, word = (np.float16, np.uint16) if fmt == "fp16" else (np.float32, np.uint32)
    return np.asarray(values).astype(dtype).view(word)


@lru_cache(maxsize=4)
def lanes(fmt: str) -> tuple[np.ndarray, np.ndarray]:
    """Starting sums (L,) and terms (L, K) as codes, a lane a series.

    FP16 and BF16 start at nothing. FP32 starts ``K/2`` additions before its stall (for 0.1 and 1e-4, 2**24 additions
    in), at what numpy's float32 additions give there.
    """
    steps = STEPS[fmt]
    starts, rows = [], []
    for name in series.SERIES:
        first = STALLS_FP32[name] - steps // 2 if fmt == "fp32" else 0
        sum_before = np.float32(0)
        for k in range(1, first + 1, series.CHUNK):
            count = min(series.CHUNK, first + 1 - k)
            chunk = series.terms(name, k, count).astype(np.float32)
            sum_before = np.add.accumulate(np.concatenate([[sum_before], chunk]), dtype=np.float32)[-1]
        starts.append(codes(np.array([sum_before], np.float64), fmt)[0])
        rows.append(codes(series.terms(name, first + 1, steps), fmt))
    return np.array(starts), np.stack(rows)


def running_case(fmt: str) -> Case:
    """Each lane's sums, one tensor addition after the other."""

    def inputs() -> Arrays:
        start, terms = lanes(fmt)
        return {"start": start.copy(), "terms": terms.copy()}

    def compute(given: Arrays, device: str) -> Arrays:
        import torch

        total, terms = (tensor(given[name], fmt, device) for name in ("start", "terms"))
        partial = []
        for k in range(terms.shape[1]):
            total = total + terms[:, k]
            partial.append(total)
        return {"sums": bits(torch.stack(partial, dim=1))}

    def emulate(given: Arrays, meta: Meta) -> Arrays:
        from ... import floats, sums

        both = np.concatenate([given["start"][:, None], given["terms"]], axis=1)
        partial = sums.sum(floats.decode(both, fmt), fmt, running=True)[:, 1:]
        return {"sums": floats.encode(partial, fmt)}

    return Case(f"running sums in {fmt}", inputs, compute, emulate, {"sums": fmt})


def torch_sum_case(fmt: str) -> Case:
    """``torch.sum`` of half tensors: accumulated in FP32, rounded once.

    Integers, few and small enough that every partial sum is exact in FP32: so the order, which differs between devices,
    cannot matter, and what is left is whether the accumulator is FP32. In half it would stall: a row is 4,096 ones.
    """

    def inputs() -> Arrays:
        raw = philox_bits(20 + len(fmt), 63 * 4096, np.uint16).reshape(63, 4096)
        values = (raw % 16).astype(np.float64) - np.arange(63)[:, None] % 8
        return {"x": codes(np.concatenate([np.ones((1, 4096)), values]).ravel(), fmt).reshape(64, 4096)}

    def compute(given: Arrays, device: str) -> Arrays:
        return {"sum": bits(tensor(given["x"], fmt, device).sum(dim=1))}

    def emulate(given: Arrays, meta: Meta) -> Arrays:
        from ... import floats, sums

        return {"sum": floats.encode(sums.sum(floats.decode(given["x"], fmt), fmt, accumulate="exact"), fmt)}

    return Case(f"torch.sum of {fmt} is one rounding of the exact sum", inputs, compute, emulate, {"sum": fmt})


def cases() -> tuple[Case, ...]:
    """Every case."""
    return (*(running_case(f) for f in STEPS), *(torch_sum_case(f) for f in ("fp16", "bf16")))
