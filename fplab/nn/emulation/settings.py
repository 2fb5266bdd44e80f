"""What an emulation is asked for, checked once, and which model of a matrix unit each pair of operands goes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import torch

from ... import formats
from ...errors import LabError, demand_types, unknown
from ...scaled import Scheme
from ...tensorcore import limits, models, products
from ...tensorcore.models import Model
from ...tensorcore.operands import CONVERSIONS
from ...tensorcore.plan import ONE_CHAIN, AnyPlan
from ..recipes import Recipe
from .cached import CACHES
from .scaled_products import unit_inputs

OWN = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}  # dtypes that have a unit of their own
FP32 = ("fp32", "tf32")  # what torch's flags choose between for float32


class Scaling(Protocol):
    """Per-tensor scaling of FP8 operands, such as :class:`fplab.training.scalers.AmaxScaling`."""

    def scale(self, role: str, tensor: torch.Tensor) -> float:
        """The power of two by which the operand of this role is multiplied before it is rounded."""


class Rounded(NamedTuple):
    """A model for tensors of one dtype. ``as_they_are``: whether products take them so, and round them if need be."""

    model: Model
    as_they_are: bool


def _rounded(model: Model, dtype: torch.dtype) -> Rounded:
    return Rounded(model, OWN.get(dtype, "fp32") == model.a or (dtype == torch.float32 and products.rounds(model)))


@dataclass(frozen=True)
class Settings:
    """The arguments of :func:`fplab.nn.emulate`."""

    gpu: str | Model
    inputs: str | None
    accumulate: str
    gradients: str | None
    store: str | None
    scaling: Scaling | None
    allow: frozenset[str]
    instruction: str | None
    conversion: str
    recipe: Recipe | None = None
    layers: Mapping[str, Recipe | AnyPlan] = field(default_factory=dict)
    plan: AnyPlan = ONE_CHAIN
    fallback: str | None = None
    kv_cache: str | None = None

    def __post_init__(self) -> None:
        if self.kv_cache is not None and self.kv_cache not in CACHES:
            raise unknown("kv_cache", self.kv_cache, CACHES)
        if self.conversion not in CONVERSIONS:
            raise unknown("conversion", self.conversion, CONVERSIONS)
        if self.store is not None:
            formats.get(self.store)
        if self.scaling is not None and not callable(getattr(self.scaling, "scale", None)):
            raise LabError(f"scaling={self.scaling!r} has no method scale(role, tensor) that returns a power of two.")
        if self.recipe is not None and (self.scaling is not None or self.gradients != self.inputs):
            raise LabError(
                f"recipe={self.recipe.name!r} says how to scale operands; leave out scaling= and gradients=."
            )
        if self.inputs is None and self.gradients is not None:
            raise LabError(
                f"gradients={self.gradients!r} without inputs=, where FP32 follows torch's flags; pass inputs=, too."
            )
        for name, given in (("inputs", self.inputs), ("gradients", self.gradients)):
            if given is not None:
                self._demand_offered(name, given)
        a, b = self.inputs or "fp16", self.gradients or "fp16"
        for pair in ((a, a), (b, a), (a, b), *(((FP32[0],) * 2,) if self.inputs is None else ())):
            self.model(*pair)
        if self.scaling is not None and not self.narrow:
            raise LabError(f"scaling is for FP8 and narrower; inputs={self.inputs!r} needs none.")
        if self.fallback not in (None, "bf16"):
            raise unknown("fallback", self.fallback, ["bf16"])
        for recipe in self.recipes:
            self.model(recipe.high, recipe.high)
            for product in recipe.products():
                self.scaled_model(product.left.record, product.right.record, recipe)
        demand_types(self)

    def _demand_offered(self, name: str, given: str) -> None:
        """Whether the GPU has a unit for tensors of a format: not for integers, nor for blocks with scales."""
        gpu = self.gpu.gpu if isinstance(self.gpu, Model) else models.gpu_name(self.gpu)
        offered = _offered(gpu)
        try:
            plain = formats.get(given).name
        except LabError:
            plain = ""
        if plain in offered:
            return
        if others := [g for g in models.GPUS if plain in _offered(g)]:
            raise LabError(
                f"{name}={given!r}: {gpu} has no unit for it. Allowed on {gpu}: {', '.join(offered)}. "
                f"GPUs that have it: {', '.join(others)}."
            )
        if given in models.INPUTS:
            raise LabError(
                f"{name}={given!r} cannot be emulated under a model: its operands need scales or are integers. "
                f"Allowed on {gpu}: {', '.join(offered)}."
            )
        raise unknown(name, given, offered, [a for f in formats.TABLE if f.name in offered for a in f.aliases])

    @property
    def narrow(self) -> bool:
        """Whether operands are rounded to 8 bits or fewer, whatever dtype they arrive in."""
        return self.inputs is not None and formats.get(self.inputs).bits <= 8

    @cached_property  # asked for at every operation
    def splits(self) -> bool:
        """Whether it matters which operand of a backward product is the gradient."""
        return self.gradients != self.inputs or self.scaling is not None or bool(self.recipes)

    @cached_property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes of any layer."""
        every = (self.recipe, *self.layers.values())
        return tuple(item for item in every if isinstance(item, Recipe))

    def scaled_model(self, a: Scheme, b: Scheme, recipe: Recipe) -> Model | None:
        """The unit's model for operands of two schemes; None where the GPU has none and may do otherwise."""
        gpu = self.gpu.gpu if isinstance(self.gpu, Model) else self.gpu
        try:
            return _scaled_model(gpu, unit_inputs(a, b))
        except LabError:
            if self.fallback == "bf16":
                return None
            having = [g for g in models.GPUS if any(models.input_name(m) == unit_inputs(a, b) for m in models.TABLE
                                                    if m.gpu == g)]  # fmt: skip
            raise LabError(
                f"recipe={recipe.name!r}: {models.label(gpu)} has no unit for {unit_inputs(a, b)}. GPUs that have one: "
                f"{', '.join(having)}. Software on others dequantises to BF16 and multiplies that in the BF16 unit; "
                "fallback='bf16' does so."
            ) from None

    def formats(self, dtype: torch.dtype, gradient: tuple[bool, bool], flag: str) -> tuple[str, str]:
        """The formats of both operands of a product of tensors of one dtype.

        FP16, BF16 and FP64 tensors take the unit of their own dtype, as on a GPU, unless ``inputs`` is narrower than
        they are, FP8; ``inputs`` says what FP32 tensors are rounded to. Without it one of torch's flags says whether
        they are multiplied in TF32, where the GPU has it: ``flag`` as in :meth:`.Choices.flag`.
        """
        if dtype == torch.float64 or (dtype in OWN and not self.narrow):
            return OWN[dtype], OWN[dtype]
        if self.inputs is None:
            return (FP32[self._has_tf32 and allows_tf32(flag)],) * 2
        a, b = (self.gradients or self.inputs if given else self.inputs for given in gradient)
        return a, b

    @cached_property
    def _has_tf32(self) -> bool:
        gpu = self.gpu.gpu if isinstance(self.gpu, Model) else models.gpu_name(self.gpu)
        return "tf32" in _offered(gpu)

    def rounded_model(self, dtype: torch.dtype, flag: str) -> Rounded | None:
        """Of products whose operands are rounded and no more, whatever they are; None: others."""
        follows_flag = self.inputs is None and dtype == torch.float32 and self._has_tf32
        key = dtype, follows_flag and allows_tf32(flag)
        if key not in self._rounded:
            pair = self.formats(dtype, (False, False), flag)
            narrow = any(formats.get(name).bits <= 8 for name in pair)
            self._rounded[key] = None if self.splits or narrow else _rounded(self.model(*pair), dtype)
        return self._rounded[key]

    @cached_property
    def _rounded(self) -> dict[tuple[torch.dtype, bool], Rounded | None]:
        return {}

    def model(self, a: str, b: str) -> Model:
        """The model of two formats."""
        if isinstance(self.gpu, Model):
            return _retargeted(self.gpu, a, b)
        if self.inputs is None and a == b and a in FP32:  # whose units have no other accumulator
            return _model(self.gpu, a, b, "fp32", self.instruction if a == "tf32" else None)
        return _model(self.gpu, a, b, self.accumulate, self.instruction)


