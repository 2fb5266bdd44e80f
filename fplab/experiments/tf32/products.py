"""Products of FP32 operands by FP32 multiply-adds and by TF32 Tensor Cores, with exact sums and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ...tensorcore.models import Model, get
from ..partial_products.operands import sizes
from .operands import CONVERSIONS, MADE_UP, REAL, ROUNDINGS, nearly_normal

Array = np.ndarray[Any, Any]
KINDS = (*MADE_UP, REAL)
CORES = ("A100", "H100")  # blocks of 4 products with 24 bits, and of 8 with 25
EXAMPLE_GPU = "A100"


@dataclass(frozen=True)
class Variant:
    """``gpu``: whose TF32 Tensor Core; "" for a chain of FP32 fused multiply-adds, which converts nothing."""

    gpu: str = ""
    conversion: str = ""

    @property
    def name(self) -> str:
        """How tables name it."""
        return f"{self.gpu} TF32, {self.conversion}" if self.gpu else "FP32 multiply-adds"

    @property
    def model(self) -> Model:
        """The record of its Tensor Core."""
        return get(self.gpu, "tf32")


VARIANTS = (Variant(), *(Variant(gpu, conversion) for gpu in CORES for conversion in CONVERSIONS))


def index(gpu: str = "", conversion: str = "") -> int:
    """The place of a variant."""
    return VARIANTS.index(Variant(gpu, conversion))


def converted(x: Array, conversion: str) -> Array:
    """FP32 values in TF32, float32."""
    from ...floats import quantize

    return np.asarray(quantize(x, "tf32", ROUNDINGS[conversion]))


def results(a: Array, b: Array, variant: Variant, at: Array) -> Array:
    """The product of a (M, K) and b (N, K) at every length, one chain: float32 (M, N, S)."""
    from ... import sums, tensorcore

    if not variant.gpu:
        return np.stack([np.asarray(sums.dot(row[None], b, "fp32", running=True))[:, at - 1] for row in a])
    total, start, found = None, 0, []
    for end in at.tolist():
        s = slice(start, end)
        total = tensorcore.matmul(
            a[:, s], b[:, s].T, total, gpu=variant.gpu, inputs="tf32", conversion=variant.conversion
        )
        found.append(total)
        start = end
    return np.stack(found, axis=-1)


def measured(a: Array, b: Array) -> Arrays:
    """Operands, exact sums and results of one kind."""
    at = sizes(a.shape[1].bit_length() - 1)
    narrow = [[converted(x, c) for x in (a, b)] for c in CONVERSIONS]
    return {
        "a": a.view(np.uint32),
        "b": b.view(np.uint32),
        "exact": whole.pack(whole.products(a, b, at)),
        "magnitude": whole.pack(whole.products(np.abs(a), np.abs(b), at)),
        "converted": np.stack([whole.pack(whole.products(x, y, at)) for x, y in narrow]),
        "kept": np.stack([whole.pack(whole.products(np.abs(x), np.abs(y), at)) for x, y in narrow]),
        "results": np.stack([results(a, b, v, at) for v in VARIANTS]),
    }


def published(rows: int) -> Arrays:
    """The published example on some rows: K = 10,240, normal operands, A100."""
    from ... import tensorcore

    a, b = (nearly_normal(key, rows) for key in (2100, 2101))
    exact = whole.floats(whole.products(a, b, np.array([a.shape[1]]))[..., 0])
    found = [tensorcore.matmul(a, b.T, gpu=EXAMPLE_GPU, inputs="tf32", conversion=c) for c in CONVERSIONS]
    return {"exact": exact, "errors": np.stack(found).astype(np.float64) - exact}


# --- exact comparisons ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One kind as integers; (M, N, S), of ``converted`` and ``kept`` by conversion, of ``results`` by variant."""

    lengths: Array
    exact: Array
    magnitude: Array
    converted: Array
    kept: Array
    results: Array

    @property
    def errors(self) -> Array:
        """Magnitudes of the errors of every variant."""
        return np.asarray(np.abs(self.results - self.exact))

    def conversion_bound(self, conversion: str) -> Array:
        """(2 d + d**2) sum|a b|, rounded down; d is 2**-10 for truncation, 2**-11 for rounding to nearest."""
        d = Fraction(1, 1 << (10 if conversion == "truncate" else 11))
        return _floor(lambda k, s: (2 * d + d * d) * s, self.lengths, self.magnitude)

    def chain_bound(self, i: int) -> Array:
        """What adding may cost, rounded down.

        A chain of blocks of L products: ``K ((L - 1) 2**-F + 2**-23) / L`` times the sum of the converted magnitudes,
        since truncated partial sums never exceed it (as for FP16 operands, in ``partial_products``). Multiply-adds:
        ``K u / (1 - K u)`` sum|a b| with u = 2**-24.
        """
        variant = VARIANTS[i]
        if not variant.gpu:
            return _floor(lambda k, s: Fraction(k, (1 << 24) - k) * s, self.lengths, self.magnitude)
        length, align = variant.model.length, variant.model.alignment_bits
        rate = ((length - 1) * Fraction(1, 1 << align) + Fraction(1, 1 << 23)) / length
        return _floor(lambda k, s: k * rate * s, self.lengths, self.kept[CONVERSIONS.index(variant.conversion)])

    def bound(self, i: int) -> Array:
        """Conversion and chain together."""
        if not VARIANTS[i].gpu:
            return self.chain_bound(i)
        return np.asarray(self.conversion_bound(VARIANTS[i].conversion) + self.chain_bound(i))

    def shares(self, i: int) -> tuple[Array, Array, Array]:
        """At every length, as shares of sum|a b|: mean and largest error, and largest bound; float64 (S,)."""
        error, bound = (whole.ratio(part, self.magnitude) for part in (self.errors[i], self.bound(i)))
        return error.mean(axis=(0, 1)), error.max(axis=(0, 1)), bound.max(axis=(0, 1))


def _floor(of: Any, lengths: Array, totals: Array) -> Array:
    found = np.empty(totals.shape, object)
    for at in np.ndindex(totals.shape):
        found[at] = math.floor(of(int(lengths[at[-1]]), totals[at]))
    return found


def of_kind(arrays: Arrays, kind: str) -> Measured:
    """All of one kind."""
    lengths = sizes(arrays[f"{kind}: a"].shape[1].bit_length() - 1)
    exact, magnitude, narrow, kept = (
        whole.unpack(arrays[f"{kind}: {part}"]) for part in ("exact", "magnitude", "converted", "kept")
    )
    return Measured(lengths, exact, magnitude, narrow, kept, whole.of_values(arrays[f"{kind}: results"]))
