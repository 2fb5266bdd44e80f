"""The bit pattern of the dynamic tree: what each bit of a code says.

From the left: the sign; k zeros, which say 10**-k; a one, the indicator, which ends them; and the n bits that are left,
a fraction f / (2**n - 1). The number of bits between exponent and fraction is shared out code by code, hence dynamic.

Where no bit is left for the fraction (n = 0) the value is the power of ten itself; a code without an indicator is 0.
"""

from fractions import Fraction
from typing import NamedTuple

from ..errors import LabError, integer


class Fields(NamedTuple):
    """What the bits of a code say. ``zeros``: k; ``fraction``: f; ``width``: n, -1 where there is no indicator."""

    negative: bool
    zeros: int
    fraction: int
    width: int

    @property
    def value(self) -> Fraction:
        """The number, exact; -0 is 0."""
        if self.width < 0:
            return Fraction(0)
        share = Fraction(self.fraction, 2**self.width - 1) if self.width else Fraction(1)
        return (-share if self.negative else share) / int(10**self.zeros)


def fields(code: int, bits: int = 8) -> Fields:
    """The fields of a code.

    >>> fields(0b0_001_1001)
    Fields(negative=False, zeros=2, fraction=9, width=4)
    """
    bits = integer("bits", bits, 3, 8)
    code = integer("code", code, 0, (1 << bits) - 1, f" ({bits} bits)")
    negative, rest = divmod(code, 1 << (bits - 1))
    width = rest.bit_length() - 1  # of what follows the indicator
    zeros = bits - 1 - rest.bit_length()
    return Fields(bool(negative), zeros, rest - (1 << width) if width >= 0 else 0, width)


def decode(code: int, bits: int = 8) -> Fraction:
    """The value of a code, exact.

    >>> decode(0b0_001_1001)
    Fraction(3, 500)
    """
    return fields(code, bits).value


def encode(x: float | Fraction, bits: int = 8) -> int:
    """The code whose value is nearest to ``x``; of two as near, or equal, the lower.

    >>> f"{encode(0.006):08b}"
    '00011001'
    """
    bits = integer("bits", bits, 3, 8)
    try:
        wanted = x if isinstance(x, Fraction) else Fraction(float(x))
    except (ValueError, OverflowError, TypeError):
        raise LabError(f"x={x!r} is no finite number.") from None
    return min(range(1 << bits), key=lambda code: (abs(decode(code, bits) - wanted), code))
