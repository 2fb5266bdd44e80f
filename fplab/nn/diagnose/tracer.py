"""How a run is seen without touching it: its operations, modules, backward passes, optimizer and loss scaler.

Each event has one way of being seen here, a mode or a context manager that puts everything back.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode

from ..emulation.operations import base_name, name_of
from ..layers import Names
from .nonfinite import ROOT, Ingredients, ingredients, nothing
from .tensors import tensors_in

_PLAIN_TENSOR = torch.Tensor.__torch_dispatch__
See = Callable[[str, str, str, torch.Tensor, Ingredients], None]  # kind, layer, name, the tensor, what it was made of


@contextmanager
def wrapped(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Within the block calls of ``owner.name``, a class's, object's or module's, are ``around(it, ...)``."""
    own = name in vars(owner)
    before = vars(owner)[name] if own else getattr(owner, name)
    of_class = isinstance(before, classmethod)
    inner = before.__func__ if of_class else before

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(inner, *args, **kwargs)

    setattr(owner, name, classmethod(call) if of_class else call)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


# --- operations -------------------------------------------------------------------------------------------------------

_WRITES = {"native_batch_norm": (3, 4)}  # running statistics, which the schema does not say are written to


@lru_cache(maxsize=4096)
def _written(func: Any) -> tuple[str, ...]:
    """The arguments that an operation writes to, by name."""
    given = func._schema.arguments
    names = [a.name for a in given if a.alias_info is not None and a.alias_info.is_write]
    return (*names, *(given[i].name for i in _WRITES.get(name_of(func), ())))


class Event:
    """One operation of torch. ``name``: without the underscore that says "in place"; ``result``: once it has run."""

    __slots__ = ("args", "func", "kwargs", "name", "result")

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        self.func, self.args, self.kwargs, self.name = func, args, kwargs, base_name(func)
        self.result: Any = None

    def run(self) -> Any:
        """Have it computed, by the modes around or torch."""
        self.result = self.func(*self.args, **self.kwargs)
        return self.result

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name, those that were left out left out."""
        names = (a.name for a in self.func._schema.arguments)
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    @property
    def written(self) -> list[Any]:
        """The arguments that it writes to."""
        names = _written(self.func)
        return list(map(self.named.get, names)) if names else []


class Operations(TorchDispatchMode):
    """Sees every operation below autograd; :meth:`operation` computes it, or has it computed, and gives its result."""

    watches = True  # what an emulation puts around the nodes of a backward pass goes beneath

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see Mode in emulation.modes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.admit(func, types)
        if any(t.__torch_dispatch__ is not _PLAIN_TENSOR for t in types):
            return NotImplemented  # a tensor of another kind takes itself apart first
        with torch._C.DisableTorchFunction():  # what is looked up on the way is no call of the model's
            return self.operation(Event(func, args, kwargs or {}))

    def admit(self, func: Any, types: Any) -> None:
        """Raises an error for what must not be computed here."""

    def operation(self, event: Event) -> Any:
        """One operation, of plain tensors."""
        raise NotImplementedError


# --- modules ----------------------------------------------------------------------------------------------------------


class Layers:
    """The modules that are running, innermost last; ``leaving`` is told of every module's output, with its name."""

    def __init__(self) -> None:
        self.names = Names()
        self._running: list[str] = []

    @property
    def here(self) -> str:
        """The innermost layer, or "" outside of all."""
        return self._running[-1] if self._running else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Within the block every module's calls are followed."""
        with (
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ):
            yield

    def leaving(self, name: str, output: Any) -> None:
        """A layer has given its output."""

    def _enter(self, layer: nn.Module, args: Any) -> None:
        if not self._running or layer not in self.names:
            self.names.add(layer)
        self._running.append(self.names.of[layer])

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        if self._running:
            self.leaving(self._running.pop(), output)


class ModuleTensors:
    """A model's input, what each of its modules returns, and the gradients that come back to that.

    A tensor that a module only passes on (a container, an identity) is seen once, at the module that made it; changed
    in place it is a new one. Without gradients (validation) nothing is seen. A checkpointed forward pass that is
    repeated during the backward pass is seen once. ``called`` is told of every call: layer, module, arguments, output.
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
            found = list(tensors_in(output))
            made_of = functools.partial(ingredients, self._model, layer, module, [args, kwargs], output)
            for i, tensor in enumerate(found):
                if self._is_new(tensor):
                    name = layer if len(found) == 1 else f"{layer}[{i}]"
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


# --- autograd ---------------------------------------------------------------------------------------------------------


def backward_passes(begins: Callable[[Any, Any], None]) -> AbstractContextManager[None]:
    """Within the block every backward pass tells what it starts from: the outputs, and their gradients or None."""

    def around(engine: Any, outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        begins(outputs, gradients)
        return engine(outputs, gradients, *args, **kwargs)

    return wrapped(torch.autograd, "_engine_run_backward", around)


def functions(inside: Callable[[Any], AbstractContextManager[list[Any]]]) -> AbstractContextManager[None]:
    """Within the block every function with a backward pass of its own computes in ``inside`` of its arguments.

    Its results are appended to what that gives.
    """

    def around(apply: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        with inside(args) as results:
            results.append(found := apply(cls, *args, **kwargs))
        return found

    return wrapped(torch.autograd.Function, "apply", around)


# --- optimizers and loss scalers --------------------------------------------------------------------------------------


@contextmanager
def updates(optimizer: Any, before: Callable[[bool], None], after: Callable[[], None]) -> Iterator[None]:
    """Within the block every step of an optimizer is told, before it (whether it has a closure) and after it.

    torch's are seen by their hooks, others by their ``step``.
    """

    def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return any(map(callable, [*args, *kwargs.values()]))

    def around(step: Any, *args: Any, **kwargs: Any) -> Any:
        before(has_closure(args, kwargs))
        result = step(*args, **kwargs)
        after()
        return result

    if not isinstance(optimizer, torch.optim.Optimizer):
        with wrapped(optimizer, "step", around):
            yield
        return
    with (
        optimizer.register_step_pre_hook(lambda _o, args, kwargs: before(has_closure(args[1:], kwargs))),
        optimizer.register_step_post_hook(lambda _o, _args, _kwargs: after()),
    ):
        yield


@contextmanager
def scaled_losses(
    scaler: Any, scaled: Callable[[Any, Any, Any], None], steps: Callable[[], int], skipped: Callable[[Any], None]
) -> Iterator[None]:
    """Within the block every loss that a scaler scales is told (scaler, loss, scaled), and every step that it skips.

    torch's ``GradScaler`` is noticed by itself; another class with ``scale``, ``step`` and ``get_scale`` is if given.
    ``steps``: how many there were so far, by which a skipped one (told its optimizer) is known.
    """

    def scale(inner: Any, of: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(of, outputs, *args, **kwargs)
        scaled(of, outputs, result)
        return result

    def step(inner: Any, of: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = steps()
        result = inner(of, optimizer, *args, **kwargs)
        if steps() == before:
            skipped(optimizer)
        return result

    kinds = {torch.amp.GradScaler}
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        kinds.add(type(scaler))
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(wrapped(kind, "scale", scale))
            stack.enter_context(wrapped(kind, "step", step))
        yield
