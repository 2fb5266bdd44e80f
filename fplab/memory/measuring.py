"""Bytes that are really held: every storage that torch makes, from birth to death, by kind, in a training step."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import door
from .tracing import storage_key


@door
class Tracker(TorchDispatchMode):
    """Within its ``with`` block, counts the bytes of the storages that torch's operations return.

    ``live``: bytes alive now, by kind. ``peak``: the most bytes alive at once, all kinds, and ``at_peak``: by kind.
    ``history``: bytes alive after each operation. A new storage is of kind :attr:`kind` ("other" at first) until
    :meth:`mark` says otherwise. What an operation allocates and frees inside itself is not seen: on a GPU, torch's
    allocator counts that too. Works on every device, meta included, and inside the backward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind = "other"
        self.live: Counter[str] = Counter()
        self.peak = 0
        self.at_peak: Mapping[str, int] = {}
        self.history: list[int] = []
        self._storages: dict[int, tuple[int, str, weakref.ref[torch.UntypedStorage]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        self.history.append(self.total)
        return out

    @property
    def total(self) -> int:
        return sum(self.live.values())

    def mark(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Say what kind these tensors' storages are of, also those made outside."""
        for tensor in tensors:
            self._see(tensor)
            if not tensor.untyped_storage().nbytes():
                continue
            key = storage_key(tensor)
            size, before, reference = self._storages[key]
            self.live[before] -= size
            self.live[kind] += size
            self._storages[key] = size, kind, reference

    def restart(self) -> None:
        """Forget the peak so far."""
        self.peak, self.at_peak = self.total, dict(+self.live)

    def _see(self, tensor: torch.Tensor) -> None:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if key in self._storages or not storage.nbytes():
            return
        self._storages[key] = storage.nbytes(), self.kind, weakref.ref(storage, self._forget(key))
        self.live[self.kind] += storage.nbytes()
        if self.total > self.peak:
            self.restart()

    def _forget(self, key: int) -> Callable[[object], None]:
        def gone(_: object) -> None:
            size, kind, _reference = self._storages.pop(key)
            self.live[kind] -= size

        return gone


@dataclass(frozen=True)
class Held:
    """Bytes of one training step by kind. ``activations``: alive between forward and backward pass, the loss apart.

    ``peak``: the most at once, from the beginning of the forward pass to the end of the backward pass, ``at_peak`` by
    kind ("other": activations and temporaries together); ``step_peak``: the same of the optimizer's step.
    """

    kinds: Mapping[str, int]
    peak: int
    at_peak: Mapping[str, int]
    step_peak: int


class Autocast(nn.Module):
    """A module that runs under autocast to BF16."""

    def __init__(self, module: nn.Module, device: str) -> None:
        super().__init__()
        self.module, self.device = module, device

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with torch.autocast(self.device, torch.bfloat16):
            return self.module(*inputs, **named)


class Trainer:
    """A module that gives its loss, its master weights where the precision has them, and its optimizer.

    ``precision``: "fp32" and "bf16" train the module as it is (in that dtype); "mixed" updates FP32 copies of 16-bit
    weights; "amp" runs an FP32 module under autocast to BF16. ``make``: from parameters to an optimizer.
    """

    def __init__(self, module: nn.Module, precision: str, make: Callable[[list[torch.Tensor]], Any]) -> None:
        self.weights = list(module.parameters())
        device = self.weights[0].device.type
        self.module = Autocast(module, "cpu" if device == "meta" else device) if precision == "amp" else module
        self.master = [p.detach().float() for p in self.weights] if precision == "mixed" else []
        self.optimizer = make(list(self.master or self.weights))

    def update(self) -> None:
        """Apply the gradients, and drop them."""
        for master, weight in zip(self.master, self.weights, strict=False):
            master.grad = weight.grad.float() if weight.grad is not None else None
        self.optimizer.step()
        with torch.no_grad():
            for master, weight in zip(self.master, self.weights, strict=False):
                weight.copy_(master)
                master.grad = None
        self.optimizer.zero_grad(set_to_none=True)
        self.module.zero_grad(set_to_none=True)

    def states(self) -> list[torch.Tensor]:
        leaves = pytree.tree_leaves([self.optimizer.state[p] for p in self.optimizer.state])
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def measured_step(trainer: Trainer, *inputs: torch.Tensor) -> Held:
    """Train two steps and measure the second: the first makes the optimizer's states. Works on the meta device too.

    A step is two micro-batches, here of the same inputs: gradients are there already when the second one's activations
    are, which is what an estimate counts. The second micro-batch is measured.
    """
    trainer.module(*inputs).backward()
    trainer.update()
    trainer.module(*inputs).backward()
    with Tracker() as tracker:
        tracker.mark(inputs, "inputs")
        tracker.mark([*trainer.weights, *trainer.module.buffers()], "parameters")
        tracker.mark(trainer.master, "master")
        tracker.mark(trainer.states(), "states")
        tracker.mark([p.grad for p in trainer.weights if p.grad is not None], "gradients")
        tracker.restart()
        before = tracker.total
        loss = trainer.module(*inputs)
        tracker.mark([loss], "loss")
        kinds = {"activations": tracker.total - before - tracker.live["loss"]}
        loss.backward()
        del loss
        peak, at_peak = tracker.peak, tracker.at_peak
        tracker.restart()
        kinds |= {kind: tracker.live[kind] for kind in ("parameters", "gradients", "master", "states")}
        trainer.update()
        return Held(kinds, peak - tracker.live["inputs"], at_peak, tracker.peak - tracker.live["inputs"])
