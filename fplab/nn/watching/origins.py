"""What a module's output is made of, to tell where an infinity or a NaN came in."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .tensors import tensors_in

Array = np.ndarray[Any, Any]
INFINITY = 0x7F800000  # in float32 bits
SMALL = 1024.0  # no format of 16 bits overflows among values below it
ROOT = "model"  # how the outermost module is called, whose name is empty


class Ingredient(NamedTuple):
    """A tensor that may have gone into a module's output, by its name in the model and the layer that holds it."""

    kind: str
    layer: str
    tensor: str
    value: torch.Tensor


Ingredients = Callable[[], Iterator[Ingredient]]


def nothing() -> Iterator[Ingredient]:
    """No ingredients."""
    return iter(())


def ingredients(model: nn.Module, layer: str, module: nn.Module, given: Any, output: Any) -> Iterator[Ingredient]:
    """What a module of a model that has run, called ``layer``, may have its output from.

    First its floating-point weights and buffers, then those of the whole model, which functions called before it may
    have used, then its inputs. An input that was changed in place, or passed on, is the output itself and left out.
    """
    names = {id(value): name for name, value in (*model.named_parameters(), *model.named_buffers())}
    for owner in (module, model):
        for kind, held in (("weights", owner.parameters()), ("buffers", owner.buffers())):
            for value in held:
                if value.is_floating_point() or value.is_complex():
                    name = names.get(id(value), layer)
                    yield Ingredient(kind, name.rpartition(".")[0] or ROOT, name, value)
    made = {_memory(t) for t in tensors_in(output)}
    for value in tensors_in(given):
        if _memory(value) not in made:
            yield Ingredient("input", layer, f"the input of {layer}", value)


def _memory(tensor: torch.Tensor) -> int:
    """Where a tensor's values lie; each its own place where that cannot be told."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def broken(bits: Array) -> Array:
    """Which of float32 bits (n,) are infinite or NaN."""
    found: Array = (bits & 0x7FFFFFFF) >= INFINITY
    return found


def masks(bits: Array) -> bool:
    """Whether float32 bits (n,) are a mask or log-probabilities, where -inf is meant: none positive and no NaN."""
    values = bits.view(np.float32)
    return bool((values <= 0).all())  # False for NaN


def only_below(bits: Array) -> bool:
    """Whether float32 bits (n,) hold minus infinity alone among numbers too small to have overflowed: a mask, log 0."""
    values = bits.view(np.float32)
    finite = values[np.isfinite(values)]
    return bool((values[broken(bits)] == -np.inf).all() and (np.abs(finite) < SMALL).all())
