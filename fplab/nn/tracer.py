"""How a run is seen without touching it: its operations, modules, backward passes, optimizer and loss scaler.

Each event has one way of being seen here, a mode or a context manager that puts everything back.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode

from .bits import PLAIN_TENSOR


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


@lru_cache(maxsize=4096)
def name_of(operation: Any) -> str:
    """An operation's name as ``allow`` takes it: "linalg_qr", or "torchvision::nms" where it is not torch's own."""
    space, _, name = operation.name().partition("::")
    name = name.partition(".")[0]
    return name if space == "aten" else f"{space}::{name}"


@lru_cache(maxsize=4096)
def base_name(operation: Any) -> str:
    """The name without the underscore that says "in place"."""
    name = name_of(operation)
    return name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name


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


class DispatchMode(TorchDispatchMode):
    """torch's mode, which sees every operation below autograd, without its compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would load its compiler for every block; a compiled call runs uncompiled anyway


class Operations(DispatchMode):
    """Sees every operation; :meth:`operation` computes it, or has it computed, and gives its result."""

    watches = True  # what an emulation puts around the nodes of a backward pass goes beneath

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.admit(func, types)
        if any(t.__torch_dispatch__ is not PLAIN_TENSOR for t in types):
            return NotImplemented  # a tensor of another kind takes itself apart first
        with torch._C.DisableTorchFunction():  # what is looked up on the way is no call of the model's
            return self.operation(Event(func, args, kwargs or {}))

    def admit(self, func: Any, types: Any) -> None:
        """Raises an error for what must not be computed here."""

    def operation(self, event: Event) -> Any:
        """One operation, of plain tensors."""
        raise NotImplementedError


# --- modules ----------------------------------------------------------------------------------------------------------


def is_compiled(layer: nn.Module) -> bool:
    """Whether a module is one that ``torch.compile`` gave, around the one that it was made of, or was compiled."""
    return type(layer).__name__ == "OptimizedModule" or layer._compiled_call_impl is not None


def made_of(layer: nn.Module) -> nn.Module:
    """What a module that ``torch.compile`` gave was made of; any other itself."""
    inner: nn.Module = getattr(layer, "_orig_mod", layer)
    return inner


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within the block what ``torch.compile`` gave, or gives there, runs what it was made of."""
    with ExitStack() as stack:

        def stand_aside() -> None:
            stack.enter_context(torch.compiler.set_stance("force_eager"))

        def compiling(inner: Any, *args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            stand_aside()
            return result

        if "torch._dynamo" in sys.modules:
            stand_aside()
        else:  # which takes a second to import
            stack.enter_context(wrapped(torch, "compile", compiling))
        yield


@dataclass(eq=False)
class Names:
    """``of``: the names of modules, parts of a model by their path in it, the model itself by its class.

    A module that ``torch.compile`` gave has the name of the one that it was made of.
    """

    of: weakref.WeakKeyDictionary[nn.Module, str] = field(default_factory=weakref.WeakKeyDictionary)
    _classes: Counter[str] = field(default_factory=Counter)
    _paths: set[str] = field(default_factory=set)

    def __contains__(self, layer: nn.Module) -> bool:
        return layer in self.of

    def alike(self, layer: nn.Module, other: nn.Module) -> None:
        """Give a layer the name of another."""
        self.of[layer] = self.of[other]

    def add(self, root: nn.Module) -> list[tuple[str, nn.Module]]:
        """Name what was not called before; the new ones."""
        result = []
        for path, layer in root.named_modules():
            if layer in self.of:
                continue
            inner = made_of(layer)
            path = path.replace("_orig_mod.", "")
            if path and path in self._paths:  # of another model's part
                path = f"{self.of[root]}.{path}"
            elif not path:
                self._classes[type(inner).__name__] += 1
                path = f"{type(inner).__name__} {self._classes[type(inner).__name__]}"
            self._paths.add(path)
            self.of[layer] = self.of[inner] = path
            result.append((path, inner))
        return result


class _Thread(threading.local):
    """``stack``: by depth of a thread's module calls, the layer and how much of something it has had."""

    def __init__(self) -> None:
        self.stack: list[list[Any]] = [["", 0]]


class Layers:
    """The modules that are running in each thread, found by hooks on all modules.

    ``met`` receives a model's parts with their names, itself first, when it is first called; ``leaving`` a layer's name
    and output. ``lock``: held while layers are named, which are all threads'.
    """

    leaving: Callable[[str, Any], None] | None = None

    def __init__(self, *met: Callable[[list[tuple[str, nn.Module]]], None]) -> None:
        self.names, self.running, self.lock, self._met = Names(), _Thread(), threading.RLock(), met
        self._hooks: tuple[Any, ...] = ()

    @property
    def here(self) -> str:
        """The innermost layer, or "" outside of all."""
        layer: str = self.running.stack[-1][0]
        return layer

    def follow(self) -> bool:
        """Follow every module's calls from here on; False where they are followed already."""
        if self._hooks:
            return False
        before = modules.register_module_forward_pre_hook(self._enter)
        self._hooks = before, modules.register_module_forward_hook(self._leave, always_call=True)
        return True

    def unfollow(self) -> None:
        """Follow them no more."""
        hooks, self._hooks = self._hooks, ()
        for hook in hooks:
            hook.remove()

    def _enter(self, layer: nn.Module, args: Any) -> None:
        stack = self.running.stack
        if len(stack) == 1 or layer not in self.names:
            with self.lock:
                new = self.names.add(layer)
                for listener in self._met if new else ():
                    listener(new)
        stack.append([self.names.of[layer], 0])

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        if len(self.running.stack) > 1:
            name, _ = self.running.stack.pop()
            if self.leaving is not None:
                self.leaving(name, output)


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
            results.append(result := apply(cls, *args, **kwargs))
        return result

    return wrapped(torch.autograd.Function, "apply", around)


# --- optimizers and loss scalers --------------------------------------------------------------------------------------


@contextmanager
def updates(optimizer: Any, before: Callable[[bool], None], after: Callable[[], None]) -> Iterator[None]:
    """Within the block report every step of an optimizer, before it (whether it has a closure) and after it.

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
    """Within the block report every loss that a scaler scales (scaler, loss, scaled), and every step that it skips.

    torch's ``GradScaler`` is noticed by itself; another class with ``scale``, ``step`` and ``get_scale`` is if given.
    ``steps``: how many there were so far, by which a skipped one, reported with its optimizer, is known.
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
