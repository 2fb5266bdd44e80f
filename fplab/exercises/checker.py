"""Checking an answer: boundary cases, random ones, the smallest counterexample, and which typical mistake it is."""

from __future__ import annotations

import copy
import itertools
import time
import zlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..errors import LabError
from ..language import in_each
from ..words import Text, say
from . import progress, shrink
from .base import Exercise, Find, Implement, Mutant, Predict
from .kind import Kind, Many, Words
from .sandbox import LIMIT, Outcome, Sandbox
from .shown import Shown, of_any

Arguments = tuple[Any, ...]
MOST_CASES = 120  # boundary cases of several arguments, beyond each argument's own

NOTHING_SHOWN: Many = ()
PATIENCE = 6  # times the limit of one call that all calls of one check may take
TELLING = 60  # random cases on which an answer is compared with typical mistakes


@dataclass(frozen=True)
class Failure:
    """The smallest counterexample. ``how``: "value", "raised", "unfit", "late", "ended" (with its process), or
    "changes" (two runs differ).

    ``arguments``: labelled values; ``expected``, ``got``: what should and did come back; ``says``: what is wrong;
    ``mistake``: the typical mistake that errs just so, if one does; ``values``: the arguments themselves; ``least``:
    whether the search for a smaller one came to its end.
    """

    how: str
    arguments: tuple[tuple[str, Many], ...] = ()
    expected: Many = ()
    got: Many = ()
    says: Text | None = None
    mistake: Text | None = None
    printed: str = ""
    values: Arguments = ()
    steps: int = 0
    least: bool = True


