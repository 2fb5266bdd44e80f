"""llama.cpp's searches for the scale of a few weights, in its order of FP32 operations (``ggml-quants.c``).

``x``: float32 (n, size), a row for each scale. Every search fills the scales, float32 (n,), and the codes that it ends
with, float32 as x, which stand where a scale is rounded to zero later.
"""

import numpy as np

from . import inlined, jit
from .codebooks import largest
from .fast32 import as_bits, as_float

LEAST = np.float32(1e-15)  # of a largest magnitude: below, all codes are zero
MAGIC = np.float32(12582912)
ONE, ZERO, TENTH = np.float32(1), np.float32(0), np.float32(0.1)
ABS = np.uint32(0x7FFFFFFF)


@inlined
def nearest(v):
    """``nearest_int``: to nearest, ties to even, by the low bits of a sum, which wrap around beyond 2**22."""
    low = np.int32(as_bits(np.float32(v + MAGIC)) & np.uint32(0x7FFFFF))
    return np.float32(low - np.int32(0x400000))


@inlined
def clipped(v, low, high):
    """The nearest integer within bounds."""
    return np.float32(max(low, min(high, nearest(v))))


@inlined
def size_of(v):
    """The magnitude."""
    return as_float(np.uint32(as_bits(v) & ABS))


@inlined
def first_largest(x):
    """The first element of largest magnitude."""
    most = ZERO
    for i in range(x.size):
        most = x[i] if size_of(x[i]) > size_of(most) else most
    return most


@jit
def largest_of_rows(x, out):
    """The first element of largest magnitude in each row of finite float32, with its sign."""
    bits = x.view(np.uint32)
    for row in range(x.shape[0]):
        most, i = largest(bits[row]), 0  # which vectorises, and ends where the search begins
        while np.uint32(bits[row, i] & ABS) != most:
            i += 1
        out[row, 0] = x[row, i]


@jit
def steps(x, low, inverse, addend, away, most, codes):
    """``(int8_t) ((x - low) * inverse + addend)``, at most ``most``: the fraction dropped, 0 beyond an int32 as on x86.

    ``low``, ``inverse``: float32, of each row. ``away``: the addend has the product's sign.
    """
    for row in range(x.shape[0]):
        v, out, least, factor = x[row], codes[row], low[row], inverse[row]
        for i in range(v.size):
            t = np.float32(np.float32(v[i] - least) * factor)
            sign = np.uint32(as_bits(t) & np.uint32(~ABS)) if away else np.uint32(0)
            t = np.float32(t + as_float(np.uint32(as_bits(addend) | sign)))
            code = np.int32(t) if size_of(t) < np.float32(2147483648) else np.int32(0)
            out[i] = min(np.int8(code), most)


@jit
def linear(codes, middle, scale, low, out):
    """``(code - middle) * scale + low``, each operation rounded; ``scale``, ``low``: float32, of each row."""
    for row in range(codes.shape[0]):
        source, to, factor, least = codes[row], out[row], scale[row], low[row]
        for i in range(source.size):
            to[i] = np.float32(np.float32(np.float32(np.float32(source[i]) - middle) * factor) + least)


@jit
def divided(x, addend, scale, kept, low, high, out):
    """``nearest_int((x + addend) / scale)`` within bounds, less ``low``; ``kept`` in rows whose scale is 0.

    ``addend``, ``scale``: float32, of each row; ``out``: uint8.
    """
    for row in range(x.shape[0]):
        v, to, plus, size = x[row], out[row], addend[row], scale[row]
        for i in range(v.size):
            code = np.float32(clipped(np.float32(np.float32(v[i] + plus) / size), low, high) - low)
            to[i] = np.uint8(np.int32(kept[row, i] if size == ZERO else code))


@inlined
def summed(x):
    """The sum in order."""
    total = ZERO
    for i in range(x.size):
        total = np.float32(total + x[i])
    return total


@inlined
def errors(v, w, codes, scale, low, absolute, out):
    """The weighted errors of codes, each absolute or squared."""
    for i in range(v.size):
        d = np.float32(np.float32(np.float32(scale * codes[i]) + low) - v[i])
        out[i] = np.float32(w[i] * (size_of(d) if absolute else np.float32(d * d)))


