"""From any torch module to its tensors; on the meta device a module of any size costs nothing."""

import re

from torch import nn
from torch.nn.parameter import UninitializedParameter

from ..errors import LabError
from .models import Model, Tensor

LAYER = re.compile(r"(?:^|\.)(\d+)\.")


def from_module(module: nn.Module) -> Model:
    """The parameters that are trained, grouped into layers, and the bytes of everything else the module registers.

    A tensor whose dotted name holds a number belongs to the layer of that number ("h.3.mlp.weight" to layer 3), if
    tensors of two layers or more share the name in front of it; tensors before the first layer are the embedding, the
    others the head. A parameter that two places share counts once; one that the embedding shares with the head is tied,
    and a pipeline's last stage copies it. Frozen parameters have no gradient and no state: they count as buffers.
    """
    if not any(True for _ in module.parameters()):
        raise LabError(f"{type(module).__name__} has no parameters; there is nothing to estimate.")
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise LabError(f"{type(module).__name__} has lazy parameters without a shape yet; run it once before.")
    named = [(name, p) for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]
    frozen = [p for p in module.parameters() if not p.requires_grad]
    stack = _stack([name for name, _ in named])
    embeddings = [name for name, part in module.named_modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    embedding: list[Tensor] = []
    layers: dict[str, list[Tensor]] = {}
    head: list[Tensor] = []
    known: dict[int, Tensor] = {}
    tied: list[Tensor] = []
    for name, p in named:
        if id(p) in known:
            if layers and known[id(p)] in embedding and not _numbered(name, stack):
                tied.append(known[id(p)])
            continue
        linear = p.ndim == 2 and name.endswith("weight") and name.rpartition(".")[0] not in embeddings
        known[id(p)] = tensor = Tensor(name, tuple(p.shape), None, linear)
        if number := _numbered(name, stack):
            layers.setdefault(number, []).append(tensor)
        else:
            (head if layers else embedding).append(tensor)
    buffers = sum(t.numel() * t.element_size() for t in (*frozen, *module.buffers()))
    groups = tuple(tuple(group) for group in layers.values())
    if not groups:
        groups, embedding = (tuple(embedding),), []
    embedding.sort(key=lambda tensor: tensor not in tied)  # a tied one comes first
    return Model(type(module).__name__, tuple(embedding), groups, tuple(head), bool(tied), buffers)


def _numbered(name: str, stack: str | None) -> str | None:
    """The number of the layer that a tensor belongs to, if it does."""
    place = LAYER.search(name)
    return place[1] if stack is not None and place is not None and name.startswith(stack) else None


def _stack(names: list[str]) -> str | None:
    """What stands in front of the number in the names of layers: the prefix with the most tensors and two numbers."""
    numbers_of: dict[str, list[str]] = {}
    for name in names:
        if place := LAYER.search(name):
            numbers_of.setdefault(name[: place.start(1)], []).append(place[1])
    several = {prefix: numbers for prefix, numbers in numbers_of.items() if len(set(numbers)) > 1}
    return max(several, key=lambda prefix: len(several[prefix]), default=None)
