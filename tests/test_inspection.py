"""``fplab.inspect``: parsing, every field of every format, text, HTML, and messages."""

import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fplab
from fplab import exact
from fplab.errors import LabError
from fplab.formats import TABLE, Format, Specials
from fplab.inspection import OTHERS, encodings, inspect
from fplab.numerals import binary_text, decimal_text, short

SMALL = [f for f in TABLE if f.bits <= 8]
ODD_ONES = [
    Format("unsigned", 4, 3, signed=False, specials=Specials.LAST),
    Format("no_zero", 3, 2, zero=False, specials=Specials.NONE),
    Format("tiny", 1, 1, specials=Specials.NONE),
]


def row(value, fmt, **options):
    return inspect(value, fmt, **options).rows[0]


def test_one_tenth_in_fp16() -> None:
    seen = row("0.1", "fp16")
    assert (seen.code, seen.hex, seen.strip) == (0x2E66, "0x2e66", "0 01011 1001100110")
    assert seen.fields == (("sign", "0"), ("exponent", "01011"), ("fraction", "1001100110"))
    assert seen.value == Fraction(819, 8192)
    assert seen.error == Fraction(819, 8192) - Fraction(1, 10)
    assert (seen.ulp, seen.error_ulp) == (Fraction(1, 2**14), Fraction(-2, 5))
    assert (seen.below.value, seen.above.value) == (Fraction(1637, 2**14), Fraction(1639, 2**14))
    assert (seen.class_name, seen.flag_names) == ("normal", ("inexact",))


def test_the_public_name() -> None:
    assert fplab.inspect is inspect


def test_a_decimal_text_is_exact_and_a_float_is_not() -> None:
    assert row("0.1", "fp64").error == Fraction(0.1) - Fraction(1, 10)
    assert row(0.1, "fp64").error == 0
    assert "the exact decimal as written, not its nearest float" in str(inspect("0.1"))
    assert "0.1 = 3602879701896397/36028797018963968: a float64, which is already rounded" in str(inspect(0.1))
    assert row(Decimal("0.1"), "fp64").error == row("0.1", "fp64").error


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("1/3", Fraction(1, 3)), ("-2 / 6", Fraction(-1, 3)), ("0x1.8p3", Fraction(12)),
        ("0x.8p-1074", Fraction(1, 2**1075)), ("2^-14", Fraction(1, 2**14)), ("-2**10", Fraction(-1024)),
        ("13421773·2^-27", Fraction(13421773, 2**27)), ("1.5 * 2^3", Fraction(12)), ("-.5×2^-1", Fraction(-1, 4)),
        ("-0X1P-2", Fraction(-1, 4)), ("0x10", Fraction(16)), (" 2.5E-8 ", Fraction(1, 4 * 10**7)),
        (".5", Fraction(1, 2)),
        ("1_000", Fraction(1000)), ("+3.", Fraction(3)), (7, Fraction(7)), (10**40, Fraction(10**40)),
        (Fraction(22, 7), Fraction(22, 7)), (np.float32(0.1), Fraction(13421773, 2**27)), (np.int8(-5), Fraction(-5)),
        (np.float16(0.1), Fraction(819, 8192)), (np.array(0.5), Fraction(1, 2)), ("fp16:0x2e66", Fraction(819, 8192)),
        ("e4m3:0b0_0111_000", Fraction(1)), ("fp32: 1", Fraction(1, 2**149)), ("float16:0x3c00", Fraction(1)),
    ],
)  # fmt: skip
def test_what_is_taken_exactly(given: object, value: Fraction) -> None:
    assert inspect(given, "fp64").given.value.value == value


def test_wide_scalars_keep_their_bits() -> None:
    wide = np.longdouble(1) + np.longdouble(2) ** -60
    if wide == 1:
        pytest.skip("long double is double here")
    assert inspect(wide).given.value.value == 1 + Fraction(1, 2**60)


def test_torch_scalars() -> None:
    torch = pytest.importorskip("torch")
    assert inspect(torch.tensor(0.1, dtype=torch.bfloat16)).given.value.value == Fraction(205, 2048)


