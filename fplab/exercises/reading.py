"""Reading what an answer gave as the number that it means, whatever its type; or refusing it kindly.

Learners write with Python's numbers, numpy's scalars, Fractions and arrays without dimensions; all of them are read,
and none is rounded on the way to an integer.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..language import Text
from .kind import UnfitError
from .shown import of_any

NO_NUMBERS = (bool, str, bytes, bytearray, complex)


def unfit(given: Any, en: str, zh: str) -> UnfitError:
    """The refusal of a value: what is wanted, in both languages, and what came."""
    what = f"{of_any(given).text} ({type(given).__name__})" if given is not None else "None"
    return UnfitError(Text(f"{en} is wanted, not {what}", f"需要{zh}，而不是 {what}"))


def _scalar(given: Any, en: str, zh: str) -> Any:
    """One number: out of a numpy scalar or an array without dimensions, itself otherwise."""
    shape = getattr(given, "shape", None)
    one = given.item() if shape == () and hasattr(given, "item") else given
    if isinstance(one, NO_NUMBERS) or shape not in (None, ()):
        raise unfit(given, en, zh)
    return one


def whole(given: Any, en: str, zh: str) -> int:
    """A Python integer, from any number that is one.

    >>> whole(3.0, "an integer", "一个整数"), whole(Fraction(6, 2), "an integer", "一个整数")
    (3, 3)
    """
    one = _scalar(given, en, zh)
    try:
        value = int(one)
        same = value == one
    except Exception:  # a type of the answer's own may fail in its own way
        raise unfit(given, en, zh) from None
    if not same:
        raise unfit(given, en, zh)
    return value


def real(given: Any, en: str, zh: str) -> float:
    """A float, from any real number."""
    one = _scalar(given, en, zh)
    try:
        return float(one)
    except Exception:
        raise unfit(given, en, zh) from None


def ratio(given: Any, en: str, zh: str) -> Fraction:
    """A Fraction of a number, exactly."""
    one = _scalar(given, en, zh)
    try:
        return Fraction(one)
    except Exception:
        raise unfit(given, en, zh) from None


def items(given: Any) -> Any:
    """An array of one dimension or more as a list; anything else as it is."""
    return given.tolist() if hasattr(given, "tolist") and getattr(given, "shape", ()) != () else given
