"""Answers in a Python file: a function or a value for each exercise, by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import LabError
from .base import registry
from .sandbox import LIMIT, Sandbox


def answers(file: Path, limit: float = LIMIT) -> dict[str, Any]:
    """Run a file and give what it defines under the names of exercises, in the order of the chapters.

    Raises LabError for a file that cannot be read or run, and for one without an answer.
    """
    try:
        source = file.read_text(encoding="utf-8")
    except OSError as error:
        raise LabError(f"cannot read {str(file)!r}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise LabError(f"{str(file)!r} is not UTF-8 text; a Python file with answers is wanted.") from None
    try:
        code = compile(source, str(file), "exec")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", None) or str(error)
        raise LabError(f"{str(file)!r} is not Python: {what}" + (f" (line {line})." if line else ".")) from None
    space: dict[str, Any] = {"__name__": "answers", "__file__": str(file)}
    with Sandbox(limit) as box:
        outcome = box.call(lambda: exec(code, space))
    if outcome.how != "value":
        raise LabError(f"{str(file)!r} does not run: {outcome.text}")
    found = {name: space[name] for name in registry() if name in space}
    if not found:
        raise LabError(
            f"{str(file)!r} answers no exercise. Name a function or a value as the exercise is named, such as "
            "def rne(x, n): ...; fplab exercise list shows the names."
        )
    return found
