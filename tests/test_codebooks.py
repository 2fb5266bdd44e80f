"""Codebooks: the published tables, bit for bit; the tree literally; what is refused."""

import hashlib
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from refusals import refuses

from fplab import codebooks
from fplab.codebooks import tree
from fplab.errors import LabError

f32 = np.float32


def padded_digest(book: codebooks.Codebook) -> str:
    """SHA-256 of 256 values, as bitsandbytes pads a short map: with zeros, in order."""
    values = np.sort(np.concatenate([book.values, np.zeros(256 - len(book), f32)]))
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


PUBLISHED = {
    (True, 8): "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c",
    (False, 8): "305f002cc11278fb769d13b25b9fd0c7c83c8402c40a878fe086f4039fde6398",
    (True, 2): "e3cac24268e666f33f438a1b7ca33ae50f57f61fbab8faeb6429a50dd64edab1",
    (True, 3): "b892c14fb2cb69c0e40f6a8ecb01a5e177e02b254cf60cb6e0cd45f557d25b6b",
    (True, 4): "84e49bab918288be6b7ce992a53075e3273ce2fb412070aa4f6eeec448602e19",
    (True, 5): "8be4b661b7749634498adcd6ce8f8f68b8523f03ddeb579ae34d14f55dc10359",
    (True, 6): "ae495a101c1621c025e216382c0edd51f0ed8cc3af249dcd3863b6c001bce912",
    (True, 7): "f54b804bf6590b18a9a1d16f40b94f66c2634b0b514abf722aafd24f1a6d288e",
}


@pytest.mark.parametrize(("signed", "bits"), PUBLISHED)
def test_dynamic_maps_are_the_published_ones(signed: bool, bits: int) -> None:
    assert padded_digest(codebooks.dynamic(signed, bits)) == PUBLISHED[signed, bits]


def test_linear_maps_are_the_published_ones() -> None:
    assert codebooks.linear().sha256 == "80bf4c55fa736fa18f611d26a59e99475bae78388280fbccbf4c7d12437a4775"
    assert codebooks.linear(signed=False).sha256 == "7cb9ea560989533d101f5082aa194366c6fd5d82a305f2994cc39312a65f7962"
    assert codebooks.linear().values[128] == f32(2.0**-28)  # the middle of 255 levels, beside the true zero


def test_nf4_is_the_published_table() -> None:
    """QLoRA, appendix E."""
    want = [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
        0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]  # fmt: skip
    book = codebooks.nf4()
    assert book.values.tolist() == want
    assert book.bits == 4


# --- the tree ----------------------------------------------------------------------------------------------------
def test_the_tree_of_the_documents() -> None:
    """Sign 0, two zeros, the indicator, 1001: 9 of 15, so 10^-2 * 9/15."""
    assert tree.fields(0b0_001_1001) == (False, 2, 9, 4)
    assert tree.decode(0b0_001_1001) == Fraction(6, 1000)
    assert tree.decode(0b0_1_111111) == 1
    assert tree.decode(0b0_0000001) == Fraction(1, 10**6)
    assert tree.decode(0b1_1_000001) == -Fraction(1, 63)
    assert tree.fields(0).width == tree.fields(0x80).width == -1


def test_seven_codes_of_128_are_zero_and_decades_overlap() -> None:
    values = [tree.decode(code) for code in range(128)]
    assert [c for c, v in enumerate(values) if v == 0] == [0, 2, 4, 8, 16, 32, 64]
    assert len(set(values)) == 122
    ordered = sorted(set(values))
    assert ordered[1:4] == [Fraction(1, 10**6), Fraction(1, 10**5), Fraction(1, 3 * 10**4)]
    assert ordered[-1] == 1
    by_zeros = {k: [v for c, v in enumerate(values) if v and tree.fields(c).zeros == k] for k in range(7)}
    assert min(by_zeros[0]) < max(by_zeros[1])  # 1/63 lies inside the decade below it
    assert len(codebooks.dynamic_tree()) == 243


@pytest.mark.parametrize("bits", range(3, 9))
def test_the_tree_encodes_what_it_decodes(bits: int) -> None:
    book = codebooks.dynamic_tree(bits)
    assert book.table.size == 1 << bits
    for code in range(1 << bits):
        value = tree.decode(code, bits)
        assert tree.decode(tree.encode(value, bits), bits) == value
        exact_error = abs(Fraction(float(book.table[code])) - value)
        assert exact_error <= value.__abs__() / 2**24


def test_the_tree_as_a_codebook_stores_bit_patterns() -> None:
    q = codebooks.quantize_blockwise([1.0, 0.006, 0.0, -1 / 63], codebooks.dynamic_tree())
    assert [f"{c:08b}" for c in q.codes] == ["01111111", "00011001", "00000000", "11000001"]
    got = codebooks.dequantize_blockwise(q)
    np.testing.assert_array_equal(got, np.array([1, 0.006, 0, -1 / 63], f32))


