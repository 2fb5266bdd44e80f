"""Ways to multiply FP32 matrices with narrow products, their exact sums, and what is proved about them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ...tensorcore.models import get
from ...tensorcore.plan import Plan
from ..partial_products.bounds import clamped, rate
from ..partial_products.compared import Compared
from ..partial_products.operands import sizes
from ..tf32 import operands as fp32_operands
from ..tf32.products import multiply_adds
from .parts import ALONE, PLAIN, SCALED, TF32, Scheme, split

Array = np.ndarray[Any, Any]
MADE_UP = ("random", "positive", "small")
KINDS = (*MADE_UP, fp32_operands.REAL)
SMALL = -9  # the exponent by which the operands of ``small`` are scaled
GPUS = ("A100", "H100")


@dataclass(frozen=True)
class Method:
    """``products``: how many of the parts; 0 is a chain of FP32 fused multiply-adds. ``outside``: c = 0 always."""

    name: str
    scheme: Scheme = ALONE
    products: int = 1
    outside: bool = False
    gpu: str = "A100"


METHODS = (
    Method("FP32 multiply-adds", products=0),
    Method("FP16"),
    Method("2 products", PLAIN, 2),
    Method("3 products", PLAIN, 3),
    Method("4 products", PLAIN, 4),
    *(Method(f"3 scaled, inside, {gpu}", SCALED, 3, False, gpu) for gpu in GPUS),
    *(Method(f"3 scaled, outside, {gpu}", SCALED, 3, True, gpu) for gpu in GPUS),
    Method("3 TF32 scaled, outside", TF32, 3, True),
)


def index(name: str) -> int:
    """The place of a method."""
    return [method.name for method in METHODS].index(name)


def operands(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """Float32 A and B (rows, K): as in ``tf32``; ``small`` are random ones times 2**-9."""
    if kind == "small":
        a, b = fp32_operands.make("random", rows, log2_last)
        return np.ldexp(a, SMALL), np.ldexp(b, SMALL)
    return fp32_operands.make(kind, rows, log2_last)


def multiply(a: Array, b: Array, method: Method) -> Array:
    """a (M, K) times b (N, K), float32 (M, N), as the method does it.

    Unscaled parts go through one accumulator, the smallest products first. Scaled ones have an accumulator for the
    high parts and one for the two mixed products; at the end the second, times 2**-11, is added to the first.
    """
    from ... import tensorcore

    (ah, al), (bh, bl) = split(a, method.scheme), split(b, method.scheme)
    model = get(method.gpu, method.scheme.fmt)
    plan = Plan(promote=model.k if method.outside else None)

    def product(x: Array, y: Array, c: Array | None = None) -> Array:
        return tensorcore.matmul(x, y.T, c, gpu=model, plan=plan)

    mixed = None
    if method.products > 3:
        mixed = product(al, bl, mixed)
    if method.products > 2:
        mixed = product(ah, bl, mixed)
    if method.products > 1:
        mixed = product(al, bh, mixed)
    if mixed is None or not method.scheme.log2_scale:
        return product(ah, bh, mixed)
    return np.asarray(product(ah, bh) + np.ldexp(mixed, -method.scheme.log2_scale))


def results(a: Array, b: Array, method: Method, at: Array) -> Array:
    """The product of every length: float32 (M, N, S)."""
    if not method.products:
        return multiply_adds(a, b, at)
    return np.stack([multiply(a[:, :k], b[:, :k], method) for k in at.tolist()], axis=-1)


def partial_sums(a: Array, b: Array, at: Array) -> Array:
    """The exact sums of 1, 2, 3 and 4 products of scaled parts, integers (4, M, N, S)."""
    (ah, al), (bh, bl) = split(a, SCALED), split(b, SCALED)
    al, bl = (np.ldexp(x, -SCALED.log2_scale) for x in (al, bl))
    terms = [whole.products(x, y, at) for x, y in ((ah, bh), (al, bh), (ah, bl), (al, bl))]
    return np.cumsum(np.stack(terms), axis=0)


def measured(a: Array, b: Array) -> Arrays:
    """Operands, exact sums and results of one kind."""
    at = sizes(a.shape[1].bit_length() - 1)
    (ah, al), (bh, bl) = (tuple(np.abs(part) for part in split(x, SCALED)) for x in (a, b))
    mixed = whole.products(clamped(al), clamped(bh), at) + whole.products(clamped(ah), clamped(bl), at)
    return {
        "a": a.view(np.uint32),
        "b": b.view(np.uint32),
        "exact": whole.pack(whole.products(a, b, at)),
        "magnitude": whole.pack(whole.products(np.abs(a), np.abs(b), at)),
        "clamped": whole.pack(whole.products(clamped(a), clamped(b), at)),
        "partial": whole.pack(partial_sums(a, b, at)),
        "main": whole.pack(whole.products(clamped(ah), clamped(bh), at)),
        "correction": whole.pack(mixed),
        "results": np.stack([results(a, b, method, at) for method in METHODS]),
    }


# --- exact comparisons ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured(Compared):
    """``results`` by method, ``partial`` by number of products; the other sums (M, N, S) are :func:`measured`'s."""

    clamped: Array
    partial: Array
    main: Array
    correction: Array

    def split_bound(self) -> Array:
        """What three exact products of scaled parts may miss: (2**-21 + 2**-45) sum|a b|, rounded down.

        To nearest, |low| <= 2**-11 |a|, and the two parts miss r with |r| <= 2**-23 |a|. The sum misses
        low*low, r*b and (high + low)*r: 2**-22, 2**-23 and 2**-23 (1 + 2**-23) of |a b|. Below 2**-14 FP16 has fewer
        bits, and what holds there holds for 2**-14 in the place of |a|.
        """
        return self.rounded_down(lambda k, s: Fraction((1 << 24) + 1, 1 << 45) * s, self.clamped)

    def sum_bound(self, gpu: str, outside: bool) -> Array:
        """What summing three products of scaled parts may cost, rounded down.

        ``rate`` is that of FP32 sums of FP16 products (:mod:`..partial_products.bounds`), u = 2**-24. Inside, a chain
        of n products costs n * rate. Outside, every instruction costs 16 * rate and m additions of them cost
        g = m u / (1 - m u), also on the instructions' errors. Then the two sums are added, with one rounding.
        """
        model = get(gpu, "fp16")
        u, one = Fraction(1, 1 << 24), rate(model)

        def chain(n: int) -> Fraction:
            if not outside:
                return n * one
            m = n // model.k
            return (1 + model.k * one) * (1 + m * u / (1 - m * u)) - 1

        def cost(k: int, main: int, mixed: int) -> Fraction:
            first, second = chain(k), chain(2 * k)
            added = first * main + second * mixed / 2048
            return added + u * ((1 + first) * main + (1 + second) * mixed / 2048)

        return self.rounded_down(cost, self.main, self.correction)

    def bound(self, i: int) -> Array | None:
        """The bound of a method at every length, rounded down, or None where none is proved here."""
        method = METHODS[i]
        if not method.products:
            return self.rounded_down(lambda k, s: Fraction(k, (1 << 24) - k) * s, self.magnitude)
        if method.scheme != SCALED:
            return None
        return np.asarray(self.split_bound() + self.sum_bound(method.gpu, method.outside))


def of_kind(arrays: Arrays, kind: str) -> Measured:
    """All of one kind."""
    lengths = sizes(arrays[f"{kind}: a"].shape[1].bit_length() - 1)
    names = ("exact", "magnitude", "clamped", "partial", "main", "correction")
    found = {part: whole.unpack(arrays[f"{kind}: {part}"]) for part in names}
    return Measured(lengths, results=whole.of_values(arrays[f"{kind}: results"]), **found)
