"""How long an emulated training step takes, beside torch FP32: small nets, a transformer by recipe, GPT-2 small.

Forward, backward and update of plain SGD, each model in a ``with`` block of its own a step, the backward pass after
it; the least of many interleaved rounds. The prediction is the plain step and the step's multiply-accumulates over the
rate of the unit that takes most of them. Then one linear layer of 1024 x 1024 on 1024 rows, forward, beside numpy's
float32 product in the same run; its prediction is the unit's product and one look at both operands for quantising
them. Run it with ``python -m benchmarks nn``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from fplab import num_threads
from fplab.nn import emulate
from fplab.nn.emulation import Emulation, openmp_threads
from fplab.nn.recipes import RECIPES
from fplab.tensorcore import matmul
from fplab.training.transformer import transformer as gpt2

from .timing import compared, judged, seconds, sized, table

MLP, TRANSFORMER = "MLP 64-256-256-10, batch 128", "transformer 128 x 4, sequence 128, batch 16"
GPT2 = "GPT-2 small (124M), 128 tokens"
DEPTHWISE, RECURRENT = "depthwise 3 x 3, 8 x 64 x 32 x 32", "LSTM of 128, sequence 32, batch 16"
UNITS = {
    None: ("H100", "fp16"),
    "mxfp8": ("B200", "mxfp8_e4m3"),
    "nvfp4": ("B200", "nvfp4"),
    "fp8_block": ("H100", "e4m3"),
}
SMALL = {(MLP, None): 5.0, (DEPTHWISE, None): 8.0, (RECURRENT, None): 8.0}
LIMITS = SMALL | {(TRANSFORMER, None): 4.0, (GPT2, None): 3.5} | {(TRANSFORMER, r): 10.0 for r in UNITS if r}
SIZE = sized(1024, 64)  # of a layer
LAYER_LIMIT = 15.0


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
    n, length = sized((16, 128), (1, 16))
    return Transformer(length=length), torch.randint(96, (n, length)), torch.randint(96, (n, length))


def depthwise() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A convolution of each channel by itself; the columns of its result are as good as classes."""
    torch.manual_seed(0)
    n = sized(8, 1)
    return nn.Conv2d(64, 64, 3, padding=1, groups=64), torch.randn(n, 64, 32, 32), torch.randint(32, (n, 64, 32))


class Recurrent(nn.LSTM):
    """An LSTM that gives its outputs alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def recurrent() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A recurrent net, and a batch of 16 sequences of 32."""
    torch.manual_seed(0)
    return Recurrent(128, 128, batch_first=True), torch.randn(16, 32, 128), torch.randint(128, (16, 32))


def gpt2_small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Its shape, with weights as they are drawn, and one text."""
    layers, words, width = sized((12, 50257, 768), (1, 64, 64))
    text = torch.randint(words, (1, 128))
    return gpt2(0, vocabulary=words, context=128, width=width, layers=layers, heads=width // 64), text, text


BATCHES = {GPT2: gpt2_small, MLP: mlp, DEPTHWISE: depthwise, RECURRENT: recurrent, TRANSFORMER: transformer}


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


def emulated_by(recipe: str | None) -> Emulation:
    """A recipe of every layer on its GPU."""
    gpu, inputs = UNITS[recipe]
    return emulate(gpu, None if recipe else inputs, recipe=recipe and RECIPES[recipe](scope="all"))


def rate(recipe: str | None, size: int = sized(512, 64)) -> float:
    """Multiply-accumulates a second of one product in the unit of a recipe."""
    gpu, inputs = UNITS[recipe]
    a, b = (np.random.default_rng(0).standard_normal((size, size)).astype(np.float32) for _ in range(2))
    matmul(a, b, gpu=gpu, inputs=inputs)
    return size**3 / min(seconds(lambda: matmul(a, b, gpu=gpu, inputs=inputs)) for _ in range(5))


def in_turn(rounds: int, *work: Callable[[], object]) -> list[float]:
    """The least time of each piece of work, taken in turn, torch's threads as where nothing is emulated."""

    def alone(one: Callable[[], object]) -> float:
        while openmp_threads.is_held():
            time.sleep(0.01)
        one()  # wakes threads
        return seconds(one)

    return [min(found) for found in zip(*([alone(one) for one in work] for _ in range(rounds)), strict=True)]


def layers(rounds: int) -> list[tuple[str, ...]]:
    """One linear layer, forward, by recipe."""
    torch.manual_seed(0)
    layer, x = nn.Linear(SIZE, SIZE, bias=False), torch.randn(SIZE, SIZE)
    a, b = x.numpy(), layer.weight.detach().numpy().T.copy()

    def forward(recipe: str | None) -> None:
        with emulated_by(recipe), torch.no_grad():
            layer(x)

    rows = []
    for recipe in UNITS:
        forward(recipe)
        plain, emulated = in_turn(rounds, lambda: a @ b, functools.partial(forward, recipe))
        predicted = SIZE**3 / rate(recipe, SIZE) + 2 * seconds(lambda: np.abs(a).max())
        what = f"linear {SIZE}, {recipe or 'H100 FP16'}"
        compared("nn", what, {"fplab": emulated / plain})
        rows.append((
            what, f"{SIZE**3 / 1e6:,.0f}", f"{1e3 * plain:.2f}", f"{1e3 * predicted:.1f}", f"{1e3 * emulated:.1f}",
            judged(what, emulated / plain, LAYER_LIMIT, ".1f"), f"{LAYER_LIMIT:g}",
        ))  # fmt: skip
    return rows


def main(rounds: int = sized(10, 1)) -> None:
    """Print the table."""
    rows = []
    for (name, recipe), limit in LIMITS.items():
        batch, more = BATCHES[name](), 1 if name == TRANSFORMER else 0.5 if name == GPT2 else 6
        context = functools.partial(emulated_by, recipe)
        macs = sum(row.macs for row in step(*batch, context).report().rows)
        work = (functools.partial(step, *batch, one) for one in (contextlib.nullcontext, context))
        plain, emulated = in_turn(
            math.ceil(rounds * more), *work
        )  # the short one needs more rounds to find a quiet moment
        what = f"{name}, {recipe or 'H100 FP16'}"
        compared("nn", what, {"fplab": emulated / plain})
        rows.append((
            what, f"{macs / 1e6:,.0f}", f"{1e3 * plain:.2f}", f"{1e3 * (plain + macs / rate(recipe)):.1f}",
            f"{1e3 * emulated:.1f}", judged(what, emulated / plain, limit, ".1f"), f"{limit:g}",
        ))  # fmt: skip
    head = ("step", "M MACs", "FP32 ms", "predicted ms", "emulated ms", "ratio", "limit")
    print(table(f"emulated training steps and layers, {num_threads()} threads", head, rows + layers(rounds)))