def test_encode_takes_the_nearest_code() -> None:
    rng = np.random.default_rng(0)
    for x in rng.uniform(-1, 1, 50) * 10.0 ** rng.integers(-7, 1, 50):
        best = min(abs(tree.decode(c) - Fraction(x)) for c in range(256))
        assert abs(tree.decode(tree.encode(x)) - Fraction(x)) == best


# --- quantile codebooks, records ---------------------------------------------------------------------------------
def test_a_quantile_codebook_is_used_evenly() -> None:
    data = np.random.default_rng(1).standard_t(3, 100_000).astype(f32)
    book = codebooks.quantile(data)
    assert len(book) == 256
    used = np.bincount(codebooks.quantize_blockwise(data, book, None).codes, minlength=256)
    assert used[1:-1].max() < 2 * data.size / 256
    linear = np.bincount(codebooks.quantize_blockwise(data, codebooks.linear(), None).codes, minlength=256)
    assert linear.max() > 10 * data.size / 256


def test_a_quantile_codebook_by_its_definition() -> None:
    data = np.arange(-8.0, 9.0)
    levels = [Fraction(-8) + 16 * Fraction(i, 5) for i in range(5)]
    want = [(a + b) / 2 / 8 for a, b in pairwise(levels)]
    np.testing.assert_allclose(codebooks.quantile(data, bits=2).values, [float(w) for w in want], rtol=1e-6)


def test_records_are_values() -> None:
    a, b = codebooks.dynamic(), codebooks.dynamic()
    assert a == b
    assert hash(a) == hash(b)
    assert a != codebooks.linear()
    assert a is not None
    with pytest.raises(ValueError, match="read-only"):
        a.values[0] = 0
    with pytest.raises(AttributeError):
        a.name = "x"  # type: ignore[misc]
    assert not codebooks.dynamic(signed=False).signed
    assert len({codebooks.dynamic(), codebooks.dynamic(bits=4), codebooks.dynamic()}) == 2


def test_the_table_holds_every_codebook_that_needs_no_data() -> None:
    made = (codebooks.linear(), codebooks.linear(False), codebooks.dynamic(), codebooks.dynamic(False),
            codebooks.dynamic_tree(), codebooks.nf4())  # fmt: skip
    assert tuple(codebooks.BOOKS.values()) == made
    x = np.array([0.3, -0.1, 1.0], f32)
    for name, book in codebooks.BOOKS.items():
        given = x if book.signed else np.abs(x)
        by_name, by_record = (codebooks.quantize_blockwise(given, code) for code in (name.upper(), book))
        assert by_name.code is book
        np.testing.assert_array_equal(by_name.codes, by_record.codes)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.0, 0.5, 0.25, 1.0], r"fplab\.codebooks\.Codebook\('mine', \.\.\.\): value 2 is 0\.25, after 0\.5: values "
                                r"are ascending and distinct in float32; pass numpy\.unique\(values\)"),
        ([0.0, 0.5, 0.5 + 1e-12], r"value 2 is 0\.5, after 0\.5"),
        ([0.0, float("nan")], r"value 1 is nan; every value of a codebook is finite"),
        ([float("-inf"), 0.0], r"value 0 is -inf; every value"),
        ([0.0], r"1 values; a codebook has 2 to 256"),
        (np.linspace(0, 1, 257), r"257 values; a codebook has 2 to 256"),
        ([0.0, 2.0], r"value 1 is 2\.0; blocks are scaled to \[-1, 1\], so divide by it"),
        ("abc", r"values='abc' is no list of numbers"),
    ],
)  # fmt: skip
def test_an_impossible_codebook_is_refused(values, text) -> None:  # type: ignore[no-untyped-def]
    refuses(lambda: codebooks.Codebook("mine", values), text)


def test_other_refusals() -> None:
    with pytest.raises(LabError, match=r"codes are 2 distinct integers, one for each value; given int64\(2,\)"):
        codebooks.Codebook("mine", [0, 1], codes=np.array([3, 3]))
    with pytest.raises(LabError, match=r"codes from 0 to 300; a code is 0 to 255"):
        codebooks.Codebook("mine", [0, 1], codes=np.array([0, 300]))
    refuses(lambda: codebooks.dynamic(bits=9), r"bits=9 is not possible; allowed: 2 to 8")
    refuses(lambda: codebooks.quantile([3.0, 3.0]), r"data is 3\.0 throughout; a codebook has at least 2 values")
    refuses(lambda: codebooks.quantile([]), r"data has 0 values; it needs some")
    refuses(lambda: tree.decode(256), r"code=256 is not possible; allowed: 0 to 255 \(8 bits\)")
    refuses(lambda: tree.encode(float("nan")), r"x=nan is no finite number")
