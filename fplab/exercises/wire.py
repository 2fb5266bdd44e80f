"""What the process that runs the answers tells the judge: JSON, an object a line.

An answer can write on this line itself, anything at all. What arrives is therefore read as one reads an answer: a value
of the kind that was asked for, or nothing; a text without what could pass for another line of a report.
"""

import contextlib
import json
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..columns import harmless
from ..words import NOTHING, Text, given, say
from .kinds import Function, Kind, UnfitError

Message = dict[str, Any]
KEPT = 2000  # characters of a text
GONE = ("late", "ended")  # how a call ends with its process
UNREADABLE = say("it gave back nothing that can be read")


@dataclass(frozen=True)
class Outcome:
    """How a call ended: ``how`` is "value", "raised", "unfit", "late" or "ended". ``text`` says what went wrong.

    ``value``: what came back, or the exception's name. ``shown``: of an answer that is no function, its own text.
    """

    how: str
    value: Any = None
    text: Text = NOTHING
    printed: str = ""
    shown: str = ""


@dataclass(frozen=True)
class Box:
    """A black box among the arguments of a call, by its place. What it hides stays with the judge, who is asked."""

    number: int


def packed(value: Any) -> Any:
    """A value of a kind as JSON: every bit of a float, integers of any length."""
    match value:
        case bool() | str() | None:
            return value
        case int():
            return {"int": f"{value:x}"}
        case float():
            return {"float": value.hex()}
        case Fraction():
            return {"ratio": [f"{value.numerator:x}", f"{value.denominator:x}"]}
        case list() | tuple():
            return [packed(v) for v in value]
    raise TypeError(f"a {type(value).__name__} is no value of a kind")


def unpacked(data: Any) -> Any:
    """The value that was packed; ValueError or the like for anything else. Lists come back as tuples.

    >>> unpacked(packed((1, -0.0, Fraction(1, 3), "on")))
    (1, -0.0, Fraction(1, 3), 'on')
    """
    match data:
        case bool() | str() | None:
            return data
        case list():
            return tuple(unpacked(v) for v in data)
        case {"int": str(digits)}:
            return int(digits, 16)
        case {"float": str(digits)}:
            return float.fromhex(digits)
        case {"ratio": [str(above), str(below)]}:
            return Fraction(int(above, 16), int(below, 16))
    raise ValueError("no packed value")


def told(outcome: Outcome) -> Message:
    """An outcome as a message. Texts are cut: an answer may print without end."""
    texts = {language: outcome.text.into(language)[:KEPT] for language in ("en", "zh")}
    value = packed(outcome.value) if outcome.how in ("value", "raised") else None
    return {"how": outcome.how, "value": value, "printed": outcome.printed, "shown": outcome.shown[:KEPT], **texts}


def heard(message: Message, kind: Kind) -> Outcome:
    """The outcome that a message tells of, its value read as a kind."""
    how, text = message.get("how"), given(legible(message.get("en")), zh=legible(message.get("zh")))
    printed, shown = legible(message.get("printed")), legible(message.get("shown"))
    if how in ("raised", "unfit"):
        return Outcome(how, legible(message.get("value")), text, printed, shown)
    try:
        value = unpacked(message.get("value"))
        if isinstance(kind, Function):
            return Outcome("value" if value is True else "unfit", value, UNREADABLE)
        return Outcome("value", kind.read(value), NOTHING, printed, shown)
    except UnfitError as error:
        return Outcome("unfit", None, error.text, printed, shown)
    except Exception:  # such as a number that is too large for a float
        return Outcome("unfit", None, UNREADABLE, printed, shown)


def legible(text: Any) -> str:
    """A text that a terminal prints as it is, and whose lines but the first are indented: no line of a report is."""
    short = text[:KEPT] if isinstance(text, str) else ""
    return re.sub(r"\n *(?=.)", "\n    ", harmless(short))


def read(line: bytes) -> Message:
    """A message; an empty one for a line that is none."""
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        return message if isinstance(message, dict) else {}
    return {}
