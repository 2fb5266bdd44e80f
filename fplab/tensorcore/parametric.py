"""A matrix unit by its parameters: any that adds terms in steps, a table's or nobody's, computed from its record alone.

A **step** adds products onto the sum so far: terms are cut to a grid below the largest, added exactly, rounded once.
Where two sums meet they are **joined**, by one addition. The order says which products a step takes and what is joined.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LabError, door
from ..formats import Format, get
from ..reveal import SumTree
from .operands import read

Array = np.ndarray[Any, Any]
ROUNDERS: dict[str, Callable[[Array], Array]] = {
    "rne": np.rint,
    "rtz": np.trunc,
    "rtn": np.floor,
    "rtp": np.ceil,
    "rna": lambda x: np.trunc(x + np.copysign(0.5, x)),
}
FAULTY: dict[str, Callable[[Array], Array]] = {"rne, no sticky": lambda x: np.rint(np.trunc(2 * x) / 2)}
"""Roundings that are faults: of what is below the guard bit nothing decides a tie."""
ORDERS = ("chain", "pairwise", "split", "interleaved", "promoted", "groups", "halves")
DEEP = -(10**4)  # the exponent of a zero, below that of any number


@door
@dataclass(frozen=True)
class ParametricUnit:
    """The arithmetic of a product, as a frozen record that computes.

    ``a``, ``b``, ``output``: formats. ``length``: products of a step. ``order``: "chain", steps one after the other;
    "pairwise", steps from zero, joined as a balanced tree; "split", ``parts`` contiguous chains joined in order;
    "interleaved", steps dealt in turn to ``parts`` chains; "promoted", a chain for every ``parts`` products, each
    joined to one register; "groups", as promoted, but with each product of a group rounded by itself and joined
    pairwise; "halves", of every 32 products those of k mod 4 < 2, then the others, as one chain, joined to one
    register; or a :class:`~fplab.reveal.SumTree` for one k alone, whose last term is c. ``reverse``: k descends.
    ``c``: "first", a term of the first step or the register; "last", joined at the end; "none".

    ``alignment_bits``: a step's terms are cut to multiples of 2**(largest exponent - these), by the rounding
    ``alignment``; None: they are not cut. ``normalised``: whether the exponent of a product is that of its value, not
    the sum of its factors'. ``products``: "exact", or "rounded" to the accumulator before they are added.
    ``accumulator``: the format whose range sums have; ``kept_bits`` are their fraction bits, ``rounding`` is a step's,
    ``joins`` a join's, ``store`` that of the result to ``output``. The three last say what takes subnormals for zeros.

    Zeros come out as +0, and operands that are not finite are summed as IEEE 754 does.
    """

    a: str
    b: str
    output: str
    length: int = 1
    order: str | SumTree = "chain"
    parts: int = 0
    reverse: bool = False
    c: str = "first"
    alignment_bits: int | None = None
    alignment: str = "rtz"
    normalised: bool = False
    products: str = "exact"
    accumulator: str = "fp32"
    kept_bits: int = 23
    rounding: str = "rne"
    joins: str = "rne"
    store: str = "rne"
    flush_inputs: bool = False
    flush_products: bool = False
    flush_results: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.order, SumTree) and self.order not in ORDERS:
            raise LabError(f"order={self.order!r} is not possible; allowed: {', '.join(ORDERS)}, or a SumTree.")

    @property
    def sums(self) -> Format:
        """The format of the sums."""
        return _format(self.accumulator, self.kept_bits)

    def changed(self, **fields: Any) -> ParametricUnit:
        """A copy with other values, taken as they are: checking them takes longer than computing with them."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other

    def tree(self, k: int) -> SumTree:
        """The order for k products, as a tree of k + 1 terms whose last is c, or of k without c."""
        if isinstance(self.order, SumTree):
            if self.order.size != k + (self.c != "none"):
                raise LabError(f"this order is known for {self.order.size - (self.c != 'none')} products, and k={k}.")
            return self.order
        return _tree(self.order, k, self.length, self.parts, self.reverse, self.c)

    def dot(self, a: Any, b: Any, c: Any = None) -> Array:
        """The products of rows: ``a``, ``b`` (N, K) and ``c`` (N,), rounded to their formats, give (N,) float32."""
        x, y = (read(v, n, f, None, False).astype(np.float64) for v, n, f in ((a, "a", self.a), (b, "b", self.b)))
        if x.shape != y.shape or x.ndim != 2 or not x.shape[1]:
            raise LabError(f"a has shape {x.shape} and b {y.shape}; both must be (N, K), and K at least 1.")
        z = np.zeros(len(x)) if c is None else read(c, "c", self.output, None, False).astype(np.float64)
        result = self.compute(x, y, z)
        special = ~np.isfinite(x).all(axis=1) | ~np.isfinite(y).all(axis=1) | ~np.isfinite(z)
        if special.any():
            with np.errstate(invalid="ignore"):
                result[special] = (x * y)[special].sum(axis=1) + z[special]
        return result.astype(np.float32)

    def compute(self, x: Array, y: Array, z: Array, **many: Array) -> Array:
        """The same of finite float64 values of the formats, in float64.

        ``many``: several values (V, 1) for ``alignment_bits`` or ``kept_bits`` at once, for results (V, N).
        """
        kept, bits = many.get("kept_bits", self.kept_bits), many.get("alignment_bits", self.alignment_bits)
        emin, emax, k = self.sums.emin, self.sums.emax, x.shape[1]
        with np.errstate(all="ignore"):
            if self.flush_inputs:
                forms = (get(name).emin for name in (self.a, self.b, self.output))
                x, y, z = (np.where(np.abs(v) < 2.0**least, 0, v) for v, least in zip((x, y, z), forms, strict=True))
            live = np.flatnonzero(x.any(axis=0) & y.any(axis=0)).tolist()
            alone = self.products == "rounded" or (self.length == 1 and self.order in ("pairwise", "groups"))

            def settled(v: Array, rounding: str) -> tuple[Array, Array]:
                v = rounded(v, emin, kept, emax, rounding)
                if self.flush_results:
                    v = np.where(np.abs(v) < 2.0**emin, 0, v)
                return v, _exponent(v, emin)

            partial_sums: dict[int, tuple[Array, Array]] = {}
            for i in live:
                p = x[:, i] * y[:, i]
                if self.flush_products:
                    p = np.where(np.abs(p) < 2.0**emin, 0, p)
                e = _exponent(x[:, i], get(self.a).emin) + _exponent(y[:, i], get(self.b).emin)
                raw = p, _exponent(p, DEEP) if self.normalised else np.where(p == 0, DEEP, e)
                partial_sums[i] = settled(p, self.rounding) if alone else raw
            if self.c != "none" and z.any():
                live.append(k)
                partial_sums[k] = z, _exponent(z, emin)
            ordered = self.length == 1 and not alone
            for node, children, step, first in _program(self.tree(k), tuple(live), k, ordered, self.reverse):
                if first is not None:
                    partial_sums[first] = settled(partial_sums[first][0], self.rounding)
                parts = [partial_sums[i] for i in children]
                cuts = step and bits is not None
                total = self._cut(parts, bits) if cuts else exact_sum([v for v, _ in parts])
                partial_sums[node] = settled(total, self.rounding if step else self.joins)
            last = max(partial_sums, default=None)
            result = np.zeros(len(x)) if last is None else settled(partial_sums[last][0], self.rounding)[0]
            out = get(self.output)
            return rounded(result, out.emin, out.fraction_bits, out.emax, self.store) + 0.0

    def _cut(self, parts: Sequence[tuple[Array, Array]], bits: Any) -> Array:
        """The exact sum of terms cut to the grid below the largest."""
        emax = functools.reduce(np.maximum, (e for _, e in parts))
        quantum = np.ldexp(1.0, np.where(emax <= DEEP // 2, 0, emax) - bits)
        cut = ROUNDERS[self.alignment]
        return np.asarray(sum(cut(v / quantum) for v, _ in parts) * quantum)


def rounded(x: Array, emin: int, kept: int | Array, emax: int, rounding: str) -> Array:
    """Float64 rounded once to so many fraction bits; what is beyond the largest number is infinite."""
    quantum = np.ldexp(1.0, _raised(x, emin) - kept)
    y = np.asarray((ROUNDERS.get(rounding) or FAULTY[rounding])(x / quantum) * quantum)
    beyond = np.abs(y) >= 2.0 ** (emax + 1)
    return np.where(beyond, np.copysign(np.inf, y), y) if beyond.any() else y


@functools.lru_cache(maxsize=4096)
def _program(
    tree: SumTree, live: tuple[int, ...], k: int, ordered: bool, reverse: bool
) -> list[tuple[int, list[int], bool, int | None]]:
    """The additions that terms other than zero pass: where the sum is held, what is added, whether as a step, and the
    product that is a step of its own before, where a chain begins with two products and no c."""
    place: dict[int, int] = {i: i for i in live}
    program: list[tuple[int, list[int], bool, int | None]] = []
    idle: set[int] = set()  # sums that a step without products has cut already
    for node, children in enumerate(tree.nodes, tree.size):
        parts = [place[i] for i in children if i in place]
        step = any(i < k for i in children)
        first = None
        if ordered and len(children) == 2 and max(children) < k and (begins := children[-1 if reverse else 0]) in place:
            first = begins
        if len(parts) == 1 and parts[0] >= tree.size and (not step or parts[0] in idle):
            place[node] = parts[0]
        elif parts:
            place[node] = node
            program.append((node, parts, step, first))
            if len(parts) == 1:
                idle.add(node)
    return program


@functools.cache
def _format(name: str, kept: int) -> Format:
    return Format("sums", get(name).exponent_bits, kept)


def _exponent(x: Array, emin: int) -> Array:
    """Exponents, not below ``emin``; a zero's is far below all."""
    e = _raised(x, emin)
    e[x == 0] = DEEP
    return e


def _raised(x: Array, emin: int) -> Array:
    """Exponents, not below ``emin``, in the array that frexp makes: inference asks for hundreds of thousands."""
    e = np.frexp(x)[1]
    e -= 1
    return np.asarray(np.maximum(e, emin, out=e))


def exact_sum(terms: Sequence[Array]) -> Array:
    """The exact sum of float64 numbers rounded to odd: rounded again, to 51 bits or fewer, it is as if rounded once."""
    parts: list[Array] = []
    for term in terms:  # Shewchuk's expansions: the parts do not overlap, the largest is last
        grown, top = [], term
        for part in parts:
            top, rest = _two_sum(top, part)
            grown.append(rest)
        parts = [*grown, top]
    total, rest = parts[-1], np.zeros_like(parts[-1])
    for part in reversed(parts[:-1]):
        high, low = _two_sum(total, part)
        total, rest = np.where(rest == 0, high, total), np.where(rest == 0, low, rest)
    even = (total.view(np.int64) & 1) == 0
    return np.where((rest != 0) & even, np.nextafter(total, np.copysign(np.inf, rest)), total)


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """Their sum to nearest and the error of it (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@functools.lru_cache(maxsize=4096)
def _tree(order: str, k: int, length: int, parts: int, reverse: bool, c: str) -> SumTree:
    """The tree of an order of the list."""
    terms = list(range(k))[:: -1 if reverse else 1]
    start = k if c == "first" else None
    cut = lambda x, n: [x[i : i + n] for i in range(0, len(x), n)]  # noqa: E731
    if order == "chain":
        tree = _chain(start, cut(terms, length))
    elif order == "pairwise":
        tree = _joined(start, [_balanced([_chain(None, [step]) for step in cut(terms, length)])])
    elif order == "split":
        pieces = [list(piece) for piece in np.array_split(np.arange(-(-k // length)), parts)]
        steps = cut(terms, length)
        chains = [[steps[i] for i in piece] for piece in pieces if piece]
        tree = _joined(_chain(start, chains[0]), [_chain(None, terms) for terms in chains[1:]])
    elif order == "interleaved":
        steps = cut(terms, length)
        dealt = [steps[n::parts] for n in range(min(parts, len(steps)))]
        tree = _joined(_chain(start, dealt[0]), [_chain(None, terms) for terms in dealt[1:]])
    elif order == "promoted":
        tree = _joined(start, [_chain(None, cut(piece, length)) for piece in cut(terms, parts)])
    elif order == "groups":
        tree = _joined(start, [_balanced(piece) for piece in cut(terms, parts)])
    else:
        halves = [[[i for i in piece if (i % 4 < 2) == first] for first in (True, False)] for piece in cut(terms, 32)]
        tree = _joined(start, [_chain(None, [half for half in both if half]) for both in halves])
    return SumTree.of(_joined(tree, [k]) if c == "last" else tree)


def _chain(start: Any, steps: Sequence[Sequence[int]]) -> Any:
    """Steps onto a start, or from zero."""
    for step in steps:
        terms = (*step,) if start is None else (start, *step)
        start = terms if len(terms) > 1 else terms[0]
    return start


def _joined(start: Any, parts: Sequence[Any]) -> Any:
    """Sums added one after the other."""
    for part in parts:
        start = part if start is None else (start, part)
    return start


def _balanced(parts: Sequence[Any]) -> Any:
    """Sums added two by two, again and again."""
    nodes = list(parts)
    while len(nodes) > 1:
        nodes = [tuple(nodes[i : i + 2]) if i + 1 < len(nodes) else nodes[i] for i in range(0, len(nodes), 2)]
    return nodes[0]
