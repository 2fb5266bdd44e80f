"""Small sums that tell the generations of Tensor Cores apart, with what is known of each; sums that fall, and trees.

Every probe is one accumulator c and a few products, so small or so large that alignment or truncation decides. The FP16
probes and the effect on V100 are those of Fasi, Higham, Mikaitis and Pranesh (PeerJ CS 7:e330, 2021), extended to later
GPUs by the models of Khattak and Mikaitis (arXiv 2512.07004).

Sums fall while c rises: at c = 1 the grid of a block, 2**(emax - F), becomes twice as coarse as below 1. Products of
half that grid are then lost, which below 1 were kept: the sum drops. So no Tensor Core that truncates aligned terms is
monotonic, and each generation shows it at its own size of products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ... import exact
from ...reveal import SumTree, reveal_order
from ...words import mark

GENERATIONS: dict[str, tuple[str, ...]] = {
    "Volta": ("V100",),
    "Turing, Ampere, Ada": ("T4", "A100", "Ada", "L40S"),
    "Hopper, Blackwell": ("H100", "H200", "B200"),
}
GPUS: tuple[str, ...] = tuple(gpu for family in GENERATIONS.values() for gpu in family)
FP8_GPUS: tuple[str, ...] = ("Ada", "H100", "B200")
BF16_GPUS = GPUS[2:]
# Products of one block, fraction bits beside the largest term, and of a result, as papers report them.
REPORTED: dict[tuple[str, str], tuple[int, int, int]] = {
    **{(gpu, "fp16"): rule for rule, family in zip(((4, 23, 23), (8, 24, 23), (16, 25, 23)), GENERATIONS.values(),
                                                   strict=True) for gpu in family},
    **{(gpu, "bf16"): (8, 24, 23) if gpu in GENERATIONS["Turing, Ampere, Ada"] else (16, 25, 23) for gpu in BF16_GPUS},
    ("Ada", "e4m3"): (16, 13, 13), ("H100", "e4m3"): (32, 13, 13), ("B200", "e4m3"): (32, 25, 23),
}  # fmt: skip
LENGTHS = dict(zip(GENERATIONS, (4, 8, 16), strict=True))  # products of one block
TINY: dict[int, tuple[float, float]] = {  # FP16 factors of 2**-24, 2**-25 and 2**-26
    -24: (2.0**-12, 2.0**-12),
    -25: (2.0**-13, 2.0**-12),
    -26: (2.0**-13, 2.0**-13),
}


def generation(gpu: str) -> str:
    """The family of one of ``GPUS``."""
    return next(name for name, family in GENERATIONS.items() if gpu in family)


@dataclass(frozen=True)
class Probe:
    """One sum: c and ``products`` (factor, factor, how many), filled with zeros to ``k``.

    ``known``: the FP32 bits that a GPU gives. ``exact``: the bits of the exact sum, rounded once to nearest even.
    ``id`` is for claims, ``name`` for text and ``label`` for figures.
    """

    id: str
    name: str
    label: str
    c: float
    products: tuple[tuple[float, float, int], ...]
    k: int
    inputs: str
    known: Mapping[str, int]
    exact: int

    @property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of A and B: float32 (k,) each."""
        pairs = [(a, b) for a, b, count in self.products for _ in range(count)]
        pairs += [(0.0, 0.0)] * (self.k - len(pairs))
        a, b = np.array(pairs, np.float32).T
        return np.ascontiguousarray(a), np.ascontiguousarray(b)

    @property
    def sum(self) -> Fraction:
        """The exact sum."""
        return Fraction(self.c) + sum(count * Fraction(a) * Fraction(b) for a, b, count in self.products)


def _families(volta: int, ampere: int, hopper: int) -> dict[str, int]:
    """What is known of three families as what is known of each GPU."""
    found = dict(zip(GENERATIONS, (volta, ampere, hopper), strict=True))
    return {gpu: found[generation(gpu)] for gpu in GPUS}


def _bits(*values: float) -> tuple[int, ...]:
    return tuple(int(np.float32(v).view(np.uint32)) for v in values)


def _tiny(id: str, name: str, label: str, c: float, exponent: int, known: Sequence[int]) -> Probe:
    """c and 16 products of one power of two; ``known``: three families, then the exact sum."""
    products = ((*TINY[exponent], 16),)
    return Probe(id, name, label, c, products, 16, "fp16", _families(*known[:3]), known[3])


