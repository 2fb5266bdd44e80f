"""A model and its optimizer with every kind of tensor block in a format of its own, by hooks.

Five kinds of tensor live in memory while a network trains, and a low-precision recipe is little more than a format
for each: weights, activations, the gradients of activations, the gradients of weights, and the optimizer's states.
:func:`formats` rounds each kind where it would be stored, and leaves alone how it is computed: the arithmetic inside
an operation is :func:`fplab.nn.emulate`'s matter, and torch's FP32 without it.
"""

import copy
import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .. import formats as table
from ..errors import LabError, quotes_call, unknown
from ..formats import Format, FormatLike
from ..plans import options, seed_bits
from .scopes import matches
from .straight_through import CARRIERS, Cast, demand_carrier, holds, straight_through

KINDS = ("weights", "activations", "gradients", "weight_gradients", "states")
Name = FormatLike | None
Choice = str | Mapping[str, str]


class Formats:
    """What a :func:`formats` block rounds. ``rounded``: how many tensors of each kind it has rounded so far."""

    def __init__(
        self, casts: Mapping[str, Cast], states: Cast | Mapping[str, Cast], keep: Sequence[str], seed: int | None
    ) -> None:
        self.rounded: Counter[str] = Counter()
        self._casts, self._states, self._keep, self._seed = casts, states, tuple(keep), seed
        self._masters: dict[nn.Parameter, torch.Tensor] = {}
        self._drawn = 0

    def cast(self, kind: str, x: torch.Tensor) -> Cast:
        """The rounding of the next tensor of a kind; a stochastic one draws new words for every tensor."""
        return self._seeded(self._casts[kind], kind, x)

    def _seeded(self, cast: Cast, kind: str, x: torch.Tensor) -> Cast:
        self.rounded[kind] += cast.fmt is not None
        if not cast.rounding.random or cast.fmt is None:
            return cast
        if x.dtype.itemsize == 2 and holds(cast.fmt, table.get(CARRIERS[x.dtype])):
            raise LabError(
                f"{kind} of {x.dtype} have nothing left to round to {cast.fmt.name}: torch rounded them to nearest "
                f"already. For {cast.rounding.value} rounding keep them in torch.float32, which holds its values."
            )
        assert self._seed is not None
        self._drawn += 1
        seed = (self._seed + self._drawn * 0x9E3779B97F4A7C15) % 2**64  # odd: 2**64 tensors until one comes again
        return replace(cast, seed=seed)

    def kept(self, name: str) -> bool:
        """Whether a module or parameter is left alone: it, or a module around it, matches a pattern of ``keep``."""
        return bool(matches(name, self._keep))

    # --- weights ----------------------------------------------------------------------------------------------------

    def round_weight(self, parameter: nn.Parameter) -> None:
        """Round a weight where it lies."""
        with torch.no_grad():
            parameter.copy_(self.cast("weights", parameter)(parameter))

    def set_masters_aside(self, parameters: Sequence[nn.Parameter]) -> None:
        """Keep a copy of every weight as it is, and round the weight."""
        for parameter in parameters:
            self._masters[parameter] = parameter.detach().clone()
            self.round_weight(parameter)

    def restore_masters(self) -> None:
        """Put the copies back."""
        with torch.no_grad():
            for parameter, master in self._masters.items():
                parameter.copy_(master)
        self._masters.clear()

    # --- activations and gradients ------------------------------------------------------------------------------------

    def outgoing(self, value: Any) -> Any:
        """A layer's output: its floating-point tensors rounded, and their gradients when those come back."""
        if isinstance(value, tuple) and hasattr(value, "_make"):  # named, as a packed sequence
            return value._make(map(self.outgoing, value))
        if type(value) in (list, tuple):
            return type(value)(map(self.outgoing, value))
        if isinstance(value, MutableMapping):
            rounded = copy.copy(value)
            for key, item in value.items():
                rounded[key] = self.outgoing(item)
            return rounded
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        result = straight_through(value, self.cast("activations", value), Cast(None))
        if result.requires_grad and self._casts["gradients"].fmt is not None:
            result.register_hook(lambda gradient: self.cast("gradients", gradient)(gradient))
        return result

    def round_gradient(self, parameter: torch.Tensor) -> None:
        """Round a weight's gradient where it lies, once it is summed."""
        if parameter.grad is not None:
            gradient = parameter.grad
            gradient.copy_(self.cast("weight_gradients", gradient)(gradient))

    # --- the optimizer ------------------------------------------------------------------------------------------------

    def round_states(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        """Round an optimizer's states where they lie; its step counts are no states in this sense."""
        there = dict.fromkeys(name for states in optimizer.state.values() for name in states)
        for name in self._states if isinstance(self._states, Mapping) else ():
            if name not in there and any(parameter.grad is not None for parameter in parameters):
                raise unknown(f"state of {type(optimizer).__name__}", name, there or ["none"])
        for parameter in parameters:
            for name, value in optimizer.state.get(parameter, {}).items():
                cast = self._states.get(name) if isinstance(self._states, Mapping) else self._states
                if (
                    cast is None
                    or cast.fmt is None
                    or not isinstance(value, torch.Tensor)
                    or value.shape != parameter.shape
                ):
                    continue
                value.copy_(self._seeded(cast, "states", value)(value))


@quotes_call
def formats(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, weights: Name = None, activations: Name = None,
    gradients: Name = None, weight_gradients: Name = None, states: Name | Mapping[str, Name] = None,
    rounding: Choice = "rne", overflow: Choice | None = None, master: bool = False, keep: Sequence[str] = (),
    seed: int | None = None,
) -> Any:  # fmt: skip
    """A block in which a model and its optimizer hold their tensors in formats; yields a :class:`Formats`.

    Each kind has a format, by name or record, or None for none:

    * ``weights``: the parameters, rounded at once and after every step of the optimizer. With ``master=True`` the
      optimizer updates copies that were not rounded, which come back into the model when the block ends; without an
      optimizer, the weights themselves do.
    * ``activations``: the model's floating-point inputs, and the outputs of every module that has no modules inside
      it or has parameters of its own. The gradient passes straight through. What a ``forward`` computes between
      modules (a residual sum) is rounded where the next module gives its output.
    * ``gradients``: the gradients with respect to those outputs, as they come back.
    * ``weight_gradients``: ``parameter.grad``, after every accumulation.
    * ``states``: the optimizer's states in the shape of their parameter, after every step; a format for all, or by
      name, as ``{"exp_avg": "bf16"}``.

    ``rounding`` and ``overflow``: as in :func:`fplab.quantize`, for all kinds or by kind. Stochastic rounding needs
    ``seed``; every tensor rounded draws words of its own. ``keep``: modules or parameters to leave alone, by name or
    pattern (``"head"``, ``"*norm*"``). A tensor's dtype must hold its format's values.

    The hooks end with the block, so backward passes belong inside it, and so do those that recompute a checkpoint.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> with formats(model, weights="e2m1", activations="bf16") as block:
    ...     y = model(torch.ones(1, 2))
    >>> dict(block.rounded)
    {'weights': 1, 'activations': 2}
    """
    if not isinstance(model, nn.Module):
        raise LabError(f"model is a {type(model).__name__}; pass a torch.nn.Module.")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise LabError(f"optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer.")
    if states is not None and optimizer is None:
        raise LabError("states= needs the optimizer that has them: formats(model, optimizer, states=...).")
    named = dict(zip(KINDS, (weights, activations, gradients, weight_gradients), strict=False))
    casts = {kind: _cast(kind, fmt, rounding, overflow, seed) for kind, fmt in named.items()}
    if isinstance(states, Mapping):
        of_states: Cast | dict[str, Cast] = {
            n: _cast("states", fmt, rounding, overflow, seed) for n, fmt in states.items()
        }
    else:
        of_states = _cast("states", states, rounding, overflow, seed)
    _known_kinds(rounding, overflow)
    _fitting(model, optimizer, keep)
    return _hooked(model, optimizer, Formats(casts, of_states, keep, seed), casts, master)


def _known_kinds(*choices: Choice | None) -> None:
    for choice in choices:
        for kind in choice if isinstance(choice, Mapping) else ():
            if kind not in KINDS:
                raise unknown("kind of tensor", kind, KINDS)


def _fitting(model: nn.Module, optimizer: torch.optim.Optimizer | None, keep: Sequence[str]) -> None:
    """An error for an optimizer of another model, and for patterns that leave nothing alone."""
    if isinstance(keep, str):
        raise LabError(f"keep={keep!r} is a string; a list of names is needed: keep=[{keep!r}].")
    names = [name for name, _ in (*model.named_modules(), *model.named_parameters()) if name]
    for pattern in keep:
        if not fnmatch.filter(names, pattern):
            raise unknown("module or parameter in keep", pattern, names[:40], names)
    own = set(map(id, model.parameters()))
    if optimizer is not None and not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise LabError(
            f"{type(optimizer).__name__} owns none of the parameters of {type(model).__name__}; make it from this "
            "model's parameters(), after the model was built, copied or loaded."
        )


def _cast(kind: str, fmt: Name, rounding: Choice, overflow: Choice | None, seed: int | None) -> Cast:
    """The rounding of one kind."""
    if fmt is None:
        return Cast(None)
    form = table.get(fmt)
    mode = table.rounding(rounding.get(kind, "rne") if isinstance(rounding, Mapping) else rounding)
    policy = overflow.get(kind) if isinstance(overflow, Mapping) else overflow
    seed_bits(options(form, mode).mode, seed)
    return Cast(form, mode, None if policy is None else table.overflow(policy, form), True, seed)


@contextmanager
def _hooked(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, block: Formats, casts: Mapping[str, Cast], master: bool
) -> Iterator[Formats]:
    """All hooks for the length of a block."""
    chosen = [p for n, p in model.named_parameters() if not block.kept(n) and p.is_floating_point()]
    with ExitStack() as stack:
        if casts["weights"].fmt is not None:
            _hold_weights(stack, chosen, optimizer, block, casts["weights"].fmt, master)
        if casts["activations"].fmt is not None or casts["gradients"].fmt is not None:
            _hook_layers(stack, model, block)
        if casts["weight_gradients"].fmt is not None:
            for parameter in chosen:
                if parameter.requires_grad:
                    stack.enter_context(parameter.register_post_accumulate_grad_hook(block.round_gradient))
        if optimizer is not None:

            def after(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
                block.round_states(stepped, chosen)

            stack.enter_context(optimizer.register_step_post_hook(after))
        yield block


def _hold_weights(
    stack: ExitStack, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer | None, block: Formats,
    fmt: Format, master: bool,
) -> None:  # fmt: skip
    """Weights rounded now and after every step; with masters, the optimizer's step sees those."""
    for parameter in parameters:
        demand_carrier(parameter.dtype, fmt)
    if optimizer is None:
        block.set_masters_aside(parameters)
        stack.push(_putting_back(block, [(p, p.detach().clone()) for p in parameters]))
        return
    if not master:
        for parameter in parameters:
            block.round_weight(parameter)

    def before(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if any(x is not None for x in (*args[1:], kwargs.get("closure"))):
            raise LabError(
                "step(closure) would compute the loss with the master weights; call backward() before step()."
            )
        block.restore_masters()

    def after(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if master:
            block.set_masters_aside(parameters)
            return
        for parameter in parameters:
            block.round_weight(parameter)

    if master:
        block.set_masters_aside(parameters)
        stack.callback(block.restore_masters)
        stack.enter_context(optimizer.register_step_pre_hook(before))
    stack.enter_context(optimizer.register_step_post_hook(after))


def _putting_back(block: Formats, rounded: list[tuple[nn.Parameter, torch.Tensor]]) -> Callable[..., bool]:
    """What ends a block without an optimizer: the unrounded weights again, unless somebody updated the rounded ones."""

    def leave(kind: type[BaseException] | None, error: BaseException | None, at: Any) -> bool:
        same = all(torch.equal(p.detach().view(torch.uint8), value.view(torch.uint8)) for p, value in rounded)
        block.restore_masters()
        if kind is None and not same:
            raise LabError("the weights changed inside the block; pass the optimizer: formats(model, optimizer, ...).")
        return False

    return leave


def _hook_layers(stack: ExitStack, model: nn.Module, block: Formats) -> None:
    """Round what enters the model and what leaves every layer."""

    def entering(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return block.outgoing(args), block.outgoing(kwargs)

    def leaving(module: nn.Module, args: Any, output: Any) -> Any:
        return block.outgoing(output)

    stack.enter_context(model.register_forward_pre_hook(entering, with_kwargs=True))
    for name, module in model.named_modules():
        leaf = next(module.children(), None) is None
        own = next(module.parameters(recurse=False), None) is not None
        if (leaf or own) and not (name and block.kept(name)):
            stack.enter_context(module.register_forward_hook(leaving))
