"""Putting layers of another kind into a copy of a model."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torch import nn

from ..errors import LabError


class Layer(nn.Module):
    """A layer some of whose float buffers keep their dtype when a model is moved to another.

    ``model.half()`` would round scales, silently and for good.
    """

    fixed: ClassVar[tuple[str, ...]] = ()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        before = {name: getattr(self, name) for name in self.fixed if getattr(self, name) is not None}
        super()._apply(*args, **kwargs)
        for name, value in before.items():
            moved = getattr(self, name)
            if moved.dtype != value.dtype:
                setattr(self, name, value.to(moved.device))
        return self


def named_modules(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> dict[str, nn.Module]:
    """The modules of a model that are wanted, by name; one that has several names under each."""
    if not isinstance(model, nn.Module):
        raise LabError(f"model is {type(model).__name__}; it must be a torch.nn.Module.")
    return {name: module for name, module in model.named_modules(remove_duplicate=False) if wanted(module)}


def replaced(model: nn.Module, names: Iterable[str], make: Callable[[str, Any], nn.Module]) -> nn.Module:
    """A copy of a model with ``make(name, module)`` in the place of each module named.

    A module with several names is made once. An error says which layer it is about.
    """
    result, made = copy.deepcopy(model), dict[nn.Module, nn.Module]()
    places = [(name, result.get_submodule(name)) for name in names]
    for name, old in places:
        if old not in made:
            try:
                made[old] = make(name, old)
            except LabError as error:
                raise LabError(f"layer {name!r}: {error}" if name else str(error)) from None
    for name, old in places:
        if name == "":
            return made[old]
        result.set_submodule(name, made[old])
    _call_layers(result)
    return result


def _call_layers(model: nn.Module) -> None:
    """Let torch's transformer layers call their parts: in evaluation a kernel of theirs would take the weights itself.

    These attributes say whether the kernel has the layer's activation, and whether padding may be left out for it.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
