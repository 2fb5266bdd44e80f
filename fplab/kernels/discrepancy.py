"""Computed values against exact ones: what an operation added, what it was given, and where it is worst.

Sums are taken over blocks of a fixed length, so that they do not depend on how many threads share them.
"""

from __future__ import annotations

import numpy as np

from . import jit

BLOCK = 1 << 15  # values of which one row of sums is made
EXACT, BORN, TOTAL, TOGETHER, BROKEN, GONE, LOW, HIGH, WORST, WHERE = range(10)
COLUMNS = 10


@jit
def discrepancies(real, local, exact, local_low, exact_low, tiny, largest, floor, errors, out, start, stop):
    """Fill rows of ``out`` (blocks, 10) with sums over blocks ``start`` to ``stop`` of three vectors (n,).

    ``real``: float32 or float64, as computed. ``local``, ``exact``: float64, the exact result of the operands as they
    were computed and of the exact operands; ``local_low``, ``exact_low``: what is to be added to them, or None.
    ``errors``: float32 (n,), gets what was born, 0 where that is not finite; or None. Columns: the squares of
    ``exact``, of real - local (born here) and of real - exact (total), the products of born and total; how many are not
    finite though exact; that are zero though ``local`` is not; subnormal, below ``tiny``; at ``largest`` though
    ``local`` is beyond it; the largest relative total error of those beyond ``floor``, and where it is (-1: none).
    """
    for block in range(start, stop):
        squares = born_squares = total_squares = together = worst = 0.0
        broken = gone = low = high = 0
        at = -1
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(real))):
            x, within, true = np.float64(real[i]), local[i], exact[i]
            born = x - within
            if local_low is not None:
                born -= local_low[i]
            if errors is not None:
                errors[i] = np.float32(born) if np.isfinite(born) else np.float32(0.0)
            if not np.isfinite(true):
                continue
            if not np.isfinite(x):
                broken += 1
                continue
            squares += true * true
            total = x - true
            if exact_low is not None:
                total -= exact_low[i]
            total_squares += total * total
            if x == 0.0:
                gone += within != 0.0
            elif abs(x) < tiny:
                low += 1
            if abs(x) >= largest and abs(within) > largest:
                high += 1
            if np.isfinite(within):
                born_squares += born * born
                together += born * total
            if abs(true) > floor and abs(total) > worst * abs(true):
                worst = abs(total) / abs(true)
                at = i
        out[block, EXACT], out[block, BORN], out[block, TOTAL] = squares, born_squares, total_squares
        out[block, TOGETHER], out[block, BROKEN], out[block, GONE] = together, broken, gone
        out[block, LOW], out[block, HIGH], out[block, WORST], out[block, WHERE] = low, high, worst, at


@jit
def fates(values, half, tiny, largest, start, stop):
    """Of finite non-zero values from ``start`` to ``stop``, float32 or float64: how many there are, how many are at
    most ``half`` in magnitude, above that but below ``tiny``, and above ``largest``."""
    some = zero = low = high = 0
    for i in range(start, stop):
        size = abs(np.float64(values[i]))
        if 0.0 < size < np.inf:
            some += 1
            zero += size <= half
            low += half < size < tiny
            high += size > largest
    return some, zero, low, high