@jit
def with_minimum(x, weights, top, start, step, steps, absolute, scales, minima, codes):
    """``make_qkx2_quants``: a scale and a minimum of codes 0 to ``top``, by weighted least squares for many steps.

    ``weights``: as x; ``absolute``: whether an error counts as it is, or squared. ``minima``: as the scales, negated.
    """
    other, a, b, c = np.empty((4, x.shape[1]), np.float32)  # what vectorises comes before what is summed in order
    for row in range(x.shape[0]):
        v, w, out = x[row], weights[row], codes[row]
        low, high = v[0], v[0]
        for i in range(v.size):
            low, high = min(low, v[i]), max(high, v[i])
            a[i] = np.float32(w[i] * v[i])
        total, sum_x, low = summed(w), summed(a), min(low, ZERO)
        out[:] = ZERO
        scales[row], minima[row] = ZERO, -low
        if high == low:
            continue
        inverse = np.float32(top / np.float32(high - low))
        scale = np.float32(ONE / inverse)
        for i in range(v.size):
            out[i] = clipped(np.float32(inverse * np.float32(v[i] - low)), ZERO, top)
        errors(v, w, out, scale, low, absolute, a)
        least = summed(a)
        for k in range(steps + 1):
            inverse = np.float32(np.float32(start + np.float32(step * np.float32(k))) + top)
            inverse = np.float32(inverse / np.float32(high - low))
            for i in range(v.size):
                other[i] = clipped(np.float32(inverse * np.float32(v[i] - low)), ZERO, top)
                a[i] = np.float32(w[i] * other[i])
                b[i], c[i] = np.float32(a[i] * other[i]), np.float32(a[i] * v[i])
            sum_l, sum_l2, sum_xl = ZERO, ZERO, ZERO
            for i in range(v.size):
                sum_l, sum_l2 = np.float32(sum_l + a[i]), np.float32(sum_l2 + b[i])
                sum_xl = np.float32(sum_xl + c[i])
            det = np.float32(np.float32(total * sum_l2) - np.float32(sum_l * sum_l))
            if det > ZERO:
                s = np.float32(np.float32(np.float32(total * sum_xl) - np.float32(sum_x * sum_l)) / det)
                m = np.float32(np.float32(np.float32(sum_l2 * sum_x) - np.float32(sum_l * sum_xl)) / det)
                if m > ZERO:
                    s, m = np.float32(sum_xl / sum_l2), ZERO
                errors(v, w, other, s, m, absolute, a)
                error = summed(a)
                if error < least:
                    out[:] = other
                    least, scale, low = error, s, m
        scales[row], minima[row] = scale, -low


@inlined
def _sums(v, inverse, top, a, b):
    """The sums of x² x l and x² l l over the codes l of an inverse scale."""
    for i in range(v.size):
        code = clipped(np.float32(inverse * v[i]), -top, np.float32(top - ONE))
        w = np.float32(v[i] * v[i])
        a[i] = np.float32(np.float32(w * v[i]) * code)
        b[i] = np.float32(np.float32(w * code) * code)
    sum_xl, sum_l2 = ZERO, ZERO
    for i in range(v.size):
        sum_xl, sum_l2 = np.float32(sum_xl + a[i]), np.float32(sum_l2 + b[i])
    return sum_xl, sum_l2


@jit
def signed(x, top, scales, codes):
    """``make_qx_quants`` with x² as weights: codes 0 to 2 top - 1, of which top stands for zero."""
    a, b = np.empty((2, x.shape[1]), np.float32)
    for row in range(x.shape[0]):
        v, out = x[row], codes[row]
        most = first_largest(v)
        out[:] = ZERO
        scales[row] = ZERO
        if size_of(most) < LEAST:
            continue
        inverse = np.float32(-top / most)
        taken = inverse
        sum_xl, sum_l2 = _sums(v, inverse, top, a, b)
        scale = np.float32(sum_xl / sum_l2) if sum_l2 != ZERO else ZERO
        best = np.float32(scale * sum_xl)
        for k in range(-9, 10):
            if k != 0:
                inverse = np.float32(-np.float32(top + np.float32(TENTH * np.float32(k))) / most)
                sum_xl, sum_l2 = _sums(v, inverse, top, a, b)
                if sum_l2 > ZERO and np.float32(sum_xl * sum_xl) > np.float32(best * sum_l2):
                    taken, scale = inverse, np.float32(sum_xl / sum_l2)
                    best = np.float32(scale * sum_xl)
        for i in range(v.size):
            out[i] = np.float32(top + clipped(np.float32(taken * v[i]), -top, np.float32(top - ONE)))
        scales[row] = scale


