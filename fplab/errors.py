"""The one error class of the lab, and the wording every message shares.

A message quotes the call the user wrote, says what is allowed, and suggests the nearest name. Inner functions
raise :class:`LabError` with the rule that was broken; the outermost public function, decorated with
:func:`quotes_call`, adds the call.
"""

from __future__ import annotations

import difflib
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class LabError(ValueError):
    """A request that the lab cannot honour; the text says what is allowed."""

    call: str | None = None


def reason(error: Exception) -> str:
    """What another error says, as part of a sentence: its first line."""
    text = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0].rstrip(" .:")


def unknown(kind: str, given: object, allowed: Iterable[str], aliases: Iterable[str] = ()) -> LabError:
    """The error for a name that is not in a table, with the nearest name that is; ``aliases`` are names too."""
    names = list(allowed)
    text = f"unknown {kind} {given!r}. Allowed: {', '.join(names)}."
    known = {name.lower(): name for name in [*aliases, *names]}
    if isinstance(given, str) and (near := difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.5)):
        text += f" Did you mean {known[near[0]]!r}?"
    return LabError(text)


def summary(value: object) -> str:
    """How an argument is quoted in a message: scalars and names as written, arrays as ``float32[3, 4]``."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(value, type):
        return value.__name__
    if isinstance(shape, tuple) and shape and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"
    name = getattr(value, "name", None)
    try:
        text = repr(name) if isinstance(name, str) else repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        text = f"<{type(value).__name__}>"
    if "\n" in text:  # a torch module's, for one
        return f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


def quotes_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that a :class:`LabError` from inside begins with the user's own call."""
    package, _, module = function.__module__.rpartition(".")
    name = function.__qualname__.rpartition("<locals>.")[2]
    shown = f"{package or module}.{name}"  # public functions are reached through their package

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except LabError as error:
            parts = [summary(a) for a in args] + [f"{k}={summary(v)}" for k, v in kwargs.items()]
            call = f"{shown}({', '.join(parts)})"
            rule = str(error).removeprefix(f"{error.call}: ")  # a public function called on the way quoted its own call
            error.args, error.call = (f"{call}: {rule}",), call  # the same error, with whatever else it carries
            raise error from None

    return wrapper


def integer(name: str, value: Any, low: int, high: int, why: str = "") -> int:
    """``value`` as an int between ``low`` and ``high``, or an error that names the field.

    Whoever asks goes on with what comes back: numpy's small integers overflow in silence where Python's do not.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:  # numpy's arrays and torch's tensors have __index__ too, and refuse it unless they are one number
        raise LabError(f"{name}={summary(value)} is not an integer; allowed: {low} to {high}.") from None
    if not low <= number <= high:
        raise LabError(f"{name}={number} is not possible; allowed: {low} to {high}{why}.")
    return number


def own_integer(record: object, name: str, low: int, high: int, why: str = "") -> None:
    """Make a frozen record's field the plain integer that it stands for (numpy's, say), or raise the rule."""
    object.__setattr__(record, name, integer(name, getattr(record, name), low, high, why))
