"""SGD, Adam and AdamW in formats; parameters and states are float32 tensors that hold values of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from ...errors import LabError
from ...formats import FormatLike
from ...nn import bits
from ...words import part
from . import programs
from .arithmetic import rounded
from .base import LabOptimizer
from .options import OfTorch
from .precision import Precision, execute, precision
from .programs import Program

States = FormatLike | Mapping[str, FormatLike]
Observer = Callable[[Tensor, np.ndarray, np.ndarray, np.ndarray], None]


class Options(OfTorch, total=False):
    """What every optimizer in formats takes; see :class:`FormatOptimizer`."""

    weights: FormatLike
    states: States
    compute: FormatLike | None
    update: str
    seed: int


class FormatOptimizer(LabOptimizer):
    """An optimizer every operation of which is rounded to a format; use a subclass.

    ``weights``: the format of the parameters, to which they are rounded at once. ``states``: the format of each state,
    one for all or by name. ``compute``: of everything between (:func:`~.precision.precision` says what None means).
    ``update``: "nearest", "stochastic", "kahan" or "master"; ``seed``: of the stochastic rounding, whose bits depend
    on the seed, the step, the parameter's place and the element, and on nothing else. ``maximize``: follow the gradient
    instead of its opposite; ``foreach`` and ``fused`` say how torch walks over tensors, and change nothing.

    ``observer``, if set, is called for each parameter with (parameter, weight before, update, weight after), float32
    copies in the parameter's shape; before and after are the master's where there is one.
    """

    fixed = ("weights", "states", "compute", "update", "seed")
    dtypes = (torch.float32,)
    demand = part('pass float32 on the CPU, in which values of every format travel, and say which: weights="bf16"')
    carried = ("_formats",)
    observer: Observer | None = None

    def __init__(
        self, params: Iterable[Any], numbers: dict[str, Any], *, weights: FormatLike = "fp32", states: States = "fp32",
        compute: FormatLike | None = None, update: str = "nearest", seed: int = 0,
        maximize: bool = False, foreach: bool | None = None, fused: bool | None = None, **others: Any,
    ) -> None:  # fmt: skip
        chosen = {
            "weights": weights, "states": states, "compute": compute, "update": update, "seed": seed,
            "maximize": maximize,
        }  # fmt: skip
        self._scratch: dict[int, dict[str, np.ndarray]] = {}
        super().__init__(params, {**numbers, **chosen}, others)

    # --- what a kind of optimizer says ----------------------------------------------------------------------

    def _program(self, group: dict[str, Any]) -> Program:
        """What it computes, up to the update; a decay that is decoupled from the gradient is the rule's."""
        raise NotImplementedError

    def _coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        """The numbers in its program at a step (from 1), computed in Python floats, as torch computes them."""
        raise NotImplementedError

    def _decays_weights(self, group: dict[str, Any]) -> bool:
        """Whether the weight decay is decoupled: applied to the weight by the rule, not to the gradient."""
        return False

    # --- a group, a step ------------------------------------------------------------------------------------

    def _adopt(self, group: dict[str, Any]) -> None:
        names = programs.states(self._program(group))
        chosen = precision(group["weights"], group["states"], group["compute"], group["update"], names)
        by_name = {name: fmt.name for name, fmt in chosen.states.items()}
        group.update(weights=chosen.weights.name, states=by_name, compute=chosen.compute.name)
        for p in group["params"]:
            if chosen.update == "master":
                self.state[p]["master"] = p.detach().clone(memory_format=torch.contiguous_format)
                self._start(p, group)  # a checkpoint loads what is there, and takes one state for all
            _store(p, rounded("hold", _flat(p), fmt=chosen.weights))
        self._formats: list[Precision] = [*getattr(self, "_formats", ()), chosen]  # a group knows names of formats only

    def _shaped(self, group: dict[str, Any]) -> tuple[str, ...]:
        master = ("master",) if group["update"] == "master" else ()
        return (*programs.states(self._program(group)), *programs.RULES[group["update"]].keeps, *master)

    def _update(self, p: Tensor, gradient: Tensor, number: int, place: int) -> None:
        group, chosen, state = self.param_groups[number], self._formats[number], self.state[p]
        self._start(p, group)
        step = state["step"] = state["step"] + 1
        weight = _flat(state["master"] if chosen.update == "master" else p)
        values: dict[str, Any] = self._coefficients(group, step)
        values |= {name: _flat(state[name]) for name in self._shaped(group) if name != "master"}
        values |= {"weight": weight, "gradient": _flat(gradient)}
        before = weight.copy() if self.observer else None
        seeds = {"weight": self._seed(group, step, place)} if chosen.rule.stochastic else None
        scratch = self._scratch.setdefault(weight.size, {})
        execute(self._whole_program(group, chosen), values, chosen.of, seeds, scratch)
        _store(p, rounded("hold", weight, fmt=chosen.weights) if chosen.update == "master" else weight)
        if self.observer and before is not None:
            shown = (x.reshape(bits.local(p).shape).copy() for x in (before, values["update"], weight))
            self.observer(p, *shown)

    def _start(self, p: Tensor, group: dict[str, Any]) -> None:
        """The states that a parameter lacks, of zero."""
        state = self.state[p]
        state.setdefault("step", 0)
        for name in self._shaped(group):
            if name not in state:
                state[name] = torch.zeros_like(p, memory_format=torch.contiguous_format)

    def _whole_program(self, group: dict[str, Any], chosen: Precision) -> Program:
        decay = chosen.rule.decay if self._decays_weights(group) else ()
        return (*self._program(group), *decay, *chosen.rule.apply)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, and of a state that is loaded."""
        super().__setstate__(state)
        self._scratch = {}


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values as a float32 array (n,), shared where they lie in order on the CPU."""
    return bits.array(bits.local(tensor).detach().float().contiguous().view(-1))


