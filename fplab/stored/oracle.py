"""llama.cpp's codes and searches for scales as ``ggml-quants.c`` reads: slow, and what the kernels are held against.

Every line that C computes in FP32 is one operation here, rounded once; sums are in order. The functions have the names
and the arguments of :mod:`fplab.kernels.ggml`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
f32 = np.float32
NOTHING = 1e-15  # of a largest magnitude, below which a row has no scale


def nearest_int(x: Any) -> Any:
    """C's trick: what FP32 adds to 1.5 * 2**23 stands in the low bits of the sum."""
    return ((x + f32(12582912)).view(np.int32) & 0x7FFFFF) - 0x400000


def in_order(terms: Iterable[Any]) -> Any:
    """The sum, one addition after the other."""
    return reduce(add, terms, f32(0))


def steps(x: Array, low: Array, inverse: Array, addend: Any, away: bool, most: Any, codes: Array) -> None:
    """``(int8_t) ((x - low) * inverse + addend)``: cut to an integer, and 0 beyond an int32, as on x86."""
    t = (x - low[:, None]) * inverse[:, None]
    t = t + (np.copysign(addend, t) if away else addend)
    codes[:] = np.minimum(np.where(np.abs(t) < 2.0**31, t, 0).astype(np.int64).astype(np.int8), most)


def linear(codes: Array, middle: Any, scale: Array, low: Array, out: Array) -> None:
    """``(code - middle) * scale + low``."""
    out[:] = (codes.astype(f32) - middle) * scale[:, None] + low[:, None]


def divided(x: Array, addend: Array, scale: Array, kept: Array, low: Any, high: Any, out: Array) -> None:
    """``nearest_int((x + addend) / scale)`` within bounds, less ``low``; what was kept where a scale is 0."""
    codes = np.clip(nearest_int((x + addend[:, None]) / scale[:, None]), int(low), int(high)) - int(low)
    out[:] = np.where(scale[:, None] == 0, kept, codes)


def with_minimum(
    x: Array, weights: Array, top: Any, start: Any, step: Any, steps: int, absolute: bool, scales: Array,
    minima: Array, codes: Array,
) -> None:  # fmt: skip
    """``make_qkx2_quants``: least-squares lines through the codes of many scales, each from the best minimum so far."""
    for row, (v, w) in enumerate(zip(x, weights, strict=True)):
        low, high, sum_w, sum_x = min(v.min(), f32(0)), v.max(), in_order(w), in_order(w * v)
        scales[row], minima[row], codes[row], least = 0, -low, 0, np.inf
        inverses = [] if high == low else [top, *(start + step * f32(k) + top for k in range(steps + 1))]
        for n, inverse in enumerate(inverses):
            q = np.clip(nearest_int(inverse / (high - low) * (v - low)), 0, int(top)).astype(f32)
            scale, minimum = f32(1) / (inverse / (high - low)), low
            if n > 0:
                sum_q, sum_q2, sum_xq = in_order(w * q), in_order(w * q * q), in_order(w * q * v)
                determinant = sum_w * sum_q2 - sum_q * sum_q
                if not determinant > 0:
                    continue
                scale = (sum_w * sum_xq - sum_x * sum_q) / determinant
                minimum = (sum_q2 * sum_x - sum_q * sum_xq) / determinant
                if minimum > 0:
                    scale, minimum = sum_xq / sum_q2, f32(0)
            apart = scale * q + minimum - v
            error = in_order(w * (np.abs(apart) if absolute else apart * apart))
            if n == 0 or error < least:
                least, low = error, minimum
                scales[row], minima[row], codes[row] = scale, -minimum, q


def _first_largest(v: Array) -> Any:
    return v[np.abs(v).argmax()]


def _signed_codes(v: Any, top: Any) -> Any:
    return np.clip(nearest_int(v), -int(top), int(top) - 1).astype(f32)


def _best(tried: Iterable[tuple[Array, Array, Array]]) -> tuple[Any, Array]:
    """Of values q of a row v the scale and q with the most sum(w v q)**2 / sum(w q q), of equal ones the first."""
    scale, best, most = f32(0), np.empty(0), f32(0)
    for n, (q, by_row, squares) in enumerate(tried):
        sum_xq, sum_q2 = in_order(by_row), in_order(squares)
        if n == 0 or (sum_q2 > 0 and sum_xq * sum_xq > most * sum_q2):
            scale, best = sum_xq / sum_q2 if sum_q2 > 0 else f32(0), q
            most = scale * sum_xq
    return scale, best


def signed(x: Array, top: Any, scales: Array, codes: Array) -> None:
    """``make_qx_quants``: codes from -top to top - 1, kept as those from 0, of 19 scales."""
    for row, v in enumerate(x):
        scales[row], codes[row], most, w = 0, 0, _first_largest(v), v * v
        if abs(most) >= NOTHING:
            inverses = [-(top + f32(0.1) * f32(k)) / most for k in (0, *range(-9, 0), *range(1, 10))]
            tried = (_signed_codes(inverse * v, top) for inverse in inverses)
            scales[row], best = _best((q, w * v * q, w * q * q) for q in tried)
            codes[row] = best + top


def refined(x: Array, top: Any, scales: Array, codes: Array) -> None:
    """``make_q3_quants``: five times over, each code becomes what the others leave to it, where that is better."""
    for row, v in enumerate(x):
        scales[row], codes[row], most = 0, 0, _first_largest(v)
        if abs(most) < NOTHING:
            continue
        q, w = _signed_codes(-top / most * v, top), v * v
        sum_xl, sum_l2 = in_order(w * v * q), in_order(w * q * q)
        for i in [*range(v.size)] * 5:
            xl = sum_xl - w[i] * v[i] * q[i]
            if xl > 0:
                l2 = sum_l2 - w[i] * q[i] * q[i]
                code = f32(_signed_codes(v[i] * l2 / xl, top))
                xl, l2 = xl + w[i] * v[i] * code, l2 + w[i] * code * code
                if code != q[i] and l2 > 0 and xl * xl * sum_l2 > sum_xl * sum_xl * l2:
                    q[i], sum_xl, sum_l2 = code, xl, l2
        scales[row], codes[row] = sum_xl / sum_l2 if sum_l2 > 0 else 0, q + top


def _indices(v: Array, values: Array) -> Array:
    """``best_index_int8``: of the nearest values, of two the upper; distances are FP32's."""
    upper = np.clip(np.searchsorted(values, v, "right"), 1, values.size - 1)
    inside = upper - (v - values[upper - 1] < values[upper] - v)
    return np.where(v <= values[0], 0, np.where(v >= values[-1], values.size - 1, inside))


def table_scales(x: Array, values: Array, tries: int, scales: Array) -> None:
    """The search of ``quantize_row_iq4_nl_impl``: of scales that make the largest one of several numbers."""
    for row, v in enumerate(x):
        scales[row], most, w = 0, _first_largest(v), v * v
        if abs(most) >= NOTHING:
            inverses = [f32(1) / (-most / values[0]), *((f32(k) + values[0]) / most for k in range(-tries, tries + 1))]
            tried = (values[_indices(inverse * v, values)] for inverse in inverses)
            scales[row] = _best((q, w * q * v, w * q * q) for q in tried)[0]


def table_codes(x: Array, inverse: Array, values: Array, codes: Array) -> None:
    """The indices of the nearest values."""
    for row, (v, scale) in enumerate(zip(x, inverse, strict=True)):
        codes[row] = _indices(scale * v, values)
