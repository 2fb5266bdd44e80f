"""Optimizers as data: lists of single operations, each of which is rounded once.

A :class:`Step` says ``target = operation(left, right)``. Names are arrays (``weight``, ``gradient``, the states, and
whatever an earlier step made) or coefficients, which are Python floats as in torch and enter an operation as float32.
Nothing here says in which format a result is held: that is :class:`~fplab.training.optimizers.precision.Precision`'s,
which interprets a program. An optimizer with 8-bit states computes in float32 between reading its states and
quantising them: :mod:`fplab.kernels.optim8` compiles its program, and
:mod:`fplab.training.eight_bit.oracle` interprets it in numpy.

The order of operations of SGD and ADAM is that of torch's single-tensor implementations on the CPU (torch/optim/sgd.py,
adam.py) with two differences. Here every product and sum is rounded by itself, where torch's CPU kernels of
``add(alpha=)``, ``addcmul`` and ``lerp`` contract a product and a sum into one rounding in FP32. And the square root is
correctly rounded, which torch's FP32 square root on the CPU is not.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple


class Step(NamedTuple):
    """``target = operation(left, right)``, rounded once; "sqrt", "sign" and "hold" (rounding alone) have no right."""

    target: str
    operation: str
    left: str
    right: str = ""

    def __str__(self) -> str:
        signs = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
        if self.operation in signs:
            return f"{self.target} = {self.left} {signs[self.operation]} {self.right}"
        return f"{self.target} = {self.left if self.operation == 'hold' else f'{self.operation}({self.left})'}"


Program = tuple[Step, ...]

# --- what the gradient becomes -----------------------------------------------------------------------------------
L2: Program = (  # weight decay as a part of the loss: torch's SGD and Adam
    Step("shrinkage", "mul", "weight", "weight_decay"),
    Step("gradient", "add", "gradient", "shrinkage"),
)
SGD: Program = (Step("update", "mul", "gradient", "minus_lr"),)
MOMENTUM: Program = (
    Step("velocity", "mul", "velocity", "momentum"),
    Step("velocity", "add", "velocity", "gradient"),
    Step("update", "mul", "velocity", "minus_lr"),
)
NESTEROV: Program = (
    *MOMENTUM[:2],
    Step("ahead", "mul", "velocity", "momentum"),
    Step("ahead", "add", "gradient", "ahead"),
    Step("update", "mul", "ahead", "minus_lr"),
)
ADAM: Program = (  # Kingma and Ba 2015, Algorithm 1, its bias corrections folded into two scalars as in torch
    Step("change", "sub", "gradient", "exp_avg"),
    Step("change", "mul", "change", "one_minus_beta1"),
    Step("exp_avg", "add", "exp_avg", "change"),
    Step("exp_avg_sq", "mul", "exp_avg_sq", "beta2"),
    Step("square", "mul", "gradient", "one_minus_beta2"),
    Step("square", "mul", "square", "gradient"),
    Step("exp_avg_sq", "add", "exp_avg_sq", "square"),
    Step("root", "sqrt", "exp_avg_sq"),
    Step("root", "div", "root", "root_correction2"),
    Step("root", "add", "root", "eps"),
    Step("update", "mul", "exp_avg", "minus_step_size"),
    Step("update", "div", "update", "root"),
)


# --- with states of 8 bits -------------------------------------------------------------------------------------------
class Update(NamedTuple):
    """What an optimizer with 8-bit states computes, up to the update.

    ``name``: as saved states have it. ``states``: the signed state's name and that of the one that is never negative;
    "" where there is none.
    """

    name: str
    states: tuple[str, str]
    program: Program

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers of the states that it has, as their names in the state dictionary end."""
        return tuple(number for number, state in zip("12", self.states, strict=True) if state)


def _average(state: str, beta: str, value: str, target: str = "") -> Program:
    """``target = beta * state + (1 - beta) * value``, each product rounded; ``target``: the state where not given."""
    return (
        Step(target or state, "mul", state, beta),
        Step("share", "mul", f"one_minus_{beta}", value),
        Step(target or state, "add", target or state, "share"),
    )