FP16_PROBES: tuple[Probe, ...] = (
    _tiny("tiny_24", mark("c = 1, 16 products of 2^-24"), r"$1 + 16 \times 2^{-24}$", 1.0, -24,
          (0x3F800000, 0x3F800008, 0x3F800008, 0x3F800008)),
    _tiny("tiny_25", mark("c = 1, 16 products of 2^-25"), r"$1 + 16 \times 2^{-25}$", 1.0, -25,
          (0x3F800000, 0x3F800000, 0x3F800004, 0x3F800004)),
    _tiny("tiny_26", mark("c = 1, 16 products of 2^-26"), r"$1 + 16 \times 2^{-26}$", 1.0, -26,
          (0x3F800000, 0x3F800000, 0x3F800000, 0x3F800002)),
    _tiny("below_one", mark("c = 1 - 2^-24, 16 products of 2^-24"), r"$(1 - 2^{-24}) + 16 \times 2^{-24}$",
          1.0 - 2.0**-24, -24, (0x3F800001, 0x3F800007, 0x3F800007, 0x3F800008)),
    Probe("cancelled", mark("c = -1, one product 1 and 15 of 2^-24"), r"$-1 + 1 + 15 \times 2^{-24}$", -1.0,
          ((1.0, 1.0, 1), (*TINY[-24], 15)), 16, "fp16", _families(0x35400000, 0x35700000, 0x35700000), 0x35700000),
    Probe("cancelled_large", mark("c = 2^-20, 8192^2 - 8192^2"), r"$2^{-20} + 8192^2 - 8192^2$", 2.0**-20,
          ((8192.0, 8192.0, 1), (8192.0, -8192.0, 1)), 16, "fp16", _families(0, 0, 0), 0x35800000),
)  # fmt: skip
FP8_PROBES: tuple[Probe, ...] = (
    Probe("fp8_small", mark("c = 1024, 32 products of 2^-4 (E4M3)"), r"$1024 + 32 \times 2^{-4}$", 1024.0,
          ((0.25, 0.25, 32),), 32, "e4m3", dict(zip(FP8_GPUS, _bits(1024, 1024, 1026), strict=True)), *_bits(1026)),
    Probe("fp8_large", mark("448^2 and 31 products of 1 (E4M3)"), r"$448^2 + 31 \times 1$", 0.0,
          ((448.0, 448.0, 1), (1.0, 1.0, 31)), 32, "e4m3",
          dict(zip(FP8_GPUS, _bits(200704, 200704, 200735), strict=True)), *_bits(200735)),
)  # fmt: skip
# Eight products of which the first is enough to tell a floor of the exponents of -127 or above, or a zero that has one.
BF16_PROBES: tuple[Probe, ...] = (
    Probe("bf16_smallest", mark("c = 0, 8 products of 2^-152 (BF16)"), r"$8 \times 2^{-152}$", 0.0,
          ((2.0**-76, 2.0**-76, 8),), 16, "bf16", dict.fromkeys(BF16_GPUS, 1), 1),
)  # fmt: skip


def by_blocks(a: Sequence[float], b: Sequence[float], c: float, rule: tuple[int, int, int]) -> int:
    """The FP32 bits of c and a chain of blocks by the definition, on fractions.

    Of each block every term is truncated to a multiple of ``2**(e - F)``, e the largest exponent, and their sum to
    FP32. No factor is subnormal, and no floor that is reported is high enough to matter.
    """
    length, align, kept = rule
    total = Fraction(c)
    for start in range(0, len(a), length):
        pairs = [(Fraction(x), Fraction(y)) for x, y in zip(*(v[start : start + length] for v in (a, b)), strict=True)]
        found = [(x * y, exponent_of(x) + exponent_of(y)) for x, y in pairs if x and y]
        found += [(total, max(exponent_of(total), -126))] if total else []
        if found:
            quantum = Fraction(2) ** (max(e for _, e in found) - align)
            total = sum((int(value / quantum) * quantum for value, _ in found), Fraction(0))
        if total:
            place = Fraction(2) ** max(exponent_of(total) - kept, -149)
            total = int(total / place) * place
    return rounded(total)


def exponent_of(x: Fraction) -> int:
    return math.frexp(x)[1] - 1


def rounded(value: Fraction) -> int:
    """The FP32 bits of an exact number, to nearest even."""
    return exact.round_to(exact.of(value), "fp32")[0]


def results(probes: Sequence[Probe], gpus: Sequence[str]) -> np.ndarray:
    from ... import tensorcore

    a, b = (np.stack(side) for side in zip(*(p.factors for p in probes), strict=True))
    c, inputs = np.array([p.c for p in probes], np.float32), probes[0].inputs
    found = [np.asarray(tensorcore.dot(a, b, c, gpu=gpu, inputs=inputs)).view(np.uint32) for gpu in gpus]
    return np.stack(found, axis=1)


# --- sums that fall, and trees --------------------------------------------------------------------------------------
PRODUCTS: tuple[tuple[int, int], ...] = ((4, -24), (8, -25), (16, -26))  # how many, and the exponent of each: 2**-22
BELOW, ABOVE = 12, 8  # values of c below and above 1


def accumulators() -> np.ndarray:
    """The values of c around 1, all of them: FP32 bits, ascending; number ``BELOW`` is 1."""
    return (0x3F800000 + np.arange(-BELOW, ABOVE + 1)).astype(np.uint32)


def sweeps() -> np.ndarray:
    """c plus the products on every GPU: FP32 bits (product, GPU, c)."""
    from ... import tensorcore

    c = accumulators().view(np.float32)
    found = np.empty((len(PRODUCTS), len(GPUS), c.size), np.uint32)
    for i, (count, exponent) in enumerate(PRODUCTS):
        a, b = (np.full((c.size, count), factor, np.float32) for factor in TINY[exponent])
        for j, gpu in enumerate(GPUS):
            found[i, j] = np.asarray(tensorcore.dot(a, b, c, gpu=gpu)).view(np.uint32)
    return found


def falls(results: np.ndarray) -> np.ndarray:
    """How often the last axis (positive FP32 bits, in the order of c) falls."""
    return np.asarray((np.diff(results.astype(np.int64), axis=-1) < 0).sum(axis=-1))


def tree(gpu: str, terms: int) -> SumTree:
    """The tree of c (term 0) and ``terms - 1`` FP16 products on a GPU, as a black box shows it."""
    from ... import tensorcore

    def box(x: np.ndarray) -> Any:
        return tensorcore.dot(x[:, 1:], np.ones((len(x), terms - 1), np.float16), x[:, 0], gpu=gpu)

    return reveal_order(box, terms, "fp16", rows=True)


def chain(terms: int, length: int) -> SumTree:
    """A chain of fused sums of ``length`` products and the sum so far, which begins with term 0."""
    nested: Any = 0
    for start in range(1, terms, length):
        nested = (nested, *range(start, min(start + length, terms)))
    return SumTree.of(nested)
