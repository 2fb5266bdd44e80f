"""Where a product is called: the layer that runs, its products so far, the step, and the checkpoint around them.

A checkpoint forgets what a region computed and runs it again in the backward pass. It must then get the bits that it
had: so a product has a site, the same when it runs again, and scales that it was given once are remembered by it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as modules

from .. import bits
from ..layers import Names

Scales = dict[tuple[int, str], float]  # by the number of the product in its step, and the operand


saving_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
"""Given True, the pair of functions through which autograd saves tensors now, as under a checkpoint; None without."""


@dataclass(eq=False)
class Step:
    """One step: how many products its forward passes have had, and the scales that their operands were given.

    ``used``: whether it had any; a step that had none is the next one still. ``amaxes``: delayed scaling's, by role.
    """

    number: int
    used: bool = False
    products: int = 0
    scales: Scales = field(default_factory=dict)
    amaxes: dict[str, float] = field(default_factory=dict)


class CallSite(NamedTuple):
    """Of a product: its layer, its number there, its step and its number in that.

    ``start``: of the first operation in the checkpoint around it; None outside of all. ``order``: of the derivative, 1
    for what a first backward pass records, and 256 more for each time that the node ran before. ``weighted``: whether
    it multiplied by a weight; None is not known.
    """

    layer: str
    number: int
    step: Step
    serial: int
    start: CallSite | None
    order: int = 0
    weighted: bool | None = None


@dataclass(eq=False)
class Weights:
    """Which memory holds weights: parameters, and what was made of them alone, such as autocast's copies."""

    _seen: dict[int, StorageWeakRef] = field(default_factory=dict)  # weak ones keep their address from being another's

    def add(self, x: torch.Tensor) -> None:
        """A tensor is a weight; of one that is spread over processes, what this one holds."""
        with suppress(NotImplementedError, RuntimeError, ValueError):  # without memory, as under torch.func
            storage = bits.local(x).untyped_storage()
            if storage._cdata not in self._seen:
                self._seen[storage._cdata] = StorageWeakRef(storage)

    def __contains__(self, x: torch.Tensor) -> bool:
        try:
            return x.untyped_storage()._cdata in self._seen
        except (NotImplementedError, RuntimeError, ValueError):
            return False

    def forget(self) -> None:
        """Drop what is no more."""
        self._seen = {at: kept for at, kept in self._seen.items() if not kept.expired()}


Listener = Callable[[list[tuple[str, nn.Module]]], None]


class _Thread(threading.local):
    """``stack``: by depth of a thread's module calls, the layer and its products so far."""

    def __init__(self) -> None:
        self.stack: list[list[Any]] = [["", 0]]


class CallSites:
    """The layer that is running now in each thread, found by hooks on all modules, and the site of what runs in it.

    ``listeners``: told a model's parts with their names, itself first, when it is first called. ``weights``: those that
    were met, where ``tells_weights`` says that somebody asks.
    ``lock``: held while layers are named and products counted, which are all threads'.
    """

    def __init__(self, listeners: Sequence[Listener], tells_weights: bool) -> None:
        self._listeners, self._tells_weights, self.weights = listeners, tells_weights, Weights()
        self.running = _Thread()
        self.lock = threading.RLock()
        self.step = Step(1)
        self._names = Names()
        self._starts: weakref.WeakKeyDictionary[Any, CallSite] = weakref.WeakKeyDictionary()
        self._hooks: tuple[Any, ...] = ()

    def here(self) -> CallSite:
        """The site of the next product."""
        layer, number = self.running.stack[-1]
        site = CallSite(layer, number, self.step, self.step.products, None)
        hooks = saving_hooks(True)
        if hooks is None:
            return site
        return site._replace(start=self._starts.setdefault(hooks[0], site))  # a checkpoint's are its own

    def take(self) -> CallSite:
        """The site of a new product, which is counted."""
        top, step = self.running.stack[-1], self.step
        site = self.here() if saving_hooks(True) else CallSite(top[0], top[1], step, step.products, None)
        top[1] += 1
        step.products += 1
        step.used = True
        return site

    def new_step(self) -> None:
        """Products outside of all layers are counted anew, so that a loop in one block gives each its place again."""
        self.running.stack[0][1] = 0
        if self.step.used:
            self.step = Step(self.step.number + 1)
        if self._tells_weights:
            self.weights.forget()

    def alike(self, layer: nn.Module, other: nn.Module) -> None:
        """Call a layer by the name of another, which stands where it does."""
        self._names.alike(layer, other)

    def again(self, start: CallSite) -> Callable[[], None]:
        """Go back to where a checkpoint began, to run it again; what is returned undoes that."""
        stack = self.running.stack
        depth, step, products = len(stack), self.step, start.step.products
        stack.append([start.layer, start.number])
        self.step = start.step
        self.step.products = start.serial
        follows = self.follow_modules()

        def undo() -> None:
            if follows:
                self.leave_modules()
            del stack[depth:]
            self.step.products, self.step = products, step

        return undo

    def follow_modules(self) -> bool:
        """Follow calls of modules from here on; False where they are followed already."""
        if self._hooks:
            return False
        before = modules.register_module_forward_pre_hook(self._enter)
        self._hooks = before, modules.register_module_forward_hook(self._leave, always_call=True)
        return True

    def leave_modules(self) -> None:
        """Follow them no more."""
        hooks, self._hooks = self._hooks, ()
        for hook in hooks:
            hook.remove()

    def _enter(self, layer: nn.Module, args: Any) -> None:
        stack = self.running.stack
        if len(stack) == 1 or layer not in self._names:
            with self.lock:
                new = self._names.add(layer)
                for listener in self._listeners if new else ():
                    listener(new)
        if self._tells_weights:
            for parameter in layer._parameters.values():
                if parameter is not None:
                    self.weights.add(parameter)
        if saving_hooks(True) is not None:
            self.here()  # a checkpoint that begins with this call begins outside of the layer
        stack.append([self._names.of[layer], 0])

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        if len(self.running.stack) > 1:
            self.running.stack.pop()
