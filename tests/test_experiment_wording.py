"""The Chinese of the experiments: the numbers of the English, tables that line up."""

import html
import re
from pathlib import Path

import pytest

from fplab import columns, course, experiments, language
from fplab.experiments import runner, table
from fplab.experiments.outcomes import Evidence, Status, absent, failed, passed
from fplab.experiments.table import STAND_IN, Row
from fplab.language import speaking
from fplab.words import CLAUSE, joined, say

CHINESE = re.compile(r"[\u4e00-\u9fff]")
MARKS = re.compile(r"[,:;] ?[\u4e00-\u9fff]|[\u4e00-\u9fff][,:;(]")  # half-width marks beside Chinese


def numbers(text: str) -> list[str]:
    """The digits of a text, in order of size: a sentence may turn round in another language."""
    return sorted(re.findall(r"\d[\d,.]*(?<![,.])", re.sub("powers? of two", "2", html.unescape(text))))


@pytest.mark.parametrize("name", experiments.NAMES)
def test_what_has_chinese_has_the_numbers_of_the_english(name: str) -> None:
    experiment = experiments.load(name)
    for text in (experiment.title, experiment.question, *(claim.text for claim in experiment.claims)):
        if CHINESE.search(text.zh):
            assert not text.zh.endswith("。")
            assert set(numbers(text.en)) == set(numbers(text.zh)), text


def test_what_every_row_may_say_has_its_chinese() -> None:
    assert set(table.STATUS) == set(Status)
    evidence = [say(one) for one in (*(e.value for e in Evidence), STAND_IN)]
    for text in (*evidence, *table.HEADINGS, *table.CASES, *table.ARRAYS, *table.STATUS.values(), runner.CLAIM):
        assert CHINESE.search(text.zh)


@pytest.mark.parametrize("name", ["formats", "schedules"])
def test_the_evidence_that_the_course_shows_is_there_in_both_languages(name: str) -> None:
    shown = course.evidence(name)
    for row in shown.rows:
        for text in (texts := row.texts()):
            assert CHINESE.search(text.zh) or not re.search("[a-z]{2}", text.en), text
            assert numbers(text.en) == numbers(text.zh), text
            assert not CHINESE.search(text.en)
        data = row.as_json()
        assert [text.en for text in texts] == [data[key] for key in ("claim", "evidence", "outcome", "detail")]
    english, chinese = shown._repr_html_().split('<div class="fplab-zh"')
    assert not CHINESE.search(english)
    assert all(f">{head.zh}</th>" in chinese for head in table.HEADINGS[1:])
    assert not re.search(
        r">(claim|evidence|outcome|proved|library|measured here|hardware, live)<|> ?[✓✗–] (pass|FAIL|absent)", chinese
    )
    assert numbers(re.sub("<[^>]*>", " ", english)) == numbers(re.sub("<[^>]*>|^[^>]*>", " ", chinese))


ADDED = say("{n:,} sums, at most {ratio:.2g} of the bound", n=48, ratio=0.5)
ALIKE = say("{n:,} results, every bit", n=3)
LACKING = say("no record for this hardware ({n} cases to record)", n=8)
ROWS = [
    Row("schedules", say("the 16-bit sums are torch's"), "library", passed(ADDED)),
    Row("schedules", "said by nobody yet", STAND_IN, passed(joined([ALIKE, "more"], CLAUSE))),
    Row("formats", runner.CLAIM, "hardware, recorded", absent(LACKING)),
    Row("formats", runner.CLAIM, "hardware, live", failed("1 of 9 differ; first at 3: 0101 (1.25) against 0100 (1)")),
]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_in_chinese_lines_up(width: int) -> None:
    with speaking("zh"):
        lines = table.render(ROWS, width).splitlines()
    assert max(map(columns.width_of, lines)) <= width
    heads = re.split(r"\s\s+", lines[0])
    assert heads == ["实验", "论断", "证据", "结果"]
    start = columns.width_of(lines[0][: lines[0].index("证据")])
    for line in lines:
        for evidence in ("程序库  ", "CPU 代替  ", "硬件，记录  ", "硬件，本机  "):
            if evidence in line:
                assert columns.width_of(line[: line.index(evidence)]) == start
    flat = "".join("".join(lines).split())
    assert "48个和，至多为上界的0.5" in flat
    assert "3个结果，逐位相同；more" in flat
    assert "4条论断：2条通过、1条不通过、1条暂缺（其中1条通过是由CPU代替的，不是关于GPU的证据）" in flat
    assert flat.endswith(
        "不通过formats：GPU用例给出的位与GPU完全相同[硬件，本机]：1of9differ;firstat3:0101(1.25)against0100(1)"
    )


def test_data_stays_english() -> None:
    with speaking("zh"):
        assert ROWS[2].as_json()["outcome"] == "absent"
        assert table.tally(ROWS[:1]).en == "1 claim: 1 pass"
        assert table.counts([]) == "没有论断"


def test_lines_break_where_chinese_may() -> None:
    assert columns.wrapped("甲（乙）丙，丁", 4) == ["甲", "（乙）", "丙，", "丁"]
    assert columns.wrapped("在 H100 上，k 越多", 8) == ["在 H100", "上，k 越", "多"]
    assert columns.wrapped("一二三四五六", 8, indent="  ") == ["一二三四", "  五六"]
    text = "两次 round 之后，和是 1.25 + 2^-24。" * 3
    for width in range(10, 50):
        lines = columns.wrapped(text, width)
        assert "".join("".join(lines).split()) == "".join(text.split())
        assert not any(line[0] in columns.CLOSING or line[-1] in columns.OPENING for line in lines)


def test_the_times_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from fplab import cli

    monkeypatch.setenv("COLUMNS", "100")
    done = [
        runner.Finished("schedules", (), (Path("a.svg"), Path("b.svg")), 2.5, 6.0, 0.3),
        runner.Finished("formats", (), (), 1.0, None),
    ]
    english = [*cli.times(done, 3.0, 2), *cli.remarks(done)]
    with speaking("zh"):
        chinese = [*cli.times(done, 3.0, 2), *cli.remarks(done)]
    assert english == [
        "seconds of one core: schedules 2.5 s of 6 s, formats 1.0 s, in all 4 s of cores, 3 s by the clock,",
        "      in 2 processes",
        "Compiling kernels, once on a machine, took 0 s of one core.",
    ]
    assert chinese == [
        "单核用时：schedules 2.5 秒（限 6 秒），formats 1.0 秒，各核合计 4 秒，实际经过 3 秒，共 2 个进程",
        "编译核函数（每台机器一次）用了单核 0 秒。",
    ]


def test_the_list_and_a_comparison_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fplab import cli

    monkeypatch.setattr(language, "_chosen", [])
    monkeypatch.setenv("FPLAB_LANG", "zh")
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    for name in experiments.NAMES:
        assert f"{name}: {experiments.load(name).title.zh}" in out
    assert "fplab run 运行全部实验" in out
