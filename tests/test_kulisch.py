"""The exact accumulator against the Fraction oracle, exact integers and math.fsum."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fplab import exact, floats, sums
from fplab.formats import TABLE, Format, Overflow, Rounding, get, overflow
from fplab.kernels import kulisch
from fplab.kernels.rounding import element_word
from fplab.plans import layout, options

NARROW = [f for f in TABLE if f.bits <= 32]
EDGE = Format("edge", 11, 20)  # 32 bits and float64's exponents: the widest accumulator there is
MODES = list(Rounding)
SEED = np.uint64(3)


def _kernel(x: np.ndarray, y: np.ndarray, src: Format, dst: Format, opt: object) -> tuple[list[int], list[int]]:
    out, flags = np.empty(len(x), np.uint64), np.empty(len(x), np.uint8)
    x, y = np.asarray(x, np.uint32), np.asarray(y, np.uint32)
    kulisch.dot_rows(x, y, out, flags, layout(src), layout(dst), opt, SEED, 0, len(x))
    return out.tolist(), (flags & 31).tolist()


def _oracle(
    x: np.ndarray, y: np.ndarray, src: Format, dst: Format, mode: Rounding, policy: Overflow | None, flush: bool
) -> tuple[list[int], list[int]]:
    results = []
    for i in range(len(x)):
        a, b = ([exact.decode(int(c), src) for c in row[i]] for row in (x, y))
        if flush:
            a, b = [exact.flush(v, src) for v in a], [exact.flush(v, src) for v in b]
        value, raised = exact.dot(a, b, mode)
        word = int(element_word(i, SEED))
        code, more = exact.round_to(value, dst, mode, policy, ftz=flush, nan="zero", word=word)
        results.append((code, raised | more))
    codes, flags = zip(*results, strict=True)
    return list(codes), list(flags)


def _codes(fmt: Format, n: int, k: int, seed: int) -> np.ndarray:
    """Codes by regime, a row each: any; one neighbourhood; subnormal and zero; the largest and the specials."""
    rng = np.random.default_rng(seed)
    sign = rng.integers(0, 2, (n, k)) * fmt.sign_mask
    top = (1 << fmt.bits) - 1 - fmt.sign_mask
    window = min(6 << fmt.fraction_bits, fmt.max_code)
    near = rng.integers(0, fmt.max_code - window + 1, (n, 1)) + rng.integers(0, window + 1, (n, k))
    low = rng.integers(0, 4, (n, k))
    high = rng.integers(max(fmt.max_code - 2, 0), min(fmt.max_code + 2, top) + 1, (n, k))
    few = rng.integers(0, top + 1, (n, k))
    return np.choose(np.arange(n)[:, None] % 4, [few, near, low, high]) | sign


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize("fmt", [*NARROW, EDGE], ids=str)
def test_dots_in_every_format_and_rounding(fmt: Format, mode: Rounding) -> None:
    for k in (0, 1, 2, 5):
        x, y = _codes(fmt, 16, k, 1), _codes(fmt, 16, k, 2)
        if k == 5:  # exact cancellation, and all of it but one bit
            x[4:8, 2:4], y[4:8, 2:4] = x[4:8, :2], y[4:8, :2] ^ fmt.sign_mask
            y[4:6, 4] = 1
        opt = options(fmt, mode, None, nan="zero")
        assert _kernel(x, y, fmt, fmt, opt) == _oracle(x, y, fmt, fmt, mode, None, False)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("dst", ["fp64", "fp32", "bf16", "e4m3", "e2m1", "e8m0"])
@pytest.mark.parametrize("src", ["fp32", "fp16", "e5m2"])
def test_delivery_in_another_format_and_policy(src: str, dst: str, flush: bool) -> None:
    source, target = get(src), get(dst)
    x, y = _codes(source, 24, 4, 3), _codes(source, 24, 4, 4)
    for policy in Overflow:
        if (policy is Overflow.INF and not target.has_infinity) or (policy is Overflow.NAN and not target.has_nan):
            continue
        for mode in (Rounding.RNE, Rounding.RTP, Rounding.ODD):
            opt = options(target, mode, policy, not flush, nan="zero")
            want = _oracle(x, y, source, target, mode, overflow(policy, target), flush)
            assert _kernel(x, y, source, target, opt) == want


fp32_code = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 1 << 31, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000]))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(fp32_code, fp32_code), max_size=8), st.sampled_from(MODES), st.booleans())
def test_fp32_dots_by_hypothesis(pairs: list[tuple[int, int]], mode: Rounding, cancel: bool) -> None:
    if cancel:
        pairs = pairs + [(a, b ^ (1 << 31)) for a, b in pairs[1:]]
    table = np.array(pairs, np.uint64).reshape(-1, 2).T[:, None, :]
    fmt = get("fp32")
    assert _kernel(*table, fmt, fmt, options(fmt, mode)) == _oracle(*table, fmt, fmt, mode, None, False)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_format_by_hypothesis(data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from([*NARROW, EDGE]))
    mode = data.draw(st.sampled_from(MODES))
    code = st.integers(0, (1 << fmt.bits) - 1)
    x = np.array([data.draw(st.lists(code, min_size=3, max_size=3)) for _ in range(4)])
    y = np.array([data.draw(st.lists(code, min_size=3, max_size=3)) for _ in range(4)])
    opt = options(fmt, mode, nan="zero")
    assert _kernel(x, y, fmt, fmt, opt) == _oracle(x, y, fmt, fmt, mode, None, False)


def test_a_million_terms_of_every_magnitude() -> None:
    """The exact integer sum of 10**6 products over the whole range of FP32, rounded by Fraction."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 0x7F800000, (2, 10**6), dtype=np.uint32)
    codes |= rng.integers(0, 2, codes.shape, dtype=np.uint32) << np.uint32(31)
    x, y = codes.view(np.float32).astype(np.float64)
    mx, ex = np.frexp(x)
    my, ey = np.frexp(y)
    product = (mx * 2**24).astype(np.int64) * (my * 2**24).astype(np.int64)
    total = 0
    exponents = ex + ey + 600
    for e in np.unique(exponents):  # each exponent's products are added as integers of at most 69 bits
        part = product[exponents == e]
        total += ((int((part >> 24).sum()) << 24) + int((part & 0xFFFFFF).sum())) << int(e)
    want, _ = exact.round_to(exact.of(Fraction(total, 2**648)), "fp32")
    assert int(floats.encode(sums.dot(x, y, "fp32", accumulate="exact"), "fp32")) == want


