"""The collectives of a real run, called through one object that writes down what was sent."""

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .settings import RankResult, Setting, grouped

# torch 2.13 renames the two; under both names they are the same calls.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class MessageLog:
    """What a process does in one strategy: :meth:`result` is what it leaves."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        backend = dist.get_backend()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
        self.losses: list[float] = []
        self.held: dict[str, int] = {}
        self.messages: list[tuple[str, int, int]] = []
        self.notes: dict[str, Any] = {"backend": backend}

    def count(self, collective: str, whole: Tensor) -> None:
        self.messages.append((collective, whole.numel(), whole.element_size()))

    def reduce_scatter(self, part: Tensor, whole: Tensor) -> None:
        """torch's ``reduce_scatter_tensor``: ``part`` becomes this rank's piece of the sum of all ``whole``."""
        self.count("reduce-scatter", whole)
        _reduce_scatter(part, whole)

    def all_gather(self, whole: Tensor, part: Tensor) -> None:
        """torch's ``all_gather_into_tensor``: ``whole`` becomes all pieces end to end."""
        self.count("all-gather", whole)
        _all_gather(whole, part)

    def part(self, batch: Tensor) -> Tensor:
        """This rank's rows of a batch."""
        each = len(batch) // self.ranks
        return batch[self.rank * each : (self.rank + 1) * each]

    def step(self, weights: list[nn.Parameter], optimizer: Any) -> None:
        """One update, what is held when it is made, and no gradients after it."""
        optimizer.step()
        own = getattr(optimizer, "optim", optimizer)  # of a ZeroRedundancyOptimizer
        self.hold(nbytes(weights), nbytes(p.grad for p in weights), state_bytes(own))
        optimizer.zero_grad()

    def hold(self, parameters: int, gradients: int, states: int) -> None:
        self.held = {"parameters": parameters, "gradients": gradients, "states": states}

    def result(self, weights: Mapping[str, Tensor]) -> RankResult:
        import numpy as np

        arrays = {name: w.detach().cpu().contiguous().numpy() for name, w in weights.items()}
        losses = np.array(self.losses, np.float32)
        return RankResult(self.rank, arrays, losses, self.held, grouped(self.messages), self.notes)


def adamw(parameters: list[nn.Parameter], lr: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=lr, foreach=False)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of an optimizer's moments; its step counts, 4 bytes a tensor, are not among them."""
    states = [s for state in optimizer.state.values() for s in state.values() if isinstance(s, Tensor) and s.ndim]
    return nbytes(states)


def nbytes(tensors: Any) -> int:
    """Bytes of tensors; of a tensor that is divided among ranks, this rank's."""
    return sum(int(getattr(t, "_local_tensor", t).nbytes) for t in tensors if t is not None)


# torch's own calls, by the name of the operation: the collective, and which argument is the whole message.
TORCH_COLLECTIVES = {
    "c10d._allgather_base_": ("all-gather", 0),
    "c10d._reduce_scatter_base_": ("reduce-scatter", 1),
    "c10d.send": ("send", 0),
    "_c10d_functional.all_reduce": ("all-reduce", 0),
}


class LoggedCollectives(TorchDispatchMode):
    """Within its ``with`` block, the collectives that torch's own strategies call go into the log."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is not Tensor and hasattr(kind, "redistribute") for kind in types):
            return NotImplemented  # a divided tensor: it calls again with what this rank has
        name = f"{func.namespace}.{func.__name__.split('.')[0]}"
        if name in TORCH_COLLECTIVES:
            collective, which = TORCH_COLLECTIVES[name]
            for whole in args[which] if isinstance(args[which], list) else [args[which]]:
                self.log.count(collective, whole)
        return func(*args, **(kwargs or {}))
