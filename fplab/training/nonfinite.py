"""Why a run stops: the first number that is not finite, where it arose, and the likely cause."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LabError
from ..formats import get
from ..words import part, say
from ..words.patterns import refused
from .policies import Policy

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


class StoppedError(LabError):
    """A run that met infinity or NaN.

    ``step``: from 0; ``tensor``: the loss, or the parameter's name; ``cause``: in words; ``losses``: of the steps
    before, in order.
    """

    losses: tuple[float, ...] = ()
    is_misuse = False

    def __init__(self, step: int, tensor: str, what: str, cause: str) -> None:
        rule = say("step {step}: {tensor} is {what}. Likely cause: {cause}", step=step, tensor=refused(tensor))
        super().__init__(rule.fill(what=what, cause=refused(cause)))
        self.step, self.tensor, self.cause = step, tensor, cause


def kind(tensor: Tensor) -> str:
    """NaN or infinite, for a tensor that holds either."""
    return "NaN" if bool(tensor.isnan().any()) else str(say("infinite"))


def finite(tensor: Tensor) -> bool:
    """Whether every element is; integers are."""
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def first_bad_parameter(model: nn.Module) -> tuple[str, Tensor] | None:
    """The first parameter that holds infinity or NaN, by name; one small reduction for each, when all is well."""
    named = [(name, p.detach()) for name, p in model.named_parameters()]
    if not named or bool(torch.stack([p.abs().amax().float() for _, p in named]).isfinite().all()):
        return None
    return next(((name, p) for name, p in named if not finite(p)), None)


# --- the loss ---------------------------------------------------------------------------------------------------
def loss_not_finite(step: int, loss: Tensor, model: nn.Module, again: Callable[[], object]) -> StoppedError:
    """The error for a loss; ``again()`` computes the loss once more, and the first layer to go wrong is found."""
    layer_cause = first_bad_layer(model, again)
    if layer_cause is None:
        cause = part(
            f"every layer's output is finite, so the loss overflows by itself in {_format(loss)}; compute it in FP32."
        )
    else:
        cause = layer_cause
    return StoppedError(step, part("the loss"), kind(loss.detach()), cause)


def first_bad_layer(model: nn.Module, again: Callable[[], object]) -> str | None:
    """The first layer, in the order of computation, with an output that is not finite: its name, and why."""
    causes: list[str] = []

    def look(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not causes and isinstance(output, Tensor) and not finite(output):
                causes.append(_layer_cause(name, [x for x in inputs if isinstance(x, Tensor)], output))

        return hook

    with ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            if name and not any(True for _ in module.children()):
                hooks.enter_context(module.register_forward_hook(look(name)))
        again()
    return causes[0] if causes else None


def _layer_cause(name: str, inputs: list[Tensor], output: Tensor) -> str:
    fmt = _format(output)
    if all(finite(x) for x in inputs):
        most = max((float(x.abs().amax()) for x in inputs if x.is_floating_point() and x.numel()), default=0.0)
        return part(
            f"layer {name!r} overflows {fmt}, whose largest number is {float(get(fmt).max):g}: its inputs are finite, "
            f"of magnitudes up to {most:g}. A smaller learning rate, BF16's range, or this layer in FP32."
        )
    given = kind(next(x for x in inputs if not finite(x)))
    return part(
        f"what layer {name!r} is given is {given} already, from an operation between the layers or the data, in {fmt}."
    )


def _format(tensor: Tensor) -> str:
    return NAMES.get(tensor.dtype, str(tensor.dtype))


# --- the weights ------------------------------------------------------------------------------------------------
def weights_not_finite(
    step: int, name: str, parameter: nn.Parameter, optimizer: torch.optim.Optimizer, policy: Policy, scale: float,
    before: float,
) -> StoppedError:  # fmt: skip
    """The error for a parameter after a step; ``before``: the largest magnitude of the weights before it."""
    cause = (
        _from_gradient(parameter.grad, policy, scale)
        or _from_states(optimizer, parameter, policy)
        or part(
            f"gradient and states are finite, so the update overflows {policy.weights}, whose largest number is "
            f"{float(get(policy.weights).max):g} (weights were at most {before:g}); a smaller learning rate."
        )
    )
    return StoppedError(step, part(f"weight {name!r}"), kind(parameter.detach()), cause)


def _from_gradient(gradient: Tensor | None, policy: Policy, scale: float) -> str | None:
    if gradient is None or finite(gradient):
        return None
    fmt = policy.cast or policy.autocast or "fp32"
    advice = (
        "a smaller scale, or a dynamic scaler that skips such a step" if scale > 1 else "a check that skips the step"
    )
    return part(
        f"its gradient was {kind(gradient)}: the backward pass in {fmt} at loss scale {scale:g} overflowed; {advice}."
    )


def _from_states(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, policy: Policy) -> str | None:
    states: Mapping[str, Any] = optimizer.state.get(parameter, {})
    for name, state in states.items():
        if isinstance(state, Tensor) and not finite(state):
            return part(
                f"the optimizer's state {name!r} is {kind(state)}: it overflows {policy.states}; "
                "hold it in FP32 or BF16."
            )
    eps = next((group["eps"] for group in optimizer.param_groups if "eps" in group), None)
    second = states.get("exp_avg_sq")
    if eps is not None and isinstance(second, Tensor) and bool((second == 0).any()):
        smallest = float(get(policy.states).smallest_subnormal) if policy.states != "fp32" else 0.0
        if eps <= smallest / 2:
            return part(
                f"Adam divides by zero: {int((second == 0).sum())} elements of 'exp_avg_sq' underflow to 0, and "
                f"eps={eps:g} is 0 in {policy.states} too, whose smallest number is {smallest:g}; a larger eps, or "
                "FP32 states."
            )
    return None


def largest(model: nn.Module) -> float:
    """The largest magnitude among the parameters; NaN and infinity if one is."""
    values = [p.detach().abs().amax().float() for p in model.parameters()]
    return float(torch.stack(values).amax()) if values else math.nan
