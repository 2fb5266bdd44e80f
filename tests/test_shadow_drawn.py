"""What no gradient tells of, or only that of a whole: effects of errors still sum to the loss's; FP8 is followed."""

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

from fplab.nn import Way, emulate, explain, shadow

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class Log(torch.autograd.Function):
    """Several operations with a gradient of their own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        y = x * 1.1 / 3
        return (y / 7 + 2).log()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * (1.1 / 21) / (x * (1.1 / 21) + 2)


class Product(torch.autograd.Function):
    """A product that gives two results: a view of it, and its double, in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x, w)
        y = (x / 3) @ w.T
        return y.mul_(1.1).unflatten(1, (2, -1)), y * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (x, w), gradient = ctx.saved_tensors, (gradients[0].flatten(1) + 2 * gradients[1]) * 1.1 / 3
        return gradient @ w, gradient.T @ x


def in_place_on_a_view(h, net, data):
    h = h * 1.5
    h.t()[1:3].mul_(1.1)
    h[0].div_(3)
    return h


def written_into(h, net, data):
    h = h * 1.5
    h[:, :3] = data[:, :3]
    h[:, 3:6] += data[:, 3:6]
    return h


def a_buffer_that_grows(h, net, data):
    cache = torch.zeros_like(h)
    with torch.no_grad():
        cache[:2] += data[:2]
    cache[2:].add_(h[2:])
    return cache + cache.clone().div_(7)


def chosen_by_place(h, net, data):
    h = h / 3
    h = h.scatter_add(0, torch.zeros(h.shape, dtype=torch.long), data)
    h[torch.tensor([0, 2])] = data[:2]
    return torch.where(h > 0, torch.cat([h[:, 4:], data[:, :4]], 1), data)


CASES = {
    "data": lambda h, net, data: h * data,
    "detached": lambda h, net, data: h * (h.detach() / 3),
    "in place on a view": in_place_on_a_view, "written into": written_into, "buffer": a_buffer_that_grows,
    "by place": chosen_by_place,
    "tied": lambda h, net, data: functional.linear(functional.linear(h / 3, net.one.weight).tanh(), net.one.weight.T),
    "checkpoint": lambda h, net, data: checkpoint(lambda x: (net.one(x) / 3).tanh(), h / 3, use_reentrant=False),
    "reentrant": lambda h, net, data: checkpoint(lambda x: (net.one(x) / 3).tanh(), h / 3, use_reentrant=True),
    "function": lambda h, net, data: Log.apply(h.tanh() / 3),
    "functions": lambda h, net, data: Log.apply(Product.apply(h / 3, net.one.weight)[0].flatten(1) / 7),
    "two results": lambda h, net, data: Product.apply(h / 3, net.one.weight / 3)[1] / 7,
    "foreach": lambda h, net, data: sum(torch._foreach_mul([h / 3, data], 1.1)),
    "complex": lambda h, net, data: torch.fft.ifft(torch.fft.fft(h / 3) * 1.1).real,
}  # fmt: skip


class Net(nn.Module):
    def __init__(self, cases):
        super().__init__()
        self.one, self.two, self.cases = nn.Linear(8, 8), nn.Linear(8, 8), cases

    def forward(self, x):
        for name in self.cases:
            with torch.no_grad():
                data = self.two(x) / 3
            x = CASES[name](self.one(x), self, data)
        return self.two(x)


@pytest.mark.parametrize("cases", [*((name,) for name in CASES), *range(12)], ids=str)
def test_effects_of_all_errors_sum_to_the_loss_s(cases: Any) -> None:
    """To first order: FP32's errors are 1e-7, so what is left by a complete account is far below what is left out."""
    if isinstance(cases, int):
        cases = tuple(np.random.default_rng(cases).choice(list(CASES), 3))
    torch.manual_seed(len(cases))
    net, x = Net(cases), torch.randn(4, 8)
    report = followed(net, copy.deepcopy(net).double(), x, gradients=False)
    assert abs(report.rest) < 1e-5 * math.fsum(abs(row.effect) for row in report.rows)
    assert not any(row.phase == "update" for row in report.rows)


