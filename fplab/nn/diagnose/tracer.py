"""Seeing every tensor of a training step without touching it: hooks on modules, the optimizer and a loss scaler."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn

from .nonfinite import ROOT, Ingredients, ingredients, nothing
from .tensors import tensors_in


class Sink(Protocol):
    """What becomes of what the hooks see."""

    steps: int

    def see(  # noqa: D102
        self, kind: str, layer: str, tensor: str, value: torch.Tensor, made_of: Ingredients = nothing
    ) -> None: ...
    def before_update(self, closure: bool) -> None: ...  # noqa: D102
    def after_update(self) -> None: ...  # noqa: D102
    def scaled(self, scaler: Any, loss: Any, scaled: Any) -> None: ...  # noqa: D102
    def skip_update(self, optimizer: Any) -> None: ...  # noqa: D102


class ForwardHooks:
    """On every module: its outputs as they are made, and the gradients that come back to them.

    A tensor that a module only passes on (a container, an identity) is seen once, at the module that made it; changed
    in place it is a new one. Without gradients (validation) nothing is seen. A checkpointed forward pass that is
    repeated during the backward pass is seen once.
    """

    def __init__(self, model: nn.Module, sink: Sink) -> None:
        self._model, self._sink = model, sink
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
                self._sink.see("input", ROOT, "the model's input", tensor)

    def _output(self, layer: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return
            repeated = _in_backward() and layer in self._ran
            if not _in_backward():
                self._ran.add(layer)
            found = list(tensors_in(output))
            made_of = functools.partial(ingredients, self._model, layer, module, [args, kwargs], output)
            for i, tensor in enumerate(found):
                if self._is_new(tensor):
                    name = layer if len(found) == 1 else f"{layer}[{i}]"
                    if not repeated:
                        self._sink.see("activations", layer, name, tensor, made_of)
                    if tensor.requires_grad and not tensor.is_inference():
                        tensor.register_hook(functools.partial(self._gradient, layer, name))

        return hook

    def _gradient(self, layer: str, name: str, gradient: torch.Tensor) -> None:
        self._sink.see("activation gradients", layer, name, gradient)

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


@contextlib.contextmanager
def optimizer_hooks(optimizer: Any, sink: Sink) -> Iterator[None]:
    """Within the block the sink hears of every step of an optimizer: torch's by its hooks, others by their ``step``."""
    if isinstance(optimizer, torch.optim.Optimizer):
        with (
            optimizer.register_step_pre_hook(
                lambda _o, args, kwargs: sink.before_update(_has_closure(args[1:], kwargs))
            ),
            optimizer.register_step_post_hook(lambda _o, _args, _kwargs: sink.after_update()),
        ):
            yield
        return
    inner = optimizer.step

    @functools.wraps(inner)
    def step(*args: Any, **kwargs: Any) -> Any:
        sink.before_update(_has_closure(args, kwargs))
        result = inner(*args, **kwargs)
        sink.after_update()
        return result

    own = "step" in vars(optimizer)
    optimizer.step = step
    try:
        yield
    finally:
        if own:
            optimizer.step = inner
        else:
            del optimizer.step


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step is given a function that computes the gradients itself."""
    return any(map(callable, [*args, *kwargs.values()]))


@contextlib.contextmanager
def scaler_hooks(scaler: Any, sink: Sink) -> Iterator[None]:
    """Within the block the sink hears of every loss that a scaler scales and of every step that it takes or skips.

    torch's ``GradScaler`` is noticed by itself; another class with ``scale``, ``step`` and ``get_scale`` is if given.
    """
    kinds = {torch.amp.GradScaler}
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        kinds.add(type(scaler))
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(_wrapped(kind, "scale", functools.partial(_scale, sink)))
            stack.enter_context(_wrapped(kind, "step", functools.partial(_step, sink)))
        yield


def _scale(sink: Sink, inner: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
    scaled = inner(scaler, outputs, *args, **kwargs)
    sink.scaled(scaler, outputs, scaled)
    return scaled


def _step(sink: Sink, inner: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    before = sink.steps
    result = inner(scaler, optimizer, *args, **kwargs)
    if sink.steps == before:
        sink.skip_update(optimizer)
    return result


@contextlib.contextmanager
def _wrapped(kind: type, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of a class by one that is given it first, and put it back."""
    inner, own = getattr(kind, name), name in vars(kind)

    @functools.wraps(inner)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(inner, *args, **kwargs)

    setattr(kind, name, method)
    try:
        yield
    finally:
        if own:
            setattr(kind, name, inner)
        else:
            delattr(kind, name)
