"""The parameters of a model side by side in one array, so that many small tensors cost one call."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ..bits import array, local
from .nonfinite import ROOT
from .tensors import Array, bits


class Parameter(NamedTuple):
    """A parameter by its name in the model and the module that holds it."""

    name: str
    layer: str
    tensor: nn.Parameter


class Parts:
    """Where each parameter, and each layer, lies in an array of them all; a layer's parameters are neighbours."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        held = [local(p.tensor) for p in self.parameters]
        sizes = [2 * t.numel() if t.is_complex() else t.numel() for t in held]
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.layers = tuple(dict.fromkeys(p.layer for p in self.parameters))
        first = [next(i for i, p in enumerate(self.parameters) if p.layer == layer) for layer in self.layers]
        self.layer_offsets = self.offsets[[*first, len(self.parameters)]]

        self._buffers: dict[str, torch.Tensor] = {}

    def join(self, take: Callable[[Parameter], torch.Tensor], use: str) -> Array:
        """A tensor of each parameter, one after the other, as float32 (n,): a copy, kept until the next of that use."""
        buffer = self._buffers.get(use)
        if buffer is None:  # fresh memory for each copy would cost more than the copying
            buffer = self._buffers[use] = torch.empty(int(self.offsets[-1]), dtype=torch.float32)
        joined = array(buffer)
        tensors = [local(take(p)) for p in self.parameters]
        if all(t.dtype is torch.float32 and t.device.type == "cpu" and t.layout is torch.strided for t in tensors):
            if tensors:
                torch.cat([t.detach().reshape(-1) for t in tensors], out=buffer)
        else:
            for i, t in enumerate(tensors):
                joined[self.offsets[i] : self.offsets[i + 1]] = _values(t)
        return joined

    def difference(self, after: Array, before: Array, use: str) -> Array:
        """``after - before`` in FP32, kept until the next of that use."""
        buffer = self._buffers.get(use)
        if buffer is None:
            buffer = self._buffers[use] = torch.empty(after.size, dtype=torch.float32)
        found = array(buffer)
        with np.errstate(all="ignore"):
            np.subtract(after, before, out=found)
        return found


def _values(tensor: torch.Tensor) -> Array:
    found = bits(tensor)
    return np.zeros(tensor.numel(), np.float32) if found is None else found.view(np.float32)


def parameters_of(model: nn.Module) -> tuple[Parameter, ...]:
    """A model's floating-point parameters, a shared one once, by its first name."""
    found = []
    for name, tensor in model.named_parameters():
        if tensor.is_floating_point() or tensor.is_complex():
            found.append(Parameter(name, name.rpartition(".")[0] or ROOT, tensor))
    return tuple(found)


def states_of(optimizer: Any, parameters: Iterable[Parameter]) -> dict[str, dict[str, torch.Tensor]]:
    """An optimizer's states in a parameter's shape, by the name of the state and of the parameter."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    states = getattr(optimizer, "state", {})
    for p in parameters:
        for key, value in (states.get(p.tensor) or {}).items():
            if _is_state(value) and value.shape == p.tensor.shape:
                found.setdefault(str(key), {})[p.name] = value
    return found


def other_states(optimizer: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """An optimizer's states in no parameter's shape (factored moments, the directions of L-BFGS), with their names."""
    for owner, state in list(getattr(optimizer, "state", {}).items()):
        for key, value in state.items() if isinstance(state, dict) else ():
            for item in value if isinstance(value, list | tuple) else (value,):
                if _is_state(item) and item.shape != getattr(owner, "shape", None):
                    yield str(key), item


def _is_state(value: Any) -> bool:
    """Whether this is a tensor of numbers, not a count of steps."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0
