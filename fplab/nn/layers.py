"""Which layer is running, as torch calls modules: by its path in its model, a model itself by its class and number."""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.nn.modules import module as modules


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


class Layers:
    """The modules that are running, innermost last; ``leaving`` is told of every module's output, with its name."""

    def __init__(self) -> None:
        self.names = Names()
        self._running: list[str] = []

    @property
    def here(self) -> str:
        """The innermost layer, or "" outside of all."""
        return self._running[-1] if self._running else ""

    def followed(self, undo: ExitStack) -> None:
        """Follow every module's calls until ``undo`` is closed."""
        undo.callback(modules.register_module_forward_pre_hook(self._enter).remove)
        undo.callback(modules.register_module_forward_hook(self._leave, always_call=True).remove)

    def leaving(self, name: str, output: Any) -> None:
        """A layer has given its output."""

    def _enter(self, layer: nn.Module, args: Any) -> None:
        if not self._running or layer not in self.names:
            self.names.add(layer)
        self._running.append(self.names[layer])

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        if self._running:
            self.leaving(self._running.pop(), output)
