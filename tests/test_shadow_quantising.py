"""Fake quantisation is an error born where it rounds; companions are those of the same network without roundings."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from shadowed import followed
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fplab.nn import emulate, fake_quantize, shadow


class Rounded(torch.autograd.Function):
    """A rounding with a gradient that passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0]


class Quantised(torch.autograd.Function):
    """All of a chain, with a gradient that passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, chain: Any) -> torch.Tensor:
        return chain.plain(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class Chain(nn.Module):
    """One way to quantise and dequantise; ``exact``: the same without its roundings."""

    exact = False

    def __init__(self, draw: np.random.Generator) -> None:
        super().__init__()

        def of(*names: Any) -> Any:
            return names[int(draw.integers(len(names)))]

        self.scale, self.levels = of("tensor", "row", "group", "number", "expanded"), of(7, 15, 127)
        self.scaled_by = of("div", "mul", "in place")
        self.rounds = of("round", "floor", "half", "stochastic", "midrise", "function")
        self.clamps = of("before", "after", "in place", "none")
        self.zero = of(False, False, True)
        self.through = of(None, None, torch.int8, torch.int16, torch.int32, torch.float16)
        self.estimator = of("none", "after", "before", "function", "no gradient")

    def divided(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The operand of the rounding and its scale, cut so that some values saturate."""
        top = {"row": lambda: x.abs().amax(1, keepdim=True), "group": lambda: x.abs().amax(-1, keepdim=True)}
        scale = top.get(self.scale, lambda: x.abs().max())().detach() * (0.8 / self.levels)
        if self.scale == "number":
            return (x / (1 / 32) if self.scaled_by == "div" else x * 32), 1 / 32
        if self.scale == "expanded":
            scale = scale.expand_as(x)
        if self.scaled_by == "mul":
            return x * (1 / scale), scale
        if self.scaled_by == "in place":
            return (x * 1.0).div_(scale), scale
        return x / scale, scale

    def rounded(self, v: torch.Tensor) -> torch.Tensor:
        low, high = -self.levels - 1, self.levels
        if self.exact:
            return v
        if self.clamps == "before":
            v = v.clamp(low, high)
        if self.rounds == "round":
            v = v.round()
        elif self.rounds == "function":
            v = Rounded.apply(v)
        elif self.rounds == "stochastic":
            v = torch.floor(v + torch.rand(v.shape, generator=torch.Generator().manual_seed(0)).to(v.dtype))
        else:
            v = torch.floor(v + 0.5 if self.rounds == "half" else v)
        if self.rounds == "midrise":
            v = v + 0.5
        if self.clamps == "after":
            return torch.minimum(torch.clamp_min(v, low), torch.tensor(float(high)))
        return v.clone().clamp_(low, high) if self.clamps == "in place" else v

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        x = x.unflatten(1, (-1, 4)) if self.scale == "group" else x
        v, scale = self.divided(x)
        zero = torch.round(v.detach().mean()) if self.zero else None
        if zero is not None:
            v = v + zero
        v = v + (self.rounded(v) - v).detach() if self.estimator == "before" else self.rounded(v)
        if self.through is not None and not self.exact and self.rounds != "midrise":
            v = v.to(self.through).to(x.dtype)
        if zero is not None:
            v = v - zero
        return (v * scale).reshape(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.estimator == "function":
            return Quantised.apply(x, self)
        if self.estimator == "no gradient":
            with torch.no_grad():
                found = self.plain(x)
            return x + (found - x)
        found = self.plain(x)
        return x + (found - x).detach() if self.estimator == "after" else found


def network(draw: np.random.Generator) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """A network with a chain in it, the same in FP64 without its roundings, and a batch."""
    torch.manual_seed(int(draw.integers(1000)))
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), Chain(draw), nn.Linear(8, 4))
    exact = copy.deepcopy(net).double()
    exact[2].exact = True
    return net, exact, torch.randn(4, 8)


@pytest.mark.parametrize("seed", range(80))
def test_chains_are_errors_born_where_they_round(seed: int) -> None:
    draw = np.random.default_rng(seed)
    net, wide, x = network(draw)
    report = followed(net, wide, x, gradients=net[2].estimator in ("after", "no gradient"))
    assert not report.anew
    assert report.layer == "2"
    assert str(report.diagnosis).startswith("2 (forward): values ")
    assert abs(report.rest) < 0.05 * math.fsum(abs(row.effect) for row in report.rows)
    # torch.minimum halves the gradient where both are the same, and a cast to FP16 rounds it.
    born = [tally.born for where, tally in report.operations.items() if where.layer == "2"]
    assert max(born) > 1e-4