@pytest.mark.parametrize(
    ("value", "fmt", "kind", "flags"),
    [
        ("0", "fp16", "zero", ()), ("-0", "fp16", "zero", ()), (-0.0, "e4m3fnuz", "zero", ()),
        ("65504", "fp16", "normal", ()), ("65520", "fp16", "infinite", ("overflow", "inexact")),
        ("65519.99", "fp16", "normal", ("inexact",)), ("1e-8", "fp16", "zero", ("underflow", "inexact")),
        ("6e-8", "fp16", "subnormal", ("underflow", "inexact")), ("fp16:1", "fp16", "subnormal", ()),
        ("inf", "fp16", "infinite", ()), ("-inf", "e4m3", "quiet NaN", ("overflow", "inexact")),
        ("nan", "fp16", "quiet NaN", ()), ("snan", "fp16", "quiet NaN", ("invalid",)),
        ("fp16:0x7c01", "fp16", "signalling NaN", ()), ("fp16:0x7c01", "bf16", "quiet NaN", ("invalid",)),
        ("0", "e8m0", "quiet NaN", ("invalid",)), ("-1", "e8m0", "quiet NaN", ("invalid",)),
        ("1e6", "e4m3", "quiet NaN", ("overflow", "inexact")), ("1e6", "e2m1", "normal", ("overflow", "inexact")),
        ("1e400", "fp64", "infinite", ("overflow", "inexact")), ("1e-400", "fp64", "zero", ("underflow", "inexact")),
        ("5e-324", "fp64", "subnormal", ("underflow", "inexact")), ("nan", "e2m1", "not representable", ("invalid",)),
    ],
)  # fmt: skip
def test_classes_and_flags(value: object, fmt: str, kind: str, flags: tuple[str, ...]) -> None:
    seen = row(value, fmt)
    assert (seen.class_name, seen.flag_names) == (kind, flags)


def test_signs_of_zero_are_kept() -> None:
    assert row("-0", "fp16").code == 0x8000
    assert row("-0.0", "fp16").code == row(-0.0, "fp16").code == row("-0x0p0", "fp16").code == 0x8000
    assert row("-0", "e4m3fnuz").code == 0
    assert "value  -0" in str(inspect("-0", "fp16"))


def test_options_reach_the_rounding() -> None:
    assert row("0.1", "fp16", rounding="rtp").code == 0x2E67
    assert row("1e6", "e4m3", overflow="saturate").value == 448
    assert "rounded toward zero" in str(inspect("0.1", rounding="rtz"))


@pytest.mark.parametrize("fmt", [*SMALL, *ODD_ONES], ids=str)
def test_every_code_of_a_narrow_format(fmt: Format) -> None:
    values = sorted({exact.decode(c, fmt).value for c in range(1 << fmt.bits) if exact.decode(c, fmt).kind == "finite"})
    for code in range(1 << fmt.bits):
        seen = row(f"{fmt.name}:{code}", fmt)
        assert seen.code == code
        assert seen.strip.replace(" ", "") == f"{code:0{fmt.bits}b}"
        assert seen.flags == 0
        if seen.value is None:
            continue
        assert seen.error == 0
        at = values.index(seen.value)
        if at:
            assert seen.below.value == values[at - 1]
        else:
            assert seen.below == (exact.Exact(True, kind="inf") if fmt.has_infinity else None)
        if at + 1 < len(values):
            assert seen.above.value == values[at + 1]
            if seen.class_name != "normal" and seen.value >= 0:
                assert seen.ulp == values[at + 1] - values[at]
        else:
            assert seen.above == (exact.Exact(False, kind="inf") if fmt.has_infinity else None)


