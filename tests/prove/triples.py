"""Operands for fma by strata: each aims at one way in which a fused multiply-add can go wrong.

Random operands hardly ever cancel, tie, underflow or overflow; of these triples an eighth each does, or nearly.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fplab.formats import Format

Array = np.ndarray[Any, Any]
STRATA = 8


def every_code(fmt: Format, codes: Array) -> Array:
    """The values of codes of a format with infinities whose exponents are those of float32 or of float16."""
    if fmt.exponent_bits == 8:
        return (codes << np.uint32(23 - fmt.fraction_bits)).view(np.float32)
    return (codes << np.uint32(10 - fmt.fraction_bits)).astype(np.uint16).view(np.float16).astype(np.float32)


@dataclass
class Source:
    """Random numbers of one key, the same everywhere and for ever."""

    fmt: Format
    stream: np.random.Philox

    def integers(self, n: int, low: int, high: int) -> Array:
        """``n`` integers from ``low`` to ``high``, both included."""
        return low + ((self.stream.random_raw(n) >> np.uint64(11)) % np.uint64(high - low + 1)).astype(np.int64)

    def sign(self, n: int) -> Array:
        """-1.0 or 1.0."""
        return 1.0 - 2.0 * self.integers(n, 0, 1)

    def significand(self, n: int) -> Array:
        """In [1, 2): a third random, a third with few digits set, a third within two units of 1 or 2."""
        one = 1 << self.fmt.fraction_bits
        full = self.integers(n, 0, one - 1)
        few = ((1 << self.integers(n, 0, self.fmt.fraction_bits)) | self.integers(n, 0, 1)) % one
        edge = self.integers(n, -2, 1) % one
        return 1 + np.choose(self.integers(n, 0, 2), [full, few, edge]) / one

    def number(self, exponent: Array) -> Array:
        """Signed numbers of given exponents."""
        n = exponent.size
        return self.sign(n) * fitted(np.ldexp(self.significand(n), exponent), self.fmt)

    def factors(self, exponent: Array) -> tuple[Array, Array]:
        """Two numbers whose exponents add up to those given, where the format's range allows."""
        low, high = self.fmt.emin - self.fmt.fraction_bits, self.fmt.emax
        first = self.integers(exponent.size, low, high)
        first = np.clip(first, exponent - high, np.maximum(exponent - low, exponent - high))
        first = np.clip(first, low, high)
        return self.number(first), self.number(np.clip(exponent - first, low, high))


def fitted(x: Array, fmt: Format) -> Array:
    """Float64 magnitudes truncated to values of a format, at most its largest."""
    _, exponent = np.frexp(x)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, fmt.emin) - fmt.fraction_bits)
    return np.minimum(np.floor(x / unit) * unit, fmt.max)


def triples(fmt: Format, key: int, n: int) -> tuple[Array, Array, Array]:
    """``n`` triples (a, b, c) of a format as float32; ``key`` fixes them."""
    source = Source(fmt, np.random.Philox(key))
    per = -(-n // STRATA)
    p, emin, emax = fmt.significand_bits, fmt.emin, fmt.emax
    lowest = emin - fmt.fraction_bits

    def anywhere(low: int, high: int) -> Array:
        return source.integers(per, max(low, 2 * lowest), min(high, 2 * emax))

    parts = []
    # Any codes at all, infinities and NaNs included.
    parts.append([every_code(fmt, source.integers(per, 0, (1 << fmt.bits) - 1).astype(np.uint32)) for _ in range(3)])
    # Cancellation: c is -a * b truncated, or a few units beside it.
    a, b = source.factors(anywhere(lowest, emax))
    near = fitted(np.abs(a * b), fmt)
    _, exponent = np.frexp(near)
    beside = near + source.integers(per, -2, 2) * np.ldexp(1.0, np.maximum(exponent - 1, emin) - fmt.fraction_bits)
    parts.append([a, b, -np.sign(a * b) * fitted(np.abs(beside), fmt)])
    # An addend at every distance from the product, both ways.
    exponent = anywhere(lowest, emax)
    c = source.number(np.clip(exponent + source.integers(per, -2 * p - 4, 2 * p + 4), lowest, emax))
    parts.append([*source.factors(exponent), c])
    # Ties and their neighbours: the product is about half a unit of c, or a whole one.
    exponent = source.integers(per, max(emin, emin + p - emax), emax)
    c = source.sign(per) * np.ldexp(1 + source.integers(per, 0, (1 << (p - 1)) - 1) * fmt.eps, exponent)
    split = source.integers(per, -3, 3)
    tiny = [1 + source.integers(per, 0, 1) * fmt.eps * np.where(source.integers(per, 0, 1), 1, -0.5) for _ in range(2)]
    a = source.sign(per) * fitted(np.ldexp(tiny[0], split), fmt)
    b = source.sign(per) * fitted(np.ldexp(tiny[1], exponent - p + source.integers(per, 0, 1) - split), fmt)
    parts.append([a, b, fitted(np.abs(c), fmt) * np.sign(c)])
    # Results that are subnormal, or nearly.
    parts.append([*source.factors(anywhere(lowest - 3, emin + 1)), source.number(anywhere(lowest, emin + 1))])
    # Overflow, or nearly.
    parts.append([*source.factors(anywhere(emax - 1, emax + 1)), source.number(anywhere(emax - 2 * p, emax))])
    # The ends of the range, zeros, ones, infinities and NaNs, quiet and signalling.
    top = (1 << fmt.bits - 1) - (1 << fmt.fraction_bits)
    codes = [0, 1, (1 << fmt.fraction_bits) - 1, 1 << fmt.fraction_bits, top - 1, top, top + 1, fmt.nan_code]
    one = -emin + 1 << fmt.fraction_bits
    ends = np.array([*codes, one, one - 1, one + 1], np.uint32)
    ends = every_code(fmt, np.concatenate([ends, ends | np.uint32(fmt.sign_mask)]))
    parts.append([ends[source.integers(per, 0, ends.size - 1)] for _ in range(3)])
    # Any exponents at all.
    parts.append([source.number(source.integers(per, lowest, emax)) for _ in range(3)])
    with np.errstate(invalid="ignore"):
        a, b, c = (np.concatenate([np.asarray(part[k], np.float32) for part in parts])[:n] for k in range(3))
    return a, b, c
