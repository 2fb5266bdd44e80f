"""Every exercise: its reference passes, each typical wrong answer fails with its own message, minimally."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import fplab
from fplab.exercises import exercise, names, registry
from fplab.exercises.base import Find, Implement, Predict
from fplab.exercises.checker import boundary_cases, random_cases, smaller_cases

EXERCISES = registry()
MUTANTS = [(name, i) for name, one in EXERCISES.items() for i in range(len(one.mutants))]
FUNCTIONS = [name for name, one in EXERCISES.items() if isinstance(one.task, Implement)]


@pytest.fixture(autouse=True)
def english():
    before = fplab.lang()
    fplab.lang("en")
    yield
    fplab.lang(before)


def reference(name: str):
    task = EXERCISES[name].task
    if isinstance(task, Implement):
        return task.reference
    return task.answer if isinstance(task, Predict) else task.example


@functools.cache
def failing(name: str, i: int):
    """The report on a mutant; its text is made when it is asked for, so in the language of then."""
    return exercise(name).check(EXERCISES[name].mutants[i].answer, remember=False)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_there_are_at_least_thirty_over_all_chapters():
    assert len(EXERCISES) >= 30
    assert {one.chapter.number for one in EXERCISES.values()} == set(range(1, 13))
    assert {one.level for one in EXERCISES.values()} == {1, 2, 3}
    assert {type(one.task) for one in EXERCISES.values()} == {Implement, Predict, Find}


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    report = exercise(name).check(reference(name), remember=False)
    assert report.passed, report
    assert "passed" in str(report)
    assert words(f"Rule: {exercise(name).rule.en}") in words(str(report))
    if name in FUNCTIONS:
        assert report.tried >= 10


@pytest.mark.parametrize(("name", "i"), MUTANTS)
def test_each_mutant_fails_with_its_own_message(name, i):
    one = exercise(name)
    mutant = one.mutants[i]
    report = failing(name, i)
    assert not report.passed
    text = words(str(report))
    assert mutant.shows in text, report
    assert words(one.rule.en) not in text  # often the answer: it comes with the solution, and with the right one
    assert words(one.hint.en) in text
    if not isinstance(one.task, Find):
        assert report.failure.mistake == mutant.says
        assert f"Mistake: {words(mutant.says.en)}" in text
        fplab.lang("zh")
        assert mutant.says.zh in str(report)
    html = report._repr_html_()
    assert "✗" in html
    assert html.count("<div") == html.count("</div>")


@pytest.mark.parametrize("name", EXERCISES)
def test_messages_of_mutants_differ(name):
    one = exercise(name)
    assert len(one.mutants) >= 2
    own = [m.shows if isinstance(one.task, Find) else m.says.en for m in one.mutants]
    assert len(set(own)) == len(own)


@pytest.mark.parametrize(("name", "i"), [(name, i) for name, i in MUTANTS if name in FUNCTIONS])
def test_the_counterexample_is_minimal(name, i):
    """Recomputed here, without the checker: no single step of the shrinker from it fails as well."""
    one = exercise(name)
    task, answer = one.task, one.mutants[i].answer
    case = failing(name, i).failure.values

    def fails(arguments) -> bool:
        def lists(values):
            return [list(v) if isinstance(v, tuple) else v for v in values]

        wanted = task.result.key(task.result.read(task.reference(*lists(arguments))))
        try:
            with np.errstate(all="ignore"):
                return task.result.key(task.result.read(answer(*lists(arguments)))) != wanted
        except Exception:
            return True

    assert fails(case)
    assert not [smaller for smaller in smaller_cases(task, case) if fails(smaller)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_step_of_a_shrinker_is_smaller_and_stays_valid(name):
    task = exercise(name).task
    kinds = tuple(task.arguments.values())
    cases = [*boundary_cases(task)[-5:], *list(random_cases(exercise(name), task))[:10]]
    for case in cases:
        own = tuple(k.size(v) for k, v in zip(kinds, case, strict=True))
        for smaller in smaller_cases(task, case):
            assert task.allows(smaller)
            sizes = tuple(k.size(v) for k, v in zip(kinds, smaller, strict=True))
            assert sizes != own
            assert sum(a > b for a, b in zip(sizes, own, strict=True)) == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_cases_are_the_same_everywhere_and_many(name):
    one = exercise(name)
    first, again = ([*random_cases(one, one.task)] for _ in range(2))
    assert repr(first) == repr(again)
    assert len(set(map(repr, first))) >= 15


@pytest.mark.parametrize("name", EXERCISES)
def test_texts_are_complete_in_both_languages(name):
    one = exercise(name)
    texts = [one.title, one.statement, one.hint, one.rule, one.chapter.title]
    texts += [m.says for m in one.mutants if not isinstance(one.task, Find)]
    texts += [one.task.why] if not isinstance(one.task, Implement) else []
    for text in texts:
        assert text.en.strip()
        assert text.zh.strip()
        assert not re.search(r"[\u4e00-\u9fff]", text.en)
    assert re.search(r"[\u4e00-\u9fff]", one.statement.zh)
    assert name.isidentifier()
    assert name in one.signature
    for shown in (str(one), one._repr_html_(), str(one.solution())):
        assert name in shown


@pytest.mark.parametrize("name", EXERCISES)
def test_showing_an_exercise_does_not_tell_its_answer(name):
    """A console shows ``repr``, a notebook keeps it beside the HTML."""
    one = exercise(name)
    assert repr(one) == str(one)
    for mutant in one.mutants:
        assert not mutant.says.en or mutant.says.en not in repr(one)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_pasted_back_passes(name):
    """What is printed as the solution is an answer, imports that chapters make at their top apart."""
    import math
    from fractions import Fraction

    space = {"math": math, "Fraction": Fraction, "np": np}
    text = str(exercise(name).solution())
    assert "type: ignore" not in text
    exec(text, space)
    assert exercise(name).check(space[name], remember=False).passed


def test_the_smallest_counterexample_is_printed_with_fields():
    import math

    def saturating(x):
        rounded = EXERCISES["quantize_e4m3"].task.reference(x)
        return math.copysign(448.0, x) if math.isnan(rounded) and not math.isnan(x) else rounded

    text = str(fplab.exercises.check("quantize_e4m3", saturating, remember=False))
    assert text.splitlines()[1] == "the smallest input on which it fails:"
    assert "s eeee fff   e4m3" in text
    assert "  expected  NaN" in text
    assert "0 1111 111" in text
    assert "  got       448" in text
    assert "0 1111 110" in text
    assert "^" in text


def test_two_wrongs_of_one_kind_are_told_from_another_mistake():
    report = exercise("rne").check(lambda x, n: 7, remember=False)
    assert report.failure.mistake is None
    assert report.failure.values == (0, 0)


def test_other_ways_of_writing_an_answer_are_right():
    assert exercise("rne").check(lambda x, n: np.int64(round(x / 2**n)), remember=False).passed
    assert exercise("predict_bits").check("1011000100000000", remember=False).passed
    assert exercise("predict_bits").check(0xB100, remember=False).passed
    assert exercise("bf16_or_fp16").check(" C ", remember=False).passed
    assert exercise("decode_fp16").check(lambda c: np.uint16(c).view(np.float16), remember=False).passed
    fma = fplab.fma
    assert exercise("fma_fp16").check(lambda a, b, c: fma(a, b, c, "fp16"), remember=False).passed


def test_unknown_names_suggest():
    with pytest.raises(fplab.LabError, match=r"unknown exercise 'rnee'\. Allowed: .*Did you mean 'rne'\?"):
        exercise("rnee")
    assert "rne" in names()
