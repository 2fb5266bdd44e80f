"""How a model is run: devices, sharding, batch, precision. A request that makes no sense is refused with the rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import LabError, door, own_integer, unknown
from ..formats import FormatName, spelt
from ..words import part, say
from .activations import RECOMPUTE
from .models import Transformer, flag, own_size, tensors_of
from .pipeline import check_schedule
from .recipes import Optimizer, Precision, QuantisedOperands, optimizer, precision, quantised_operands
from .sharding import PARTITIONS
from .units import MIB

if TYPE_CHECKING:
    from ..nn.recipes import Recipe

OFFLOADS = ("none", "optimizer", "parameters", "chunks")
INFERENCE = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "int4": 0.5}
FLAGS = ("sequence_parallel", "step_counts", "bucket_views")
TRAINING = (
    "zero", "partition", "sequence_parallel", "micro_batches", "precision", "optimizer", "block", "step_counts",
    "recompute", "recipe", "offload", "chunk_elements", "chunk_budget", "bucket", "bucket_views",
)  # fmt: skip
EFFECTS: dict[str, tuple[Callable[[Options], bool], str]] = {  # an option, where it has an effect, and in words
    "partition": (lambda o: o.zero > 0, part("how ZeRO divides tensors; with zero=0 nothing is divided")),
    "schedule": (lambda o: o.pipeline > 1 and o.inference is None, part("of training in a pipeline, pipeline >= 2")),
    "block": (lambda o: optimizer(o.optimizer).bits == 8, part("of 8-bit optimizer states")),
    "step_counts": (
        lambda o: optimizer(o.optimizer).counts,
        part("of optimizers that keep one, torch's Adam and AdamW"),
    ),
    "chunk_elements": (lambda o: o.offload == "chunks", part("of offload='chunks'")),
    "chunk_budget": (lambda o: o.offload == "chunks", part("of offload='chunks'")),
    "bucket": (
        lambda o: o.zero in (1, 2) or o.offload == "optimizer",
        part("of zero=1, zero=2 and offload='optimizer'"),
    ),
    "bucket_views": (lambda o: o.zero == 0, part("of DDP, zero=0")),
}
# What no number of parameters and no tensors can use.
OF_LAYERS = ("micro_batch", "sequence", "flash", "recompute", "recipe")
POSITIVE = ("gpus", "tensor", "pipeline", "chunks", "micro_batch", "micro_batches", "block", "chunk_elements")


@door
@dataclass(frozen=True)
class Options:
    """One training (or inference) setting.

    ``gpus``: all of them; data parallelism takes ``gpus / (tensor * pipeline)`` of them. ``zero``: 0 (plain data
    parallelism, DDP) to 3. ``partition``: how ZeRO divides tensors ("flat", "rows", "tensors"; see
    :mod:`fplab.memory.sharding`). ``tensor``, ``pipeline``: degrees; ``sequence_parallel``: Megatron's, along with
    tensor parallelism. ``schedule``: "gpipe", "1f1b", "interleaved" with ``chunks`` model chunks on each stage.
    ``micro_batch``: sequences in one forward pass on one data-parallel rank; ``micro_batches``: of them in one step.
    ``sequence``: tokens (None: the model's). ``flash``: attention without s-by-s matrices (None: as the model says).
    ``precision``, ``optimizer``: names or records of :mod:`fplab.memory.recipes`; ``block``: of 8-bit states;
    ``step_counts``: count the 4 bytes a tensor that torch's Adam keeps. ``recompute``: "none", "selective", "full".
    ``recipe``: the name or record of a recipe of :mod:`fplab.nn.recipes`, which quantises the operands of the layers'
    products.
    ``offload``: "optimizer" (states, master weights and gradients live in CPU memory, as in ZeRO-Offload), "parameters"
    (weights too), "chunks" (PatrickStar: model states in chunks of ``chunk_elements``, as many of them on the GPU as
    ``chunk_budget`` bytes hold). ``bucket``: bytes of a communication bucket; ``bucket_views``: gradients are views of
    DDP's buckets rather than copies. ``inference``: None, or the weights' format "fp32" "fp16" "bf16" "int8" "int4";
    with it, options of training are refused.
    """

    gpus: int = 1
    zero: int = 0
    partition: str = "flat"
    tensor: int = 1
    pipeline: int = 1
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    chunks: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    sequence: int | None = None
    flash: bool | None = None
    precision: str | Precision = "mixed"
    optimizer: str | Optimizer = "adamw"
    block: int = 256
    step_counts: bool = False
    recompute: str = "none"
    recipe: str | Recipe | None = None
    offload: str = "none"
    chunk_elements: int = 64 * MIB
    chunk_budget: int = 0
    bucket: int = 25 * MIB
    bucket_views: bool = True
    inference: FormatName | None = None

    def __post_init__(self) -> None:
        for name in (*POSITIVE, *(("sequence",) if self.sequence is not None else ())):
            own_size(self, name, 1)
        for name in ("chunk_budget", "bucket"):
            own_size(self, name, 0)
        own_integer(self, "zero", 0, 3, ": 0 is plain data parallelism, 1 to 3 are ZeRO's stages")
        for name in (*FLAGS, *(("flash",) if self.flash is not None else ())):
            flag(name, getattr(self, name))
        precision(self.precision)
        optimizer(self.optimizer)
        _ = self.quantised  # refuses what it does not know
        for kind, name, allowed in (
            ("partition", self.partition, PARTITIONS),
            ("recomputation", self.recompute, RECOMPUTE),
            ("offload", self.offload, OFFLOADS),
        ):
            if not isinstance(name, str) or name not in allowed:
                raise unknown(kind, name, allowed)
        fmt = spelt(self.inference)
        object.__setattr__(self, "inference", fmt)
        if fmt is not None and not (isinstance(fmt, str) and fmt in INFERENCE):
            raise unknown("inference format", fmt, INFERENCE)
        if fmt is not None:
            self._check_inference()
        self._check_degrees()

    def _check_inference(self) -> None:
        """Whether something was asked that belongs to training, and would be left out in silence."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in TRAINING and value != field.default:
                value = getattr(value, "name", value)
                raise LabError(
                    f"{field.name}={value!r} belongs to training; inference={self.inference!r} has none of it."
                )

    def _check_degrees(self) -> None:
        ranks = self.tensor * self.pipeline
        if self.gpus % ranks:
            rule = say(
                "gpus={gpus} is no multiple of tensor*pipeline = {tensor}*{pipeline} = {ranks}; "
                "data parallelism takes what is left, in whole replicas."
            )
            raise LabError(rule.fill(gpus=self.gpus, tensor=self.tensor, pipeline=self.pipeline, ranks=ranks))
        if self.sequence_parallel and self.tensor == 1:
            raise LabError("sequence_parallel=True divides what tensor parallelism leaves whole; it needs tensor >= 2.")
        if self.offload == "chunks" and self.zero not in (0, 3):
            raise LabError(
                f"offload='chunks' shards every model state, as ZeRO-3 does; zero={self.zero} is no part of it."
            )

    @cached_property
    def quantised(self) -> QuantisedOperands | None:
        """What the recipe keeps of the operands of the layers' products; None where all are in the precision's."""
        return quantised_operands(self.recipe, self.precision)

    @property
    def data(self) -> int:
        return self.gpus // (self.tensor * self.pipeline)


def check_effects(o: Options, layers: bool) -> None:
    """Whether every option that is not its default changes something; ``layers``: whether a configuration is known.

    Not a rule of the records themselves: an estimate is repeated with other options, which may take an effect away.
    """
    for field in dataclasses.fields(o):
        name, value = field.name, getattr(o, field.name)
        if value == field.default:
            continue
        if name in EFFECTS and not EFFECTS[name][0](o):
            raise LabError(f"{name}={value!r} has no effect here; it is {EFFECTS[name][1]}.")
        if name in OF_LAYERS and not layers:
            raise LabError(
                f"{name}={value!r} has no effect on a model of which only parameters are known; give a preset or a "
                "Transformer, or for a module inputs=."
            )


def check_transformer(c: Transformer, o: Options) -> None:
    """Whether a configuration can be divided as the options say."""
    if o.pipeline > c.layers:
        raise LabError(
            f"pipeline={o.pipeline} stages are more than the {c.layers} layers of {c.name}; a stage needs one."
        )
    check_schedule(o.schedule, c.layers, o.pipeline, o.micro_batches, o.chunks)
    for what, n in (("heads", c.heads), ("kv_heads", c.keys), ("ffn", c.width)):
        if n % o.tensor:
            fits = ", ".join(map(str, _divisors(c)))
            raise LabError(f"tensor={o.tensor} does not divide {what}={n} of {c.name}; allowed: {fits}.")
    multiple = o.quantised.multiple if o.quantised else 1
    for weight in (t.share(o.tensor) for t in tensors_of(c).layers[0] if t.linear):
        if any(n % multiple for n in weight.shape):
            raise LabError(
                f"recipe={getattr(o.recipe, 'name', o.recipe)!r} leaves {weight.name} of {weight.shape} in 16 bits, "
                f"and whole layers are counted; allowed: multiples of {multiple}."
            )
    length = c.sequence if o.sequence is None else o.sequence
    if o.sequence_parallel and length % o.tensor:
        raise LabError(f"sequence={length} does not divide among tensor={o.tensor} ranks, as sequence_parallel asks.")
    if c.positions == "learned" and length > c.sequence:
        raise LabError(f"sequence={length} is more than the {c.sequence} learned positions of {c.name}.")


def _divisors(c: Transformer) -> list[int]:
    """The degrees of tensor parallelism that divide a configuration, up to 1024."""
    return [t for t in range(1, min(c.keys, 1024) + 1) if not (c.heads % t or c.keys % t or c.width % t)]
