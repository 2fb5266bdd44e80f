"""Modules by name: by their path in their model, a model itself by its class and number."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field

from torch import nn


@dataclass(eq=False)
class Names:
    """``of``: the names of modules, parts of a model by their path in it, the model itself by its class."""

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
        found = []
        for path, layer in root.named_modules():
            if layer in self.of:
                continue
            if path and path in self._paths:  # of another model's part
                path = f"{self.of[root]}.{path}"
            elif not path:
                self._classes[type(layer).__name__] += 1
                path = f"{type(layer).__name__} {self._classes[type(layer).__name__]}"
            self._paths.add(path)
            self.of[layer] = path
            found.append((path, layer))
        return found
