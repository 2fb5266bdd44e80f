"""Bytes as people print them: GB are 10^9 bytes and GiB are 2^30, and the two never share a name here."""

from fractions import Fraction

from ..errors import door, integer

GB = 10**9
GIB = 2**30
MIB = 2**20
MOST = 10**30  # bytes: beyond them somebody multiplied twice


@door
def gb(count: int) -> float:
    """Bytes in decimal gigabytes, as the float nearest to the exact quotient.

    >>> gb(352_000_000_000)
    352.0
    """
    return float(Fraction(integer("count", count, -MOST, MOST), GB))


@door
def gib(count: int) -> float:
    """Bytes in binary gigabytes (GiB), as the float nearest to the exact quotient.

    >>> round(gib(6 * 10**9 * 4), 2)
    22.35
    """
    return float(Fraction(integer("count", count, -MOST, MOST), GIB))


def rounded(value: Fraction, digits: int) -> str:
    """An exact value to so many decimals, ties away from zero, as papers print them.

    >>> rounded(Fraction(165, 4), 1)
    '41.3'
    """
    scaled = value * 10**digits
    return _decimals(int(scaled + Fraction(1, 2)), digits)


def truncated(value: Fraction, digits: int) -> str:
    """An exact value cut after so many decimals, which some tables do instead.

    >>> truncated(Fraction(8375, 2), 0)
    '4187'
    """
    return _decimals(int(value * 10**digits), digits)


def _decimals(scaled: int, digits: int) -> str:
    if not digits:
        return str(scaled)
    whole, part = divmod(scaled, 10**digits)
    return f"{whole}.{part:0{digits}d}"


def shown(count: int) -> str:
    """Bytes for reading: the decimal unit that gives one to three digits before the point.

    >>> shown(2_820_000_000_000), shown(8_000), shown(999)
    ('2.82 TB', '8.00 kB', '999 B')
    """
    for power, unit in ((18, "EB"), (15, "PB"), (12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            value = Fraction(count, 10**power)
            return f"{rounded(value, 2 if value < 10 else 1 if value < 100 else 0)} {unit}"
    return f"{count} B"


def divided_up(count: int, parts: int) -> int:
    """``count`` in ``parts`` equal parts, the last one padded: the ceiling of the quotient."""
    return -(-count // parts)
