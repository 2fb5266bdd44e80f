"""The table of formats against numpy, ml_dtypes, torch and counting."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import fplab
from fplab import exact
from fplab.formats import NAMES, TABLE, Format, Specials, get

# What neither numpy and ml_dtypes nor counting says below: sign/exponent/fraction bits, bias, largest, smallest normal,
# smallest subnormal; codes: finite, distinct, NaN, infinite.
FACTS = {
    "fp32": ("1/8/23", 127, 3.4028234663852886e38, 2.0**-126, 2.0**-149, 4278190080, 4278190079, 2**24 - 2, 2),
    "tf32": ("1/8/10", 127, 3.4011621342146535e38, 2.0**-126, 2.0**-136, 522240, 522239, 2046, 2),
}
FINFO = ("bits", "eps", "iexp", "machep", "max", "maxexp", "min", "minexp", "nexp", "nmant", "smallest_normal", "tiny")


@pytest.mark.parametrize("name", FACTS)
def test_the_published_table(name):
    f = get(name)
    fields = f"{int(f.signed)}/{f.exponent_bits}/{f.fraction_bits}"
    got = (fields, f.bias, f.max, f.smallest_normal, f.smallest_subnormal)
    assert (*got, f.finite_codes, f.distinct_values, f.nan_codes, f.inf_codes) == FACTS[name]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_finfo(dtype):
    theirs, ours = np.finfo(dtype), get(np.dtype(dtype).name)
    for field in (*FINFO, "epsneg", "negep", "precision", "resolution", "smallest_subnormal"):
        want = getattr(theirs, field)
        assert dtype(getattr(ours, field)) == dtype(want), field


@pytest.mark.parametrize("fmt", [f for f in TABLE if f.name not in ("tf32", "fp64", "fp32", "fp16")], ids=str)
def test_ml_dtypes_finfo(fmt):
    theirs = ml_dtypes.finfo(getattr(ml_dtypes, fmt.aliases[0]))
    for field in (*FINFO, "smallest_subnormal"):
        assert float(getattr(theirs, field)) == float(getattr(fmt, field)), field


def test_e2m1_is_a_list_one_can_read():
    assert fplab.decode(np.arange(8), "e2m1").tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize("fmt", [f for f in TABLE if f.bits <= 16], ids=str)
def test_counts_are_what_counting_gives(fmt):
    read = [exact.decode(code, fmt) for code in range(1 << fmt.bits)]
    finite = [x for x in read if x.kind == "finite"]
    assert len(finite) == fmt.finite_codes
    assert len({x.value for x in finite}) == fmt.distinct_values
    assert sum(x.is_nan for x in read) == fmt.nan_codes
    assert sum(x.kind == "inf" for x in read) == fmt.inf_codes
    assert max(x.value for x in finite) == fmt.max
    assert min(x.value for x in finite) == fmt.min


def test_names_and_aliases_are_distinct_and_found():
    names = [n for f in TABLE for n in (f.name, *f.aliases)]
    assert len(names) == len(set(names))
    assert all(get(n.upper()).name in NAMES for n in names)
    assert get(get("bf16")) is get("bf16")


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get("fp16").bias = 3


def test_a_format_of_ones_own_is_one_record():
    mine = Format("e3m2_inf", 3, 2, source="here")
    assert (mine.bits, mine.max, mine.inf_codes) == (6, 14.0, 2)
    assert fplab.quantize([0.3, 15.0, -20.0], mine).tolist() == [0.3125, np.inf, -np.inf]
    assert fplab.add(7.0, 1.0, Format("small", 2, 3, specials=Specials.NONE)) == 7.5
