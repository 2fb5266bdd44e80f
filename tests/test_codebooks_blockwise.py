"""Block-wise quantisation: every rule against its definition in fractions, on thresholds, ties and odd blocks."""

from fractions import Fraction

import numpy as np
import pytest
import refusals

from fplab import codebooks, num_threads, set_num_threads
from fplab.codebooks import Codebook, oracle, rules
from fplab.codebooks.thresholds import keys, ladder, ordered, padded, plan, thresholds, value_of
from fplab.errors import LabError
from fplab.kernels.codebooks import QUANTIZE, QUANTIZE_STOCHASTIC

f32 = np.float32
BOOKS = (
    codebooks.dynamic(), codebooks.dynamic(signed=False), codebooks.dynamic(bits=2), codebooks.dynamic(bits=5),
    codebooks.linear(), codebooks.linear(signed=False), codebooks.nf4(), codebooks.dynamic_tree(),
    codebooks.quantile(np.random.default_rng(3).standard_t(2, 20_000)),
    Codebook("no zero", [-1, -1 / 3, 1 / 3, 1]), Codebook("no one", [-0.9, 0, 0.1, 0.2]),
    Codebook("crowded", [0, 0.5, 0.50001, 0.50002, 0.50003, 1]), Codebook("tiny", [-1, -1e-44, 0, 1e-45, 1]),
)  # fmt: skip


def around(book: Codebook, rule: rules.Rule) -> np.ndarray:
    """Elements at, just below and just above every threshold, value and midpoint, the ends, and both zeros."""
    middles = (book.values[:-1] + book.values[1:]) / f32(2)
    places = np.concatenate([thresholds(book, rule), book.values, middles, f32([0, -0.0, 1, 1e-45, -1e-45, 1e-30])])
    order = ordered(np.clip(places, -1, 1).astype(f32))
    near = value_of(np.unique(np.concatenate([order - 1, order, order + 1])))
    near = near[np.abs(near) <= 1]
    return near if book.signed else np.abs(near)


@pytest.mark.parametrize("rule", rules.RULES.values(), ids=lambda r: r.name)
@pytest.mark.parametrize("book", BOOKS, ids=lambda b: b.name)
def test_every_threshold_is_where_the_definition_changes(book: Codebook, rule: rules.Rule) -> None:
    x = np.append(around(book, rule), f32(1))  # a maximum of 1: elements are their own scaled values
    q = codebooks.quantize_blockwise(x, book, None, rule)
    want, scales = oracle.quantize(x, book, x.size, rule)
    np.testing.assert_array_equal(q.codes, want)
    np.testing.assert_array_equal(q.absmax, scales)
    np.testing.assert_array_equal(
        codebooks.dequantize_blockwise(q).view(np.uint32), oracle.dequantize(want, scales, book, x.size).view(np.uint32)
    )


@pytest.mark.parametrize("rule", rules.RULES.values(), ids=lambda r: r.name)
@pytest.mark.parametrize("book", BOOKS[:5], ids=lambda b: b.name)
@pytest.mark.parametrize("block", [1, 7, 64, 200, None])
def test_scaled_blocks_of_any_size(book: Codebook, rule: rules.Rule, block: int | None) -> None:
    """Partial last blocks, blocks of zeros, subnormal and huge maxima."""
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(200) * 10.0 ** rng.integers(-5, 1, 200)).astype(f32)
    x[64:128] = 0
    x[130] = -0.0
    x[140:147] *= f32(1e-40)
    x[150:157] *= f32(1e37)
    x = x if book.signed else np.abs(x)
    q = codebooks.quantize_blockwise(x, book, block, rule)
    want, scales = oracle.quantize(x, book, block or x.size, rule)
    np.testing.assert_array_equal(q.codes, want)
    np.testing.assert_array_equal(q.absmax, scales)


