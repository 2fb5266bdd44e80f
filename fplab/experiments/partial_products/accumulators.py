"""The ways to accumulate that are compared, and what each makes of a product of every length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...tensorcore.models import GPUS, TABLE, Model, get

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Accumulator:
    """``fmt``: the format of the running sum. ``gpu``: whose Tensor Core adds; "" for one addition after the other.

    One after the other, each partial product is rounded to the running sum's format, then added and rounded again.
    FP32 holds every product of two FP16 numbers, so there it is one rounding an addition.
    """

    fmt: str
    gpu: str = ""

    @property
    def name(self) -> str:
        """How tables name it."""
        return f"{self.gpu} {self.fmt.upper()}" if self.gpu else f"{self.fmt.upper()} one by one"

    @property
    def model(self) -> Model:
        """The record of its Tensor Core."""
        return get(self.gpu, "fp16", self.fmt)


CORES = ("V100", "A100", "H100")  # one GPU of each arithmetic that torch's products use; mma.k8 of H100 is a fourth
FORMATS = ("fp16", "fp32")
ACCUMULATORS = tuple(Accumulator(fmt, gpu) for fmt in FORMATS for gpu in ("", *CORES))
FATES = ("zero", "stored as zero", "added without effect", "counts")
BLOCKED = tuple(i for i, one in enumerate(ACCUMULATORS) if one.gpu)


def index(fmt: str, gpu: str = "") -> int:
    """The place of an accumulator."""
    return ACCUMULATORS.index(Accumulator(fmt, gpu))


@lru_cache(maxsize=2)
def alike(fmt: str = "fp32") -> Mapping[str, tuple[str, ...]]:
    """The GPUs whose FP16 products, as torch does them, have the arithmetic of V100, A100 and H100, by the records.

    A GPU with another arithmetic is with none of them.
    """

    def rule(gpu: str) -> tuple[Any, ...]:
        one = get(gpu, "fp16", fmt)
        return one.kind, one.length, one.alignment_bits, one.kept_bits, one.rounding

    able = [gpu for gpu in GPUS if any((m.gpu, m.a, m.b, m.output) == (gpu, "fp16", "fp16", fmt) for m in TABLE)]
    return {core: tuple(gpu for gpu in able if rule(gpu) == rule(core)) for core in CORES}


def on_gpu(a: Array, b: Array, gpu: str, fmt: str, sizes: Array, **options: Any) -> Array:
    """A chain of blocks over values a (M, K), b (N, K), at every length: float32 (M, N, S).

    ``options``: other arguments of :func:`fplab.tensorcore.matmul`.
    """
    from ... import tensorcore

    total, start, found = None, 0, []
    for end in sizes.tolist():
        s = slice(start, end)
        total = tensorcore.matmul(a[:, s], b[:, s].T, total, gpu=gpu, output=fmt, **options)
        found.append(total)
        start = end
    return np.stack(found, axis=-1)


def running(a: Array, b: Array, fmt: str) -> Array:
    """One by one: the running sums (N, K) of one row a (K,) with rows b (N, K), every product rounded first."""
    from ... import sums

    found = sums.dot(a[None], b, "fp16", accumulate=fmt, products="rounded", running=True)
    return np.asarray(found, np.float32)


def results(a: Array, b: Array, one: Accumulator, sizes: Array, sums: Array) -> Array:
    """What an accumulator gives at every length: float32 (M, N, S). ``sums`` (M, N, K): the running ones."""
    if one.gpu:
        return on_gpu(a, b, one.gpu, one.fmt, sizes)
    return sums[..., sizes - 1]


def fates(a: Array, b: Array, fmt: str, sizes: Array, sums: Array) -> Array:
    """What becomes of the partial products between one length and the next, one by one: int64 (S, fate).

    ``sums`` (M, N, K): the running ones in this format.
    """
    from ...floats import quantize

    counts = np.zeros((sizes.size, len(FATES)), np.int64)
    segment = np.searchsorted(sizes, np.arange(1, a.shape[1] + 1))
    for row, own in zip(a, sums, strict=True):
        products = row * b  # exact in float32
        stored = np.asarray(quantize(products, fmt))
        before = np.concatenate([np.zeros((len(b), 1), np.float32), own[:, :-1]], axis=1)
        fate = np.select([products == 0, stored == 0, own == before], [0, 1, 2], 3)
        np.add.at(counts, (np.broadcast_to(segment, fate.shape), fate), 1)
    return counts
