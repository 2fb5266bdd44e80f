"""Products of matrices of double-double numbers, each the sum of a float64 and of a smaller one."""

from __future__ import annotations

import numpy as np

from . import jit
from .tensorcore_exact import fma


@jit
def matmul(a, a_low, b, b_low, high, low, row0, row1):
    """Add ``a @ b`` to ``high + low``, rows ``row0`` to ``row1``; all float64, lows are 0 where a matrix has none.

    Each product and each partial sum comes with its rounding error, and those are added up in ``low`` (the dot product
    in twice the precision of Ogita, Rump and Oishi, doi 10.1137/030601818).
    """
    for i in range(row0, row1):
        for k in range(a.shape[1]):
            x, rest = a[i, k], a_low[i, k]
            for j in range(b.shape[1]):
                y, high_sum = b[k, j], high[i, j]
                product = x * y
                error = fma(x, y, -product) + (x * b_low[k, j] + rest * y)
                total = high_sum + product
                back = total - high_sum
                low[i, j] += error + ((high_sum - (total - back)) + (product - back))
                high[i, j] = total
        for j in range(b.shape[1]):
            if np.isfinite(high[i, j]) and np.isfinite(low[i, j]):
                total = high[i, j] + low[i, j]
                low[i, j] -= total - high[i, j]
                high[i, j] = total
            else:
                low[i, j] = 0.0
