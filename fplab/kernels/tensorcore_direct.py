"""Convolutions in the blocks of :mod:`.tensorcore_fast`, of operands as they lie: no patches are written.

In a padded image, each element of k lies at an offset from the place of the result, the same for every place. So the
columns of a panel are places that follow one another, those between two rows of results included, which nobody reads;
or, for the gradient of the weights, channels that do. For each block and panel, loops over k and the columns find the
largest exponent, the truncated terms and their rounded sum, as there. All operands must be in range.
"""

import numpy as np

from . import inlined, jit
from .tensorcore_fast import (
    INFINITY,
    LEAST,
    WIDTH,
    _c_exponent,
    _float,
    _kept,
    _power,
    _power64,
    _truncate_normal,
    _truncated,
)
from .tensorcore_pack import _at, pack_line

MOST = np.int32(2**31 - 2**28)  # of a sum that fits int32 together with c's part


@jit
def pack(x, starts, step, zero, emin, cut, first, last, values, exponents, classes):
    """Pack rows ``x[plane, row]`` to ``plane * step + starts[row]`` for planes ``first`` to ``last``; classes by plane.

    ``x`` (planes, rows, width): float32, rounded as ``cut`` says; around the rows the results stay as they are.
    """
    for plane in range(first, last):
        worst = np.int32(0)
        for row in range(x.shape[1]):
            at = plane * step + starts[row]
            worst = max(worst, pack_line(x[plane, row], 0, x.shape[2], zero, emin, cut, values, exponents, at))
        classes[plane] = worst


@inlined
def _align(acc, at, top, emaxes, factors, parts, r):
    """Begin a block: the exponent of each column's alignment, what takes a term to its units, and c's part."""
    least = np.int32(max(r.floor, LEAST))
    for j in range(WIDTH):
        c = acc[_at(at + j)]
        emaxes[j] = max(max(np.int32(top[j]), _c_exponent(c, r.emin_c)), least)
        factors[j] = _power(np.int32(np.int32(r.align) - emaxes[j]))
        parts[j] = np.int32(0)


@inlined
def _finish(acc, at, top, emaxes, factors, parts, r):
    """End a block: c's part added, and the sum rounded."""
    far = False
    for j in range(WIDTH):
        far |= abs(parts[j]) > MOST
    if not far:
        for j in range(WIDTH):
            c = acc[_at(at + j)]
            total = np.int32(parts[j] + np.int32(np.float32(_float(c) * factors[j])))
            result = _truncated(total, _power(np.int32(emaxes[j] - np.int32(r.align))), r)
            result = _kept(c, r) if np.int32(top[j]) < np.int32(r.none) else result
            acc[_at(at + j)] = c if np.uint32(c & INFINITY) == INFINITY else result
        return
    for j in range(WIDTH):
        c = acc[_at(at + j)]
        total = np.float64(parts[j]) + np.float64(np.int32(np.float32(_float(c) * factors[j])))
        result = _truncate_normal(total * _power64(np.int64(emaxes[j]) - np.int64(r.align)), r)
        result = _kept(c, r) if np.int32(top[j]) < np.int32(r.none) else result
        acc[_at(at + j)] = c if np.uint32(c & INFINITY) == INFINITY else result


@jit
def places(x, ex, bases, w, ew, offsets, panels, length, out, first, last, r):
    """Results ``first`` to ``last``, each of ``panels`` * WIDTH places; float32 bits, ``[result][place]``.

    Result i takes row ``i % rows`` of ``w`` (rows, K), and its element of k from ``x[bases[i] + offsets[k] + place]``.
    """
    rows, taken = w.shape
    acc, top = np.empty(WIDTH, np.uint32), np.empty(WIDTH, ex.dtype)
    emaxes, parts, factors = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32), np.empty(WIDTH, np.float32)
    for item in range(first, last):
        row = item % rows
        for panel in range(panels):
            base = bases[item] + panel * WIDTH
            for j in range(WIDTH):
                acc[j] = np.uint32(0)
            for start in range(0, taken, length):
                end = min(start + length, taken)
                for j in range(WIDTH):
                    top[j] = r.none - 1
                for k in range(start, end):
                    at, e = base + offsets[k], ew[row, k]
                    for j in range(WIDTH):
                        top[j] = max(top[j], ex.dtype.type(ex[_at(at + j)] + e))
                _align(acc, 0, top, emaxes, factors, parts, r)
                for k in range(start, end):
                    at, a = base + offsets[k], w[row, k]
                    for j in range(WIDTH):
                        parts[j] += np.int32(np.float32(np.float32(a * x[_at(at + j)]) * factors[j]))
                _finish(acc, 0, top, emaxes, factors, parts, r)
            for j in range(WIDTH):
                out[item, panel * WIDTH + j] = acc[j]


@jit
def weights(x, ex, at_x, offsets_x, y, ey, at_y, offsets_y, length, out, first, last, r):
    """Results ``first`` to ``last``, each of WIDTH columns; float32 bits, ``[result][column]``.

    The element k of result i is ``x[at_x[k] + offsets_x[i] + column] * y[at_y[k] + offsets_y[i] + column]``.
    """
    acc, top = out.reshape(-1), np.empty(WIDTH, ex.dtype)
    emaxes, parts, factors = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32), np.empty(WIDTH, np.float32)
    for start in range(0, at_x.size, length):
        end = min(start + length, at_x.size)
        for item in range(first, last):
            for j in range(WIDTH):
                top[j] = r.none - 1
            for k in range(start, end):
                i, m = at_x[k] + offsets_x[item], at_y[k] + offsets_y[item]
                for j in range(WIDTH):
                    top[j] = max(top[j], ex.dtype.type(ex[_at(i + j)] + ey[_at(m + j)]))
            _align(acc, item * WIDTH, top, emaxes, factors, parts, r)
            for k in range(start, end):
                i, m = at_x[k] + offsets_x[item], at_y[k] + offsets_y[item]
                for j in range(WIDTH):
                    parts[j] += np.int32(np.float32(np.float32(x[_at(i + j)] * y[_at(m + j)]) * factors[j]))
            _finish(acc, item * WIDTH, top, emaxes, factors, parts, r)
