"""Operands on which two models differ, made as small as can be."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import seeds
from ..errors import LabError, integer, quotes_call
from ..floats import quantize
from . import units
from .models import Model, get
from .products import dot

Array = np.ndarray[Any, Any]
Row = tuple[Array, Array, float]  # a, b and c
Size = tuple[int, int, int, int]
ROWS = 1500  # of one kind in one round
ROUNDS = 6


@dataclass(frozen=True)
class Separation:
    """One row that tells two models apart: ``a``, ``b`` (K,), ``c``, and the float32 bits that each model gives."""

    a: Array
    b: Array
    c: float
    bits: int
    other_bits: int

    @property
    def products(self) -> int:
        """How many products are not zero."""
        return int(np.count_nonzero((self.a != 0) & (self.b != 0)))

    def __str__(self) -> str:
        factors = enumerate(zip(self.a.tolist(), self.b.tolist(), strict=True))
        terms = [f"{x!r} * {y!r} [k={k}]" for k, (x, y) in factors if x and y]
        return " + ".join([repr(self.c), *terms]) + f" = {self.bits:08x} or {self.other_bits:08x}"


@quotes_call
def separate(model: str | Model, other: str | Model, seed: int = 0) -> Separation | None:
    """A small row on which two models give different bits; None where a wide search finds no difference.

    The search draws operands that both models' formats hold, of the kinds that lie where models differ: next to the
    accumulator's last bits, cancelling, tiny, and next to overflow. What it finds is then shrunk until no product and
    no element of k can be left out and no factor or c be made simpler. ``seed``: of what is drawn.

    A GPU's name is its FP16 unit. Raises LabError for models without blocks: INT8 and FP64.

    >>> found = separate("A100", "H100")
    >>> found.products, found.bits != found.other_bits
    (1, True)
    """
    model, other = get(model), get(other)
    if not all(m.output in ("fp32", "fp16") for m in (model, other)):
        raise LabError("separate compares models of fused blocks; INT8 and FP64 are exact or plain IEEE arithmetic.")
    rng = np.random.Generator(seeds.stream(integer("seed", seed, 0, 2**64 - 1)))
    best: Row | None = None
    k = 2 * max(units.of(m).width(m) for m in (model, other))
    for _ in range(ROUNDS):
        for kind in range(5):
            drawn = _draw(kind, k, rng, model, other)
            a, b, c = (_common(x, model, other, side) for x, side in zip(drawn, "abc", strict=True))
            differ = np.flatnonzero(_bits(model, a, b, c) != _bits(other, a, b, c))
            for row in differ[:4]:
                smaller = _shrink(model, other, a[row], b[row], float(c[row]))
                if best is None or _size(smaller) < _size(best):
                    best = smaller
        if best is not None:
            break
    if best is None:
        return None
    a, b, c_best = best
    x, y = (int(_bits(m, a[None], b[None], np.array([c_best], np.float32))[0]) for m in (model, other))
    return Separation(a, b, c_best, x, y)


def _bits(model: Model, a: Array, b: Array, c: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(dot(a, b, c, gpu=model), np.float32).view(np.uint32)


def _common(x: Array, model: Model, other: Model, side: str) -> Array:
    """Values rounded to both models' formats of A, B or C; what overflows one of them becomes 0."""
    both = {"a": (model.a, other.a), "b": (model.b, other.b), "c": (model.output, other.output)}[side]
    names = tuple(dict.fromkeys(both))
    for _ in names:  # of two, each once more: a value of the one may have left the other
        for name in names:
            x = np.asarray(quantize(x, name))
            x = np.where(np.isfinite(x), x, np.float32(0))
    return x.astype(np.float32)


