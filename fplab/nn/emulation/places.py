"""Where an emulation is: the layer that runs, its products so far, the step, and the checkpoint around them.

A checkpoint forgets what a region computed and runs it again in the backward pass. It must then get the bits that it
had: so a product has a place, the same when it runs again, and scales that it was given once are remembered by it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as modules

from .. import bits
from ..layers import Names

Scales = dict[tuple[int, str], float]  # by the number of the product in its step, and the operand


def saved_through() -> Any:
    """The pair of functions through which autograd saves tensors now, as under a checkpoint; None without."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class Step:
    """One step: how many products its forward passes have had, and the scales that their operands were given.

    ``used``: whether it had any; a step that had none is the next one still.
    """

    def __init__(self, number: int, used: bool = False) -> None:
        self.number, self.used, self.products = number, used, 0
        self.scales: Scales = {}
        self.amaxes: dict[str, float] = {}  # delayed scaling's, by role


class Place(NamedTuple):
    """Of a product: its layer, its number there, its step and its number in that.

    ``start``: of the first operation in the checkpoint around it; None outside of all. ``order``: of the derivative, 1
    for what a first backward pass records, and 256 more for each time that the node ran before. ``weighted``: whether
    it multiplied by a weight; None is not known.
    """

    layer: str
    number: int
    step: Step
    serial: int
    start: Place | None
    order: int = 0
    weighted: bool | None = None


class Weights:
    """Which memory holds weights: parameters, and what was made of them alone, such as autocast's copies."""

    def __init__(self) -> None:
        self._seen: dict[int, StorageWeakRef] = {}  # a weak reference keeps its address from being another's

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


class _Running(threading.local):
    """By depth of a thread's module calls: the layer, and its products so far."""

    def __init__(self) -> None:
        self.stack: list[list[Any]] = [["", 0]]


class Places:
    """The layer that is running now in each thread, found by hooks on all modules, and the place of what runs in it.

    ``named``: told a model's parts with their names when it is first called. ``weights``: those that were met, where
    ``tells_weights`` says that somebody asks.
    ``lock``: held while layers are named and products counted, which are all threads'.
    """

    def __init__(self, named: Callable[[list[tuple[str, nn.Module]]], None], tells_weights: bool) -> None:
        self._named, self._tells_weights, self.weights = named, tells_weights, Weights()
        self._running = _Running()
        self.lock = threading.RLock()
        self.step = Step(0, used=True)
        self._names = Names()
        self._starts: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()
        self._watched = False

    @property
    def _stack(self) -> list[list[Any]]:
        return self._running.stack

    def here(self) -> Place:
        """The place of the next product."""
        layer, number = self._stack[-1]
        place = Place(layer, number, self.step, self.step.products, None)
        hooks = saved_through()
        if hooks is None:
            return place
        return place._replace(start=self._starts.setdefault(hooks[0], place))  # a checkpoint's are its own

    def take(self) -> Place:
        """The place of a new product, which is counted."""
        place = self.here()
        self._stack[-1][1] += 1
        self.step.products += 1
        self.step.used = True
        return place

    def new_step(self) -> None:
        """Products outside of all layers are counted anew, so that a loop in one block gives each its place again."""
        self._stack[0][1] = 0
        if self.step.used:
            self.step = Step(self.step.number + 1)
        self.weights.forget()

    @property
    def depth(self) -> int:
        """How many calls of modules are running, plus one."""
        return len(self._stack)

    def alike(self, layer: nn.Module, other: nn.Module) -> None:
        """Call a layer by the name of another, which stands where it does."""
        self._names.alike(layer, other)

    def again(self, start: Place) -> Callable[[], None]:
        """Go back to where a checkpoint began, to run it again; what is returned undoes that."""
        depth, step, products = len(self._stack), self.step, start.step.products
        self._stack.append([start.layer, start.number])
        self.step = start.step
        self.step.products = start.serial
        hooks = ExitStack()
        hooks.enter_context(self.watched())

        def undo() -> None:
            hooks.close()
            del self._stack[depth:]
            self.step.products, self.step = products, step

        return undo

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While calls of modules are followed."""
        if self._watched:
            yield
            return
        before = modules.register_module_forward_pre_hook(self._enter)
        after = modules.register_module_forward_hook(self._leave, always_call=True)
        self._watched = True
        try:
            yield
        finally:
            self._watched = False
            before.remove()
            after.remove()

    def _enter(self, layer: nn.Module, args: Any) -> None:
        stack = self._stack
        if len(stack) == 1 or layer not in self._names:
            with self.lock:
                if new := self._names.add(layer):
                    self._named(new)
        if self._tells_weights:
            for parameter in layer._parameters.values():
                if parameter is not None:
                    self.weights.add(parameter)
        if saved_through() is not None:
            self.here()  # a checkpoint that begins with this call begins outside of the layer
        stack.append([self._names[layer], 0])

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
