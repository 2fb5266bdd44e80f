"""Summation trees: built, drawn, refused, and revealed from the lab's sums, numpy's, torch's and the Tensor Cores'."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fplab
from fplab import sums, tensorcore
from fplab.errors import LabError
from fplab.reveal import SumTree, masks, one_of, reveal_order, revealed
from fplab.tensorcore import ParametricUnit

BINARY = lambda parts: functools.reduce(lambda x, y: x + y, parts)  # noqa: E731


def sequential(n: int) -> Any:
    return functools.reduce(lambda tree, i: (tree, i), range(1, n), 0)


def pairwise(first: int, last: int) -> Any:
    """The left part is the largest power of two below the length."""
    n = last - first
    if n == 1:
        return first
    half = 1 << ((n - 1).bit_length() - 1)
    return pairwise(first, first + half), pairwise(first + half, last)


def blocked(n: int, block: int) -> Any:
    parts = []
    for start in range(0, n, block):
        terms = range(start, min(start + block, n))
        parts.append(functools.reduce(lambda tree, i: (tree, i), terms[1:], terms[0]))
    return functools.reduce(lambda tree, part: (tree, part), parts)


def numpy_tree(n: int) -> Any:
    """numpy's sum of fewer than 8 terms, and of at most 128: eight strides, their tree, and the rest one by one."""
    if n < 8:
        return sequential(n)
    whole = n - n % 8
    strides = [functools.reduce(lambda tree, i: (tree, i), range(k + 8, whole, 8), k) for k in range(8)]
    left, right = (((s[0], s[1]), (s[2], s[3])) for s in (strides[:4], strides[4:]))
    return functools.reduce(lambda tree, i: (tree, i), range(whole, n), (left, right))


def fused(k: int, length: int) -> Any:
    """A chain of blocks: the sum so far is a term of the next block."""
    tree: tuple[Any, ...] = tuple(range(min(length, k)))
    for start in range(length, k, length):
        tree = (tree, *range(start, min(start + length, k)))
    return tree


def random_tree(n: int, rng: np.random.Generator, widest: int = 2) -> Any:
    parts: list[Any] = rng.permutation(n).tolist()
    while len(parts) > 1:
        width = min(int(rng.integers(2, widest, endpoint=True)), len(parts))
        chosen = [parts.pop(int(rng.integers(len(parts)))) for _ in range(width)]
        parts.append(tuple(chosen))
    return parts[0]


def black_box(tree: SumTree, fused_keeps: int | None = None) -> Callable[[np.ndarray], float]:
    """The sum of a tree in float64; fused nodes truncate their terms to the largest one's grid."""

    def add(parts: list[float]) -> float:
        if len(parts) == 2 or fused_keeps is None:
            return BINARY(parts)
        grid = 2.0 ** (np.frexp(np.abs(parts).max())[1] - fused_keeps)
        return float(np.sum(np.trunc(np.array(parts) / grid)) * grid)

    return lambda x: tree.fold(x.tolist(), add)


# --- the tree itself -------------------------------------------------------------------------------------------------
def test_a_tree_is_the_same_however_it_is_written() -> None:
    tree = SumTree.of((((3, 1), 0), (2, 4)))
    assert tree == SumTree.of(((4, 2), (0, (1, 3))))
    assert tree != SumTree.of(((4, 3), (0, (1, 2))))
    assert tree.nodes == ((1, 3), (0, 5), (2, 4), (6, 7))
    assert tree.nested == ((0, (1, 3)), (2, 4))
    assert SumTree.of(tree.nested) == tree
    assert hash(SumTree.of(tree.nested)) == hash(tree)
    assert (tree.size, tree.depth, tree.widths, tree.heights) == (5, 3, {2: 4}, (0, 0, 0, 0, 0, 1, 2, 1, 3))


def test_one_term() -> None:
    tree = SumTree.of(0)
    assert (tree.size, tree.nodes, tree.depth, tree.widths, str(tree), tree.nested) == (1, (), 0, {}, "0", 0)
    assert tree.sizes.tolist() == [[1]]
    assert tree.fold([7.0], BINARY) == 7.0


