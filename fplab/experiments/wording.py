"""What experiments claim and find, in both languages.

The English stands where it is checked. ``chinese.toml`` holds the Chinese: of titles, questions and claims, and of what
was measured as patterns, whose numbers are carried over and not written twice. What has no Chinese stays English.

>>> claim("schedules", "the 16-bit sums are torch's").zh
'16 位的和与 torch 的相同'
>>> found("schedules", "3 results, every bit").zh
'3 个结果，逐位相同'
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..language import Text
from .base import Status

CATALOGUE = Path(__file__).with_name("chinese.toml")
COMMON = "common"  # what the rows of every experiment may say
HEADINGS = (Text("experiment", "实验"), Text("claim", "论断"), Text("evidence", "证据"), Text("outcome", "结果"))
EVIDENCE = {
    "proved": "已证明",
    "library": "程序库",
    "measured here": "本处实测",
    "hardware, recorded": "硬件，记录",
    "hardware, live": "硬件，本机",
    "CPU stand-in": "CPU 代替",
}
STATUS = {
    Status.PASS: Text(Status.PASS.value, "通过"),
    Status.FAIL: Text(Status.FAIL.value, "不通过"),
    Status.DIFFERS: Text(Status.DIFFERS.value, "不同且无解释"),
    Status.ABSENT: Text(Status.ABSENT.value, "暂缺"),
}
CASES = (HEADINGS[0], Text("case", "用例"), *HEADINGS[2:])  # of the table that compares records
ARRAYS = (HEADINGS[0], Text("data", "数据"), *HEADINGS[2:])  # of the table that compares figures' data
NOTHING, NO_CLAIMS = Text("", ""), Text("no claims", "没有论断")
COUNTED = Text("{n} claim{s}: {ended}{apart}", "{n} 条论断：{ended}{apart}")
ENDED = Text("{n} {status}", "{n} 条{status}")
STOOD_IN = Text(
    " ({n} of the passes are a CPU stand-in and no evidence about a GPU)",
    "（其中 {n} 条通过是由 CPU 代替的，不是关于 GPU 的证据）",
)
FAILURE = Text(
    "{status} {experiment}: {claim} [{evidence}]: {found}", "{status} {experiment}：{claim} [{evidence}]：{found}"
)
TIME, COMMA = Text("time: {took}", "用时：{took}"), Text(", ", "，")
TOOK = Text("{name} {seconds:.1f} s{budget}", "{name} {seconds:.1f} 秒{budget}")
OF_BUDGET = Text(" of {seconds:g} s", "（限 {seconds:g} 秒）")
OVER = Text("over the time that they are meant to take: {names}", "超出规定时间：{names}")
COMPILING = Text("and once, compiling kernels {seconds:.1f} s", "另有一次性的核函数编译 {seconds:.1f} 秒")
FILES = Text("{n} files in {folder}", "{n} 个文件在 {folder} 中")
ABOUT = Text(
    "{claims} claims, {cases} GPU cases, at most {seconds:g} s",
    "{claims} 条论断，{cases} 组 GPU 用例，至多 {seconds:g} 秒",
)
HOW_TO_RUN = Text(
    "fplab run runs them all, fplab run NAME one of them.", "fplab run 运行全部实验，fplab run NAME 运行其中一个。"
)


@functools.cache
def catalogue() -> Mapping[str, Any]:
    """The Chinese of every experiment, by its name."""
    return tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))


def _of(experiment: str, what: str) -> Mapping[str, str]:
    """One table of an experiment, with what every experiment may say."""
    return {**catalogue()[COMMON][what], **catalogue().get(experiment, {}).get(what, {})}


def title(experiment: str, english: str) -> Text:
    """The title of an experiment."""
    return Text(english, catalogue().get(experiment, {}).get("title", english))


def question(experiment: str, english: str) -> Text:
    """The question that an experiment answers."""
    return Text(english, catalogue().get(experiment, {}).get("question", english))


def claim(experiment: str, english: str) -> Text:
    """A claim of an experiment."""
    return Text(english, _of(experiment, "claims").get(english, english))


def evidence(english: str) -> Text:
    """What a claim was checked against."""
    return Text(english, EVIDENCE.get(english, english))


def found(experiment: str, english: str) -> Text:
    """What was measured; English as a whole where a part of it, between semicolons, has no Chinese."""
    parts = [_part(experiment, part) for part in english.split("; ")]
    return Text(english, "；".join(part for part in parts if part) if all(parts) else english)


def _part(experiment: str, english: str) -> str | None:
    for pattern, chinese in _patterns(experiment):
        if matched := pattern.fullmatch(english):
            return chinese.format(*matched.groups())
    return None


@functools.cache
def _patterns(experiment: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """What may be measured, the longest patterns first: a shorter one could match what they say, too."""
    rows = sorted(_of(experiment, "found").items(), key=lambda row: -len(row[0]))
    return tuple((_pattern(english), chinese) for english, chinese in rows)


def _pattern(english: str) -> re.Pattern[str]:
    """Where ``{}`` stands for a number or a word, ``{...}`` for several."""
    parts = re.split(r"(\{\}|\{\.\.\.\})", english)
    return re.compile("".join({"{}": r"(\S+)", "{...}": "(.+)"}.get(part) or re.escape(part) for part in parts))
