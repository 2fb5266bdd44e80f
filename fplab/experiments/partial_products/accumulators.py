"""The operands of partial products, and the ways to accumulate them that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import numeric
from ...hardware.cases import philox_bits
from ...tensorcore.models import GPUS, TABLE, Model
from ...tensorcore.models import get as model_of
from ...words import Text, say, verbatim
from ..long_products import FIRST, REAL, Array, chosen, half

SYNTHETIC = ("random", "positive", "ill-conditioned", "swamped")

# --- operands ---------------------------------------------------------------------------------------------------

# Block length, and the exponents of the factors a of each block; b is just below 2**-12.
TARGETS: dict[str, tuple[int, ...]] = {"V100": (-12,) * 4, "A100": (*(-13,) * 7, -12), "H100": (*(-14,) * 15, -12)}
LEFT = 8
ALMOST_TWO = 2 - 2.0**-10  # the largest FP16 significand


def operands(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """FP16 codes A (M, K) and B (N, K), of ``rows`` rows but for ``swamped``, whose A has a row for each target.

    Made up ones come from Philox's raw stream by integer arithmetic, so that they are the same bits everywhere. Every
    leading part of a length ``16 * 2**j`` is an example of its kind, too. Real ones are rounded to nearest even, as
    mixed precision training casts before it multiplies.

    * ``random``: uniform between -1 and 1.
    * ``positive``: uniform between 0 and 1; nothing cancels, so the running sum only grows.
    * ``ill-conditioned``: each stretch from 2**j to 2**(j+1) climbs and comes back: its second half holds the negated
      products of the first in another order, but for ``LEFT`` units in the last place of one factor. Little remains.
    * ``swamped``: a one, then products just below what a block keeps beside it. Row i of A is the worst case of the
      i-th of ``TARGETS``.
    """
    if kind in REAL:
        a, b = chosen(kind, rows, log2_last)
        return half(a), half(b)
    k, key = 1 << log2_last, 1000 + 10 * SYNTHETIC.index(kind)
    if kind == "swamped":
        return swamped(k, rows)
    a, b = (philox_bits(key + i, rows * k).reshape(rows, k).astype(np.float64) * 2.0**-32 for i in range(2))
    if kind == "random":
        return half(2 * a - 1), half(2 * b - 1)
    return (half(a), half(b)) if kind == "positive" else climbing(half(a), half(b))


def climbing(a: Array, b: Array) -> tuple[Array, Array]:
    """Overwrite the second half of every stretch by the first: negated in A, permuted, a few last places off in B."""
    start, end = 0, FIRST
    while end <= a.shape[1]:
        middle = (start + end) // 2
        order = start + np.argsort(philox_bits(end, middle - start), kind="stable")
        a[:, middle:end] = a[:, order] ^ np.uint16(0x8000)
        b[:, middle:end] = b[:, order]
        b[:, end - 1] += np.uint16(LEFT)
        start, end = end, 2 * end
    return a, b


def swamped(k: int, columns: int) -> tuple[Array, Array]:
    """A (3, k) and B (columns, k); the columns are alike but for the sign, which alternates."""
    a = np.stack([np.ldexp(ALMOST_TWO, np.resize(exponents, k)) for exponents in TARGETS.values()])
    b = np.full((columns, k), np.ldexp(ALMOST_TWO, -13))
    a[:, 0] = b[:, 0] = 1
    return half(a), half(b * np.resize([1.0, -1.0], columns)[:, None])


def values(codes: Array) -> Array:
    """FP16 codes as float64."""
    return codes.view(np.float16).astype(np.float64)


# --- ways to accumulate -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Accumulator:
    """``fmt``: the format of the running sum. ``gpu``: whose Tensor Core adds; "" for one addition after the other.

    One after the other, each partial product is rounded to the running sum's format, then added and rounded again.
    FP32 holds every product of two FP16 numbers, so there it is one rounding an addition.
    """

    fmt: str
    gpu: str = ""

    @property
    def name(self) -> Text:
        fmt = self.fmt.upper()
        return verbatim(f"{self.gpu} {fmt}") if self.gpu else say("{fmt} one by one", fmt=fmt)

    @property
    def model(self) -> Model:
        """What its Tensor Core is claimed to do: the record, but for blocks and rounding, which stand here."""
        length, bits = CORES[self.gpu]
        kept, rounding = {"fp16": (10, "rne"), "fp32": (23, "rtz")}[self.fmt]
        record = model_of(self.gpu, "fp16", self.fmt)
        return replace(record, length=length, alignment_bits=bits, kept_bits=kept, rounding=rounding)


# One GPU of each arithmetic that torch's products use (mma.k8 of H100 is a fourth): products of a block, and the bits
# to which they are aligned.
CORES = {"V100": (4, 23), "A100": (8, 24), "H100": (16, 25)}
UNITS = ("", *CORES)
FORMATS = ("fp16", "fp32")
ACCUMULATORS = tuple(Accumulator(fmt, gpu) for fmt in FORMATS for gpu in UNITS)
NAMES = [one.name for one in ACCUMULATORS]
BLOCKED = tuple(i for i, one in enumerate(ACCUMULATORS) if one.gpu)
FATES = ("zero", "stored as zero", "added without effect", "counts")


def index(fmt: str, gpu: str = "") -> int:
    """The place of an accumulator."""
    return ACCUMULATORS.index(Accumulator(fmt, gpu))


def alike(core: str) -> list[str]:
    """The GPUs whose FP16 products, as torch does them, have the arithmetic of one of ``CORES``, by the records."""

    def rule(one: Model) -> tuple[Any, ...]:
        return one.kind, one.length, one.alignment_bits, one.kept_bits, one.rounding

    able = (gpu for gpu in GPUS if any((m.gpu, m.a, m.b, m.output) == (gpu, "fp16", "fp16", "fp32") for m in TABLE))
    return [gpu for gpu in able if rule(model_of(gpu, "fp16")) == rule(model_of(core, "fp16"))]


def running(a: Array, b: Array, fmt: str) -> Array:
    """One by one: the running sums (N, K) of one row a (K,) with rows b (N, K), every product rounded first."""
    found = numeric.dot(a[None], b, "fp16", accumulate=fmt, products="rounded", running=True)
    return np.asarray(found, np.float32)


def fates(a: Array, b: Array, fmt: str, at: Array, sums: Array) -> Array:
    """What becomes of the partial products between one length and the next, one by one: int64 (S, fate).

    ``sums`` (M, N, K): the running ones in this format.
    """
    counts = np.zeros((at.size, len(FATES)), np.int64)
    segment = np.searchsorted(at, np.arange(1, a.shape[1] + 1))
    for row, own in zip(a, sums, strict=True):
        products = row * b  # exact in float32
        stored = np.asarray(numeric.quantize(products, fmt))
        before = np.concatenate([np.zeros((len(b), 1), np.float32), own[:, :-1]], axis=1)
        fate = np.select([products == 0, stored == 0, own == before], [0, 1, 2], 3)
        np.add.at(counts, (np.broadcast_to(segment, fate.shape), fate), 1)
    return counts
