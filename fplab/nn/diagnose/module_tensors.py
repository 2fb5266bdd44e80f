"""What each module of a model is given and returns in a training step, and the gradients that come back to it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .nonfinite import ROOT, Ingredients, ingredients, nothing
from .tensors import tensors_in

See = Callable[[str, str, str, torch.Tensor, Ingredients], None]  # kind, layer, name, the tensor, what it was made of


class ModuleTensors:
    """A model's input, what each of its modules returns, and the gradients that come back to that.

    A tensor that a module only passes on (a container, an identity) is seen once, at the module that made it; changed
    in place it is a new one. Without gradients (validation) nothing is seen. A checkpointed forward pass that is
    repeated during the backward pass is seen once. ``called`` receives every call: layer, module, arguments, output.
    """

    def __init__(self, model: nn.Module, see: See, called: Callable[[str, nn.Module, Any, Any], None]) -> None:
        self._model, self._see, self._called = model, see, called
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._ran: set[str] = set()
        first = model.register_forward_pre_hook(self._input, with_kwargs=True)
        self._handles = [first] + [
            module.register_forward_hook(self._output(name or ROOT), with_kwargs=True)
            for name, module in model.named_modules()
        ]

    def new_step(self) -> None:
        """Forget which tensors were seen."""
        self._seen.clear()
        self._ran.clear()

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        self.new_step()

    def _input(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and not _in_backward():
            for tensor in tensors_in([args, kwargs]):
                self._see("input", ROOT, "the model's input", tensor, nothing)

    def _output(self, layer: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return
            self._called(layer, module, args, output)
            repeated = _in_backward() and layer in self._ran
            if not _in_backward():
                self._ran.add(layer)
            result = list(tensors_in(output))
            made_of = functools.partial(ingredients, self._model, layer, module, [args, kwargs], output)
            for i, tensor in enumerate(result):
                if self._is_new(tensor):
                    name = layer if len(result) == 1 else f"{layer}[{i}]"
                    if not repeated:
                        self._see("activations", layer, name, tensor, made_of)
                    if tensor.requires_grad and not tensor.is_inference():
                        tensor.register_hook(functools.partial(self._gradient, layer, name))

        return hook

    def _gradient(self, layer: str, name: str, gradient: torch.Tensor) -> None:
        self._see("activation gradients", layer, name, gradient, nothing)

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor, at its present version, has not been seen in this step."""
        version = 0 if tensor.is_inference() else tensor._version
        known = self._seen.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version:
            return False
        self._seen[id(tensor)] = weakref.ref(tensor), version
        return True


def _in_backward() -> bool:
    """Whether autograd is running: a forward pass in there repeats an earlier one (checkpointing)."""
    return bool(torch._C._current_graph_task_id() != -1)
