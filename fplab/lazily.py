"""Packages whose names load when they are first used (PEP 562), and with them torch, numba or whatever they need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

Pair = tuple[Callable[[str], Any], Callable[[], list[str]]]


def lazy(package: str, homes: Mapping[str, Iterable[str]]) -> Pair:
    """A package's ``__getattr__`` and ``__dir__``.

    ``homes``: by module of the package the names that are taken from it; the modules are attributes too.
    """
    where = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in where and name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = import_module(f"{package}.{where.get(name, name)}")
        except ModuleNotFoundError as error:
            from .errors import missing  # not at the top: most packages lack nothing, and are to load fast

            raise missing(error.name) or error from None
        if name in where:
            value = getattr(value, name)
        vars(sys.modules[package])[name] = value
        return value

    def listed() -> list[str]:
        space = vars(sys.modules[package])
        return sorted({*space, *space["__all__"]})

    return load, listed
