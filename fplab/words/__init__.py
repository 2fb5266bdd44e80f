"""What fplab says to a person: messages whose id is their English, and a gettext catalogue for every other language.

A message is written where it is said, ``say("{n} bits", n=8)``; its translations are in ``LANGUAGE.po`` beside this
file, which ``python -m fplab.words`` compiles. What has no translation is said in English, so that whoever adds a
message needs no other language; ``python -m fplab.words --missing`` lists what waits for one.

>>> str(say("{n} bits", n=8)), say("sum").zh
('8 bits', '和')
"""

from __future__ import annotations

import functools
import gettext
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCE = "en"  # the language that the ids are written in
WIDE = r"[\u2e80-\u9fff\uff00-\uffef]"  # Chinese characters and marks
BETWEEN_WIDE = re.compile(f"(?<={WIDE}) (?={WIDE})")  # where Chinese has no space
FIGURE = "figure"  # the context of the texts of figures, which are looked up as they are drawn (draw.lettering)
CELL = "cell"  # that of what the course's code cells print and comment (words.cells)
REFUSAL = "refusal"  # that of what errors and warnings say, looked up as they are raised (words.patterns)
_LANGUAGE = f"{__package__.rpartition('.')[0]}.language"  # the module that knows, by spoken()


def _ask() -> str:
    """The language, from the module that knows: what computes has not imported it before it refuses something."""
    if _LANGUAGE in sys.modules:  # it is being imported
        return SOURCE
    importlib.import_module(_LANGUAGE)
    return chosen()


_chosen: list[Callable[[], str]] = [_ask]


def spoken(choice: Callable[[], str]) -> None:
    """Say which language ``str`` of a text speaks: called by the module that knows."""
    _chosen[:] = [choice]


def chosen() -> str:
    """The language that ``str`` of a text speaks."""
    return _chosen[0]()


class Text:
    """What can be said in every language. ``str`` says it in the chosen one."""

    def into(self, language: str) -> str:
        """The text in a language, by its short name."""
        raise NotImplementedError

    def fill(self, **values: Any) -> Text:
        """The same text with its ``{names}`` filled in; a Text among the values is said in each language.

        >>> str(say("{n} bits").fill(n=8))
        '8 bits'
        """
        raise NotImplementedError

    @property
    def en(self) -> str:
        """The text in English."""
        return self.into("en")

    @property
    def zh(self) -> str:
        """The text in Chinese."""
        return self.into("zh")

    def __str__(self) -> str:
        return self.into(chosen())

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


@dataclass(frozen=True)
class Message(Text):
    """A text by its id, which is its English; ``values`` fill its ``{names}``; ``context`` tells equal ids apart."""

    id: str
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    context: str = ""

    def into(self, language: str) -> str:
        """The translation, or the English where there is none, with the values filled in."""
        found = self.id if language == SOURCE or not self.id else translated(self.id, self.context, language)
        if not self.values:
            return found
        found = found.format(**{k: v.into(language) if isinstance(v, Text) else v for k, v in self.values.items()})
        return found if language == SOURCE else BETWEEN_WIDE.sub("", found)

    def fill(self, **values: Any) -> Message:
        """See :meth:`Text.fill`."""
        return Message(self.id, {**self.values, **values}, self.context)


@dataclass(frozen=True)
class Given(Text):
    """A text that comes with its translations, from data such as a user's answer or a notebook."""

    texts: tuple[tuple[str, str], ...]

    def into(self, language: str) -> str:
        """Its words in a language, or the first ones there are."""
        found = dict(self.texts)
        return found.get(language, self.texts[0][1])

    def fill(self, **values: Any) -> Given:
        """See :meth:`Text.fill`."""
        return Given(tuple((name,
                            text.format(**{k: v.into(name) if isinstance(v, Text) else v for k, v in values.items()}))
                           for name, text in self.texts))  # fmt: skip


@dataclass(frozen=True)
class Joined(Text):
    """Texts one after another with something between them."""

    parts: tuple[Text | str, ...]
    between: Text | str = ""

    def into(self, language: str) -> str:
        """Every part in that language."""
        found = _in(self.between, language).join(_in(part, language) for part in self.parts)
        return found if language == SOURCE or self.between != " " else BETWEEN_WIDE.sub("", found)

    def fill(self, **values: Any) -> Joined:
        """See :meth:`Text.fill`."""
        return Joined(tuple(p.fill(**values) if isinstance(p, Text) else p for p in self.parts), self.between)


def say(message: str, /, **values: Any) -> Message:
    """A message by its English; the values fill its ``{names}``."""
    return Message(message, values)


def say_of(context: str, message: str, /, **values: Any) -> Message:
    """A message whose English has another translation elsewhere; ``context`` says which this is."""
    return Message(message, values, context)


def mark(message: str) -> str:
    """The message itself, which is looked up later: :func:`say` with a variable is no place to collect it from."""
    return message


def part(text: str) -> str:
    """A part of what a refusal says, which is looked up with it: marked where no raise of its module names it."""
    return text


def given(en: str, **others: str) -> Given:
    """A text that comes with its translations."""
    return Given((("en", en), *others.items()))


def verbatim(text: str) -> Given:
    """What is the same in every language, such as a name."""
    return given(text)


def joined(parts: Iterable[Text | str], between: Text | str = "") -> Joined:
    """Texts one after another.

    >>> joined([say("sum"), "fp16"], ": ").zh
    '和: fp16'
    """
    return Joined(tuple(parts), between)


NOTHING = given("")
COMMA = say(", ")
LIST = say_of("between items", ", ")
CLAUSE = say("; ")


def translated(message: str, context: str, language: str) -> str:
    """The message in a language's catalogue, or itself."""
    book = catalogue(language)
    return book.pgettext(context, message) if context else book.gettext(message)


@functools.cache
def messages(context: str, language: str) -> Mapping[str, str]:
    """The translations that a language's catalogue has under a context, by their English."""
    every: Mapping[str, str] = getattr(catalogue(language), "_catalog", {})  # gettext itself gives no list
    return {key[len(context) + 1 :]: said for key, said in every.items() if key.startswith(f"{context}\x04")}


NOT_COMPILED = "fplab: {language} is not compiled ({error}); python -m fplab.words compiles it, with babel installed."


@functools.cache
def catalogue(language: str) -> gettext.NullTranslations:
    """A language's catalogue, compiled when first asked for; where it can't be, an empty one after a word on why."""
    compiled = FOLDER / f"{language}.mo"
    source = compiled.with_suffix(".po")
    try:
        if not compiled.exists() and source.exists():
            importlib.import_module(".catalogues", __name__).compile_one(source)
        with compiled.open("rb") as file:
            return gettext.GNUTranslations(file)
    except (ImportError, OSError) as error:
        if source.exists():
            print(NOT_COMPILED.format(language=language, error=error), file=sys.stderr)
        return gettext.NullTranslations()


def _in(part: Text | str, language: str) -> str:
    return part.into(language) if isinstance(part, Text) else part