@pytest.mark.parametrize("book", BOOKS, ids=lambda b: b.name)
def test_both_ways_to_find_a_rank_agree_on_a_million_elements(book: Codebook) -> None:
    words = np.random.Philox(1).random_raw(1 << 20)
    x = (words >> np.uint64(32)).astype(np.uint32).view(f32)  # every exponent alike
    x = np.where(np.abs(x) <= 1, x, f32(0.75))
    x = x if book.signed else np.abs(x)
    rule = rules.EVEN
    q = codebooks.quantize_blockwise(x, book, 4096, rule)
    codes, absmax = np.empty(x.size, np.uint8), np.empty(256, f32)
    table = padded(thresholds(book, rule))
    QUANTIZE[book.signed, True, False](x, codes, absmax, 4096, table, np.int32(0), np.uint32(0), np.int32(0))
    np.testing.assert_array_equal(q.codes, codes if book.codes is None else book.codes[codes])


def test_which_codebooks_are_searched() -> None:
    keyed = {book.name: plan(book, rules.EVEN).keyed for book in BOOKS}
    assert [name for name, by_key in keyed.items() if not by_key] == ["crowded"]
    assert keys(thresholds(BOOKS[0], rules.EVEN), 22) is None  # buckets too wide
    assert not plan(codebooks.dynamic(), rules.CPU).keyed


def test_ties_go_to_even_rank_or_to_the_lower_value() -> None:
    book = Codebook("quarters", [0, 0.25, 0.5, 0.75, 1])
    x = f32([0.125, 0.375, 0.625, 0.875, 1])
    assert codebooks.quantize_blockwise(x, book).codes.tolist() == [0, 2, 2, 4, 4]
    assert codebooks.quantize_blockwise(x, book, ties="lower").codes.tolist() == [0, 1, 2, 3, 4]


def test_a_rule_moves_a_threshold_by_one_float_at_most() -> None:
    for book in BOOKS[:8]:
        found = [ordered(thresholds(book, rule)) for rule in (rules.EVEN, rules.LOWER, rules.CUDA, rules.TORCH)]
        assert max(np.abs(a - b).max() for a in found for b in found) <= 1
    assert (thresholds(BOOKS[0], rules.EVEN) != thresholds(BOOKS[0], rules.TORCH)).any()


def test_the_cpu_librarys_zero_is_not_zero() -> None:
    """A table of 65,536 even steps has no entry for 0: code 131 of the signed map, 7 of the unsigned."""
    for signed, code, value, reached in ((True, 131, 2.125e-5, 249), (False, 7, 1.56e-5, 246)):
        book = codebooks.dynamic(signed)
        q = codebooks.quantize_blockwise(f32([1, 0]), book, ties="bitsandbytes cpu")
        assert q.codes.tolist() == [255, code]
        assert codebooks.dequantize_blockwise(q)[1] == pytest.approx(value, rel=1e-2)
        assert np.unique(thresholds(book, rules.CPU)).size + 1 == reached
        zeros = codebooks.quantize_blockwise(np.zeros(3, f32), book, ties="bitsandbytes cpu")
        assert zeros.codes.tolist() == [0, 0, 0]
        assert codebooks.quantize_blockwise(f32([1, 0]), book).codes.tolist() == [255, 127 * signed]


def test_the_cpu_library_clamps_no_maximum() -> None:
    """What bitsandbytes 0.50.2's library gave on a CPU: from 2**-128 down a reciprocal is infinite, and times 0 NaN."""
    for x, want in (
        ([1e-39, 2.5e-40, -5e-40, 0, -0.0, 1e-45, -1e-45], [255, 255, 0, 0, 0, 255, 0]),
        ([2.0**-128, 1e-39, 0], [255, 255, 0]),
        ([3e-39, 1e-39, -1e-39, 0, -0.0, 1e-45], [255, 207, 47, 131, 131, 131]),
        ([1e-38, 5e-39, -2e-39, 0], [255, 219, 56, 131]),
    ):
        q = codebooks.quantize_blockwise(f32(x), codebooks.dynamic(), 8, "bitsandbytes cpu")
        assert q.codes.tolist() == want
        assert oracle.quantize(f32(x), codebooks.dynamic(), 8, rules.CPU)[0].tolist() == want


