"""The optimizers as ``torch.optim.Optimizer``; parameters and states are float32 tensors with values of a format."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from ...errors import LabError, integer, quotes_class
from ...formats import Format
from . import programs
from .arithmetic import rounded
from .precision import Precision, demand_float32, execute, parameters, precision
from .programs import Program

States = str | Format | Mapping[str, str | Format]
Observer = Callable[[torch.nn.Parameter, np.ndarray, np.ndarray, np.ndarray], None]
CONFIGURATION = ("weights", "states", "compute", "update", "seed")


class LabOptimizer(Optimizer):
    """What the optimizers share: formats, rules of update, seeds, checkpoints.

    ``weights``: the format of the parameters, to which they are rounded at once. ``states``: the format of each state,
    one for all or by name. ``compute``: of everything between (:func:`~.precision.precision` says what None means).
    ``update``: "nearest", "stochastic", "kahan" or "master"; ``seed``: of the stochastic rounding, whose bits depend
    on the seed, the step, the parameter's place and the element, and on nothing else.

    ``observer``, if set, is called for each parameter with (parameter, weight before, update, weight after), float32
    copies in the parameter's shape; before and after are the master's where there is one.
    """

    observer: Observer | None = None

    def __init_subclass__(cls) -> None:
        quotes_class(cls)

    def __init__(
        self, params: Any, defaults: dict[str, Any], weights: str | Format, states: States,
        compute: str | Format | None, update: str, seed: int,
    ) -> None:  # fmt: skip
        seed = integer("seed", seed, 0, 2**32 - 1)
        for name in ("lr", "weight_decay", "eps"):
            value = defaults.get(name, 0.0)
            if not 0 <= value < float("inf"):
                raise LabError(f"{name}={value!r} is not possible; allowed: finite and not negative.")
        chosen = {"weights": weights, "states": states, "compute": compute, "update": update, "seed": seed}
        self._scratch: dict[int, dict[str, np.ndarray]] = {}
        super().__init__(parameters(params), {**defaults, **chosen})

    # --- what a kind of optimizer says ----------------------------------------------------------------------

    def _states(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of its states."""
        raise NotImplementedError

    def _program(self, group: dict[str, Any]) -> Program:
        """What it computes, up to the update; a decay that is decoupled from the gradient is the rule's."""
        raise NotImplementedError

    def _coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        """The numbers in its program at a step (from 1), computed in Python floats, as torch computes them."""
        raise NotImplementedError

    # --- torch's interface ----------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with settings of their own if given; they are rounded to their format."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        chosen = self._precision(group)
        names = {name: fmt.name for name, fmt in chosen.states.items()}
        group.update(weights=chosen.weights.name, states=names, compute=chosen.compute.name)
        self._formats = {**getattr(self, "_formats", {}), len(self.param_groups) - 1: chosen}
        for index, parameter in enumerate(group["params"]):
            demand_float32(parameter, index)
            before = _flat(parameter)
            if chosen.update == "master":
                self.state[parameter]["master"] = parameter.detach().clone(memory_format=torch.contiguous_format)
            _store(parameter, rounded("hold", before, fmt=chosen.weights))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step on every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        place = 0
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group, self._formats[number], place)
                place += 1
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; refused with the reason if it was saved in other formats or of other shapes."""
        for number, (own, saved) in enumerate(zip(self.param_groups, state_dict["param_groups"], strict=False)):
            for name in CONFIGURATION:
                if saved.get(name) != own[name]:
                    raise LabError(
                        f"the state's group {number} was saved with {name}={saved.get(name)!r}, but this optimizer has "
                        f"{name}={own[name]!r}; build it with {name}={saved.get(name)!r} to go on."
                    )
            for index, parameter in zip(saved["params"], own["params"], strict=False):
                for name, value in state_dict["state"].get(index, {}).items():
                    if isinstance(value, torch.Tensor) and value.shape != parameter.shape:
                        shapes = f"{tuple(value.shape)}, but the parameter is {tuple(parameter.shape)}"
                        raise LabError(f"the state's {name!r} of parameter {index} is {shapes}.")
        super().load_state_dict(copy.deepcopy(state_dict))

    def __getstate__(self) -> dict[str, Any]:
        """For ``copy`` and ``pickle``: torch takes along what it knows of alone."""
        return {**super().__getstate__(), "_formats": self._formats}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, and of a state that is loaded."""
        super().__setstate__(state)
        self._scratch = {}

    # --- inside ---------------------------------------------------------------------------------------------

    def _precision(self, group: dict[str, Any]) -> Precision:
        return precision(group["weights"], group["states"], group["compute"], group["update"], self._states(group))

    def _step_one(self, parameter: torch.nn.Parameter, group: dict[str, Any], chosen: Precision, place: int) -> None:
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            raise LabError("a gradient is sparse; pass dense gradients (nn.Embedding(..., sparse=False)).")
        state = self.state[parameter]
        for name in (*self._states(group), *chosen.rule.keeps):
            if name not in state:
                state[name] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        state["step"] = state.get("step", 0) + 1
        weight = _flat(state["master"] if chosen.update == "master" else parameter)
        values: dict[str, Any] = self._coefficients(group, state["step"])
        values |= {name: _flat(state[name]) for name in (*self._states(group), *chosen.rule.keeps)}
        values |= {"weight": weight, "gradient": _flat(parameter.grad)}
        before = weight.copy() if self.observer else None
        seeds = {"weight": _word(group["seed"], state["step"], place)} if chosen.rule.stochastic else None
        scratch = self._scratch.setdefault(weight.size, {})
        execute(self._whole_program(group, chosen), values, chosen.of, seeds, scratch)
        if chosen.update == "master":
            _store(parameter, rounded("hold", weight, fmt=chosen.weights))
        else:
            _store(parameter, weight)
        if self.observer and before is not None:
            shown = (x.reshape(parameter.shape).copy() for x in (before, values["update"], weight))
            self.observer(parameter, *shown)

    def _whole_program(self, group: dict[str, Any], chosen: Precision) -> Program:
        decay = chosen.rule.decay if self._decays_weights(group) else ()
        return (*self._program(group), *decay, *chosen.rule.apply)

    def _decays_weights(self, group: dict[str, Any]) -> bool:
        """Whether the weight decay is decoupled: applied to the weight by the rule, not to the gradient."""
        return False


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values as a float32 array (n,), shared where they lie in order on the CPU."""
    return np.asarray(tensor.detach().float().contiguous().view(-1).cpu().numpy())


def _store(parameter: torch.Tensor, values: np.ndarray) -> None:
    """Write values back into a tensor; where they already are its own memory, only tell autograd that it changed."""
    if parameter.data_ptr() == values.ctypes.data:
        torch.autograd.graph.increment_version(parameter)
        return
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view(parameter.shape))


def _word(seed: int, step: int, place: int) -> int:
    """The 64-bit seed of one parameter's stochastic rounding in one step."""
    key = np.array([seed, step << 24 | place], np.uint64)
    return int(np.random.Philox(key=key).random_raw(1)[0])


