"""Which layers of a model are its output head, its routers and its embeddings, and which modules are its blocks.

An output head is what the model itself gives as one (``get_output_embeddings()``, ``get_classifier()``), a layer that
shares its weight with an embedding, one that has a name that libraries give it (:mod:`fplab.nn.scopes`), or one outside
of the blocks whose weight has the shape of the largest embedding; where none is known so, and the model has more than
one layer with weights, the last one after the blocks that takes part. A router is known by its name, by its class, or
by having a row of weights for each of the experts beside it; an embedding, other than ``nn.Embedding``, which
multiplies nothing, by its name or class.

Blocks are modules with layers inside that stand in one list: all elements of a ``ModuleList`` or ``ModuleDict``, those
of one class in a ``Sequential``; the outermost such lists, except of experts. "Last" is the order of ``named_modules``.
What is called by itself, and not by the model around it, is a model of its own, and no part.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from torch import nn

from ...words import Text, say
from .. import scopes
from ..scopes import EMBEDDING, OUTPUT_HEAD, ROUTER

BY_METHOD = say("{model}.{method}() gives it")
BY_WEIGHT = say("its weight is that of {embedding}")
BY_NAME = say("called {name!r}, as in {library}")
BY_CLASS = say("class {kind}, as in {library}")
BY_SHAPE = say("its weight has the shape of {embedding}'s")
BY_PLACE, LAST = say("the last layer, after all blocks"), say("the last layer")
BY_EXPERTS = say("a row for each of the {n} experts beside it")

Names = Mapping[str, tuple[str, ...]]  # by library


class Part(NamedTuple):
    """One of :data:`fplab.nn.scopes.PARTS`, and by what it is known."""

    name: str
    why: Text


def multiplies(layer: nn.Module) -> bool:
    """Whether a layer has weights of its own that a product takes."""
    own = [p for p in layer.parameters(recurse=False) if not nn.parameter.is_lazy(p)]
    return any(p.dim() > 1 for p in own) and not isinstance(layer, nn.Embedding | nn.EmbeddingBag)


def is_of(layer: nn.Module, classes: Iterable[str]) -> bool:
    """Whether a layer's class, or one that it inherits from, has one of the names, or fits a pattern."""
    names = [cls.__name__ for cls in type(layer).__mro__]
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in classes)


def parts(root: nn.Module, takes_part: Callable[[nn.Module], bool]) -> dict[str, Part]:
    """By path in the model, what is a part of it that has a name, with all that is inside.

    ``takes_part``: whether a layer's products are a recipe's, by its class.
    """
    layers = dict(root.named_modules())
    result: dict[str, Part] = {}
    several = sum(map(multiplies, layers.values())) > 1
    for path, name, why in (*_routers(layers), *_embeddings(layers), *_heads(layers, blocks(root), takes_part)):
        if path and (several or name != OUTPUT_HEAD):
            for inside in layers:
                if inside == path or inside.startswith(f"{path}."):
                    result.setdefault(inside, Part(name, why))
    return result


def blocks(root: nn.Module) -> list[str]:
    """The paths of a model's blocks, in order."""
    result: list[str] = []
    for path, layer in root.named_modules():
        around = any(f"{path}.".startswith(f"{block}.") for block in result)
        if not around and not any(_called(path, names) for names in scopes.EXPERTS.values()):
            result += [f"{path}.{name}" if path else name for name in _elements(layer)]
    return result


def _elements(layer: nn.Module) -> list[str]:
    """The names of a list's elements that are blocks."""
    composite = {
        name: child
        for name, child in layer.named_children()
        if any(multiplies(inside) for inside in child.modules() if inside is not child)
    }
    if isinstance(layer, nn.ModuleList | nn.ModuleDict):
        return [*composite] if len(composite) == len(layer) else []
    if not isinstance(layer, nn.Sequential):
        return []
    kinds = Counter(type(child) for child in composite.values() if not isinstance(child, nn.Sequential))
    return [name for name, child in composite.items() if kinds[type(child)] > 1]


def _called(path: str, names: Iterable[str]) -> str:
    """The last names of a path if they are one of those, else ""."""
    for pattern in names:
        last = ".".join(path.split(".")[-1 - pattern.count(".") :])
        if fnmatch.fnmatchcase(last, pattern):
            return last
    return ""


def _known(layers: Mapping[str, nn.Module], part: str, names: Names, classes: Names) -> Iterator[tuple[str, str, Text]]:
    """The layers of a part that libraries' names or classes tell."""
    for path, layer in layers.items():
        for library, patterns in names.items():
            if name := _called(path, patterns):
                yield path, part, BY_NAME.fill(name=name, library=library)
        for library, patterns in classes.items():
            if is_of(layer, patterns):
                yield path, part, BY_CLASS.fill(kind=type(layer).__name__, library=library)


def _routers(layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, str, Text]]:
    yield from _known(layers, ROUTER, scopes.ROUTERS, scopes.ROUTER_CLASSES)
    for path, layer in layers.items():
        children = dict(layer.named_children())
        for name in (name for names in scopes.EXPERTS.values() for name in names if name in children):
            count = _count(children.pop(name))
            for beside, child in children.items():
                if any(p.dim() == 2 and len(p) == count for p in child.parameters(recurse=False)):
                    yield f"{path}.{beside}" if path else beside, ROUTER, BY_EXPERTS.fill(n=count)


def _count(experts: nn.Module) -> int:
    """How many experts a module holds: in a list, or as matrices in one tensor."""
    if isinstance(experts, nn.ModuleList | nn.ModuleDict):
        return len(experts)
    return max((len(p) for p in experts.parameters(recurse=False) if p.dim() == 3), default=0)


def _embeddings(layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, str, Text]]:
    yield from _known(layers, EMBEDDING, scopes.EMBEDDINGS, scopes.EMBEDDING_CLASSES)


def _heads(
    layers: Mapping[str, nn.Module], within: list[str], takes_part: Callable[[nn.Module], bool]
) -> Iterator[tuple[str, str, Text]]:
    tables = {path: layer.weight for path, layer in layers.items() if isinstance(layer, nn.Embedding)}
    largest = max(tables, key=lambda path: len(tables[path]), default="")
    known = [*_by_method(layers), *_known(layers, OUTPUT_HEAD, scopes.HEADS, {})]
    after = list(layers).index(within[-1]) if within else -1
    last = ""
    for place, (path, layer) in enumerate(layers.items()):
        if not multiplies(layer):
            continue
        own = list(layer.parameters(recurse=False))
        inside = any(path.startswith(f"{block}.") for block in within)
        for name, table in tables.items():
            if any(p is table for p in own):
                known.append((path, OUTPUT_HEAD, BY_WEIGHT.fill(embedding=name)))
            elif name == largest and takes_part(layer) and not inside and any(p.shape == table.shape for p in own):
                known.append((path, OUTPUT_HEAD, BY_SHAPE.fill(embedding=name)))
        if takes_part(layer) and not inside and place > after:
            last = path
    yield from known
    if last and not known:
        yield last, OUTPUT_HEAD, BY_PLACE if within else LAST


def _by_method(layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, str, Text]]:
    """What models say that their heads are."""
    paths = {layer: path for path, layer in layers.items()}
    for layer in layers.values():
        for method in scopes.HEAD_METHODS.values():
            with suppress(AttributeError, NotImplementedError, TypeError):
                given = getattr(layer, method)()
                for head in given if isinstance(given, tuple | list) else (given,):
                    if isinstance(head, nn.Module) and head in paths:
                        yield paths[head], OUTPUT_HEAD, BY_METHOD.fill(model=type(layer).__name__, method=method)
