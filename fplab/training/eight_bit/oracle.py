"""A step of every 8-bit optimizer as its program reads, one operation after another, in numpy's float32.

numpy rounds each operation once, so the bits are the definition's. The kernels are held to it bit for bit.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...codebooks import Codebook, Rule, oracle
from ..optimizers.programs import Program

Array = np.ndarray[Any, Any]
OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    # float64's root of a float32, rounded again, is exact for 24 bits
    "sqrt": lambda x, _: np.sqrt(x.astype(np.float64)).astype(np.float32),
    "sign": lambda x, _: (x > 0).astype(np.float32) - (x < 0).astype(np.float32),
}  # fmt: skip


def load(ranks: Array, scales: Array, book: Codebook, block: int) -> Array:
    """The state that ranks and scales stand for."""
    state = [np.float32(book.values[r]) * scales[i // block] for i, r in enumerate(ranks.reshape(-1).tolist())]
    return np.array(state, np.float32)


def save(state: Array, book: Codebook, block: int, rule: Rule) -> tuple[Array, Array]:
    """The ranks and scales of a state."""
    return oracle.quantize(state, Codebook(book.name, book.values), block, rule)


def step(program: Program, arrays: Mapping[str, Array], coefficients: Mapping[str, float]) -> dict[str, Array]:
    """All arrays after a step; ``arrays``: float32 (n,), the weight, the gradient and the states.

    A gradient that is not finite leaves its weight and zeroes its states.
    """
    values: dict[str, Any] = {name: np.float32(number) for name, number in coefficients.items()} | dict(arrays)
    with np.errstate(all="ignore"):
        for target, operation, left, right in program:
            values[target] = OPERATIONS[operation](values[left], values.get(right))
    fine = np.isfinite(arrays["gradient"])
    bad = {name: before if name in ("weight", "gradient") else np.float32(0) for name, before in arrays.items()}
    return {name: np.where(fine, values[name], bad[name]) for name in arrays}
