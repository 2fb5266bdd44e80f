"""What noting a training step for ``fplab explain`` costs: forward, backward and update of a transformer.

The processor's time on one thread, the dump's files among it, in units of the plain step. Run it with
``python -m benchmarks capture``.
"""

from __future__ import annotations

import math
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from fplab.nn import capture
from fplab.nn.diagnose.capturing import WHAT
from fplab.training.transformer import transformer

from .timing import judged, sized, table

SIZE = sized(
    {"vocabulary": 2048, "context": 256, "width": 384, "layers": 2, "heads": 6},
    {"vocabulary": 64, "context": 16, "width": 32, "layers": 1, "heads": 2},
)
MOST = 1.5


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    model = transformer(0, **SIZE)
    optimizer = torch.optim.AdamW(model.parameters())
    text = torch.randint(SIZE["vocabulary"], (sized(4, 1), SIZE["context"]))
    taken = dict.fromkeys(("", *WHAT), math.inf)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(sized(5, 1)):
            for what in taken:
                block: AbstractContextManager[Any] = capture(model, Path(folder), what) if what else nullcontext()
                began = time.process_time()
                with block:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
                    optimizer.step()
                taken[what] = min(taken[what], time.process_time() - began)
    rows = [(what, f"{taken[what]:.2f} s", judged(f"capture {what}", taken[what] / taken[""], MOST)
             if what == "rows" else f"{taken[what] / taken['']:.2f}") for what in WHAT]  # fmt: skip
    print(table("a training step, noted", ("what", "time", "of the plain step"), rows))
