"""Which recipe and which plan a layer has: by patterns of names, and what a recipe leaves in high precision."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import nn

from ...errors import unknown
from ...tensorcore.plan import AnyPlan
from ..recipes import Recipe


class Choice(NamedTuple):
    """Of a layer. ``high``: whether its recipe leaves all of its products high."""

    recipe: Recipe | None
    plan: AnyPlan
    high: bool = False


def matches(name: str, patterns: Iterable[str]) -> list[str]:
    """The patterns that a layer, or a module around it, matches."""
    parts = name.split(".")
    around = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
    return [pattern for pattern in patterns if any(fnmatch.fnmatchcase(n, pattern) for n in around)]


class Choices:
    """The choices of all layers whose names are known so far."""

    def __init__(self, recipe: Recipe | None, plan: AnyPlan, layers: Mapping[str, Recipe | AnyPlan]) -> None:
        self._recipe, self._plan, self._layers = recipe, plan, layers
        self._names: list[str] = []
        self._high: set[str] = set()  # by type, or among the last of a model
        self._found: dict[str, Choice] = {}

    def add(self, named: list[tuple[str, nn.Module]]) -> None:
        """A model's parts in their order, the model itself first."""
        self._names += [name for name, _ in named]
        self._found.clear()
        if self._recipe is None:
            return
        inside = [name for name, part in named if isinstance(part, self._recipe.keep_types)]
        self._high.update(name for name, _ in named if any(name == n or name.startswith(f"{n}.") for n in inside))
        weighted = [name for name, part in named[1:] if _multiplies(part)]
        count = round(self._recipe.keep_last * len(weighted))
        self._high.update(weighted[len(weighted) - count :])

    def of(self, layer: str) -> Choice:
        """The choice of a layer: the first recipe, and the first plan, whose pattern it or a module around it matches.

        What a recipe keeps high holds for those that no pattern gives a recipe of their own.
        """
        if layer not in self._found:
            given = [self._layers[pattern] for pattern in matches(layer, self._layers)]
            plan = next((one for one in given if isinstance(one, AnyPlan)), self._plan)
            own = next((one for one in given if isinstance(one, Recipe)), None)
            kept = own is None and self._recipe is not None and (
                layer in self._high or bool(matches(layer, self._recipe.keep))
            )  # fmt: skip
            self._found[layer] = Choice(own or self._recipe, plan, kept)
        return self._found[layer]

    def demand_matched(self) -> None:
        """An error for a pattern that no layer so far matches."""
        for pattern in (*self._layers, *(self._recipe.keep if self._recipe else ())):
            if not any(matches(name, [pattern]) for name in self._names):
                raise unknown("layer", pattern, self._names[:40] or ["none was called"], self._names)


def _multiplies(layer: nn.Module) -> bool:
    """Whether a layer has weights of its own that a product takes."""
    own = [p for p in layer.parameters(recurse=False) if not nn.parameter.is_lazy(p)]
    return any(p.dim() > 1 for p in own) and not isinstance(layer, nn.Embedding | nn.EmbeddingBag)
