"""What a model multiplies by, whoever wrote it: linear layers as they are found, and how much of a model was converted.

Beside ``nn.Linear`` these are Hugging Face's ``Conv1D`` (of GPT-2), whose weight lies transposed, and its layers of
experts (of Mixtral), which hold one parameter (E, N, K) for E experts and multiply by a slice of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import quotes_call, warn
from ..words import say
from .replacing import Layer

TOO_MUCH = 0.01  # share of a model's weights that stay, in layers of unknown types, before a warning says so
SHOWN = 8


def linear_of(module: nn.Module) -> nn.Linear | None:
    """A layer as an ``nn.Linear`` on the same memory, if it is one, also with its weight transposed (``Conv1D``)."""
    if type(module) is nn.Linear:
        return module
    weight = getattr(module, "weight", None)
    if (
        type(module).__name__ == "Conv1D"
        and isinstance(weight, nn.Parameter)
        and weight.shape[1:] == (getattr(module, "nf", None),)
    ):
        return _linear(weight.detach().T, getattr(module, "bias", None))
    return None


def _linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype)
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made


def experts_of(module: nn.Module) -> list[str]:
    """The names of a layer's parameters (E, N, K) of which it multiplies by slices, as Hugging Face's experts do."""
    if getattr(module, "is_transposed", True) or not hasattr(module, "config"):
        return []
    return [name for name, p in module.named_parameters(recurse=False) if p.ndim == 3 and name.endswith("_proj")]


class IntegerLinear(Layer):
    """What converted layers have in common: they can be multiplied by, and say how many weights they hold."""

    def keep(self, linear: nn.Linear, **values: Any) -> None:
        """Buffers of arrays and tensors, or None, on the device of a layer, and its bias."""
        for name, value in values.items():
            result = torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
            self.register_buffer(name, None if result is None else result.to(linear.weight.device))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def weights(self) -> int:
        """The number of weights that are integers."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """``F.linear(x, layer)``, as a layer of experts calls it."""
        if func is not nn.functional.linear or kwargs:
            return NotImplemented
        x, layer, *bias = args
        result = layer(x)
        return result if not bias or bias[0] is None else result + bias[0]


class Experts(nn.ModuleList):
    """A layer for each expert in the place of a parameter: a slice of it is a layer, which ``F.linear`` calls."""

    def __getitem__(self, index: Any) -> Any:
        """The layer of one expert; the index may be a tensor."""
        return super().__getitem__(int(index))


def convert_experts(module: Any, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """A layer of experts with its parameters made anew, one expert at a time; it then runs the loop of its class."""
    for name in experts_of(module):
        stack = getattr(module, name).detach()
        delattr(module, name)
        setattr(module, name, Experts([make(_linear(weight)) for weight in stack]))
    module.config._experts_implementation = "eager"
    return module  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Conversion:
    """How much of a model is in integers: the weights of each layer that was converted, and of each matrix that stays.

    ``converted``: number of weights by layer. ``left``: by layer, its type and number of weights in matrices.
    """

    converted: dict[str, int]
    left: dict[str, tuple[str, int]]

    @property
    def share(self) -> float:
        """The weights in integers among all that are in matrices, 0 to 1."""
        done = sum(self.converted.values())
        return done / max(1, done + sum(n for _, n in self.left.values()))

    def __str__(self) -> str:
        sentences = [say("Layers in integers: {n:,}, with {share:.1%} of the weights in matrices.",
                    n=len(self.converted), share=self.share)]  # fmt: skip
        for name, (kind, n) in self.left.items():
            sentences.append(say("{name} ({kind}) stays, {n:,} weights.", name=name, kind=kind, n=n))
        return "\n".join(map(str, sentences))


@quotes_call
def conversion(model: nn.Module) -> Conversion:
    """What of a model is in integers, as :func:`int8_linears` and :func:`int4_linears` leave it; its ``str`` says it.

    >>> from fplab.nn import int8_linears
    >>> print(conversion(int8_linears(nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 4)))))
    Layers in integers: 1, with 44.4% of the weights in matrices.
    0 (Embedding) stays, 40 weights.
    """
    converted, left = {}, {}
    for name, module in model.named_modules():
        if isinstance(module, IntegerLinear):
            converted[name] = module.weights()
        elif n := sum(p.numel() for p in module.parameters(recurse=False) if p.ndim >= 2):
            left[name] = type(module).__name__, n
    return Conversion(converted, left)


def say_what_is_left(model: nn.Module, skip: Iterable[str]) -> None:
    """Warn of weights that stay in layers of types that are not torch's own, where they are many."""
    whole, skipped = conversion(model), set(skip)
    own = {name for name, module in model.named_modules() if type(module).__module__.startswith("torch.nn.")}
    strange = {name: left for name, left in whole.left.items() if name not in own and name not in skipped}
    total = sum(whole.converted.values()) + sum(n for _, n in whole.left.values())
    if sum(n for _, n in strange.values()) > TOO_MUCH * total:
        kinds = ", ".join(f"{name} ({kind})" for name, (kind, _) in list(strange.items())[:SHOWN])
        warn(
            f"{whole.share:.1%} of the weights in matrices are integers now; of types that are not known here, these "
            f"stay: {kinds}{', ...' * (len(strange) > SHOWN)}. fplab.nn.conversion(model) says all."
        )