@dataclass(frozen=True)
class Report:
    """How a check ended; ``str`` and a notebook show it in the chosen language.

    ``passed``: whether the answer is right. ``tried``: on how many inputs it ran. ``note``: what else is to be said.
    """

    exercise: Exercise
    passed: bool
    tried: int
    failure: Failure | None = None
    note: Text | None = field(default=None, compare=False)

    def __str__(self) -> str:
        from .show import text_of

        return text_of(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .show import html_of

        return in_each(lambda: html_of(self))

    def __bool__(self) -> bool:
        return self.passed


class Answer(Protocol):
    """What a verdict is about: in this process, :class:`Here`, or in another.

    ``limit``: seconds that a call may take; ``compiled``: those beyond it that went into compiling.
    """

    limit: float

    @property
    def compiled(self) -> float: ...  # noqa: D102
    @property
    def callable(self) -> bool: ...  # noqa: D102
    def call(self, case: Arguments) -> Outcome: ...  # noqa: D102
    def read(self) -> Outcome: ...  # noqa: D102
    def shown(self) -> str: ...  # noqa: D102


class Here:
    """An answer in this process, as a sandbox runs it."""

    def __init__(self, task: Implement | Predict | Find, answer: Any, box: Sandbox) -> None:
        self.kind, self.answer, self.box, self.limit = kind_of(task), answer, box, box.limit

    @property
    def compiled(self) -> float:
        """What the sandbox counted."""
        return self.box.compiled

    @property
    def callable(self) -> bool:
        """Whether it is a function, or acts as one."""
        return callable(self.answer)

    def call(self, case: Arguments) -> Outcome:
        """What it gives for these arguments, read as the kind that is asked for."""
        return self.box.call(lambda: self.kind.read(self.answer(*[given(v) for v in case])))

    def read(self) -> Outcome:
        """The answer itself, read as the kind that is asked for."""
        return self.box.call(lambda: self.kind.read(self.answer))

    def shown(self) -> str:
        """The answer's text; its repr is its own code, too."""
        outcome = self.box.call(lambda: of_any(self.answer).text)
        return outcome.value if outcome.how == "value" else f"<{type(self.answer).__name__}>"


def kind_of(task: Implement | Predict | Find) -> Kind:
    """The kind of what an answer gives."""
    return task.result if isinstance(task, Implement) else task.kind


def check(exercise: Exercise, answer: Any, *, limit: float | None = None, remember: bool = True) -> Report:
    """Check one answer, which runs here, with the rights of this process."""
    seconds = LIMIT if limit is None else limit
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
        raise LabError(f"limit={limit!r} is no number of seconds; allowed: above 0, to 3600.")
    with Sandbox(seconds) as box:
        report = judged(exercise, Here(exercise.task, answer, box))
    return remembered(report) if remember else report


def judged(exercise: Exercise, answer: Answer) -> Report:
    """The verdict on an answer. Nothing of the answer runs here unless it is :class:`Here`."""
    if isinstance(exercise.task, Implement):
        return _Trial(exercise, exercise.task, answer).report()
    return _check_value(exercise, exercise.task, answer)


def remembered(report: Report) -> Report:
    """The report, with a note where progress cannot be kept."""
    return replace(report, note=progress.remember(report.exercise.name, report.passed))


# --- functions -------------------------------------------------------------------------------------------------


def product_cases(task: Implement) -> Iterator[Arguments]:
    """The exercise's own cases, then each argument's boundary with the others at their simplest, then mixtures."""
    yield from task.cases
    edges = [list(kind.boundary()) for kind in task.arguments.values()]
    simplest = tuple(edge[0] for edge in edges)
    for i, edge in enumerate(edges):
        yield from ((*simplest[:i], value, *simplest[i + 1 :]) for value in edge)
    if len(edges) > 1:
        total = 1
        for edge in edges:
            total *= len(edge)
        stride = max(1, total // MOST_CASES)
        stride += stride % 2 == 0  # an odd stride meets every combination's parity
        yield from itertools.islice(itertools.product(*edges), 0, total, stride)


def boundary_cases(task: Implement) -> list[Arguments]:
    """The valid boundary cases, simplest first, none twice."""
    kinds = tuple(task.arguments.values())
    found: dict[Hashable, Arguments] = {}
    for case in product_cases(task):
        if task.allows(case):
            found.setdefault(key_of(task, case), case)
    return sorted(found.values(), key=lambda case: tuple(k.size(v) for k, v in zip(kinds, case, strict=True)))


def random_cases(exercise: Exercise, task: Implement) -> Iterator[Arguments]:
    """Random valid cases, the same on every machine."""
    words = Words(zlib.crc32(exercise.name.encode()))
    for _ in range(task.random):
        case = tuple(kind.draw(words) for kind in task.arguments.values())
        if task.allows(case):
            yield case


def smaller_cases(task: Implement, case: Arguments) -> Iterator[Arguments]:
    """Every valid case one step simpler: in one argument, or in the same place of two lists of one length."""
    kinds = tuple(task.arguments.values())
    for i, kind in enumerate(kinds):
        for value in kind.steps(case[i]):
            one = (*case[:i], value, *case[i + 1 :])
            if task.allows(one):
                yield one
    lists = [i for i, value in enumerate(case) if isinstance(value, tuple)]
    if len(lists) > 1 and len({len(case[i]) for i in lists}) == 1:
        for at in range(len(case[lists[0]])):
            one = tuple(v[:at] + v[at + 1 :] if i in lists else v for i, v in enumerate(case))
            if task.allows(one) and all(len(one[i]) >= getattr(kinds[i], "least", 0) for i in lists):
                yield one


def key_of(task: Implement, case: Arguments) -> Hashable:
    """What tells a case from others."""
    return tuple(kind.key(value) for kind, value in zip(task.arguments.values(), case, strict=True))


def given(value: Any) -> Any:
    """An argument as an answer gets it: its own copy, lists as lists."""
    return [given(v) for v in value] if isinstance(value, tuple) else copy.copy(value)


def in_brief(value: Any) -> str:
    """An argument as text."""
    return of_any(list(value) if isinstance(value, tuple) else value).text


class _Trial:
    """One function on one exercise: what it gave on every input so far."""

    def __init__(self, exercise: Exercise, task: Implement, answer: Answer) -> None:
        self.exercise, self.task, self.answer = exercise, task, answer
        self.seen: dict[Hashable, tuple[Arguments, Outcome]] = {}
        self.patience = PATIENCE * answer.limit
        self.deadline = time.monotonic() + self.patience
        self.skipped = False  # whether an input was left out because the time was up

    def expected(self, case: Arguments) -> Any:
        return self.task.result.read(self.task.reference(*[given(v) for v in case]))

    def fails(self, case: Arguments) -> bool:
        """Whether the answer is wrong on a case; remembers what it gave."""
        key = key_of(self.task, case)
        if key not in self.seen:
            if time.monotonic() > self.deadline + self.answer.compiled:
                self.skipped = True
                return False
            self.seen[key] = case, self.answer.call(case)
        outcome = self.seen[key][1]
        if outcome.how == "late" and outcome.stuck and not outcome.text.en:
            return False  # the sandbox was spent by an earlier input: nothing is known
        return self._wrong(case, outcome)

    def _wrong(self, case: Arguments, outcome: Outcome) -> bool:
        key = self.task.result.key
        return outcome.how != "value" or key(outcome.value) != key(self.expected(case))

    def report(self) -> Report:
        if not self.answer.callable:
            return Report(self.exercise, False, 0, self._not_a_function())
        first = self._first_failure()
        if first is None and self.skipped:
            return Report(self.exercise, False, len(self.seen), Failure("late", says=self._too_slow()))
        if first is None:
            return Report(self.exercise, True, len(self.seen))
        tried, late = len(self.seen), self.seen[key_of(self.task, first)][1].how == "late"
        least, steps = (first, 0) if late else shrink.smallest(first, lambda c: smaller_cases(self.task, c), self.fails)
        return Report(self.exercise, False, tried, self._failure(least, steps))

    def _not_a_function(self) -> Failure:
        text = say("a function is wanted ({s}), not {x}")
        return Failure("unfit", says=text.fill(s=self.exercise.signature, x=self.answer.shown()))

    def _too_slow(self) -> Text:
        text = say(
            "right so far, but too slow: {n} inputs took {s:g} s, and the rest were not tried. "
            "(A slow answer gets more time with limit=60; in a terminal, --limit 60.)"
        )
        return text.fill(n=len(self.seen), s=self.patience)

    def _first_failure(self) -> Arguments | None:
        """The simplest boundary case that fails, else the first random one; all boundary cases are run."""
        failing = None
        for case in boundary_cases(self.task):
            if self.fails(case) and failing is None:
                failing = case
            if self.skipped:
                return failing
            if self.seen[key_of(self.task, case)][1].how == "late":
                return case if failing is None else failing
        if failing is not None:
            return failing
        return next((case for case in random_cases(self.exercise, self.task) if self.fails(case)), None)

    def _failure(self, case: Arguments, steps: int) -> Failure:
        outcome = self.seen[key_of(self.task, case)][1]
        kinds = self.task.arguments.items()
        shown = tuple((name, kind.show(value)) for (name, kind), value in zip(kinds, case, strict=True))
        expected = self.task.result.show(self.expected(case))
        how, got = outcome.how, NOTHING_SHOWN
        says: Text | None = outcome.text
        if outcome.how == "value":
            got, says = self.task.result.show(outcome.value), None
            again = self.answer.call(case)
            if again.how != "late" and not self._wrong(case, again):
                how = "changes"
                says = say("it gives different results for the same input")
        mistake = None if outcome.how == "late" else self._mistake()
        return Failure(how, shown, expected, got, says, mistake, outcome.printed, case, steps, not self.skipped)

    def _mistake(self) -> Text | None:
        """The typical mistake that gives what this answer gave, on every input that was tried."""
        for case in itertools.islice(random_cases(self.exercise, self.task), TELLING):
            self.fails(case)
        for mutant in self.exercise.mutants:
            if all(_same(self.task, mutant, case, outcome) for case, outcome in self.seen.values()):
                return mutant.says
        return None


def _same(task: Implement, mutant: Mutant, case: Arguments, outcome: Outcome) -> bool:
    """Whether a typical wrong answer ends on a case as an answer did."""
    try:
        with np.errstate(all="ignore"):
            value = task.result.key(task.result.read(mutant.answer(*[given(v) for v in case])))
    except Exception as error:
        return outcome.how == "unfit" or (outcome.how == "raised" and outcome.value == type(error).__name__)
    return outcome.how == "value" and task.result.key(outcome.value) == value


# --- values ----------------------------------------------------------------------------------------------------


def _check_value(exercise: Exercise, task: Predict | Find, answer: Answer) -> Report:
    """Check a predicted, chosen or found value."""
    outcome = answer.read()
    if outcome.how != "value":
        return Report(exercise, False, 1, Failure(outcome.how, says=outcome.text, got=(Shown(answer.shown()),)))
    value = outcome.value
    if isinstance(task, Predict):
        if task.kind.key(value) == task.kind.key(task.kind.read(task.answer)):
            return Report(exercise, True, 1)
        return Report(exercise, False, 1, Failure("value", got=task.kind.show(value), mistake=_known(exercise, value)))
    with np.errstate(all="ignore"):  # what is given may overflow: the judge says so, in words
        judged = task.judge(value)
    lines = tuple((label, (shown,)) for label, shown in judged.lines)
    if judged.holds:
        return Report(exercise, True, 1, Failure("value", lines, values=(value,)))
    got = (("", task.kind.show(value)), *lines)
    expected = (Shown(str(task.wanted)),)
    return Report(exercise, False, 1, Failure("value", got, expected, (), judged.says, values=(value,)))


def _known(exercise: Exercise, value: Any) -> Text | None:
    """What is to be said about a wrong value that is a typical one."""
    task = exercise.task
    assert isinstance(task, Predict)
    for mutant in exercise.mutants:
        if task.kind.key(task.kind.read(mutant.answer)) == task.kind.key(value):
            return mutant.says
    return None
