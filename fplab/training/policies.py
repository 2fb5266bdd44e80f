"""Precision policies: one record says what is held, computed, accumulated and updated in which format.

A training loop has no branch for any of them. Each record names its parts, :class:`Policy` builds them, and what is
not in the record stays FP32. Values are emulated: parameters are FP32 tensors that hold values of the policy's
format, a cast model computes in torch's half tensors, and matrix products have the bits of a GPU.
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .. import formats
from ..errors import LabError, chosen, demand_types, one_of, quotes_call, unknown
from ..nn.recipes import RECIPES, Recipe
from ..words import Text, say

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
UPDATES = ("nearest", "stochastic", "kahan", "master")
NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


@dataclass(frozen=True)
class Made:
    """Something that is made anew for every run: a class of a sibling module by its name, and its arguments."""

    module: str
    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *args: Any, **more: Any) -> Any:
        """A new one; ``more`` goes before the record's own arguments."""
        made = getattr(importlib.import_module(f".{self.module}", __package__), self.name)
        return made(*args, **more, **dict(self.arguments))


def scaler(name: str, **arguments: Any) -> Made:
    """A loss scaler of ``training.scalers``, with its arguments."""
    return Made("scalers", name, tuple(arguments.items()))


UNSCALED = scaler("StaticScaler", scale=1.0, skip=False)
"""No loss scale, and no look at whether gradients are finite."""


@dataclass(frozen=True)
class Products:
    """How a GPU's matrix products are done: see :func:`fplab.nn.emulate`.

    ``inputs``: the format of the operands in the forward pass; ``gradients``: of the incoming gradient in the
    backward pass (None: as ``inputs``). ``scaling``: None, or a per-tensor scaling that every run makes anew.
    ``conversion``: how FP32 becomes TF32: "truncate", "rna" or "rne".
    """

    inputs: str
    accumulate: str = "fp32"
    gradients: str | None = None
    scaling: Made | None = None
    conversion: str = "truncate"