def test_sums_are_fsum() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((20, 50_000)) * 2.0 ** rng.integers(-100, 100, (20, 50_000))).astype(np.float32)
    got = sums.sum(x, "fp32", accumulate="exact", store="fp64")
    assert got.tolist() == [math.fsum(row.tolist()) for row in x]


def test_order_and_carries_do_not_matter() -> None:
    """Rows that carry through many digits and back, forwards, backwards and shuffled."""
    largest, least = float(np.finfo(np.float32).max), 2.0**-149
    row = np.array([largest] * 300 + [least] * 300 + [-largest] * 300 + [-least] * 299)
    rng = np.random.default_rng(2)
    rows = np.stack([row, row[::-1], *(rng.permutation(row) for _ in range(8))])
    ones = np.ones_like(rows)
    assert sums.sum(rows, "fp32", accumulate="exact").tolist() == [least] * 10
    assert sums.dot(rows, -ones, "fp32", accumulate="exact").tolist() == [-least] * 10
    assert sums.dot(rows, rows, "fp32", accumulate="exact", overflow="saturate").tolist() == [largest] * 10
    tiny = np.full((1, 4), least)
    assert sums.dot(tiny, tiny, "fp32", accumulate="exact", store="fp64").tolist() == [2.0**-296]


def test_carries_of_full_limbs_move_on_and_change_nothing() -> None:
    """Limbs as 2**29 terms can leave them, of either sign."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        limbs = rng.integers(-(2**61), 2**61, 12)
        limbs[-1] = rng.integers(-5, 5)
        before = sum(int(limb) << 32 * i for i, limb in enumerate(limbs))
        kulisch._propagate(limbs)
        assert sum(int(limb) << 32 * i for i, limb in enumerate(limbs)) == before
        assert all(0 <= digit < 2**32 for digit in limbs[:-1].tolist())


@pytest.mark.parametrize("scale", range(0, 64, 3))
def test_the_last_bit_counts_wherever_it_lies(scale: int) -> None:
    """A midpoint and one bit more or less, at every distance and every place in a digit."""
    one = math.ldexp(1.0, scale - 32)
    distance = np.arange(25, 100)
    hair = np.ldexp(one, -distance)
    for sign in (1.0, -1.0):
        for midpoint, below, above in (
            (1 + 2.0**-24, 1.0, 1 + 2.0**-23),
            (1 + 3 * 2.0**-24, 1 + 2.0**-23, 1 + 2.0**-22),
        ):
            terms = np.stack([np.full(75, one), np.full(75, one * (midpoint - 1)), hair], axis=1) * sign
            assert (sums.sum(terms, "fp32", accumulate="exact") == sign * one * above).all()
            terms[:, 2] *= -1
            assert (sums.sum(terms, "fp32", accumulate="exact") == sign * one * below).all()


def test_zero_signs() -> None:
    """-0 only if every product is -0; an exact cancellation is +0, or -0 when rounding toward -infinity."""

    def sign(x: list[float], rounding: str = "rne") -> bool:
        total = sums.sum(x, "fp16", accumulate="exact", rounding=rounding)
        assert total == 0
        return bool(np.signbit(total))

    assert [sign(x) for x in ([-0.0, -0.0], [-0.0, 0.0], [1.0, -1.0], [])] == [True, False, False, False]
    assert [sign(x, "rtn") for x in ([1.0, -1.0], [-0.0, 0.0], [0.0, 0.0], [])] == [True, True, False, False]


def test_flags_of_specials() -> None:
    inf, nan = math.inf, math.nan

    def flags(x: list[float], y: list[float]) -> tuple[str, int]:
        value, raised = sums.dot(x, y, "fp16", accumulate="exact", flags=True)
        return str(value), int(raised)

    assert flags([inf, 0.0], [0.0, 1.0]) == ("nan", 16)
    assert flags([inf, inf], [1.0, -1.0]) == ("nan", 16)
    assert flags([inf, nan], [1.0, 1.0]) == ("nan", 0)
    assert flags([inf, -3.0], [1.0, 9.0]) == ("inf", 0)
    assert flags([65504.0], [2.0]) == ("inf", 5)
    assert flags([2.0**-24], [0.5]) == ("0.0", 3)
    assert flags([2.0**-24, 2.0**-24], [0.5, 0.5]) == (str(np.float64(2.0**-24)), 0)
