"""Products of codes: against Python integers, torch._int_mm, the Tensor Core model; methods against Fractions."""

from fractions import Fraction

import numpy as np
import pytest
import refusals
import torch
from refusals import refuses

import fplab
from fplab import integers
from fplab.exact import nearest
from fplab.hardware.cases import philox_bits
from fplab.integers import METHODS, Method, grids, oracle
from fplab.integers.products import INT32_MAX
from fplab.nn.int8_layers import int_mm

INT8 = grids.get("int8")


def codes(key: int, *shape: int) -> np.ndarray:
    return philox_bits(key, *shape, dtype=np.uint8).view(np.int8)


def activations(key: int, rows: int, k: int, outliers: int) -> np.ndarray:
    """Roughly normal FP32 values, the first ``outliers`` columns 16 times as large."""
    raw = philox_bits(key, rows, k, 8, dtype=np.uint8).astype(np.float32)
    x = (raw.sum(axis=2) - 1020) / np.float32(209)
    x[:, :outliers] *= 16
    return x


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 7), (17, 64, 8), (20, 2000, 9), (2, 0, 3)])
def test_int_matmul_three_ways(m: int, k: int, n: int) -> None:
    a, b = codes(1, m, k), codes(2, k, n)
    found = integers.int_matmul(a, b)
    assert found.dtype == np.int32
    assert found.tolist() == (oracle.int_matmul(a.tolist(), b.tolist()) if k else [[0] * n] * m)
    if k:
        assert np.array_equal(found, int_mm(torch.from_numpy(a), torch.from_numpy(b)).numpy())
        assert np.array_equal(found, fplab.tensorcore.matmul(a, b, inputs="int8"))


def test_the_largest_product_that_fits_is_exact() -> None:
    """K = 131,071 times (-128)^2 is 2^31 - 2^14; 133,152 times 127^2 is the most of the symmetric grid."""
    for value, k in ((-128, 131071), (127, INT32_MAX // 127**2)):
        a = np.full((1, k), value, np.int8)
        assert integers.int_matmul(a, a.T).item() == k * value * value


def test_one_more_is_refused_where_torch_wraps() -> None:
    a = np.full((1, 131072), -128, np.int8)
    want = r"K=131072 products of magnitudes up to 128 and 128 can reach 2147483648, and INT32 ends at 2147483647; "
    refuses(lambda: integers.int_matmul(a, a.T), want + "split the product into parts of K <= 131071")
    assert int_mm(torch.from_numpy(a), torch.from_numpy(a.T)).item() == -(2**31)
    assert fplab.tensorcore.matmul(a, a.T, inputs="int8").item() == -(2**31)


def test_the_refusal_depends_on_the_magnitudes_there_are() -> None:
    a = np.ones((1, 200000), np.int8)
    assert integers.int_matmul(a, a.T).item() == 200000


def by_definition(x: np.ndarray, w: np.ndarray, method: Method, threshold: float, rows: str) -> list[list[Fraction]]:
    """The product of one method, an element at a time."""
    t, k, n = (*x.shape, w.shape[1])
    apart = [method.decompose and any(abs(float(v)) >= threshold for v in x[:, i]) for i in range(k)]
    kept = [i for i in range(k) if not apart[i]]

    def scheme(values: list[float]) -> tuple[Fraction, int]:
        if method.zero_point:
            return oracle.affine(min(values), max(values), INT8)
        return oracle.symmetric(max(map(abs, values)), INT8), 0

    everything = x[:, kept].ravel().tolist()
    sx = [scheme(x[i, kept].tolist() if method.inputs == "row" else everything) if kept else None for i in range(t)]
    sw = [scheme(w[:, j].tolist() if method.weights == "column" else w.ravel().tolist()) for j in range(n)]
    result = []
    for i in range(t):
        result.append([])
        for j in range(n):
            scale_w, zero_w = sw[j]
            total = Fraction(0)
            if kept:
                scale_x, zero_x = sx[i]
                terms = [
                    (oracle.quantize(float(x[i, h]), float(scale_x), zero_x, INT8) - zero_x)
                    * (oracle.quantize(float(w[h, j]), float(scale_w), zero_w, INT8) - zero_w)
                    for h in kept
                ]
                total = oracle.scaled(sum(terms), float(scale_x), float(scale_w))
            if any(apart):
                taken = [float(w[h, j]) for h in range(k) if apart[h]]
                if rows == "int8":
                    taken = [float(oracle.dequantize(oracle.quantize(v, float(scale_w), zero_w, INT8), float(scale_w),
                                                     zero_w)) for v in taken]  # fmt: skip
                half = oracle.in_half([float(x[i, h]) for h in range(k) if apart[h]], taken)
                total = nearest(total + half)
            result[-1].append(total)
    return result


@pytest.mark.parametrize("rows", ["fp16", "int8"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_is_its_definition(method: Method, rows: str) -> None:
    for outliers, threshold in ((0, 6.0), (2, 6.0), (2, 0.0), (2, np.inf)):
        x, w = activations(5, 4, 9, outliers), activations(6, 9, 5, 0) * np.float32(0.05)
        x[1, 8] = 6  # the threshold itself is an outlier
        found = integers.matmul(x, w, method, threshold, rows)
        assert found.dtype == np.float32
        want = by_definition(x, w, method, threshold, rows)
        assert [[Fraction(float(v)) for v in row] for row in found] == want


def test_the_papers_methods_are_all_there() -> None:
    assert len({m.name for m in METHODS}) == len(METHODS) == 8
    assert sum(m.decompose for m in METHODS) == 3


def test_empty_products_are_zeros() -> None:
    assert integers.matmul(np.zeros((2, 0)), np.zeros((0, 3))).tolist() == [[0.0] * 3] * 2


test_refusals = refusals.matching(
    (lambda: integers.matmul(np.zeros((2, 3)), np.zeros((2, 3))), r"x has shape \(2, 3\) and w \(2, 3\)"),
    (lambda: integers.matmul([[1.0]], [[1.0]], "vector"), r"unknown method 'vector'\..*Did you mean 'vectorwise'"),
    (lambda: integers.matmul([[1.0]], [[1.0]], threshold=-1), "threshold=-1 is not possible"),
    (lambda: integers.matmul([[1.0]], [[1.0]], outlier_weights="fp32"), "unknown outlier_weights 'fp32'"),
    (lambda: integers.matmul([[1e6]], [[1.0]]), "an outlier of x is 1000000.0, beyond FP16's 65504"),
    (lambda: integers.matmul([[np.nan]], [[1.0]]), "x: element 0 is nan"),
    (lambda: integers.int_matmul([[1.0]], [[1]]), "a has dtype float64"),
    (lambda: integers.int_matmul([[1]], [[1], [2]]), r"they must be \(M, K\) and \(K, N\)"),
    (lambda: integers.matmul(np.ones((1, 40000)), np.ones((40000, 1)), "zeropoint"),
     "K=40000 products of magnitudes up to 254 and 254"),
)  # fmt: skip
