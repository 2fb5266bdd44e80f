"""Modules by name: by their path in their model, a model itself by its class and number."""

from __future__ import annotations

import weakref
from collections import Counter

from torch import nn


class Names:
    """Modules by name: the parts of a model by their path in it, the model itself by its class."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._classes: Counter[str] = Counter()
        self._paths: set[str] = set()

    def __contains__(self, layer: nn.Module) -> bool:
        return layer in self._names

    def __getitem__(self, layer: nn.Module) -> str:
        return self._names[layer]

    def alike(self, layer: nn.Module, other: nn.Module) -> None:
        """Give a layer the name of another."""
        self._names[layer] = self._names[other]

    def add(self, root: nn.Module) -> list[tuple[str, nn.Module]]:
        """Name what was not called before; the new ones."""
        found = []
        for path, layer in root.named_modules():
            if layer in self._names:
                continue
            if path and path in self._paths:  # of another model's part
                path = f"{self._names[root]}.{path}"
            elif not path:
                self._classes[type(layer).__name__] += 1
                path = f"{type(layer).__name__} {self._classes[type(layer).__name__]}"
            self._paths.add(path)
            self._names[layer] = path
            found.append((path, layer))
        return found
