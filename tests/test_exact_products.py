"""Exact sums of products on arrays against Fractions, and integers as limbs."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fplab import exact_products as whole

UNIT = Fraction(2) ** whole.UNIT
FP32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(FP32, FP32), min_size=3, max_size=9))
def test_sums_of_products_are_exact(pairs: list[tuple[float, float]]) -> None:
    a, b = (np.array([column], np.float32) for column in zip(*pairs, strict=True))
    sizes = np.array([1, len(pairs)])
    got = whole.products(a, b, sizes)
    assert got.shape == (1, 1, 2)
    for s, k in enumerate(sizes):
        assert got[0, 0, s] * UNIT == sum(Fraction(x) * Fraction(y) for x, y in pairs[:k])


def test_every_row_of_a_meets_every_row_of_b() -> None:
    a, b = np.array([[1.0, 2.0], [0.5, -3.0]]), np.array([[4.0, 8.0], [0.0, 1.0], [-1.0, 0.25]])
    got = whole.floats(whole.products(a, b, np.array([2]))[..., 0])
    assert np.array_equal(got, a @ b.T)


def test_digits_are_below_their_limit_and_add_up() -> None:
    x = np.array([[3.0e38, -1.0e-45, 0.0, -(2.0**-20) * (2 - 2.0**-23)]], np.float32)
    found, low = whole.digits(x)
    assert all((np.abs(d) < 1 << whole.DIGIT).all() for d in found)
    for k, value in enumerate(x[0].tolist()):
        total = sum(Fraction(int(d[0, k])) * Fraction(2) ** (whole.DIGIT * i + low) for i, d in enumerate(found))
        assert total == Fraction(value)


def test_long_sums_do_not_overflow() -> None:
    n = 1 << 16
    a = np.full((1, n), np.float32(2 - 2.0**-23))
    got = whole.products(a, a, np.array([n]))[0, 0, 0]
    assert got * UNIT == n * Fraction(2 - 2.0**-23) ** 2


@given(st.lists(st.integers(-(2**470), 2**470), min_size=1, max_size=8))
def test_limbs_keep_integers(numbers: list[int]) -> None:
    packed = whole.pack(np.array([*numbers, None], object)[:-1])
    assert packed.dtype == np.int64
    assert packed.shape == (len(numbers), whole.LIMBS)
    assert whole.unpack(packed).tolist() == numbers


@given(st.lists(FP32, min_size=1, max_size=5))
def test_values_become_integers_and_come_back(numbers: list[float]) -> None:
    got = whole.of_values(np.array(numbers, np.float32))
    assert [n * UNIT for n in got.tolist()] == [Fraction(v) for v in numbers]
    assert whole.floats(got).tolist() == [v + 0.0 for v in numbers]


def test_values_finer_than_the_unit_are_refused() -> None:
    with pytest.raises(AssertionError, match="finer"):
        whole.of_values(np.array([2.0**-321]))


def test_counts_of_powers_are_added_exactly() -> None:
    counts = np.zeros((2, 112), np.int64)
    counts[0, [0, 5, 60, 100]] = 3, -1, 1 << 19, 7
    got = whole.unpack(whole.of_counts(counts, -64))
    want = sum(c * Fraction(2) ** (i - 64) for i, c in enumerate(counts[0].tolist())) / UNIT
    assert got.tolist() == [want, 0]


def test_quotients_of_integers() -> None:
    top, bottom = (np.array([*v, None], object)[:-1] for v in ([1, 0, 5, 10**200], [3, 0, 0, 10**199]))
    assert whole.ratio(top, bottom).tolist() == [1 / 3, 0.0, np.inf, 10.0]