@pytest.mark.parametrize("wrong", [(0, 2), (0, 0), (0, (1,)), (1, 2), (0, "1"), ((), 0), (0, 1.0)])
def test_nested_tuples_that_are_no_tree(wrong: Any) -> None:
    refuses(lambda: SumTree.of(wrong), r"term number|once each")


def test_text() -> None:
    assert str(SumTree.of(sequential(4))) == "(((0 1) 2) 3)"
    assert str(SumTree.of(((0, 1, 2, 3, 4), 5, 6))) == "((0..4) 5 6)"
    assert str(SumTree.of(((0, 2, 4), 1, 3, (5, 6), 7))) == "((0 2 4) 1 3 (5 6) 7)"


def test_sizes_and_back() -> None:
    rng = np.random.default_rng(1)
    assert SumTree.of(((0, 1), 2, 3)).sizes.tolist() == [[1, 2, 4, 4], [2, 1, 4, 4], [4, 4, 1, 4], [4, 4, 4, 1]]
    for n, widest in itertools.product((2, 3, 5, 17, 40), (2, 3, 9)):
        tree = SumTree.of(random_tree(n, rng, widest))
        assert SumTree.from_sizes(tree.sizes) == tree


def test_sizes_of_no_tree() -> None:
    for place, value in (((0, 1), 3), ((2, 3), 2), ((1, 0), 4)):
        sizes = SumTree.of(((0, 1), 2, 3)).sizes
        sizes[place] = value
        with pytest.raises(LabError):
            SumTree.from_sizes(sizes)


def test_fold_wants_a_term_for_every_leaf() -> None:
    refuses(lambda: SumTree.of(sequential(3)).fold([1.0, 2.0], BINARY), r"adds 3 terms, and 2 are given")


def test_long_chains_do_not_recurse() -> None:
    n = 3000
    tree = SumTree.of(sequential(n))
    assert tree.depth == n - 1
    assert reveal_order(lambda x: sums.sum(x, "fp32"), n, rows=True) == tree
    backwards = SumTree.of(functools.reduce(lambda t, i: (t, i), range(398, -1, -1), 399))
    assert reveal_order(lambda x: sums.sum(x[:, ::-1], "fp32"), 400, rows=True) == backwards
    assert str(tree).endswith("2997) 2998) 2999)")


# --- revealed --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["fp32", "fp16", "bf16", "e5m2"])
@pytest.mark.parametrize("n", [1, 2, 3, 13, 32])
def test_the_labs_own_sums(fmt: str, n: int) -> None:
    accumulate = "fp32" if fmt == "e5m2" else None  # E5M2 cannot count to 32
    for order, want in (
        ("sequential", sequential(n)), ("pairwise", pairwise(0, n)), ("blocked", blocked(n, 5)),
    ):  # fmt: skip
        found = reveal_order(lambda x, order=order: sums.sum(x, fmt, order, accumulate, block=5), n, fmt, rows=True)
        assert found == SumTree.of(want), order


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e3m2"])
def test_the_labs_dot_products_in_all_formats(fmt: str) -> None:
    for order, want in (("sequential", sequential(11)), ("pairwise", pairwise(0, 11))):
        found = reveal_order(
            lambda x, y, order=order: sums.dot(x, y, fmt, order=order, accumulate="bf16"),
            11,
            fmt,
            operands=2,
            rows=True,
        )
        assert found == SumTree.of(want)


def test_kahans_sum_loses_what_neumaiers_keeps() -> None:
    """A term as large as M carries Kahan's correction away, and his sum has the tree of a loop."""
    assert reveal_order(lambda x: sums.sum(x, "fp32", "kahan"), 11) == SumTree.of(sequential(11))
    refuses(lambda: reveal_order(lambda x: sums.sum(x, "fp32", "neumaier"), 11), "loses nothing")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "fp64"])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 23, 100, 128])
def test_numpy_sum_is_as_documented(dtype: str, n: int) -> None:
    assert reveal_order(np.sum, n, dtype) == SumTree.of(numpy_tree(n))


