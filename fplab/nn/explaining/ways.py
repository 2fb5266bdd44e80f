"""A way of computing a model: what :func:`fplab.nn.emulate` is asked for, a context, another model, so many rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from ...errors import LabError, integer, unknown
from ..emulation import Emulation, emulate

OWN = ("model", "around", "rows")
SETTINGS = tuple(inspect.signature(emulate).parameters)


class Way:
    """One of the two ways that :func:`explain` compares.

    ``settings``: of :func:`fplab.nn.emulate` (``gpu="H100", inputs="bf16"``); none is torch's own arithmetic. Every run
    begins with ``state``, which delayed scaling needs.
    ``model``: another model with layers of the same names, such as ``copy.deepcopy(model).half()``; None is the model
    that is explained. ``around``: makes a context manager that is open while layers compute in this way, such as
    ``lambda: torch.autocast("cpu", torch.bfloat16)``. ``rows``: layers without layers inside them are called with so
    many rows of the batch at a time, but for recurrent ones, whose states have no rows first.

    >>> Way(gpu="H100", inputs="bf16")
    Way(gpu='H100', inputs='bf16')
    """

    def __init__(
        self, *, model: nn.Module | None = None, around: Callable[[], AbstractContextManager[Any]] | None = None,
        rows: int | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        for name in settings:
            if name not in SETTINGS:
                raise unknown("setting of a way", name, [*SETTINGS, *OWN])
        if model is not None and not isinstance(model, nn.Module):
            raise LabError(f"model={type(model).__name__} in a way; pass a torch.nn.Module.")
        if around is not None and not callable(around):
            raise LabError(f"around={type(around).__name__}; pass a function that makes a context manager.")
        if isinstance(settings.get("state"), Emulation):
            settings["state"] = settings["state"].state_dict()  # as it is now; every run begins with it
        self.model, self.around, self.settings = model, around, settings
        self.rows = None if rows is None else integer("rows", rows, 1, 1 << 30)
        self.emulation()  # refuses what the GPU has no unit for

    def emulation(self) -> Emulation | None:
        """A new emulation, as every run needs one of its own; None for torch's own arithmetic."""
        return emulate(**self.settings) if self.settings else None

    @property
    def parts(self) -> dict[str, Any]:
        """All that is not left out, by name."""
        own = {name: getattr(self, name) for name in OWN}
        return {**self.settings, **{name: value for name, value in own.items() if value is not None}}

    def having(self, name: str, other: Way) -> Way:
        """This way with one part of another."""
        parts = {**self.parts, **({name: other.parts[name]} if name in other.parts else {})}
        return Way(**{key: value for key, value in parts.items() if key != name or name in other.parts})

    def said(self, name: str) -> str:
        """One part as a user would write it."""
        value = self.parts.get(name)
        if name == "state" and value is not None:
            return f"{{'step': {value['step']}, ...}}"
        return type(value).__name__ if isinstance(value, nn.Module) else f"{value!r}" if name in self.parts else "-"

    def __repr__(self) -> str:
        return f"Way({', '.join(f'{name}={self.said(name)}' for name in self.parts)})"


def way_of(name: str, given: Way | Mapping[str, Any]) -> Way:
    """A way, or the one whose parts a mapping names."""
    if isinstance(given, Way):
        return given
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return Way(**given)
    raise LabError(f"{name} is a {type(given).__name__}; pass Way(gpu='H100') or a mapping such as {{'gpu': 'H100'}}.")


def different(a: Way, b: Way) -> list[str]:
    """The parts in which two ways differ."""
    return [name for name in dict.fromkeys((*a.parts, *b.parts)) if not _same(a.parts.get(name), b.parts.get(name))]


def _same(x: Any, y: Any) -> bool:
    return x is y or (type(x) is type(y) and not isinstance(x, nn.Module) and bool(x == y))
