"""Posits and linear takums: by their definitions, by SoftPosit on every code, and by what libtakum's decoder gave."""

import ctypes
import hashlib
import shutil
import subprocess
import tarfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals
from packages import package

from fplab import tapered
from fplab.tapered import TABLE, Tapered, decode, encode, nearest, value_of

IDS = [form.name for form in TABLE]


def codes_of(form: Tapered, count: int = 1 << 16) -> np.ndarray:
    """Every code, of 32 bits some."""
    if form.bits <= 16:
        return np.arange(1 << form.bits)
    return np.random.default_rng(32).integers(0, 1 << form.bits, count)


def between(form: Tapered) -> np.ndarray:
    """Finite values, what codes one bit longer say, both next to it, and numbers of any exponent."""
    longer = Tapered("", form.bits + 1, form.exponent_bits)
    values = decode(codes_of(longer, 1 << 15), longer)
    values = values[np.isfinite(values)]
    rng = np.random.default_rng(7)
    noise = rng.normal(size=4000) * 2.0 ** rng.integers(-300, 300, 4000)
    return np.concatenate([values, np.nextafter(values, np.inf), np.nextafter(values, -np.inf), noise])


@pytest.mark.parametrize("form", TABLE, ids=IDS)
def test_every_code_has_the_value_of_its_bits_and_comes_back(form):
    codes = codes_of(form, 4000)
    values = decode(codes, form)
    for code, value in zip(codes.tolist(), values.tolist(), strict=True):
        want = value_of(code, form)
        assert value != value if want is None else Fraction(value) == want, hex(code)
    assert encode(values, form).tolist() == codes.tolist()
    assert np.isnan(decode(form.nar_code, form))
    ends = decode([1, form.nar_code - 1], form)
    assert (ends[0] <= np.abs(values[values != 0][~np.isnan(values[values != 0])])).all()
    assert (np.abs(values[~np.isnan(values)]) <= ends[1]).all()


@pytest.mark.parametrize("exponent_bits", [None, 0, 1, 2, 3, 4])
def test_narrow_ones_of_any_width_are_those_of_their_bits(exponent_bits):
    for bits in range(3, 13):
        form = Tapered("mine", bits, exponent_bits)
        codes = np.arange(1 << bits)
        values = decode(codes, form)
        wanted = [value_of(code, form) for code in codes.tolist()]
        assert [None if x != x else Fraction(x) for x in values.tolist()] == wanted
        assert encode(values, form).tolist() == codes.tolist()
        x = np.random.default_rng(bits).normal(size=60) * 2.0 ** np.arange(-30, 30)
        assert encode(x, form).tolist() == [nearest(Fraction(v), form) for v in x.tolist()]


@pytest.mark.parametrize("form", TABLE, ids=IDS)
def test_values_are_rounded_by_the_definition(form):
    x = between(form)
    x = np.random.default_rng(1).choice(x, 3000, replace=False) if x.size > 3000 else x
    want = [nearest(Fraction(value), form) for value in x.tolist()]
    wrong = np.flatnonzero(encode(x, form) != np.array(want, np.uint64))
    assert not wrong.size, (x[wrong[0]].hex(), encode(x[wrong[:1]], form), want[wrong[0]])


def test_ties_are_those_of_codes_and_nothing_becomes_zero_or_nar():
    posit8 = tapered.get("posit8")  # 2^22 and 2^24 are neighbours: 2^23 is half of the longer code, 3 * 2^22 is more
    assert decode([0x7E, 0x7F], posit8).tolist() == [2.0**20, 2.0**24]
    assert decode(encode([2.0**22, 1.5 * 2**21], posit8), posit8).tolist() == [2.0**20, 2.0**20]
    assert decode(encode([2.0**22 * 1.01, 1e300, 1e-300, -1e-300], posit8), posit8).tolist() == [
        2.0**24, 2.0**24, 2.0**-24, -(2.0**-24)]  # fmt: skip
    assert encode([np.inf, -np.inf, np.nan, 0.0, -0.0], posit8).tolist() == [0x80, 0x80, 0x80, 0, 0]
    assert encode(np.float32([[1, -1]]), "takum16").tolist() == [[0x4000, 0xC000]]