@jit
def refined(x, top, scales, codes):
    """``make_q3_quants``: the same codes, then each moved where that lowers the error, five times over at most."""
    a, b = np.empty((2, x.shape[1]), np.float32)
    for row in range(x.shape[0]):
        v, out = x[row], codes[row]
        most = first_largest(v)
        out[:] = ZERO
        scales[row] = ZERO
        if size_of(most) < LEAST:
            continue
        inverse = np.float32(-top / most)
        sum_xl, sum_l2 = _sums(v, inverse, top, a, b)
        for i in range(v.size):
            out[i] = clipped(np.float32(inverse * v[i]), -top, np.float32(top - ONE))
        for _ in range(5):
            changed = False
            for i in range(v.size):
                w = np.float32(v[i] * v[i])
                xl = np.float32(sum_xl - np.float32(np.float32(w * v[i]) * out[i]))
                if xl > ZERO:
                    l2 = np.float32(sum_l2 - np.float32(np.float32(w * out[i]) * out[i]))
                    code = clipped(np.float32(np.float32(v[i] * l2) / xl), -top, np.float32(top - ONE))
                    if code != out[i]:
                        xl = np.float32(xl + np.float32(np.float32(w * v[i]) * code))
                        l2 = np.float32(l2 + np.float32(np.float32(w * code) * code))
                        ours = np.float32(np.float32(xl * xl) * sum_l2)
                        if l2 > ZERO and ours > np.float32(np.float32(sum_xl * sum_xl) * l2):
                            out[i], sum_xl, sum_l2, changed = code, xl, l2, True
            if not changed:
                break
        for i in range(v.size):
            out[i] = np.float32(out[i] + top)
        scales[row] = np.float32(sum_xl / sum_l2) if sum_l2 > ZERO else ZERO


@inlined
def index_of(v, values):
    """``best_index_int8``: the index of the nearest of 16 values, of two the upper."""
    upper = 1
    for i in range(1, values.size - 1):
        upper += 1 if v >= values[i] else 0
    nearer = np.float32(v - values[upper - 1]) < np.float32(values[upper] - v)
    index = upper - 1 if nearer else upper
    return 0 if v <= values[0] else values.size - 1 if v >= values[values.size - 1] else index


@inlined
def _table_sums(v, inverse, values, a, b):
    for i in range(v.size):
        q = values[index_of(np.float32(inverse * v[i]), values)]
        wq = np.float32(np.float32(v[i] * v[i]) * q)
        a[i], b[i] = np.float32(wq * v[i]), np.float32(wq * q)
    return summed(a), summed(b)


@jit
def table_scales(x, values, tries, scales):
    """The scale of IQ4's values with x² as weights, of all that ``tries`` values on both sides give."""
    a, b = np.empty((2, x.shape[1]), np.float32)
    for row in range(x.shape[0]):
        v = x[row]
        most = first_largest(v)
        scales[row] = ZERO
        if size_of(most) < LEAST:
            continue
        sum_x, sum_2 = _table_sums(v, np.float32(ONE / np.float32(-most / values[0])), values, a, b)
        scale = np.float32(sum_x / sum_2) if sum_2 > ZERO else ZERO
        best = np.float32(scale * sum_x)
        for k in range(-tries, tries + 1):
            sum_x, sum_2 = _table_sums(v, np.float32(np.float32(np.float32(k) + values[0]) / most), values, a, b)
            if sum_2 > ZERO and np.float32(sum_x * sum_x) > np.float32(best * sum_2):
                scale = np.float32(sum_x / sum_2)
                best = np.float32(scale * sum_x)
        scales[row] = scale


@jit
def table_codes(x, inverse, values, codes):
    """The codes, float32, of elements times the inverse scale of their row."""
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            codes[row, i] = np.float32(index_of(np.float32(inverse[row] * x[row, i]), values))
