"""Texts looked up as they are said: what an f-string has filled in is found again, and the rest is translated.

The catalogue has them under a context, "figure" or "refusal", with a name in braces for each thing filled in.
"""

import functools
import re
from collections.abc import Callable
from typing import TypeVar

from ..columns import padded, width_of
from . import CELL, REFUSAL, SOURCE, chosen, messages
from . import translated as message

T = TypeVar("T")
NUMBER = r"[\d.,]*\d"
FIELD = re.compile(r"\{([a-z]\w*)\}")


@functools.cache
def patterns(context: str, language: str) -> tuple[tuple[list[str], re.Pattern[str], str], ...]:
    """The messages with something to fill in, the longest first: the words between, their pattern, the translation."""
    filled = [(message, said) for message, said in messages(context, language).items() if FIELD.search(message)]
    filled.sort(key=lambda one: -len(FIELD.sub("", one[0])))
    return tuple((FIELD.split(message)[::2], pattern(message), said) for message, said in filled)


def pattern(message: str) -> re.Pattern[str]:
    """What a message looks like once its names are filled in: a group each, and the same everywhere; ``n`` a number.

    >>> pattern("segments of {n}").fullmatch("segments of 4")["n"]
    '4'
    """
    parts = FIELD.split(message)
    groups = [
        f"(?P={name})" if name in parts[1 : 2 * i : 2] else f"(?P<{name}>{NUMBER if name == 'n' else '.*?'})"
        for i, name in enumerate(parts[1::2])
    ]
    return re.compile("".join(a + b for a, b in zip(map(re.escape, parts[::2]), [*groups, ""], strict=True)), re.S)


def translated(text: str, context: str, language: str, fits: Callable[[str], bool] = lambda value: True) -> str:
    """A text in another language: by its English, or by its pattern; itself where there is neither.

    ``fits``: whether what a pattern has found, translated, is what its message fills in.
    """
    if not re.search("[A-Za-z]{2}", text):
        return text
    known = messages(context, language)
    if said := known.get(text):
        return said
    for words, english, said in patterns(context, language):
        if _in_order(words, text) and (found := english.fullmatch(text)):
            values = {name: translated(value, context, language, fits) for name, value in found.groupdict().items()}
            if all(map(fits, values.values())):
                return FIELD.sub(lambda field, values=values: values[field[1]], said)  # type: ignore[misc]
    if context == CELL:
        if (core := text.strip()) != text:  # a value that its print has padded
            inner = translated(core, context, language)
            return text if inner == core else padded(text[: len(text) - len(text.lstrip())] + inner, width_of(text))
        if (elsewhere := message(text, "", language)) != text:
            return elsewhere
    return text


def _in_order(words: list[str], text: str) -> bool:
    """Whether a text begins and ends as a message, with its words between: otherwise its pattern takes long to fail."""
    if not (text.startswith(words[0]) and text.endswith(words[-1])):  # most end here
        return False
    place = 0
    for word in words:
        if (place := text.find(word, place)) < 0:
            return False
        place += len(word)
    return True


def refused(text: T) -> T | str:
    """What an error or a warning says, in the chosen language; what is no str, such as a Message, as it is."""
    return translated(text, REFUSAL, chosen()) if isinstance(text, str) and chosen() != SOURCE else text