@pytest.fixture(scope="module")
def softposit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """SoftPosit, compiled from the sources of its package."""
    folder = tmp_path_factory.mktemp("softposit")
    if shutil.which("gcc") is None:
        pytest.skip("SoftPosit's C code needs gcc, which is not here.")
    with tarfile.open(package("softposit", folder, source=True)) as archive:
        archive.extractall(folder, [one for one in archive if one.name.endswith((".c", ".h"))], filter="data")
    [include] = folder.rglob("include")
    [platform] = folder.rglob("platform.h")
    sources, library = include.parent.glob("*.c"), folder / "softposit.so"
    flags = ["-O2", "-shared", "-fPIC", "-w", "-std=gnu99", f"-I{include}", f"-I{platform.parent}"]
    subprocess.run(["gcc", *flags, *map(str, sources), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


# Its posits of 8 and 16 bits have the draft's exponents; those of two exponent bits are 32 bits wide, of which the
# first ones count.
OWN = {
    "posit8_es0": ("P8", ctypes.c_uint8), "posit16_es1": ("P16", ctypes.c_uint16),
    "posit32": ("P32", ctypes.c_uint32), "posit8": ("PX2", ctypes.c_uint32), "posit16": ("PX2", ctypes.c_uint32),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_codes_and_roundings_are_softposits(softposit: Any, name: str) -> None:
    (theirs, word), form = OWN[name], tapered.get(name)

    class Posit(ctypes.Structure):
        _fields_ = (("v", word),)

    encoder, decoder = getattr(softposit, f"convertDoubleTo{theirs}"), getattr(softposit, f"convert{theirs}ToDouble")
    encoder.argtypes = [ctypes.c_double, *[ctypes.c_int] * (theirs == "PX2")]
    encoder.restype, decoder.argtypes, decoder.restype = Posit, [Posit], ctypes.c_double
    shift, more = 8 * ctypes.sizeof(word) - form.bits, [form.bits] * (theirs == "PX2")
    codes = codes_of(form)
    codes = codes[codes != form.nar_code]  # which the narrow ones take for infinity
    assert [decoder(Posit(code << shift)) for code in codes.tolist()] == decode(codes, form).tolist()
    x = between(form)
    assert [encoder(value, *more).v >> shift for value in x.tolist()] == encode(x, form).tolist()


# Of the values of every code, of takum32 of 65,536 codes, as libtakum's codec.c decodes them (github.com/
# takum-arithmetic/libtakum, the linear takums; compiled by gcc 12 on x86-64, NaR as NumPy's NaN).
LIBTAKUM = {"takum8": "02f885ffbe0fc5f1", "takum16": "c392a0c092675732", "takum32": "0df4820f92699b84"}


@pytest.mark.parametrize("name", LIBTAKUM)
def test_values_of_takums_are_libtakums(name: str) -> None:
    values = decode(codes_of(tapered.get(name)), name)
    assert hashlib.sha256(np.where(np.isnan(values), np.nan, values).tobytes()).hexdigest()[:16] == LIBTAKUM[name]


def test_what_is_no_such_format_or_code_is_refused(tmp_path: Path) -> None:
    refusals.refuses(lambda: encode(1.0, "posit9"), "unknown format 'posit9'. Allowed: posit8, posit16, ")
    refusals.refuses(lambda: decode(256, "posit8"), "codes=256 are not possible; allowed: integers from 0 to 255")
    refusals.refuses(lambda: decode(0.5, "posit8"), "codes=0.5 are not possible")
    refusals.refuses(lambda: encode("one", "posit8"), "x")
    refusals.refuses(lambda: Tapered("wide", 41, 2), "bits=41 is not possible; allowed: 3 to 40")
    refusals.refuses(lambda: Tapered("deep", 16, 5), "exponent_bits=5 is not possible; allowed: 0 to 4")
