"""What an exercise is: a record. The chapters fill it; the judge knows no exercise by name.

There are three tasks. :class:`Implement`: a function, held against a reference on boundary cases and random ones.
:class:`Predict`: one value (with :class:`~fplab.exercises.kinds.Options`, a choice). :class:`Find`: any input that has
a property, which a judge computes.
"""

from __future__ import annotations

import copy
import functools
import html
import inspect
import re
import textwrap
import tomllib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..draw.page import code
from ..language import in_each
from ..words import NOTHING, Text, say
from .kinds import Codes, Function, Kind
from .shown import Shown

WORDS = Path(__file__).with_name("exercises.toml")
LEVELS = (say("easy"), say("medium"), say("hard"))
"""How hard an exercise is."""


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


def edited(reference: Callable[..., Any], *pieces: str) -> Callable[..., Any]:
    """A function with pieces of its text replaced, the first by the second and so on: a typical mistake."""
    source = textwrap.dedent(inspect.getsource(reference))
    for old, new in zip(pieces[::2], pieces[1::2], strict=True):
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {reference.__name__}, and not once")
        source = source.replace(old, new)
    names = dict(reference.__globals__)
    exec(source, names)
    function: Callable[..., Any] = names[reference.__name__]
    return function


def given(value: Any) -> Any:
    """An argument as an answer gets it: its own copy, lists as lists."""
    return [given(v) for v in value] if isinstance(value, tuple) else copy.copy(value)


@dataclass(frozen=True)
class Implement:
    """Write a function. ``arguments``: a kind for each parameter of ``reference``, by name. ``result``: its kind.

    ``cases``: boundary cases of several arguments at once, before those of each. ``random``: how many random ones.
    ``valid``: which combinations of arguments there are; None: all. ``paired``: the arguments are lists of one length.
    """

    reference: Callable[..., Any]
    arguments: dict[str, Kind]
    result: Kind
    cases: tuple[tuple[Any, ...], ...] = ()
    random: int = 120
    valid: Callable[..., bool] | None = None
    paired: bool = False

    def allows(self, arguments: Sequence[Any]) -> bool:
        """Whether these are arguments that the exercise promises."""
        if self.paired and len({len(argument) for argument in arguments}) > 1:
            return False
        return self.valid is None or self.valid(*arguments)

    def key(self, arguments: Sequence[Any]) -> Hashable:
        """What tells a combination of arguments from others."""
        return tuple(kind.key(v) for kind, v in zip(self.arguments.values(), arguments, strict=True))

    def expected(self, arguments: Sequence[Any]) -> Any:
        """What the reference gives."""
        return self.result.read(self.reference(*map(given, arguments)))


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


@functools.cache
def words() -> dict[str, dict[str, str]]:
    """What every exercise says, in English."""
    texts: dict[str, dict[str, str]] = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    return texts


@dataclass(frozen=True)
class Question:
    """What is asked, in two languages, and what is known of its answers.

    ``name``: an identifier, by which answers are found in a file, and the words in ``exercises.toml``. ``level``: 1 to
    3. ``mutants``: typical wrong answers. ``source``: where the rule comes from. ``numbers``: what fills its words,
    where they are drawn.
    """

    name: str
    chapter: Chapter
    level: int
    task: Implement | Predict | Find
    mutants: tuple[Mutant, ...]
    source: str = ""
    numbers: tuple[tuple[str, Any], ...] = ()

    @property
    def title(self) -> Text:
        return self._said("title")

    @property
    def statement(self) -> Text:
        """What to do."""
        return self._said("statement")

    @property
    def hint(self) -> Text:
        """A step towards the rule."""
        return self._said("hint")

    @property
    def rule(self) -> Text:
        """What is true, shown with the solution and when an answer passes."""
        return self._said("rule")

    def _said(self, what: str) -> Text:
        return say(words()[self.name][what], **dict(self.numbers))

    @property
    def signature(self) -> str:
        """How an answer begins: ``def name(arguments):``, or ``name = ...``."""
        if isinstance(self.task, Implement):
            return f"def {self.name}({', '.join(self.task.arguments)}):"
        return f"{self.name} = ..."

    @property
    def answer_kind(self) -> Kind:
        """What an answer itself is read as."""
        return Function(self.signature) if isinstance(self.task, Implement) else self.task.kind

    def solution(self) -> Solution:
        """The reference solution, for when you have tried."""
        return Solution(self)

    def _about(self) -> str:
        return f"{self.chapter.number}. {self.chapter.title} · {LEVELS[self.level - 1]}"

    def __str__(self) -> str:
        paragraphs = [textwrap.fill(part, 96) for part in str(self.statement).split("\n")]
        return "\n".join([f"{self.title}  [{self.name}]", self._about(), "", *paragraphs, "", f"    {self.signature}"])

    __repr__ = __str__  # a record's own would show the solution

    def _repr_html_(self) -> str:
        return in_each(self._html)

    def _html(self) -> str:
        lines = (f"<p style='margin:.3em 0'>{html.escape(p)}</p>" for p in str(self.statement).split("\n"))
        return (
            f'<div style="line-height:1.5;max-width:62em"><b>{html.escape(str(self.title))}</b> '
            f'<span style="opacity:.75">{html.escape(self._about())}</span>{"".join(lines)}'
            f"{code(self.signature)}</div>"
        )


@dataclass(frozen=True)
class Solution:
    """A reference solution, which prints as it would be written."""

    exercise: Question

    def __str__(self) -> str:
        task = self.exercise.task
        if isinstance(task, Implement):
            source = textwrap.dedent(inspect.getsource(task.reference)).rstrip()
            source = re.sub(r"  # type: ignore\[[\w-]+\]", "", source)  # the project's own note, not the reader's
            source = source.replace(f"def {task.reference.__name__}(", f"def {self.exercise.name}(", 1)
            return f"{source}\n\n# {self.exercise.rule}"
        value = task.answer if isinstance(task, Predict) else task.example
        digits = hex(value) if isinstance(task.kind, Codes) else repr(value)
        if isinstance(value, tuple) and len(value) > 16 and len(set(value)) == 1:
            digits = f"[{value[0]!r}] * {len(value)}"
        return f"{self.exercise.name} = {digits}\n\n# {task.why}"

    __repr__ = __str__
