"""Reading what an answer gave as the number that it means, whatever its type; or refusing it kindly.

Learners write with Python's numbers, numpy's scalars, Fractions and arrays without dimensions; all of them are read,
and none is rounded on the way to an integer.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..words import Text, say
from .kind import UnfitError
from .shown import of_any

NO_NUMBERS = (bool, str, bytes, bytearray, complex)


def unfit(given: Any, wanted: Text) -> UnfitError:
    """The refusal of a value: what is wanted, and what came."""
    what = f"{of_any(given).text} ({type(given).__name__})" if given is not None else "None"
    return UnfitError(say("{wanted} is wanted, not {what}", wanted=wanted, what=what))


def _scalar(given: Any, wanted: Text) -> Any:
    """One number: out of a numpy scalar or an array without dimensions, itself otherwise."""
    shape = getattr(given, "shape", None)
    one = given.item() if shape == () and hasattr(given, "item") else given
    if isinstance(one, NO_NUMBERS) or shape not in (None, ()):
        raise unfit(given, wanted)
    return one


def whole(given: Any, wanted: Text) -> int:
    """A Python integer, from any number that is one.

    >>> whole(3.0, say("an integer")), whole(Fraction(6, 2), say("an integer"))
    (3, 3)
    """
    one = _scalar(given, wanted)
    try:
        value = int(one)
        same = value == one
    except Exception:  # a type of the answer's own may fail in its own way
        raise unfit(given, wanted) from None
    if not same:
        raise unfit(given, wanted)
    return value


def real(given: Any, wanted: Text) -> float:
    """A float, from any real number."""
    one = _scalar(given, wanted)
    try:
        return float(one)
    except Exception:
        raise unfit(given, wanted) from None


def ratio(given: Any, wanted: Text) -> Fraction:
    """A Fraction of a number, exactly."""
    one = _scalar(given, wanted)
    try:
        return Fraction(one)
    except Exception:
        raise unfit(given, wanted) from None


def items(given: Any) -> Any:
    """An array of one dimension or more as a list; anything else as it is."""
    return given.tolist() if hasattr(given, "tolist") and getattr(given, "shape", ()) != () else given
