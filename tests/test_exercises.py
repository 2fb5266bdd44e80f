"""Every exercise: its reference passes, each typical wrong answer fails with its own message, minimally."""

import functools
import json
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from answers_here import cases_of, check
from helpers import fmt_id, regimes

import fplab
from fplab import exact
from fplab.exercises import chapters, drawn, exercise, registry, tasks, wire
from fplab.exercises.cases import boundary_cases, choices, random_cases, smallest
from fplab.exercises.kinds import simplicity
from fplab.exercises.shown import code_of
from fplab.exercises.tasks import Find, Implement, Predict, given
from fplab.formats import TABLE

EXERCISES = registry()
MUTANTS = [(name, i) for name, one in EXERCISES.items() for i in range(len(one.mutants))]
FUNCTIONS = [name for name, one in EXERCISES.items() if isinstance(one.task, Implement)]
CHAPTERS = sorted({one.chapter for one in EXERCISES.values()}, key=lambda chapter: chapter.number)
NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("[0-9][0-9]_*.ipynb"))
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(autouse=True)
def english():
    yield
    fplab.lang("en")


def reference(name: str):
    task = EXERCISES[name].task
    if isinstance(task, Implement):
        return task.reference
    return task.answer if isinstance(task, Predict) else task.example


@functools.cache
def failing(name: str, i: int):
    """The report on a mutant; its text is made when it is asked for, so in the language of then."""
    return check(name, EXERCISES[name].mutants[i].answer)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_there_are_at_least_thirty_over_all_chapters():
    assert len(EXERCISES) >= 30
    assert len(EXERCISES) == sum(len(chapter.EXERCISES) for chapter in chapters._CHAPTERS), "a name is one exercise's"
    assert set(tasks.words()) == {*EXERCISES, *drawn.ROWS}, "exercises.toml has the words of each, and of no other"
    assert [chapter.number for chapter in CHAPTERS] == list(range(1, 16))
    assert {one.level for one in EXERCISES.values()} == {1, 2, 3}
    assert {type(one.task) for one in EXERCISES.values()} == {Implement, Predict, Find}


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    report = check(name, reference(name))
    assert report.passed, report
    assert "passed" in str(report)
    assert words(f"Rule: {exercise(name).rule.en}") in words(str(report))
    if name in FUNCTIONS:
        assert report.tried >= 10


@pytest.mark.parametrize(("name", "i"), MUTANTS)
def test_each_mutant_fails_with_its_own_message(name, i):
    one, report = exercise(name), failing(name, i)
    mutant, text = one.mutants[i], words(str(report))
    assert not report.passed
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


def fails(name: str, i: int, case) -> bool:
    """Recomputed here, without the judge."""
    task = EXERCISES[name].task
    try:
        with np.errstate(all="ignore"):
            value = task.result.read(EXERCISES[name].mutants[i].answer(*map(given, case)))
    except Exception:
        return True
    return task.result.key(value) != task.result.key(task.expected(case))


@pytest.mark.parametrize(("name", "i"), [(name, i) for name, i in MUTANTS if name in FUNCTIONS])
def test_the_counterexample_is_minimal(name, i):
    """It fails, and no boundary case that fails is simpler."""
    task, case = exercise(name).task, failing(name, i).failure.values
    assert fails(name, i, case)
    own = choices(task, case)
    assert not [c for c in boundary_cases(task) if simplicity(choices(task, c)) < simplicity(own) and fails(name, i, c)]


# Here, where all cases have been drawn.
def test_every_answer_crosses_the_line_whole():
    for name, one in EXERCISES.items():
        task = one.task
        if isinstance(task, Implement):
            kind, values = task.result, [task.expected(case) for case in cases_of(name)[::7]]
        else:
            kind, values = task.kind, [task.kind.read(task.answer if isinstance(task, Predict) else task.example)]
        for value in values:
            again = wire.unpacked(json.loads(json.dumps(wire.packed(value))))
            assert kind.key(kind.read(again)) == kind.key(value), name