class SGD(LabOptimizer):
    """Stochastic gradient descent with torch's ``momentum``, ``nesterov`` and ``weight_decay`` (L2), no dampening.

    The arguments after ``*``: see :class:`LabOptimizer`.
    State ``velocity``: momentum * velocity + gradient (torch's momentum_buffer).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        weights: str | Format = "fp32",
        states: States = "fp32",
        compute: str | Format | None = None,
        update: str = "nearest",
        seed: int = 0,
    ) -> None:
        if not 0 <= momentum < 1:
            raise LabError(f"momentum={momentum!r} is not possible; allowed: 0 to below 1.")
        if nesterov and not momentum:
            raise LabError("nesterov=True needs momentum above 0.")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults, weights, states, compute, update, seed)

    def _states(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("velocity",) if group["momentum"] else ()

    def _program(self, group: dict[str, Any]) -> Program:
        decay = programs.L2 if group["weight_decay"] else ()
        if not group["momentum"]:
            return (*decay, *programs.SGD)
        return (*decay, *(programs.NESTEROV if group["nesterov"] else programs.MOMENTUM))

    def _coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        names = ("momentum", "weight_decay")
        return {"minus_lr": -float(group["lr"]), **{name: group[name] for name in names}}


class Adam(LabOptimizer):
    """Adam (Kingma and Ba 2015); ``weight_decay`` is L2: a part of the gradient, and so divided by its root too.

    ``betas``, ``eps``: as torch's. The arguments after ``*``: see :class:`LabOptimizer`.
    States ``exp_avg`` and ``exp_avg_sq``, named as torch names them.
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        weights: str | Format = "fp32",
        states: States = "fp32",
        compute: str | Format | None = None,
        update: str = "nearest",
        seed: int = 0,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise LabError(f"betas={betas!r} are not possible; allowed: two numbers from 0 to below 1.")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, weights, states, compute, update, seed)

    def _states(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

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
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        weights: str | Format = "fp32",
        states: States = "fp32",
        compute: str | Format | None = None,
        update: str = "nearest",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay,
            weights=weights, states=states, compute=compute, update=update, seed=seed,
        )  # fmt: skip
