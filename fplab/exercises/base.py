"""What an exercise is: a record. The chapters fill the registry; the checker knows no exercise by name.

There are three tasks. :class:`Implement`: a function, held against a reference on boundary cases and random ones.
:class:`Predict`: one value (with :class:`~fplab.exercises.kinds.Options`, a choice). :class:`Find`: any input that has
a property, which a judge computes.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import LabError, door, unknown
from ..language import in_each
from ..words import NOTHING, Text, say
from .kind import Kind
from .kinds import Codes
from .shown import Shown

if TYPE_CHECKING:
    from .checker import Report

LEVELS = (say("easy"), say("medium"), say("hard"))


@dataclass(frozen=True)
class Chapter:
    """A chapter of the course. ``number``: its notebook."""

    number: int
    name: str
    title: Text


@dataclass(frozen=True)
class Mutant:
    """A typical wrong answer. ``says``: what a report adds when an answer errs exactly as this one does.

    ``shows``: what its smallest counterexample must contain, a piece of the report's text.
    """

    answer: Any
    says: Text
    shows: str


@dataclass(frozen=True)
class Implement:
    """Write a function. ``arguments``: a kind for each parameter of ``reference``, by name. ``result``: its kind.

    ``cases``: boundary cases of several arguments at once, before those of each. ``random``: how many random ones.
    ``valid``: which combinations of arguments there are; None: all.
    """

    reference: Callable[..., Any]
    arguments: dict[str, Kind]
    result: Kind
    cases: tuple[tuple[Any, ...], ...] = ()
    random: int = 120
    valid: Callable[..., bool] | None = None

    def allows(self, arguments: Sequence[Any]) -> bool:
        """Whether these are arguments that the exercise promises."""
        return self.valid is None or self.valid(*arguments)


@dataclass(frozen=True)
class Predict:
    """Say a value. ``why``: how one arrives at it."""

    answer: Any
    kind: Kind
    why: Text


@dataclass(frozen=True)
class Judgement:
    """What a judge found: whether the input has the property, labelled values to show, and what is missing."""

    holds: bool
    lines: tuple[tuple[str, Shown], ...] = ()
    says: Text = NOTHING


@dataclass(frozen=True)
class Find:
    """Find an input. ``judge(value)`` says whether it has the property; ``example`` has it. ``wanted``: what holds."""

    kind: Kind
    judge: Callable[[Any], Judgement]
    example: Any
    wanted: Text
    why: Text


@dataclass(frozen=True)
class Exercise:
    """One exercise, in two languages.

    ``name``: an identifier, by which answers are found in a file. ``level``: 1 to 3. ``statement``: what to do.
    ``rule``: what is true, shown with the solution and when an answer passes. ``hint``: a step towards it.
    ``mutants``: typical wrong answers.
    ``source``: where the rule comes from.

    >>> from fplab.exercises import exercise
    >>> exercise("largest_e4m3").check(448, remember=False).passed
    True
    """

    name: str
    chapter: Chapter
    level: int
    title: Text
    statement: Text
    hint: Text
    rule: Text
    task: Implement | Predict | Find
    mutants: tuple[Mutant, ...]
    source: str = ""

    @property
    def signature(self) -> str:
        """How an answer begins: ``def name(arguments):``, or ``name = ...``."""
        if isinstance(self.task, Implement):
            return f"def {self.name}({', '.join(self.task.arguments)}):"
        return f"{self.name} = ..."

    def check(self, answer: Any, *, limit: float | None = None, remember: bool = True) -> Report:
        """Check an answer: a function, or the value asked for. Prints as text, in a notebook as HTML.

        ``limit``: seconds that one call may take. ``remember``: keep the outcome in the progress file.

        An operation that holds the interpreter, such as ``10**10**9`` or a hopeless regular expression, cannot be
        stopped from within: in a notebook the kernel must be restarted. ``fplab exercise check`` ends it.

        The answer runs with the rights of this process, as all code of a notebook does. To check the answers of others,
        use ``fplab exercise check --isolated``.
        """
        from .checker import check

        return check(self, answer, limit=limit, remember=remember)

    def solution(self) -> Solution:
        """The reference solution, for when you have tried."""
        return Solution(self)

    def __str__(self) -> str:
        about = f"{self.chapter.number}. {self.chapter.title} · {LEVELS[self.level - 1]}"
        paragraphs = [textwrap.fill(part, 96) for part in str(self.statement).split("\n")]
        return "\n".join([f"{self.title}  [{self.name}]", about, "", *paragraphs, "", f"    {self.signature}"])

    __repr__ = __str__  # a record's own would show the solution

    def _repr_html_(self) -> str:
        from .show import statement_html

        return in_each(lambda: statement_html(self))


@dataclass(frozen=True)
class Solution:
    """A reference solution, which prints as it would be written."""

    exercise: Exercise

    def __str__(self) -> str:
        task = self.exercise.task
        if isinstance(task, Implement):
            source = textwrap.dedent(inspect.getsource(task.reference)).rstrip()
            source = re.sub(r"  # type: ignore\[[\w-]+\]", "", source)  # the project's own note, not the reader's
            source = source.replace(f"def {task.reference.__name__}(", f"def {self.exercise.name}(", 1)
            return f"{source}\n\n# {self.exercise.rule}"
        value = task.answer if isinstance(task, Predict) else task.example
        digits = hex(value) if isinstance(task.kind, Codes) else repr(value)
        return f"{self.exercise.name} = {digits}\n\n# {task.why}"

    __repr__ = __str__


_REGISTRY: dict[str, Exercise] = {}


def register(*exercises: Exercise) -> None:
    """Add a chapter's exercises; a name is one exercise's alone."""
    for one in exercises:
        if one.name in _REGISTRY and _REGISTRY[one.name] != one:
            raise LabError(f"there are two exercises called {one.name!r}.")
        _REGISTRY[one.name] = one


def registry() -> dict[str, Exercise]:
    """All exercises by name, in the order of the chapters."""
    from . import chapters  # noqa: F401  # filling the registry as it is imported

    return dict(sorted(_REGISTRY.items(), key=lambda pair: (pair[1].chapter.number, pair[1].level)))


@door
def exercise(name: str) -> Exercise:
    """The exercise of a name.

    >>> exercise("rne").signature
    'def rne(x, n):'
    """
    found = registry()
    if name not in found:
        raise unknown("exercise", name, found)
    return found[name]
