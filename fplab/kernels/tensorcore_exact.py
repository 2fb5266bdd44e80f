"""The Tensor Core products that are no floating-point blocks of the common kind: integers, FP64 and block-scaled FP4.

The matrix kernels take B by rows of k, so that the loop over columns is the inner one and vectorises.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from . import inlined, jit
from .tensorcore import NONE, check, cut, is_infinite, is_nan, parts, round_sum
from .tensorcore_fast import ABS, INFINITY, NEVER, _float, _power64, _truncate

SPAN = 256  # columns worked on at a time
GROUP = 16  # products of one exact sum in block-scaled FP4
LARGEST, SMALLEST = np.int64(2**31 - 1), np.int64(-(2**31))


@jit
def integer_matmul(a, b, c, count, saturate, row0, row1):
    """``c[i] += a[i] @ b`` on int8 into int32, for rows ``row0`` to ``row1``: modulo 2**32, or clamped.

    Clamping happens once for every ``count`` products, which are summed exactly with c.
    """
    part = np.empty(SPAN, np.int32)
    for left in range(0, b.shape[1], SPAN):
        width = min(SPAN, b.shape[1] - left)
        for i in range(row0, row1):
            for start in range(0, a.shape[1], count):
                part[:width] = np.int32(0)
                for k in range(start, min(start + count, a.shape[1])):
                    x = np.int32(a[i, k])
                    for j in range(width):
                        part[j] += np.int32(x * np.int32(b[np.uintp(k), np.uintp(left + j)]))
                if saturate:
                    for j in range(width):
                        total = np.int64(c[i, left + j]) + np.int64(part[j])
                        c[i, left + j] = np.int32(min(max(total, SMALLEST), LARGEST))
                else:
                    for j in range(width):
                        c[np.uintp(i), np.uintp(left + j)] += part[j]


@intrinsic
def fma(_context, x, y, z):
    """x * y + z, all float64 or all float32, rounded once."""

    def generate(_context, builder, _signature, args):
        return builder.fma(*args)

    return (x(x, x, x), generate) if x == y == z and x in (types.float32, types.float64) else None


@jit
def fma_outer(part, left, right, c, row0, row1):
    """``c[i, j] = fma(left[i] * right[j], part[i, j], c[i, j])`` on floats of one type, for some rows."""
    for i in range(row0, row1):
        x = left[i]
        for j in range(part.shape[1]):
            at = np.uintp(j)
            c[np.uintp(i), at] = fma(x * right[at], part[np.uintp(i), at], c[np.uintp(i), at])


@jit
def add_row(part, row, nan, c, row0, row1):
    """``c[i, j] = part[i, j] + row[j]`` on float32, a NaN with the bits ``nan``, for some rows; c as bits."""
    for i in range(row0, row1):
        for j in range(part.shape[1]):
            at = np.uintp(j)
            total = np.float32(part[np.uintp(i), at] + row[at])
            c[np.uintp(i), at] = np.uint32(nan) if total != total else total.view(np.uint32)


@jit
def fma_dot(a, b, c):
    """Rows: ``c[i] = fma(a[i, k], b[i, k], c[i])`` for ascending k on floats of one type."""
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            c[i] = fma(a[i, k], b[i, k], c[i])


# --- block-scaled FP4 -----------------------------------------------------------------------------------------
@jit
def grouped_block(a, b, start, ma, ea, mb, eb, per, c, p):
    """One block of ``p.length`` products in groups of 16, element by element; float32 bits in and out.

    ``ma``, ``ea`` and ``mb``, ``eb``: significands (float64, NaN for a NaN) and exponents of scales, each for ``per``
    products. A group that sums to zero counts toward emax where ``p.zero_groups``.
    """
    groups = p.length // GROUP
    negative, mc, ec = parts(c, p.emin_c)
    bad = is_nan(c)
    emax = ec if mc else np.int64(p.zero_exponent)
    ms = np.zeros(groups, np.int64)
    es = np.zeros(groups, np.int64)
    for g in range(groups):
        n = (start + g * GROUP) // per
        if np.isnan(ma[n]) or np.isnan(mb[n]):
            bad = True
            continue
        quarters = np.int64(0)  # E2M1 products are multiples of 1/4
        for k in range(start + g * GROUP, start + (g + 1) * GROUP):
            quarters += np.int64(np.float32(4) * a[k] * b[k])
        ms[g] = quarters * np.int64(8 * ma[n]) * np.int64(8 * mb[n])  # significands have at most 3 fraction bits
        es[g] = ea[n] + eb[n]
        if ms[g] or p.zero_groups:
            emax = max(emax, es[g])
    if bad:
        return np.uint32(p.nan)
    if is_infinite(c):
        return c
    if emax < NONE:
        return np.uint32(0)
    emax = max(emax, np.int64(p.floor))
    total = cut(mc, negative, 23 - p.align + emax - ec)
    for g in range(groups):
        total += cut(abs(ms[g]), ms[g] < 0, 8 - p.align + emax - es[g])
    return round_sum(total, emax - p.align, p) if total else np.uint32(0)


@jit
def grouped_dot(a, b, ma, ea, mb, eb, per, c, out, p):
    """Rows: ``out[i]`` is the chain of blocks of ``a[i]`` and ``b[i]`` (values) with their scales, from ``c[i]``."""
    check(p)
    for i in range(a.shape[0]):
        acc = np.uint32(p.nan) if is_nan(c[i]) else c[i]
        for start in range(0, a.shape[1], p.length):
            acc = grouped_block(a[i], b[i], start, ma[i], ea[i], mb[i], eb[i], per, acc, p)
        out[i] = acc


def _group_sum(n):
    """The sum of ``n`` products of int16, which holds it, as a function of (a, row, b, column, k)."""
    if n == 1:

        @inlined
        def product(a, i, b, j, k):
            return np.int16(a[np.uintp(i), np.uintp(k)] * b[np.uintp(k), np.uintp(j)])

        return product
    half, h = _group_sum(n // 2), n // 2

    @inlined
    def total(a, i, b, j, k):
        return np.int16(half(a, i, b, j, k) + half(a, i, b, j, k + h))

    return total


_sum16 = _group_sum(GROUP)


@inlined
def _true_exponent(bits, emin):
    """The exponent of float32 bits, at least ``emin``; a float64 has none that is subnormal. NEVER for a zero."""
    field = np.int32((np.float64(_float(bits)).view(np.int64) >> np.int64(52)) & np.int64(0x7FF))
    return max(np.int32(field - np.int32(1023)), np.int32(emin)) if field else np.int32(NEVER)


@jit
def grouped_matmul(a, b, sa, ea, sb, eb, per, out, row0, row1, length, r):
    """The same for all columns, where groups of zero count: ``out`` holds c and receives results, as float32 bits.

    Shapes: twice the values ``a`` (M, K), ``b`` (K, N) as int16; scales ``sa`` (M, K / per), ``sb`` (K / per, N) as
    float64 and their exponents ``ea``, ``eb`` as int32. K is a multiple of ``length``.
    """
    groups = length // GROUP
    top, unit = np.empty(SPAN, np.int32), np.empty(SPAN, np.float64)
    total, terms = np.empty(SPAN, np.float64), np.empty((groups, SPAN), np.int16)
    for left in range(0, b.shape[1], SPAN):
        width = min(SPAN, b.shape[1] - left)
        for i in range(row0, row1):
            for start in range(0, a.shape[1], length):
                for j in range(width):
                    top[j] = max(_true_exponent(out[np.uintp(i), np.uintp(left + j)], r.emin_c), np.int32(r.floor))
                for g in range(groups):
                    n = np.uintp((start + g * GROUP) // per)
                    e = ea[i, n]
                    for j in range(width):
                        terms[np.uintp(g), np.uintp(j)] = _sum16(a, i, b, left + j, start + g * GROUP)
                    for j in range(width):
                        top[j] = max(top[j], np.int32(e + eb[n, np.uintp(left + j)]))
                for j in range(width):
                    c = np.float64(_float(out[np.uintp(i), np.uintp(left + j)]))
                    unit[j] = _power64(np.int64(r.align) - np.int64(top[j]))
                    total[j] = np.trunc(c * unit[j])
                for g in range(groups):
                    n = np.uintp((start + g * GROUP) // per)
                    x = sa[i, n] * 0.25  # a product of twice two values is four times theirs
                    for j in range(width):
                        scale = np.float64(x * sb[n, np.uintp(left + j)])
                        total[j] += np.trunc(np.float64(terms[np.uintp(g), np.uintp(j)]) * scale * unit[j])
                for j in range(width):
                    at = np.uintp(left + j)
                    c = out[np.uintp(i), at]
                    result = _truncate(total[j] * _power64(np.int64(top[j]) - np.int64(r.align)), r)
                    result = np.uint32(0) if total[j] == 0.0 else result
                    result = c if np.uint32(c & ABS) == INFINITY else result
                    out[np.uintp(i), at] = np.uint32(r.nan) if np.isnan(total[j]) else result