@pytest.mark.parametrize("n", [129, 300, 1000])
def test_numpy_sum_of_many_halves_them(n: int) -> None:
    """Beyond 128 terms: the first half, to a multiple of 8, plus the second. The tree gives the same bits."""
    half = n // 2 - (n // 2) % 8
    tree = reveal_order(np.sum, n)
    assert (tree.sizes[:half, half:] == n).all()
    x = np.random.default_rng(n).standard_normal((50, n), np.float32)
    assert [tree.fold(row, BINARY) for row in x] == [row.sum() for row in x]


@pytest.mark.parametrize("n", [3, 8, 40, 150])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_torch_sums_have_the_bits_of_their_trees(n: int, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tree = reveal_order(lambda x: torch.from_numpy(x).sum(), n, dtype)
    x = np.random.default_rng(n).standard_normal((50, n)).astype(np.float32 if dtype == "fp32" else np.float64)
    want = [torch.from_numpy(row).sum().item() for row in x]
    assert [float(tree.fold(row, BINARY)) for row in x] == want
    if n == 150:
        assert [float(row[0] + row[1:].sum()) for row in x] != want  # the trees matter on these rows


NARROW = ("e3m2", "e2m3", "e2m1")
FLOATING = [m for m in tensorcore.TABLE if m.scale is None and m.a == m.b and m.output != "int32"]


FLUSHES = [m for m in FLOATING if m.subnormals == "flushed" and m.a == "fp16"]


@pytest.mark.parametrize("model", FLUSHES, ids=lambda m: m.name)
def test_subnormal_ones_are_flushed(model: tensorcore.Model) -> None:
    """FP16's range needs subnormal ones, which CDNA2 takes for zeros: it is said, and no tree is made up."""
    with pytest.raises(LabError, match="f gives 0 for a sum of 96 ones"):
        reveal_order(lambda a, b: tensorcore.dot(a, b, gpu=model), 96, model.a, operands=2, rows=True)


SHOWN = [m for m in FLOATING if m.a not in NARROW and m not in FLUSHES]


@pytest.mark.parametrize("model", SHOWN, ids=lambda m: m.name)
def test_every_matrix_unit(model: tensorcore.Model) -> None:
    """FPRev's fused sums of 4+1, 8+1 and 16+1 terms, and all the others of the table."""
    k = 96
    found = reveal_order(lambda a, b: tensorcore.dot(a, b, gpu=model), k, model.a, operands=2, rows=True)
    if model.kind == "fma":
        assert found == SumTree.of(sequential(k))
    elif model.kind == "widened":
        parts: Any = []
        for start in range(0, k, 32):
            at = np.arange(start, start + 32)
            first, second = at[at % 4 < 2].tolist(), at[at % 4 >= 2].tolist()
            parts.append((tuple(first), *second))
        assert found == SumTree.of(functools.reduce(lambda t, p: (t, p), parts))
    elif model.kind == "pairwise":
        pairs: Any = [(i, i + 1) for i in range(0, k, 2)]
        parts = pairs if model.length == 2 else list(zip(pairs[::2], pairs[1::2], strict=True))
        assert found == SumTree.of(functools.reduce(lambda t, p: (t, p), parts))
    else:
        assert found == SumTree.of(fused(k, model.length))


@pytest.mark.parametrize("model", [m for m in FLOATING if m.a in NARROW], ids=lambda m: m.name)
def test_products_of_six_and_four_bits_lose_nothing(model: tensorcore.Model) -> None:
    """Their largest and smallest products are fewer than 25 bits apart: there is no order to see."""
    with pytest.raises(LabError, match="loses nothing"):
        reveal_order(lambda a, b: tensorcore.dot(a, b, gpu=model), 32, model.a, operands=2, rows=True)


@pytest.mark.parametrize(("gpu", "length"), [("V100", 4), ("A100", 8), ("H100", 16)])
def test_c_is_one_term_more_of_the_first_block(gpu: str, length: int) -> None:
    """A term of its own enters as c: nodes of 5, 9 and 17 all the way."""
    ones = np.ones(4 * length, np.float16)
    tree = reveal_order(lambda x: tensorcore.dot(x[1:], ones, x[0], gpu=gpu), 4 * length + 1, "fp16")
    assert tree.widths == {length + 1: 4}
    assert tree == SumTree.of(functools.reduce(
        lambda t, s: (t, *range(s, s + length)), range(1, 4 * length + 1, length), 0
    ))  # fmt: skip


def test_plans_of_long_products() -> None:
    """Split-K, several accumulators and promotion are trees of chains."""

    def box(**plan: Any) -> Any:
        chosen = tensorcore.Plan(**plan)
        return lambda a: tensorcore.matmul(a, np.ones((64, 1)), gpu="H100", plan=chosen)[:, 0]

    a, b, c, d = (tuple(range(s, s + 16)) for s in (0, 16, 32, 48))
    assert reveal_order(box(split_k=2), 64, "fp16", rows=True) == SumTree.of(((a, *b), (c, *d)))
    assert reveal_order(box(accumulators=2), 64, "fp16", rows=True) == SumTree.of(((a, *c), (b, *d)))
    assert reveal_order(box(promote=16), 64, "fp16", rows=True) == SumTree.of((((a, b), c), d))


@pytest.mark.parametrize("seed", range(8))
def test_random_trees_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n in (2, 3, 4, 9, 26):
        tree = SumTree.of(random_tree(n, rng))
        assert reveal_order(black_box(tree), n, "fp64") == tree
        wide = SumTree.of(random_tree(n, rng, 7))
        assert reveal_order(black_box(wide, 25), n, "fp64") == wide


# --- refused ---------------------------------------------------------------------------------------------------------
def test_masks_are_what_they_say() -> None:
    (x,) = masks(4, np.array([[0, 2], [3, 1]]), "bf16")
    assert x.tolist() == [[2.0**127, 1, -(2.0**127), 1], [1, -(2.0**127), 1, 2.0**127]]
    for fmt in ("fp16", "e5m2", "e4m3", "e2m3"):
        for operands in (1, 2):
            arrays = masks(3, np.array([[0, 2]]), fmt, operands)
            product = np.prod(np.array(arrays, np.float64), axis=0)[0]
            assert product[1] == one_of(fmt, operands)
            assert product[0] == -product[2] <= 2.0**15
            for a in arrays:
                assert np.array_equal(fplab.quantize(a.astype(np.float32), fmt), a)
    assert masks(2, np.array([[0, 1]]), "fp16")[0].dtype == np.float16
    assert one_of("fp16") == 2.0**-24


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda x: sums.sum(x, "fp32", "neumaier"), "loses nothing, as exact sums do"),
        (lambda x: sums.sum(x, "fp32", accumulate="exact"), "loses nothing"),
        (lambda x: sums.sum(x, "fp32", rounding="rtz"), "must round to nearest or truncate all terms"),
        (np.max, r"f gives 1 for a sum of 11 ones \(each 1\): it is no sum of them"),
        (lambda x: np.nan, "f gives nan for a sum of 11 ones"),
        (lambda x: x, r"f returned shape \(11,\); it must return one number"),
        (lambda x: None, "f returned None"),
        (lambda x: "eleven", "f returned a str; it must return a number"),
        (lambda x: x[np.argsort(-np.abs(x), kind="stable")].sum(), "loses nothing"),
        ("sum", "f='sum' is not callable"),
    ],
)
def test_what_is_no_sum_is_refused(f: Any, text: str) -> None:
    with pytest.raises(LabError, match=text) as caught:
        reveal_order(f, 11)
    assert str(caught.value).startswith("fplab.reveal_order(")


