"""The roundings: one row each, with its name, its words and its definition.

A rounding is a row here and an arm of the same name in the kernels, fplab/kernels/rounding.py::

    >>> [mode.value for mode in Rounding]
    ['rne', 'rna', 'rtz', 'rtp', 'rtn', 'odd', 'stochastic']
    >>> Rounding.RTP.goes_up(Fraction(1, 8), odd=False, negative=False), Rounding.RTP.text
    (True, 'toward +infinity')

Everything that lists roundings takes them from here; the order of the rows means nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from fractions import Fraction

from .errors import LabError, door, unknown
from .words import mark

Rule = Callable[[Fraction, bool, bool, int], bool]
HALF = Fraction(1, 2)


@enum.unique
class Rounding(enum.Enum):
    """How a value between two neighbours of a format is rounded.

    ``text``: what it does, after "rounded". ``rule``: its definition, :meth:`goes_up`. ``random``: whether it draws.
    """

    RNE = ("rne", mark("to nearest, ties to even"),
           lambda share, odd, negative, word: share > HALF or (share == HALF and odd))  # fmt: skip
    RNA = "rna", mark("to nearest, ties away from zero"), lambda share, odd, negative, word: share >= HALF
    RTZ = "rtz", mark("toward zero"), lambda share, odd, negative, word: False
    RTP = "rtp", mark("toward +infinity"), lambda share, odd, negative, word: not negative
    RTN = "rtn", mark("toward -infinity"), lambda share, odd, negative, word: negative
    # Inexact results to the neighbour whose significand is odd; and up with the probability of the share.
    ODD = "odd", mark("to odd"), lambda share, odd, negative, word: not odd
    STOCHASTIC = (
        "stochastic",
        mark("up or down by distance"),
        lambda share, odd, negative, word: math.floor(share * 2**32) + word >= 2**32,
        True,
    )

    text: str
    random: bool
    _rule: Rule

    def __new__(cls, name: str, text: str, rule: Rule, random: bool = False) -> Rounding:
        """A row of the table; its value is its name."""
        mode = object.__new__(cls)
        mode._value_ = name
        mode.text, mode._rule, mode.random = text, rule, random
        return mode

    def goes_up(self, share: Fraction, odd: bool, negative: bool, word: int = 0) -> bool:
        """Whether a magnitude ``share`` (0 < share < 1) of the way between two neighbours goes to the upper one.

        ``odd``: whether the lower one's significand is; ``negative``: the sign; ``word``: 32 random bits.
        """
        return self._rule(share, odd, negative, word)

    def away_from_zero(self, negative: bool) -> bool:
        """Whether it can go beyond the largest finite value of this side.

        That value's significand is odd in every format with an infinity, and what overflows is all but at its upper
        neighbour.
        """
        return self.goes_up(1 - Fraction(1, 2**32), True, negative, 2**32 - 1)


_BY_NAME = {mode.value: mode for mode in Rounding}


@door
def rounding(mode: str | Rounding) -> Rounding:
    """The rounding of a name, or the member itself."""
    if isinstance(mode, Rounding):
        return mode
    record = _BY_NAME.get(mode.lower()) if isinstance(mode, str) else None
    if record is None:
        raise unknown("rounding", mode, _BY_NAME)
    return record


def without_kernel(mode: Rounding) -> LabError:
    """The error for a row of this table that the kernels do not know."""
    return LabError(
        f"rounding={mode.value!r} has a row in fplab/roundings.py and no kernel; "
        "give it a number in MODES and an arm in _rounds_up, both in fplab/kernels/rounding.py."
    )
