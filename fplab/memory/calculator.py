"""``estimate``: bytes by kind and rank of a model that is trained, or run, in a given way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ..errors import LabError, door, integer, quotes_call, summary, unknown
from . import pipeline, recipes, report
from .models import LARGEST, Model, Tensor, Transformer, preset, tensors_of
from .options import Options, check_effects, check_transformer
from .ranks import Counted, with_fewest, with_options

if TYPE_CHECKING:
    from torch import nn

NAMES = tuple(f.name for f in dataclasses.fields(Options))


@dataclass(frozen=True)
class Estimate(Counted):
    """The memory of a run, as a table and as JSON too."""

    def table(self, columns: int | None = None) -> str:
        """The table that ``fplab memory`` prints, for a terminal of so many ``columns``."""
        return report.table(self, columns)

    def to_json(self) -> str:
        return report.as_json(self)


@quotes_call
def estimate(
    model: str | int | Transformer | Model | nn.Module, *, inputs: Any = None,
    loss: Callable[[Any], Any] | None = None, **options: Any,
) -> Estimate:  # fmt: skip
    """Bytes by kind and rank.

    ``model``: the name of a preset, a :class:`Transformer`, a torch module (on the meta device it costs nothing), a
    :class:`Model` of tensors, or a number of parameters (model states alone). ``options``: the fields of
    :class:`Options`. ``inputs``: for a module, the arguments of its forward pass (a tensor, a tuple, or a dict by
    name); a step is then traced without computing, in the precision's format: what it saves and what lives beside that
    for a moment, such as the gradients of logits. ``loss``: for a module with inputs, a function from its output to the
    loss; without it the output is the loss, or has it as ``.loss``, or the table says that no loss was counted.
    Raises LabError for what cannot be run.

    >>> estimate(7_500_000_000, gpus=64, zero=3).total
    1875000000
    >>> estimate("llama3-8b", gpus=8, zero=3, optimizer="adamw8bit").fullest.device["states"]
    2038933520
    """
    if wrong := [name for name in options if name not in NAMES]:
        raise unknown("option", wrong[0], NAMES)
    o = Options(**options)
    tensors, c = described(model)
    traced = None
    if inputs is not None:
        check_traced(model, o)
    if loss is not None and (inputs is None or not callable(loss)):
        raise LabError(f"loss={summary(loss)} is not possible; allowed: a function from a module's output to its loss, "
                       "with inputs=.")  # fmt: skip
    check_effects(o, c is not None)
    if c is None:
        o = for_tensors(tensors, o)
        if inputs is not None:
            from .step import traced_step

            traced = traced_step(cast("nn.Module", model), inputs, loss, recipes.precision(o.precision))
    else:
        c = c if o.flash is None else replace(c, flash=o.flash)
        check_transformer(c, o)
    return with_options(Estimate(tensors, c, o, (), traced))


def described(model: Any) -> tuple[Model, Transformer | None]:
    """The tensors of whatever was given, and its configuration where it has one."""
    if isinstance(model, str):
        model = preset(model)
    if isinstance(model, Transformer):
        return tensors_of(model), model
    if isinstance(model, Model):
        return model, None
    if is_module(model):
        from .modules import from_module

        return from_module(model), None
    if hasattr(model, "__index__") and not isinstance(model, bool):
        count = integer("parameters", model, 1, LARGEST)
        return Model(f"{count:,} parameters", (), ((Tensor("all", (count,)),),), (), states_only=True), None
    kinds = "a preset's name, a Transformer, a torch module, a Model, or a number of parameters"
    raise LabError(f"model={summary(model)} is not possible; allowed: {kinds}.")


def is_module(model: Any) -> bool:
    """Whether it is a torch module, not the class of one; without importing torch."""
    return hasattr(model, "named_parameters") and not isinstance(model, type)


def check_traced(model: Any, o: Options) -> None:
    """Whether a forward pass can be traced, and all options have a part in it."""
    if not is_module(model):
        raise LabError("inputs= are for a torch module; other activations follow from micro_batch= and sequence=.")
    if recipes.precision(o.precision).operands:
        raise LabError(f"torch saves no 8-bit operands that could be traced; precision={o.precision!r} has a formula.")
    if o.gpus != o.data:
        raise LabError("inputs= traces a whole forward pass; with it, tensor and pipeline must be 1.")
    unused = {"recompute": "none", "recipe": None, "flash": None, "sequence": None, "micro_batch": 1}
    for name, nothing in unused.items():
        if (value := getattr(o, name)) != nothing:
            raise LabError(f"{name}={value!r} does not change a pass that is traced; the module and inputs= say it.")


def for_tensors(model: Model, o: Options) -> Options:
    """The options for a model of which only tensors are known."""
    if o.inference is not None:
        raise LabError("inference needs a configuration, for the keys and values; give a preset or a Transformer.")
    if o.tensor > 1 and not any(t.split is not None for t in model.tensors):
        raise LabError(
            f"tensor={o.tensor} needs to know which axis of each tensor is divided; give a Transformer, "
            "or a Model whose tensors have a split."
        )
    pipeline.check_schedule(o.schedule, len(model.layers), o.pipeline, o.micro_batches, o.chunks)
    return o


@door
def smallest(
    model: Any, capacity: int, *, step: int | None = None, most: int = 2**20, **options: Any
) -> Estimate | None:
    """The estimate with the fewest GPUs of ``capacity`` bytes that hold the model; None where no number does.

    Only data parallelism grows, so without ZeRO one number of GPUs fits or none does. ``step``: GPUs come in this many
    (None: in whole replicas of ``tensor * pipeline``); ``most``: no more than this many.
    ``options``: as :func:`estimate`'s; with ``inputs=`` a module's activations are traced, once.

    >>> smallest("llama3-8b", 80 * 10**9, zero=3, recompute="full").options.gpus
    3
    """
    capacity = integer("capacity", capacity, 0, LARGEST * LARGEST)
    each = math.prod(integer(name, options.get(name, 1), 1, LARGEST) for name in ("tensor", "pipeline"))
    step = integer("step", each if step is None else step, 1, LARGEST)
    if step % each:
        raise LabError(f"step={step} is no multiple of tensor*pipeline = {each}.")
    options.pop("gpus", None)
    return with_fewest(estimate(model, **options, gpus=each), capacity, step, most)