def beside(x: torch.Tensor, exact: bool, quantised: Any) -> torch.Tensor:
    """A chain of one scale around what ``quantised`` does to the numbers between."""
    scale = x.detach().abs().max() / 7
    v = x / scale
    return (v if exact else quantised(v)) * scale


def integers(v: torch.Tensor) -> torch.Tensor:
    """Through a cache of INT8 that is written to and read in parts."""
    cache = torch.zeros(2, *v.shape, dtype=torch.int8)
    cache[0, :, :4] = v[:, :4].round().to(torch.int8)
    cache[0, :, 4:].copy_(v[:, 4:].round())
    return torch.cat([cache[0, :, :4].to(v.dtype), cache[0, :, 4:].float().to(v.dtype)], 1)


WEIGHTS = torch.linspace(-1, 1, 64).reshape(8, 8).sin().bfloat16()


def product(x: torch.Tensor, exact: bool, kind: str) -> torch.Tensor:
    """``x`` by a matrix, both quantised with scales of rows, and what comes of it multiplied by both."""
    w = WEIGHTS.to(x.dtype)
    s, t = x.detach().abs().amax(1, keepdim=True) / 63, w.abs().amax(1) / 63
    a, b = x / s, w / t[:, None]
    if not exact:
        a, b = a.round(), b.round()
    if kind == "convolution":
        return functional.conv1d(a[:, :, None], b[:, :, None])[:, :, 0] * s * t
    if kind in ("int8", "int32") and not exact:
        a, b = a.to(torch.int8), b.to(torch.int8)
        found = (torch._int_mm(a, b.T) if kind == "int8" else a.int() @ b.int().T).to(x.dtype)
    else:
        found = a @ b.T
    return found * (s * t) if kind in ("joint", "int32") else found * s * t


def clamped(x: torch.Tensor, exact: bool) -> torch.Tensor:
    """Cast to FP8, what is too large cut off before."""
    scale = x.detach().abs().max() / 600
    v = x / scale
    return (v if exact else v.clamp(-448, 448).to(torch.float8_e4m3fn).to(v.dtype)) * scale


def ranged(x: torch.Tensor, exact: bool) -> torch.Tensor:
    """From the least to the largest value."""
    low, step = x.detach().min(), (x.max() - x.min()).detach() / 15
    v = (x - low) / step
    return (v if exact else v.round().clamp(0, 15)) * step + low


def learned(x: torch.Tensor, exact: bool) -> torch.Tensor:
    """With a step that is learned (LSQ), the gradient of which is another matter."""
    v = x / 0.25
    v = v if exact else v.clamp(-8, 7)
    return (v if exact else (v.round() - v).detach() + v) * 0.25


CHAINS: dict[str, Any] = {
    "int8 cache": lambda x, exact: beside(x, exact, integers),
    "clamped FP8": clamped,
    **{f"product, {kind}": lambda x, exact, kind=kind: product(x, exact, kind)
       for kind in ("apart", "joint", "int8", "int32", "convolution")},
    "learned step": learned,
    "least and largest": ranged,
    "powers of two": lambda x, exact: (lambda s: (x / s if exact else (x / s).round()) * s)(
        2.0 ** torch.ceil(torch.log2(x.detach().abs().max() / 7))),
    "twice": lambda x, exact: beside(beside(x, exact, torch.round), exact, lambda v: v.round().clamp(-5, 5)),
    "decimals": lambda x, exact: x * 1.0 if exact else x.round(decimals=1),
    "per tensor": lambda x, exact: x * 1.0 if exact else torch.fake_quantize_per_tensor_affine(x, 0.2, 3, -8, 7),
    "per tensor of tensors": lambda x, exact: x * 1.0 if exact else torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(0.2), torch.tensor(1, dtype=torch.int32), -8, 7),
    "per channel": lambda x, exact: x * 1.0 if exact else torch.fake_quantize_per_channel_affine(
        x, x.detach().abs().amax(1) / 7, torch.zeros(len(x), dtype=torch.int32), 0, -8, 7),
    "the lab's": lambda x, exact: x * (1 / torch.tensor(0.125)) * 0.125 if exact else fake_quantize(x, 0.125),
    "checkpoint": lambda x, exact: checkpoint(lambda h: beside(h, exact, Rounded.apply), x, use_reentrant=False),
    "reentrant": lambda x, exact: checkpoint(lambda h: beside(h, exact, Rounded.apply), x, use_reentrant=True),
    "the reverse": lambda x, exact: x * 3 - (x * 3 - (x * 3 if exact else (x * 3).round())).detach(),
}  # fmt: skip


