"""The order in which a black box adds its terms, revealed from its results alone, as a tree.

Let one term be M, another -M and all others 1, with M so large that M + 1 = M. Every 1 that is added to M or to -M
before the two meet is lost; all others survive. So the result counts the terms outside of the smallest part of the sum
that holds both, and the sizes of these parts, over enough pairs, are the tree. A **fused** sum (a Tensor Core block,
which truncates all its terms to the largest one's grid and adds them at once) loses every 1 beside M, and becomes
a node with more than two children.

Source: FPRev, Revealing the order of floating-point summation (arXiv 2411.00442). Here every leaf's path to the top is
measured once, which takes n - 1 probes for a loop and n (n - 1) / 2 at most, a call for each level of the tree; then n
more pairs, with the signs exchanged, must agree with the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from .errors import LabError, integer, quotes_call
from .formats import Format, FormatLike, get

T = TypeVar("T")
Array = np.ndarray[Any, Any]
Sizes = Callable[[Array], Array]
Factors = Sequence[tuple[float, float]]  # M and 1, as factors
MOST = 1 << 16  # terms
ROWS = 1 << 22  # numbers handed to a function of rows at a time
NARROW = (15, -24)  # exponents of M and of the ones: within FP16, which may be the format of the result
WIDE = (127, 0)
DTYPES = {"fp16": np.float16, "fp64": np.float64}


# --- the tree -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumTree:
    """A summation tree. ``nodes[i]`` are the children of node ``size + i``: terms (below ``size``) or earlier nodes.

    Children come in the order of their first terms, nodes in post-order, the root last: so two trees are the same sum,
    up to commutativity, exactly when they are equal. One term has no nodes.
    """

    size: int
    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, nested: Any) -> SumTree:
        """The tree of nested tuples of term numbers.

        >>> SumTree.of(((1, 0), (2, 3))) == SumTree.of(((2, 3), (0, 1)))
        True
        """
        parents: list[int] = []
        children: list[int] = []
        leaves: dict[int, int] = {}
        stack = [(nested, -1)]
        while stack:
            part, parent = stack.pop()
            if isinstance(part, tuple):
                parents.append(parent)
                stack += [(p, len(parents) - 1) for p in part]
                children.append(len(part))
            elif not isinstance(part, int) or part in leaves:
                raise LabError(f"{part!r} is not a term number, or is there twice.")
            else:
                leaves[part] = parent
        if sorted(leaves) != list(range(len(leaves))) or any(count < 2 for count in children):
            raise LabError("nested tuples must hold 0 to n - 1 once each, and two parts or more in every tuple.")
        return _canonical([leaves[i] for i in range(len(leaves))], parents)

    @classmethod
    def from_sizes(cls, sizes: Array) -> SumTree:
        """The tree whose smallest part with both i and j has ``sizes[i, j]`` terms; (n, n) integers.

        Raises LabError where no tree has these sizes.
        """
        tree = _build(len(sizes), lambda pairs: np.asarray(sizes)[tuple(pairs.T)])
        wrong = np.argwhere(tree.sizes != sizes)
        if wrong.size:
            i, j = wrong[0].tolist()
            raise LabError(f"no tree has these sizes: terms {i} and {j} meet in {sizes[i][j]} terms.")
        return tree

    @property
    def sizes(self) -> Array:
        """How many terms the smallest part with both i and j has: (n, n) int64, 1 on the diagonal."""
        return self._counted(lambda parts, a, b: sum(map(len, parts)))

    @property
    def beside(self) -> Array:
        """How many terms have been added to i or to j before the two meet, themselves included: (n, n) int64."""
        return self._counted(lambda parts, a, b: len(parts[a]) + len(parts[b]))

    def _counted(self, count: Callable[[list[Array], int, int], int]) -> Array:
        """A number for each pair of terms, of the children of the node where they meet and which of them they are."""
        out = np.ones((self.size, self.size), np.int64)
        for parts in self._leaves_of_children():
            for a, part in enumerate(parts):
                for b, other in enumerate(parts[:a]):
                    out[part[:, None], other] = out[other[:, None], part] = count(parts, a, b)
        return out

    def _leaves_of_children(self) -> list[list[Array]]:
        """By node: the terms of each child."""
        subtrees = list(np.arange(self.size).reshape(-1, 1))
        leaves = []
        for parts in self.nodes:
            leaves.append([subtrees[p] for p in parts])
            subtrees.append(np.concatenate(leaves[-1]))
        return leaves

    @property
    def widths(self) -> dict[int, int]:
        """How many nodes have how many children: {2: n - 1} is a sum of single additions."""
        return dict(sorted(Counter(map(len, self.nodes)).items()))

    @property
    def heights(self) -> tuple[int, ...]:
        """The height of every term (0) and node: how many additions lie between it and its farthest term."""
        heights = [0] * self.size
        for parts in self.nodes:
            heights.append(1 + max(heights[p] for p in parts))
        return tuple(heights)

    @property
    def depth(self) -> int:
        """The most additions that a term passes."""
        return self.heights[-1]

    @property
    def nested(self) -> Any:
        """The tree as nested tuples of term numbers."""
        parts: list[Any] = list(range(self.size))
        return self.fold(parts, tuple)

    def fold(self, terms: Sequence[T], add: Callable[[list[T]], T]) -> T:
        """Add ``terms`` in this order; ``add`` gets the parts that one node joins.

        >>> tree = SumTree.of(((0, 1), 2))
        >>> float(tree.fold(np.float16([0.5, 512, 512.5]), lambda parts: parts[0] + parts[1]))
        1025.0
        >>> float(SumTree.of((0, (1, 2))).fold(np.float16([0.5, 512, 512.5]), lambda parts: parts[0] + parts[1]))
        1024.0
        """
        if len(terms) != self.size:
            raise LabError(f"the tree adds {self.size} terms, and {len(terms)} are given.")
        sums = list(terms)
        for parts in self.nodes:
            sums.append(add([sums[p] for p in parts]))
        return sums[-1]

    def __str__(self) -> str:
        """The tree in brackets, neighbouring terms of one node as a range.

        >>> print(SumTree.of(((0, 1, 2, 3), 4, 5, 6, 7)))
        ((0..3) 4..7)
        """
        texts = [str(i) for i in range(self.size)]
        for parts in self.nodes:
            words: list[str] = []
            for first, last in _runs(parts, self.size):
                span = [f"{first}..{last}"] if last - first > 1 else [texts[p] for p in range(first, last + 1)]
                words += [texts[first]] if first >= self.size else span
            texts.append(f"({' '.join(words)})")
        return texts[-1]


def _runs(parts: tuple[int, ...], size: int) -> list[tuple[int, int]]:
    """Children as runs (first, last): consecutive terms together, every node alone."""
    runs: list[tuple[int, int]] = []
    for p in parts:
        if runs and p < size and runs[-1][1] == p - 1:
            runs[-1] = (runs[-1][0], p)
        else:
            runs.append((p, p))
    return runs


# --- revealing ------------------------------------------------------------------------------------------------------


@quotes_call
def reveal_order(
    f: Callable[..., Any], n: int, fmt: FormatLike = "fp32", *, operands: int = 1, rows: bool = False
) -> SumTree:
    """The order in which ``f`` adds ``n`` terms of the format ``fmt``, as a :class:`SumTree`.

    ``f`` takes an array (n,) and returns their sum; with ``operands=2`` it takes two, and returns their dot product.
    The arrays are float16 for "fp16", float64 for "fp64", else float32 that holds values of the format; results may be
    numbers or tensors of any device. With ``rows=True`` f takes (R, n) and returns (R,), which is faster, and right
    where the order does not depend on R.

    The additions must round to nearest, or be fused sums that truncate their terms. n is limited by what the result's
    format can count: 2,048 for FP16. Raises LabError where the results are those of no tree: sums that lose nothing,
    because they are exact or their formats are narrow, that round up or down, that change their order, or that are no
    sums.

    >>> print(reveal_order(lambda x: (x[0] + x[1]) + (x[2] + x[3]), 4))
    ((0 1) (2 3))
    """
    n = integer("n", n, 1, MOST)
    if not callable(f):
        raise LabError(f"f={f!r} is not callable; it must take an array of n terms and return their sum.")
    form = get(fmt)
    factors = _factors(form, integer("operands", operands, 1, 2))
    return revealed(f, n, factors, DTYPES.get(form.name, np.float32), bool(rows))


def revealed(
    f: Callable[..., Any], n: int, factors: Factors, dtype: Any, rows: bool = True, single: bool = False,
    near: bool = False, among: Iterable[SumTree] = (),
) -> SumTree:  # fmt: skip
    """The order, from masks whose M and 1 are products of these factors; a 1 may be negative.

    ``single``: a mask for each 1, which is lost where it does not come out as it is. That takes n times as many, and
    shows the order whatever additions round to. ``near``: whether several ones together may come so near to M that they
    are not lost; then some are tried alone. ``among``: where fused sums lose no term, trees that it may be.
    """
    probes = _Probes(f, n, factors, dtype, rows)
    if not single:
        probes.count_ones()
        tree = _build(n, probes.lost)
        probes.confirm(tree)
        if near:
            probes.confirm_singly(tree)
        return tree
    probes.count_ones(np.eye(n, dtype=bool))
    try:
        return _build(n, probes.lost_singly)
    except LabError:
        pairs = _spread(n)
        lost = probes.lost_singly(pairs)
        matching = {tree for tree in among if np.array_equal(tree.beside[tuple(pairs.T)], lost)}
        if len(matching) != 1:
            raise
        return matching.pop()


def masks(n: int, pairs: Array, fmt: FormatLike, operands: int = 1) -> list[Array]:
    """Masked ones: for every pair (i, j), a row with M at i, -M at j and 1 elsewhere.

    ``pairs``: integers (R, 2). Gives one or two arrays (R, n), whose products are the masked ones. A sum of such a row
    is n - size times what a 1 stands for (:func:`one_of`), with size as in :attr:`SumTree.sizes`.
    """
    return _masks(n, pairs, _factors(get(fmt), operands), DTYPES.get(get(fmt).name, np.float32))


def _masks(n: int, pairs: Array, factors: Factors, dtype: Any) -> list[Array]:
    arrays = []
    for number, (big, unit) in enumerate(factors):
        x = np.full((len(pairs), n), unit)
        np.put_along_axis(x, pairs[:, :1], big, 1)
        np.put_along_axis(x, pairs[:, 1:], big if number else -big, 1)
        arrays.append(x.astype(dtype))
    return arrays


def one_of(fmt: FormatLike, operands: int = 1) -> float:
    """The number that a 1 of the masks stands for: a power of two."""
    return float(np.prod([unit for _, unit in _factors(get(fmt), operands)]))


def _factors(form: Format, operands: int) -> list[tuple[float, float]]:
    """M and 1 as products of ``operands`` numbers each: every factor takes what its format can of what is left."""
    if not form.signed:
        raise LabError(f"{form.name} has no negative numbers, which the masks need.")
    wide = form.emax >= 127
    high, low = WIDE if wide else NARROW
    pairs = []
    for _ in range(operands):
        big, unit = min(high, form.emax), 0 if wide else max(low, form.emin - form.fraction_bits)
        pairs.append((2.0**big, 2.0**unit))
        high, low = high - big, low - unit
    return pairs


@dataclass(frozen=True)
class _Probes:
    """A black box, and what its masks are made of."""

    f: Callable[..., Any]
    n: int
    factors: Factors
    dtype: Any
    rows: bool

    @property
    def one(self) -> float:
        """What a 1 of the masks stands for."""
        return float(np.prod([unit for _, unit in self.factors]))

    def lost(self, pairs: Array) -> Array:
        """How many terms are lost with M at the first and -M at the second of each pair."""
        step = max(1, ROWS // self.n)
        parts = [pairs[k : k + step] for k in range(0, len(pairs), step)]
        ones = np.concatenate([self._call(_masks(self.n, part, self.factors, self.dtype)) for part in parts])
        wrong = np.flatnonzero(~((ones >= 0) & (ones <= self.n - 2) & (ones == np.round(ones))))
        if wrong.size:
            plus, minus = pairs[wrong[0]].tolist()
            raise LabError(
                f"with M at {plus}, -M at {minus} and {self.n - 2} ones, f gives {ones[wrong[0]]:.9g} ones; a sum "
                f"gives a whole number from 0 to {self.n - 2}. Its additions must round to nearest or truncate "
                f"all terms."
            )
        return self.n - ones.astype(np.int64)

    def lost_singly(self, pairs: Array) -> Array:
        """The same, counted by one mask for each of the other terms."""
        counts = []
        for part in np.array_split(pairs, -(-len(pairs) * self.n * self.n // ROWS)):
            arrays = [np.repeat(x, self.n, axis=0) for x in _masks(self.n, part, self.factors, self.dtype)]
            kept = np.tile(np.eye(self.n, dtype=bool), (len(part), 1))
            np.put_along_axis(kept, np.repeat(part, self.n, axis=0), True, 1)
            ones = self._call([np.where(kept, x, x.dtype.type(0)) for x in arrays]).reshape(-1, self.n)
            counts.append((ones != 1).sum(axis=1))  # at M and -M themselves 0 comes out
        return np.concatenate(counts)

    def count_ones(self, kept: Array | None = None) -> None:
        """Without masks, the result must be n ones; or, of each row of ``kept``, those that are."""
        kept = np.ones((1, self.n), bool) if kept is None else kept
        sums = self._call([np.where(kept, self.dtype(unit), self.dtype(0)) for _, unit in self.factors])
        for at in np.flatnonzero(sums != kept.sum(axis=1))[:1]:
            raise LabError(
                f"f gives {sums[at]:.9g} for a sum of {kept[at].sum()} ones (each {self.one:.3g}): it is no sum of "
                f"them, or the format of its result cannot count so far."
            )

    def confirm(self, tree: SumTree) -> None:
        """Measure n pairs more, signs exchanged: they must meet where the tree says."""
        if self.n < 2:
            return
        pairs = _spread(self.n)
        second, first = pairs.T
        again, sizes = self.lost(pairs), tree.sizes[first, second]
        for at in np.flatnonzero(again != sizes)[:1].tolist():
            raise LabError(
                f"terms {first[at]} and {second[at]} met in a part of {sizes[at]} terms, and the second time in one of "
                f"{again[at]}: f does not add in one order."
            )

    def confirm_singly(self, tree: SumTree) -> None:
        """Measure them and neighbours with some ones, each alone: what the tree says is lost must be, and no other."""
        n, steps = self.n, (-2, 2, -8, 8, self.n // 3, self.n // 2)
        pairs = np.concatenate([_spread(n), np.stack([np.arange(n), (np.arange(n) + 1) % n], axis=1)])
        i, j = np.repeat(pairs, len(steps), axis=0).T
        third = (i + np.tile(steps, len(pairs))) % n
        kept = np.zeros((len(i), n), bool)
        for at in (i, j, third):
            kept[np.arange(len(i)), at] = True
        masks = _masks(n, np.stack([i, j], axis=1), self.factors, self.dtype)
        lost = self._call([np.where(kept, x, x.dtype.type(0)) for x in masks]) != 1
        if ((lost != (tree.sizes[i, third] <= tree.sizes[i, j])) & (third != i) & (third != j)).any():
            raise LabError("ones are lost together with others that are not lost alone.")

    def _call(self, arrays: list[Array]) -> Array:
        """The results of ``f`` for rows of masked ones, in ones: (R,) float64."""
        if self.rows:
            return self._number(self.f(*arrays), (len(arrays[0]),))
        return np.array([self._number(self.f(*(x[k].copy() for x in arrays)), ()) for k in range(len(arrays[0]))])

    def _number(self, result: Any, shape: tuple[int, ...]) -> Array:
        """What ``f`` returned as float64 of a shape, in ones."""
        if result is None:
            raise LabError("f returned None; it must return a number.")
        if hasattr(result, "detach"):  # a torch tensor
            result = result.detach().double().cpu()
        try:
            array = np.asarray(result).astype(np.float64)
        except (TypeError, ValueError):
            raise LabError(f"f returned a {type(result).__name__}; it must return a number.") from None
        if array.shape != shape:
            wanted = f"shape {shape}, one sum a row" if shape else "one number"
            raise LabError(f"f returned shape {array.shape}; it must return {wanted}.")
        return array / self.one


def _spread(n: int) -> Array:
    """Pairs of terms (n, 2), near and far."""
    first = np.arange(n)
    return np.stack([(first + 1 + first * first % (n - 1)) % n, first], axis=1)


# --- from sizes to a tree -------------------------------------------------------------------------------------------


def _build(n: int, sizes: Sizes) -> SumTree:
    """The tree of n terms, from ``sizes(pairs)``, the sizes of the smallest parts with both terms of each pair.

    For one term of a group, the sizes are those of the nodes on its path upwards, and the others that share a size hang
    from one node, in one part or several. A group whose root has only its own terms is a part of its own; else its root
    is the node that it hangs from, which is how a node gets more than two children.
    """
    leaf_parent = [-1] * n
    parent, count = [-1], [n]  # by node, the root first; how many terms it has
    groups = [(np.arange(n), 0, True)]  # terms, the node that they hang from, and whether that is theirs alone
    while groups:  # those of one depth, with one question
        for group, above, _ in groups:
            leaf_parent[int(group[0])] = above  # right for a term alone
        groups = [group for group in groups if group[0].size > 1]
        pairs = [np.stack([np.full_like(group[1:], group[0]), group[1:]], axis=1) for group, _, _ in groups]
        met = sizes(np.concatenate(pairs)) if pairs else np.zeros(0, np.int64)
        deeper = []
        for group, above, alone in groups:
            i, others, own, met = int(group[0]), group[1:], met[: group.size - 1], met[group.size - 1 :]
            levels = np.unique(own).tolist()
            _check_levels(i, own, levels, group.size, count[above], alone)
            below = -1
            for level in levels:
                node = above
                if level != count[above]:
                    parent.append(above)
                    count.append(level)
                    node = len(parent) - 1
                if below < 0:
                    leaf_parent[i] = node
                else:
                    parent[below] = node
                deeper.append((others[own == level], node, False))
                below = node
        groups = deeper
    return _canonical(leaf_parent, parent)


def _check_levels(i: int, sizes: Array, levels: list[int], size: int, above: int, alone: bool) -> None:
    """Whether the sizes on the path of term i can be those of a tree; the group has ``size`` terms."""
    if size > 2 and levels == [2]:
        raise LabError(
            f"term {i} meets every other one without losing a third: f loses nothing, as exact sums do, and has no "
            f"tree to be seen."
        )
    inside = 1
    for level in levels:
        inside += int((sizes == level).sum())
        top = level == levels[-1]
        if inside != level and not (top and level == above and not alone):
            raise LabError(
                f"a part of the sum with term {i} has {inside} terms, and {level} are lost in it: f adds in no fixed "
                f"order, or not to nearest."
            )


def _canonical(leaf_parent: list[int], parent: list[int]) -> SumTree:
    """The tree of parents (-1 above the root), its nodes in post-order and children by their first terms."""
    n, total = len(leaf_parent), len(leaf_parent) + len(parent)
    if n == 1:
        return SumTree(1, ())
    up = [*(p + n for p in leaf_parent), *(p + n if p >= 0 else -1 for p in parent)]
    children: list[list[int]] = [[] for _ in range(total)]
    first = [*range(n), *([n] * len(parent))]
    for leaf in range(n):  # in ascending order, so that every node meets its first term first
        node = leaf
        while up[node] >= 0:
            children[up[node]].append(node)
            if first[up[node]] < n:
                break
            node = up[node]
            first[node] = leaf
    number = list(range(n)) + [0] * len(parent)
    nodes: list[tuple[int, ...]] = []
    stack = [(up.index(-1), False)]
    while stack:
        node, done = stack.pop()
        if done:
            number[node] = n + len(nodes)
            nodes.append(tuple(number[child] for child in children[node]))
        elif node >= n:
            stack += [(node, True), *((child, False) for child in reversed(children[node]))]
    return SumTree(n, tuple(nodes))