# --- text -----------------------------------------------------------------------------------------------------------
def test_text_of_one_block() -> None:
    assert str(inspect("0.1", "fp16")) == (
        "0.1 = 1/10: the exact decimal as written, not its nearest float\n"
        "rounded to nearest, ties to even\n\n"
        "fp16  0 01011 1001100110  0x2e66  normal\n"
        "      value  0.0999755859375 = 819/8192 = 819·2^-13\n"
        "      error  -0.4 ulp, absolute -0.0000244141, relative -0.000244\n"
        "      below  0.09991455078125\n"
        "      above  0.10003662109375\n"
        "      flags  inexact\n\n"
        "ulp: the spacing of the format's values in the binade of the stored value."
    )


def test_every_digit_is_shown() -> None:
    text = str(inspect("fp32:1", "fp32"))
    digits = "".join(text.split("value")[1].split("= 2^-149")[0].split())
    assert Decimal(digits) == Decimal(2) ** -149 or Fraction(digits) == Fraction(1, 2**149)
    assert "= 2^-149" in text


def test_html_inherits_colours_and_escapes() -> None:
    page = inspect("0.1", [Format("<b>&", 3, 2)])._repr_html_()
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&<" not in page
    assert "currentColor" in page
    assert not re.search(r"(?<![-\w])color:(?!inherit)", page)
    assert 'aria-label="&lt;b&gt;&amp;: sign 0, exponent' in page


@pytest.mark.parametrize("x",
                         [Fraction(0), Fraction(1), Fraction(-3, 8), Fraction(1, 2**149), Fraction(2**127),
                          Fraction(10**30), Fraction(2**90, 1)])  # fmt: skip
def test_decimal_text_is_exact(x: Fraction) -> None:
    assert Fraction(decimal_text(x)) == x


