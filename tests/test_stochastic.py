"""Stochastic rounding: its probability word by word, its stream, and that it never moves what needs no rounding."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from helpers import (
    EVERY,
    FLOATS,
    TABLED,
    Array,
    assert_same,
    choices,
    fast_quantize,
    fmt_id,
    general_encode,
    general_quantize,
    opts,
    raw,
)
from hypothesis import given
from hypothesis import strategies as st
from parts import examples
from prove.grid import grid

import fplab
from fplab import exact
from fplab.formats import Format, Overflow, Rounding, get, overflow
from fplab.kernels.convert import random_words
from fplab.kernels.rounding import stream_keys

MASK = 0xFFFFFFFF
SR = Rounding.STOCHASTIC


def random_word(index: int, key0: int, key1: int) -> int:
    """The generator once more, on Python integers."""
    x = index ^ key0
    x ^= x >> 17
    x = x * 0xED5AD4BB & MASK
    x ^= x >> 11
    x = (x + key1) * 0xAC4C1B51 & MASK
    x ^= x >> 15
    x = x * 0x31848BAB & MASK
    return x ^ x >> 14


def unshift(y: int, by: int) -> int:
    """The x with ``x ^ (x >> by) == y``."""
    x = y
    for _ in range(32 // by):
        x = y ^ x >> by
    return x


def index_of(word: int, key0: int, key1: int) -> int:
    """The element that draws a word: the generator undone step by step."""
    x = unshift(word, 14) * pow(0x31848BAB, -1, 2**32) & MASK
    x = unshift(x, 15) * pow(0xAC4C1B51, -1, 2**32) & MASK
    x = unshift(x - key1 & MASK, 11) * pow(0xED5AD4BB, -1, 2**32) & MASK
    return unshift(x, 17) ^ key0


def words_of(seed: int, n: int, start: int = 0) -> Array:
    out = np.empty(n, np.uint64)
    random_words(out, start, np.uint64(seed))
    return out


@examples(300)
@given(st.integers(0, MASK), st.integers(0, 2**64 - 1))
def test_the_words_of_a_stream_are_a_permutation(index: int, seed: int) -> None:
    key0, key1 = (int(k) for k in stream_keys(np.uint64(seed), np.uint64(0)))
    word = random_word(index, key0, key1)
    assert index_of(word, key0, key1) == index
    assert int(words_of(seed, 1, index)[0]) == word


def threshold(x: float, fmt: Format) -> int | None:
    """The smallest word that rounds a magnitude up, from the definition; None for a value of the format."""
    lower = exact.floor_code(Fraction(x), fmt)
    low, high = exact.magnitude_of(lower, fmt), exact.magnitude_of(lower + 1, fmt)
    return None if low == x else 2**32 - int((Fraction(x) - low) / (high - low) * 2**32)


def magnitudes(fmt: Format, dtype: type) -> list[float]:
    """Magnitudes of every kind: in each binade's middle, subnormal, far below, near overflow, carrier-subnormal."""
    scales = [fmt.emin - fmt.fraction_bits - k for k in (0, 1, 9, 31, 32, 33)]
    scales += [fmt.emin - 1, fmt.emin, fmt.emin + 1, 0, fmt.emax - 1, fmt.emax, -127, -130, -140]
    shares = 1 + raw(len(fmt.name), 3, np.uint64).astype(np.float64) / 2**64
    with np.errstate(over="ignore", under="ignore"):
        found = np.concatenate([np.ldexp(shares, np.clip(s, -1070, 1000)) for s in scales]).astype(dtype)
    return [float(v) for v in found if 0 < v < np.inf and (fmt.zero or v >= fmt.smallest_normal)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fmt", EVERY, ids=fmt_id)
def test_the_probability_is_exact_to_a_word(fmt: Format, dtype: type) -> None:
    """Of the 2**32 words exactly those at or above the threshold round up: oracle, general and fast path alike."""
    seed = 5
    keys = stream_keys(np.uint64(seed), np.uint64(0))
    opt = opts(fmt, SR, Overflow.SATURATE)
    for size in magnitudes(fmt, dtype):
        turn = threshold(size, fmt)
        words = [0, MASK] if turn is None else [0, turn - 1, MASK, *([turn] if turn < 2**32 else [])]
        for word in words:
            at = index_of(word, int(keys[0]), int(keys[1]))
            for x in [size, -size] if fmt.signed else [size]:
                want, want_flags = exact.round_to(exact.from_float(x), fmt, SR, Overflow.SATURATE, word=word)
                array = np.array([x], dtype)
                codes, flags = general_encode(array, fmt, opt, seed, at)
                assert (int(codes[0]), int(flags[0])) == (want, want_flags), (x.hex(), word)
                expected = fplab.decode(codes, fmt, dtype) if dtype == np.float64 or fmt.fits_float32 else None
                fast = fast_quantize(array, fmt, opt, keys, at)
                if fast is not None:
                    assert_same(fast, expected, f"{fmt} {x.hex()} word {word:#x}", array)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3", "e2m1", "e8m0"])
def test_public_function_draws_the_stream_of_its_seed(fmt: str) -> None:
    x = np.abs(raw(3, 50_000).view(np.float32))
    x = x[np.isfinite(x)]
    want = general_quantize(x, get(fmt), opts(get(fmt), SR), seed=11)
    assert_same(fplab.quantize(x, fmt, "stochastic", seed=11), want, fmt, x)
    codes, _ = grid(get(fmt)).round(x, choices(SR, overflow(None, get(fmt)), True), words_of(11, x.size))
    assert_same(fplab.encode(x, fmt, "stochastic", seed=11).astype(np.uint64), codes, fmt, x)


@pytest.mark.parametrize("fmt", TABLED, ids=fmt_id)
def test_values_of_the_format_are_left_alone(fmt: Format) -> None:
    g = grid(fmt)
    for dtype in FLOATS if fmt.fits_float32 else (np.float64,):
        x = g.decode(g.codes, dtype)
        x = x[np.isfinite(x)]
        for seed in (0, 1, 2**64 - 1):
            assert_same(fplab.quantize(x, fmt, "stochastic", seed=seed), x, (fmt.name, seed), x)


def test_streams_are_uniform_and_uncorrelated() -> None:
    """Chi-square of the top and the low byte, lag correlations, and correlations between neighbouring seeds."""
    n = 1 << 20
    streams = [words_of(seed, n) for seed in (0, 1, 2, 3, 2**32, 2**63)]
    about_zero = [words / 2**32 - 0.5 for words in streams]
    for words, centred in zip(streams, about_zero, strict=True):
        for byte in (words >> np.uint64(24), words & np.uint64(255)):
            counts = np.bincount(byte.astype(np.int64), minlength=256)
            chi2 = float(((counts - n / 256) ** 2 / (n / 256)).sum())
            assert 255 - 5 * np.sqrt(510) < chi2 < 255 + 5 * np.sqrt(510)
        for lag in (1, 2, 7, 64, 1024):
            assert abs(float((centred[lag:] * centred[:-lag]).mean()) * 12) < 5 / np.sqrt(n), lag
    for i, j in itertools.combinations(range(len(streams)), 2):
        assert abs(float((about_zero[i] * about_zero[j]).mean()) * 12) < 5 / np.sqrt(n)
        # Not one stream with a constant added. To sort is 30 times as fast as np.unique, which counts with a table.
        between = np.sort((streams[i] ^ streams[j])[: n // 8])
        assert np.count_nonzero(between[1:] != between[:-1]) > 0.99 * between.size


def test_the_two_halves_of_a_long_stream_differ() -> None:
    assert not (words_of(9, 1000) == words_of(9, 1000, 2**32)).any()


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3fnuz"])
def test_result_does_not_depend_on_threads_or_split(fmt: str) -> None:
    x = (raw(5, 300_001).astype(np.float32) - 2.0**31) / 2**30
    try:
        fplab.set_num_threads(1)
        want = fplab.quantize(x, fmt, "stochastic", seed=3)
        for n in (2, 3, 7):
            fplab.set_num_threads(n)
            assert_same(fplab.quantize(x, fmt, "stochastic", seed=3), want, n, x)
    finally:
        fplab.set_num_threads(None)
    cuts, opt = ((0, 7), (7, 100_000), (100_000, x.size)), opts(get(fmt), SR)
    parts = [general_quantize(x[i:j], get(fmt), opt, 3, i) for i, j in cuts]
    assert_same(np.concatenate(parts), want, "in parts", x)
