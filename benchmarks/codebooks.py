"""Block-wise quantisation of 2^24 float32 against a copy of them, and 8-bit Adam against torch's own.

``python -m benchmarks codebooks``
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import fplab
from fplab import codebooks
from fplab.training import Adam8bit

from .timing import aligned, compared, judged, ratios, sized, table

N = sized(1 << 24, 1 << 14)
QUANTISE, DEQUANTISE, FOREACH, FUSED, STOCHASTIC = 3.0, 1.5, 1.0, 4.0, 5.0


def blockwise_table(cores: int) -> str:
    """Every codebook and some block sizes against the copy."""
    out, codes = aligned(N), aligned(N, np.uint8)
    x = aligned(N)
    x[:] = np.random.default_rng(0).standard_normal(N, np.float32)
    positive = np.abs(x)
    cells = [(codebooks.dynamic(), x, block) for block in (64, 256, 2048, 4096)]
    cells += [
        (codebooks.dynamic(signed=False), positive, 2048),
        (codebooks.linear(), x, 2048),
        (codebooks.nf4(), x, 64),
    ]
    work: dict[str, Callable[[], object]] = {}
    for book, given, block in cells:
        name = f"{book.name}, blocks of {block}"
        held = codebooks.quantize_blockwise(given, book, block)
        work[f"{name} q"] = lambda given=given, book=book, block=block: codebooks.quantize_blockwise(
            given, book, block, out=codes
        )
        work[f"{name} d"] = lambda held=held: codebooks.dequantize_blockwise(held, out=out)
    found = ratios(lambda: np.copyto(out, x), work)
    rows = []
    for book, _, block in cells:
        name = f"{book.name}, blocks of {block}"
        quantise = judged(f"quantise {name}", found[f"{name} q"], QUANTISE)
        rows.append((name, quantise, judged(f"dequantise {name}", found[f"{name} d"], DEQUANTISE)))
    head = ("times a copy", f"quantise (goal {QUANTISE:g})", f"dequantise (goal {DEQUANTISE:g})")
    return table(f"Block-wise, 2^24 float32 into a given out, {cores} cores; np.copyto = 1", head, rows)


def adam(make: Callable[..., torch.optim.Optimizer], **options: object) -> Callable[[], object]:
    """One step on 2^24 parameters."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(N))
    p.grad = torch.randn(N) * 0.01
    return make([p], lr=1e-3, **options).step


def adam_table(cores: int) -> str:
    """A step with 8-bit states against torch's."""
    torch.set_num_threads(cores)
    work = {
        "torch foreach": adam(torch.optim.Adam, foreach=True),
        "torch fused": adam(torch.optim.Adam, fused=True),
        "8-bit, blocks of 2048": adam(Adam8bit),
        "8-bit, blocks of 256": adam(Adam8bit, block=256),
        "8-bit, stochastic": adam(Adam8bit, rounding="stochastic"),
        "32-bit states, the same kernel": adam(Adam8bit, state_bits=32),
    }
    found = ratios(work["torch foreach"], work, rounds=sized(7, 1))
    compared("adam", "2^24 parameters", {n if "torch" in n else f"fplab, {n}": ratio for n, ratio in found.items()})
    rows = []
    for name, r in found.items():
        limited = name.startswith("8-bit, blocks")
        of_foreach = judged(f"Adam {name}, of foreach", r, FOREACH) if limited else f"{r:.2f}"
        of_fused = r / found["torch fused"]
        most = FUSED if limited else STOCHASTIC
        judge = limited or name == "8-bit, stochastic"
        rows.append(
            (name, of_foreach, judged(f"Adam {name}, of fused", of_fused, most) if judge else f"{of_fused:.2f}")
        )
    head = (
        "an Adam step, 2^24 parameters",
        f"of foreach (goal {FOREACH:g})",
        f"of fused (goal {FUSED:g}, stochastic {STOCHASTIC:g})",
    )
    return table(f"Adam on {cores} cores", head, rows)


def main() -> None:
    """Print both tables."""
    cores = fplab.num_threads()
    fplab.set_num_threads(cores)
    for part in (blockwise_table, adam_table):
        print(part(cores), flush=True)
        print()
    fplab.set_num_threads(None)
