"""What a GPU must multiply in TF32; numpy and torch alone are needed.

A product with the identity is the conversion itself: every element of the result is one converted operand, whatever
the order of k. So it answers by itself whether a library truncates or rounds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Case, philox_bits
from ...hardware.core_cases import SIDE, core_case
from ...hardware.products import TF32, Product
from . import operands

if TYPE_CHECKING:
    from . import Params

IDENTITY = 64  # K of the product with the identity
LENGTHS = (64, 1024)


def every_exponent() -> tuple[np.ndarray, np.ndarray]:
    """FP32 codes (8, 64) of all signs and of exponents from -100 to 100, half of them ties, and the identity."""
    raw = philox_bits(2300, 8 * IDENTITY).reshape(8, IDENTITY)
    exponent = np.uint32(27) + (raw >> np.uint32(8)) % np.uint32(201)
    code = (raw & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))
    tie = (code & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    a = np.where(np.arange(IDENTITY) % 2, tie, code).astype(np.uint32)
    return a, np.eye(IDENTITY, dtype=np.float32).view(np.uint32)


def factors(kind: str, k: int, rows: int, log2_last: int) -> tuple[np.ndarray, np.ndarray]:
    """The leading K of a kind's operands, as FP32 codes."""
    a, b = (np.ascontiguousarray(x[:, :k]) for x in operands.make(kind, rows, log2_last))
    return a.view(np.uint32), b.view(np.uint32)


def example(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the published example, as FP32 codes."""
    a, b = (operands.nearly_normal(key, rows) for key in (2100, 2101))
    return a.view(np.uint32), b.view(np.uint32)


def cases(params: Params) -> tuple[Case, ...]:
    """The conversion, products of every kind at two lengths, and the published example."""

    def product(k: int) -> Product:
        return Product("matmul", ("fp32", "fp32"), "fp32", (SIDE, SIDE, k), TF32)

    found = [core_case("FP32 times the identity: the conversion", product(IDENTITY), every_exponent)]
    for kind in (*operands.MADE_UP, operands.REAL):
        for k in LENGTHS:
            given = partial(factors, kind, k, params.rows, params.log2_last)
            found.append(core_case(f"{kind}, K = {k}", product(k), given))
    return (*found, core_case(f"normal, K = {operands.EXAMPLE}", product(operands.EXAMPLE), partial(example, 4)))
