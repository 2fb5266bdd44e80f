"""The verdict on an answer: boundary cases, random ones, the smallest counterexample, and which typical mistake it is.

Nothing of an answer runs here: it is asked, through :class:`Answer`, for one result after the other.
"""

import time
from collections.abc import Hashable
from typing import Any, Protocol

import numpy as np

from ..errors import need
from ..words import Text, say
from .report import Failure, Report
from .shown import Shown
from .tasks import Find, Implement, Mutant, Predict, Question, given
from .wire import GONE, Outcome

Arguments = tuple[Any, ...]
PATIENCE = 6  # times the limit of one call that all calls of one check may take
TELLING = 60  # random cases on which an answer is compared with typical mistakes


class Answer(Protocol):
    """What a verdict is about.

    ``limit``: seconds that a call may take; ``compiled``: those beyond it that went into compiling and importing.
    """

    limit: float

    @property
    def compiled(self) -> float: ...
    def call(self, case: Arguments) -> Outcome: ...
    def read(self) -> Outcome: ...


def judged(exercise: Question, answer: Answer) -> Report:
    outcome, task = answer.read(), exercise.task
    if outcome.how != "value":
        shown = (Shown(outcome.shown),) if outcome.shown and not isinstance(task, Implement) else ()
        return Report(exercise, False, 0, Failure(outcome.how, says=outcome.text, got=shown))
    if isinstance(task, Implement):
        return _Trial(exercise, task, answer).report()
    if isinstance(task, Predict):
        return _predicted(exercise, task, outcome.value)
    return _found(exercise, task, outcome.value)


class _Trial:
    """One function on one exercise: what it gave on every input so far."""

    def __init__(self, exercise: Question, task: Implement, answer: Answer) -> None:
        self.exercise, self.task, self.answer = exercise, task, answer
        self.seen: dict[Hashable, tuple[Arguments, Outcome]] = {}
        self.wrong: dict[Hashable, bool] = {}
        self.patience = PATIENCE * answer.limit
        self.deadline = time.monotonic() + self.patience
        self.stopped = False  # whether no more inputs are tried: the time is up, or the process gone

    def fails(self, case: Arguments) -> bool:
        """Whether the answer is wrong on a case; remembers what it gave."""
        key = self.task.key(case)
        if key not in self.seen:
            self.stopped = self.stopped or time.monotonic() > self.deadline + self.answer.compiled
            if self.stopped:
                return False
            outcome = self.answer.call(case)
            self.seen[key], self.wrong[key] = (case, outcome), self._is_wrong(case, outcome)
            self.stopped = outcome.how in GONE
        return self.wrong[key]

    def _is_wrong(self, case: Arguments, outcome: Outcome) -> bool:
        key = self.task.result.key
        return outcome.how != "value" or key(outcome.value) != key(self.task.expected(case))

    def report(self) -> Report:
        """Run all boundary cases, so that typical mistakes are told apart, and shrink the simplest one that fails."""
        need("hypothesis")
        from .cases import boundary_cases, random_cases, smallest

        name, task = self.exercise.name, self.task
        cases = boundary_cases(task)
        failing = [case for case in cases if self.fails(case)]
        first = failing[0] if failing else None
        if first is None and not self.stopped:
            first = next((case for case in random_cases(name, task, task.random) if self.fails(case)), None)
        if first is not None:
            share = sum(not wrong for wrong in self.wrong.values()) / max(len(cases), len(self.wrong))
            least = first if self.stopped else smallest(name, task, self.fails, first)
            return Report(self.exercise, False, len(self.seen), self._failure(least), share=share)
        if self.stopped:
            return Report(self.exercise, False, len(self.seen), Failure("late", says=self._too_slow()))
        return Report(self.exercise, True, len(self.seen))

    def _too_slow(self) -> Text:
        text = say(
            "right so far, but too slow: {n} inputs took {s:g} s, and the rest were not tried. "
            "(A slow answer gets more time with limit=60; in a terminal, --limit 60.)"
        )
        return text.fill(n=len(self.seen), s=self.patience)

    def _failure(self, case: Arguments) -> Failure:
        outcome, least = self.seen[self.task.key(case)][1], not self.stopped
        kinds = self.task.arguments.items()
        shown = tuple((name, kind.show(value)) for (name, kind), value in zip(kinds, case, strict=True))
        expected = self.task.result.show(self.task.expected(case))
        if outcome.how != "value":
            mistake = None if outcome.how in GONE else self._mistake()
            return Failure(outcome.how, shown, expected, (), outcome.text, mistake, outcome.printed, case, least)
        how, says, got = "value", None, self.task.result.show(outcome.value)
        if least and not self._is_wrong(case, self.answer.call(case)):
            how, says = "changes", say("it gives different results for the same input")
        return Failure(how, shown, expected, got, says, self._mistake(), outcome.printed, case, least)

    def _mistake(self) -> Text | None:
        """The typical mistake that gives what this answer gave, on every input that was tried."""
        from .cases import random_cases

        for case in random_cases(self.exercise.name, self.task, TELLING):
            self.fails(case)
        for mutant in self.exercise.mutants:
            if all(_same(self.task, mutant, case, outcome) for case, outcome in self.seen.values()):
                return mutant.says
        return None


def _same(task: Implement, mutant: Mutant, case: Arguments, outcome: Outcome) -> bool:
    """Whether a typical wrong answer ends on a case as an answer did."""
    try:
        with np.errstate(all="ignore"):
            value = task.result.key(task.result.read(mutant.answer(*map(given, case))))
    except Exception as error:
        return outcome.how == "unfit" or (outcome.how == "raised" and outcome.value == type(error).__name__)
    return outcome.how == "value" and task.result.key(outcome.value) == value


def _predicted(exercise: Question, task: Predict, value: Any) -> Report:
    """Check a predicted or chosen value; a wrong one that is typical is called so."""
    right, *wrong = (
        task.kind.key(task.kind.read(predicted)) for predicted in (task.answer, *(m.answer for m in exercise.mutants))
    )
    key = task.kind.key(value)
    if key == right:
        return Report(exercise, True, 1)
    mistake = exercise.mutants[wrong.index(key)].says if key in wrong else None
    return Report(exercise, False, 1, Failure("value", got=task.kind.show(value), mistake=mistake))


def _found(exercise: Question, task: Find, value: Any) -> Report:
    """Check a found value, by the exercise's judge."""
    with np.errstate(all="ignore"):  # what is given may overflow: the judge says so, in words
        judgement = task.judge(value)
    lines = tuple((label, (shown,)) for label, shown in judgement.lines)
    if judgement.holds:
        return Report(exercise, True, 1, Failure("value", lines, values=(value,)))
    given_and_lines, wanted = (("", task.kind.show(value)), *lines), (Shown(str(task.wanted)),)
    return Report(exercise, False, 1, Failure("value", given_and_lines, wanted, (), judgement.says, values=(value,)))
