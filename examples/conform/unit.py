"""Under test as a program, ``fplab conform --unit A100 --format fp64 -- python unit.py``, or as a function of arrays,
``fplab conform --unit A100 --format fp64 --python unit.py:unit``: fused multiply-adds, k ascending."""

import math
import struct
import sys
from fractions import Fraction


def fma(x: float, y: float, z: float) -> float:
    """x * y + z, rounded once."""
    if not (math.isfinite(x) and math.isfinite(y)):
        total = x * y + z
    elif not math.isfinite(z):
        total = z
    else:
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        try:
            total = float(exact) if exact else x * y + z  # of a zero the sign counts
        except OverflowError:
            total = math.inf if exact > 0 else -math.inf
    return math.nan if math.isnan(total) else total


def chain(a: list[float], b: list[float], c: float) -> float:
    for x, y in zip(a, b, strict=True):
        c = fma(x, y, c)
    return c


def unit(a, b, c):
    """Rows a, b (N, K) and c (N,) as arrays of values."""
    return [chain(*row) for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]


def value(code: str) -> float:
    return struct.unpack(">d", bytes.fromhex(code))[0]


if __name__ == "__main__":
    for line in sys.stdin:
        k, *codes = line.split()
        values = [value(code) for code in codes]
        result = chain(values[: int(k)], values[int(k) : -1], values[-1])
        print(struct.pack(">d", result).hex())
