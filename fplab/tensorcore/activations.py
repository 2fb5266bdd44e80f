"""What a kernel's epilogue does to finished sums before it stores them: ReLU and GELU, fused.

The activation takes the sum as the accumulator holds it, not as it would be stored, and its value is rounded once, to
the accumulator's format. That value is computed in float64 here; a GPU's approximation need not be rounded correctly.
"""

import math
from typing import Any

import numpy as np

from ..errors import LabError
from ..floats import quantize
from .models import Model, input_name

Array = np.ndarray[Any, Any]
_ERFC = np.frompyfunc(math.erfc, 1, 1)


def activated(x: Array, activation: str, model: Model) -> Array:
    """The activation of results of any shape, float32 or float64 numbers of the accumulator's format, as such."""
    if model.output == "int32":
        raise LabError(f"activation={activation!r} is for floating-point sums; {input_name(model)} has int32.")
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if activation == "relu":
            y = np.where(wide <= 0, 0.0, wide)
        elif activation == "gelu":
            y = wide * np.asarray(_ERFC(wide * -math.sqrt(0.5)), np.float64) / 2
        else:
            y = wide / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    y[np.isneginf(wide)] = 0.0  # where GELU's formulas have infinity times zero
    result = np.asarray(quantize(y, model.format_d), x.dtype)
    result[np.isnan(x)] = x[np.isnan(x)]
    return result
