"""Products of quantised matrices, exact in INT32, and the outlier decomposition of LLM.int8().

After T. Dettmers, M. Lewis, Y. Belkada and L. Zettlemoyer, LLM.int8(): 8-bit Matrix Multiplication for Transformers at
Scale (arXiv 2208.07339). X (T, K) are activations, W (K, N) weights; a method is a record that says which constants
each has, whether with a zero point, and whether feature dimensions with outliers go their own way in FP16.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LabError, chosen, door, one_of, quotes_call
from .affine import Affine, Array, codes_of, dequantize, floats, quantize, scheme

INT32_MAX = 2**31 - 1
FLOAT32_EXACT, FLOAT64_EXACT = 2**24, 2**53  # below these, sums of integers are exact in whatever order
THRESHOLD = 6.0  # the paper's alpha


@door
@dataclass(frozen=True)
class Method:
    """One line of the paper's Table 1. ``inputs`` and ``weights``: what of X and W shares a constant.

    ``zero_point``: asymmetric. ``decompose``: columns of X with a magnitude from the threshold on, and the rows of W
    that they meet, are multiplied in FP16. ``title``: as the paper calls it.
    """

    name: str
    title: str
    inputs: str
    weights: str
    zero_point: bool = False
    decompose: bool = False


METHODS: tuple[Method, ...] = (
    Method("absmax", "Int8 absmax", "tensor", "tensor"),
    Method("zeropoint", "Int8 zeropoint", "tensor", "tensor", zero_point=True),
    Method("rowwise", "Int8 absmax row-wise", "row", "tensor"),
    Method("vectorwise", "Int8 absmax vector-wise", "row", "column"),
    Method("zeropoint_vectorwise", "Int8 zeropoint vector-wise", "row", "column", zero_point=True),
    Method("rowwise_decomposed", "Int8 absmax row-wise + decomposition", "row", "tensor", decompose=True),
    Method("llm_int8", "Absmax LLM.int8()", "row", "column", decompose=True),
    Method("zeropoint_llm_int8", "Zeropoint LLM.int8()", "row", "column", zero_point=True, decompose=True),
)
"""The ways of quantising both factors of a product."""


def method_of(method: str | Method) -> Method:
    """The method of a name, or the record itself."""
    return chosen("method", method, {record.name: record for record in METHODS}, Method)


def demand_int32(k: int, a: int, b: int) -> None:
    """An error unless every sum of ``k`` products of magnitudes up to ``a`` and ``b`` fits INT32."""
    if k * a * b > INT32_MAX:
        parts = INT32_MAX // (a * b)
        cure = f"split the product into parts of K <= {parts} and add those in INT64" if parts else "use smaller codes"
        raise LabError(
            f"K={k} products of magnitudes up to {a} and {b} can reach {k * a * b}, and INT32 ends at {INT32_MAX}; "
            f"{cure}."
        )


def _magnitude(x: Array) -> int:
    return max(abs(int(x.min())), abs(int(x.max()))) if x.size else 0


@quotes_call
def int_matmul(a: Any, b: Any) -> Array:
    """``a @ b`` of integer matrices (M, K) and (K, N), exact, as int32 (M, N).

    Raises LabError where ``K * max|a| * max|b|`` exceeds 2^31 - 1, even if this very product would not wrap: INT8
    units wrap (and ``torch._int_mm`` does), silently. For those bits see ``fplab.tensorcore.matmul(inputs="int8")``.

    >>> int_matmul([[100, -128]], [[127], [1]]).tolist()
    [[12572]]
    """
    x, y = codes_of(a, "a"), codes_of(b, "b")
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise LabError(f"a has shape {x.shape} and b {y.shape}; they must be (M, K) and (K, N).")
    k, most = x.shape[1], _magnitude(x) * _magnitude(y)
    demand_int32(k, _magnitude(x), _magnitude(y))
    # Every partial sum is an integer below 2^31, so float64 holds it, and float32 if it is below 2^24: BLAS is exact.
    carrier = np.float32 if k * most <= FLOAT32_EXACT else np.float64
    return np.asarray(np.matmul(x.astype(carrier), y.astype(carrier)).astype(np.int32))


@quotes_call
def outliers(x: Any, threshold: float = THRESHOLD) -> Array:
    """Which feature dimensions of X (T, K) hold a magnitude of ``threshold`` or more: bool (K,).

    >>> outliers([[0.1, -7.0, 5.9], [0.2, 0.0, 1.0]]).tolist()
    [False, True, False]
    """
    v = floats(x)
    with np.errstate(over="ignore"):
        least = np.float32(demand_threshold(threshold))
    return np.asarray((np.abs(v) >= least).any(axis=tuple(range(v.ndim - 1))))


def demand_threshold(threshold: Any) -> float:
    """A threshold, if it is a number that can be one."""
    try:
        number = float(threshold)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(threshold, str) or not number >= 0:
        raise LabError(f"threshold={threshold!r} is not possible; allowed: 0 (all dimensions) to infinity (none).")
    return number


@quotes_call
def matmul(
    x: Any, w: Any, method: str | Method = "llm_int8", threshold: float = THRESHOLD, outlier_weights: str = "fp16"
) -> Array:
    """``x @ w`` in INT8 by a method of :data:`METHODS`: float32 (T, N) from x (T, K) and w (K, N).

    W is quantised whole, as it is before any input is seen; the constants of X leave outlier dimensions out. The INT32
    sum is exact; ``float32(sum) * (scale_x * scale_w)`` is rounded to FP32 three times, as on a GPU. With a zero point
    the differences ``code - zero_point`` are multiplied, 9 bits by 9. The decomposed part multiplies FP16 operands,
    adds the products in the order of the dimensions in FP64 and rounds to FP32; then one FP32 addition.

    ``threshold``: the magnitude from which a dimension of X is an outlier, for the methods that decompose.
    ``outlier_weights``: "fp16" as the paper writes it, or "int8": the rows of W come from its codes, as in
    bitsandbytes, which keeps no second copy of the weights.

    >>> x, w = np.eye(2, dtype=np.float32) * 127, np.array([[1.0], [0.5]], np.float32)
    >>> matmul(x, w, "vectorwise").ravel().tolist()
    [127.0, 64.0]
    """
    chosen, a, b = method_of(method), floats(x, "x"), floats(w, "w")
    demand_choice(outlier_weights)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise LabError(f"x has shape {a.shape} and w {b.shape}; they must be (T, K) and (K, N).")
    if not a.size or not b.size:
        return np.zeros((a.shape[0], b.shape[1]), np.float32)
    apart = outliers(a, threshold) if chosen.decompose else np.zeros(a.shape[1], np.bool_)
    how = scheme(b, "int8", chosen.weights, chosen.zero_point)
    codes = quantize(b, how)
    result = np.zeros((a.shape[0], b.shape[1]), np.float32)
    if not apart.all():
        result = _quantised(a[:, ~apart], codes[~apart], how, chosen)
    if apart.any():
        rows = b[apart] if outlier_weights == "fp16" else dequantize(codes[apart], how)
        result = result + in_half(a[:, apart], rows)
    return result


def demand_choice(outlier_weights: str) -> None:
    """An error for weights of outlier dimensions that are kept in no known way."""
    one_of("outlier_weights", outlier_weights, ("fp16", "int8"))


def _quantised(x: Array, codes: Array, how: Affine, method: Method) -> Array:
    """The part of the product that is in INT8; ``codes`` and ``how`` are those of the weights."""
    own = scheme(x, "int8", method.inputs, method.zero_point)
    a = quantize(x, own).astype(np.int32) - own.zero_point
    total = int_matmul(a, codes.astype(np.int32) - how.zero_point)
    with np.errstate(over="ignore"):
        return np.asarray(total.astype(np.float32) * (own.scale * how.scale))


def in_half(x: Array, w: Array) -> Array:
    """The product of a few outlier dimensions: FP16 operands, sums in FP64 in the order of K, rounded to FP32."""
    total = np.zeros((x.shape[0], w.shape[1]))
    a, b = (_half(v, name).astype(np.float64) for v, name in ((x, "x"), (w, "w")))
    for k in range(x.shape[1]):
        total += a[:, k, None] * b[k]
    return total.astype(np.float32)


def _half(x: Array, name: str) -> Array:
    if x.size and np.abs(x).max() >= 65520:
        raise LabError(f"an outlier of {name} is {float(np.abs(x).max())!r}, beyond FP16's 65504.")
    return x.astype(np.float16)
