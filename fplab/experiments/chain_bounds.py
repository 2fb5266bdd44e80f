"""Bounds on the error of accumulating exact products, proved, and computed exactly.

**One block** of a Tensor Core takes L products and an accumulator. With 2**top the largest exponent among the terms,
every term is truncated to a multiple of the quantum q = 2**(top - F), and the sum of what is left is rounded to the
output format, whose last place there is 2**u.

* A term of exponent ``top`` loses nothing: a product of two FP16 significands has 20 fraction bits, an FP32 accumulator
  23, and F is 23 or more. Each of the n other terms loses less than q.
* The sum is a whole number of quanta, so truncating it to 2**u loses at most 2**u - q, or nothing where u is no more
  than log2 q; rounding it to nearest moves it by 2**(u-1) at most.

The sum of these over all blocks is the bound ``by block`` of a chain; it needs the run itself for ``top`` and ``u``.

**Beforehand**, from A and B alone: let s = sum of max(|a|, 2**-14) max(|b|, 2**-14) over the non-zero products (the
clamped exponents make 2**top at most that, also where an operand is subnormal). Truncation never lets a partial sum
grow, so 2**top and the sum are at most s in every block of a chain into FP32, and n <= L there. Hence a block loses
less than (L q/2**top + 2**-23 - q/2**top) s, and K products

    K ((L - 1) 2**-F + 2**-23) / L * s,    in units of K 2**-24 s: 2 for V100, 1.125 for A100, 0.59375 for H100.

Blanchard, Higham, Lopez, Mary and Pranesh (Mixed precision block fused multiply-add, SISC 42(3), 2020) give
K 2**-24 |A||B| for a unit that rounds to nearest. Here it is drawn as *the published bound*.

**One by one**, to nearest, u = 2**-p: (K - 1) u sum|p^| for the additions (Rump, BIT 52, 2012), where p^ are the stored
products, plus what storing them changed: u |p| + 2**-25 each in FP16, nothing in FP32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import exact_products as whole
from ..tensorcore.models import Model
from ..tensorcore.models import get as model_of

Array = np.ndarray[Any, Any]
ABSENT = -300  # the exponent of a term that is zero
# One GPU of each arithmetic that torch's FP16 products use (mma.k8 of H100 is a fourth): products of a block, and the
# bits to which they are aligned.
CORES = {"V100": (4, 23), "A100": (8, 24), "H100": (16, 25)}
LOWEST, BINS = -64, 112  # the exponents of quanta and last places that can occur


def unit(gpu: str, output: str) -> Model:
    """What a Tensor Core is claimed to do with FP16: the record, but for blocks and rounding, which stand here."""
    (length, bits), (kept, rounding) = CORES[gpu], {"fp16": (10, "rne"), "fp32": (23, "rtz")}[output]
    return replace(model_of(gpu, "fp16", output), length=length, alignment_bits=bits, kept_bits=kept, rounding=rounding)


@dataclass(frozen=True)
class Chains:
    """Chains of blocks, after block j of model m and row r: ``totals`` (blocks + 1, m, r), from zero on; float64.

    ``tops``: the exponent of alignment. ``places``: that of the last place to which the sum was rounded. ``sums``: the
    sum before that, in quanta. All (blocks, m, r).
    """

    totals: Array
    tops: Array
    places: Array
    sums: Array


def terms(a: Array, b: Array, least: int = -14) -> tuple[Array, Array]:
    """Exact products of float64 rows a (M, K), b (N, K), as (M * N, K), and their exponents, not renormalised.

    ``least``: the operands' format's least exponent, by default FP16's.
    """
    products = (a[:, None] * b).reshape(-1, a.shape[1])
    exponents = (_exponent(a, least)[:, None] + _exponent(b, least)).reshape(products.shape)
    return products, np.where(products != 0, exponents, ABSENT)


def _exponent(x: Array, least: int) -> Array:
    return np.asarray(np.maximum(np.frexp(x)[1] - 1, least))


def walk(products: Array, exponents: Array, models: Sequence[Model]) -> Chains:
    """The chains of models that share block length and alignment, block by block, as the definition says it.

    Everything is a float64 that holds an integer or a scaled one exactly: a sum in quanta has at most 31 bits.
    """
    length, align = models[0].length, models[0].alignment_bits
    rows, blocks = len(products), products.shape[1] // length
    p = products.reshape(rows, blocks, length).transpose(1, 0, 2).copy()
    largest = exponents.reshape(rows, blocks, length).max(axis=2).T
    kept = np.array([[m.kept_bits] for m in models])
    least = np.array([[m.format_d.emin] for m in models])
    lowest = np.array([[m.format_d.emin - m.format_d.fraction_bits] for m in models])
    floor = np.array([[ABSENT if m.floor is None else m.floor] for m in models])
    nearest = [m.rounding == "rne" for m in models]
    shape = (blocks, len(models), rows)
    tops, places = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    chains = Chains(np.zeros((blocks + 1, *shape[1:])), tops, places, np.zeros(shape))
    c = chains.totals[0]
    for j in range(blocks):
        own = np.where(c != 0, np.maximum(np.frexp(c)[1] - 1, least), ABSENT)
        top = np.maximum(np.maximum(largest[j], own), floor)
        scale = np.ldexp(1.0, align - top)
        total = np.trunc(p[j] * scale[..., None]).sum(axis=2) + np.trunc(c * scale)
        place = np.maximum(np.frexp(total)[1] - 1 + top - align - kept, lowest)
        ratio = np.ldexp(total, top - align - place)
        for m, is_nearest in enumerate(nearest):
            ratio[m] = np.rint(ratio[m]) if is_nearest else np.trunc(ratio[m])
        c = np.ldexp(ratio, place)
        chains.totals[j + 1], chains.tops[j], chains.places[j], chains.sums[j] = c, top, place, total
    return chains


def by_block(chains: Chains, exponents: Array, models: Sequence[Model], sizes: Array) -> Array:
    """The bound by block of every chain at every length, as limbs (models, rows, S, limb)."""
    length, align = models[0].length, models[0].alignment_bits
    blocks, count, rows = chains.tops.shape
    e = exponents.reshape(rows, blocks, length).transpose(1, 0, 2)
    before = chains.totals[:-1]
    counts = np.zeros((count, rows, sizes.size, BINS), np.int64)
    segment = np.searchsorted(sizes, (np.arange(blocks) + 1) * length)
    at = (np.arange(rows)[None] * sizes.size + segment[:, None]) * BINS - LOWEST
    for m, model in enumerate(models):
        top = chains.tops[:, m]
        own = np.where(before[:, m] != 0, np.maximum(np.frexp(before[:, m])[1] - 1, model.format_d.emin), ABSENT)
        n = ((e < top[..., None]) & (e > ABSENT)).sum(axis=2) + ((own < top) & (own > ABSENT))
        quantum, place = top - align, chains.places[:, m]
        rounds = (chains.sums[:, m] != 0) & (place > quantum)
        nearest = model.rounding == "rne"
        flat = counts[m].reshape(-1)
        for exponent, often in (
            (quantum, n - (0 if nearest else rounds.astype(np.int64))),
            (place - 1 if nearest else place, rounds.astype(np.int64)),
        ):
            there = often != 0
            np.add.at(flat, (at + exponent)[there], often[there])
    return whole.of_counts(np.cumsum(counts, axis=2), LOWEST)


def rate(model: Model) -> Fraction:
    """What one product may add to the error beforehand, as a share of s."""
    length, align = model.length, model.alignment_bits
    return ((length - 1) * Fraction(1, 1 << align) + Fraction(1, 1 << 23)) / length


def clamped(x: Array, least: float = 2.0**-14) -> Array:
    """max(|x|, ``least``) of values that are not zero, of FP16's by default; 0 stays."""
    return np.where(x != 0, np.maximum(np.abs(x), least), 0.0)


def one_by_one(k: int, p: int, magnitude: int) -> Fraction:
    """The bound on K rounded additions into a format of precision p, in units; ``magnitude``: sum|a b| in units."""
    u = Fraction(1, 1 << p)
    stored = Fraction(0) if p == 24 else u * magnitude + k * Fraction(2) ** (-25 - whole.UNIT)
    return stored + (k - 1) * u * (magnitude + stored)