# What hypothesis has to find from a large case: one term of a list, one bit of a number, one row of two lists.
SHRUNK = {
    "choose_scale": (lambda counts: sum(counts) >= 7, ((0, 9, 50, 3, 0, 49),), ((7,),)),
    "decode_fp16": (lambda code: code & 1, (0xABCD,), (1,)),
    "rne": (lambda x, n: x > 99 and n > 1, (205, 7), (100, 2)),
    "quantize_e4m3": (lambda x: abs(x) > 3, (-1234.5,), (4.0,)),
    "first_difference": (lambda ours, recorded: ours != recorded, ((0, 0, 1 << 31), (0, 0, 0)),
                         ((0x3F800000,), (0x3F800001,))),
    "with_master": (lambda weight, updates: 1.0 in updates, (0.3, (0.5, 1.0, -2.0)), (0.0, (1.0,))),
    "met_in": (lambda add, n, i, j: j > 3, (chapters.hardware.Adder("blocks"), 20, 9, 12), ("loop", 5, 0, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHRUNK)
def test_a_large_case_is_shrunk_from_where_it_is(name):
    """Hypothesis is told a case by the choices that make it: were they others, it would stay there."""
    wanted, start, least = SHRUNK[name]
    found = smallest(name, EXERCISES[name].task, lambda case: wanted(*case), start)
    assert tuple(getattr(value, "hidden", value) for value in found) == least


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cases_are_valid_and_random_ones_the_same_and_many(name, monkeypatch):
    task = exercise(name).task
    first, few = (random_cases(name, task, n) for n in (task.random, 15))
    monkeypatch.setattr(fplab.exercises.cases, "_drawn", {})
    assert repr(few) == repr(random_cases(name, task, 15))
    assert len(set(map(repr, first))) >= 15
    boundary = boundary_cases(task)
    assert all(task.allows(case) for case in (*first, *boundary))
    sizes = [simplicity(choices(task, case)) for case in boundary]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", EXERCISES)
def test_texts_are_complete_in_both_languages(name):
    one = exercise(name)
    texts = [one.title, one.statement, one.hint, one.rule, one.chapter.title]
    texts += [m.says for m in one.mutants if not isinstance(one.task, Find)]
    texts += [one.task.why] if not isinstance(one.task, Implement) else []
    for text in texts:
        assert text.en.strip()
        assert text.zh.strip()
        assert not CHINESE.search(text.en)
    assert CHINESE.search(one.statement.zh)
    for text in (one.statement.en, one.statement.zh):
        assert text.count("（") == text.count("）")
        assert text.rstrip().endswith((".", "?", ")", "。", "？", "）", ":", "：")), text
        assert f"{name}(" in text or name not in FUNCTIONS
    assert name.isidentifier()
    assert name in one.signature
    for shown in (str(one), one._repr_html_(), str(one.solution())):
        assert name in shown
    assert len(one.mutants) >= 2
    own = [m.shows if isinstance(one.task, Find) else m.says.en for m in one.mutants]
    assert len(set(own)) == len(own)
    assert repr(one) == str(one), "a console shows it, a notebook keeps it beside the HTML"
    assert not [m for m in one.mutants if m.says.en and m.says.en in repr(one)]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_a_chapter_is_called_as_its_notebook(chapter):
    (path,) = (path for path in NOTEBOOKS if path.name.startswith(f"{chapter.number:02}_"))
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    titles = re.findall(r"^# (.*)$", first, re.MULTILINE)
    assert titles == [f"{chapter.number}. {chapter.title.en}", f"{chapter.number}. {chapter.title.zh}"]
    assert len(NOTEBOOKS) == 1 + len(CHAPTERS)  # 0 is the start


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_pasted_back_passes(name):
    """What is printed as the solution is an answer, imports that chapters make at their top apart."""
    space = {"math": math, "Fraction": Fraction, "np": np}
    text = str(exercise(name).solution())
    assert "type: ignore" not in text
    assert len(text) < 3000  # equal numbers are counted
    exec(text, space)
    assert check(name, space[name]).passed


@pytest.mark.parametrize("fmt", TABLE, ids=fmt_id)
def test_a_float_has_the_code_that_the_oracle_rounds_it_to(fmt):
    for x in regimes(fmt, np.float64, most=16).tolist():
        code, flags = exact.round_to(exact.from_float(x), fmt, nan="zero")
        has = not flags and (fmt.has_nan or x == x) and (fmt.has_infinity or not math.isinf(x))
        has = has and (math.copysign(1, x) > 0 or (fmt.has_negative_zero if x == 0 else fmt.signed or x != x))
        assert code_of(x, fmt.name) == (None if not has else fmt.nan_code if x != x else code), x


def test_the_smallest_counterexample_is_printed_with_fields():
    def saturating(x):
        rounded = EXERCISES["quantize_e4m3"].task.reference(x)
        return math.copysign(448.0, x) if math.isnan(rounded) and not math.isnan(x) else rounded

    text = str(check("quantize_e4m3", saturating))
    assert text.splitlines()[1] == "the smallest input on which it fails:"
    for part in ("s eeee fff   e4m3", "  expected  NaN", "0 1111 111", "  got       448", "0 1111 110", "^"):
        assert part in text


def test_two_wrongs_of_one_kind_are_told_from_another_mistake():
    report = check("rne", lambda x, n: 7)
    assert report.failure.mistake is None
    assert report.failure.values == (0, 0)
