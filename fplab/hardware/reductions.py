"""Cases of torch's sums, softmax and layer norm: what they accumulate in, and where they round.

The sum of a half tensor is expected to be one rounding of a sum in FP32, whose order :mod:`fplab.hardware.order` shows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import numeric
from ..errors import need
from .cases import Arrays, Case, Meta
from .operands import Draw, build
from .programs import asked

FORMATS = ("fp16", "bf16", "fp32")
LENGTHS = (17, 128, 1000, 4096)
ROWS = 16
KEY = 900
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(dim=1),
    "mean": lambda x: x.mean(dim=1),
    "prod": lambda x: (1 + x / 64).prod(dim=1),
    "norm": lambda x: x.norm(dim=1),
    "var": lambda x: x.var(dim=1),
    "logsumexp": lambda x: x.logsumexp(dim=1),
    "max of cumsum": lambda x: x.cumsum(dim=1).amax(dim=1),
    "softmax": lambda x: x.softmax(dim=1)[:, :64],
    "log_softmax": lambda x: x.log_softmax(dim=1)[:, :64],
    "layer_norm": lambda x: need("torch").nn.functional.layer_norm(x, x.shape[1:])[:, :64],
    "rms_norm": lambda x: need("torch").nn.functional.rms_norm(x, x.shape[1:])[:, :64],
}


def cases() -> tuple[Case, ...]:
    """A case for each format and length, an output for each operation; of rows of results the first 64 are kept."""
    return tuple(reduction_case(fmt, n) for fmt in FORMATS for n in LENGTHS)


def reduction_case(fmt: str, n: int) -> Case:
    """Input ``x`` (16, n): eight rows of both signs, eight positive."""

    def inputs() -> Arrays:
        draw = Draw(KEY + 10 * FORMATS.index(fmt) + LENGTHS.index(n))
        negative = draw.coins(ROWS, n) & (np.arange(ROWS) < ROWS // 2)[:, None]
        return {"x": build(draw, fmt, draw.between(-6, 1, ROWS, n), negative)}

    return asked(f"reductions in {fmt} of {n}", fmt, inputs, OPERATIONS,
                 "In what and in which order is it accumulated?",
                 {"one rounding of the exact result": partial(exact, fmt)})  # fmt: skip


def exact(fmt: str, given: Arrays, meta: Meta) -> Arrays:
    """Each result from float64 (whose own errors are far below these formats'), rounded once."""
    x = numeric.decode(given["x"], fmt, np.float64)
    n = x.shape[1]
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    top = x.max(axis=1, keepdims=True)
    powers = np.exp(x - top)
    total = powers.sum(axis=1, keepdims=True)
    eps = 1e-5
    machine = float(np.finfo(np.float32).eps) if fmt == "fp32" else {"fp16": 2.0**-10, "bf16": 2.0**-7}[fmt]
    results = {
        "sum": x.sum(axis=1),
        "mean": x.mean(axis=1),
        "prod": (1 + x / 64).prod(axis=1),
        "norm": np.sqrt((x * x).sum(axis=1)),
        "var": variance[:, 0] * n / (n - 1),
        "logsumexp": np.log(total[:, 0]) + top[:, 0],
        "max of cumsum": x.cumsum(axis=1).max(axis=1),
        "softmax": (powers / total)[:, :64],
        "log_softmax": (x - top - np.log(total))[:, :64],
        "layer_norm": ((x - mean) / np.sqrt(variance + eps))[:, :64],
        "rms_norm": (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + machine))[:, :64],
    }
    return {name: np.asarray(numeric.encode(value, fmt)) for name, value in results.items()}
