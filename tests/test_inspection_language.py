"""``fplab.inspect`` in Chinese: every word, columns of a terminal, both languages in a notebook, data in English."""

import html
import re
import string
from fractions import Fraction

import numpy as np
import pytest

from fplab import cli, columns, exact, language
from fplab.draw.strip import FIELD_NAMES
from fplab.formats import TABLE, Format, Rounding, Specials
from fplab.inspection import inspect
from fplab.inspection.rows import CLASSES, classify
from fplab.inspection.text import FLAGS, ROUNDINGS, WIDTH, facts
from fplab.language import speaking
from fplab.numerals import near_text, number_text
from fplab.widgets.bits import exact_text

ODD_ONES = [
    Format("no_sign", 3, 1, signed=False, specials=Specials.NONE),
    Format("no_zero", 3, 2, zero=False, specials=Specials.NONE),
    Format("tiny", 1, 1, specials=Specials.NONE),
    Format("long" * 10, 5, 10),
]
FORMATS = [*TABLE, *ODD_ONES]
GIVEN = ["0.1", 0.1, np.float32(0.1), 7, Fraction(22, 7), "1/3", "0x1.8p3", "fp16:0x7c01", "fp64:1", "fp32:0x00400000",
         "-1e300", "1e-3000", "nan", "snan", "-inf", "-0", "-1", "0", "9" * 200]  # fmt: skip
# What is no English word: names of formats and types, NaN and infinity, the unit ulp, codes and powers of ten.
NAMES = sorted([*(f.name for f in FORMATS), "float64", "float32", "ulp", "NaN", "nan", "inf"], key=len, reverse=True)
SYMBOLS = re.compile("|".join([r"0x[0-9a-f]+(\.[0-9a-f]+p\d+)?", r"\de[+-]?\d", *map(re.escape, NAMES)]))
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def left_over(text: str, given: object) -> str:
    """The English letters of a text that are neither a name, a number nor what the reader typed himself."""
    rest = SYMBOLS.sub("", text.removeprefix(str(given)))
    return "".join(c for c in rest if c in string.ascii_letters)


def test_no_class_flag_rounding_or_field_lacks_a_word() -> None:
    classes = {classify(exact.decode(c, f), f) for f in [*TABLE, *ODD_ONES] if f.bits <= 8 for c in range(1 << f.bits)}
    assert set(CLASSES) == classes | {"quiet NaN", "signalling NaN"}
    assert list(FLAGS) == list(exact.FLAG_NAMES.values())
    assert set(ROUNDINGS) == set(Rounding) - {Rounding.STOCHASTIC}
    for table in (CLASSES, FLAGS, FIELD_NAMES):
        assert [text.en for text in table.values()] == list(table)


def test_one_tenth_in_chinese() -> None:
    seen = inspect("0.1", "fp16")
    with speaking("zh"):
        assert (
            str(seen)
            == repr(seen)
            == (
                "0.1 = 1/10：按字面精确取值的十进制数，不是最接近它的浮点数\n"
                "就近舍入，恰在正中时取偶\n\n"
                "fp16  0 01011 1001100110  0x2e66  正规数\n"
                "      值    0.0999755859375 = 819/8192 = 819·2^-13\n"
                "      误差  -0.4 ulp，绝对误差 -0.0000244141，相对误差 -0.000244\n"
                "      下邻  0.09991455078125\n"
                "      上邻  0.10003662109375\n"
                "      标志  不精确\n\n"
                "ulp：存下的值所在的指数区间内，该格式相邻两数的间距。"
            )
        )


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_no_english_is_left_in_chinese_and_no_chinese_in_english(given: object, rounding: Rounding) -> None:
    seen = inspect(given, FORMATS, rounding)
    with speaking("zh"):
        assert left_over(str(seen), given) == ""
    with speaking("en"):
        assert not CHINESE.search(str(seen))
        assert "：" not in str(seen)


@pytest.mark.parametrize("tongue", ["en", "zh"])
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_columns_line_up_and_fit(given: object, tongue: str) -> None:
    seen = inspect(given, FORMATS)
    with speaking(tongue):
        blocks = str(seen).split("\n\n")[1:-1]
        labels = {label for row in seen.rows if row.code is not None for label, _ in facts(row)}
    assert len(blocks) == len(FORMATS)
    indent = max(len(f.name) for f in FORMATS) + 2
    starts = set()
    for line in (line for block in blocks for line in block.splitlines()[1:]):
        assert line[:indent].isspace()
        assert columns.width_of(line) <= WIDTH
        label = re.match(r"\s*(\S+)\s+(?=\S)", line)
        if label and label[1] in labels:
            starts.add(columns.width_of(label[0]))
        elif "0x" not in line:  # a line that goes on
            starts.add(columns.width_of(line) - columns.width_of(line.lstrip()))
    assert starts == {indent + (7 if tongue == "en" else 6)}


