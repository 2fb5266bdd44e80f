"""The same training in one process: on the whole batch, and in the very order in which the processes add.

What data parallelism does to bits is the order of additions alone: each rank's share gives its gradients, and the
shares' gradients are added in some order. A :class:`Layout` says which elements travel in one message and where they
lie in it, and with it :mod:`fplab.parallel.gloo` gives every sum. So a run on several ranks equals a run in one
process, to the bit; the run on the whole batch, whose matrix products add over all of it, differs in the last bits.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu

from ..errors import LabError
from ..training.loop import one_thread
from . import gloo
from .message_log import adamw
from .model_parallel import COLUMN, ROW
from .settings import Result, Setting
from .task import Network

Array = np.ndarray[Any, Any]
Layout = Sequence[Array]  # a message each: for every element its place in the flat gradient, or -1 for padding


def whole(setting: Setting) -> tuple[Array, Array]:
    """Plain training on the whole batch: the weights at the end, float32, and the losses, float64 (steps,)."""
    return _train(setting, lambda model, x, y: _gradients(model, x, y)[:2])


def shares(setting: Setting, add: Callable[[Array, int], Array], divide_after: bool = False) -> tuple[Array, Array]:
    """Each rank's share of the batch by itself, gradients over ``ranks``, then ``add((ranks, n), step)``.

    ``divide_after``: the sum is divided instead of its addends, as ``ReduceOp.AVG`` does, which ``fully_shard`` asks
    for. Unless the number of ranks is a power of two, that gives other bits.
    """
    step = [0]

    def gradient(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Array, float]:
        n = setting.ranks
        parts = [_gradients(model, a, b) for a, b in zip(x.chunk(n), y.chunk(n), strict=True)]
        before, after = (np.float32(1), np.float32(n)) if divide_after else (np.float32(n), np.float32(1))
        total = add(np.stack([g / before for g, _ in parts]), step[0]) / after
        step[0] += 1
        return total, float(np.mean([loss for _, loss in parts]))

    return _train(setting, gradient)


def micro_batches(setting: Setting) -> tuple[Array, Array]:
    """Gradients of micro-batches accumulated in their order, then divided by their number: what a pipeline does."""

    def gradient(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Array, float]:
        m = setting.micro_batches
        parts = [_gradients(model, a, b) for a, b in zip(x.chunk(m), y.chunk(m), strict=True)]
        total = reduce(operator.add, [g for g, _ in parts])
        losses = torch.tensor([loss for _, loss in parts], dtype=torch.float32)
        return total / np.float32(m), float(losses.mean())

    return _train(setting, gradient)


def split_products(setting: Setting, bias_after: bool = False) -> tuple[Array, Array]:
    """The layers divided as tensor parallelism does, their partial products added as gloo does.

    A layer that is divided by its inputs has one bias for all ranks, and where it is added is part of the order of
    additions. ``torch.distributed.tensor`` makes an addend of it on every rank, as of every replicated tensor that
    joins a partial sum: ``bias / ranks`` is added to each partial product, before the all-reduce. ``bias_after``: the
    bias is added once, to the sum (Shoeybi et al., Megatron-LM, arXiv 1909.08053).
    """

    def gradient(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Array, float]:
        loss = cross_entropy(_divided(model, x, setting.ranks, bias_after), y)
        return _backward(model, loss)

    return _train(setting, gradient)


def _divided(model: nn.Module, x: Tensor, ranks: int, bias_after: bool) -> Tensor:
    """A forward pass in which every pair of layers is ``ranks`` pairs of blocks."""
    for column, row in zip(COLUMN, ROW, strict=True):
        first, two = model.get_submodule(column), model.get_submodule(row)
        assert isinstance(first, nn.Linear)
        assert isinstance(two, nn.Linear)
        weights = [w.contiguous() for w in two.weight.chunk(ranks, 1)]
        blocks = zip(_Copies.apply(x, ranks), first.weight.chunk(ranks), first.bias.chunk(ranks), weights, strict=True)
        inner = [(relu(linear(y, w, b)), v) for y, w, b, v in blocks]
        if bias_after:
            x = _Sum.apply(*(linear(y, v) for y, v in inner)) + two.bias
        else:
            biases = _Addends.apply(two.bias, ranks)
            x = _Sum.apply(*(linear(y, v, b) for (y, v), b in zip(inner, biases, strict=True)))
        x = relu(x) if row != ROW[-1] else x
    return x


def _summed(parts: Sequence[Tensor]) -> Tensor:
    """The sum that gloo makes of a tensor of each rank."""
    return torch.from_numpy(gloo.all_reduce(np.stack([p.detach().numpy().ravel() for p in parts]))).view(parts[0].shape)


class _Sum(torch.autograd.Function):
    """An all-reduce: the sum in the forward pass, the gradient to every rank in the backward pass."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.ranks = len(parts)
        return _summed(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient for _ in range(ctx.ranks))


