"""The one error class of the lab, and the wording every message shares.

A message quotes the call the user wrote, says what is allowed, and suggests the nearest name. Inner functions
raise :class:`LabError` with the rule that was broken; the outermost public function, decorated with
:func:`quotes_call`, adds the call.
"""

from __future__ import annotations

import difflib
import functools
import operator
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


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
    if isinstance(given, str) and (near := _nearest(given.lower(), list(known))):
        text += f" Did you mean {' or '.join(repr(known[name]) for name in near)}?"
    return LabError(text)


def _nearest(given: str, known: list[str]) -> list[str]:
    """The names of a family ("fp8_e4m3", "fp8_e5m2" for "fp8"), or the nearest name whose number is not another one.

    >>> _nearest("fp8", ["fp4", "fp64", "fp8_e4m3", "fp8_e5m2"]), _nearest("4090", ["v100"]), _nearest("fp61", ["fp16"])
    (['fp8_e4m3', 'fp8_e5m2'], [], ['fp16'])
    """
    if given[-1:].isdigit() and (family := [name for name in known if name.startswith(f"{given}_")]):
        return family
    return difflib.get_close_matches(given, [name for name in known if _numbers_alike(given, name)], n=1, cutoff=0.5)


def _numbers_alike(given: str, name: str) -> bool:
    """Whether a number of a name could be one of those given with a slip: half of its digits, zeros aside, agree."""
    numbers = re.findall(r"\d+", given)
    for one in numbers:
        for other in re.findall(r"\d+", name):
            digits = [Counter(text.replace("0", "")) for text in (one, other)]
            most = max(map(Counter.total, digits))
            if abs(len(one) - len(other)) <= 1 and 2 * (digits[0] & digits[1]).total() >= most:
                return True
    return not numbers


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


def _public(module: str, name: str) -> str:
    """The outermost package that lists a name; else the module's own package if it has it, or the module."""
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        package = sys.modules.get(path)
        if name in getattr(package, "__all__", ()) and getattr(getattr(package, name), "__module__", "") == module:
            return path
    above = module.rpartition(".")[0]
    return above if above in sys.modules and hasattr(sys.modules[above], name) else module


def warn(text: str) -> None:
    """Warn at the user's own line, the first outside this package and torch."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in (__package__, "torch"))
    inside = tuple(str(Path(file).parent) for file in files if file)
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    level = next((i for i, f in enumerate(frames) if not f.f_code.co_filename.startswith(inside)), 0)
    warnings.warn(text, stacklevel=level + 2)


def quotes_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that a :class:`LabError` from inside begins with the user's own call."""
    *owner, name = function.__qualname__.rpartition("<locals>.")[2].split(".")

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except LabError as error:
            path, module = [*owner, name], function.__module__
            if name == "__init__":  # of the class that was called, which may be a subclass
                path, module = [type(args[0]).__name__], type(args[0]).__module__
            parts = [summary(a) for a in args[len(owner) :]] + [f"{k}={summary(v)}" for k, v in kwargs.items()]
            call = f"{_public(module, path[0])}.{'.'.join(path)}({', '.join(parts)})"
            rule = str(error).removeprefix(f"{error.call}: ")  # a public function called on the way quoted its own call
            error.args, error.call = (f"{call}: {rule}",), call  # the same error, with whatever else it carries
            raise error from None

    return wrapper


def quotes_class(cls: type[T]) -> type[T]:
    """Decorate a class so that its constructor quotes the call; for subclasses, call it in ``__init_subclass__``."""
    if "__init__" in vars(cls):
        cls.__init__ = quotes_call(cls.__init__)  # type: ignore[method-assign]
    return cls


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