# --- FP8 --------------------------------------------------------------------------------------------------------------
class Scaled(torch.autograd.Function):
    """A linear layer in FP8 with one scale a tensor or a row, gradients in E5M2; ``dtype`` None: as given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype | None, rows: bool) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.dtype, ctx.rows = dtype, rows
        return multiplied(x, w, dtype, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x, w), (g,) = ctx.saved_tensors, gradients
        other = ctx.dtype and torch.float8_e5m2
        return multiplied(g, w.T, other, ctx.rows), multiplied(g.T, x.T, other, ctx.rows), None, None


def multiplied(x, w, dtype, rows):
    """``x @ w.T`` of codes and scales."""
    sides = []
    for side in (x, w):
        amax = side.abs().amax(1, keepdim=True) if rows else side.abs().amax()
        scale = amax / 64
        codes = side / scale
        sides += [codes if dtype is None else codes.to(dtype), scale.float() if dtype else scale]
    (a, sa, b, sb) = sides
    if dtype is None:
        return (a * sa.reshape(-1, 1)) @ (b * sb.reshape(-1, 1)).mT
    return torch._scaled_mm(a, b.t(), sa, sb.t() if rows else sb, out_dtype=x.dtype)


class Cached(nn.Module):
    """Attention over tokens that come one by one, with a cache in FP8 (None: in the model's dtype)."""

    def __init__(self, dtype, kind):
        super().__init__()
        self.qkv, self.out, self.dtype, self.kind = nn.Linear(16, 48), nn.Linear(16, 16), dtype, kind

    def forward(self, x):
        if self.kind == "attention":
            q, k, v = self.qkv(x).chunk(3, -1)
            k, v = (t if self.dtype is None else t.to(self.dtype).to(q.dtype) for t in (k, v))
            return self.out((q @ k.mT / 4).softmax(-1) @ v)
        if self.kind in ("tensor", "row"):
            rows, w = x.flatten(0, 1), self.out.weight
            return Scaled.apply(rows, w, self.dtype, self.kind == "row").view_as(x) + self.out.bias
        cache = torch.zeros(2, *x.shape[:2], 32, dtype=self.dtype or x.dtype)
        found = []
        for i in range(x.shape[1]):
            q, k, v = self.qkv(x[:, i : i + 1]).chunk(3, -1)
            with torch.no_grad():
                cache[0, :, i : i + 1, :16] = k.to(cache.dtype)
                cache[1, :, i : i + 1, :16].copy_(v)
            keys, values = (torch.cat([cache[j, :, :i, :16].to(q.dtype), t], 1) for j, t in enumerate((k, v)))
            found.append((q @ keys.mT / 4).softmax(-1) @ values)
        return self.out(torch.cat(found, 1))


def in_fp8(dtype, kind):
    """A model, the same in FP64 without its casts, and a batch."""
    torch.manual_seed(len(kind))
    model = nn.Sequential(nn.Linear(16, 16), Cached(dtype, kind), nn.Linear(16, 4))
    exact = copy.deepcopy(model).double()
    exact[1].dtype = None
    return model, exact, torch.randn(2, 16, 16)


@pytest.mark.parametrize("kind", ["attention", "cache", "tensor", "row"])
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_models_that_cast_to_fp8_are_followed_forward_and_backward(dtype: torch.dtype, kind: str) -> None:
    model, wide, x = in_fp8(dtype, kind)
    if kind in ("tensor", "row") and "fnuz" in str(dtype):
        dtype = torch.float8_e4m3fn
        model[1].dtype = dtype
    report = followed(model, wide, x)
    assert not report.anew
    assert report.layer == "1"
    assert abs(report.rest) < 1e-2 * abs(report.whole)
    assert f"values rounded to {str(dtype)[6:]}" in str(report.diagnosis)


def test_products_with_scales_of_blocks_have_exact_companions() -> None:
    x, w = torch.randn(2, 192, 256, generator=torch.Generator().manual_seed(7)).unbind(0)

    def product(x, w, dtype):
        """``x`` with a scale for each 128 of k, ``w`` with one for each 128 x 128."""
        sx = x.reshape(192, 2, 128).abs().amax(-1) / 448
        sw = w.reshape(192, 2, 128).abs().amax(-1)
        sw = torch.stack([sw[:128].amax(0), sw[128:].amax(0)]) / 448
        wide = sx.repeat_interleave(128, 1), sw.repeat_interleave(128, 1).repeat_interleave(128, 0)[:192]
        if dtype is None:
            return (x / wide[0] * wide[0]) @ (w / wide[1] * wide[1]).T
        codes = (x / wide[0]).to(dtype), (w / wide[1]).to(dtype)
        return torch._scaled_mm(codes[0], codes[1].T, sx, sw.T, out_dtype=torch.bfloat16)

    with emulate("H100", "fp16"), shadow() as s:
        found = product(x, w, torch.float8_e4m3fn)
    assert torch.equal(s.exact(found), product(x.double(), w.double(), None))
    assert not s.report().anew


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_explain_names_the_cast_to_fp8(dtype: torch.dtype) -> None:
    model, _, x = in_fp8(dtype, "attention")
    other = copy.deepcopy(model)
    other[1].dtype = None
    found = explain(model, x, Way(), Way(model=other), progress=str)
    assert found.first is not None
    assert [row.layer for row in found.rows] == ["1"]
    assert found.largest.causes["operation"] == ("_to_copy", "-")
    assert (found.first.operation, found.first.layer, found.first.unlike) == ("bmm", "1", found.largest.causes)
    again = explain(model, x, Way(), Way(rows=1), progress=str)
    assert (again.first is None) == (again.whole == 0)
