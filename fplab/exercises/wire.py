"""What the judge and the process that runs the answers say to each other: JSON, an object a line.

An answer can write on this line itself, anything at all. What arrives is therefore read as one reads an answer: a value
of the kind that was asked for, or nothing; a text without what could pass for another line of a report.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from ..words import given, say
from .kind import Kind, UnfitError
from .sandbox import KEPT, Outcome

Message = dict[str, Any]
UNREADABLE = say("it gave back nothing that can be read")


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


def packed_case(case: tuple[Any, ...]) -> Any:
    """Arguments as JSON; of a black box, what it is made of."""
    return packed([getattr(value, "hidden", value) for value in case])


def unpacked_case(data: Any, kinds: Iterable[Kind]) -> tuple[Any, ...]:
    """The arguments that were packed; black boxes are made anew."""
    return tuple(getattr(k, "make", _itself)(v) for k, v in zip(kinds, unpacked(data), strict=True))


def _itself(value: Any) -> Any:
    return value


def told(outcome: Outcome) -> Message:
    """An outcome as a message. Texts are cut: an answer may print without end."""
    en, zh = outcome.text.en[:KEPT], outcome.text.zh[:KEPT]
    value = packed(outcome.value) if outcome.how in ("value", "raised") else None
    return {"how": outcome.how, "value": value, "en": en, "zh": zh, "printed": outcome.printed, "stuck": outcome.stuck}


def heard(message: Message, kind: Kind) -> Outcome:
    """The outcome that a message tells of, its value read as a kind."""
    how, said = message.get("how"), given(harmless(message.get("en")), zh=harmless(message.get("zh")))
    printed, stuck = harmless(message.get("printed")), message.get("stuck") is True
    if how == "raised":
        return Outcome(how, harmless(message.get("value")), said, printed)
    if how in ("unfit", "late"):
        return Outcome(how, text=said, printed=printed, stuck=stuck)
    try:
        return Outcome("value", kind.read(unpacked(message.get("value"))), printed=printed)
    except UnfitError as error:
        return Outcome("unfit", text=error.text, printed=printed)
    except Exception:  # such as a number that is too large for a float
        return Outcome("unfit", text=UNREADABLE, printed=printed)


def harmless(text: Any) -> str:
    """A text that a terminal prints as it is, and whose lines but the first are indented: no line of a report is."""
    short = text[:KEPT] if isinstance(text, str) else ""
    lines = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in short)
    return re.sub(r"\n *(?=.)", "\n    ", lines)


def read(line: bytes) -> Message:
    """A message; an empty one for a line that is none."""
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        return message if isinstance(message, dict) else {}
    return {}