ADAM_8BIT = Update("adam", ("exp_avg", "exp_avg_sq"), (  # Dettmers et al., arXiv 2110.02861, and its CUDA kernel
    *_average("exp_avg", "beta1", "gradient"),
    Step("exp_avg_sq", "mul", "exp_avg_sq", "beta2"),
    Step("square", "mul", "one_minus_beta2", "gradient"),
    Step("square", "mul", "square", "gradient"),
    Step("exp_avg_sq", "add", "exp_avg_sq", "square"),
    Step("root", "sqrt", "exp_avg_sq"),
    Step("root", "add", "root", "eps"),
    Step("ratio", "div", "exp_avg", "root"),
    Step("update", "mul", "minus_step_size", "ratio"),
))  # fmt: skip
MOMENTUM_8BIT = Update("momentum", ("velocity", ""), MOMENTUM)
LION_8BIT = Update("lion", ("exp_avg", ""), (  # X. Chen et al., arXiv 2302.06675
    *_average("exp_avg", "beta1", "gradient", "mean"),
    Step("direction", "sign", "mean"),
    Step("update", "mul", "minus_lr", "direction"),
    *_average("exp_avg", "beta2", "gradient"),
))  # fmt: skip
ADAGRAD_8BIT = Update("adagrad", ("", "sum"), (
    Step("square", "mul", "gradient", "gradient"),
    Step("sum", "add", "sum", "square"),
    Step("root", "sqrt", "sum"),
    Step("root", "add", "root", "eps"),
    Step("ratio", "div", "gradient", "root"),
    Step("update", "mul", "minus_lr", "ratio"),
))  # fmt: skip


# --- what the weight becomes -------------------------------------------------------------------------------------
class Rule(NamedTuple):
    """How an update reaches a weight. ``decay``: the decoupled weight decay of AdamW; ``apply``: the sum itself.

    ``stochastic``: whether what changes the weight is rounded stochastically. ``keeps``: the arrays it needs besides
    the weight, which are zero at first.
    """

    decay: Program
    apply: Program
    stochastic: bool = False
    keeps: tuple[str, ...] = ()


SHRINK: Program = (Step("weight", "mul", "weight", "keep"),)  # Loshchilov and Hutter 2019, as torch does it
SUM: Program = (Step("weight", "add", "weight", "update"),)
COMPENSATED: Program = (  # Kahan 1965, on the weight: what a sum loses is added to the next update
    Step("corrected", "add", "update", "compensation"),
    Step("summed", "add", "weight", "corrected"),
    Step("moved", "sub", "summed", "weight"),
    Step("compensation", "sub", "corrected", "moved"),
    Step("weight", "hold", "summed"),
)
DECAY_IN_UPDATE: Program = (  # as a term of the update, so that the compensation keeps what the weight cannot
    Step("shrinkage", "mul", "weight", "minus_decay"),
    Step("update", "add", "update", "shrinkage"),
)

RULES: Mapping[str, Rule] = {
    "nearest": Rule(SHRINK, SUM),
    "stochastic": Rule(SHRINK, SUM, stochastic=True),
    "kahan": Rule(DECAY_IN_UPDATE, COMPENSATED, keeps=("compensation",)),
    "master": Rule(SHRINK, SUM),  # on an FP32 weight, of which the parameter is a rounded copy
}


def decayed(update: Program, decay: str) -> Program:
    """A whole step with the weight decay in the "gradient", "before" or "after" the update, or none ("")."""
    ahead, behind = (SHRINK if decay == place else () for place in ("before", "after"))
    return (*(L2 if decay == "gradient" else ()), *update, *ahead, *SUM, *behind)


@lru_cache
def states(program: Program) -> tuple[str, ...]:
    """The names that a program reads before it writes them, the weight and the gradient aside: what a step leaves.

    >>> states(ADAM), states(L2 + SGD)
    (('exp_avg', 'exp_avg_sq'), ())
    """
    written = {step.target for step in program} - {"weight", "gradient"}
    return tuple(name for name in missing(program, ()) if name in written)


def missing(program: Program, given: Iterable[str]) -> list[str]:
    """The names that a program reads before anything gave them a value: its coefficients, given all its arrays."""
    known, lacking = set(given), []
    for step in program:
        lacking += [name for name in (step.left, step.right) if name and name not in known]
        known |= {step.target, *lacking}
    return lacking


def written(program: Program) -> str:
    """A program as lines to read.

    >>> print(written(SGD + SUM))
    update = gradient * minus_lr
    weight = weight + update
    """
    return "\n".join(map(str, program))
