"""Ten operations of a network, with every elementary operation rounded to one format, and in float64.

Each takes values (rows, n) that the format holds and rounds after every addition, product, quotient, root, exponential
and logarithm. With ``work`` a half format that is the operation "in half precision" as a formula would have it, with
"fp32" it is the inside of torch's kernels, which load halves, compute in FP32 and round once when they store.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import numeric

EPS = 1e-5  # layer norm's
Operation = Callable[[np.ndarray, str], np.ndarray]
Reference = Callable[[np.ndarray], np.ndarray]


def rounded(x: np.ndarray, work: str) -> np.ndarray:
    """float64 values rounded to a format, as float32 (all formats here fit)."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(numeric.quantize(x, work), np.float32)


def exp(x: np.ndarray, work: str) -> np.ndarray:
    """e^x, correctly rounded but for the rarest cases: float64's exponential rounded once more."""
    with np.errstate(over="ignore", under="ignore"):
        return rounded(np.exp(x.astype(np.float64)), work)


def log(x: np.ndarray, work: str) -> np.ndarray:
    """The natural logarithm, likewise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return rounded(np.log(x.astype(np.float64)), work)


def cube(x: np.ndarray, work: str) -> np.ndarray:
    """x to the power 3, as two products (GELU's tanh form has one)."""
    return mul(mul(x, x, work), x, work)


def total(x: np.ndarray, work: str) -> np.ndarray:
    """The sum of a row, one term after the other: (rows, 1)."""
    return column(numeric.sum(x, work, "sequential"))


def mean(x: np.ndarray, work: str) -> np.ndarray:
    """The sum divided by the length."""
    return div(total(x, work), np.float32(x.shape[-1]), work)


def variance(x: np.ndarray, work: str) -> np.ndarray:
    """The mean of the squared distances from the mean, in two passes."""
    return squares(sub(x, mean(x, work), work), work)


def squares(x: np.ndarray, work: str) -> np.ndarray:
    """The mean of squares."""
    return mean(mul(x, x, work), work)


def norm(x: np.ndarray, work: str) -> np.ndarray:
    """The square root of the sum of squares."""
    return np.asarray(numeric.sqrt(total(mul(x, x, work), work), work), np.float32)


def softmax(x: np.ndarray, work: str) -> np.ndarray:
    """Exponentials of the distances from the maximum, divided by their sum."""
    powers = exp(sub(x, x.max(axis=-1, keepdims=True), work), work)
    return div(powers, total(powers, work), work)


def layer_norm(x: np.ndarray, work: str) -> np.ndarray:
    """Distances from the mean divided by sqrt(variance + eps), without weight and bias."""
    distance = sub(x, mean(x, work), work)
    variance_ = add(squares(distance, work), rounded(np.array([EPS]), work), work)
    return div(distance, column(numeric.sqrt(variance_, work)[:, 0]), work)


def cross_entropy(x: np.ndarray, work: str) -> np.ndarray:
    """The loss of a row of logits whose first is the true class's: log of the sum of exponentials minus that logit."""
    shifted = sub(x, x.max(axis=-1, keepdims=True), work)
    return sub(log(total(exp(shifted, work), work), work), shifted[:, :1], work)


def add(a: np.ndarray, b: np.ndarray, work: str) -> np.ndarray:
    return once(np.add, numeric.add, a, b, work)


def sub(a: np.ndarray, b: np.ndarray, work: str) -> np.ndarray:
    return once(np.subtract, numeric.sub, a, b, work)


def mul(a: np.ndarray, b: np.ndarray, work: str) -> np.ndarray:
    return once(np.multiply, numeric.mul, a, b, work)


def div(a: np.ndarray, b: np.ndarray | np.float32, work: str) -> np.ndarray:
    return once(np.divide, numeric.div, a, b, work)


def once(
    hardware: np.ufunc, lab: Callable[..., Any], a: np.ndarray, b: np.ndarray | np.float32, work: str
) -> np.ndarray:
    """An operation on float32 arrays, rounded once: FP32's is the processor's own, twenty times faster."""
    if work == "fp32":
        with np.errstate(all="ignore"):
            return np.asarray(hardware(a, b), np.float32)
    return np.asarray(lab(a, b, work), np.float32)


def column(x: np.ndarray) -> np.ndarray:
    """One number a row, as (rows, 1) float32."""
    return np.asarray(x, np.float32).reshape(-1, 1)


# --- in float64 -----------------------------------------------------------------------------------------------------
def exact_softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def exact_cross_entropy(x: np.ndarray) -> np.ndarray:
    """The loss; ``log1p`` of the other classes' share keeps it exact where the network is sure."""
    others = np.exp(x[:, 1:] - x[:, :1]).sum(axis=-1, keepdims=True)
    largest = x.max(axis=-1, keepdims=True)
    far = np.log(np.exp(x - largest).sum(axis=-1, keepdims=True)) + largest - x[:, :1]
    return np.asarray(np.where(others < 1, np.log1p(others), far))


def exact_layer_norm(x: np.ndarray) -> np.ndarray:
    distance = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(distance / np.sqrt((distance**2).mean(axis=-1, keepdims=True) + EPS))


@dataclass(frozen=True)
class Listed:
    """An operation of the experiment.

    ``data``: which real values it takes. ``members``: the dispatcher's names that a call of torch's operation meets;
    the list holds it if it holds one of them. ``elementwise``: one result a value, so every code can be tried.
    """

    name: str
    run: Operation
    exact: Reference
    data: str
    members: tuple[str, ...]
    elementwise: bool = False


OPERATIONS: tuple[Listed, ...] = (
    Listed("exp", exp, np.exp, "logits", ("exp",), True),
    Listed("log", log, np.log, "positive", ("log",), True),
    Listed("pow", cube, lambda x: x**3, "activations", ("pow.Tensor_Scalar",), True),
    Listed("sum", total, lambda x: x.sum(axis=-1, keepdims=True), "channels", ("sum", "sum.dim_IntList")),
    Listed("mean", mean, lambda x: x.mean(axis=-1, keepdims=True), "channels", ("mean", "mean.dim")),
    Listed("variance", variance, lambda x: x.var(axis=-1, keepdims=True), "channels", ("var.correction",)),
    Listed("norm", norm, lambda x: np.sqrt((x**2).sum(axis=-1, keepdims=True)), "channels", ("linalg_vector_norm",)),
    Listed("softmax", softmax, exact_softmax, "logits", ("softmax.int",)),
    Listed("layer norm", layer_norm, exact_layer_norm, "activations", ("layer_norm",)),
    Listed("cross-entropy", cross_entropy, exact_cross_entropy, "logits", ("log_softmax.int", "nll_loss")),
)
NAMES = tuple(op.name for op in OPERATIONS)