def test_names_of_formats_may_be_chinese() -> None:
    seen = inspect("1", ["fp16", Format("半精度", 5, 10)])
    with speaking("zh"):
        first, second = (line for line in str(seen).splitlines() if "0x" in line)
    assert columns.width_of(first[: first.index("0x")]) == columns.width_of(second[: second.index("0x")])
    assert first.startswith("fp16    0 01111")
    assert second.startswith("半精度  0 01111")


@pytest.mark.parametrize("letters", range(1, 12))
def test_the_class_moves_to_a_line_of_its_own_where_its_columns_do_not_fit(letters: int) -> None:
    with speaking("zh"):
        first, second = str(inspect("1", Format("d" * letters, 11, 52))).split("\n\n")[1].splitlines()[:2]
    together = letters + 2 + len("0 11111111111 ") + 52 + 2 + 18 + 2 + columns.width_of("正规数")
    assert first.endswith("正规数") == (together <= WIDTH)
    assert second.endswith("正规数") == (together > WIDTH)
    assert max(map(columns.width_of, (first, second))) <= WIDTH


# --- in a notebook --------------------------------------------------------------------------------------------------
def halves(page: str) -> tuple[str, str]:
    """The English and the Chinese part of a fragment."""
    match = re.fullmatch(r'<div class="fplab-en">(.*)</div><div class="fplab-zh" lang="zh" [^>]*>(.*)</div>', page)
    assert match
    return match[1], match[2]


def words_of(part: str) -> str:
    """What a reader or a screen reader gets of a fragment."""
    spoken = re.findall('aria-label="([^"]*)"', part)
    return html.unescape(" ".join([*spoken, re.sub("<[^>]*>", " ", part)]))


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_a_notebook_holds_both_languages(given: object) -> None:
    seen = inspect(given, FORMATS)
    english, chinese = halves(seen._repr_html_())
    assert not CHINESE.search(english)
    typed = f"<div><b>{seen.given.text}"
    assert typed in english
    assert typed in chinese
    assert left_over(words_of(chinese.replace(typed, "", 1)), "") == ""
    for part in (english, chinese):
        for tag in ("div", "svg", "span", "b", "text"):
            assert len(re.findall(rf"<{tag}[ >]", part)) == part.count(f"</{tag}>")
    assert len(re.findall("<rect", english)) == len(re.findall("<rect", chinese))


def test_the_html_whatever_language_was_chosen() -> None:
    seen = inspect("0.1", "fp16")
    with speaking("zh"):
        chosen = seen._repr_html_()
    assert chosen == seen._repr_html_()
    english, chinese = halves(chosen)
    assert 'aria-label="fp16: sign 0, exponent 01011, fraction 1001100110"' in english
    assert 'aria-label="fp16：符号 0，指数 01011，尾数 1001100110"' in chinese
    assert "<span>normal</span>" in english
    assert "<span>正规数</span>" in chinese


def test_a_field_is_named_as_far_as_it_has_room() -> None:
    names = r'font-size="11"[^>]*>([^<]*)<'
    english, chinese = halves(inspect("1", "e2m1")._repr_html_())
    assert re.findall(names, english) == ["s", "expo", "f"]
    assert re.findall(names, chinese) == ["符号", "指数", "尾数"]


# --- data and messages ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_data_does_not_follow_the_language(given: object) -> None:
    seen = inspect(given, FORMATS)
    with speaking("en"):
        english = seen.to_dict()
    with speaking("zh"):
        assert inspect(given, FORMATS).to_dict() == english
        assert [(r.class_name, r.problem) for r in seen.rows] == [
            (one["class"], one["problem"]) for one in english["formats"]
        ]
    assert not CHINESE.search(str(english))


@pytest.mark.parametrize(("chosen", "line"), [("zh", "标志  不精确"), ("en", "flags  inexact"), ("", "flags  inexact")])
def test_the_command_follows_the_environment(
    chosen: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(language, "_chosen", [])
    monkeypatch.setenv("FPLAB_LANG", chosen)
    assert cli.main(["inspect", "0.1", "--format", "fp16"]) == 0
    assert line in capsys.readouterr().out


def test_the_widgets_say_the_same_words() -> None:
    signalling = exact.Exact(False, kind="snan")
    with speaking("zh"):
        assert exact_text(signalling) == near_text(signalling) == "信号 NaN"
        assert near_text(None) == "无"
        assert number_text(signalling) == "signalling NaN"  # data
