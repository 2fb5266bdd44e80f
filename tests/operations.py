"""Operands worth trying: codes in strata, and the values they stand for."""

import itertools
from typing import Any

import numpy as np
from helpers import raw

import fplab
from fplab.formats import Format

Array = np.ndarray[Any, Any]


def values_of(codes: Array, fmt: Format) -> list[Array]:
    """A column of codes each as values, signalling NaNs among them."""
    return [fplab.decode(np.ascontiguousarray(column), fmt) for column in codes.T]


def operand_codes(fmt: Format, operands: int, key: int, n: int) -> Array:
    """Operand codes ``(n, operands)`` in strata.

    Any codes; nearly equal magnitudes, so that sums cancel; the last operand half an ulp of the first, so that sums
    tie; subnormals and the lowest normals; the largest values; every pair of special codes.
    """
    words = raw(key, n * (operands + 2), np.uint64).reshape(operands + 2, n).astype(np.int64)
    full = fmt.max_code + 1
    magnitude = np.abs(words[:operands]) % full
    small = np.abs(words[operands] >> 3) % 5 - 2
    stratum = np.arange(n) % 5
    magnitude[-1] = np.where(stratum == 1, magnitude[0] + small, magnitude[-1])
    magnitude[-1] = np.where(stratum == 2, magnitude[0] - (fmt.significand_bits << fmt.fraction_bits), magnitude[-1])
    magnitude[-1] = np.where(stratum == 2, magnitude[-1] & ~((1 << fmt.fraction_bits) - 1), magnitude[-1])
    low = magnitude % min(full, 3 << fmt.fraction_bits)
    magnitude = np.where(stratum == 3, low, magnitude)
    high = full - 1 - magnitude % min(full, 2 << fmt.fraction_bits)
    magnitude = np.where(stratum == 4, high, magnitude)
    codes = np.clip(magnitude, 0, full - 1)
    codes = np.where((words[-1] >> np.arange(operands)[:, None]) & 1 == 1, codes | fmt.sign_mask, codes)
    special = {0, 1, 1 << fmt.fraction_bits, fmt.max_code, (1 << fmt.fraction_bits) - 1}
    special |= {c for c in (fmt.inf_code, fmt.nan_code) if c is not None}
    special |= {fmt.inf_code + 1} if fmt.inf_code is not None else set()
    corners = sorted(special | {c | fmt.sign_mask for c in special})
    product = np.array(list(itertools.product(corners, repeat=min(operands, 2))))
    if operands == 3:
        third = np.array(corners)[np.arange(len(product)) * 7 % len(corners)]
        product = np.column_stack([product, third])
    return np.concatenate([codes.T, product]).astype(np.uint64)
