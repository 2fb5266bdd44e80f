"""Products of FP32 operands by FP32 multiply-adds and by TF32 Tensor Cores, with exact sums and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ...tensorcore.models import Model, get
from ..partial_products.accumulators import on_gpu
from ..partial_products.bounds import rate
from ..partial_products.compared import Compared
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
    if variant.gpu:
        return on_gpu(a, b, variant.gpu, "fp32", at, inputs="tf32", conversion=variant.conversion)
    return multiply_adds(a, b, at)


def multiply_adds(a: Array, b: Array, at: Array) -> Array:
    """Chains of FP32 fused multiply-adds over a (M, K), b (N, K), at every length: float32 (M, N, S)."""
    from ... import sums

    return np.stack([np.asarray(sums.dot(row[None], b, "fp32", running=True))[:, at - 1] for row in a])


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
class Measured(Compared):
    """``results`` by variant; of converted operands, by conversion, ``converted`` sums and ``kept``, of magnitudes."""

    converted: Array
    kept: Array

    def conversion_bound(self, conversion: str) -> Array:
        """(2 d + d**2) sum|a b|, rounded down; d is 2**-10 for truncation, 2**-11 for rounding to nearest."""
        d = Fraction(1, 1 << (10 if conversion == "truncate" else 11))
        return self.rounded_down(lambda k, s: (2 * d + d * d) * s, self.magnitude)

    def chain_bound(self, i: int) -> Array:
        """What adding may cost, rounded down.

        A chain of blocks of L products: ``K ((L - 1) 2**-F + 2**-23) / L`` times the sum of the converted magnitudes,
        since truncated partial sums never exceed it (:mod:`..partial_products.bounds`). Multiply-adds:
        ``K u / (1 - K u)`` sum|a b| with u = 2**-24.
        """
        variant = VARIANTS[i]
        if not variant.gpu:
            return self.rounded_down(lambda k, s: Fraction(k, (1 << 24) - k) * s, self.magnitude)
        one = rate(variant.model)
        return self.rounded_down(lambda k, s: k * one * s, self.kept[CONVERSIONS.index(variant.conversion)])

    def bound(self, i: int) -> Array:
        """Conversion and chain together."""
        if not VARIANTS[i].gpu:
            return self.chain_bound(i)
        return np.asarray(self.conversion_bound(VARIANTS[i].conversion) + self.chain_bound(i))


def of_kind(arrays: Arrays, kind: str) -> Measured:
    """All of one kind."""
    lengths = sizes(arrays[f"{kind}: a"].shape[1].bit_length() - 1)
    exact, magnitude, narrow, kept = (
        whole.unpack(arrays[f"{kind}: {part}"]) for part in ("exact", "magnitude", "converted", "kept")
    )
    return Measured(lengths, exact, magnitude, whole.of_values(arrays[f"{kind}: results"]), narrow, kept)