def _store(parameter: torch.Tensor, values: np.ndarray) -> None:
    """Write values back into a tensor; where they already are its own memory, only tell autograd that it changed."""
    parameter = bits.local(parameter)
    if parameter.data_ptr() == values.ctypes.data:
        torch.autograd.graph.increment_version(parameter)
        return
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view(parameter.shape))


class SGD(FormatOptimizer):
    """Stochastic gradient descent with torch's ``momentum``, ``nesterov`` and ``weight_decay`` (L2), no dampening.

    ``options``: see :class:`FormatOptimizer`.
    State ``velocity``: momentum * velocity + gradient (torch's momentum_buffer).
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        if nesterov and not momentum:
            raise LabError("nesterov=True needs momentum above 0.")
        numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, numbers, **options)

    def _program(self, group: dict[str, Any]) -> Program:
        decay = programs.L2 if group["weight_decay"] else ()
        if not group["momentum"]:
            return (*decay, *programs.SGD)
        return (*decay, *(programs.NESTEROV if group["nesterov"] else programs.MOMENTUM))

    def _coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        names = ("momentum", "weight_decay")
        return {"minus_lr": -float(group["lr"]), **{name: group[name] for name in names}}


class Adam(FormatOptimizer):
    """Adam (Kingma and Ba 2015); ``weight_decay`` is L2: a part of the gradient, and so divided by its root too.

    ``betas``, ``eps``: as torch's. ``options``: see :class:`FormatOptimizer`.
    States ``exp_avg`` and ``exp_avg_sq``, named as torch names them.
    """

    decoupled = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **options)

    def _program(self, group: dict[str, Any]) -> Program:
        coupled = group["weight_decay"] and not self.decoupled
        return (*programs.L2, *programs.ADAM) if coupled else programs.ADAM

    def _coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        lr, decay = float(group["lr"]), group["weight_decay"]
        return {
            "one_minus_beta1": 1 - beta1,
            "beta2": beta2,
            "one_minus_beta2": 1 - beta2,
            "root_correction2": (1 - beta2**step) ** 0.5,
            "minus_step_size": -(lr / (1 - beta1**step)),
            "eps": group["eps"],
            "weight_decay": decay,
            "keep": 1 - lr * decay,
            "minus_decay": -(lr * decay),
        }

    def _decays_weights(self, group: dict[str, Any]) -> bool:
        return self.decoupled and bool(group["weight_decay"])


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): the weight shrinks by lr * weight_decay.

    In a narrow format that shrinkage is itself an update that can be lost: ``1 - lr * weight_decay`` must be further
    from 1 than half an ulp. By default ``weight_decay`` is 0.01, as in torch; other arguments as :class:`Adam`'s.
    """

    decoupled = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, **options)
