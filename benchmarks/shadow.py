"""What a shadow costs: forward and backward through a GPT-2-shaped transformer, plain in FP32 and FP64, and shadowed.

The processor's time on one thread, in units of the plain FP64 pass; memory as the peak of the process against the plain
FP32 pass, above what a pass of next to nothing takes: that is code, loaded once, which has its own column. Each in a
process of its own. Run it with ``python -m benchmarks shadow``; ``FPLAB_GPT2=small`` takes the full width.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import torch

from fplab import set_num_threads
from fplab.nn import shadow
from fplab.training.transformer import transformer

from .timing import judged, sized, table

SIZES = {
    "nothing": {"vocabulary": 8, "context": 128, "width": 8, "layers": 1, "heads": 1},
    "toy": {"vocabulary": 64, "context": 128, "width": 128, "layers": 1, "heads": 2},
    "tiny": {"vocabulary": 8192, "context": 128, "width": 256, "layers": 4, "heads": 4},
    "small": {"vocabulary": 50257, "context": 128, "width": 768, "layers": 12, "heads": 12},
}
MOST_MEMORY, MOST_ADDED = 4.0, 3.0


def _step(model: torch.nn.Module, text: torch.Tensor) -> None:
    model.zero_grad()
    logits = model(text)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), text.flatten()).backward()


def _passes(kind: str, size: str) -> float:
    """Seconds of the fastest of three passes."""
    model = transformer(0, **SIZES[size])
    model = model.double() if kind == "fp64" else model
    text = torch.randint(SIZES[size]["vocabulary"], (1, 128))
    taken = math.inf
    for _ in range(3):
        began = time.process_time()
        if kind == "shadow":
            with shadow() as s:
                _step(model, text)
            del s
        else:
            _step(model, text)
        taken = min(taken, time.process_time() - began)
    return taken


def _measure(kind: str, size: str, answer: Any) -> None:
    """Seconds of a pass, bytes that the model and its passes took at their peak, and bytes of the code before."""
    torch.set_num_threads(1)
    set_num_threads(1)
    peaks = [_peak()]
    _passes(kind, "nothing")
    peaks.append(_peak())
    taken = _passes(kind, size)
    answer.put((taken, _peak() - peaks[1], peaks[1] - peaks[0]))


def _peak() -> int:
    """Bytes of this process at their most; getrusage's figure would begin with that of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def main() -> None:
    """Print the table."""
    size = os.environ.get("FPLAB_GPT2", sized("tiny", "toy"))
    context, found = multiprocessing.get_context("spawn"), {}
    for kind in ("fp32", "fp64", "shadow"):
        answer = context.Queue()
        process = context.Process(target=_measure, args=(kind, size, answer))
        process.start()
        found[kind] = answer.get()
        process.join()
    added = (found["shadow"][0] - found["fp32"][0]) / found["fp64"][0]
    more = found["shadow"][1] / found["fp32"][1]
    rows = [
        (kind, f"{seconds:.2f} s", f"{taken / 1e6:,.0f} MB", f"{code / 1e6:,.0f} MB")
        for kind, (seconds, taken, code) in found.items()
    ]
    print(table(f"one pass of {size}, 128 tokens", ("pass", "time", "memory", "code"), rows))
    print(f"added: {judged('shadow, FP64 passes', added, MOST_ADDED)} FP64 passes (goal {MOST_ADDED:g}); "
          f"memory {judged('shadow, memory of FP32', more, MOST_MEMORY)} times (goal {MOST_MEMORY:g})")  # fmt: skip
