"""Where a product is called: the layer that runs, its products so far, the step, and the checkpoint around them.

A checkpoint forgets what a region computed and runs it again in the backward pass. It must then get the bits that it
had: so a product has a site, the same when it runs again, and scales that it was given once are remembered by it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from .. import bits
from ..tracer import Layers

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


class CallSites(Layers):
    """The layers that are running, and the site of what runs in them.

    ``weights``: those that were met, where ``tells_weights`` says that somebody asks. ``lock``: held while products are
    counted, too.
    """

    def __init__(self, met: Sequence[Callable[[list[tuple[str, nn.Module]]], None]], tells_weights: bool) -> None:
        super().__init__(*met)
        self._tells_weights, self.weights, self.step = tells_weights, Weights(), Step(1)
        self._starts: weakref.WeakKeyDictionary[Any, CallSite] = weakref.WeakKeyDictionary()

    def next(self) -> CallSite:
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
        site = self.next() if saving_hooks(True) else CallSite(top[0], top[1], step, step.products, None)
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

    def again(self, start: CallSite) -> Callable[[], None]:
        """Go back to where a checkpoint began, to run it again; what is returned undoes that."""
        stack = self.running.stack
        depth, step, products = len(stack), self.step, start.step.products
        stack.append([start.layer, start.number])
        self.step = start.step
        self.step.products = start.serial
        follows = self.follow()

        def undo() -> None:
            if follows:
                self.unfollow()
            del stack[depth:]
            self.step.products, self.step = products, step

        return undo

    def _enter(self, layer: nn.Module, args: Any) -> None:
        if self._tells_weights:
            for parameter in layer._parameters.values():
                if parameter is not None:
                    self.weights.add(parameter)
        if saving_hooks(True) is not None:
            self.next()  # a checkpoint that begins with this call begins outside of the layer
        super()._enter(layer, args)