class _Copies(torch.autograd.Function):
    """The other way round: what every rank has is copied, its gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> tuple[Tensor, ...]:
        return tuple(x.clone() for _ in range(ranks))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _summed(gradients), None


class _Addends(torch.autograd.Function):
    """What every rank has becomes addends of a sum; each rank then has the whole gradient of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> tuple[Tensor, ...]:
        return tuple(x / ranks for _ in range(ranks))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _gradients(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Array, float]:
    return _backward(model, cross_entropy(model(x), y))


def _backward(model: nn.Module, loss: Tensor) -> tuple[Array, float]:
    model.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return flat.numpy(), float(loss.detach())


def _train(setting: Setting, gradient: Callable[..., tuple[Array, float]]) -> tuple[Array, Array]:
    """AdamW on the gradients that ``gradient(model, inputs, targets)`` gives; flat arrays in the order of names."""
    network, losses = Network(setting), []
    with one_thread():
        model = network.model()
        weights = list(model.parameters())
        optimizer = adamw(weights, setting.lr)
        for batch in network.batches():
            flat, loss = gradient(model, *batch)
            losses.append(loss)
            pieces = torch.from_numpy(flat).split([p.numel() for p in weights])
            for p, g in zip(weights, pieces, strict=True):
                p.grad = g.view(p.shape)
            optimizer.step()
    named = sorted(model.named_parameters())
    return np.concatenate([p.detach().numpy().ravel() for _, p in named]), np.array(losses)


# --- layouts ----------------------------------------------------------------------------------------------------------


def flat_indices(setting: Setting) -> dict[str, Array]:
    """For every tensor of the network, by name, the places of its elements in the flat gradient, in its shape."""
    offsets, start = {}, 0
    for name, p in Network(setting).model().named_parameters():
        offsets[name] = np.arange(start, start + p.numel()).reshape(tuple(p.shape))
        start += p.numel()
    return offsets


def _layers(at: dict[str, Array]) -> list[list[str]]:
    """The names of each layer's tensors."""
    layers = dict.fromkeys(name.split(".")[0] for name in at)
    return [[name for name in at if name.split(".")[0] == layer] for layer in layers]


def flat_layers(setting: Setting) -> Layout:
    """Each layer end to end, padded to a multiple of the ranks: :mod:`fplab.parallel.zero`."""
    at = flat_indices(setting)
    messages = [np.concatenate([at[name].ravel() for name in names]) for names in _layers(at)]
    return [np.pad(m, (0, -len(m) % setting.ranks), constant_values=-1) for m in messages]


def row_layers(setting: Setting) -> Layout:
    """Each layer as ``fully_shard`` sends it: rank by rank, the rows of each tensor, padded to equal numbers."""
    at, n, messages = flat_indices(setting), setting.ranks, []
    for names in _layers(at):
        parts = []
        for rank in range(n):
            for name in names:
                rows = at[name].reshape(len(at[name]), -1)
                each = -(-len(rows) // n)
                rows = np.pad(rows, ((0, each * n - len(rows)), (0, 0)), constant_values=-1)
                parts.append(rows[rank * each : (rank + 1) * each].ravel())
        messages.append(np.concatenate(parts))
    return messages


def buckets(result: Result) -> list[Layout]:
    """DDP's buckets in each step, as the run wrote them down."""
    at = flat_indices(result.setting)
    messages = [np.concatenate([at[name].ravel() for name in bucket]) for bucket in result.ranks[0].notes["buckets"]]
    each = len(messages) // result.setting.steps
    return [messages[step * each : (step + 1) * each] for step in range(result.setting.steps)]


def by_gloo(layout: Layout | list[Layout]) -> Callable[[Array, int], Array]:
    """What adds shares' gradients as gloo does, messages laid out as given (a layout for all steps, or one a step)."""

    def add(parts: Array, step: int) -> Array:
        out = np.zeros(parts.shape[1], np.float32)
        chosen: Any = layout if isinstance(layout[0], np.ndarray) else layout[step]
        for message in chosen:
            sums = gloo.all_reduce(np.where(message >= 0, parts[:, message], np.float32(0)))
            out[message[message >= 0]] = sums[message >= 0]
        return out

    return add


def in_order(parts: Array, step: int) -> Array:
    """What a parameter server adds: rank 0, rank 1, and so on."""
    return np.asarray(reduce(operator.add, parts))


def same_sums(result: Result) -> tuple[Array, Array]:
    """The run in one process that adds in the order of a strategy's run through gloo: weights and losses."""
    s, name = result.setting, result.strategy
    if result.backend != "gloo":
        raise LabError(f"the order of additions of {result.backend!r} is not known; run with backend='gloo'.")
    if name == "parameter-server":
        return shares(s, in_order)
    if name in ("ddp", "zero-redundancy"):
        return shares(s, by_gloo(buckets(result)))
    if name == "fully-shard":
        return shares(s, by_gloo(row_layers(s)), divide_after=True)
    if name == "tensor":
        return split_products(s)
    return micro_batches(s) if name in ("gpipe", "1f1b", "interleaved") else shares(s, by_gloo(flat_layers(s)))
