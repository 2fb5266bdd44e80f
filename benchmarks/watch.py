"""What watching a training step costs: the step under ``fplab.nn.watch`` against the same step alone.

The digits' convolutional net at batch 64, the 64-256-256-10 network at batch 128, and a transformer of width 128 with 4
layers on 16 sequences of 128; each with SGD with momentum and with AdamW. ``watch`` counts every eighth step, so eight
are timed together; a third column counts every step. All run in turn, on one thread, and the least time counts. Run it
with ``python -m benchmarks watch``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fplab.nn import watch
from fplab.training import digits_net

from .timing import judged, seconds, sized, table

WANTED = 2.0
Model = tuple[nn.Module, torch.Tensor, torch.Tensor]


class Characters(nn.Module):
    """Embedding, encoder layers, and logits of the next character."""

    def __init__(self, width: int = 128, layers: int = 4, vocabulary: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocabulary, length) of indices (n, length)."""
        return self.head(self.encoder(self.embed(x))).transpose(1, 2)


def mlp() -> Model:
    sizes = (64, 256, 256, 10)
    net = nn.Sequential(
        nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:3]), nn.ReLU(), nn.Linear(*sizes[2:])
    )  # fmt: skip
    return net, torch.randn(128, 64), torch.randint(10, (128,))


def convolutional() -> Model:
    n = sized(64, 4)
    return digits_net(0), torch.rand(n, 1, 8, 8), torch.randint(10, (n,))


def transformer() -> Model:
    n, length = sized((16, 128), (1, 16))
    return Characters(), torch.randint(96, (n, length)), torch.randint(96, (n, length))


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One training step."""

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ratios(make: Callable[[], Model], kind: type[torch.optim.Optimizer], rounds: int) -> tuple[float, float, float]:
    """Milliseconds of eight steps alone; how many times that they take under watch, and when it counts each of them."""
    model, x, y = make()
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=1e-4, **options)
    step = step_of(model, optimizer, x, y)

    def eight() -> None:
        for _ in range(8):
            step()

    best = {0: 1e9, 8: 1e9, 1: 1e9}
    for _ in range(rounds):
        best[0] = min(best[0], seconds(eight))
        for every in (8, 1):
            with watch(model, optimizer, every=every):
                eight()  # the first step under a watch makes its tables
                best[every] = min(best[every], seconds(eight))
    return 1000 * best[0], best[8] / best[0], best[1] / best[0]


def main(rounds: int = sized(16, 1)) -> None:
    """Print the table."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for make in (mlp, convolutional, transformer):
        for kind in (torch.optim.SGD, torch.optim.AdamW):
            alone, times, each = ratios(make, kind, max(rounds // 8, sized(2, 1)) if make is transformer else rounds)
            what = f"{make.__name__}, {kind.__name__}"
            rows.append((what, f"{alone:.2f}", judged(f"watch, {what}", times, WANTED), f"{each:.2f}"))
    torch.set_num_threads(before)
    head = ("model", "eight alone, ms", "watched", "every=1")
    print(table(f"eight steps under watch (wanted: at most {WANTED:g}x)", head, rows))