def test_data_is_exact() -> None:
    assert inspect("0.1", "fp16").to_dict() == {
        "given": "0.1",
        "taken_as": "the exact decimal as written, not its nearest float",
        "exact": "1/10",
        "rounding": "rne",
        "formats": [
            {
                "format": "fp16", "code": 0x2E66, "hex": "0x2e66", "bits": "0 01011 1001100110", "class": "normal",
                "value": "0.0999755859375", "fraction": "819/8192", "error": "-1/40960", "relative_error": "-1/4096",
                "ulp": "1/16384", "error_ulp": "-2/5", "below": "0.09991455078125", "above": "0.10003662109375",
                "flags": ["inexact"], "problem": "",
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize("value", ["1e3000", "1e-3000", "0x1p-3000", "9" * 240 + "e-3000", Fraction(3**6900, 2**10990)])
def test_the_largest_and_smallest_that_are_allowed(value: object) -> None:
    seen = inspect(value, [*TABLE, *ODD_ONES])
    assert len(str(seen)) > 1000
    assert len(json.dumps(seen.to_dict())) > 1000


def test_numerals() -> None:
    assert [binary_text(Fraction(x)) for x in (0, 448, 3)] == ["0", "448 = 7·2^6", "3"]
    assert [short(Fraction(1, 3)), short(Fraction(10) ** 50), short(Fraction(-1, 10**9), 3)] == [
        "0.333333",
        "1e+50",
        "-1e-9",
    ]
    assert [short(Fraction(x)) for x in (100, 0, 123456789)] == ["100", "0", "1.23457e+8"]


def test_custom_records_and_their_codes() -> None:
    mine = Format("mine", 3, 1)
    seen = inspect("mine:0x9", ["fp16", mine])
    assert seen.given.value.value == seen.rows[0].value == seen.rows[1].value
    assert seen.rows[1].code == 9
    assert (
        row("-1", Format("no_sign", 3, 1, signed=False, specials=Specials.NONE)).problem
        == "no_sign has no sign and no NaN to say so"
    )


# --- messages -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "text"),
    [(("0,1",),
      "fplab.inspect('0,1'): cannot read '0,1' as a value; allowed: a number; a decimal text such as \"0.1\""),
     (("0b1",), "cannot read '0b1' as a value"),
     (("",), "cannot read '' as a value"),
     (("0x",), "cannot read '0x' as a value"),
     (("1/0",), "'1/0' divides by zero"),
     (("1e3001",), "the exponent of '1e3001' is beyond ±3000"),
     (("0x1p99999999999",), "is beyond ±3000"),
     (("9" * 251,), "a text of 251 characters is too long; allowed: 250"),
     ((10**5000,), "at most 11000 bits"),
     ((True,), "cannot inspect bool"),
     ((None,), "cannot inspect NoneType"),
     ((1j,), "cannot inspect complex"),
     ((np.zeros(2),), "fplab.inspect(float64[2]): cannot inspect ndarray"),
     (("fp17:0x1",), "unknown format 'fp17'. Allowed: fp64, fp32"),
     (("fp16:0x10000",), "0x10000 is not a code of fp16, which has 16 bits; allowed: 0 to 0xffff."),
     (("fp16:-1",), "-1 is not a code of fp16"),
     (("fp16:zz",), "cannot read 'zz' as a code of fp16; allowed: \"fp16:0x...\" in hexadecimal"),
     ((1, "fp15"), "fplab.inspect(1, 'fp15'): unknown format 'fp15'"),
     ((1, []), "no format was given"),
     ((1, "fp16", "stochastic"), "a stochastic rounding has two answers"),
     ((1, "fp16", "up"), "unknown rounding 'up'. Allowed: rne, rna"),
     ((1, "e4m3", "rne", "inf"), "overflow='inf' is impossible: e4m3 has no infinity. Allowed: saturate, nan.")],
)  # fmt: skip
def test_messages(args: tuple, text: str) -> None:
    with pytest.raises(LabError) as caught:
        inspect(*args)
    assert text in str(caught.value)
    assert str(caught.value).startswith("fplab.inspect(")


# --- integers and codebooks -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("scale", [1.0, 0.05, 3.0])
@pytest.mark.parametrize("value", ["0.1", "-2", "0", "1e9"])
def test_integers_and_codebooks_as_the_bit_editor_has_them(name: str, scale: float, value: str) -> None:
    one, seen = encodings.get(name), row(value, name, scale=scale)
    code = one.nearest(exact.of(Fraction(value)), scale)
    assert (seen.code, seen.stored, seen.scale) == (code, one.value(code, scale), scale)
    assert seen.error == seen.value - Fraction(value)
    assert (seen.ulp, seen.error_ulp, seen.flag_names) == (None, None, ())
    near = [one.neighbour(code, up) for up in (False, True)]
    assert [seen.below, seen.above] == [None if n is None else one.value(n, scale) for n in near]
    text = str(inspect(value, name.upper(), scale=scale))
    assert f"{seen.hex}  {one.kind(code)}\n" in text
    assert f"scale    {scale:g}" in text
    assert ("absolute" in text) == (seen.error != 0)
    assert "ulp" not in text
    data = json.loads(json.dumps(seen.to_dict()))
    assert (data["scale"], data["class"], data["ulp"]) == (scale, one.kind(code).en, None)


def test_integers_stand_beside_formats() -> None:
    seen = inspect("nan", ["int8", "fp16"])
    assert [r.code is None for r in seen.rows] == [True, False]
    assert "int8  int8 has neither NaN nor infinity" in str(seen)
    assert "integer 2" in inspect("0.1", "int8", scale=0.05)._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"formats": "int8", "rounding": "rtz"}, "int8 rounds to nearest and clips; rounding= and overflow= are"),
     ({"formats": "nf4", "overflow": "inf"}, "nf4 rounds to nearest and clips; rounding= and overflow= are"),
     ({"formats": "fp16", "scale": 2.0}, "scale=2.0 changes nothing here; it is for int8, int4, uint8, "),
     ({"formats": "int8", "scale": 0.0}, "scale=0.0 is not possible; allowed: 1e-30 to 1e30."),
     ({"formats": "int8", "scale": math.nan}, "scale=nan is not possible; allowed: 1e-30 to 1e30."),
     ({"formats": "int9"}, "e8m0. Here also: int8, int4, uint8, dynamic_tree, dynamic, nf4.")],
)  # fmt: skip
def test_what_integers_and_codebooks_do_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=re.escape(message)):
        inspect("0.1", **options)
