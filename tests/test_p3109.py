"""The formats of IEEE P3109: every width, signed and unsigned, extended and finite, held to gfloat on every code.

Kernels and oracle are held together by test_rounding.py, which takes six of them.
"""

import itertools

import numpy as np
import pytest
from refusals import refuses

import fplab
from fplab import exact
from fplab.formats import Format, get, p3109

gfloat = pytest.importorskip("gfloat")
formats = pytest.importorskip("gfloat.formats")
types = pytest.importorskip("gfloat.types")
MODES = {
    "rne": "TiesToEven",
    "rna": "TiesToAway",
    "rtz": "TowardZero",
    "rtp": "TowardPositive",
    "rtn": "TowardNegative",
}


def family(widths: range) -> list[Format]:
    """Every format of these widths whose values fit a float64."""
    chosen = [
        (bits, precision, signed, infinite)
        for bits, signed, infinite in itertools.product(widths, (True, False), (True, False))
        for precision in range(1, bits + (not signed))
        if bits - precision + (not signed) <= 11
    ]
    return [p3109(*fields) for fields in chosen]


def theirs(fmt: Format):
    """gfloat's record of one of them."""
    sign = types.Signedness.Signed if fmt.signed else types.Signedness.Unsigned
    domain = types.Domain.Extended if fmt.has_infinity else types.Domain.Finite
    return formats.format_info_p3109(fmt.bits, fmt.significand_bits, sign, domain)


@pytest.mark.parametrize("bits", range(3, 16))
def test_every_code_is_gfloats(bits):
    codes = np.arange(1 << bits, dtype=np.uint64)
    for fmt in family(range(bits, bits + 1)):
        want = gfloat.decode_ndarray(theirs(fmt), codes)
        got = fplab.decode(codes, fmt).astype(np.float64)
        np.testing.assert_array_equal(got.view(np.uint64)[~np.isnan(want)], want.view(np.uint64)[~np.isnan(want)])
        assert np.isnan(got[np.isnan(want)]).all()
        assert fplab.encode(got, fmt).tolist() == codes.tolist()
        assert (fmt.nan_codes, fmt.inf_codes) == (1, fmt.has_infinity * (1 + fmt.signed))
        assert fmt.max == theirs(fmt).max
        assert fmt.smallest_subnormal == theirs(fmt).smallest


def between(fmt: Format) -> np.ndarray:
    """Every value, the middle and the quarters of every gap, what lies beyond both ends, and numbers in between."""
    values = fplab.decode(np.arange(1 << fmt.bits), fmt).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    ends = np.diff(values[-2:]) if fmt.significand_bits > 1 else values[-1:]  # the gap beyond the largest value
    beyond = values[-1] + ends * np.array([0.25, 0.5, 0.75, 1.0, 1.5, 4.0])
    gaps = [values[:-1] * (1 - share) + values[1:] * share for share in (0.25, 0.5, 0.75)]
    noise = np.random.default_rng(3109).uniform(values[0], values[-1], 200)
    x = np.concatenate([values, *gaps, beyond, noise, noise * fmt.smallest_normal, [np.inf, np.nan, 0.0]])
    return np.concatenate([x, -x]) if fmt.signed else x


@pytest.mark.parametrize("bits", range(3, 9))
def test_every_gap_is_rounded_as_gfloat_rounds(bits):
    """Saturated or to infinity; a finite format saturates, as P3109 says, and gfloat's without is no rule of it."""
    for fmt, (mode, name) in itertools.product(family(range(bits, bits + 1)), MODES.items()):
        x, other = between(fmt), theirs(fmt)
        for policy in ("saturate", "inf") if fmt.has_infinity else ("saturate",):
            sat = policy == "saturate"
            want = gfloat.round_ndarray(other, x, getattr(gfloat.RoundMode, name), sat)
            got = fplab.quantize(x, fmt, rounding=mode, overflow=policy)
            differ = (got.view(np.uint64) != want.view(np.uint64)) & ~(np.isnan(got) & np.isnan(want))
            assert not differ.any(), (fmt.name, mode, policy, x[differ][:3], got[differ][:3], want[differ][:3])


def test_sums_products_and_updates_are_rounded_in_them():
    """What is fast elsewhere takes no short way that supposes a -0, an odd largest significand or ties that go up."""
    for fmt in family(range(6, 9)):
        values = fplab.decode(np.arange(1 << fmt.bits), fmt).astype(np.float64)
        values = values[np.isfinite(values)]
        a, b = np.random.default_rng(5).choice(values, (2, 60))
        total = 0.0
        for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
            if i < 25:
                for name in ("add", "sub", "mul"):
                    want, _ = getattr(exact, name)(exact.from_float(x), exact.from_float(y))
                    got = fplab.encode(getattr(fplab, name)(x, y, fmt), fmt)
                    assert int(got) == exact.round_to(want, fmt)[0], (fmt.name, name, x, y)
            total = float(fplab.quantize(total + x, fmt))
        got = float(fplab.sum(a, fmt))
        assert got == total or (np.isnan(got) and np.isnan(total)), fmt.name


def test_names_say_what_they_are():
    assert get("Binary8p3se") == get("binary8p3") == p3109(8, 3)
    assert get("binary8p4uf") == p3109(8, 4, signed=False, infinite=False)
    assert [p3109(8, p).max for p in (3, 4)] == [49152.0, 224.0]
    refuses(lambda: get("binary8p9se"), r"precision=9 is not possible; allowed: 1 to 7, what 8 bits allow")
    refuses(lambda: p3109(16, 8), r"bits=16 is not possible; allowed: 3 to 15, the widths of P3109")
    refuses(lambda: p3109(15, 1), r"exponent_bits=14")
    refuses(lambda: p3109(8, 3, 8), r"signed=8 is neither True nor False")
