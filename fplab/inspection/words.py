"""The words of an inspection in both languages. Its data (``to_dict``, names of classes and flags) keeps the English.

>>> str(CLASSES["subnormal"])
'subnormal'
"""

from __future__ import annotations

from ..formats import Rounding
from ..words import say, say_of

CLASSES = {
    "normal": say("normal"),
    "subnormal": say("subnormal"),
    "zero": say("zero"),
    "infinite": say("infinite"),
    "quiet NaN": say("quiet NaN"),
    "signalling NaN": say("signalling NaN"),
}
FLAGS = {
    "invalid": say("invalid"),
    "divide by zero": say("divide by zero"),
    "overflow": say_of("words", "overflow"),
    "underflow": say("underflow"),
    "inexact": say("inexact"),
}
ROUNDINGS = {mode: say("rounded {how}", how=say(mode.text)) for mode in Rounding if not mode.random}

# How a value was taken, after the value itself and a colon.
EXACT = say("exact")
AS_WRITTEN = say("as written")
RATIO = say("the exact ratio")
HEXADECIMAL = say("the exact hexadecimal number")
DECIMAL = say("the exact decimal as written, not its nearest float")
ROUNDED = say("a {type}, which is already rounded")
OF_A_CODE = say("the number this code of {format} stands for")

# Why a format cannot hold a value.
NO_NAN = say("{format} has no NaN")
NO_ZERO = say("{format} has no zero and no NaN to say so")
NO_SIGN = say("{format} has no sign and no NaN to say so")

# The labelled lines of a format.
VALUE, ERROR, STATUS = say("value"), say("error"), say("flags")
BELOW, ABOVE = say("below"), say("above")
NONE, UNDEFINED, INFINITE = say_of("words", "none"), say("undefined"), say("infinite")
NO_ERROR = say("0 (exact)")
IN_ULPS = say("{ulps} ulp, absolute {absolute}")
RELATIVE = say(", relative {relative}")

ULP_MEANS = say("ulp: the spacing of the format's values in the binade of the stored value.")
COLON, ENUMERATION = say(": "), say_of("between items", ", ")
