"""In which format each number of an optimizer is held, and the interpreter that runs a program in those formats."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import one_of, unknown
from ...formats import Format, FormatLike, get
from .arithmetic import grid, rounded
from .programs import RULES, Program, Rule

FP32 = get("fp32")
OF_THE_WEIGHT = ("weight", "corrected", "summed", "moved", "compensation")


@dataclass(frozen=True)
class Precision:
    """The formats of an optimizer.

    ``weights``: of the parameters, and of Kahan's compensation. ``states``: by name. ``compute``: of everything else,
    the update included. ``update``: the name of the :class:`~.programs.Rule` by which updates reach weights; with
    "master" the weight that is updated is FP32, and the parameter is its rounded copy.
    """

    weights: Format
    states: Mapping[str, Format]
    compute: Format
    update: str

    @property
    def rule(self) -> Rule:
        """The rule of that name."""
        return RULES[self.update]

    def of(self, name: str) -> Format:
        """The format in which a step's result of this name is held."""
        if name in OF_THE_WEIGHT:
            return FP32 if self.update == "master" else self.weights
        return self.states.get(name, self.compute)


def precision(
    weights: FormatLike, states: FormatLike | Mapping[str, FormatLike], compute: FormatLike | None, update: str,
    names: Iterable[str],
) -> Precision:  # fmt: skip
    """The user's choices as records, or an error that says what is allowed. ``names``: the optimizer's states.

    ``states``: one format, or one by name (others FP32). ``compute``: None is the states' format where that is one of
    16 bits or more, as torch computes on half tensors, else FP32, as a kernel that unpacks narrow states does.
    """
    one_of("update", update, RULES)
    if isinstance(states, Mapping):
        if extra := set(states) - set(names):
            raise unknown("state", min(extra), names)
        by_name, usual = {name: get(states.get(name, FP32)) for name in names}, FP32
    else:
        usual = get(states)
        by_name = dict.fromkeys(names, usual)
    if compute is None:
        compute = usual if usual.bits >= 16 else FP32
    chosen = Precision(get(weights), by_name, get(compute), update)
    for fmt in (chosen.weights, chosen.compute, *by_name.values()):
        grid(fmt)  # refuses a format that cannot hold such numbers
    return chosen


Values = dict[str, Any]


def execute(
    program: Program, values: Values, fmt: Callable[[str], Format], stochastic: Mapping[str, int] | None = None,
    scratch: dict[str, np.ndarray] | None = None,
) -> None:  # fmt: skip
    """Run a program on ``values``: float32 (n,) arrays and numbers by name; every array made is put there.

    A target that is there already is overwritten in place, except "gradient", which is the caller's. ``stochastic``:
    the seeds of the targets that are rounded so. ``scratch``: arrays to use again for results of the same size.
    """
    for step in program:
        left, right = values[step.left], values[step.right] if step.right else 0.0
        out = values.get(step.target)
        if out is None or step.target == "gradient":
            out = scratch.get(step.target) if scratch is not None else None
        if out is None:
            out = np.empty_like(left)
            if scratch is not None:
                scratch[step.target] = out
        seed = stochastic.get(step.target) if stochastic else None
        values[step.target] = rounded(step.operation, left, right, fmt(step.target), seed=seed, out=out)
