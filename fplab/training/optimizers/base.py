"""What all optimizers of the lab share: groups and their options, a step, seeds, saving, loading and copying."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from inspect import Signature, signature
from typing import Any, ClassVar

import torch
from torch import Tensor

from ... import seeds
from ...errors import LabError, quotes_class, unknown
from ...nn import bits
from .options import CHECKS, OF_TORCH, Check, checked, parameters


def _of_torch(name: str) -> Callable[..., Any]:
    """A method of torch's optimizers, without the import of torch's compiler.

    torch hides it from the compiler, which the first call imports to that end, in a second of CPU time. Where nobody
    else has imported it, nothing is compiled, and there is nothing to hide from.
    """
    hidden = getattr(torch.optim.Optimizer, name)
    plain = inspect.unwrap(hidden)

    @functools.wraps(plain)
    def method(*args: Any, **kwargs: Any) -> Any:
        return (hidden if "torch._dynamo" in sys.modules else plain)(*args, **kwargs)

    return method


_add_param_group, _load_state_dict = _of_torch("add_param_group"), _of_torch("load_state_dict")


class LabOptimizer(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` on the CPU that says why it refuses something, and then has changed nothing.

    A kind of optimizer defines what follows, and :meth:`_update`. ``checks``: its options. ``fixed``: those that a
    saved state and the optimizer that loads it must share. ``dtypes``: of parameters; ``demand``: them in words.
    ``carried``: attributes that a copy takes along besides those that torch knows of.
    """

    checks: ClassVar[Mapping[str, Check]] = CHECKS
    fixed: ClassVar[tuple[str, ...]]
    dtypes: ClassVar[tuple[torch.dtype, ...]]
    demand: ClassVar[str]
    carried: ClassVar[tuple[str, ...]]

    zero_grad, state_dict = _of_torch("zero_grad"), _of_torch("state_dict")

    def __init_subclass__(cls) -> None:
        quotes_class(cls)
        own, above = signature(cls.__init__), signature(cls.__mro__[1])
        shown = [p for p in [*own.parameters.values()][1:] if p.kind is not p.VAR_KEYWORD]
        shared = [p for p in above.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in own.parameters]
        setattr(cls, "__signature__", Signature([*shown, *shared]))  # noqa: B010  # help() and Tab name every option

    def __init__(self, params: Any, options: dict[str, Any], of_torch: Mapping[str, Any]) -> None:
        """``of_torch``: keywords that torch's optimizers know, and this one refuses unless they say nothing."""
        for name, value in of_torch.items():
            if name not in OF_TORCH or name not in self.checks:
                raise unknown("option", name, [*signature(type(self)).parameters][1:])
            self.checks[name](name, value)
        super().__init__(parameters(params), {**options, **checked(options, self.checks)})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own if given."""
        if not isinstance(param_group, dict):
            raise LabError(f'a parameter group is a {type(param_group).__name__}; it is a dict, {{"params": ...}}.')
        param_group.update(checked(param_group, self.checks))
        _add_param_group(self, param_group)
        group = self.param_groups[-1]
        try:
            for p in group["params"]:
                self._demand_taken(p)
            self._adopt(group)
        except LabError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        everything = ((number, p) for number, group in enumerate(self.param_groups) for p in group["params"])
        moving = [(p, p.grad, number, place) for place, (number, p) in enumerate(everything) if p.grad is not None]
        for p, gradient, number, place in moving:  # before the first parameter moves
            self._demand_taken(p)
            if gradient.is_sparse:
                raise LabError("a gradient is sparse; pass dense gradients (nn.Embedding(..., sparse=False)).")
            self._demand_usable(gradient, self.param_groups[number], place)
        for p, gradient, number, place in moving:
            upwards = self.param_groups[number].get("maximize")  # which states of before this option lack
            self._update(p, -gradient if upwards else gradient, number, place)
        return loss

    # --- what a kind of optimizer says ------------------------------------------------------------------------------

    def _adopt(self, group: dict[str, Any]) -> None:
        """Look at a group that was added, whose options and parameters' dtypes are possible; an error takes it out."""

    def _demand_usable(self, gradient: Tensor, group: dict[str, Any], place: int) -> None:
        """An error for a gradient that would do harm."""

    def _update(self, p: Tensor, gradient: Tensor, number: int, place: int) -> None:
        """One step of a parameter of group ``number``; ``place``: which of all parameters it is."""
        raise NotImplementedError

    def _shaped(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the states that have their parameter's shape."""
        raise NotImplementedError

    def _mismatch(self, name: str, saved: Any, own: Any) -> str:
        """What to say of a state that was saved with another value of a ``fixed`` option."""
        return (
            f"was saved with {name}={saved!r}, but this optimizer has {name}={own!r}; build it with {name}={saved!r} "
            "to go on."
        )

    # --- seeds, saving and loading ----------------------------------------------------------------------------------

    def _seed(self, group: dict[str, Any], step: int, place: int, array: int = 0) -> int:
        """The seed of the stochastic rounding of one array of one parameter in one step."""
        return seeds.word(group["seed"], step << 24 | place, array)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, whose tensors are copied as they are (torch would cast them as the parameters).

        Raises LabError, and leaves the optimizer as it was, for a state of another kind of optimizer, of other
        ``fixed`` options, or of parameters of other shapes.
        """
        groups = state_dict.get("param_groups") if isinstance(state_dict, dict) else None
        if groups is None or any(name not in group for group in groups for name in self.fixed):
            raise LabError(
                f"this is no state_dict of an optimizer such as {type(self).__name__}; pass what "
                "optimizer.state_dict() returned."
            )
        for number, (group, saved) in enumerate(zip(self.param_groups, groups, strict=False)):
            for name in self.fixed:
                own, theirs = (tuple(v) if isinstance(v, list) else v for v in (group[name], saved[name]))
                if own != theirs:
                    raise LabError(f"group {number} of the state_dict {self._mismatch(name, theirs, own)}")
            for index, p in zip(saved["params"], group["params"], strict=False):
                for name in self._shaped(group):
                    tensor = state_dict["state"].get(index, {}).get(name)
                    if tensor is not None and tensor.shape not in (p.shape, bits.local(p).shape):
                        raise LabError(
                            f"{name!r} of parameter {index} of the state_dict has shape {tuple(tensor.shape)}, the "
                            f"parameter {tuple(p.shape)}; it is of another model."
                        )
        _load_state_dict(self, state_dict)
        names = [name for group in groups for name in group["params"]]
        for name, p in zip(names, (p for group in self.param_groups for p in group["params"]), strict=True):
            if name in state_dict["state"]:
                tensor = state_dict["state"][name]
                self.state[p] = {k: _copied(v) if isinstance(v, Tensor) else v for k, v in tensor.items()}

    def state_bytes(self) -> int:
        """Bytes of all states, scales included."""
        tensors = (v for state in self.state.values() for v in state.values() if isinstance(v, Tensor))
        return sum(v.numel() * v.element_size() for v in tensors)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self.carried}}

    def _demand_taken(self, p: Tensor) -> None:
        """An error for a parameter of another dtype or device than those that kernels take."""
        if p.dtype not in self.dtypes or p.device.type != "cpu":
            dtype = str(p.dtype).removeprefix("torch.")
            raise LabError(f"a parameter is {dtype} on {str(p.device)!r}; {self.demand}.")


def _copied(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU, which kernels can write to."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
