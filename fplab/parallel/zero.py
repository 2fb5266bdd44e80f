"""ZeRO's three stages on torch's ``reduce_scatter_tensor`` and ``all_gather_into_tensor``: a padded buffer a layer.

After Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054). Every rank owns one piece of each layer's buffer: the optimizer
states of that piece (stage 1), its gradient (stage 2), its parameters (stage 3).

* Stage 1: the backward pass completes all gradients; they are reduce-scattered, each rank updates its pieces, the
  parameters are all-gathered.
* Stage 2: a layer's gradient is reduce-scattered as soon as the backward pass has it, and only the piece is kept.
* Stage 3: a layer's parameters are all-gathered before its forward pass and forgotten after it, all-gathered again in
  the backward pass (the layer is recomputed), and its gradient is reduce-scattered: three messages instead of two.

The first step is traced: what a rank does, and what it holds after each act (:class:`Trace`).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu
from torch.utils.checkpoint import checkpoint

from .message_log import MessageLog, adamw, nbytes, state_bytes
from .settings import RankResult
from .task import Network


class Trace:
    """What a rank does in its first step: rows of the pass, the act, the layer's number, and what is held after it.

    What is held: for each layer the elements of parameters, gradients and states, counted on the tensors that there
    are. Acts: all-gather, compute, gradient, reduce-scatter, update, free parameters, free gradients. A whole buffer
    is free a moment sooner or later, as a thread of gloo's lets go of it: its row may change places with the next.
    """

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.optimizer: torch.optim.Optimizer | None = None
        self.rows: list[tuple[str, str, int, list[list[int]]]] = []
        self.during: str | None = "forward"

    def did(self, act: str, unit: Unit) -> None:
        if self.during and self.optimizer is not None:
            elements = [unit.element_counts(self.optimizer) for unit in self.units]
            self.rows.append((self.during, act, self.units.index(unit), elements))


class Unit:
    """One layer's weight and bias in a flat buffer, padded to a multiple of the ranks.

    ``whole``: the buffer (stages 1 and 2). ``piece``: this rank's part of it, which the optimizer updates: in stages 1
    and 2 a view of the buffer, in stage 3 all that is held.
    """

    def __init__(self, layer: nn.Linear, log: MessageLog, stage: int, trace: Trace) -> None:
        self.log, self.stage, self.trace = log, stage, trace
        self.shapes = [p.shape for p in layer.parameters()]
        self.elements = sum(p.numel() for p in layer.parameters())
        self.size = -(-self.elements // log.ranks)
        flat = torch.zeros(self.size * log.ranks, device=log.device)
        flat[: self.elements] = torch.cat([p.detach().flatten() for p in layer.parameters()])
        mine = slice(log.rank * self.size, (log.rank + 1) * self.size)
        self.whole = flat.requires_grad_(stage == 1) if stage < 3 else None
        self.piece = nn.Parameter(flat.detach()[mine] if stage < 3 else flat[mine].clone())
        self.passing: dict[str, weakref.ref[Tensor]] = {}  # whole buffers that come and go, by kind
        if stage == 1 and self.whole is not None:
            self.whole.register_post_accumulate_grad_hook(lambda _: trace.did("gradient", self))

    def __call__(self, x: Tensor) -> Tensor:
        if self.stage == 1:
            assert self.whole is not None
            return self._linear(x, self.whole)
        if self.stage == 2:
            return self._linear(x, _Scattered.apply(self.piece, self))
        out: Tensor = checkpoint(self._gathered, x, use_reentrant=False)
        return out

    def _gathered(self, x: Tensor) -> Tensor:
        return self._linear(x, _Gathered.apply(self.piece, self))

    def _linear(self, x: Tensor, flat: Tensor) -> Tensor:
        weight, bias = self.tensors(flat)
        out = linear(x, weight, bias)
        self.trace.did("compute", self)
        return out

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """Weight and bias as views of a flat buffer."""
        parts = flat[: self.elements].split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def gather(self) -> Tensor:
        """All ranks' pieces."""
        whole = self.piece.new_empty(self.size * self.log.ranks)
        self.log.all_gather(whole, self.piece.detach())
        self.comes("parameters", whole, "all-gather")
        return whole

    def scatter(self, gradient: Tensor) -> Tensor:
        """This rank's piece of the mean gradient."""
        piece = torch.empty_like(self.piece)
        if self.stage > 1:
            self.comes("gradients", gradient, "gradient")
        self.log.reduce_scatter(piece, gradient / self.log.ranks)
        self.passing["piece"] = weakref.ref(piece)
        self.trace.did("reduce-scatter", self)
        return piece

    def comes(self, kind: str, whole: Tensor, act: str) -> None:
        """A whole buffer of a kind is there; that it is gone again is an act of its own."""
        self.passing[kind] = weakref.ref(whole)
        self.trace.did(act, self)
        weakref.finalize(whole, self.trace.did, f"free {kind}", self).atexit = False

    def element_counts(self, optimizer: torch.optim.Optimizer) -> list[int]:
        """Elements of parameters, gradients and states that this rank has of the layer now."""
        passing = {kind: buffer for kind, ref in self.passing.items() if (buffer := ref()) is not None}
        flat = self.piece if self.whole is None else self.whole
        parameters = max(flat.numel(), passing["parameters"].numel() if "parameters" in passing else 0)
        gradients = [t.numel() for t in (flat.grad, self.piece.grad, passing.get("gradients"), passing.get("piece"))
                     if t is not None]  # fmt: skip
        states = [t.numel() for t in optimizer.state[self.piece].values() if isinstance(t, Tensor) and t.ndim]
        return [parameters, max(gradients, default=0), sum(states)]