def allows_tf32(flag: str) -> bool:
    """Whether torch lets a GPU multiply FP32 in TF32 now: "matmul", or what cuDNN computes, "conv" and "rnn"."""
    backends = torch.backends
    chosen = backends.cuda.matmul if flag == "matmul" else getattr(backends.cudnn, flag)
    return bool(chosen.fp32_precision == "tf32")


@lru_cache(maxsize=64)  # asked for at every block
def _offered(gpu: str) -> tuple[str, ...]:
    """The formats of plain tensors that a GPU has a unit for."""
    units = (m for m in models.TABLE if m.gpu == gpu and m.a == m.b and m.scale is None and m.output != "int32")
    return tuple(dict.fromkeys(m.a for m in units))


@lru_cache(maxsize=256)
def _scaled_model(gpu: str, inputs: str) -> Model:
    return models.get(gpu, inputs, "fp32")


@lru_cache(maxsize=256)
def _model(gpu: str, a: str, b: str, accumulate: str, instruction: str | None) -> Model:
    if a == b == "fp64":
        return models.get(gpu, "fp64")
    return models.get(gpu, (a, b), accumulate, instruction)


def _retargeted(model: Model, a: str, b: str) -> Model:
    """A given model with other formats of operands: the GPU's own cell for them, with the same options."""
    if (model.a, model.b) == (a, b):
        return model
    cell = _model(model.gpu, a, b, model.output if model.output in ("fp16", "fp32") else "fp32", None)
    options: dict[str, Any] = {name: getattr(model, name) for name in models.OPTIONS}
    possible = limits.allowed(cell)
    return dataclasses.replace(cell, **{name: x for name, x in options.items() if x in possible[name]})
