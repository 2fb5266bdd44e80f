"""Messages and their catalogues: compiled as they are, asked for by the source, the numbers carried over."""

import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fplab
from fplab.errors import LabError
from fplab.language import speaking
from fplab.words import REFUSAL, Given, Message, catalogues, given, joined, messages, say, say_of, translated, verbatim
from fplab.words.patterns import FIELD, refused

LANGUAGES = catalogues.languages()


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_is_of_its_source(language):
    assert not catalogues.stale(language), f"{language}.mo is not of {language}.po: python -m fplab.words compiles it"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_translation_is_asked_for_and_fills_what_its_message_fills(language):
    assert catalogues.problems(language) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_waits_for_a_translation_is_named(language):
    """It is said in English until then: whoever adds a message needs no other language."""
    if waiting := list(catalogues.missing(language)):
        place, message = waiting[0]
        pytest.skip(f"{len(waiting)} messages have no {language} yet, the first in {place}: {message!r}")


def test_a_stale_catalogue_is_found_and_compiling_mends_it(tmp_path, monkeypatch):
    shutil.copy(catalogues.FOLDER / "zh.po", tmp_path)
    monkeypatch.setattr(catalogues, "FOLDER", tmp_path)
    assert catalogues.stale("zh")
    catalogues.compile_all()
    assert not catalogues.stale("zh")
    with (tmp_path / "zh.po").open("a", encoding="utf-8") as file:
        file.write('\nmsgid "{n} made up"\nmsgstr "{m}"\n')
    assert catalogues.stale("zh")
    monkeypatch.setattr(
        catalogues, "collected", lambda: {("", "{n} made up"): "here.py:1", ("", "it waits"): "here.py:2"}
    )
    problems = catalogues.problems("zh")
    assert "zh: '{n} made up' has no ['m']" in problems
    assert any("nothing says" in problem for problem in problems)
    assert ("here.py:2", "it waits") in list(catalogues.missing("zh"))


def test_a_catalogue_compiles_to_the_same_bytes_at_any_time(tmp_path, monkeypatch):
    """Two builds of one source, a minute apart."""
    shutil.copy(catalogues.FOLDER / "zh.po", tmp_path)
    read, compiled = catalogues.read, []
    for year in (1999, 2026):

        def at(source: Path, year: int = year):
            catalog = read(source)
            catalog.creation_date = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)
            return catalog

        monkeypatch.setattr(catalogues, "read", at)
        compiled.append(catalogues.compile_one(tmp_path / "zh.po").read_bytes())
    assert compiled[0] == compiled[1]


def test_a_message_is_filled_in_the_language_that_is_chosen():
    message = say("{bits} bits", bits=8)
    assert (str(message), message.zh, f"{message:>8}") == ("8 bits", "8 位", "  8 bits")
    with speaking("zh"):
        assert str(message) == "8 位"
    assert say("{a} of {b}").fill(a=say("sum"), b=2).zh == "和 of 2"
    assert say_of("nowhere", "sum").zh == "sum"
    assert say("").zh == ""
    assert say("no such message").zh == translated("no such message", "", "zh") == "no such message"
    assert say("{open").en == "{open"


def test_texts_that_bring_their_translations():
    both = given("{a} of {b}", zh="{b} 的 {a}")
    assert both.fill(a=given("one", zh="一"), b=2) == given("one of 2", zh="2 的 一")
    assert verbatim("FP16").zh == "FP16"
    assert isinstance(both, Given)
    assert joined([say("sum"), "fp16"], say(": ")).zh == "和：fp16"
    assert joined([say("{n} bits"), "x"]).fill(n=8).en == "8 bitsx"


def test_an_uncompiled_language_is_said_in_english(tmp_path, monkeypatch):
    import fplab.words as words

    monkeypatch.setattr(words, "FOLDER", tmp_path)
    words.catalogue.cache_clear()
    try:
        assert Message("sum").zh == "sum"
    finally:
        words.catalogue.cache_clear()


def test_every_refusal_finds_its_own_translation():
    """Whatever is filled in: no other message is of the same build and found before it."""
    for message, chinese in messages(REFUSAL, "zh").items():
        values = {
            name: f"<{i}>" if name != "n" else "7" for i, name in enumerate(dict.fromkeys(FIELD.findall(message)))
        }
        said, wanted = (FIELD.sub(lambda field, v=values: v[field[1]], text) for text in (message, chinese))
        with speaking("zh"):
            assert refused(said) == wanted
        assert refused(said) == said


REFUSED = {  # a call, and what is said of it after the call itself
    "a sentence with a part": (lambda: fplab.dot([1], [1], "fp16", accumulate="fp64"),
        "accumulate='fp64' 有 64 位；可用：不超过 32 位的格式；accumulate=\"exact\" 与 store=\"fp64\" 给出精确的和"),
    "one inside another": (lambda: fplab.Format("x", 12, 3),
        "exponent_bits=12 不可用；可用：1 到 11（承载这些值的 float64 有 11 位）。"),
    "a name": (lambda: fplab.quantize(1, "fp17"), "未知的格式 'fp17'。可用：fp64, "),
}  # fmt: skip


@pytest.mark.parametrize(("call", "chinese"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_said_in_the_language_of_whoever_asks(call, chinese):
    with speaking("zh"), pytest.raises(LabError) as caught:
        call()
    assert chinese in str(caught.value)
    with pytest.raises(LabError) as caught:
        call()
    assert not re.search("[\u4e00-\u9fff]", str(caught.value))


@pytest.mark.parametrize(("hidden", "said"), [("", "格式图谱"), ("babel", "zh is not compiled (")])
def test_a_catalogue_is_compiled_when_it_is_first_asked_for(tmp_path: Path, hidden: str, said: str) -> None:
    """Or the lack is said, once, where babel is missing."""
    shutil.copytree(
        Path(fplab.__file__).parent, tmp_path / "fplab", ignore=shutil.ignore_patterns("__pycache__", "*.mo")
    )
    code = "import sys; sys.modules.update({name: None for name in sys.argv[1:]}); from fplab.words import say"
    code += "; print(say('The atlas of formats').zh, say('sum').zh)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    words = [sys.executable, "-c", code, *hidden.split()]
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=True)
    assert (ended.stdout + ended.stderr).count(said) == 1
    assert (tmp_path / "fplab/words/zh.mo").exists() == (not hidden)