def test_how_many_elements_the_cpu_library_misplaces() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 1 << 20).astype(f32)
    x[0] = 1
    differ = {}
    for signed in (True, False):
        v = x if signed else np.abs(x)
        codes = [codebooks.quantize_blockwise(v, codebooks.dynamic(signed), None, t).codes for t in (rules.CPU, "even")]
        differ[signed] = float((codes[0] != codes[1]).mean())
    assert 0.0008 < differ[True] < 0.0011
    assert 0.0017 < differ[False] < 0.0021


def test_the_maximum_comes_back_exactly_and_minus_it_does_not() -> None:
    x = np.random.default_rng(1).standard_normal(2048).astype(f32)
    top = int(np.argmax(np.abs(x)))
    for sign in (1, -1):
        x[top] = sign * np.abs(x[top])
        back = codebooks.dequantize_blockwise(codebooks.quantize_blockwise(x, codebooks.dynamic()))
        assert bool(back[top] == x[top]) is (sign == 1)
    assert back[top] == f32(-0.992968738079071) * np.abs(x[top])


# --- stochastic --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("book", BOOKS, ids=lambda b: b.name)
def test_stochastic_rounding_by_its_words(book: Codebook) -> None:
    from fplab.kernels.rounding import element_word

    rng = np.random.default_rng(4)
    values = np.concatenate([book.values, np.nextafter(book.values, f32(-2)), np.nextafter(book.values, f32(2))])
    x = np.concatenate(
        [rng.standard_normal(300).astype(f32), around(book, rules.EVEN)[::5], f32([0.0, -0.0, 1]), values]
    )
    x = np.abs(np.append(x, np.zeros(-x.size % 64, f32)))
    x *= np.sign(rng.random(x.size) - 0.5).astype(f32) if book.signed else f32(1)
    q = codebooks.quantize_blockwise(x, book, 64, stochastic=True, seed=11)
    words = [int(element_word(i, np.uint64(11))) for i in range(x.size)]
    np.testing.assert_array_equal(q.codes, oracle.stochastic(x, book, 64, words))


@pytest.mark.parametrize("keyed", [True, False])
def test_random_words_go_on_where_the_index_passes_32_bits(keyed: bool) -> None:
    from fplab.kernels.rounding import element_word

    book, start, seed = codebooks.dynamic(), 2**32 - 1000, np.uint64(7)
    x = np.random.default_rng(5).standard_normal(2048).astype(f32)
    codes, absmax = np.empty(x.size, np.uint8), np.empty(8, f32)
    QUANTIZE_STOCHASTIC[keyed](x, codes, absmax, 256, plan(book, None, keyed), *ladder(book), start, seed)
    words = [int(element_word(np.uint64(start + i), seed)) for i in range(x.size)]
    np.testing.assert_array_equal(codes, oracle.stochastic(x, book, 256, words))