@dataclass(frozen=True)
class Policy:
    """A recipe of mixed precision.

    ``cast``: None, or the dtype ("fp16", "bf16") to which parameters and inputs are cast where they are used, so that
    every operation computes in it, forward and backward; modules of the classes in ``keep_fp32`` compute in FP32
    nevertheless. Softmax, norms and reductions of half tensors compute in FP32 inside and round their result, as on a
    GPU; torch's log_softmax on the CPU alone is up to an ulp away from that. ``logits``: the dtype in which the loss
    reads a cast model's output.
    ``autocast``: None, or the dtype of :func:`fplab.nn.autocast`, which casts by lists of operations instead.
    ``products``: the matrix products, None for torch's own. ``recipe``: instead, a name of
    :data:`fplab.nn.recipes.RECIPES` or a record, which quantises the operands of the layers' products.
    ``weights``: the format in which parameters are held between steps; ``states``: that of the optimizer's states;
    ``update``: "nearest", "stochastic", "kahan", or "master" for an FP32 copy that takes the updates.
    ``rounded``: formats of :func:`fplab.nn.formats` by kind ("weights", "activations", "gradients"), for formats
    that torch does not compute in. ``scaler``: the loss scaler.
    """

    name: str
    about: str | Text
    source: str = ""
    cast: str | None = None
    keep_fp32: tuple[str, ...] = ()
    logits: str = "fp32"
    autocast: str | None = None
    products: Products | None = None
    recipe: str | Recipe | None = None
    weights: str = "fp32"
    states: str = "fp32"
    update: str = "nearest"
    rounded: tuple[tuple[str, str], ...] = ()
    scaler: Made = UNSCALED

    def __post_init__(self) -> None:
        in_formats = ("cast", "autocast", "logits", "weights", "states")
        demand_types(self, *in_formats)
        for field in in_formats:
            object.__setattr__(self, field, formats.spelt(getattr(self, field)))
        for field in ("cast", "autocast", "logits"):
            if (given := getattr(self, field)) is not None and not (isinstance(given, str) and given in DTYPES):
                raise unknown(f"{field} of policy {self.name!r}", given, DTYPES)
        for fmt in (self.weights, self.states):
            formats.get(fmt)
        one_of(f"update of policy {self.name!r}", self.update, UPDATES)
        if self.cast and self.autocast:
            raise LabError(f"policy {self.name!r}: cast={self.cast!r} and autocast={self.autocast!r}; allowed: one.")
        if self.recipe and self.products:
            raise LabError(f"policy {self.name!r}: recipe={self.recipe!r} says what products are; leave out products=.")

    def model(self, model: nn.Module) -> nn.Module:
        """The model as this policy runs it; its parameters stay those of ``model``."""
        return model if self.cast is None else CastModel(model, self.cast, self.keep_fp32, self.logits)

    def optimizer(self, made: Made, parameters: Iterable[Tensor], seed: int = 0) -> torch.optim.Optimizer:
        """An optimizer over parameters in this policy's formats; ``seed`` is for stochastic rounding."""
        formats_of = {"weights": self.weights, "states": self.states, "update": self.update, "seed": seed}
        optimizer: torch.optim.Optimizer = made(parameters, **formats_of)
        return optimizer

    def scaling(self, gpu: str | None = "H100") -> Any:
        """What scales operands, made anew for a run and part of its state: a scaling, a recipe's emulation, or None."""
        if self.recipe is not None and gpu is not None:
            from .. import nn as lab

            return lab.emulate(gpu, recipe=self.recipe)
        return self.products.scaling() if self.products and self.products.scaling else None

    @contextmanager
    def running(self, model: nn.Module, gpu: str | None = "H100", scaling: Any = None) -> Iterator[Any]:
        """Within the block a forward and backward pass of ``model`` computes as the policy says, on that GPU.

        It gives the :class:`~fplab.nn.emulation.context.Emulation` of the products, None where they are torch's own.
        ``gpu=None``: torch's own products on this machine. ``scaling``: what :meth:`scaling` made for the run.
        """
        with ExitStack() as stack:
            entered = [stack.enter_context(context) for context in self._contexts(model, gpu, scaling)]
            yield entered[0] if (self.products or self.recipe) and gpu is not None else None

    def _contexts(self, model: nn.Module, gpu: str | None, scaling: Any) -> Iterator[AbstractContextManager[Any]]:
        from .. import nn as lab

        if self.products is not None and gpu is not None:
            p = self.products
            options: dict[str, Any] = {"gradients": p.gradients, "scaling": scaling, "conversion": p.conversion}
            yield lab.emulate(gpu, p.inputs, p.accumulate, **options)
        if self.recipe is not None and gpu is not None:
            yield scaling or self.scaling(gpu)
        if self.rounded:
            kinds: dict[str, Any] = dict(self.rounded)
            yield lab.formats(model, **kinds)
        if self.autocast is not None:
            yield lab.autocast(DTYPES[self.autocast])

    def described(self) -> dict[str, Any]:
        """What it computes, as JSON values, for a checkpoint's configuration: equal values are equal policies."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("about", "source")}
        return {name: v if v is None or isinstance(v, str) else repr(v) for name, v in values.items()}


# --- the whole-model cast ---------------------------------------------------------------------------------------
class CastModel(nn.Module):
    """A model whose parameters and inputs are cast to one dtype where they are used.

    The gradient of a cast is a cast, so a parameter's gradient is a value of that dtype in an FP32 tensor. This is
    Keras' automatic cast of variables; with parameters that hold values of the dtype already it is ``model.half()``.
    """

    def __init__(self, model: nn.Module, cast: str, keep_fp32: tuple[str, ...] = (), logits: str = "fp32") -> None:
        super().__init__()
        self.model, self.dtype, self.logits = model, DTYPES[cast], DTYPES[logits]
        kept = [module for module in model.modules() if type(module).__name__ in keep_fp32]
        self._kept = {id(t) for module in kept for t in (*module.parameters(), *module.buffers())}
        self._layers = kept

    def forward(self, *inputs: Tensor) -> Tensor:
        """The model's output in the dtype that the loss reads."""
        tensors = dict((*self.model.named_parameters(), *self.model.named_buffers()))
        used = {name: t if id(t) in self._kept else to(t, self.dtype) for name, t in tensors.items()}
        with self._kept_in_fp32():
            output: Tensor = functional_call(self.model, used, tuple(to(x, self.dtype) for x in inputs))
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                if used[name] is not buffer:
                    buffer.copy_(used[name])  # running statistics were written to the cast copy
        return output.to(self.logits)

    @contextmanager
    def _kept_in_fp32(self) -> Iterator[None]:
        """Hooks that give the kept layers FP32 and round what they return."""
        with ExitStack() as hooks:
            for layer in self._layers:
                widen = layer.register_forward_pre_hook(lambda _, xs: tuple(to(x, torch.float32) for x in xs))
                hooks.enter_context(widen)
                hooks.enter_context(layer.register_forward_hook(lambda _, __, y: to(y, self.dtype)))
            yield


