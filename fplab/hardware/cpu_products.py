"""torch's 16-bit products on this CPU: who computes them, in which order they are added, and the bits that follow."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import numeric, seeds
from ..errors import LabError
from ..processes import printed
from ..reveal import SumTree, reveal_order
from .environment import torch_for
from .tensors import TORCH

Array = np.ndarray[Any, Any]

ROWS, COLUMNS = 16, 32  # of the products: large enough that no path for vectors is taken
OWN = "torch's own loops"
ONEDNN = {"bf16": "bf16", "fp16": "f16"}  # its names of formats


def paths(formats: Sequence[str], k: int) -> tuple[str, ...]:
    """Who computes torch's products of formats with k terms: the name of oneDNN's implementation, or :data:`OWN`."""
    torch = torch_for("cpu")
    if not torch.backends.mkldnn.is_available():
        return (OWN,) * len(formats)
    with printed(b"onednn_verbose") as log, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        for fmt in formats:
            x = torch.ones(ROWS, k, dtype=getattr(torch, TORCH[fmt]))
            x @ torch.ones(k, COLUMNS, dtype=x.dtype)
    line = r"exec,cpu,(?:matmul|inner_product),([^,]+),[^,]*,src:{}:"
    matches = [re.search(line.format(ONEDNN[fmt]), "".join(log)) for fmt in formats]
    return tuple(f"oneDNN {match[1]}" if match else OWN for match in matches)


def product(a: Array, b: Array, fmt: str) -> Array:
    """What torch gives on the CPU for a (rows, k) times b (k, columns), which hold values of a format; float32."""
    torch = torch_for("cpu")
    x, y = (torch.from_numpy(np.ascontiguousarray(v, np.float32)).to(getattr(torch, TORCH[fmt])) for v in (a, b))
    return np.asarray((x @ y).float().numpy())


def order(fmt: str, k: int) -> SumTree | None:
    """The order in which torch adds k products of a format, from its results; None where they are those of no tree."""

    def dot(x: Array, y: Array) -> float:
        return float(product(np.tile(x, (ROWS, 1)), np.tile(y[:, None], COLUMNS), fmt)[0, 0])

    try:
        return reveal_order(dot, k, fmt, operands=2)
    except LabError:
        return None


def predicted(tree: SumTree, a: Array, b: Array, fmt: str) -> Array:
    """The product in this order, each step a fused multiply-add of FP32, rounded to the format at the end; float32.

    Two parts that are both sums are added. Nothing on the way may be subnormal: units differ in whether they flush it.
    """
    x, y = (np.asarray(v, np.float32) for v in (a, b))

    def spread(k: int) -> tuple[Array, Array]:
        shape = (len(a), b.shape[1])
        left, right = np.broadcast_to(x[:, k, None], shape), np.broadcast_to(y[k], shape)
        return np.ascontiguousarray(left), np.ascontiguousarray(right)

    def step(parts: list[Any]) -> Array:
        sums = [part for part in parts if not isinstance(part, int)]
        total = sums[0] if sums else np.zeros((len(a), b.shape[1]), np.float32)
        for other in sums[1:]:
            total = np.asarray(numeric.add(total, other, "fp32"))
        for k in (part for part in parts if isinstance(part, int)):
            total = np.asarray(numeric.fma(*spread(k), total, "fp32"))
        return total

    with np.errstate(all="ignore"):
        terms: list[Any] = list(range(tree.size))
        total = tree.fold(terms, step)
        return np.asarray(numeric.quantize(total, fmt))


def telling(k: int, fmt: str, seed: int) -> tuple[Array, Array]:
    """Operands whose last two products cancel the sum of the others, so that the low bits of its FP32 sums are left.

    a (16 ROWS, k) and b (k, COLUMNS), float32 that hold values of the format; the columns are powers of two of one.
    """
    raw = seeds.bits(16 * ROWS * k + k, seed, dtype=np.uint32) / 2.0**31 - 1
    values = np.array(numeric.quantize(raw, fmt), np.float64)
    a, b = values[:-k].reshape(-1, k), values[-k:]
    b[-2:] = 1
    left = a[:, :-2] @ b[:-2]
    for place in (-2, -1):
        a[:, place] = -np.asarray(numeric.quantize(left, fmt), np.float64)
        left = left + a[:, place]
    return a.astype(np.float32), np.outer(b, np.ldexp(1.0, np.arange(COLUMNS) % 4)).astype(np.float32)