def test_stochastic_rounding_is_right_on_average_and_seeded() -> None:
    x = np.full(200_001, 0.3, f32)
    x[-1] = 1
    book = codebooks.dynamic()
    a, b, c = (codebooks.quantize_blockwise(x, book, None, stochastic=True, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(a.codes, b.codes)
    assert (a.codes != c.codes).any()
    assert abs(codebooks.dequantize_blockwise(a)[:-1].mean(dtype=np.float64) - 0.3) < 1e-4
    nearest = codebooks.dequantize_blockwise(codebooks.quantize_blockwise(x, book, None))[:-1].mean(dtype=np.float64)
    assert abs(nearest - 0.3) > 1e-3


# --- the published table of errors -------------------------------------------------------------------------------
ERRORS = {
    (64, "dynamic"): (0.007535, 0.0142, 0.00952), (64, "linear"): (0.005042, 0.02728, 0.005944),
    (256, "dynamic"): (0.00854, 0.01539, 0.010838), (256, "linear"): (0.005984, 0.03128, 0.006974),
    (2048, "dynamic"): (0.009702, 0.01665, 0.012474), (2048, "linear"): (0.007133, 0.03623, 0.00827),
    (1 << 20, "dynamic"): (0.011943, 0.01882, 0.015942), (1 << 20, "linear"): (0.009833, 0.04739, 0.011355),
}  # fmt: skip


@pytest.mark.parametrize(("block", "name"), ERRORS)
def test_errors_on_normal_data(block: int, name: str) -> None:
    """2^20 normal samples: mean absolute, mean relative and root mean square error, as many digits as are known."""
    from fplab.experiments.quantisation_error import errors

    x = np.random.default_rng(0).standard_normal(1 << 20).astype(f32)
    got = errors(x, codebooks.BOOKS[name], block)[:3]
    for value, want in zip(got, ERRORS[block, name], strict=True):
        digits = len(f"{want:.10f}".rstrip("0").partition(".")[2])
        assert round(float(value), digits) == want


# --- special values, out, dtypes, threads ------------------------------------------------------------------------
def test_nan_and_infinity_are_refused_or_make_their_block_nan() -> None:
    x = np.ones(10, f32)
    x[6] = -np.inf
    with pytest.raises(LabError, match=r'element 6 is -inf; pass nan="propagate" and its block of 4 becomes NaN'):
        codebooks.quantize_blockwise(x, codebooks.dynamic(), 4)
    x[9] = np.nan
    for options in ({}, {"stochastic": True, "seed": 0}):
        q = codebooks.quantize_blockwise(x, codebooks.dynamic(), 4, nan="propagate", **options)
        back = codebooks.dequantize_blockwise(q)
        assert np.isnan(back).tolist() == [False] * 4 + [True] * 6
        assert q.codes[4:].tolist() == [127] * 6
    unsigned = codebooks.quantize_blockwise(-x * np.nan, codebooks.dynamic(signed=False), 4, nan="propagate")
    assert np.isnan(unsigned.absmax).all()


def test_negative_elements_need_negative_values() -> None:
    for options in ({}, {"stochastic": True, "seed": 0}):
        with pytest.raises(LabError, match=r"element 1 is -2\.0, and dynamic unsigned 8-bit has no negative values"):
            codebooks.quantize_blockwise([1.0, -2.0], codebooks.dynamic(signed=False), 1, **options)
    q = codebooks.quantize_blockwise(f32([1, -0.0]), codebooks.dynamic(signed=False))
    assert q.codes.tolist() == [255, 0]
    assert q.absmax.tolist() == [1.0]


def test_out_is_filled_and_results_do_not_depend_on_threads() -> None:
    x = np.random.default_rng(5).standard_normal((3, 70_001)).astype(f32)
    book = codebooks.dynamic()
    want = codebooks.quantize_blockwise(x, book, 100)
    back = codebooks.dequantize_blockwise(want)
    before = num_threads()
    for threads in (1, 2, 3):
        set_num_threads(threads)
        for codes, values in (
            (np.empty(x.shape, np.uint8), np.empty(x.shape, f32)),
            (np.empty(x.shape[::-1], np.uint8).T, np.empty((3, 70_003), f32)[:, 2:]),
        ):
            q = codebooks.quantize_blockwise(x, book, 100, out=codes)
            assert q.codes is codes
            np.testing.assert_array_equal(codes, want.codes)
            np.testing.assert_array_equal(q.absmax, want.absmax)
            assert codebooks.dequantize_blockwise(q, out=values) is values
            np.testing.assert_array_equal(values, back)
    set_num_threads(before)


@pytest.mark.parametrize("n", [0, 1, (1 << 20) + 3])
@pytest.mark.parametrize("block", [48, 2048, None])
def test_large_and_empty_arrays_at_any_alignment(n: int, block: int | None) -> None:
    x = np.random.default_rng(6).standard_normal(n + 1).astype(f32)[1:]
    q = codebooks.quantize_blockwise(x, codebooks.dynamic(), block)
    size = block or max(n, 1)
    scales = np.array([np.abs(x[i : i + size]).max() for i in range(0, n, size)], f32)
    np.testing.assert_array_equal(q.absmax, scales)
    out = np.empty(n + 3, f32)[3:]
    want = codebooks.dynamic().table[q.codes] * np.repeat(scales, size)[:n]
    np.testing.assert_array_equal(codebooks.dequantize_blockwise(q, out=out), want)


def test_other_dtypes_are_rounded_to_float32_first() -> None:
    import torch

    x = np.random.default_rng(7).standard_normal(100)
    want = codebooks.quantize_blockwise(x.astype(f32), codebooks.nf4(), 64)
    for given in (x, torch.from_numpy(x), x.tolist()):
        np.testing.assert_array_equal(codebooks.quantize_blockwise(given, codebooks.nf4(), 64).codes, want.codes)
    assert codebooks.quantize_blockwise(x.astype(np.float16).reshape(4, 25), codebooks.nf4()).codes.shape == (4, 25)


def test_bytes() -> None:
    x = np.ones(4097, f32)
    assert codebooks.quantize_blockwise(x, codebooks.dynamic()).nbytes == 4097 + 4 * 3
    assert codebooks.quantize_blockwise(x, codebooks.nf4(), 64).nbytes == 2049 + 4 * 65


BOOK = codebooks.dynamic()


test_what_is_refused_is_said = refusals.matching(
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, 0),
     r"fplab\.codebooks\.quantize_blockwise\(\[1\.0\], 'dynamic 8-bit', 0\): block=0 is not"),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, 1.5), r"block=1\.5 is not an integer"),
    (lambda: codebooks.quantize_blockwise([1.0], "dynamc"), r"unknown codebook 'dynamc'.*Did you mean 'dynamic'"),
    (lambda: codebooks.quantize_blockwise([1.0], 8), r"code=8 is no Codebook; pass one of fplab\.codebooks\.BOO"),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, ties="evn"), r"unknown ties 'evn'.*Did you mean 'even'"),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, stochastic=True), r"stochastic=True needs a seed, such as"),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, ties="lower", stochastic=True, seed=1), r"there are no ties"),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, nan="zero"), r"nan='zero' is not possible; allowed: None"),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, out=np.empty(1, f32)), r"out is float32 of shape \(1,\)"),
    (lambda: codebooks.dequantize_blockwise(np.zeros(3)), r"quantized is a ndarray; pass what quantize"),
    (lambda: codebooks.dequantize_blockwise(codebooks.Quantized(np.zeros(9, np.uint8), np.ones(1, f32), BOOK, 4)),
     r"codes are uint8\[9\] in blocks of 4, which need uint8 and 3 scales; absmax has 1"),
    (lambda: codebooks.dequantize_blockwise(
        codebooks.Quantized(np.full(2, 16, np.uint8), np.ones(1, f32), codebooks.nf4(), 4)),
     r"codes go up to 16; NF4 has codes 0 to 15"),
)  # fmt: skip


def test_the_definition_on_paper_differs_from_float32_quotients_almost_nowhere() -> None:
    """The real quotient against its float32: they part only within half a unit of a midpoint."""
    x = np.random.default_rng(8).standard_normal(2000).astype(f32)
    book = codebooks.dynamic()
    codes = codebooks.quantize_blockwise(x, book, None).codes
    most, values = Fraction(float(np.abs(x).max())), [Fraction(float(v)) for v in book.values]
    for i in range(0, 2000, 40):
        target = Fraction(float(x[i])) / most
        assert int(codes[i]) == min(range(256), key=lambda j: (abs(values[j] - target), j))
