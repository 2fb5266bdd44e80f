"""A chain of linear layers in which every stored tensor is FP16: what a loss scale is for.

Weights, activations and all gradients are rounded to FP16 where they would be stored; products accumulate and tanh
computes in FP32. The parameters are one FP32 vector, the master copy, of which every pass uses an FP16 copy.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class _Stored(torch.autograd.Function):
    """Forward and backward through FP16 storage; torch's cast from FP32 rounds to nearest, ties to even."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, kept: dict[str, Tensor] | None) -> Tensor:
        ctx.place, ctx.kept = name, kept
        return x.half().float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        stored = gradients[0].half().float()
        if ctx.kept is not None:
            ctx.kept[ctx.place] = stored
        return stored, None, None


class Chain(nn.Module):
    """Linear layers with tanh between them, (n, sizes[0]) in, (n, sizes[-1]) out, torch's default initialisation.

    ``half``: whether tensors are stored in FP16 (else FP32). ``kept``: set it to a dict, and a backward pass puts into
    it the stored gradient of every layer's output ("layer 1", ...) and of all parameters ("weights").
    """

    def __init__(self, sizes: Sequence[int], seed: int = 0, half: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(n, m) for n, m in itertools.pairwise(sizes)]
        self.sizes, self.half_stored = tuple(sizes), half
        parts = [p.detach().flatten() for layer in layers for p in (layer.weight, layer.bias)]
        self.lengths = [p.numel() for p in parts]
        self.flat = nn.Parameter(torch.cat(parts))
        self.kept: dict[str, Tensor] | None = None

    def stored(self, x: Tensor, name: str) -> Tensor:
        """A tensor as memory holds it, and its gradient too."""
        result: Tensor = _Stored.apply(x, name, self.kept) if self.half_stored else x
        return result

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, FP16 values in a float32 tensor."""
        parts = self.stored(self.flat, "weights").split(self.lengths)
        depth = len(self.sizes) - 1
        for i in range(depth):
            weight = parts[2 * i].view(self.sizes[i + 1], self.sizes[i])
            x = self.stored(linear(x, weight, parts[2 * i + 1]), f"layer {i + 1}")
            if i < depth - 1:
                x = self.stored(torch.tanh(x), f"tanh {i + 1}")
        return x