def test_an_order_that_changes_is_refused() -> None:
    calls = itertools.count()

    def restless(x: np.ndarray) -> np.floating[Any]:
        return x.sum() if next(calls) < 40 else np.add.accumulate(x)[-1]

    refuses(lambda: reveal_order(restless, 24), r"no fixed order|does not add in one order")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"n": 0}, "n=0 is not possible; allowed: 1 to 65536"),
        ({"n": -3}, "n=-3 is not possible"),
        ({"n": 2.5}, "n=2.5 is not an integer"),
        ({"n": 3, "fmt": "fp33"}, "unknown format 'fp33'.*Did you mean 'fp32'"),
        ({"n": 3, "fmt": "e8m0"}, "e8m0 has no negative numbers"),
        ({"n": 3, "operands": 3}, "operands=3 is not possible; allowed: 1 to 2"),
        ({"n": 3, "rows": True}, r"f returned shape \(\); it must return shape \(1,\), one sum a row"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    refuses(lambda: reveal_order(np.sum, **arguments), text)


def test_a_result_that_cannot_count_so_far() -> None:
    with pytest.raises(LabError, match=r"f gives 256 for a sum of 300 ones .* cannot count so far"):
        reveal_order(lambda x: sums.sum(x, "bf16"), 300, "bf16")


def test_it_is_reached_by_three_names() -> None:
    assert fplab.reveal_order is sums.reveal_order is reveal_order


# --- drawn -----------------------------------------------------------------------------------------------------------
def test_drawings(tmp_path: Path) -> None:
    from fplab.draw.style import new_figure, save, themed
    from fplab.draw.tree import sum_tree

    tree = SumTree.of(fused(24, 8))
    with themed("dark"):
        figure = new_figure(6, 3)
        ax = figure.add_subplot()
        sum_tree(ax, tree, labels=12)
        words = [text.get_text() for text in ax.texts]
        assert words == ["8", "9", "9", *(str(i) for i in range(0, 24, 2))]
        stems = ax.collections[0].get_segments()
        assert len(stems) == 24 + 2  # one from each term and from each node below the root
        save(figure, tmp_path / "tree.svg", "dark")
        sum_tree(figure.add_subplot(), SumTree.of(0))
        refuses(lambda: sum_tree(ax, SumTree.of(tuple(range(513)))), r"513 terms; at most 512")


def test_no_two_lines_cross() -> None:
    from fplab.draw.tree import _in_order

    rng = np.random.default_rng(3)
    for _ in range(20):
        tree = SumTree.of(random_tree(12, rng, 4))
        place = np.argsort(_in_order(tree))
        for parts in tree._leaves_of_children():
            ends = sorted((place[p].min(), place[p].max()) for p in parts)
            assert all(left[1] < right[0] for left, right in itertools.pairwise(ends))


def test_fused_sums_that_lose_no_term_are_found_among_trees() -> None:
    """Beside M and -M in one exact sum a 1 is not lost, so that no tree has these sizes as they are."""

    def sums(x: np.ndarray) -> np.ndarray:
        total = np.zeros(len(x), np.float32)
        for at in range(0, 12, 4):
            total = (total + x[:, at : at + 4].astype(np.float64).sum(axis=1)).astype(np.float32)
        return total

    want = SumTree.of((((0, 1, 2, 3), 4, 5, 6, 7), 8, 9, 10, 11))
    others = [SumTree.of(((0, 1, 2, 3), ((4, 5, 6, 7), (8, 9, 10, 11)))), SumTree.of(tuple(range(12)))]
    assert revealed(sums, 12, [(2.0**30, 1.0)], np.float32, single=True, among=[*others, want]) == want
    for among in ([], others):
        with pytest.raises(LabError, match="adds in no fixed order"):
            revealed(sums, 12, [(2.0**30, 1.0)], np.float32, single=True, among=among)


def test_ones_that_are_lost_alone_and_not_together() -> None:
    """16 of them reach the grid to which a unit cuts beside M: counted together they show another tree."""
    unit = ParametricUnit("e4m3", "e4m3", "fp32", 8, c="none", alignment_bits=30)
    factors = [(256.0, 2.0**-9)] * 2
    assert revealed(unit.dot, 24, factors, np.float32) != unit.tree(24)
    with pytest.raises(LabError, match="ones are lost together with others that are not lost alone"):
        revealed(unit.dot, 24, factors, np.float32, near=True)
    assert revealed(unit.dot, 24, factors, np.float32, single=True) == unit.tree(24)
