"""Convolutions, attention and recurrent cells under ``fplab.nn.emulate``, against products built another way.

The matrices of a convolution come from ``functional.unfold`` and from loops here, not from the package's own patches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from emulated import check, product, random, same
from torch import nn
from torch.nn import functional

from fplab.errors import LabError
from fplab.nn import emulate

Pair = tuple[int, int]
GEOMETRIES = [
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    {"stride": 1, "padding": 1, "dilation": 1, "groups": 1},
    {"stride": (2, 3), "padding": (1, 2), "dilation": 1, "groups": 2},
    {"stride": 2, "padding": (3, 1), "dilation": (1, 2), "groups": 4},
    {"stride": (3, 2), "padding": 0, "dilation": 2, "groups": 1},
]  # fmt: skip


def pair(x: int | Pair) -> Pair:
    return x if isinstance(x, tuple) else (x, x)


def unfolded(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> torch.Tensor:
    """(groups, N * places, C / groups * kernel), by torch's own unfold."""
    columns = functional.unfold(x, kernel, dilation, padding, stride)  # N, C * kernel, places
    n, _, places = columns.shape
    return columns.reshape(n, groups, -1, places).permute(1, 0, 3, 2).reshape(groups, n * places, -1)


def conv_by_product(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, stride: int | Pair, padding: int | Pair,
    dilation: int | Pair, groups: int,
) -> torch.Tensor:  # fmt: skip
    kernel = (w.shape[2], w.shape[3])
    patches = unfolded(x, kernel, pair(stride), pair(padding), pair(dilation), groups)
    columns = w.reshape(groups, w.shape[0] // groups, -1).mT
    c = None if bias is None else bias.reshape(groups, 1, -1)
    flat = product(patches, columns, c)
    shape = functional.conv2d(x, w, None, stride, padding, dilation, groups).shape
    return flat.permute(0, 2, 1).reshape(groups * columns.shape[-1], shape[0], shape[2], shape[3]).transpose(0, 1)


def gradient_of_input(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, stride: int | Pair, padding: int | Pair,
                      dilation: int | Pair, groups: int) -> torch.Tensor:  # fmt: skip
    """Each element by itself: the products that reach it, in the order of output channel and then ascending place."""
    (sy, sx), (py, px), (dy, dx) = pair(stride), pair(padding), pair(dilation)
    inner_out, inner_in = w.shape[0] // groups, w.shape[1]
    result = torch.zeros_like(x)
    for group, row, column in itertools.product(range(groups), range(x.shape[2]), range(x.shape[3])):
        left, right = [], []
        outs = range(group * inner_out, (group + 1) * inner_out)
        for o, ky, kx in itertools.product(outs, reversed(range(w.shape[2])), reversed(range(w.shape[3]))):
            at_y, at_x = row + py - ky * dy, column + px - kx * dx
            inside = at_y % sy == at_x % sx == 0 and 0 <= at_y // sy < g.shape[2] and 0 <= at_x // sx < g.shape[3]
            left.append(g[:, o, at_y // sy, at_x // sx] if inside else torch.zeros(len(x)))
            right.append(w[o, :, ky, kx])
        ins = slice(group * inner_in, (group + 1) * inner_in)
        result[:, ins, row, column] = product(torch.stack(left, 1), torch.stack(right))
    return result


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolutions_forward_and_backward(geometry: dict[str, int | Pair]) -> None:
    x, bias = random(2, 8, 9, 10, grad=True), random(4, seed=2, grad=True)
    w = random(4, 8 // int(geometry["groups"]), 3, 2, seed=1, grad=True)  # type: ignore[arg-type]
    with emulate("H100", "fp16"):
        y = functional.conv2d(x, w, bias, **geometry)  # type: ignore[arg-type]
    g = random(*y.shape, seed=3)
    y.backward(g)
    xd, wd, bd = x.detach(), w.detach(), bias.detach()
    plain = [t.clone().requires_grad_() for t in (xd, wd, bd)]
    own = functional.conv2d(*plain, **geometry)  # type: ignore[arg-type]
    own.backward(g)
    check(y, conv_by_product(xd, wd, bd, **geometry), own)  # type: ignore[arg-type]
    assert w.grad is not None
    assert plain[0].grad is not None
    assert plain[1].grad is not None
    check(x.grad, gradient_of_input(g, xd, wd, **geometry), plain[0].grad)  # type: ignore[arg-type]
    groups = int(geometry["groups"])  # type: ignore[arg-type]
    full = {k: pair(v) for k, v in geometry.items() if k != "groups"}
    patches = unfolded(xd, (3, 2), groups=groups, **full)
    rows = g.transpose(0, 1).reshape(groups, 4 // groups, -1)
    check(w.grad, product(rows, patches).reshape(w.shape), plain[1].grad)
    assert same(bias.grad, g.sum((0, 2, 3)))


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "groups", "dilation"),
    [(1, 0, 0, 1, 1), (2, 1, 1, 2, 1), (3, 2, 2, 1, 1), (2, 1, 3, 2, 4)],
)
def test_transposed_convolutions(stride: int, padding: int, extra: int, groups: int, dilation: int) -> None:
    """A transposed convolution is the gradient of a convolution's input, and its own gradients are a convolution's.

    An output padding of a stride or more makes room for places that the convolution had not: they do not count.
    """
    x, w = random(2, 4, 5, 6, grad=True), random(4, 6 // groups, 3, 3, seed=1, grad=True)
    with emulate("H100", "fp16"):
        y = functional.conv_transpose2d(x, w, None, stride, padding, extra, groups, dilation)
    xd, wd = x.detach(), w.detach()
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    check(y, gradient_of_input(xd, torch.zeros(y.shape), wd, **given),
          functional.conv_transpose2d(xd, wd, None, stride, padding, extra, groups, dilation))  # fmt: skip
    g = random(*y.shape, seed=2)
    y.backward(g)
    assert w.grad is not None
    check(
        x.grad,
        conv_by_product(g, wd, None, **given)[:, :, :5, :6],
        functional.conv2d(g, wd, None, **given)[:, :, :5, :6],
    )
    patches = unfolded(g, (3, 3), pair(stride), pair(padding), pair(dilation), groups)
    places = functional.conv2d(g, wd, None, **given).shape[2:]
    kept = patches.reshape(groups, 2, *places, -1)[:, :, :5, :6].reshape(groups, 60, -1)
    rows = xd.transpose(0, 1).reshape(groups, 4 // groups, -1)
    plain = functional.conv_transpose2d(xd, w, None, stride, padding, extra, groups, dilation)
    own = torch.autograd.grad(plain, w, g)[0]
    check(w.grad, product(rows, kept).reshape(w.shape), own)


@pytest.mark.parametrize("dims", [1, 3])
def test_convolutions_of_one_and_three_dimensions(dims: int) -> None:
    """One kernel place in all but the last dimension makes them convolutions of rows."""
    x, w = random(2, 3, *[4] * (dims - 1), 12), random(5, 3, *[1] * (dims - 1), 4, seed=1)
    conv = {1: functional.conv1d, 3: functional.conv3d}[dims]
    with emulate("H100", "fp16"):
        y = conv(x, w, stride=tuple([1] * (dims - 1) + [2]), padding=tuple([0] * (dims - 1) + [1]))
    rows = x.movedim(1, -2).reshape(-1, 3, 1, 12)
    want = conv_by_product(rows, w.reshape(5, 3, 1, 4), None, (1, 2), (0, 1), 1, 1)
    want = want.reshape(*x.movedim(1, -2).shape[:-2], 5, -1).movedim(-2, 1)
    check(y, want, conv(x, w, stride=tuple([1] * (dims - 1) + [2]), padding=tuple([0] * (dims - 1) + [1])))


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    with (
        emulate("H100", "fp16"),
        pytest.raises((LabError, RuntimeError), match=r"does not fit into|can't be greater than"),
    ):
        functional.conv2d(random(1, 1, 3, 3), random(1, 1, 4, 4))


# --- attention --------------------------------------------------------------------------------------------------
ATTENTION: dict[str, dict[str, object]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.5},
    "mask of truth values": {"attn_mask": random(2, 1, 20, 24, seed=7) > -1},
    "mask of numbers": {"attn_mask": random(20, 24, seed=8)},
}


def attention_by_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False, scale: float | None = None,
    attn_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The output and the log of the sums, from the formulas."""
    scores = product(q, k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = torch.where(torch.arange(q.shape[-2])[:, None] < torch.arange(k.shape[-2]), -math.inf, scores)
    if attn_mask is not None:
        blocked = torch.where(attn_mask, 0.0, -math.inf) if attn_mask.dtype == torch.bool else attn_mask
        scores = scores + blocked
    top = scores.max(-1, keepdim=True).values
    weights = torch.exp(scores - top)
    sums = weights.sum(-1, keepdim=True)
    return product(weights, v) / sums, scores - (top + torch.log(sums))


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_forward_and_backward(name: str) -> None:
    given = ATTENTION[name]
    q, k, v = (random(2, 3, n, 16, seed=n + i, grad=True) for i, n in enumerate((20, 24, 24)))
    with emulate("H100", "fp16") as run:
        y = functional.scaled_dot_product_attention(q, k, v, **given)  # type: ignore[arg-type]
    g = random(*y.shape, seed=5)
    y.backward(g)
    a, b, c = (t.detach() for t in (q, k, v))
    out, logs = attention_by_products(a, b, c, **given)  # type: ignore[arg-type]
    check(y, out, functional.scaled_dot_product_attention(a, b, c, **given))  # type: ignore[arg-type]
    weights, factor = torch.exp(logs), float(given.get("scale", 1 / math.sqrt(16)))  # type: ignore[arg-type]
    slope = weights * (product(g, c.mT) - (g * out).sum(-1, keepdim=True))
    wanted = product(slope, b) * factor, product(slope.mT, a) * factor, product(weights.mT, g)
    for leaf, want in zip((q, k, v), wanted, strict=True):
        assert same(leaf.grad, want)
    exact = torch.autograd.grad(functional.scaled_dot_product_attention(q, k, v, **given), (q, k, v), g)  # type: ignore[arg-type]
    for leaf, near in zip((q, k, v), exact, strict=True):
        assert leaf.grad is not None
        assert 0 < (leaf.grad - near).abs().max() < 0.02  # FP16 operands
    phases = [row.phase for row in run.report().rows for _ in range(row.count)]
    assert phases == ["forward"] * 2 + ["backward"] * 5


def test_attention_with_shared_keys_and_rows_that_see_nothing() -> None:
    q, k, v = (random(1, heads, 6, 8, seed=seed, grad=True) for seed, heads in enumerate((4, 2, 2)))
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    with emulate("H100", "fp16"):
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    own = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    assert torch.equal(y[..., 2, :], own[..., 2, :])
    assert 0 < (y - own).abs().max() < 0.01
    y.sum().backward()
    assert k.grad is not None
    got, k.grad = k.grad, None
    own.sum().backward()
    assert k.grad is not None
    assert 0 < (got - k.grad).abs().max() < 0.01


def test_attention_modules_in_training_and_in_their_fast_path() -> None:
    """In inference torch runs one fused kernel, which computes in FP32; here the products are the same in both."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x = random(3, 7, 16)
    with emulate("H100", "fp16") as run:
        trained = layer(x)
        layer.eval()
        with torch.no_grad():
            first = layer(x)
        with torch.inference_mode():
            second = layer(x)
    with torch.no_grad():
        own = layer(x)
    check(first, trained, own)
    check(second, trained, own)
    operations = {row.operation for row in run.report().rows}
    assert {"addmm", "_scaled_dot_product_flash_attention_for_cpu"} <= operations


def test_multihead_attention_with_weights() -> None:
    """``need_weights`` takes another way through torch: bmm and baddbmm."""
    layer, x = nn.MultiheadAttention(16, 2, batch_first=True), random(3, 7, 16)
    with emulate("H100", "fp16"):
        out, weights = layer(x, x, x)
    w, bias = layer.in_proj_weight.detach(), layer.in_proj_bias.detach()
    q, k, v = product(x, w.t(), bias).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    scaled = q * math.sqrt(1 / 8)
    attention = torch.softmax(product(scaled, k.mT), -1)
    assert same(weights, attention.mean(1))
    mixed = product(attention, v).transpose(1, 2).reshape(3, 7, 16)
    check(out, product(mixed, layer.out_proj.weight.t().detach(), layer.out_proj.bias.detach()), layer(x, x, x)[0])


# --- recurrent cells --------------------------------------------------------------------------------------------
def lstm_by_products(x: torch.Tensor, layer: nn.LSTM, affine: Callable[..., torch.Tensor]) -> torch.Tensor:
    """One layer of an LSTM over (time, batch, features), with ``affine(x, w, bias)`` for its products."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w_in, w_state, b_in, b_state = (getattr(layer, name) for name in names)
    h = c = torch.zeros(x.shape[1], layer.hidden_size)
    outputs, given = [], affine(x, w_in, b_in)
    for step in given:
        i, f, g, o = (step + affine(h, w_state, b_state)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs)


def test_an_lstm_is_taken_apart() -> None:
    layer, x = nn.LSTM(24, 20), random(5, 3, 24)
    with emulate("H100", "fp16") as run:
        y, _ = layer(x)
    want = lstm_by_products(x, layer, lambda x, w, b: product(x, w.t(), b))
    check(y, want, layer(x)[0])
    y.backward(random(5, 3, 20, seed=2))
    got = {name: p.grad for name, p in layer.named_parameters()}
    layer.zero_grad()
    with emulate("H100", "fp16"):
        again = lstm_by_products(x, layer, functional.linear)
    again.backward(random(5, 3, 20, seed=2))
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        assert got[name] is not None
        assert torch.allclose(got[name], parameter.grad, atol=1e-5)  # type: ignore[arg-type]
    backward = [row for row in run.report().rows if row.phase == "backward"]
    assert {row.operation for row in backward} == {"mm"}
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_other_recurrent_layers_compute_in_the_unit(kind: type[nn.Module]) -> None:
    layer, x = kind(24, 20, 2, bidirectional=True), random(5, 3, 24)
    with emulate("H100", "fp16") as run:
        y, _ = layer(x)
    y.sum().backward()
    with torch.inference_mode(), emulate("H100", "fp16"):
        again, _ = layer(x)
    for got in (y, again):  # torch's sigmoid of a view and of a copy may differ in the last bit
        assert (got - y).abs().max() < 1e-6
        assert 1e-5 < (got - layer(x)[0]).abs().max() < 0.01
    assert {row.phase for row in run.report().rows} == {"forward", "backward"}


def test_cells() -> None:
    x, h = random(6, 24), random(6, 20, seed=1)
    for cell in (nn.RNNCell(24, 20), nn.GRUCell(24, 20), nn.LSTMCell(24, 20)):
        state = (h, h) if isinstance(cell, nn.LSTMCell) else h
        with emulate("H100", "fp16"):
            got = cell(x, state)
        own = cell(x, state)
        pair = (got[0], own[0]) if isinstance(got, tuple) else (got, own)
        assert not same(*pair)
        if isinstance(cell, nn.RNNCell):
            parts = product(x, cell.weight_ih.t(), cell.bias_ih), product(h, cell.weight_hh.t(), cell.bias_hh)
            assert same(got, torch.tanh(parts[0] + parts[1]))
