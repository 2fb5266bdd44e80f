"""How long an emulated training step takes, beside the same step in torch FP32: an MLP and a transformer.

Forward, backward and update of plain SGD, each model in a ``with`` block of its own a step, the backward pass after
it; the least of many interleaved rounds. The prediction is the multiply-accumulates of the step over the rate of one
thread times the threads. Run it with ``python -m benchmarks nn``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from fplab import num_threads
from fplab.nn import emulate
from fplab.tensorcore import matmul

from .timing import seconds, table

LIMITS = {"MLP 64-256-256-10, batch 128": 10.0, "transformer 128 x 4, sequence 128, batch 16": 18.0}


def mlp() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The classifier, its batch and labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.rand(128, 64), torch.randint(10, (128,))


class Transformer(nn.Module):
    """A character-level language model: width 128, 4 layers of 4 heads, 96 characters."""

    def __init__(self, width: int = 128, layers: int = 4, length: int = 128, characters: int = 96) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(characters, width), nn.Embedding(length, width)
        one = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embedding(text) + self.place(torch.arange(text.shape[1]))
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


def transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The language model and a batch of 16 sequences of 128."""
    torch.manual_seed(0)
    return Transformer(), torch.randint(96, (16, 128)), torch.randint(96, (16, 128))


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor, context: Callable[[], Any]) -> Any:
    """One training step; what the block gave."""
    with context() as run:
        out = model(x)
        loss = nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.01 * parameter.grad
    model.zero_grad()
    return run


def rate() -> float:
    """Multiply-accumulates a second of one product of a layer's size."""
    a, b = (np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    matmul(a, b)
    return 512**3 / min(seconds(lambda: matmul(a, b)) for _ in range(5))


def times(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rounds: int) -> tuple[float, float]:
    """The least time of a plain step and of an emulated one, taken in turn."""
    pairs = []
    for _ in range(rounds):
        plain = seconds(lambda: step(model, x, y, contextlib.nullcontext))
        pairs.append((plain, seconds(lambda: step(model, x, y, lambda: emulate("H100")))))
    plain, emulated = (min(found) for found in zip(*pairs, strict=True))
    return plain, emulated


def main(rounds: int = 10) -> None:
    """Print the table."""
    speed, rows = rate(), []
    for (name, limit), make, times_more in zip(LIMITS.items(), (mlp, transformer), (6, 1), strict=True):
        batch = make()
        macs = sum(row.macs for row in step(*batch, lambda: emulate("H100")).report().rows)
        plain, emulated = times(*batch, rounds * times_more)  # the short one needs more to find a quiet moment
        verdict = "" if emulated <= limit * plain else "  TOO SLOW"
        rows.append((
            name, f"{macs / 1e6:,.0f}", f"{1e3 * plain:.2f}", f"{1e3 * (plain + macs / speed):.1f}",
            f"{1e3 * emulated:.1f}", f"{emulated / plain:.1f}", f"{limit:.0f}{verdict}",
        ))  # fmt: skip
    head = ("step", "M MACs", "FP32 ms", "predicted ms", "emulated ms", "ratio", "limit")
    print(table(f"emulated training steps, H100 FP16, {num_threads()} threads, {speed / 1e9:.1f} GMAC/s", head, rows))


if __name__ == "__main__":
    main()