class Around(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.exact = function, False

    def forward(self, x):
        return self.function(x, self.exact)


def around(function: Any, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """A network around a function, the same in FP64 with ``exact``, and a batch."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), Around(function), nn.Linear(8, 4)).to(dtype)
    exact = copy.deepcopy(net).double()
    exact[2].exact = True
    return net, exact, torch.randn(20, 8).to(dtype)


@pytest.mark.parametrize("kind", CHAINS)
def test_ways_to_quantise_are_all_recognised(kind: str) -> None:
    report = followed(*around(CHAINS[kind]), gradients=False)
    assert report.layer == "2"
    assert str(report.diagnosis).startswith("2 (forward): values ")
    assert not report.anew


@pytest.mark.parametrize("kind", ["powers of two", "twice", "product, joint", "learned step", "the reverse"])
@pytest.mark.parametrize("how", ["double-double", "emulated", "bfloat16", "no gradient"])
def test_whatever_else_is_wrong_beside_them(how: str, kind: str) -> None:
    net, wide, x = around(CHAINS[kind], torch.bfloat16 if how == "bfloat16" else torch.float32)
    exact = wide(x.double()).square().mean()
    if how == "emulated":
        with emulate("H100"), shadow() as s:
            loss = net(x).square().mean()
    elif how == "no gradient":
        with torch.no_grad(), shadow() as s:
            loss = net(x).square().mean()
    else:
        with shadow("double-double" if how == "double-double" else "fp64") as s:
            loss = net(x).square().mean()
    if how == "double-double":
        assert abs(float(s.exact(loss) - exact.detach())) < 1e-15
    else:
        assert torch.equal(s.exact(loss), exact.detach())
    assert str(s.report().diagnosis).startswith("2 (forward): values quantised by ")


def interpolated(x: torch.Tensor) -> torch.Tensor:
    """Between the rows of a table, at a place that is computed."""
    table, at = torch.linspace(0, 1, 128).reshape(16, 8).to(x.dtype), x.sigmoid() * 14
    low = torch.floor(at)
    share, row = at - low, low.long()[:, 0]
    return x + table[row] * (1 - share) + table[row + 1] * share


FUNCTIONS = {
    "position": lambda x: (
        x * torch.linspace(0, 1, 512).reshape(64, 8).to(x.dtype)[(x[:, 0].sigmoid() * 40).round().long()]
    ),
    "interpolation": interpolated,
    "sawtooth": lambda x: x + (x - x.round()),
    "fraction": lambda x: (x * 3 - torch.floor(x * 3)) * 2,
    "count": lambda x: functional.relu((x * 10).round()) @ torch.linspace(-1, 1, 64).reshape(8, 8).to(x.dtype),
    "angle": lambda x: torch.sin((x * 5).floor()) + x,
    "clamp": lambda x: (x * 4).clamp(-3, 3) / 4,
    "steps": lambda x: (x * 7).trunc() * 2 + x,
    "mask": lambda x: x * (x.round() == 0),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_roundings_that_the_model_means_are_functions(kind: str) -> None:
    assert "quantised" not in str(followed(*around(lambda h, exact: FUNCTIONS[kind](h))))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_cannot_be_followed_is_named() -> None:
    x = torch.randn(4, 8) / 3
    with shadow() as s:
        codes = (x / 0.01).round().clamp(-8, 7).to(torch.int8)
        (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()
        (x.view(torch.int32) + 1).view(torch.float32)
    assert set(s.report().anew) == {"bitwise_and", "__lshift__", "dequantize", "view(dtype)"}
    assert [w.operation for w, t in s.report().operations.items() if t.born > 1e-3] == ["round", "clamp"]


def test_weights_quantised_in_the_run_are_weighed_by_their_gradients() -> None:
    """Quantisation-aware training: of weights and activations, the loss's difference is made of both."""
    torch.manual_seed(2)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(12, 8)
    exact = copy.deepcopy(net).double()

    def forward(x, quantises):
        for layer in net if quantises else exact:
            if isinstance(layer, nn.Linear):
                h, w = (t + (beside(t, not quantises, torch.round) - t).detach() for t in (x, layer.weight))
                x = functional.linear(h, w, layer.bias)
            else:
                x = layer(x)
        return x.square().mean()

    with shadow() as s:
        loss = forward(x, True)
        loss.backward()
    wide = forward(x.double(), False)
    wide.backward()
    assert torch.equal(s.exact(loss), wide.detach())
    for p, q in zip(net.parameters(), exact.parameters(), strict=True):
        assert torch.equal(s.exact(p.grad), q.grad)
    report = s.report()
    assert report.diagnosis is not None
    assert "values quantised by round, 4 times" in str(report.diagnosis)
    assert abs(report.rest) < 0.2 * abs(report.whole)
