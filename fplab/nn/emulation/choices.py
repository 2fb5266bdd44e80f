"""Which recipe and which plan a layer has: by patterns of names; which layers a recipe leaves high, and why."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import nn

from ...errors import unknown
from ...tensorcore.plan import AnyPlan
from ...words import LIST, Text, joined, say
from ..recipes import Recipe
from ..scopes import EMBEDDING, OUTPUT_HEAD, ROUTER, matches
from .model_parts import Part, blocks, is_of, multiplies, parts

NAMES = {OUTPUT_HEAD: say("output head"), ROUTER: say("router"), EMBEDDING: say("embedding")}
BY_PATTERN, BY_TYPE = say("keep={pattern!r}"), say("{kind} is in keep_types")
BY_SHARE = say("one of the last {n} of {all} layers, keep_last={share}")
BY_PART = say("{part} ({why}), which scope {scope} leaves out")
BY_PLACE = {
    "first": say("in the first {n} of {all} blocks, which scope {scope} leaves out"),
    "last": say("in the last {n} of {all} blocks, which scope {scope} leaves out"),
}
BY_CLASS = say("class {kind}; scope {scope} takes {modules}")
OUTSIDE = say("outside of all layers; scope {scope} takes {modules}")
BY_SIZE = say("a weight of {shape}; scope {scope} takes multiples of {multiple}")


class Choice(NamedTuple):
    """Of a layer. ``high``: why its recipe leaves all its products high; ``unfit``: those by weights; None: it takes
    them.
    """

    recipe: Recipe | None
    plan: AnyPlan
    high: Text | None = None
    unfit: Text | None = None


class Choices:
    """The choices of all layers whose names are known so far."""

    def __init__(self, recipe: Recipe | None, plan: AnyPlan, layers: Mapping[str, Recipe | AnyPlan]) -> None:
        self._recipe, self._plan, self._layers = recipe, plan, layers
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._modules: dict[str, weakref.ref[nn.Module]] = {}
        self._recurrent: set[str] = set()  # layers that are one call of cuDNN's
        self._high: dict[str, Text] = {}
        self._found: dict[str, Choice] = {}
        self.alike = None if layers or recipe is not None else Choice(None, plan)  # of all layers

    def add(self, named: list[tuple[str, nn.Module]]) -> None:
        """A model's parts in their order, the model itself first."""
        for name, part in named:
            self._names[part], self._modules[name] = name, weakref.ref(part)
            (self._recurrent.add if isinstance(part, nn.RNNBase) else self._recurrent.discard)(name)
        self._found.clear()
        if self._recipe is None:
            return
        inside = {name: part for name, part in named if isinstance(part, self._recipe.keep_types)}
        for around, part in inside.items():
            why = BY_TYPE.fill(kind=type(part).__name__)
            self._high |= {name: why for name, _ in named if name == around or name.startswith(f"{around}.")}
        weighted = [name for name, part in named[1:] if multiplies(part)]
        count = round(self._recipe.keep_last * len(weighted))
        why = BY_SHARE.fill(n=count, all=len(weighted), share=f"{self._recipe.keep_last:g}")
        self._high |= dict.fromkeys(weighted[len(weighted) - count :], why)
        for path, reason in self._by_scope(named[0][1]):
            self._high.setdefault(self._names[named[0][1].get_submodule(path)], reason)

    def _by_scope(self, root: nn.Module) -> Iterator[tuple[str, Text]]:
        """The paths of the layers that the scope leaves out for what they are in the model, or for where."""
        assert self._recipe is not None
        scope = self._recipe.scope_record

        def takes(layer: nn.Module) -> bool:
            return not scope.modules or is_of(layer, scope.modules)

        layers = dict(root.named_modules())
        result: dict[str, Part] = parts(root, takes) if scope.out else {}
        out = {path: part for path, part in result.items() if part.name in scope.out}
        for path, part in out.items():
            yield path, BY_PART.fill(part=NAMES[part.name], why=part.why, scope=scope)
        if not (scope.first or scope.last):
            return
        every = blocks(root) or [p for p, m in layers.items() if p and p not in out and multiplies(m) and takes(m)]
        ends = {"first": round(scope.first * len(every)), "last": round(scope.last * len(every))}
        for end, n in ends.items():
            why = BY_PLACE[end].fill(n=n, all=len(every), scope=scope)
            for block in every[:n] if end == "first" else every[len(every) - n :]:
                yield from ((path, why) for path in layers if path == block or path.startswith(f"{block}."))

    def of(self, layer: str) -> Choice:
        """The choice of a layer: the first recipe, and the first plan, whose pattern it or a module around it matches.

        What a recipe keeps high, and its scope, hold for those that no pattern gives a recipe of their own.
        """
        if layer not in self._found:
            given = [self._layers[pattern] for pattern in matches(layer, self._layers)]
            plan = next((item for item in given if isinstance(item, AnyPlan)), self._plan)
            own = next((item for item in given if isinstance(item, Recipe)), None)
            high = unfit = None
            if own is None and self._recipe is not None:
                kept = matches(layer, self._recipe.keep)
                high = BY_PATTERN.fill(pattern=kept[0]) if kept else self._high.get(layer)
                unfit = self._unfit(layer)
            self._found[layer] = Choice(own or self._recipe, plan, high, unfit)
        return self._found[layer]

    def flag(self, layer: str, operation: str) -> str:
        """Which of torch's flags says how FP32 is multiplied: "matmul", or of what cuDNN computes "conv" and "rnn"."""
        if operation.startswith("convolution"):
            return "conv"
        return "rnn" if layer in self._recurrent else "matmul"

    def _unfit(self, layer: str) -> Text | None:
        """Why the scope leaves out a layer's products by weights, if by its class or by a weight's size it does."""
        assert self._recipe is not None
        scope, reference = self._recipe.scope_record, self._modules.get(layer)
        module = None if reference is None else reference()
        if scope.modules and (module is None or not is_of(module, scope.modules)):
            why = OUTSIDE if module is None else BY_CLASS.fill(kind=type(module).__name__)
            return why.fill(scope=scope, modules=joined(scope.modules, LIST))
        multiple = math.lcm(scope.multiple, self._recipe.block) if scope.multiple else 1
        for name, weight in () if module is None else module.named_parameters(recurse=False):
            if weight.dim() > 1 and "bias" not in name and any(n % multiple for n in weight.shape[-2:]):
                shape = " x ".join(map(str, weight.shape))
                return BY_SIZE.fill(shape=shape, scope=scope, multiple=multiple)
        return None

    def demand_matched(self) -> None:
        """An error for a pattern that no layer so far matches."""
        names = list(self._modules)
        for pattern in (*self._layers, *(self._recipe.keep if self._recipe else ())):
            if not any(matches(name, [pattern]) for name in names):
                raise unknown("layer", pattern, names[:40] or ["none was called"], names)