def to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


# --- the table --------------------------------------------------------------------------------------------------
_APEX = "NVIDIA Apex, apex/amp/frontend.py"
_KERAS = "Keras 3, keras/src/dtype_policies and optimizers/loss_scale_optimizer.py"
_MIXED = "Micikevicius et al. 2018, arXiv 1710.03740"
_FP8 = "Micikevicius et al. 2022, arXiv 2209.05433"
OF_RECIPE = say("operands of the layers' products as the recipe {recipe} quantises them; the rest FP32")
_FP16 = Products("fp16")
_BF16 = Products("bf16")

POLICIES: tuple[Policy, ...] = (
    Policy("fp32", say("everything in FP32: the baseline")),
    Policy("tf32", say("FP32 everywhere, the operands of matrix products read as TF32"), "torch, allow_tf32",
           products=Products("tf32")),
    Policy("fp16", say("autocast to FP16 by torch's CUDA lists, dynamic loss scale"), "torch.amp", autocast="fp16",
           products=_FP16, scaler=scaler("DynamicScaler")),
    Policy("bf16", say("autocast to BF16 by torch's CUDA lists, no loss scale"), "torch.amp", autocast="bf16",
           products=_BF16),
    Policy("fp16_master", say("everything in FP16 but an FP32 master copy of the weights, dynamic loss scale"), _MIXED,
           cast="fp16", products=_FP16, weights="fp16", update="master", scaler=scaler("DynamicScaler")),
    Policy("pure_fp16", say("everything in FP16, the optimizer too; no loss scale"), _MIXED, cast="fp16", logits="fp16",
           products=_FP16, weights="fp16", states="fp16"),
    Policy("pure_bf16", say("everything in BF16, the optimizer too"), "Zamirai et al. 2020, arXiv 2010.06192",
           cast="bf16", logits="bf16", products=_BF16, weights="bf16", states="bf16"),
    Policy("fp8_hybrid",
           say("products of E4M3 operands, E5M2 gradients in the backward pass, scaled per tensor; the rest FP32"),
           _FP8,
           products=Products("e4m3", gradients="e5m2",
                             scaling=Made("scalers", "AmaxScaling", (("fmt", "e4m3"), ("gradients", "e5m2"))))),
    Policy("o0", say("Apex O0: FP32"), _APEX),
    Policy("o1", say("Apex O1: casts around functions, FP32 weights, dynamic loss scale of at most 2^24"), _APEX,
           autocast="fp16", products=_FP16, scaler=scaler("ApexScaler")),
    Policy("o2",
           say("Apex O2: an FP16 model with FP32 batch norm and FP32 master weights, dynamic loss scale of at most "
               "2^24"),
           _APEX, cast="fp16", keep_fp32=NORMS, products=_FP16, weights="fp16", update="master",
           scaler=scaler("ApexScaler")),
    Policy("o3", say("Apex O3: an FP16 model and optimizer; only the loss reads FP32 logits"), _APEX, cast="fp16",
           products=_FP16, weights="fp16", states="fp16"),
    Policy("mixed_float16", say("Keras: FP32 variables, every layer computes in FP16, Keras' dynamic loss scale"),
           _KERAS, cast="fp16", products=_FP16, scaler=scaler("KerasScaler")),
    Policy("mixed_bfloat16", say("Keras: FP32 variables, every layer computes in BF16"), _KERAS, cast="bf16",
           products=_BF16),
)  # fmt: skip


@quotes_call
def get(policy: str | Policy | Recipe) -> Policy:
    """The policy of a name, in any case; a record is given back.

    A recipe of :mod:`fplab.nn.recipes`, a record or a name that no policy has ("bf16" is one's), is FP32 with that
    recipe's products.

    >>> get("O2").update, get("nvfp4").recipe
    ('master', 'nvfp4')
    """
    if isinstance(policy, Recipe):
        return _of_recipe(policy.name, policy)
    table = {p.name: p for p in POLICIES}
    table |= {name: _of_recipe(name, name) for name in RECIPES if name not in table}
    return chosen("policy", policy, table, Policy)


def _of_recipe(name: str, recipe: str | Recipe) -> Policy:
    return Policy(name, OF_RECIPE.fill(recipe=name), recipe=recipe)