def _draw(kind: int, k: int, rng: np.random.Generator, model: Model, other: Model) -> tuple[Array, Array, Array]:
    """Rows of one kind. Exponents are drawn for products, and shared out between their factors."""
    low = max(model.format_a.emin + model.format_b.emin, other.format_a.emin + other.format_b.emin) - 20
    high = min(model.format_a.emax + model.format_b.emax, other.format_a.emax + other.format_b.emax)
    top = rng.integers(max(low, -60), min(high, 40), (ROWS, 1), endpoint=True)
    if kind == 1:
        top = np.full((ROWS, 1), low + rng.integers(0, 40))
    if kind == 2:
        top = np.full((ROWS, 1), high - rng.integers(0, 3))
    exponents = top - rng.integers(0, 30, (ROWS, k)) * (rng.random((ROWS, k)) < 0.7)
    first = exponents // 2 + rng.integers(-2, 3, (ROWS, k))
    digits = rng.choice([1.0, 1.0, 1.0, 1.5, 1.25, 1.75, 1 + 2.0**-7, 2 - 2.0**-10], (2, ROWS, k))
    a, b = np.ldexp(digits[0], first), np.ldexp(digits[1], exponents - first)
    a = np.where(rng.random((ROWS, k)) < 0.5, -a, a) * (rng.random((ROWS, k)) < rng.choice([0.1, 0.5, 1.0], (ROWS, 1)))
    if kind == 3:  # pairs that cancel
        chosen = rng.random((ROWS, k // 2)) < 0.4
        a[:, 1::2] = np.where(chosen, -a[:, ::2], a[:, 1::2])
        b[:, 1::2] = np.where(chosen, b[:, ::2], b[:, 1::2])
    c = np.ldexp(1 + rng.integers(0, 2**23, ROWS) * 2.0**-23, top[:, 0] + rng.integers(-26, 6, ROWS))
    c *= rng.choice([-1.0, 0.0, 1.0], ROWS)
    if kind == 4:
        c = np.ldexp(np.sign(c), top[:, 0] + rng.integers(-26, 6, ROWS))
    return a, b, c


def _size(row: Row) -> Size:
    """Products, length, whether there is a c, and digits: what a small row has little of."""
    a, b, c = row
    fractions = (np.frexp(np.concatenate([a, b, [c]]))[0] * 2.0**53).astype(np.int64)
    lowest = np.frexp(fractions & -fractions)[1]  # the place of the last digit that is 1, counted from 1; 0 in zeros
    digits = int(np.where(lowest > 0, 54 - lowest, 0).sum())
    return int(np.count_nonzero((a != 0) & (b != 0))), a.size, int(c != 0), digits


def _shrink(model: Model, other: Model, a: Array, b: Array, c: float) -> Row:
    """Make a row smaller, one change at a time, for as long as the models still differ on it."""
    current = (a, b, c)
    while True:
        size = _size(current)
        sized = [(_size(x), x) for x in _smaller(*current)]
        smaller = sorted((one for one in sized if one[0] < size), key=lambda row: row[0])
        for _, alike in itertools.groupby(smaller, key=lambda row: row[1][0].size):
            if (first := _first(model, other, [x for _, x in alike], size)) is not None:
                current = first
                break
        else:
            return current


def _first(model: Model, other: Model, rows: list[Row], below: Size) -> Row | None:
    """The first of rows of one length that, in the formats, is smaller than that and on which the models differ."""
    columns = (np.array(v, np.float64) for v in zip(*rows, strict=True))
    a, b, c = (_common(v, model, other, side) for v, side in zip(columns, "abc", strict=True))
    differ = np.flatnonzero(_bits(model, a, b, c) != _bits(other, a, b, c)).tolist()
    candidates = ((a[n], b[n], float(c[n])) for n in differ)
    return next((row for row in candidates if _size(row) < below), None)


def _smaller(a: Array, b: Array, c: float) -> list[Row]:
    """Rows that are one change simpler."""
    rows = [(a[: a.size // 2], b[: b.size // 2], c), (a[:-1], b[:-1], c)] if a.size > 1 else []
    live = np.flatnonzero((a != 0) & (b != 0))  # their product may overflow
    parts: list[Array] = (
        [live[: live.size // 2], live[live.size // 2 :], *np.split(live, live.size)] if live.size else []
    )
    for part in parts:
        less = a.copy()
        less[part] = 0
        rows.append((less, np.asarray(np.where(less == 0, np.float32(0), b)), c))
    for n in live:  # to the next place on the left
        if n and a[n - 1] == 0:
            x, y = a.copy(), b.copy()
            x[n - 1], y[n - 1], x[n], y[n] = a[n], b[n], 0, 0
            rows.append((x[:-1], y[:-1], c) if n == a.size - 1 else (x, y, c))
    for n in live:  # powers of two
        x, y = a.copy(), b.copy()
        x[n], y[n] = _power_of_two(a[n]), _power_of_two(b[n])
        rows += [(x, b, c), (a, y, c)]
    if c:
        m, e = np.frexp(c)
        rows += [(a, b, float(simple)) for simple in (0, _power_of_two(c), np.ldexp(np.round(m * 4) / 4, e))]
    return rows


def _power_of_two(x: float) -> float:
    """The power of two that begins the binade of a number, with its sign."""
    m, e = np.frexp(float(x))
    return float(np.ldexp(np.sign(m), e - 1))
