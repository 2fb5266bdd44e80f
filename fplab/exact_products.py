"""Exact sums of products of arrays: Python integers, in units of 2**-320, and the same as int64 limbs.

An FP32 number is a multiple of 2**-149 and a product of two of 2**-298. So sums, results, errors and bounds of any
length are whole numbers of this unit, and comparing them rounds nothing. An object array holds the integers; for a
digest or a file they are packed as limbs of 40 bits.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
UNIT = -320  # the exponent of the unit
LIMB = 40
LIMBS = 12  # numbers below 2**159
DIGIT = 20  # bits of a digit: int64 holds 2**20 products of two digits, several times over


def products(a: Array, b: Array, sizes: Array) -> Array:
    """The sums of the first ``sizes`` products of each row of a (M, K) with each of b (N, K): integers (M, N, S).

    Values are finite FP32 numbers, ``sizes`` ascend to K = 2**20 at most. Operands are cut into digits of 20 bits,
    whose products add up in int64; there are as many digits as the exponents of an operand span.
    """
    (first, low_a), (second, low_b) = digits(a), digits(b)
    sums, start = [], 0
    total = np.zeros((len(a), len(b)), object)
    for end in sizes.tolist():
        s = slice(start, end)
        for i, x in enumerate(first):
            for j, y in enumerate(second):
                part = (x[:, s] @ y[:, s].T).astype(object)
                total = total + (part << (DIGIT * (i + j) + low_a + low_b - UNIT))
        sums.append(total)
        start = end
    return np.stack(sums, axis=-1)


def digits(x: Array) -> tuple[list[Array], int]:
    """Values as ``sum(digit[i] * 2**(20 i + low))``: signed int64 digits below 2**20, the lowest first, and ``low``."""
    magnitude = np.abs(np.asarray(x, np.float64))
    if not magnitude.any():
        return [np.zeros(x.shape, np.int64)], 0
    exponents = np.frexp(magnitude[magnitude > 0])[1]
    low, high = max(int(exponents.min()) - 24, -149), int(exponents.max())
    sign = np.where(np.signbit(x), -1, 1)
    limbs = []
    for shift in range(low, high, DIGIT):
        above = np.floor(np.ldexp(magnitude, -shift - DIGIT))
        digit = np.floor(np.ldexp(magnitude, -shift)) - np.ldexp(above, DIGIT)
        limbs.append(sign * digit.astype(np.int64))
    return limbs, low


def of_values(x: Array) -> Array:
    """Finite numbers as integers, exact; they must be multiples of the unit."""
    significand, exponent = np.frexp(np.asarray(x, np.float64))
    whole = np.ldexp(significand, 53).astype(np.int64).astype(object)
    shift = exponent.astype(np.int64) - 53 - UNIT
    assert ((shift >= 0) | (significand == 0)).all(), "values finer than the unit"
    integers: Array = whole << np.maximum(shift, 0).astype(object)
    return integers


def ratio(numerator: Array, denominator: Array) -> Array:
    """Quotients of integers, each rounded once to float64; 0 where both are 0."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    flat = [n / d if d else (0.0 if n == 0 else np.inf) for n, d in zip(numerator.flat, denominator.flat, strict=True)]
    return np.array(flat, np.float64).reshape(numerator.shape)


def floats(integers: Array) -> Array:
    """Integers as the numbers they stand for, each rounded once to float64."""
    return ratio(integers, np.array(1 << -UNIT, object))


def pack(integers: Array) -> Array:
    """Integers (...,) as int64 limbs (..., 12), the last one signed."""
    mask = (1 << LIMB) - 1
    parts = [integers >> (LIMB * i) for i in range(LIMBS)]
    return np.stack([*(part & mask for part in parts[:-1]), parts[-1]], axis=-1).astype(np.int64)


def unpack(limbs: Array) -> Array:
    """Limbs (..., n) as integers (...,)."""
    total: Any = 0
    for i in range(limbs.shape[-1]):
        total = total + (limbs[..., i].astype(object) << (LIMB * i))
    return np.asarray(total, object)


def of_counts(counts: Array, lowest: int) -> Array:
    """``sum(counts[..., i] * 2**(lowest + i))`` as limbs; counts (..., bins) below 2**20 in magnitude."""
    limbs = np.zeros((*counts.shape[:-1], LIMBS), np.int64)
    for i in range(counts.shape[-1]):
        limb, bit = divmod(lowest + i - UNIT, LIMB)
        limbs[..., limb] += counts[..., i] << bit
    return limbs