class _Scattered(torch.autograd.Function):
    """Stage 2: the whole parameters in the forward pass, the piece of their gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, unit: Unit) -> Tensor:
        ctx.unit = unit
        assert unit.whole is not None
        return unit.whole.view_as(unit.whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.unit.scatter(gradient), None


class _Gathered(torch.autograd.Function):
    """Stage 3: gather in the forward pass, reduce-scatter in the backward pass."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, unit: Unit) -> Tensor:
        ctx.unit = unit
        return unit.gather()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.unit.scatter(gradient), None


def zero(log: MessageLog, network: Network, stage: int) -> RankResult:
    """Train with one of the three stages."""
    linears = {name: layer for name, layer in network.model().named_children() if isinstance(layer, nn.Linear)}
    trace = Trace()
    units = [Unit(layer, log, stage, trace) for layer in linears.values()]
    optimizer = adamw([unit.piece for unit in units], log.setting.lr)
    trace.units, trace.optimizer = units, optimizer
    for batch in network.batches():
        x = log.part(batch.inputs)
        for unit in units[:-1]:
            x = relu(unit(x))
        loss = cross_entropy(units[-1](x), log.part(batch.targets))
        trace.during = trace.during and "backward"
        loss.backward()
        trace.during = trace.during and "update"
        log.losses.append(float(loss.detach()))
        if stage == 1:
            for unit in units:
                assert unit.whole is not None
                assert unit.whole.grad is not None
                unit.piece.grad = unit.scatter(unit.whole.grad)
        gradients = [unit.piece.grad if unit.whole is None or stage > 1 else unit.whole.grad for unit in units]
        optimizer.step()
        _hold(log, units, gradients, optimizer)
        del gradients
        for unit in units:
            trace.did("update", unit)
            unit.piece.grad = None
            if unit.whole is not None:
                unit.whole.grad = None
                unit.log.all_gather(unit.whole.detach(), unit.piece.detach().clone())
                trace.did("all-gather", unit)
            else:
                trace.did("free gradients", unit)
        trace.during = None
    log.notes["trace"] = trace.rows
    sent = list(log.messages)
    weights: dict[str, Tensor] = {}
    for name, unit in zip(linears, units, strict=True):
        parts = unit.tensors(unit.gather() if unit.whole is None else unit.whole)
        weights |= {f"{name}.weight": parts[0], f"{name}.bias": parts[1]}
    log.messages = sent  # the gathering for the file is no part of the training
    return log.result(weights)


def _hold(log: MessageLog, units: list[Unit], gradients: list[Tensor | None], optimizer: torch.optim.Optimizer) -> None:
    """Bytes held, and how many of them are padding: of whole buffers; a piece counts with its share."""
    parameters = [unit.piece if unit.whole is None else unit.whole for unit in units]
    log.hold(nbytes(parameters), nbytes(gradients), state_bytes(optimizer))
    pad = sum(unit.size * log.ranks - unit.elements for unit in units) * 4
    whole = {1: ("parameters", "gradients"), 2: ("parameters",), 3: ()}[units[0].stage]
    log.notes["padding"] = dict.fromkeys(whole, pad)
