"""Answers in a Python file: a function or a value for each exercise, by its name."""

from __future__ import annotations

import sys
import tokenize
import types
from pathlib import Path
from typing import Any

from ..errors import LabError
from .base import registry
from .sandbox import LIMIT, Sandbox

MODULE = "answers"  # what a file is called while it runs: not "__main__"


def answers(file: Path, limit: float = LIMIT) -> dict[str, Any]:
    """Run a file and give what it defines under the names of exercises, in the order of the chapters.

    It runs with the rights of this process, and may import what lies beside it. Raises LabError for a file that cannot
    be read or run, and for one without an answer.
    """
    code = _compiled(file, _source(file))
    module = types.ModuleType(MODULE)
    module.__file__ = str(file)
    sys.modules[MODULE] = module  # where dataclasses, for one, look their module up
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # at the end: a random.py of the learner's hides nobody's
    with Sandbox(limit) as box:
        outcome = box.call(lambda: exec(code, vars(module)))
    if outcome.how != "value":
        raise LabError(f"{str(file)!r} does not run: {outcome.text}")
    space = vars(module)
    found = {name: space[name] for name in registry() if name in space}
    if not found:
        raise LabError(
            f"{str(file)!r} answers no exercise. Name a function or a value as the exercise is named, such as "
            "def rne(x, n): ...; fplab exercise list shows the names."
        )
    return found


def _source(file: Path) -> str:
    """The text of a file, in the encoding that it names, as Python reads it; UTF-8 otherwise."""
    try:
        with tokenize.open(file) as text:
            return text.read()
    except OSError as error:
        raise LabError(f"cannot read {str(file)!r}: {error.strerror}.") from None
    except (UnicodeDecodeError, SyntaxError):
        raise LabError(f"{str(file)!r} is not UTF-8 text, nor in an encoding that its first line names.") from None


def _compiled(file: Path, source: str) -> types.CodeType:
    try:
        return compile(source, str(file), "exec", dont_inherit=True)
    except (RecursionError, MemoryError):
        raise LabError(f"{str(file)!r} is nested too deeply for Python.") from None
    except (SyntaxError, ValueError, OverflowError) as error:
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", None) or str(error)
        raise LabError(f"{str(file)!r} is not Python: {what}" + (f" (line {line})." if line else ".")) from None
