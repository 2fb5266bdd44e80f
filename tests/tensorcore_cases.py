"""Operands for the tests of Tensor Cores, of every regime in which an alignment or a rounding can go wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import fplab
from fplab.formats import get
from fplab.tensorcore import TABLE, Model, oracle, products
from fplab.tensorcore.units import block
from fplab.tensorcore.units.block import FusedBlocks

REGIMES = ("codes", "tiny", "big", "near", "uniform", "sparse", "infinite", "nan")


@contextmanager
def by_numpy() -> Iterator[pytest.MonkeyPatch]:
    """Within it products of blocks go NumPy's way; what remembers which way they go forgets it before and after."""
    remember = products.rounds, block._in_panels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedBlocks, "is_fast", lambda *_: False)
        for way in remember:
            way.cache_clear()
        try:
            yield patch
        finally:
            for way in remember:
                way.cache_clear()


def distinct() -> list[Model]:
    """One model of the fused kinds for each set of parameters: what differs is not only the GPU's name."""
    found: dict[Any, Model] = {}
    for m in TABLE:
        if m.kind in ("block", "widened"):
            key = (m.a, m.b, m.output, m.kind, m.length, m.alignment_bits, m.kept_bits, m.floor, m.k, m.scale)
            found.setdefault(key, m)
    return list(found.values())


def representative() -> list[Model]:
    """One model for each compiled kernel and rounding: formats that share a kernel are left to the longer tests."""
    found: dict[Any, Model] = {}
    for m in distinct():
        found.setdefault((block.exponent_dtype(m), m.output, m.kind, m.length, m.kept_bits, m.scale), m)
    return list(found.values())


def operand(fmt: str, shape: tuple[int, ...], regime: str, rng: np.random.Generator) -> np.ndarray:
    """Values of a format: all codes; subnormals; next to overflow; of one binade or two; uniform codes; mostly zeros;
    some infinities; some NaNs."""
    f = get(fmt)
    middle, binade = f.max_code // 2, 1 << f.fraction_bits
    low, high = {
        "tiny": (0, min(f.max_code, 3 * binade)),
        "big": (max(0, f.max_code - 3 * binade), f.max_code),
        "near": (max(0, middle - binade), min(f.max_code, middle + binade)),
    }.get(regime, (0, f.max_code))
    if regime == "codes":
        return np.asarray(fplab.decode(rng.integers(0, 1 << f.bits, shape), f))
    values = np.asarray(fplab.decode(rng.integers(low, high, shape, endpoint=True), f))
    values = np.where(rng.random(shape) < 0.5, -values, values)
    if regime == "sparse":
        values = np.where(rng.random(shape) < 0.7, 0 * values, values)
    if regime == "infinite" and f.has_infinity:
        values = np.where(rng.random(shape) < 0.02, np.copysign(np.inf, values), values)
    if regime in ("infinite", "nan") and f.has_nan:
        values = np.where(rng.random(shape) < 0.003, np.nan, values)
    return values.astype(np.float32)


def powers(shape: tuple[int, ...], rng: np.random.Generator, spread: int) -> np.ndarray:
    """E8M0 scales, one in a hundred a NaN."""
    scale = np.ldexp(np.float32(1), rng.integers(-spread, spread, shape, endpoint=True)).astype(np.float32)
    return np.where(rng.random(shape) < 0.01, np.float32(np.nan), scale)


def exact_bits(model: Model, a: Any, b: Any, c: Any, scales: Any = ()) -> int:
    """What the oracle says of one row, as float32 bits."""
    pairs = [(float(x), float(y)) for x, y in scales]
    return oracle.result_bits(oracle.dot([float(x) for x in a], [float(x) for x in b], float(c), model, pairs), model)


def bits(x: Any) -> np.ndarray:
    """The bits of float32 results."""
    return np.asarray(x, np.float32).view(np.uint32)
