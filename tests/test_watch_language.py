"""A watch's reports in both languages: every word, the same numbers, columns that line up, a figure."""

import math
import re
from typing import Any

import pytest
from figure_words import words_left
from matplotlib.text import Text as Drawn
from watched import run

from fplab import columns
from fplab.draw import lettering
from fplab.language import speaking
from fplab.nn.diagnose.nonfinite import NonFinite
from fplab.nn.diagnose.run_comparison import TensorName, compare
from fplab.nn.diagnose.watch_report import MOST_ROWS
from fplab.training.loop import one_thread

CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Names of formats, layers, parameters, optimizers and calls, NaN and infinity, units; the English beside a term.
NAMES = (
    r"report\.table\(\)|Sequential|momentum_buffer|exp_avg|SGD|NaN|FP32|BF16|fp16|bf16|e4m3|e5m2|fp32|binade|"
    r"conv|linear|relu|pool|flatten|weight|inf|nan|ulp|x2\^"
)


def left_over(text: str) -> str:
    """The English letters of a text that are no name."""
    rest = re.sub(NAMES, "", re.sub(r"e[+-]\d", "", text))
    return "".join(re.findall("[a-zA-Z]+", rest))


@pytest.fixture(scope="module")
def seen() -> Any:
    with one_thread():
        return run(10, every=2)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_report_fits_100_columns_and_loses_no_word(seen: Any, language: str) -> None:
    with speaking(language):
        report = seen.report()
        text, wide = str(report), report.table(MOST_ROWS)
    assert max(map(columns.width_of, wide.splitlines())) > 100 >= max(map(columns.width_of, text.splitlines()))
    narrow = text.split("\n\n")[2]
    assert sorted(re.sub(r"[\s-]", "", narrow)) == sorted(re.sub(r"[\s-]", "", wide))


def test_a_report_speaks_the_language_that_is_chosen(seen: Any) -> None:
    report = seen.report()
    with speaking("zh"):
        chinese, table = str(report), report.table()
    english = str(report)
    assert not CHINESE.search(english)
    assert left_over(chinese) == ""
    assert chinese.startswith("Sequential，SGD：10 步，统计了其中 5 步\n\n非有限值    没有：")
    assert "\n损失缩放    fp16：" in chinese
    for line in table.splitlines()[:-1]:  # under each heading its column
        assert columns.width_of(line) <= columns.width_of(table.splitlines()[1])
    heads, rule = table.splitlines()[:2]
    starts = [match.start() for match in re.finditer("-+", rule)]
    for name, start in zip(re.split(r"\s\s+", heads), starts, strict=True):
        assert columns.width_of(heads[: heads.index(name)]) == start


@pytest.mark.parametrize("options", [{}, {"lost": 0.99}, {"tolerance": 0.5}])
def test_the_numbers_are_the_same_in_both(seen: Any, options: dict[str, float]) -> None:
    report = seen.report(**options)
    with speaking("zh"):
        chinese = (report.headline, *report.notes, *report.advice, *report.table(8).splitlines())
    english = (report.headline, *report.notes, *report.advice, *report.table(8).splitlines())
    for one, other in zip(english, chinese, strict=True):
        numbers = r"[<>]?[\d.,]*\d%?"
        assert sorted(re.findall(numbers, one)) == sorted(re.findall(numbers, other)), (one, other)


@pytest.mark.skipif(lettering.chinese() is None, reason="no font here has Chinese: a figure stays English")
def test_a_figure_is_lettered_in_the_language_that_is_chosen(seen: Any) -> None:
    with speaking("zh"):
        figure = seen.report().figure()
        assert words_left(figure) == []
        assert "权重" in {artist.get_text() for artist in figure.findobj(Drawn)}
    texts = [artist.get_text() for artist in seen.report().figure().findobj(Drawn)]
    assert len(texts) > 50
    assert not any(map(CHINESE.search, texts))


def event(kind: str, tensor: str = "conv1.weight", **fields: Any) -> NonFinite:
    made = NonFinite(3, kind, "conv1", tensor, 1_200, 3, 5_000, 0, (2, 65504.0), 2.0**16)
    return made._replace(**fields)


@pytest.mark.parametrize(
    ("broken", "what", "cause"),
    [
        (event("activations"), "weight 的激活值：5,000 个值中有 1,200 个无穷大、3 个 NaN；直到", "超过了所在格式"),
        (event("activations", infinite=0), "5,000 个值中有 3 个 NaN；", "这个 NaN 之前没有出现过无穷大"),
        (event("activation gradients", skipped=True), "的激活梯度：", "损失缩放 2^16 在这里太大"),
        (event("weight gradients", scale=1.0, before=None), "个 NaN", "前向传播是有限的"),
        (event("input", "the model's input"), "第 3 步，模型的输入：", "数据里本来就有"),
        (event("input", "the input of conv1", elsewhere=True), "第 3 步，conv1 的输入：", "它不是任何模块的输出"),
        (event("loss", "the scaled loss"), "第 3 步，缩放后的损失：", "损失承受不住缩放 2^16"),
        (event("weights", elsewhere=True), "的权重：", "不是优化器造成的"),
        (event("state exp_avg", infinite=math.prod((7, 3))), "的状态 exp_avg：", "优化器状态超出"),
    ],
)  # fmt: skip
def test_what_broke_in_chinese(broken: NonFinite, what: str, cause: str) -> None:
    with speaking("zh"):
        assert what in str(broken)
        assert broken.cause.startswith(cause)
        assert left_over(str(broken) + broken.cause) == ""
    assert not CHINESE.search(str(broken) + broken.cause)
    assert str(broken) == broken.text.en


def test_two_runs_compared_in_chinese(seen: Any) -> None:
    with one_thread():
        other = run(4, lr=0.06)
    same, apart, never = compare(seen, seen), compare(seen, other), compare(seen, other, ulps=1e30)
    with speaking("zh"):
        assert str(same).startswith("每一位都相同：10 步（0 到 9），每步 ")
        assert "\n最先不同的位：第 0 步，conv1.weight 的更新，" in str(apart)
        assert "；此后一直相距 fp16 的 8 ulp 以上（那里为 " in str(apart)
        assert "从此分开：没有；每个张量都会回到 fp16 的 1e+30 ulp 之内" in str(never)
        assert str(TensorName("weights", "conv1.weight", 1)) == "conv1.weight 的权重，第 2 次调用"
        assert left_over(str(apart) + str(never)) == ""
    assert not CHINESE.search(str(apart))


def test_without_a_candidate_of_sixteen_bits_nothing_is_said_of_what_stays_wide() -> None:
    with one_thread():
        report = run(2, formats=("e4m3",)).report()
    assert not any(line.startswith(("WEIGHTS", "STAYS")) for line in report.advice)
