"""What an optimizer may be given: each option checked once, for a whole optimizer and for a group of its own."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import torch

from ...errors import LabError, fits, integer, summary

Check = Callable[[str, Any], Any]


def _number(name: str, value: Any, below: float = float("inf")) -> float:
    """A finite number from 0 to below a limit; numpy's numbers and tensors of one element count."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, str):  # YAML reads 1e-3 as a string
        raise LabError(f"{name}={value!r} is not a number.")
    if not 0 <= number < below:
        allowed = "finite and not negative" if below > 1 else "from 0 to below 1"
        raise LabError(f"{name}={value!r} is not possible; allowed: {allowed}.")
    return number


def _rate(name: str, value: Any) -> Any:
    """A learning rate; one that is a tensor stays it, for torch's schedulers write into it."""
    number = _number(name, value)
    return value if isinstance(value, torch.Tensor) else number


def _betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise LabError(f"betas={value!r} are not two numbers, such as (0.9, 0.999).")
    try:
        return _number(name, value[0], below=1), _number(name, value[1], below=1)
    except LabError:
        raise LabError(f"betas={summary(value)} are not possible; allowed: two numbers from 0 to below 1.") from None


class OfTorch(TypedDict, total=False):
    """What torch's optimizers take besides, as far as several of them do."""

    maximize: bool
    foreach: bool | None
    fused: bool | None
    amsgrad: bool
    capturable: bool
    differentiable: bool


def not_here(name: str, value: Any) -> Any:
    """What optimizers of the lab have no form of: taken where it says nothing, refused with what to do instead."""
    if not value:
        return value
    if name == "amsgrad":
        raise LabError(
            "amsgrad=True keeps a third state, the largest second moment, which optimizers here do not have; leave it "
            "out, or take torch.optim.Adam."
        )
    if name == "decoupled_weight_decay":
        raise LabError("decoupled_weight_decay=True makes an AdamW of an Adam; take AdamW8bit, or AdamW, instead.")
    if name == "capturable":
        raise LabError("capturable=True is for CUDA graphs, and optimizers here step on the CPU; leave it out.")
    raise LabError(f"{name}={summary(value)} has no form here; leave it out, or take an optimizer of torch.optim.")


OF_TORCH = ("amsgrad", "capturable", "differentiable", "nesterov", "dampening", "lr_decay", "initial_accumulator_value",
            "decoupled_weight_decay")  # fmt: skip
CHECKS: Mapping[str, Check] = {
    **{name: not_here for name in OF_TORCH if name != "nesterov"},  # which SGD in formats has
    "lr": _rate,
    "eps": _number,
    "weight_decay": _number,
    "momentum": lambda name, value: _number(name, value, below=1),
    "betas": _betas,
    "seed": lambda name, value: integer(name, value, 0, 2**64 - 1),
}


def checked(given: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """The options of ``checks`` among ``given``, each as it is stored in a group; an impossible one is an error."""
    return {name: checks[name](name, value) for name, value in given.items() if name in checks}


def parameters(params: Any) -> list[Any]:
    """The tensors, or groups of them, that an optimizer is given; torch's own refusals do not say what is allowed."""
    given: list[Any] = []
    is_iterable = not isinstance(params, torch.Tensor | str | bytes) and fits(params, Iterable[Any])
    for item in params if is_iterable else ():
        last = item[-1] if isinstance(item, tuple) and item else item  # of a name and a tensor
        if not (isinstance(last, torch.Tensor) or (isinstance(last, dict) and "params" in last)):
            break  # what is no tensor may be the first of range(10**12)
        given.append(item)
    else:
        if given:
            return given
    raise LabError(f"params={summary(params)} is not possible; allowed: tensors, or groups {{'params': tensors}}.")
