"""What experiments claim and find, in both languages.

The English stands where it is checked. ``chinese.toml`` holds the Chinese: of titles, questions and claims, and of what
was measured as patterns, whose numbers are carried over and not written twice. What has no Chinese stays English.

>>> claim("schedules", "every GPU case").zh
'每一组 GPU 用例'
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

from ..words import Text, given, mark, say, say_of
from .base import Status

CATALOGUE = Path(__file__).with_name("chinese.toml")
COMMON = "common"  # what the rows of every experiment may say
HEADINGS = (say("experiment"), say("claim"), say("evidence"), say("outcome"))
EVIDENCE = (
    mark("proved"),
    mark("library"),
    mark("measured here"),
    mark("hardware, recorded"),
    mark("hardware, live"),
    mark("CPU stand-in"),
)
STATUS = {
    Status.PASS: say_of("outcome", "pass"),
    Status.FAIL: say_of("outcome", "FAIL"),
    Status.DIFFERS: say_of("outcome", "differs, unexplained"),
    Status.ABSENT: say_of("outcome", "absent"),
}
CASES = (HEADINGS[0], say("case"), *HEADINGS[2:])  # of the table that compares records
ARRAYS = (HEADINGS[0], say("data"), *HEADINGS[2:])  # of the table that compares figures' data
NO_CLAIMS = say("no claims")
COUNTED = say("{n} claim{s}: {ended}{apart}")
ENDED = say("{n} {status}")
STOOD_IN = say(" ({n} of the passes are a CPU stand-in and no evidence about a GPU)")
FAILURE = say("{status} {experiment}: {claim} [{evidence}]: {found}")
TIME, COMMA = say("time: {took}"), say(", ")
TOOK = say("{name} {seconds:.1f} s{budget}")
OF_BUDGET = say(" of {seconds:g} s")
OVER = say("over the time that they are meant to take: {names}")
COMPILING = say("and once, compiling kernels {seconds:.1f} s")
FILES = say("{n} files in {folder}")
ABOUT = say("{claims} claims, {cases} GPU cases, at most {seconds:g} s")
HOW_TO_RUN = say("fplab run runs them all, fplab run NAME one of them.")


@functools.cache
def catalogue() -> Mapping[str, Any]:
    """The Chinese of every experiment, by its name."""
    return tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))


def _of(experiment: str, what: str) -> Mapping[str, str]:
    """One table of an experiment, with what every experiment may say."""
    return {**catalogue()[COMMON][what], **catalogue().get(experiment, {}).get(what, {})}


def title(experiment: str, english: str) -> Text:
    """The title of an experiment."""
    return given(english, zh=catalogue().get(experiment, {}).get("title", english))


def question(experiment: str, english: str) -> Text:
    """The question that an experiment answers."""
    return given(english, zh=catalogue().get(experiment, {}).get("question", english))


def claim(experiment: str, english: str) -> Text:
    """A claim of an experiment."""
    return given(english, zh=_of(experiment, "claims").get(english, english))


def evidence(english: str) -> Text:
    """What a claim was checked against."""
    return say(english)


def found(experiment: str, english: str) -> Text:
    """What was measured; English as a whole where a part of it, between semicolons, has no Chinese."""
    parts = [_part(experiment, part) for part in english.split("; ")]
    return given(english, zh="；".join(part for part in parts if part) if all(parts) else english)


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
