"""Rounding weights by the inputs that they will meet: GPTQ's columns in order, AWQ's scales of channels.

Inputs are float64 sums here; the libraries compute in float32, so that a code near a tie may be another one there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import values
from ..errors import LabError, quotes_call
from .packed import LAYOUTS, as_compressed, pack

Array = np.ndarray[Any, Any]
f32 = np.float32
GRID = 20  # exponents that AWQ tries
AWQ = next(one for one in LAYOUTS if one.name == "awq")


def _matrices(w: Any, inputs: Any, group: int) -> tuple[Array, Array]:
    """Weights as float32 and inputs as float64, of as many columns."""
    weights, given = values(w), values(inputs)
    matrix = weights.flat.reshape(weights.shape).astype(f32)
    x = given.flat.reshape(given.shape).astype(np.float64)
    if matrix.ndim != 2 or x.ndim != 2 or matrix.shape[1] != x.shape[1] or not matrix.size or not x.size:
        raise LabError(
            f"w has shape {matrix.shape} and inputs {x.shape}; allowed: (outputs, inputs) and (samples, inputs)."
        )
    if not np.isfinite(matrix).all() or not np.isfinite(x).all():
        raise LabError("w or inputs have NaN or infinity.")
    if matrix.shape[1] % group:
        raise LabError(f"w has rows of {matrix.shape[1]}, and group={group} does not divide them.")
    return matrix, x


@quotes_call
def gptq(
    w: Any, inputs: Any, *, bits: int = 4, group: int = 128, zero_point: bool = False, damp: float = 0.01
) -> dict[str, Array]:
    """GPTQ with compressed-tensors' scales: the parts of layout "pack_quantized", as llm-compressor makes them.

    A column is rounded, and what that changes in the outputs is taken back, as far as it can be, by the columns to
    come. ``w``: (outputs, inputs). ``inputs``: (samples, inputs), what the layer met. ``damp``: added to the diagonal
    of the inputs' products, as a share of its mean. A channel that is always 0 has its weights rounded to 0.

    Source: arXiv 2210.17323.

    >>> import numpy as np
    >>> from fplab import stored
    >>> rng = np.random.default_rng(0)
    >>> w, x = rng.standard_normal((8, 64)), rng.standard_normal((256, 64)) @ rng.standard_normal((64, 64))
    >>> layout = stored.PACKED["pack_quantized"]
    >>> made, plain = gptq(w, x, group=32), layout.encode(w, group=32)
    >>> errors = [np.linalg.norm(x @ (layout.decode(one, "fp32") - w).T) for one in (made, plain)]
    >>> bool(errors[0] < 0.8 * errors[1])
    True
    """
    matrix, x = _matrices(w, inputs, group)
    least, most, left = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, matrix.astype(np.float64)
    with np.errstate(all="ignore"):
        _, scale, zero = as_compressed(matrix, bits, group, zero_point)
    products = x.T @ x
    silent = np.diag(products) == 0
    products[silent, silent], left[:, silent] = 1, 0
    products[np.diag_indices_from(products)] += damp * np.diag(products).mean()
    upper = np.linalg.cholesky(np.linalg.inv(products)).T  # of which row j is what column j does to those to come
    codes = np.empty(matrix.shape, np.int8)
    for j in range(matrix.shape[1]):
        s, z = scale[:, j // group].astype(np.float64), zero[:, j // group]
        codes[:, j] = np.rint(np.clip(left[:, j] / s + z, least, most))
        error = (left[:, j] - (codes[:, j].astype(np.int16) - z) * s) / upper[j, j]
        left[:, j + 1 :] -= error[:, None] * upper[j, j + 1 :]
    return pack(codes, scale, zero, bits, zero_point)


@quotes_call
def awq(w: Any, inputs: Any, *, group: int = 128) -> tuple[dict[str, Array], Array]:
    """AWQ's search for scales of channels: the parts of layout "awq" for ``w * scales``, and the scales.

    Inputs are to be divided by the scales, float32 (inputs,), which the layer before can do. Of 20 exponents of the
    inputs' mean magnitudes, over the weights' own, the one is taken with which the outputs change least.

    Source: arXiv 2306.00978, as AutoAWQ computes it.
    """
    matrix, x = _matrices(w, inputs, group)
    parts = np.abs(matrix).reshape(len(matrix), -1, group)
    own = (parts / (parts.max(-1, keepdims=True) + f32(1e-6))).reshape(matrix.shape).mean(0, dtype=np.float64)
    met = np.abs(x).mean(0)
    best: tuple[float, dict[str, Array], Array] = (np.inf, {}, np.ones(0, f32))
    with np.errstate(all="ignore"):
        for ratio in np.arange(GRID) / GRID:
            scales = np.maximum(met**ratio / (own ** (1 - ratio) + 1e-4), 1e-4)
            scales = (scales / np.sqrt(scales.max() * scales.min())).astype(f32)
            scales[~np.isfinite(scales)] = 1
            made = AWQ.encode(matrix * scales, group=group, zero_point=True)
            change = AWQ.decode(made, "fp32") / scales - matrix
            loss = float(np.square(x @ change.T).mean())
            best = min(best, (loss, made, scales), key=lambda one: one[0])
    return best[1], best[2]
