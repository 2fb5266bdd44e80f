"""Scaled quantisation of 2^24 float32 against a copy of them, and of fewer against torchao and microxcaling.

``python -m benchmarks scaled``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import fplab
from fplab import scaled

from .timing import aligned, compared, judged, ratios, seconds, sized, table

N = sized(1 << 24, 1 << 16)
SMALL = sized(1 << 20, 1 << 16)  # for peers that would need minutes for N
GOALS = {"quantise": 1.5, "dequantise": 0.8, "stochastic": 3.0, "8 random bits": 3.0}
CHOSEN = TRANSFORMED = 3.0  # 4 over 6, and Hadamard to BF16
SMALL_GOAL = 2.0  # of a copy of SMALL, which lies in the cache


def copies_table(cores: int) -> str:
    """Every scheme's four ways, each in the same round as the copy."""
    x, out = aligned(N), aligned(N)
    x[:] = np.random.default_rng(0).standard_normal(N, np.float32)
    matrix, result = x.reshape(-1, 4096), out.reshape(-1, 4096)
    rows = []
    for name in scaled.SCHEMES:
        held = scaled.quantize(matrix, name)
        stochastic = {"rounding": "stochastic", "seed": 1}
        work: dict[str, Callable[[], object]] = {
            "quantise": lambda name=name: scaled.quantize(matrix, name),
            "dequantise": lambda held=held: held.dequantize(out=result),
            "stochastic": lambda name=name, how=stochastic: scaled.quantize(matrix, name, **how),
            "8 random bits": lambda name=name, how=stochastic: scaled.quantize(matrix, name, random_bits=8, **how),
        }
        found = ratios(lambda: np.copyto(out, x), work)
        rows.append((name, *(judged(f"{way} {name}", found[way], most) for way, most in GOALS.items())))
    more: dict[str, Callable[[], object]] = {
        "nvfp4, 4 over 6": lambda: scaled.quantize(matrix, "nvfp4", rule="4over6"),
        "Hadamard, to BF16": lambda: scaled.hadamard(matrix, dtype="bf16"),
    }
    found = ratios(lambda: np.copyto(out, x), more)
    most = dict(zip(more, (CHOSEN, TRANSFORMED), strict=True))
    rows += [(what, judged(what, ratio, most[what]), "", "", "") for what, ratio in found.items()]
    head = ("times a copy", *(f"{way} (goal {goal:g})" for way, goal in GOALS.items()))
    return table(f"Scaled, 2^24 float32 in rows of 4,096, {cores} cores; np.copyto = 1", head, rows)


def peers_table(cores: int) -> str:
    """torchao, and microxcaling as its source reads, on the CPU beside the lab."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from prove import scaled as routes

    torch.set_num_threads(cores)
    x = np.random.default_rng(0).standard_normal((SMALL // 4096, 4096)).astype(np.float32)
    out, rows = np.empty_like(x), []
    for name in (*routes.MX, "nvfp4"):
        scheme = scaled.get_scheme(name, variant="torchao")
        theirs = routes.torchao_nvfp4 if name == "nvfp4" else routes.torchao_mx
        work: dict[str, Callable[[], object]] = {
            "fplab": lambda s=scheme: scaled.quantize(x, s),
            "torchao": lambda s=scheme, f=theirs: f(x, s),
        }
        if name != "nvfp4":
            work["fplab, and back"] = lambda s=scheme: scaled.quantize(x, s).dequantize()
            work["microxcaling as its source reads, and back"] = lambda s=scheme: routes.microxcaling(x, s)
        found = ratios(lambda: np.copyto(out, x), work, rounds=sized(5, 1))
        compared("scaled", name, found)
        cells = {who: f"{ratio:.1f}" for who, ratio in found.items()}
        if name == routes.MX[0]:
            cells["fplab"] = judged(f"{name}, 2^20", found["fplab"], SMALL_GOAL, ".1f")
        rows += [(f"{name}, {who}", cell) for who, cell in cells.items()]
    return table(f"Against peers, 2^20 float32, {cores} cores each; np.copyto = 1", ("times a copy", "ratio"), rows)


def first_call() -> str:
    """Seconds of the first call of this process."""
    took = seconds(lambda: scaled.quantize(np.ones(64, np.float32)))
    return f"first call: {took:.2f} s, kernels {'compiled' if took > 1 else 'loaded'}"


def main() -> None:
    """Print the tables."""
    cores = fplab.num_threads()
    fplab.set_num_threads(cores)
    for part in (first_call, lambda: copies_table(cores), lambda: peers_table(cores)):
        print(part(), flush=True)
        print()
    fplab.set_num_threads(None)
