"""The first infinity or NaN of a run: where, when, what it was made of, and what it usually means."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...words import NOTHING, Text, joined
from . import watch_words as words
from .tensors import Array, tensors_in


class NonFinite(NamedTuple):
    """A tensor that holds infinities or NaN, the first of its step.

    ``infinite`` and ``nan`` of ``size`` values; ``at``: the flat index of the first of them. ``before``: the step and
    the largest magnitude when this tensor was last seen finite. ``scale``: the loss scale. ``skipped``: whether a loss
    scaler skipped the step, so that nothing was harmed. ``elsewhere``: weights that something else than the
    optimizer changed, or the input of a layer that no module returned. ``below``: a module's output with minus infinity
    alone, as a mask or the logarithm of zero; ``harmless``: and nothing else of its step was infinite or NaN.
    """

    step: int
    kind: str
    layer: str
    tensor: str
    infinite: int
    nan: int
    size: int
    at: int
    before: tuple[int, float] | None
    scale: float
    skipped: bool = False
    elsewhere: bool = False
    below: bool = False
    harmless: bool = False

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Text:
        """What happened, as a sentence."""
        counts = ((self.infinite, words.INFINITE), (self.nan, words.NAN))
        result = joined((word.fill(n=n) for n, word in counts if n), words.AND)
        tensor, before = words.tensor(self.tensor), self.before
        own = self.kind in ("input", "loss")
        return words.EVENT.fill(
            step=self.step,
            what=tensor if own else words.WHOSE.fill(kind=words.kind(self.kind), tensor=tensor),
            values=words.OF_VALUES.fill(found=result, size=self.size),
            was=words.WAS.fill(step=before[0], most=before[1]) if before else NOTHING,
            ended=words.STEP_SKIPPED if self.skipped else NOTHING,
        )

    @property
    def cause(self) -> str:
        """The likely cause, and what to do."""
        return str(self.reason)

    @property
    def reason(self) -> Text:
        """The cause in both languages."""
        if self.kind in ("activation gradients", "weight gradients") and self.scale > 1:
            return words.SCALE_TOO_LARGE.fill(scale=power(self.scale))
        if self.kind == "loss":
            return words.LOSS_BREAKS.fill(scale=power(self.scale))
        if self.elsewhere:
            return words.CHANGED if self.kind == "weights" else words.NO_MODULE
        if self.below:
            return words.MASK if self.harmless else words.LOG_OF_ZERO
        if self.kind == "activations" and not self.infinite:
            return words.NO_INFINITY
        return words.CAUSES.get(self.kind, words.OF_A_STATE)


def power(scale: float) -> str:
    """A scale as a power of two where it is one.

    >>> power(65536.0), power(1.0), power(3.0)
    ('2^16', '1', '3')
    """
    exponent = scale.hex().partition("p")[2]
    exact = scale > 0 and scale == 2.0 ** int(exponent or 0)
    return f"2^{int(exponent)}" if exact and scale != 1 else f"{scale:g}"


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
        for kind, tensors in (("weights", owner.parameters()), ("buffers", owner.buffers())):
            for value in tensors:
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
    result: Array = (bits & 0x7FFFFFFF) >= INFINITY
    return result


def masks(bits: Array) -> bool:
    """Whether float32 bits (n,) are a mask or log-probabilities, where -inf is meant: none positive and no NaN."""
    values = bits.view(np.float32)
    return bool((values <= 0).all())  # False for NaN


def only_below(bits: Array) -> bool:
    """Whether float32 bits (n,) hold minus infinity alone among numbers too small to have overflowed: a mask, log 0."""
    values = bits.view(np.float32)
    finite = values[np.isfinite(values)]
    return bool((values[broken(bits)] == -np.inf).all() and (np.abs(finite) < SMALL).all())
